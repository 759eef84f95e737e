// SPDX-License-Identifier: GPL-2.0-or-later

//! The folder for files that last until the next reboot.

/// Contains the locks of the iptables backend, of the firewall and of the mount of a BPF file system, notes about
/// large tables, marks of attachments whose DEL has begun, and records of moved devices. Slipway works without these
/// files, and a reboot removes them.
pub const RUN_DIR: &str = "/run/slipway";
