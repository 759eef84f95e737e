// SPDX-License-Identifier: GPL-3.0-or-later

//! The addresses of the node's own subnets, used and free, and those of former subnets, by host-local's reservations.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use cni_kernel::dir::DirError;
use cni_spec::Attachment;
use cni_state::documents::AddressRange;
use ipnet::IpNet;

use crate::host::reservations::Reservations;

/// The most addresses that a message names.
const NAMED: usize = 20;

/// An address that is reserved outside the node's subnets: its pod got it before these changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FormerAddress {
    /// The address.
    pub address: IpAddr,
    /// The pod's attachment; none if the reservation names none.
    pub owner: Option<Attachment>,
}

/// The reservations of a network.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AddressUsage {
    /// The node's subnets.
    pub(super) ranges: Vec<AddressRange>,
    pub(super) former: BTreeSet<FormerAddress>,
}

impl AddressUsage {
    /// Reads the reservations of a network. A missing directory has none.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn read(directory: &Path, network: &str, subnets: &[IpNet]) -> Result<Self, DirError> {
        let mut ranges: Vec<AddressRange> =
            subnets.iter().map(|range| AddressRange { range: *range, used: 0, free: 0 }).collect();
        let mut former = BTreeSet::new();
        if let Some(reservations) = Reservations::open(directory, network)? {
            for address in reservations.addresses()? {
                let mut is_inside = false;
                for range in ranges.iter_mut().filter(|one| one.range.contains(&address)) {
                    range.used += 1;
                    is_inside = true;
                }
                if !is_inside {
                    former.insert(FormerAddress { address, owner: reservations.owner(address) });
                }
            }
        }
        for range in &mut ranges {
            range.free = capacity(&range.range).saturating_sub(range.used);
        }
        Ok(Self { ranges, former })
    }
}

/// The addresses of a subnet that host-local gives to pods: all but the network's own, the gateway's, and in IPv4 the
/// broadcast address.
fn capacity(subnet: &IpNet) -> u64 {
    let bits = subnet.max_prefix_len() - subnet.prefix_len();
    let all = 1_u128.checked_shl(bits.into()).unwrap_or(u128::MAX);
    let reserved = if subnet.addr().is_ipv4() { 3 } else { 2 };
    u64::try_from(all.saturating_sub(reserved)).unwrap_or(u64::MAX)
}

/// A change of the node's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A subnet has no free address any more.
    Exhausted(IpNet),
    /// A subnet has a free address again.
    Free(IpNet),
    /// The addresses of former subnets.
    Former(BTreeSet<FormerAddress>),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted(subnet) => {
                write!(f, "no address of {subnet} is free: new pods get none until others end")
            }
            Self::Free(subnet) => write!(f, "{subnet} has free addresses again"),
            Self::Former(all) if all.is_empty() => {
                f.write_str("no pod has an address of a former pod CIDR any more")
            }
            Self::Former(all) => {
                let named = all.iter().take(NAMED).map(|one| match &one.owner {
                    Some(owner) => format!("{} of {} {}", one.address, owner.container_id(), owner.ifname()),
                    None => one.address.to_string(),
                });
                let named = named.collect::<Vec<_>>().join(", ");
                write!(f, "pods keep addresses of a former pod CIDR until they end: {named}")?;
                match all.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

/// The state that was reported.
#[derive(Debug, Default)]
pub(super) struct AddressMonitor {
    exhausted: BTreeSet<IpNet>,
    former: BTreeSet<FormerAddress>,
}

impl AddressMonitor {
    /// The changes since the last view. A subnet that the node no longer has is not reported as free.
    pub(super) fn compare(&mut self, view: &AddressUsage) -> Vec<Change> {
        let exhausted: BTreeSet<IpNet> =
            view.ranges.iter().filter(|one| one.free == 0).map(|one| one.range).collect();
        let is_free = |subnet: &&IpNet| view.ranges.iter().any(|one| one.range == **subnet);
        let free = self.exhausted.difference(&exhausted).filter(is_free);
        let mut changes: Vec<Change> = free.map(|subnet| Change::Free(*subnet)).collect();
        changes.extend(exhausted.difference(&self.exhausted).map(|subnet| Change::Exhausted(*subnet)));
        if view.former != self.former {
            changes.push(Change::Former(view.former.clone()));
            self.former.clone_from(&view.former);
        }
        self.exhausted = exhausted;
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn reservations_are_counted_by_subnet() {
        let temp = tempfile::tempdir().unwrap();
        let subnets = nets(&["10.244.1.0/24", "fd44:0:0:1::/64"]);
        let read = || AddressUsage::read(temp.path(), "pods", &subnets).unwrap();
        let used = |view: &AddressUsage| {
            view.ranges.iter().map(|range| (range.used, range.free)).collect::<Vec<_>>()
        };
        assert_eq!(used(&read()), [(0, 253), (0, u64::MAX - 1)]);
        let dir = temp.path().join("pods");
        std::fs::create_dir(&dir).unwrap();
        for name in ["10.244.1.2", "10.244.1.3", "fd44:0:0:1::2", "10.9.0.2", "lock", "last_reserved_ip.0"] {
            std::fs::write(dir.join(name), "8f3a\r\neth0").unwrap();
        }
        std::fs::write(dir.join("10.9.0.3"), "").unwrap();
        let view = read();
        assert_eq!(used(&view), [(2, 251), (1, u64::MAX - 2)]);
        let change = Change::Former(view.former);
        let text = "pods keep addresses of a former pod CIDR until they end: 10.9.0.2 of 8f3a eth0, 10.9.0.3";
        assert_eq!(change.to_string(), text);
        std::os::unix::fs::symlink("loop", temp.path().join("loop")).unwrap();
        assert!(AddressUsage::read(temp.path(), "loop", &subnets).is_err());
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

    #[test]
    fn changes_are_reported_once() {
        let [a, b] = nets(&["10.244.1.0/29", "10.244.2.0/29"])[..] else { unreachable!() };
        let former = |last: u8| FormerAddress { address: [10, 9, 0, last].into(), owner: None };
        let view = |free: &[(IpNet, u64)], last: &[u8]| AddressUsage {
            ranges: free
                .iter()
                .map(|(range, free)| AddressRange { range: *range, used: 1, free: *free })
                .collect(),
            former: last.iter().map(|last| former(*last)).collect(),
        };
        let mut reported = AddressMonitor::default();
        assert_eq!(reported.compare(&view(&[(a, 1)], &[])), []);
        assert_eq!(reported.compare(&view(&[(a, 0)], &[])), [Change::Exhausted(a)]);
        assert_eq!(reported.compare(&view(&[(a, 0)], &[])), []);
        assert_eq!(reported.compare(&view(&[(a, 2)], &[])), [Change::Free(a)]);
        assert_eq!(reported.compare(&view(&[(a, 0)], &[])), [Change::Exhausted(a)]);
        // Now the node gets another subnet.
        assert_eq!(
            reported.compare(&view(&[(b, 5)], &[2, 3])),
            [Change::Former([former(2), former(3)].into())]
        );
        assert_eq!(reported.compare(&view(&[(b, 5)], &[2, 3])), []);
        let none = reported.compare(&view(&[(b, 5)], &[]));
        assert_eq!(none, [Change::Former(BTreeSet::new())]);
        assert_eq!(none[0].to_string(), "no pod has an address of a former pod CIDR any more");
        let many = Change::Former((0..=24).map(former).collect());
        assert!(many.to_string().ends_with(", 10.9.0.19 and 5 more"), "{many}");
    }
}
