// SPDX-License-Identifier: GPL-3.0-or-later

//! Targets for public parsers, and for those that need more than the input.

pub(crate) mod bpf;
pub(crate) mod netlink;
pub(crate) mod plugin;
pub(crate) mod spec;
pub(crate) mod state;
