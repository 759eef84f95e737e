// SPDX-License-Identifier: GPL-3.0-or-later

//! The attachments of a network that the node's files name.
//!
//! containerd (by go-cni) and CRI-O (by ocicni) leave libcni's cache directory at its default, `/var/lib/cni`: each ADD that
//! succeeded has a file there until its DEL succeeded. An ADD that failed, or was killed, has none: it may have left a
//! reservation of host-local. Published ports need no look of their own: their DEL comes before that of the address.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni_kernel::dir::{DirError, DurableDir};
use cni_runtime::cache;
use cni_spec::Attachment;

use crate::host::reservations::{self, Reservations};

/// The directory of libcni's files in a cache directory.
const RESULTS: &str = "results";
/// The length of a sandbox's ID: containerd and CRI-O make 256 random bits, in hexadecimal digits.
const ID: usize = 64;
/// The most files of a cache that are looked at.
const MOST: usize = 100_000;

/// Attachments, each with the time of the file that names it.
pub type Inventory = BTreeMap<Attachment, Option<SystemTime>>;

/// The directories.
#[derive(Debug, Clone)]
pub struct Directories {
    /// The cache directories.
    pub caches: Vec<PathBuf>,
    /// host-local's reservations.
    pub reservations: PathBuf,
    /// The network.
    pub network: String,
}

impl Directories {
    /// The usual directories.
    #[must_use]
    pub fn usual(network: &str) -> Self {
        Self {
            caches: cache::DIRECTORIES.map(PathBuf::from).into(),
            reservations: reservations::DIRECTORY.into(),
            network: network.to_owned(),
        }
    }

    /// The attachments of pod sandboxes. Those with other IDs, as cnitool and nerdctl make them, are not a Kubernetes
    /// runtime's and left out.
    ///
    /// # Errors
    /// [`DirError`] if a directory cannot be read. A missing one has no files.
    pub fn read(&self) -> Result<Inventory, DirError> {
        let mut known = Inventory::new();
        if let Some(reservations) = Reservations::open(&self.reservations, &self.network)? {
            for address in reservations.addresses()? {
                if let Some(owner) = reservations.owner(address).filter(is_of_sandbox) {
                    // If an owner has several addresses, the latest reservation counts.
                    let written = reservations.written(address);
                    known.entry(owner).and_modify(|last| *last = written.max(*last)).or_insert(written);
                }
            }
        }
        for directory in &self.caches {
            self.read_cache(&directory.join(RESULTS), &mut known)?;
        }
        Ok(known)
    }

    fn read_cache(&self, directory: &Path, known: &mut Inventory) -> Result<(), DirError> {
        let dir = match DurableDir::open(directory) {
            Ok(dir) => dir,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        for name in dir.list()?.into_iter().take(MOST) {
            if let Some(attachment) = name.to_str().and_then(|name| self.attachment(name)) {
                let data = std::fs::symlink_metadata(directory.join(&name));
                known.insert(attachment, data.and_then(|data| data.modified()).ok());
            }
        }
        Ok(())
    }

    /// The attachment of a file name, `NETWORK-SANDBOX-INTERFACE`. Its parts may have hyphens, but the ID's length is known.
    fn attachment(&self, name: &str) -> Option<Attachment> {
        let rest = name.strip_prefix(&self.network)?.strip_prefix('-')?;
        let (id, interface) = rest.split_at_checked(ID)?;
        let attachment = Attachment::new(&self.network, id, interface.strip_prefix('-')?).ok()?;
        Some(attachment).filter(is_of_sandbox)
    }
}

fn is_of_sandbox(attachment: &Attachment) -> bool {
    let id = attachment.container_id();
    id.len() == ID && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_of_the_network_are_found_in_both_places() {
        let temp = tempfile::tempdir().unwrap();
        let directories = Directories {
            caches: vec![temp.path().join("cni"), temp.path().join("cache")],
            reservations: temp.path().join("networks"),
            network: "my-pods".to_owned(),
        };
        assert_eq!(directories.read().unwrap(), Inventory::new());
        let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(ID));
        let results = [temp.path().join("cni/results"), temp.path().join("cache/results")];
        let reserved = temp.path().join("networks/my-pods");
        for dir in results.iter().chain([&reserved]) {
            std::fs::create_dir_all(dir).unwrap();
        }
        for name in [
            format!("my-pods-{a}-eth0"),
            format!("my-pods-{a}-my-if"),
            // Files of other networks and other runtimes, and names that do not describe an attachment.
            format!("pods-{b}-eth0"),
            format!("my-pods-x-{b}-eth0"),
            format!("my-pods-{}-eth0", b.to_uppercase()),
            format!("my-pods-{b}-"),
            format!("my-pods-{b}"),
            "my-pods-cnitool-82e215debf7df4651d36-eth0".to_owned(),
            format!("my-pods-{}é-eth0", &b[1..]),
            "my-pods".to_owned(),
        ] {
            std::fs::write(results[0].join(name), "").unwrap();
        }
        std::fs::write(results[1].join(format!("my-pods-{b}-eth0")), "").unwrap();
        for (address, owner) in
            [("10.1.0.2", &a), ("10.1.0.3", &c), ("fd00::3", &c), ("10.1.0.4", &"web".to_owned())]
        {
            std::fs::write(reserved.join(address), format!("{owner}\r\neth0")).unwrap();
        }
        let known = directories.read().unwrap();
        let names: Vec<String> =
            known.keys().map(|one| format!("{} {}", &one.container_id()[..1], one.ifname())).collect();
        assert_eq!(names, ["a eth0", "a my-if", "b eth0", "c eth0"]);
        assert!(known.values().all(Option::is_some));
    }
}
