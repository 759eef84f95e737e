// SPDX-License-Identifier: GPL-2.0-or-later

//! The address families that the kernel supports.

use std::net::IpAddr;
use std::path::Path;

/// The feature that [`has_ipv6`] checks, for [`crate::skip!`].
pub const IPV6: &str = "ipv6";

/// True if the kernel has IPv6. When booted with `ipv6.disable=1`, it has no sockets, addresses, routes or settings of
/// that family.
pub fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").is_dir()
}

/// The addresses among these whose family the kernel has.
pub fn usable(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    addresses.into_iter().filter(|address| address.is_ipv4() || has_ipv6()).collect()
}
