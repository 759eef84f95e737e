// SPDX-License-Identifier: GPL-2.0-or-later

//! The liveness of an owner, by its recorded namespace.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::ContainerNetns;
use crate::owner::{COMMENT_MAX, Life};

/// Type of our bytes in an element's userdata; nft uses low numbers.
pub(crate) const TLV_KIND: u8 = 0x5c;
/// `NFT_USERDATA_MAXLEN` (`linux/netfilter/nf_tables.h`).
const USERDATA_MAX: usize = 256;
const VERSION: u8 = 1;

/// The record in an entry of the map of owners: the container's namespace, and the mount namespace of its
/// path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) netns: ContainerNetns,
    /// Device and inode of the runtime's mount namespace.
    pub(crate) mounts: (u64, u64),
}

impl Record {
    /// Makes the record for a namespace that the caller names; none if our own mount namespace cannot be
    /// read, without which the path proves nothing later.
    pub(crate) fn new(netns: &ContainerNetns) -> Option<Self> {
        if *netns == ContainerNetns::unknown() {
            return None;
        }
        Some(Self { netns: netns.clone(), mounts: own_mounts()? })
    }

    /// The bytes for the element; none if they do not fit next to the longest comment. Then the owner's death
    /// cannot be proven.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![VERSION];
        for number in [self.netns.dev, self.netns.ino, self.mounts.0, self.mounts.1] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.netns.path.as_os_str().as_bytes());
        // Two bytes of type and length for each, and the NUL that ends the comment.
        (bytes.len() + COMMENT_MAX + 5 <= USERDATA_MAX).then_some(bytes)
    }

    /// Reads the bytes of an element; none if they are not of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (numbers, path) = rest.split_at_checked(32)?;
        let number = |i: usize| Some(u64::from_be_bytes(numbers.get(8 * i..8 * i + 8)?.try_into().ok()?));
        if *version != VERSION || path.is_empty() {
            return None;
        }
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
        let netns = ContainerNetns { path, dev: number(0)?, ino: number(1)? };
        Some(Self { netns, mounts: (number(2)?, number(3)?) })
    }

    /// The namespace, if its path is of this mount namespace.
    pub(crate) fn here(&self) -> Option<ContainerNetns> {
        (own_mounts() == Some(self.mounts)).then(|| self.netns.clone())
    }

    /// Looks whether the namespace is provably dead. A path is valid only in the mount namespace in which it
    /// was recorded.
    pub(crate) fn life(&self) -> Life {
        if own_mounts() == Some(self.mounts) { self.netns.life() } else { Life::NotProvenDead }
    }
}

fn own_mounts() -> Option<(u64, u64)> {
    std::fs::metadata("/proc/self/ns/mnt").ok().map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &str) -> Record {
        let netns = ContainerNetns { path: path.into(), dev: 4, ino: 4_026_532_000 };
        Record { netns, mounts: (4, 4_026_531_841) }
    }

    #[test]
    fn a_record_survives_its_bytes() {
        let record = record("/var/run/netns/cni-01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!(Record::decode(&record.encode().unwrap()), Some(record));
    }

    #[test]
    fn a_path_that_does_not_fit_is_not_recorded() {
        assert_eq!(record(&"/x".repeat(80)).encode(), None);
    }

    #[test]
    fn foreign_bytes_are_no_record() {
        assert_eq!(Record::decode(&[]), None);
        assert_eq!(Record::decode(&[1; 20]), None);
        assert_eq!(Record::decode(&[2; 60]), None);
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
