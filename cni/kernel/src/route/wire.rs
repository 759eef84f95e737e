//! Reading netlink's bytes: messages, attributes, numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::errno::Errno;

use crate::mac::Mac;

// linux/netlink.h
pub(super) const NLMSG_NOOP: u16 = 1;
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
pub(super) const NLMSG_OVERRUN: u16 = 4;
pub(super) const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const HEADER: usize = 16;

/// One netlink message.
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

impl Message<'_> {
    /// The errno and the text of an `NLMSG_ERROR` or `NLMSG_DONE`; none for success.
    pub(super) fn error(&self) -> Option<(Errno, String)> {
        let code = self.payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        if code == 0 {
            return None;
        }
        Some((Errno::from_raw(-code), self.hint().unwrap_or_default()))
    }

    /// The extended acknowledgement's text. After the code comes the request's header, unless
    /// capped the whole request, and then attributes.
    fn hint(&self) -> Option<String> {
        if self.kind != NLMSG_ERROR || self.flags & NLM_F_ACK_TLVS == 0 {
            return None;
        }
        let request = self.payload.get(4..)?;
        let length = if self.flags & NLM_F_CAPPED != 0 {
            HEADER
        } else {
            align(usize::try_from(u32::from_ne_bytes(*request.first_chunk()?)).ok()?)
        };
        let found = attributes(request.get(length..)?).find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG)?;
        Some(text(found.1))
    }
}

/// The messages of one datagram.
pub(super) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Result<Message<'_>, String>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(message) = split(&mut rest) else {
            rest = &[];
            return Some(Err("it is cut short".to_owned()));
        };
        Some(Ok(message))
    })
}

fn split<'a>(rest: &mut &'a [u8]) -> Option<Message<'a>> {
    let bytes = *rest;
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let payload = bytes.get(HEADER..length)?;
    let message = Message {
        kind: u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?),
        flags: u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?),
        sequence: u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
        payload,
    };
    *rest = bytes.get(align(length)..).unwrap_or_default();
    Some(message)
}

fn align(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The attributes in `bytes`: their types without the flag bits, and their values. Ends at the
/// first one that is malformed.
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

/// A number of the machine's byte order, 0 where there are too few bytes.
pub(super) fn u32_of(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// As [`u32_of`].
pub(super) fn u16_of(value: &[u8]) -> u16 {
    value.first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

/// The first byte, 0 where there is none.
pub(super) fn u8_of(value: &[u8]) -> u8 {
    value.first().copied().unwrap_or(0)
}

/// A text up to its NUL.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// An Ethernet address; none for other link layers.
pub(super) fn mac(value: &[u8]) -> Option<Mac> {
    value.try_into().ok().map(Mac)
}

/// An IP address by its length.
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

    fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(HEADER + payload.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes.resize(align(bytes.len()), 0);
        bytes
    }

    #[test]
    fn a_datagram_falls_into_its_messages() {
        let mut datagram = message(16, 0, b"abcde");
        datagram.extend(message(NLMSG_DONE, NLM_F_DUMP_INTR, &0_i32.to_ne_bytes()));
        let all: Vec<_> = messages(&datagram).map(Result::unwrap).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].kind, all[0].payload, all[0].sequence), (16, b"abcde".as_slice(), 7));
        assert!(all[1].error().is_none());
    }

    #[test]
    fn a_cut_message_is_an_error_and_the_end() {
        let datagram = message(16, 0, b"abcd");
        for length in 1..datagram.len() {
            let all: Vec<_> = messages(&datagram[..length]).collect();
            assert_eq!(all.len(), 1, "{length}");
            assert!(all[0].is_err(), "{length}");
        }
    }

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
    fn an_error_carries_the_kernels_text() {
        let mut payload = (-17_i32).to_ne_bytes().to_vec();
        payload.extend(message(16, 0, b""));
        payload.extend(8_u16.to_ne_bytes());
        payload.extend(NLMSGERR_ATTR_MSG.to_ne_bytes());
        payload.extend(b"why\0");
        for flags in [NLM_F_ACK_TLVS, NLM_F_ACK_TLVS | NLM_F_CAPPED] {
            let datagram = message(NLMSG_ERROR, flags, &payload);
            let only = messages(&datagram).next().unwrap().unwrap();
            assert_eq!(only.error(), Some((Errno::EEXIST, "why".to_owned())));
        }
        let datagram = message(NLMSG_ERROR, 0, &payload);
        assert_eq!(
            messages(&datagram).next().unwrap().unwrap().error(),
            Some((Errno::EEXIST, String::new()))
        );
    }
}
