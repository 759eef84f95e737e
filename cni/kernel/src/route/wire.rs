// SPDX-License-Identifier: MIT OR Apache-2.0

//! Converts values of routing netlink's attributes to this crate's types: address families, IP and Ethernet
//! addresses.

use std::net::IpAddr;

use rtnetlink::packet_route::AddressFamily as WireFamily;

use crate::AddressFamily;
use crate::mac::Mac;

/// The family's number in a request.
pub(super) fn family(family: AddressFamily) -> WireFamily {
    match family {
        AddressFamily::V4 => WireFamily::Inet,
        AddressFamily::V6 => WireFamily::Inet6,
    }
}

/// The family that a number in a reply means. None for a family other than IPv4 and IPv6.
pub(super) fn family_of(number: u8) -> Option<AddressFamily> {
    AddressFamily::BOTH.into_iter().find(|one| u8::from(family(*one)) == number)
}

/// An Ethernet address. None for other link layers.
pub(super) fn mac(value: &[u8]) -> Option<Mac> {
    value.try_into().ok().map(Mac)
}

/// An IP address. Its length decides about the family.
pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

/// The bytes of an IP address.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
