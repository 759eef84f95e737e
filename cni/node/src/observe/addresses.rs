// SPDX-License-Identifier: GPL-3.0-or-later

//! The addresses of the node's own subnets, used and free, by host-local's reservations.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;

/// host-local's directory of reservations: one directory for each network, one file for each address.
pub(super) const RESERVATIONS: &str = "/var/lib/cni/networks";

/// A subnet of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) subnet: IpNet,
    /// Reserved addresses.
    pub(super) used: u64,
    /// Other addresses that a pod can have, [`u64::MAX`] at most.
    pub(super) free: u64,
}

/// Counts the reservations of a network. A missing directory has none.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn count(reservations: &Path, network: &str, subnets: &[IpNet]) -> io::Result<Vec<Range>> {
    let mut ranges: Vec<Range> =
        subnets.iter().map(|subnet| Range { subnet: *subnet, used: 0, free: 0 }).collect();
    match std::fs::read_dir(reservations.join(network)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        entries => {
            for entry in entries? {
                let name = entry?.file_name();
                let Some(address) = name.to_str().and_then(|name| name.parse::<IpAddr>().ok()) else {
                    continue;
                };
                for range in ranges.iter_mut().filter(|range| range.subnet.contains(&address)) {
                    range.used += 1;
                }
            }
        }
    }
    for range in &mut ranges {
        range.free = capacity(&range.subnet).saturating_sub(range.used);
    }
    Ok(ranges)
}

/// The addresses of a subnet that host-local gives to pods: all but the network's own, the gateway's, and in IPv4 the
/// broadcast address.
fn capacity(subnet: &IpNet) -> u64 {
    let bits = subnet.max_prefix_len() - subnet.prefix_len();
    let all = 1_u128.checked_shl(bits.into()).unwrap_or(u128::MAX);
    let reserved = if subnet.addr().is_ipv4() { 3 } else { 2 };
    u64::try_from(all.saturating_sub(reserved)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_counted_by_subnet() {
        let temp = tempfile::tempdir().unwrap();
        let subnets: Vec<IpNet> =
            ["10.244.1.0/24", "fd44:0:0:1::/64"].iter().map(|net| net.parse().unwrap()).collect();
        let count = || count(temp.path(), "pods", &subnets).unwrap();
        let used = |ranges: &[Range]| ranges.iter().map(|range| (range.used, range.free)).collect::<Vec<_>>();
        assert_eq!(used(&count()), [(0, 253), (0, u64::MAX - 1)]);
        let dir = temp.path().join("pods");
        std::fs::create_dir(&dir).unwrap();
        for name in ["10.244.1.2", "10.244.1.3", "fd44:0:0:1::2", "10.9.0.2", "lock", "last_reserved_ip.0"] {
            std::fs::write(dir.join(name), "8f3a\neth0").unwrap();
        }
        assert_eq!(used(&count()), [(2, 251), (1, u64::MAX - 2)]);
        std::fs::write(temp.path().join("file"), "").unwrap();
        assert!(super::count(temp.path(), "file", &subnets).is_err());
    }

    #[test]
    fn small_and_large_subnets_have_a_capacity() {
        for (subnet, expected) in
            [("10.0.0.0/30", 1), ("10.0.0.0/8", (1 << 24) - 3), ("fd00::/126", 2), ("fd00::/32", u64::MAX)]
        {
            assert_eq!(capacity(&subnet.parse().unwrap()), expected, "{subnet}");
        }
        assert_eq!(capacity(&"::/0".parse().unwrap()), u64::MAX);
    }
}
