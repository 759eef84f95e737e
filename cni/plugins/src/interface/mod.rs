// SPDX-License-Identifier: GPL-2.0-or-later

//! Interface plugins: they make or configure a link.

pub mod bridge;
pub mod dummy;
pub mod host_device;
pub mod ipvlan;
pub mod loopback;
pub mod macvlan;
pub mod ptp;
pub(crate) mod shared;
pub mod tap;
pub mod vlan;
