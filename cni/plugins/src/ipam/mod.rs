// SPDX-License-Identifier: GPL-2.0-or-later

//! IPAM plugins: they allocate addresses for interface plugins.

pub mod dhcp;
pub mod host_local;
pub(crate) mod keys;
pub mod r#static;
