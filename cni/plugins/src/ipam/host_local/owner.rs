// SPDX-License-Identifier: GPL-2.0-or-later

//! The owner in a reservation file.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_spec::Attachment;
use sha2::{Digest, Sha256};

use cni_state::host_local::canonical;

/// A reservation's content.
///
/// The reference makes the file under its name, then writes `ID\r\nIFNAME` with one write(2). If it is killed
/// in between, or the power fails before the page is on the disk, the file stays empty or has zero bytes. No
/// owner's text has zero bytes, so any other content is a complete reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// White space only, or a zero byte: the writer died. This is certain only under the lock, which all writers hold.
    Torn,
    /// An owner's text.
    Owned(Vec<u8>),
}

impl Content {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let text = trim(bytes);
        if text.is_empty() || text.contains(&0) { Self::Torn } else { Self::Owned(text.to_vec()) }
    }
}

/// The text that is written for an attachment.
pub(super) fn text(attachment: &Attachment) -> String {
    format!("{}\r\n{}", attachment.container_id(), attachment.ifname())
}

/// The owner as the reference compares it: the text without white space at its ends.
pub(super) fn key(attachment: &Attachment) -> OwnerKey {
    OwnerKey::of(text(attachment).as_bytes())
}

/// The owner in a reservation of a version that wrote no interface name.
pub(super) fn key_without_interface(attachment: &Attachment) -> OwnerKey {
    OwnerKey::of(attachment.container_id().as_bytes())
}

/// An owner's text in the index: the first 120 bits of its SHA-256. A reservation found by it is compared
/// with its file before it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OwnerKey(pub(super) [u8; 15]);

impl OwnerKey {
    pub(super) fn of(content: &[u8]) -> Self {
        let mut key = [0; 15];
        for (to, from) in key.iter_mut().zip(Sha256::digest(trim(content))) {
            *to = from;
        }
        Self(key)
    }
}

/// Attachments by container, in which the owners of many reservations are looked up.
pub(super) struct Owners<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Owners<'a> {
    pub(super) fn new(attachments: &'a [Attachment]) -> Self {
        let mut owners = BTreeMap::<_, Vec<_>>::new();
        for one in attachments {
            owners.entry(one.container_id()).or_default().push(one.ifname());
        }
        Self(owners)
    }

    /// True if a reservation belongs to one of the attachments. One without an interface name belongs to every
    /// attachment of its container; text after a second line break is ignored.
    pub(super) fn have(&self, content: &[u8]) -> bool {
        let text = String::from_utf8_lossy(content);
        let (id, ifname) = names(&text);
        let interfaces = self.0.get(id).map(Vec::as_slice).unwrap_or_default();
        match ifname {
            Some(ifname) => interfaces.contains(&ifname),
            None => !interfaces.is_empty(),
        }
    }
}

/// The container's ID and the interface in a reservation.
pub(super) fn names(text: &str) -> (&str, Option<&str>) {
    let mut lines = text.split("\r\n").map(str::trim);
    (lines.next().unwrap_or_default(), lines.next())
}

/// The address that a file's name represents. Only its canonical text counts: the reference takes an address
/// as free if the file of that name is missing.
pub(super) fn address(name: &str) -> Option<IpAddr> {
    let address: IpAddr = name.parse().ok()?;
    (canonical(address) == address && address.to_string() == name).then_some(address)
}

fn trim(bytes: &[u8]) -> &[u8] {
    const VERTICAL_TAB: u8 = 0x0b;
    let space = |byte: &u8| byte.is_ascii_whitespace() || *byte == VERTICAL_TAB;
    let start = bytes.iter().position(|byte| !space(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !space(byte)).map_or(start, |last| last + 1);
    bytes.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(id: &str, ifname: &str) -> Attachment {
        Attachment::new("net", id, ifname).unwrap()
    }

    #[test]
    fn torn_is_empty_or_zeroed_and_nothing_else() {
        for torn in [&b""[..], b"\r\n", b" \n\t", b"\0\0\0\0", b"c1\r\net\0\0", b"\n\0"] {
            assert_eq!(Content::of(torn), Content::Torn, "{torn:?}");
        }
        for whole in [&b"c1\r\neth0"[..], b"c1", b"c1\r\n", b"\xff\xfe", b"c1\r\neth0\r\npod"] {
            assert!(matches!(Content::of(whole), Content::Owned(_)), "{whole:?}");
        }
    }

    #[test]
    fn owners_are_compared_without_white_space_at_the_ends() {
        let owner = attachment("c1", "eth0");
        assert_eq!(OwnerKey::of(b"c1\r\neth0\n"), key(&owner));
        assert_eq!(OwnerKey::of(b"c1\r\n"), key_without_interface(&owner));
        assert_ne!(OwnerKey::of(b"c1\neth0"), key(&owner));
        assert_ne!(key(&attachment("c1", "eth1")), key(&owner));
    }

    #[test]
    fn a_reservation_without_interface_belongs_to_the_container() {
        let valid = [attachment("c1", "eth0"), attachment("c2", "net1")];
        for mine in [&b"c1\r\neth0"[..], b"c1", b"c2\r\nnet1\r\nextra"] {
            assert!(Owners::new(&valid).have(mine), "{mine:?}");
        }
        for other in [&b"c1\r\neth1"[..], b"c3", b"c1\neth0", b"\xff"] {
            assert!(!Owners::new(&valid).have(other), "{other:?}");
        }
        assert!(!Owners::new(&[]).have(b"c1"));
    }

    #[test]
    fn only_canonical_names_are_addresses() {
        assert_eq!(address("10.1.2.3"), "10.1.2.3".parse().ok());
        assert_eq!(address("fd00::1"), "fd00::1".parse().ok());
        for name in ["lock", "last_reserved_ip.0", "010.1.2.3", "FD00::1", "fd00:0::1", "::ffff:10.0.0.1", ""]
        {
            assert_eq!(address(name), None, "{name}");
        }
    }
}
