// SPDX-License-Identifier: MIT OR Apache-2.0

//! Decoding netlink messages: attributes, numbers, texts of errors.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::packet_route::AddressFamily as WireFamily;

use crate::AddressFamily;
use crate::mac::Mac;

// linux/netlink.h
pub(super) const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const HEADER: usize = 16;

/// The kernel's message in an extended acknowledgement. `request` is what follows the error's code: the
/// request's header, unless capped the rest of the request, and then attributes.
pub(super) fn hint(flags: u16, request: &[u8]) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let length = if flags & NLM_F_CAPPED != 0 {
        HEADER
    } else {
        align(usize::try_from(u32::from_ne_bytes(*request.first_chunk()?)).ok()?)
    };
    let found = attributes(request.get(length..)?).find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG)?;
    Some(text(found.1))
}

fn align(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The attributes in `bytes`, as type (without the flag bits) and value. Ends at the first malformed one.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
    const FLAGS: u16 = 0xc000;
    const NLATTR: usize = 4;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(NLATTR..length)?;
        rest = rest.get(align(length)..).unwrap_or_default();
        Some((kind & !FLAGS, value))
    })
}

/// The messages in a datagram, as type and payload. Ends at the first malformed one.
pub(super) fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let kind = u16_of(rest.get(4..)?);
        let payload = rest.get(HEADER..length)?;
        rest = rest.get(align(length)..).unwrap_or_default();
        Some((kind, payload))
    })
}

/// The family's number in a request.
pub(super) fn family(family: AddressFamily) -> WireFamily {
    match family {
        AddressFamily::V4 => WireFamily::Inet,
        AddressFamily::V6 => WireFamily::Inet6,
    }
}

/// The family of a number in a reply; none for a family that is not IP.
pub(super) fn family_of(number: u8) -> Option<AddressFamily> {
    AddressFamily::BOTH.into_iter().find(|one| u8::from(family(*one)) == number)
}

/// A number in host byte order; 0 if there are too few bytes.
pub(super) fn u32_of(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// As [`u32_of`].
pub(super) fn u16_of(value: &[u8]) -> u16 {
    value.first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

/// The first byte; 0 if there is none.
pub(super) fn u8_of(value: &[u8]) -> u8 {
    value.first().copied().unwrap_or(0)
}

/// The text before the first NUL.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// An Ethernet address; none for other link layers.
pub(super) fn mac(value: &[u8]) -> Option<Mac> {
    value.try_into().ok().map(Mac)
}

/// An IP address, of the family that has this length.
pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(|bytes| Ipv4Addr::from(bytes).into()),
        16 => <[u8; 16]>::try_from(value).ok().map(|bytes| Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_end_at_the_first_malformed_one() {
        let bytes = [5, 0, 1, 0x80, 9, 0, 0, 0, 4, 0, 2, 0, 3, 0, 7, 0];
        let all: Vec<_> = attributes(&bytes).collect();
        assert_eq!(all, [(1, [9].as_slice()), (2, [].as_slice())]);
        for length in 0..bytes.len() {
            assert!(attributes(&bytes[..length]).count() <= 2);
        }
    }

    #[test]
    fn messages_end_at_the_first_malformed_one() {
        let mut bytes = 18_u32.to_ne_bytes().to_vec();
        bytes.extend(24_u16.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend([7, 8, 0, 0]);
        bytes.extend([16, 0, 0, 0, 25, 0]);
        bytes.extend([0; 10]);
        bytes.extend([15, 0, 0, 0]);
        bytes.extend([0; 12]);
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!(all, [(24, [7, 8].as_slice()), (25, [].as_slice())]);
        for length in 0..bytes.len() {
            assert!(messages(&bytes[..length]).count() <= 2);
        }
    }

    #[test]
    fn an_error_carries_the_kernels_message() {
        let mut request = 16_u32.to_ne_bytes().to_vec();
        request.extend([0; 12]);
        request.extend(8_u16.to_ne_bytes());
        request.extend(NLMSGERR_ATTR_MSG.to_ne_bytes());
        request.extend(b"why\0");
        for flags in [NLM_F_ACK_TLVS, NLM_F_ACK_TLVS | NLM_F_CAPPED] {
            assert_eq!(hint(flags, &request).as_deref(), Some("why"));
        }
        assert_eq!(hint(0, &request), None);
        for length in 0..request.len() {
            hint(NLM_F_ACK_TLVS, &request[..length]);
        }
    }
}
