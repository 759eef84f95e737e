// SPDX-License-Identifier: MIT OR Apache-2.0

//! The address ranges in configurations of host-local.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_kernel::AddressFamily;
use cni_spec::address::{AddressError, check_container, check_router};
use ipnet::IpNet;

/// The addresses from `first` to `last`, both included, in one subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The subnet; allocated addresses get its prefix length.
    pub subnet: IpNet,
    pub first: IpAddr,
    pub last: IpAddr,
    /// The gateway, which is never allocated. As in the reference, it may be outside the subnet.
    pub gateway: IpAddr,
}

/// A range of the configuration, parsed but not checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawRange {
    /// The key `subnet`.
    pub subnet: Option<IpNet>,
    /// The key `rangeStart`.
    pub first: Option<IpAddr>,
    /// The key `rangeEnd`.
    pub last: Option<IpAddr>,
    /// The key `gateway`.
    pub gateway: Option<IpAddr>,
}

/// Why a range cannot be used. The texts are those of the reference plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("missing subnet")]
    NoSubnet,
    /// The subnet has fewer than four addresses.
    #[error("Network {0} too small to allocate from")]
    TooSmall(IpNet),
    /// The subnet consists of IPv4-mapped IPv6 addresses.
    #[error("Network {network} is an IPv4-mapped IPv6 network: IPNet IP and Mask version mismatch")]
    Mapped {
        /// The subnet.
        network: IpNet,
    },
    /// The subnet's address has host bits set.
    #[error(
        "Network has host bits set. For a subnet mask of length {length} the network address is {network}"
    )]
    HostBits {
        /// The prefix length.
        length: u8,
        network: IpAddr,
    },
    /// The first address is outside the subnet, or after the last one.
    #[error("RangeStart {0} not in network {1}")]
    Start(IpAddr, IpNet),
    /// The last address is outside the subnet, or before the first one.
    #[error("RangeEnd {0} not in network {1}")]
    End(IpAddr, IpNet),
    /// No container or router can have an address of the range.
    #[error(transparent)]
    Unusable(#[from] AddressError),
}

impl RawRange {
    /// Checks the range and fills in defaults. The gateway and the first address default to the first one after the
    /// network's. The last address defaults to the one before the broadcast address (IPv4), or the last one of the
    /// subnet (IPv6).
    pub fn resolve(&self) -> Result<Range, RangeError> {
        let subnet = self.subnet.ok_or(RangeError::NoSubnet)?;
        let bits = subnet.max_prefix_len();
        if subnet.prefix_len() > bits - 2 {
            return Err(RangeError::TooSmall(subnet));
        }
        if let IpAddr::V6(address) = subnet.addr()
            && address.to_ipv4_mapped().is_some()
        {
            return Err(RangeError::Mapped { network: subnet });
        }
        if subnet.addr() != subnet.network() {
            return Err(RangeError::HostBits { length: subnet.prefix_len(), network: subnet.network() });
        }
        let second = step(subnet.network(), 1);
        let range = Range {
            subnet,
            first: self.first.unwrap_or(second),
            last: self.last.unwrap_or(match subnet {
                IpNet::V4(_) => from_number(AddressFamily::V4, number(subnet.broadcast()) - 1),
                IpNet::V6(_) => subnet.broadcast(),
            }),
            gateway: self.gateway.unwrap_or(second),
        };
        // As in the reference plugin, the error for an empty range names the start if the configuration has one.
        let ordered = same_family(range.first, range.last) && number(range.first) <= number(range.last);
        if !subnet.contains(&range.first) || (self.first.is_some() && !ordered) {
            return Err(RangeError::Start(range.first, subnet));
        }
        if !subnet.contains(&range.last) || !ordered {
            return Err(RangeError::End(range.last, subnet));
        }
        Ok(range.usable()?)
    }
}

impl Range {
    /// Excludes the subnet's network address and its broadcast address.
    fn usable(mut self) -> Result<Self, AddressError> {
        let subnet = self.subnet;
        let checked = |address| {
            check_container(IpNet::new(address, subnet.prefix_len()).unwrap_or_else(|_| address.into()))
        };
        if self.first == self.last {
            checked(self.first)?;
        }
        if self.first == subnet.network() {
            self.first = step(self.first, 1);
        }
        if self.last == subnet.broadcast() && self.last.is_ipv4() {
            self.last = from_number(AddressFamily::V4, number(self.last) - 1);
        }
        checked(self.first)?;
        checked(self.last)?;
        check_router(self.gateway)?;
        Ok(self)
    }

    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        same_family(self.first, address)
            && (number(self.first)..=number(self.last)).contains(&number(address))
    }

    /// True if the two ranges have an address in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        same_family(self.first, other.first)
            && number(self.first) <= number(other.last)
            && number(other.first) <= number(self.last)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// True if both addresses belong to the same family.
#[must_use]
pub fn same_family(a: IpAddr, b: IpAddr) -> bool {
    AddressFamily::of(a) == AddressFamily::of(b)
}

/// The address as a number in its family.
#[must_use]
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

/// The address with this number, which has at most 32 bits for IPv4.
#[must_use]
pub fn from_number(family: AddressFamily, number: u128) -> IpAddr {
    match family {
        AddressFamily::V4 => IpAddr::V4(Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX))),
        AddressFamily::V6 => IpAddr::V6(Ipv6Addr::from(number)),
    }
}

fn step(address: IpAddr, by: u128) -> IpAddr {
    from_number(AddressFamily::of(address), number(address) + by)
}

/// Converts an IPv4-mapped IPv6 address to the IPv4 address, as the reference plugin does.
#[must_use]
pub fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(subnet: &str, first: &str, last: &str, gateway: &str) -> RawRange {
        RawRange {
            subnet: subnet.parse().ok(),
            first: first.parse().ok(),
            last: last.parse().ok(),
            gateway: gateway.parse().ok(),
        }
    }

    fn message(subnet: &str, first: &str, last: &str) -> String {
        raw(subnet, first, last, "").resolve().unwrap_err().to_string()
    }

    #[test]
    fn missing_keys_have_defaults() {
        let range = raw("10.1.2.0/24", "", "", "").resolve().unwrap();
        assert_eq!(range.to_string(), "10.1.2.1-10.1.2.254");
        assert_eq!(range.gateway.to_string(), "10.1.2.1");
        let range = raw("fd00::/120", "", "", "fd00::9").resolve().unwrap();
        assert_eq!(range.to_string(), "fd00::1-fd00::ff");
        assert_eq!(range.gateway.to_string(), "fd00::9");
        let range = raw("8000::/1", "", "8000::9", "").resolve().unwrap();
        assert_eq!(range.to_string(), "8000::1-8000::9");
        let range = raw("64.0.0.0/3", "", "", "").resolve().unwrap();
        assert_eq!(range.to_string(), "64.0.0.1-95.255.255.254");
    }

    #[test]
    fn errors_have_the_references_texts() {
        for (subnet, first, last, expected) in [
            ("", "", "", "missing subnet"),
            ("10.1.2.0/31", "", "", "Network 10.1.2.0/31 too small to allocate from"),
            ("fd00::/127", "", "", "Network fd00::/127 too small to allocate from"),
            (
                "10.1.2.3/24",
                "",
                "",
                "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0",
            ),
            ("10.1.2.0/24", "10.1.3.1", "", "RangeStart 10.1.3.1 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "fd00::1", "", "RangeStart fd00::1 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "", "10.1.3.1", "RangeEnd 10.1.3.1 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "10.1.2.9", "10.1.2.8", "RangeStart 10.1.2.9 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "10.1.2.255", "", "RangeStart 10.1.2.255 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "", "10.1.2.0", "RangeEnd 10.1.2.0 not in network 10.1.2.0/24"),
        ] {
            assert_eq!(message(subnet, first, last), expected);
        }
    }

    #[test]
    fn network_and_broadcast_addresses_are_excluded() {
        let range = |first, last| raw("10.1.2.0/24", first, last, "").resolve().unwrap().to_string();
        assert_eq!(range("10.1.2.0", "10.1.2.255"), "10.1.2.1-10.1.2.254");
        assert_eq!(range("10.1.2.0", "10.1.2.9"), "10.1.2.1-10.1.2.9");
        let range = raw("fd00::/64", "fd00::", "", "").resolve().unwrap();
        assert_eq!(range.to_string(), "fd00::1-fd00::ffff:ffff:ffff:ffff");
    }

    #[test]
    fn ranges_that_no_container_can_use() {
        for (subnet, first, last, expected) in [
            ("127.0.0.0/24", "", "", "127.0.0.1/24: it is a loopback address"),
            ("224.0.0.0/24", "", "", "224.0.0.1/24: it is a multicast address"),
            ("0.0.0.0/8", "", "", "0.0.0.1/8: it is unspecified"),
            ("126.0.0.0/7", "", "", "127.255.255.254/7: it is a loopback address"),
            ("0.0.0.0/0", "10.0.0.1", "10.0.0.9", "10.0.0.1/0: its prefix has no length"),
            ("::/0", "fd00::1", "fd00::9", "fd00::1/0: its prefix has no length"),
            ("10.1.2.0/24", "10.1.2.0", "10.1.2.0", "10.1.2.0/24: it is the address of its subnet"),
            (
                "10.1.2.0/24",
                "10.1.2.255",
                "10.1.2.255",
                "10.1.2.255/24: it is the broadcast address of its subnet",
            ),
        ] {
            assert_eq!(message(subnet, first, last), format!("no container can have address {expected}"));
        }
        let gateway = raw("10.1.2.0/24", "", "", "127.0.0.1").resolve().unwrap_err();
        assert_eq!(gateway.to_string(), "no router can have address 127.0.0.1: it is a loopback address");
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        assert_eq!(canonical("::ffff:10.0.0.1".parse().unwrap()).to_string(), "10.0.0.1");
        assert_eq!(canonical("fd00::1".parse().unwrap()).to_string(), "fd00::1");
    }
}
