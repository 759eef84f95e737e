// SPDX-License-Identifier: GPL-2.0-or-later

//! Decides by the recorded namespace whether an owner is alive.

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::ContainerNetns;
use crate::owner::{COMMENT_MAX, Life};

/// The type of our entry in an element's userdata. nft uses low numbers.
pub(crate) const TLV_KIND: u8 = 0x5c;
/// `NFT_USERDATA_MAXLEN` (`linux/netfilter/nf_tables.h`).
const USERDATA_MAX: usize = 256;
/// The format that contains the identities of namespace and mount namespace, and then the path.
const PLAIN: u8 = 1;
/// The format that also contains the namespace's cookie, before the path. Earlier versions cannot read it, and treat
/// the owner as alive.
const WITH_COOKIE: u8 = 2;

/// The record in an entry of the map of owners: the container's namespace, and the mount namespace in which its path
/// is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) netns: ContainerNetns,
    /// Device and inode of the runtime's mount namespace.
    pub(crate) mounts: (u64, u64),
}

impl Record {
    /// Makes the record of a namespace that the caller names. None if our own mount namespace cannot be read, because
    /// the path would prove nothing later.
    pub(crate) fn new(netns: &ContainerNetns) -> Option<Self> {
        if *netns == ContainerNetns::unknown() {
            return None;
        }
        Some(Self { netns: netns.clone(), mounts: own_mounts().ok()? })
    }

    /// True if both records are about the same namespace.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.mounts == other.mounts && self.netns.is_same(&other.netns)
    }

    /// Compares the records of two owners, each of which may have none.
    pub(crate) fn are_same(one: Option<&Self>, other: Option<&Self>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => one.is_same(other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// The bytes for the element. The cookie is left out if it does not fit. None if the rest does not fit next to
    /// the longest comment either, in which case nothing can prove later that the owner is dead.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        self.encode_with(self.netns.cookie).or_else(|| self.encode_with(None))
    }

    fn encode_with(&self, cookie: Option<u64>) -> Option<Vec<u8>> {
        let mut bytes = vec![if cookie.is_some() { WITH_COOKIE } else { PLAIN }];
        let numbers = [self.netns.dev, self.netns.ino, self.mounts.0, self.mounts.1];
        for number in numbers.into_iter().chain(cookie) {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.netns.path.as_os_str().as_bytes());
        // Each entry has two bytes for type and length, and the comment ends with a NUL.
        (bytes.len() + COMMENT_MAX + 5 <= USERDATA_MAX).then_some(bytes)
    }

    /// Decodes the bytes of an element. None if their format is unknown.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (format, rest) = bytes.split_first()?;
        let count = match *format {
            PLAIN => 4,
            WITH_COOKIE => 5,
            _ => return None,
        };
        let (numbers, path) = rest.split_at_checked(8 * count)?;
        let number = |i: usize| Some(u64::from_be_bytes(numbers.get(8 * i..8 * i + 8)?.try_into().ok()?));
        if path.is_empty() {
            return None;
        }
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
        let netns = ContainerNetns { path, dev: number(0)?, ino: number(1)?, cookie: number(4) };
        Some(Self { netns, mounts: (number(2)?, number(3)?) })
    }

    /// The namespace, if its path was recorded in this mount namespace.
    pub(crate) fn here(&self) -> Option<ContainerNetns> {
        self.is_of_these_mounts().ok()?.then(|| self.netns.clone())
    }

    /// Finds out whether the namespace is provably gone. A path is valid only in the mount namespace in which it was
    /// recorded.
    pub(crate) fn life(&self) -> Life {
        self.try_life().unwrap_or(Life::NotProvenDead)
    }

    /// Like [`Self::life`], for callers that tell a living owner from one of which nothing is known.
    pub(crate) fn try_life(&self) -> io::Result<Life> {
        if self.is_of_these_mounts()? { self.netns.try_life() } else { Ok(Life::NotProvenDead) }
    }

    /// True if the path is valid in this process's mount namespace.
    fn is_of_these_mounts(&self) -> io::Result<bool> {
        own_mounts().map(|mounts| mounts == self.mounts)
    }
}

fn own_mounts() -> io::Result<(u64, u64)> {
    std::fs::metadata("/proc/self/ns/mnt").map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &str) -> Record {
        let netns = ContainerNetns { path: path.into(), dev: 4, ino: 4_026_532_000, cookie: Some(4711) };
        Record { netns, mounts: (4, 4_026_531_841) }
    }

    #[test]
    fn a_record_survives_its_bytes() {
        let record = record("/var/run/netns/cni-01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!(Record::decode(&record.encode().unwrap()), Some(record));
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let mut record = record("/run/netns/a");
        record.netns.cookie = None;
        let bytes = record.encode().unwrap();
        assert_eq!(bytes[0], PLAIN);
        assert_eq!(Record::decode(&bytes), Some(record));
    }

    #[test]
    fn a_long_path_is_recorded_without_the_cookie() {
        let record = record(&"/x".repeat(42));
        let mut expected = record.clone();
        expected.netns.cookie = None;
        assert_eq!(Record::decode(&record.encode().unwrap()), Some(expected));
    }

    #[test]
    fn an_inode_that_is_used_again_does_not_prove_life() {
        let mut own = Record::new(&ContainerNetns::read("/proc/self/ns/net".as_ref()).unwrap()).unwrap();
        assert_eq!(own.life(), Life::NotProvenDead);
        // The cookie exists since Linux 5.14.
        let Some(cookie) = own.netns.cookie else { return };
        own.netns.cookie = Some(cookie + 1);
        assert_eq!(own.life(), Life::Dead);
        own.netns.cookie = None;
        assert_eq!(own.life(), Life::NotProvenDead);
    }

    #[test]
    fn a_path_that_does_not_fit_is_not_recorded() {
        assert_eq!(record(&"/x".repeat(80)).encode(), None);
    }

    #[test]
    fn foreign_bytes_are_no_record() {
        assert_eq!(Record::decode(&[]), None);
        assert_eq!(Record::decode(&[1; 20]), None);
        assert_eq!(Record::decode(&[3; 60]), None);
    }

    #[test]
    fn death_is_proven_only_in_the_recording_mount_namespace() {
        let dir = std::env::temp_dir().join(format!("slipway-life-{}", std::process::id()));
        std::fs::write(&dir, b"").unwrap();
        let mut here = Record::new(&ContainerNetns::read(&dir).unwrap()).unwrap();
        assert_eq!(here.life(), Life::NotProvenDead);
        here.netns.ino += 1;
        assert_eq!(here.life(), Life::Dead);
        std::fs::remove_file(&dir).unwrap();
        assert_eq!(here.life(), Life::Dead);
        here.mounts.1 += 1;
        assert_eq!(here.life(), Life::NotProvenDead);
    }
}
