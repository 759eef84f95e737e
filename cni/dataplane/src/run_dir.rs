// SPDX-License-Identifier: GPL-2.0-or-later

//! The folder for what lasts until the next reboot.

/// Holds the locks of the iptables backend, of the firewall and of the mount of a BPF file system, and a note of tables
/// that were large. Nothing in it is needed, and a reboot empties it.
pub const RUN_DIR: &str = "/run/slipway";
