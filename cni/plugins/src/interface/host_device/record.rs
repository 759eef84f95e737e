// SPDX-License-Identifier: GPL-2.0-or-later

//! The device of an attachment as it was on the node: a file in the run directory, which ADD writes before it moves the
//! device.
//!
//! The link's alias has the name, too, but a container that may change its links can write any other text there, and so
//! choose the name that its device, or another link, gets on the node. DEL therefore uses the alias only for a device
//! without a record, which the reference or an earlier version has moved. After a reboot all devices are on the node,
//! so the records need not outlast it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cni_dataplane::RUN_DIR;
use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::mac::Mac;
use cni_kernel::netns::NetnsId;
use cni_kernel::route::{Link, LinkChange, LinkKind, RouteSocket};
use cni_spec::text::hex;
use cni_spec::{Attachment, CniError, check_ifname};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::interface::shared::failed;

/// The directory of the records in [`RUN_DIR`].
const DIRECTORY: &str = "devices";
/// The largest file that is read, in bytes.
const LIMIT: usize = 64 << 10;

/// A device that an ADD has moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The device's name on the node.
    pub(super) name: String,
    alternative_names: Vec<String>,
    mac: Option<String>,
    /// True for a device that is not virtual. A container cannot make such a link.
    is_plain: bool,
    /// Device and inode number of the container's namespace.
    netns: (u64, u64),
}

impl Record {
    /// The record of a link that is on the node.
    pub(super) fn new(link: &Link, netns: NetnsId) -> Self {
        Self {
            name: link.name.clone(),
            alternative_names: link.alternative_names.clone(),
            mac: link.mac.map(|mac| mac.to_string()),
            is_plain: link.kind == LinkKind::Plain,
            netns: (netns.dev, netns.ino),
        }
    }

    /// True if the device was moved into this namespace.
    pub(super) fn is_in(&self, netns: NetnsId) -> bool {
        self.netns == (netns.dev, netns.ino)
    }

    /// True if the device had this name, or this alternative name, on the node.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.alternative_names.iter().any(|one| one == name)
    }

    /// Removes the alternative names that the device did not have before. By these it would be found in place of a link
    /// that another network names.
    fn remove_new_names(&self, route: &RouteSocket, link: &Link) -> Result<(), CniError> {
        let is_new = |name: &&str| !self.has_name(name);
        let new: Vec<&str> = link.alternative_names.iter().map(String::as_str).filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        match route.remove_alternative_names(link, &new) {
            // Before Linux 6.7, a moved link still lists its alternative names, but it is no longer found by them.
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map_err(failed),
        }
    }

    /// Gives the device, now on the node again, the MAC address and the alternative names that it had before. With an
    /// address of the container, another network's `hwaddr` could mean the device. If the driver refuses the former
    /// address, the device keeps the container's.
    pub(super) fn restore(&self, route: &RouteSocket, link: &Link) -> Result<(), CniError> {
        self.remove_new_names(route, link)?;
        let had: Option<Mac> = self.mac.as_deref().and_then(|mac| mac.parse().ok());
        if let Some(mac) = had.filter(|mac| link.mac != Some(*mac))
            && let Err(error) = route.change_link(link, &LinkChange::new().mac(mac))
        {
            log::warn!("{error}");
        }
        Ok(())
    }

    /// True if the device had this MAC address on the node.
    pub(super) fn has_mac(&self, mac: Mac) -> bool {
        self.mac.as_deref() == Some(mac.to_string().as_str())
    }

    /// False if the link cannot be the device, because it is a virtual one and the device is not.
    pub(super) fn may_be(&self, link: &Link) -> bool {
        !self.is_plain || link.kind == LinkKind::Plain
    }

    /// Finds the device on the node under its name. If it is there, the record is left from a call that was killed, or
    /// another plugin set has moved the device back.
    pub(super) fn find_on_node(&self, route: &RouteSocket) -> Result<Option<Link>, CniError> {
        let link = route.find_link(&self.name).map_err(failed)?;
        let is_it = |link: &Link| link.mac.map(|mac| mac.to_string()) == self.mac && self.may_be(link);
        Ok(link.filter(is_it))
    }
}

/// Writes the attachment's record, in place of an earlier one.
pub(super) fn write(attachment: &Attachment, record: &Record) -> Result<(), CniError> {
    let content = serde_json::to_vec(record).map_err(failed)?;
    let directory = DurableDir::open(&path())
        .or_else(|_| DurableDir::create(Path::new(RUN_DIR), 0o755)?.subdir(DIRECTORY, 0o700))
        .map_err(failed)?;
    write_to(&directory, attachment, &content).map_err(failed)
}

fn write_to(directory: &DurableDir, attachment: &Attachment, content: &[u8]) -> Result<(), DirError> {
    // A new file is written without a temporary one, which a killed process would leave behind.
    match directory.create_new_linked(file_name(attachment), content, 0o600) {
        Err(error) if error.already_exists() => directory.replace(file_name(attachment), content, 0o600),
        written => written,
    }
}

/// Reads the attachment's record. None without one, or if it is malformed.
pub(super) fn read(attachment: &Attachment) -> Result<Option<Record>, CniError> {
    let content = match DurableDir::open(&path()).and_then(|dir| dir.read(file_name(attachment), LIMIT)) {
        Err(error) if error.is_not_found() => None,
        Err(error) if !error.is_transient() => {
            log::warn!("the record of the device: {error}");
            None
        }
        read => read.map_err(failed)?,
    };
    Ok(content.as_deref().and_then(parse))
}

fn parse(content: &[u8]) -> Option<Record> {
    let parsed: Result<Record, _> = serde_json::from_slice(content);
    let record = parsed.inspect_err(|error| log::warn!("the record of the device: {error}")).ok()?;
    check_ifname(&record.name).is_ok().then_some(record)
}

/// Removes the attachment's record, if there is one. A repeated DEL only looks.
pub(super) fn forget(attachment: &Attachment) -> Result<(), CniError> {
    let name = file_name(attachment);
    let removed = DurableDir::open(&path())
        .and_then(|directory| Ok(directory.exists(&name)? && directory.remove(&name)?));
    match removed {
        Err(error) if !error.is_not_found() => Err(failed(error)),
        _ => Ok(()),
    }
}

fn path() -> PathBuf {
    Path::new(RUN_DIR).join(DIRECTORY)
}

/// The hash of container and interface, because a container's ID may be longer than a file's name. The network does not
/// count, because an administrator may rename it while the container runs.
fn file_name(attachment: &Attachment) -> OsString {
    let mut hasher = Sha256::new();
    // Neither of the two names contains a slash.
    hasher.update(format!("{}/{}", attachment.container_id(), attachment.ifname()));
    hex(&hasher.finalize()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);
    const NETNS: NetnsId = NetnsId { dev: 4, ino: 5 };

    fn link(kind: LinkKind) -> Link {
        let alternative_names = vec!["rack-1".to_owned()];
        Link { name: "ens5".to_owned(), alternative_names, mac: Some(MAC), kind, ..Link::default() }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let temp = tempfile::tempdir().unwrap();
        let directory = DurableDir::open(temp.path()).unwrap();
        let attachment = Attachment::new("net", &"c".repeat(300), "eth0").unwrap();
        for netns in [NETNS, NetnsId { dev: 4, ino: 6 }] {
            let record = Record::new(&link(LinkKind::Plain), netns);
            write_to(&directory, &attachment, &serde_json::to_vec(&record).unwrap()).unwrap();
            let content = directory.read(file_name(&attachment), LIMIT).unwrap().unwrap();
            let read = parse(&content).unwrap();
            assert_eq!(read, record);
            assert!(
                read.is_in(netns) && read.has_name("ens5") && read.has_name("rack-1") && read.has_mac(MAC)
            );
        }
        let renamed = Attachment::new("other", attachment.container_id(), "eth0").unwrap();
        assert_eq!(file_name(&renamed), file_name(&attachment));
    }

    #[test]
    fn a_virtual_link_is_not_a_device() {
        let record = Record::new(&link(LinkKind::Plain), NETNS);
        assert!(record.may_be(&link(LinkKind::Plain)) && !record.may_be(&link(LinkKind::Dummy)));
        assert!(Record::new(&link(LinkKind::Veth), NETNS).may_be(&link(LinkKind::Veth)));
    }

    #[test]
    fn a_record_without_a_usable_name_is_not_read() {
        let mut record = Record::new(&link(LinkKind::Plain), NETNS);
        record.name = "../etc".to_owned();
        assert_eq!(parse(&serde_json::to_vec(&record).unwrap()), None);
        assert_eq!(parse(b"{"), None);
    }
}
