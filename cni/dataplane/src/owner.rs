// SPDX-License-Identifier: GPL-2.0-or-later

//! The owner of an element, which the comment of every element names, and the container's namespace.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cni_kernel::netns::Netns;
use cni_spec::Attachment;
use cni_spec::text::hex;
use sha2::{Digest, Sha256};

/// nft refuses longer comments when it loads a ruleset (`NFTNL_UDATA_COMMENT_MAXLEN`).
pub(crate) const COMMENT_MAX: usize = 128;
/// The first word of every comment, which marks it as ours and contains the version of the format.
const MAGIC: &str = "slipway1";
/// The last character of a name that was cut to fit.
const CUT: char = '~';

/// 64 bits of a hash that identify a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkHash(pub [u8; 8]);

/// 128 bits of a hash that identify an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttachmentHash(pub [u8; 16]);

impl NetworkHash {
    /// The hash of a network's name.
    #[must_use]
    pub fn of(network: &str) -> Self {
        Self(digest(&[network]))
    }
}

impl AttachmentHash {
    /// The hash of an attachment. The parts are length-prefixed, so different attachments have different inputs.
    #[must_use]
    pub fn of(attachment: &Attachment) -> Self {
        Self(digest(&[attachment.network(), attachment.container_id(), attachment.ifname()]))
    }
}

fn digest<const N: usize>(parts: &[&str]) -> [u8; N] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(hasher.finalize()) {
        *to = from;
    }
    out
}

/// The owner in an element's comment. The hashes are exact; the names are for people and may be cut.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// Hash of the network's name.
    pub network_hash: NetworkHash,
    /// Hash of network, container and interface.
    pub attachment_hash: AttachmentHash,
    /// The network's name. If it is long, it is cut and ends in `~`.
    pub network: String,
    /// The interface inside the container.
    pub ifname: String,
    /// The container's ID. If it is long, it is cut and ends in `~`.
    pub container_id: String,
}

/// The alias of links that Slipway has made and that containers share, such as bridges.
pub const MADE: &str = "made by slipway";

/// True if the alias shows that Slipway has made the link, for one container or for several.
#[must_use]
pub fn is_own_link(alias: &str) -> bool {
    alias == MADE || Owner::from_comment(alias).is_some()
}

impl Owner {
    /// The owner of an attachment's elements, with its names in full.
    #[must_use]
    pub fn of(attachment: &Attachment) -> Self {
        Self {
            network_hash: NetworkHash::of(attachment.network()),
            attachment_hash: AttachmentHash::of(attachment),
            network: attachment.network().to_owned(),
            ifname: attachment.ifname().to_owned(),
            container_id: attachment.container_id().to_owned(),
        }
    }

    /// The comment for the owner's elements: at most [`COMMENT_MAX`] bytes of printable ASCII without quotes, so that
    /// a saved ruleset can be loaded again.
    #[must_use]
    pub fn to_comment(&self) -> String {
        let mut comment = format!("{MAGIC} {}-{} ", hex(&self.network_hash.0), hex(&self.attachment_hash.0));
        // The interface has at most 15 bytes. The network's name leaves room for 12 characters of the container's ID,
        // by which people recognise a container.
        let ifname = printable(&self.ifname, 15);
        let room = COMMENT_MAX.saturating_sub(comment.len() + ifname.len() + 2);
        let network = printable(&self.network, room.saturating_sub(13.min(self.container_id.len())));
        let container = printable(&self.container_id, room.saturating_sub(network.len()));
        for (name, end) in [(&network, " "), (&ifname, " "), (&container, "")] {
            comment.push_str(name);
            comment.push_str(end);
        }
        comment
    }

    /// Parses a comment. None if it is not ours.
    #[must_use]
    pub fn from_comment(comment: &str) -> Option<Self> {
        // Commands print an owner's names on terminals, and anybody who may change a link may change its alias.
        let is_ours = |byte: u8| byte == b' ' || byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        if !comment.bytes().all(is_ours) {
            return None;
        }
        let mut words = comment.split(' ');
        let mut next = || words.next();
        if next()? != MAGIC {
            return None;
        }
        let (network_hash, attachment_hash) = next()?.split_once('-')?;
        let owner = Self {
            network_hash: NetworkHash(unhex(network_hash)?),
            attachment_hash: AttachmentHash(unhex(attachment_hash)?),
            network: next()?.to_owned(),
            ifname: next()?.to_owned(),
            container_id: next()?.to_owned(),
        };
        next().is_none().then_some(owner)
    }
}

impl Owner {
    /// The command that removes everything that the owner has, for people.
    #[must_use]
    pub fn detach_command(&self) -> String {
        format!("slipway detach {} {} {}", self.network, self.container_id, self.ifname)
    }

    /// Advises what to do about a conflict with this owner.
    #[must_use]
    pub fn way_out(&self) -> String {
        format!("if that container is gone, `{}` removes what it has left", self.detach_command())
    }

    /// The owner's attachment, if it attaches this container to one of these networks.
    #[must_use]
    pub fn attachment<'a>(
        &'a self,
        networks: impl IntoIterator<Item = &'a str>,
        container_id: &str,
    ) -> Option<Attachment> {
        // The names in a comment may be cut, but the hash is exact.
        networks
            .into_iter()
            .chain([self.network.as_str()])
            .filter_map(|network| Attachment::new(network, container_id, &self.ifname).ok())
            .find(|one| AttachmentHash::of(one) == self.attachment_hash)
    }

    /// True if the two owners may belong to the same container. Either of the IDs may be cut.
    #[must_use]
    pub(crate) fn may_be_of_one_container(&self, other: &Self) -> bool {
        let (a, b) = (self.container_id.as_str(), other.container_id.as_str());
        match (a.strip_suffix(CUT), b.strip_suffix(CUT)) {
            (None, None) => a == b,
            (Some(begin), None) => b.starts_with(begin),
            (None, Some(begin)) => a.starts_with(begin),
            (Some(one), Some(other)) => one.starts_with(other) || other.starts_with(one),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network {}, container {}, interface {}", self.network, self.container_id, self.ifname)
    }
}

/// Cuts a name to `max` bytes, and replaces all characters except for graphic ASCII. Quotes and backslashes are
/// replaced as well, because nft cannot print them so that it can read them back.
fn printable(name: &str, max: usize) -> String {
    let clean = |c: char| if c.is_ascii_graphic() && c != '"' && c != '\\' { c } else { '?' };
    let all: String = name.chars().map(clean).collect();
    if all.len() <= max {
        return all;
    }
    let mut cut: String = all.chars().take(max.saturating_sub(1)).collect();
    cut.push(CUT);
    cut
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()) {
        return None;
    }
    let mut out = [0; N];
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(out)
}

/// A container's network namespace: the file by which the runtime keeps it, and its identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContainerNetns {
    /// `CNI_NETNS`.
    pub path: PathBuf,
    /// Device number of the namespace's inode.
    pub dev: u64,
    /// Inode number of the namespace, which the kernel may reuse after the namespace is gone.
    pub ino: u64,
    /// The namespace's cookie, which is never reused. None before Linux 5.14.
    pub cookie: Option<u64>,
}

/// Whether a recorded namespace still exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The path is missing or leads to another namespace.
    Dead,
    /// The path leads to the namespace, or cannot be read.
    NotProvenDead,
}

impl ContainerNetns {
    /// A placeholder for an unknown namespace. It is not recorded, and its owner is never provably dead.
    #[must_use]
    pub fn unknown() -> Self {
        Self { path: PathBuf::new(), dev: 0, ino: 0, cookie: None }
    }

    /// Reads the identity of the namespace to which a path leads.
    pub fn read(path: &Path) -> io::Result<Self> {
        let cookie = Netns::open(path).ok().and_then(|netns| netns.cookie());
        Ok(Self { cookie, ..Self::without_cookie(path)? })
    }

    /// Like [`Self::read`], but without the cookie, for which a thread would have to enter the namespace.
    pub(crate) fn without_cookie(path: &Path) -> io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        Ok(Self { path: path.to_owned(), dev: meta.dev(), ino: meta.ino(), cookie: None })
    }

    /// True if both are the same namespace at the same path. Records of earlier versions have no cookie.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let number = |netns: &Self| (netns.dev, netns.ino);
        let differ = self.cookie.zip(other.cookie).is_some_and(|(one, other)| one != other);
        self.path == other.path && number(self) == number(other) && !differ
    }

    /// Checks whether the path still leads to this namespace. The result is valid only in the mount namespace in
    /// which the path was recorded.
    #[must_use]
    pub fn life(&self) -> Life {
        self.try_life().unwrap_or(Life::NotProvenDead)
    }

    /// Like [`Self::life`], for callers that tell a living owner from one of which nothing is known.
    pub(crate) fn try_life(&self) -> io::Result<Life> {
        match std::fs::metadata(&self.path) {
            Ok(meta) if meta.dev() == self.dev && meta.ino() == self.ino => Ok(self.life_by_cookie()),
            Ok(_) => Ok(Life::Dead),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(Life::Dead)
            }
            Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", self.path.display()))),
        }
    }

    /// Decides by the cookie, if the path leads to a namespace with the recorded inode number, which may have been
    /// reused.
    fn life_by_cookie(&self) -> Life {
        let Some(cookie) = self.cookie else { return Life::NotProvenDead };
        match Netns::open(&self.path).ok().and_then(|netns| netns.cookie()) {
            Some(found) if found != cookie => Life::Dead,
            _ => Life::NotProvenDead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_with_letters_that_no_comment_of_ours_has_names_no_owner() {
        let attachment = Attachment::new("pods", "c1", "eth0");
        let comment = attachment.map(|one| Owner::of(&one).to_comment()).unwrap_or_default();
        assert!(Owner::from_comment(&comment).is_some());
        for letter in ['\u{1b}', '\r', '\u{9b}', '\u{202e}', 'é', '"', '\\'] {
            let other = comment.replace("pods", &format!("p{letter}ds"));
            assert_eq!(Owner::from_comment(&other), None, "{other:?}");
        }
    }
}
