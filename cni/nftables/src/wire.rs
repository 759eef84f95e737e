// SPDX-License-Identifier: GPL-2.0-or-later

//! Encoding and decoding netlink messages and attributes.
//!
//! Layouts: `struct nlmsghdr` and `struct nlattr` in `linux/netlink.h`, `struct nfgenmsg` in
//! `linux/netfilter/nfnetlink.h`. Headers are in host byte order, the values of netfilter's attributes in
//! network byte order.

/// `NLMSG_HDRLEN`.
pub(crate) const HEADER_LEN: usize = 16;
/// Netlink header and `struct nfgenmsg`.
pub(crate) const NF_HEADER_LEN: usize = HEADER_LEN + 4;
/// Length of an attribute's header.
const ATTR_HEADER_LEN: usize = 4;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`: without the nested and byte order bits.
const TYPE_MASK: u16 = 0x3fff;

/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`.
pub(crate) const ACK: u16 = 0x4;
/// `NLM_F_DUMP_INTR`: the dumped list changed during the dump.
pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`.
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_EXCL`.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`.
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`.
pub(crate) const APPEND: u16 = 0x800;
/// `NLM_F_ACK_TLVS`: an error message has attributes.
pub(crate) const ACK_TLVS: u16 = 0x200;
/// `NLMSG_ERROR`.
pub(crate) const MSG_ERROR: u16 = 2;
/// `NLMSG_DONE`.
pub(crate) const MSG_DONE: u16 = 3;

/// A netfilter netlink message under construction.
#[derive(Debug)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Begins a message. `family` is `nfgen_family`, `resource` is `res_id`.
    pub(crate) fn new(kind: u16, flags: u16, family: u8, resource: u16) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend([0; 4]);
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flags | REQUEST).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend([family, 0]);
        bytes.extend(resource.to_be_bytes());
        Self { bytes }
    }

    /// Adds an attribute. A value that exceeds the length field is cut; no caller has one.
    pub(crate) fn attr(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let len = u16::try_from(value.len() + ATTR_HEADER_LEN).unwrap_or(u16::MAX);
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value.iter().take(usize::from(len) - ATTR_HEADER_LEN));
        self.pad();
        self
    }

    /// Adds a NUL-terminated string.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    /// Adds a number in network byte order.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Adds a nested attribute.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend([0, 0]);
        self.bytes.extend((kind | NESTED).to_ne_bytes());
        fill(self);
        let len = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        if let Some(field) = self.bytes.get_mut(start..start + 2) {
            field.copy_from_slice(&len.to_ne_bytes());
        }
        self
    }

    /// Completes the message with its length and sequence number.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        seal(&mut self.bytes, sequence);
        self.bytes
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Encodes attributes without a message.
pub(crate) fn attributes(fill: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message { bytes: Vec::with_capacity(128) };
    fill(&mut message);
    message.bytes
}

/// Sets the length and the sequence number.
fn seal(bytes: &mut [u8], sequence: u32) {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if let Some(field) = bytes.get_mut(0..4) {
        field.copy_from_slice(&len.to_ne_bytes());
    }
    if let Some(field) = bytes.get_mut(8..12) {
        field.copy_from_slice(&sequence.to_ne_bytes());
    }
}

/// The header of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
}

impl Header {
    /// Decodes the header of a complete message.
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let u16_at = |at: usize| Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
        Some(Self { kind: u16_at(4)?, flags: u16_at(6)?, sequence: u32_at(8)? })
    }
}

/// Iterates over attributes, as type and value. Ends at the first malformed one.
pub(crate) fn attrs(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.get(..ATTR_HEADER_LEN)?;
        let len = usize::from(u16::from_ne_bytes(header.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(header.get(2..)?.try_into().ok()?) & TYPE_MASK;
        let value = bytes.get(ATTR_HEADER_LEN..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of this type.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attrs(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A number in network byte order.
pub(crate) fn be16(value: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(value.try_into().ok()?))
}

/// A number in network byte order.
pub(crate) fn be32(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

/// A number in network byte order.
pub(crate) fn be64(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.try_into().ok()?))
}

/// A string, with or without a terminating NUL.
pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_message_decodes_to_the_same() {
        let mut message = Message::new(0x0a10, ACK, 1, 10);
        message.text(1, "abc").be32(2, 7).nest(3, |inner| {
            inner.attr(4, &[1, 2, 3, 4, 5]);
        });
        let bytes = message.finish(99);
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize, bytes.len());
        let header = Header::read(&bytes).unwrap();
        assert_eq!((header.kind, header.flags, header.sequence), (0x0a10, ACK | REQUEST, 99));
        let body = &bytes[NF_HEADER_LEN..];
        assert_eq!(text(find(body, 1).unwrap()), "abc");
        assert_eq!(find(body, 2).and_then(be32), Some(7));
        assert_eq!(find(find(body, 3).unwrap(), 4), Some(&[1, 2, 3, 4, 5][..]));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            proptest::prop_assert!(attrs(&bytes).count() <= bytes.len() / ATTR_HEADER_LEN);
            let _ = Header::read(&bytes);
        }
    }
}
