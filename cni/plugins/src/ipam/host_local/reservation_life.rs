// SPDX-License-Identifier: GPL-2.0-or-later

//! What the reservations of one attachment show about its container, for a command that would free them.

use std::net::IpAddr;
use std::path::Path;

use cni_dataplane::{ContainerNetns, namespace_record};
use cni_kernel::dir::Access;
use cni_spec::Attachment;

use super::store::{Store, StoreError};
use super::{abandoned, ledger, mark};

/// The container behind the reservations of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservationLife {
    /// There is no reservation.
    Unreserved,
    /// The container's namespace is provably gone.
    Gone,
    /// The container's namespace exists at the recorded path.
    Living(ContainerNetns),
    /// There is no proof of either, for example because the reference made the reservation.
    Unknown,
}

/// Reads the reservations of an attachment. Takes no lock.
///
/// # Errors
/// The directory cannot be read, or the system is short of something while a reservation is read.
pub fn of(data_dir: &Path, attachment: &Attachment) -> Result<ReservationLife, StoreError> {
    let Some(store) = Store::open(data_dir, attachment.network())? else {
        return Ok(ReservationLife::Unreserved);
    };
    let addresses = ledger::addresses(&store, attachment)?;
    if addresses.is_empty() {
        return Ok(ReservationLife::Unreserved);
    }
    for address in &addresses {
        if let Some(netns) = living(&store, *address)? {
            return Ok(ReservationLife::Living(netns));
        }
    }
    let gone = abandoned::find(&store, attachment.network(), |address| addresses.contains(&address))?;
    Ok(if gone.len() == addresses.len() { ReservationLife::Gone } else { ReservationLife::Unknown })
}

/// The namespace in a reservation's record, if its path leads there.
fn living(store: &Store, address: IpAddr) -> Result<Option<ContainerNetns>, StoreError> {
    let name = address.to_string();
    let file = match store.dir.open_file(&name, Access::Read) {
        Ok(file) => file,
        Err(error) if error.is_transient() => return Err(error.into()),
        Err(_) => return Ok(None),
    };
    let failed = |errno| StoreError::System { operation: "read", path: store.dir.path().join(&name), errno };
    let Some(record) = mark::read(&file, &store.boot).map_err(failed)? else { return Ok(None) };
    // A path that cannot be looked up may lead there.
    let is_there = |netns: &ContainerNetns| netns.path.try_exists().unwrap_or(true);
    let netns = namespace_record::decode(&record).filter(is_there);
    Ok(netns.filter(|_| !namespace_record::is_gone(&record)))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use cni_kernel::xattr;

    use super::super::mark::{ATTRIBUTE, record};
    use super::*;

    #[test]
    fn a_reservation_shows_whether_its_container_lives() {
        let temp = tempfile::tempdir().unwrap();
        let attachment = Attachment::new("net", "c1", "eth0").unwrap();
        let life = || of(temp.path(), &attachment).unwrap();
        assert_eq!(life(), ReservationLife::Unreserved, "there is no directory");
        let store = Store::create(temp.path(), "net").unwrap();
        assert_eq!(life(), ReservationLife::Unreserved);
        let reserve = |address: &str, owner: &str| {
            let path = temp.path().join("net").join(address);
            fs::write(&path, format!("{owner}\r\neth0")).unwrap();
            File::options().write(true).open(&path).unwrap()
        };
        let first = reserve("10.0.0.2", "c1");
        reserve("10.0.0.3", "c2");
        assert_eq!(life(), ReservationLife::Unknown, "as the reference reserves");
        let netns = temp.path().join("netns");
        fs::write(&netns, "").unwrap();
        let record = record(&store.boot, Some(&netns)).unwrap();
        if xattr::set(&first, ATTRIBUTE, &record).is_err() {
            // Without privileges, or on a file system without such attributes.
            return;
        }
        let ReservationLife::Living(found) = life() else { panic!("{:?}", life()) };
        assert_eq!(found.path, netns);
        let other = temp.path().join("other");
        fs::write(&other, "").unwrap();
        fs::rename(&other, &netns).unwrap();
        assert_eq!(life(), ReservationLife::Gone, "the path leads to another namespace");
        fs::remove_file(&netns).unwrap();
        assert_eq!(life(), ReservationLife::Gone);
        reserve("fd00::2", "c1");
        assert_eq!(life(), ReservationLife::Unknown, "nothing proves it for the second address");
    }
}
