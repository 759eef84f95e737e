// SPDX-License-Identifier: GPL-2.0-or-later

//! The link's former attributes in a file, `<dataDir>/<container>_<interface>.json`: the reference's format,
//! with the owner in additional keys.

use std::io::ErrorKind;
use std::path::Path;

use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::netns::NetnsId;
use cni_spec::{Attachment, CniError};
use serde::{Deserialize, Serialize};

use super::config::Attributes;

/// The largest file that is read, in bytes.
const LIMIT: usize = 64 << 10;
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// The mode of the folders above, which other programs use, too.
const PARENT_MODE: u32 = 0o755;

/// The file's content.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Backup {
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    tx_queue: Option<u32>,
    /// The owner; empty in a file of the reference.
    network: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    /// Device and inode number of the container's namespace, to recognise its link.
    netns: Option<(u64, u64)>,
}

impl Backup {
    /// The backup of attributes to change.
    pub(super) fn new(attachment: &Attachment, netns: NetnsId, had: &Attributes) -> Self {
        Self {
            mac: had.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            promisc: had.promisc,
            mtu: had.mtu,
            allmulti: had.allmulti,
            tx_queue: had.tx_queue,
            network: attachment.network().to_owned(),
            container_id: attachment.container_id().to_owned(),
            ifname: attachment.ifname().to_owned(),
            netns: Some((netns.dev, netns.ino)),
        }
    }

    /// The attributes to restore.
    pub(super) fn attributes(&self) -> Attributes {
        Attributes {
            mac: self.mac.parse().ok(),
            promisc: self.promisc,
            mtu: self.mtu.filter(|mtu| *mtu != 0),
            allmulti: self.allmulti,
            tx_queue: self.tx_queue,
        }
    }

    /// Keeps the attributes that an earlier ADD of the attachment has saved, because this ADD has found the link with
    /// that ADD's changes.
    pub(super) fn keep(mut self, earlier: &Self) -> Self {
        if earlier.netns == self.netns {
            if !earlier.mac.is_empty() {
                self.mac.clone_from(&earlier.mac);
            }
            self.promisc = earlier.promisc.or(self.promisc);
            self.mtu = earlier.mtu.or(self.mtu);
            self.allmulti = earlier.allmulti.or(self.allmulti);
            self.tx_queue = earlier.tx_queue.or(self.tx_queue);
        }
        self
    }

    /// True if the namespace is the backup's, or the backup names none.
    pub(super) fn is_in(&self, netns: NetnsId) -> bool {
        self.netns.is_none_or(|id| id == (netns.dev, netns.ino))
    }

    /// True if the backup belongs to the container's interface, in any network. Two interfaces may share a
    /// file's name, as both names may have a `_`.
    pub(super) fn is_of(&self, attachment: &Attachment) -> bool {
        self.container_id.is_empty()
            || (self.container_id == attachment.container_id() && self.ifname == attachment.ifname())
    }

    fn owner(&self) -> Option<Attachment> {
        Attachment::new(&self.network, &self.container_id, &self.ifname).ok()
    }
}

/// The folder of backups.
#[derive(Debug)]
pub(super) struct Backups {
    dir: DurableDir,
}

impl Backups {
    /// Opens the folder; makes it if missing.
    pub(super) fn create(path: &Path) -> Result<Self, CniError> {
        let create = || match DurableDir::open(path) {
            Err(error) if error.is_not_found() => match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => DurableDir::create(parent, PARENT_MODE)?.subdir(name, DIR_MODE),
                _ => Err(error),
            },
            opened => opened,
        };
        Ok(Self { dir: create().map_err(failed)? })
    }

    /// Opens the folder; none if missing.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, CniError> {
        match DurableDir::open(path) {
            Ok(dir) => Ok(Some(Self { dir })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Checks that the folder exists or may be made, without making it.
    pub(super) fn try_out(path: &Path) -> Result<(), CniError> {
        for folder in path.ancestors() {
            match folder.metadata() {
                Ok(found) if found.is_dir() => return Ok(()),
                Ok(_) => return Err(CniError::internal(format!("{} is not a directory", folder.display()))),
                Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {}
                Err(error) => {
                    return Err(CniError::internal(format!("stat {}: {error}", folder.display())));
                }
            }
        }
        Ok(())
    }

    /// True if the attachment has a file, valid or not.
    pub(super) fn has(&self, attachment: &Attachment) -> Result<bool, CniError> {
        self.dir.exists(file_name(attachment)).map_err(failed)
    }

    /// Reads the attachment's backup; none if missing or malformed.
    pub(super) fn read(&self, attachment: &Attachment) -> Result<Option<Backup>, CniError> {
        self.read_file(&file_name(attachment))
    }

    fn read_file(&self, name: &str) -> Result<Option<Backup>, CniError> {
        let content = match self.dir.read(name, LIMIT) {
            // Such a file was written neither by this plugin nor by the reference.
            Err(DirError::NotAFile { .. } | DirError::TooLarge { .. }) => None,
            read => read.map_err(failed)?,
        };
        let Some(content) = content else { return Ok(None) };
        match serde_json::from_slice(&content) {
            Ok(backup) => Ok(Some(backup)),
            Err(error) => {
                log::warn!("parse {}/{name}: {error}", self.dir.path().display());
                Ok(None)
            }
        }
    }

    /// Writes the attachment's backup, in one step.
    pub(super) fn write(&self, attachment: &Attachment, backup: &Backup) -> Result<(), CniError> {
        let content = serde_json::to_vec(backup).map_err(|e| CniError::internal(e.to_string()))?;
        self.dir.put(file_name(attachment), &content, FILE_MODE).map_err(failed)
    }

    /// Removes the attachment's backup, if it exists.
    pub(super) fn remove(&self, attachment: &Attachment) -> Result<(), CniError> {
        self.dir.remove(file_name(attachment)).map(drop).map_err(failed)
    }

    /// Removes the backups of a network whose owners are not valid. Files without a network stay.
    ///
    /// # Errors
    /// The first file that could not be removed; all others were.
    pub(super) fn retain(&self, network: &str, valid: &[Attachment]) -> Result<(), CniError> {
        // Temporary files of killed processes.
        let mut result = self.dir.remove_stale_temporaries().map(drop).map_err(failed);
        for name in self.dir.list().map_err(failed)? {
            let Some(name) = name.to_str().filter(|name| name.ends_with(".json")) else { continue };
            let owner = self.read_file(name)?.and_then(|backup| backup.owner());
            if owner.is_some_and(|owner| owner.network() == network && !valid.contains(&owner)) {
                result = result.and(self.dir.remove(name).map(drop).map_err(failed));
            }
        }
        result
    }
}

fn file_name(attachment: &Attachment) -> String {
    format!("{}_{}.json", attachment.container_id(), attachment.ifname())
}

#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn failed(error: DirError) -> CniError {
    CniError::new(cni_spec::ErrorCode::Io, error.to_string())
}

#[cfg(test)]
mod tests {
    use cni_kernel::mac::Mac;

    use super::*;

    const NETNS: NetnsId = NetnsId { dev: 4, ino: 5 };

    fn attachment(network: &str, container: &str) -> Attachment {
        Attachment::new(network, container, "eth0").unwrap()
    }

    #[test]
    fn a_backup_is_written_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        assert!(Backups::open(&path).unwrap().is_none());
        let backups = Backups::create(&path).unwrap();
        let had = Attributes {
            mac: Some(Mac([2, 0, 0, 0, 0, 1])),
            promisc: Some(false),
            mtu: Some(1500),
            allmulti: None,
            tx_queue: Some(0),
        };
        let owner = attachment("n", "c1");
        let backup = Backup::new(&owner, NETNS, &had);
        backups.write(&owner, &backup).unwrap();
        let read = backups.read(&owner).unwrap().unwrap();
        assert_eq!((read.attributes(), &read), (had, &backup));
        assert!(read.is_in(NETNS) && !read.is_in(NetnsId { dev: 4, ino: 6 }));
        assert!(
            read.is_of(&owner) && read.is_of(&attachment("m", "c1")) && !read.is_of(&attachment("n", "c"))
        );

        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&path), mode(&path.join("c1_eth0.json"))), (0o700, 0o600));
        assert_eq!(mode(&folder.path().join("a")), 0o755);

        backups.retain("m", &[]).unwrap();
        backups.retain("n", std::slice::from_ref(&owner)).unwrap();
        assert!(backups.read(&owner).unwrap().is_some());
        backups.retain("n", &[attachment("n", "c2")]).unwrap();
        assert!(backups.read(&owner).unwrap().is_none());
        backups.remove(&owner).unwrap();
    }

    #[test]
    fn the_references_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = "{\n \"mac\": \"c2:b0:57:49:47:f1\",\n \"promisc\": false,\n \"mtu\": 1454,\n \"txQLen\": 1000\n}";
        std::fs::write(folder.path().join("c1_eth0.json"), text).unwrap();
        std::fs::write(folder.path().join("c2_eth0.json"), "{").unwrap();
        let backups = Backups::open(folder.path()).unwrap().unwrap();
        let owner = attachment("n", "c1");
        let backup = backups.read(&owner).unwrap().unwrap();
        assert_eq!((backup.attributes().mtu, backup.attributes().tx_queue), (Some(1454), Some(1000)));
        assert!(backup.is_in(NETNS) && backup.is_of(&owner));
        assert_eq!(backups.read(&attachment("n", "c2")).unwrap(), None);
        // The reference's backups name no network, so only a DEL removes them.
        backups.retain("n", &[]).unwrap();
        assert!(backups.read(&owner).unwrap().is_some());
    }

    #[test]
    fn a_second_add_keeps_the_first_values() {
        let owner = attachment("n", "c1");
        let had = |mtu, allmulti| Attributes { mtu: Some(mtu), allmulti, ..Attributes::default() };
        let first = Backup::new(&owner, NETNS, &had(1500, None));
        let second = Backup::new(&owner, NETNS, &had(1400, Some(false))).keep(&first);
        assert_eq!(second.attributes(), had(1500, Some(false)));
        let elsewhere = Backup::new(&owner, NetnsId { dev: 4, ino: 6 }, &had(1400, None)).keep(&first);
        assert_eq!(elsewhere.attributes(), had(1400, None));
    }
}
