// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks addresses of containers and routers.
//!
//! A container must not get an address that the node accepts as its own or as a broadcast address. A port that is
//! published for such a container would lead to the node itself, and bypass the filters for the node's ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{AddResult, CniError};

/// Networks that contain no addresses for containers, with their names.
pub const UNUSABLE_NETWORKS: [(IpNet, &str); 7] = [
    (v4([0, 0, 0, 0], 8), "unspecified"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    // The network includes `::` and `::1` (RFC 4291, section 2.5.5.1).
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "IPv4-compatible"),
    (v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96), "IPv4-mapped"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
];

const fn v4(address: [u8; 4], length: u8) -> IpNet {
    let [a, b, c, d] = address;
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), length))
}

const fn v6(address: [u16; 8], length: u8) -> IpNet {
    let [a, b, c, d, e, f, g, h] = address;
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, g, h), length))
}

/// True if two networks have an address in common.
#[must_use]
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// Why an address cannot belong to a container or router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The address was assigned to a container.
    #[error("no container can have address {0}: {1}")]
    Container(IpNet, Unusable),
    /// The address was given as that of a router.
    #[error("no router can have address {0}: {1}")]
    Router(IpAddr, Unusable),
}

impl From<AddressError> for CniError {
    /// Converts to code 7, whichever plugin the address came from.
    fn from(error: AddressError) -> Self {
        Self::config(error.to_string())
    }
}

/// Why no host can have an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// The address is in 0.0.0.0/8, or is `::`.
    Unspecified,
    /// The address is in 127.0.0.0/8, or is `::1`.
    Loopback,
    /// The address is in 224.0.0.0/4 or `ff00::/8`.
    Multicast,
    /// The address is 255.255.255.255.
    LimitedBroadcast,
    /// The address is in `::ffff:0:0/96`, or in the deprecated `::/96` (RFC 4291, section 2.5.5).
    Embedded,
    /// The prefix length is 0.
    NoPrefix,
    /// The address is the first one of its subnet.
    Network,
    /// The address is the last one of its IPv4 subnet.
    SubnetBroadcast,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "it is unspecified",
            Self::Loopback => "it is a loopback address",
            Self::Multicast => "it is a multicast address",
            Self::LimitedBroadcast => "it is the broadcast address",
            Self::Embedded => "it is an IPv4 address written as IPv6",
            Self::NoPrefix => "its prefix has no length",
            Self::Network => "it is the address of its subnet",
            Self::SubnetBroadcast => "it is the broadcast address of its subnet",
        })
    }
}

/// Checks a container's address, given with the prefix length of its subnet.
///
/// The first address of an IPv4 subnet is a broadcast address for kernels before Linux 5.14, and that of an IPv6 subnet
/// is the anycast address of all routers (RFC 4291, section 2.6.1). The last address of an IPv4 subnet is the broadcast
/// address. A node in the subnet accepts packets to these addresses as its own. Subnets of one or two addresses have no
/// such addresses (RFC 3021, RFC 6164).
///
/// # Errors
/// [`AddressError::Container`] if no container can have the address.
pub fn check_container(net: IpNet) -> Result<(), AddressError> {
    let host_bits = net.max_prefix_len() - net.prefix_len();
    let of_subnet = || match net.addr() {
        _ if net.prefix_len() == 0 => Some(Unusable::NoPrefix),
        _ if host_bits < 2 => None,
        address if address == net.network() => Some(Unusable::Network),
        IpAddr::V4(_) if net.addr() == net.broadcast() => Some(Unusable::SubnetBroadcast),
        _ => None,
    };
    match reason(net.addr()).or_else(of_subnet) {
        Some(reason) => Err(AddressError::Container(net, reason)),
        None => Ok(()),
    }
}

/// Checks a next hop. The unspecified address means that there is none, and is accepted.
///
/// # Errors
/// [`AddressError::Router`] if no router can have the address.
pub fn check_router(address: IpAddr) -> Result<(), AddressError> {
    match reason(address) {
        Some(reason) if !address.is_unspecified() => Err(AddressError::Router(address, reason)),
        _ => Ok(()),
    }
}

/// Why no host can have the address, whatever the subnet. Link-local addresses, addresses in 240.0.0.0/4 and
/// addresses for documentation are accepted, because they are in use.
fn reason(address: IpAddr) -> Option<Unusable> {
    match address {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(Unusable::LimitedBroadcast),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some(Unusable::Unspecified),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Some(Unusable::Unspecified),
        _ if address.is_loopback() => Some(Unusable::Loopback),
        _ if address.is_multicast() => Some(Unusable::Multicast),
        IpAddr::V6(v6) if matches!(v6.segments(), [0, 0, 0, 0, 0, 0 | 0xffff, ..]) => {
            Some(Unusable::Embedded)
        }
        _ => None,
    }
}

impl AddResult {
    /// Checks all addresses and gateways.
    ///
    /// # Errors
    /// [`AddressError`] for the first address that cannot be used.
    pub fn check_addresses(&self) -> Result<(), AddressError> {
        self.ips.iter().try_for_each(|ip| {
            check_container(ip.address)?;
            ip.gateway.map_or(Ok(()), check_router)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(net: &str) -> Option<Unusable> {
        match check_container(net.parse().unwrap()) {
            Err(AddressError::Container(_, reason)) => Some(reason),
            other => {
                assert_eq!(other, Ok(()));
                None
            }
        }
    }

    #[test]
    fn no_container_can_have_these() {
        for (net, reason) in [
            ("0.0.0.0/8", Unusable::Unspecified),
            ("0.1.2.3/32", Unusable::Unspecified),
            ("127.0.0.1/8", Unusable::Loopback),
            ("127.255.255.254/32", Unusable::Loopback),
            ("224.0.0.1/4", Unusable::Multicast),
            ("239.255.255.255/32", Unusable::Multicast),
            ("255.255.255.255/32", Unusable::LimitedBroadcast),
            ("10.1.2.3/0", Unusable::NoPrefix),
            ("10.1.2.0/24", Unusable::Network),
            ("10.1.2.4/30", Unusable::Network),
            ("10.1.2.255/24", Unusable::SubnetBroadcast),
            ("10.1.2.7/30", Unusable::SubnetBroadcast),
            ("::/64", Unusable::Unspecified),
            ("::1/128", Unusable::Loopback),
            ("ff02::1/128", Unusable::Multicast),
            ("::ffff:10.0.0.5/120", Unusable::Embedded),
            ("::10.0.0.5/128", Unusable::Embedded),
            ("fd00::5/0", Unusable::NoPrefix),
            ("fd00::/64", Unusable::Network),
            ("fd00::4/126", Unusable::Network),
        ] {
            assert_eq!(refused(net), Some(reason), "{net}");
        }
    }

    #[test]
    fn containers_can_have_these() {
        for net in [
            "10.0.0.5/24",
            "10.0.255.255/15",
            "10.1.3.0/23",
            "10.1.2.0/31",
            "10.1.2.1/31",
            "10.1.2.0/32",
            "169.254.7.7/16",
            "240.0.0.5/4",
            "192.0.2.9/24",
            "fe80::5/64",
            "fd00::ffff:ffff:ffff:ffff/64",
            "fd00::/127",
            "fd00::/128",
            "64:ff9b::a00:5/96",
            "2001:db8::5/1",
        ] {
            assert_eq!(refused(net), None, "{net}");
        }
    }

    #[test]
    fn routers() {
        for address in ["127.0.0.1", "0.0.0.1", "224.0.0.1", "255.255.255.255", "::1", "ff02::2"] {
            assert!(check_router(address.parse().unwrap()).is_err(), "{address}");
        }
        for address in ["10.0.0.0", "169.254.1.1", "0.0.0.0", "::", "fe80::1"] {
            assert_eq!(check_router(address.parse().unwrap()), Ok(()), "{address}");
        }
    }

    #[test]
    fn errors_name_the_address() {
        let error: CniError = check_container("127.0.0.1/8".parse().unwrap()).unwrap_err().into();
        assert_eq!(error.msg, "no container can have address 127.0.0.1/8: it is a loopback address");
        assert_eq!(error.code.number(), 7);
    }

    #[test]
    fn networks_overlap_if_one_contains_the_other() {
        let overlap = |one: &str, other: &str| {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(overlap(&one, &other), overlap(&other, &one), "in either order");
            overlap(&one, &other)
        };
        assert!(overlap("10.1.0.0/16", "10.1.2.0/24"));
        assert!(overlap("10.1.2.0/24", "10.1.2.0/24"));
        assert!(!overlap("10.1.2.0/24", "10.1.3.0/24"));
        assert!(!overlap("0.0.0.0/0", "::/0"), "the families have no address in common");
    }

    #[test]
    fn a_result_is_refused_for_any_of_its_addresses_and_gateways() {
        let check = |ips: &[(&str, &str)]| {
            let ip = |(address, gateway): &(&str, &str)| crate::IpConfig {
                interface: None,
                address: address.parse().unwrap(),
                gateway: gateway.parse().ok(),
            };
            AddResult { ips: ips.iter().map(ip).collect(), ..AddResult::default() }.check_addresses()
        };
        assert_eq!(check(&[("10.1.2.5/24", "10.1.2.1"), ("fd00::5/64", "")]), Ok(()));
        let broadcast = AddressError::Container("10.1.2.255/24".parse().unwrap(), Unusable::SubnetBroadcast);
        assert_eq!(check(&[("10.1.2.5/24", ""), ("10.1.2.255/24", "10.1.2.1")]), Err(broadcast));
        let loopback = AddressError::Router("127.0.0.1".parse().unwrap(), Unusable::Loopback);
        assert_eq!(check(&[("10.1.2.5/24", "127.0.0.1")]), Err(loopback));
    }

    proptest! {
        #[test]
        fn only_the_ends_of_a_subnet_are_refused(bits: u32, length in 8_u8..=30, host: u32) {
            // A subnet within 10.0.0.0/8, and one of its addresses.
            let address = Ipv4Addr::from(bits & 0x00ff_ffff | 0x0a00_0000);
            let net = ipnet::Ipv4Net::new(address, length).unwrap().trunc();
            let size = 1_u32 << (32 - length);
            let at = host % size;
            let one = Ipv4Addr::from(u32::from(net.addr()) + at);
            let checked = check_container(IpNet::V4(ipnet::Ipv4Net::new(one, length).unwrap()));
            prop_assert_eq!(checked.is_ok(), at != 0 && at != size - 1);
        }
    }
}
