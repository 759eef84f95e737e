// SPDX-License-Identifier: GPL-2.0-or-later

//! The folder for what lasts until the next reboot.

/// Holds the locks of the iptables backend and of the firewall, and a note of tables that were large. Nothing
/// in it is needed, and a reboot empties it.
pub const RUN_DIR: &str = "/run/slipway";
