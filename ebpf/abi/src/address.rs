// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Addresses and ports in network byte order.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 address in network byte order.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr4(pub u32);

/// An IPv6 address in network byte order.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr6(pub [u32; 4]);

/// A TCP or UDP port in network byte order.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u16);

impl Port {
    #[inline(always)]
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number.to_be())
    }

    #[inline(always)]
    #[must_use]
    pub const fn number(self) -> u16 {
        u16::from_be(self.0)
    }
}

impl From<Ipv4Addr> for Addr4 {
    fn from(address: Ipv4Addr) -> Self {
        Self(u32::from_ne_bytes(address.octets()))
    }
}

impl From<Addr4> for Ipv4Addr {
    fn from(address: Addr4) -> Self {
        Self::from(address.0.to_ne_bytes())
    }
}

impl From<Ipv6Addr> for Addr6 {
    fn from(address: Ipv6Addr) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address.octets();
        Self([
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, g, h]),
            u32::from_ne_bytes([i, j, k, l]),
            u32::from_ne_bytes([m, n, o, p]),
        ])
    }
}

impl From<Addr6> for Ipv6Addr {
    fn from(address: Addr6) -> Self {
        let [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]] = address.0.map(u32::to_ne_bytes);
        Self::from([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
    }
}

impl From<Addr4> for IpAddr {
    fn from(address: Addr4) -> Self {
        Self::V4(address.into())
    }
}

impl From<Addr6> for IpAddr {
    fn from(address: Addr6) -> Self {
        Self::V6(address.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_network_byte_order_and_converts_back() {
        let v4 = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(Addr4::from(v4).0.to_ne_bytes(), [192, 0, 2, 1]);
        assert_eq!(Ipv4Addr::from(Addr4::from(v4)), v4);
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 0xfffe);
        assert_eq!(Addr6::from(v6).0[0].to_ne_bytes(), [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(Addr6::from(v6).0[3].to_ne_bytes(), [0, 5, 0xff, 0xfe]);
        assert_eq!(Ipv6Addr::from(Addr6::from(v6)), v6);
    }

    #[test]
    fn a_port_is_in_network_byte_order() {
        assert_eq!(Port::new(8080).0.to_ne_bytes(), [0x1f, 0x90]);
        assert_eq!(Port::new(8080).number(), 8080);
    }
}
