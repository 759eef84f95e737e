// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writing and reading netlink messages and their attributes.
//!
//! The layouts are those of `struct nlmsghdr` and `struct nlattr` in `linux/netlink.h`. Both headers, and most values
//! of routing netlink, are in host byte order, but the values of netfilter are in network byte order. Messages and
//! attributes begin at multiples of four bytes.
//!
//! Readers accept arbitrary bytes: they stop at the first malformed message or attribute, and never panic.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Length of a message's header (`NLMSG_HDRLEN`).
pub const HEADER_LEN: usize = 16;
/// Length of an attribute's header (`NLA_HDRLEN`).
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`: all bits except for `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = 0x3fff;

/// Flags of a message (`NLM_F_*` in `linux/netlink.h`).
pub mod flag {
    /// Marks a request. Every [`Message`](super::Message) has this flag.
    pub const REQUEST: u16 = 0x1;
    /// Requests an acknowledgement.
    pub const ACK: u16 = 0x4;
    /// Requests a copy of the object that was changed or read.
    pub const ECHO: u16 = 0x8;
    /// In a reply: the listed objects changed during the dump.
    pub const DUMP_INTERRUPTED: u16 = 0x10;
    /// Requests all objects.
    pub const DUMP: u16 = 0x300;
    /// Replaces an object that exists.
    pub const REPLACE: u16 = 0x100;
    /// Makes it an error if the object exists.
    pub const EXCLUSIVE: u16 = 0x200;
    /// Creates an object that does not exist.
    pub const CREATE: u16 = 0x400;
    /// Appends the object to a list.
    pub const APPEND: u16 = 0x800;
    /// In an error: the body of the request is not repeated.
    pub(crate) const CAPPED: u16 = 0x100;
    /// In an error or at the end of a dump: attributes follow.
    pub(crate) const ACK_TLVS: u16 = 0x200;
}

/// Attributes under construction.
#[derive(Default, Clone)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// Encodes attributes without a message.
    #[must_use]
    pub fn encode(fill: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut attributes = Self(Vec::with_capacity(128));
        fill(&mut attributes);
        attributes.0
    }

    /// Adds bytes as they are: a protocol's own header, or attributes that are already encoded. Only the last bytes
    /// that are added may have a length that is not a multiple of four.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds zeroed bytes, and returns them to be filled.
    pub fn space(&mut self, length: usize) -> &mut [u8] {
        let start = self.0.len();
        self.0.resize(start + length, 0);
        self.0.get_mut(start..).unwrap_or_default()
    }

    /// Adds an attribute. A value whose length does not fit into 16 bits is cut.
    pub fn attr(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.parts(kind, &[value])
    }

    /// Adds a NUL-terminated string.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.parts(kind, &[value.as_bytes(), &[0]])
    }

    /// Adds a number in host byte order.
    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Adds a number in network byte order.
    pub fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Adds an attribute that contains attributes, marked with `NLA_F_NESTED`. The caller must keep them below 64 KB,
    /// because the kernel refuses a message with more.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.0.len();
        self.header(u16::MAX, kind | NESTED);
        fill(self);
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        put(&mut self.0, start, &length.to_ne_bytes());
        self.pad();
        self
    }

    fn parts(&mut self, kind: u16, parts: &[&[u8]]) -> &mut Self {
        let value = parts.iter().map(|part| part.len()).sum::<usize>();
        let length = u16::try_from(ATTRIBUTE_HEADER_LEN + value).unwrap_or(u16::MAX);
        let end = self.0.len() + usize::from(length);
        self.header(length, kind);
        for part in parts {
            self.0.extend_from_slice(part);
        }
        self.0.truncate(end);
        self.pad();
        self
    }

    fn header(&mut self, length: u16, kind: u16) {
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// A request under construction: its header, and then what [`Attributes`] adds.
#[derive(Clone)]
pub struct Message(Attributes);

impl Message {
    /// Begins a message of a type. [`flag::REQUEST`] is added to the flags.
    #[must_use]
    pub fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = Vec::with_capacity(256);
        // The length and the sequence number are set when the message is sent; port 0 is the kernel's.
        bytes.resize(HEADER_LEN, 0);
        put(&mut bytes, 4, &kind.to_ne_bytes());
        put(&mut bytes, 6, &(flags | flag::REQUEST).to_ne_bytes());
        Self(Attributes(bytes))
    }

    /// Adds flags.
    #[must_use]
    pub fn with_flags(mut self, flags: u16) -> Self {
        let flags = self.flags() | flags;
        put(&mut self.0.0, 6, &flags.to_ne_bytes());
        self
    }

    /// The bytes after the header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.0.0.get(HEADER_LEN..).unwrap_or_default()
    }

    /// Completes the message with its length and sequence number, and returns its bytes.
    pub fn seal(&mut self, sequence: u32) -> &[u8] {
        let bytes = &mut self.0.0;
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        put(bytes, 0, &length.to_ne_bytes());
        put(bytes, 8, &sequence.to_ne_bytes());
        bytes
    }

    pub(crate) fn flags(&self) -> u16 {
        self.0.0.get(6..).map_or(0, u16_of)
    }
}

impl Deref for Message {
    type Target = Attributes;

    fn deref(&self) -> &Attributes {
        &self.0
    }
}

impl DerefMut for Message {
    fn deref_mut(&mut self) -> &mut Attributes {
        &mut self.0
    }
}

impl fmt::Debug for Message {
    /// Leaves out the payload, which may contain a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.0.0.get(4..).map_or(0, u16_of);
        write!(f, "message {kind} of {} bytes", self.payload().len())
    }
}

impl fmt::Debug for Attributes {
    /// Leaves out the values, as [`Message`] does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attributes of {} bytes", self.0.len())
    }
}

/// Overwrites bytes that exist.
fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// The header of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The message's type.
    pub kind: u16,
    /// The message's [flags](flag).
    pub flags: u16,
    /// The sequence number of the request to which the message replies, or 0 for a notification.
    pub sequence: u32,
}

/// Iterates over the messages of a datagram, as header and payload.
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    std::iter::from_fn(move || {
        let (header, payload, length) = first(datagram)?;
        datagram = datagram.get(length..).unwrap_or_default();
        Some((header, payload))
    })
}

/// The first message of a datagram, and its length with header and padding.
pub(crate) fn first(datagram: &[u8]) -> Option<(Header, &[u8], usize)> {
    let length = usize::try_from(u32::from_ne_bytes(*datagram.first_chunk()?)).ok()?;
    let payload = datagram.get(HEADER_LEN..length)?;
    let half = |at: usize| datagram.get(at..).map_or(0, u16_of);
    let sequence = datagram.get(8..).map_or(0, u32_of);
    let header = Header { kind: half(4), flags: half(6), sequence };
    Some((header, payload, length.next_multiple_of(4).min(datagram.len())))
}

/// Iterates over attributes, as type (without the flags in it) and value.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
        let value = bytes.get(ATTRIBUTE_HEADER_LEN..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & TYPE_MASK, value))
    })
}

/// The value of the first attribute of this type.
#[must_use]
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// The number in host byte order at the beginning of a value, or 0 if the value is too short.
#[must_use]
pub fn u32_of(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Like [`u32_of`].
#[must_use]
pub fn u16_of(value: &[u8]) -> u16 {
    value.first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

/// Like [`u32_of`].
#[must_use]
pub fn u8_of(value: &[u8]) -> u8 {
    value.first().copied().unwrap_or(0)
}

/// A number in network byte order. None if the value has another length.
#[must_use]
pub fn be16(value: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(value.try_into().ok()?))
}

/// Like [`be16`].
#[must_use]
pub fn be32(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

/// Like [`be16`].
#[must_use]
pub fn be64(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.try_into().ok()?))
}

/// The text before the first NUL, or the whole text if there is none.
#[must_use]
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
