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
    /// Its namespace is provably gone.
    Gone,
    /// Its namespace exists at the recorded path.
    Living(ContainerNetns),
    /// Nothing proves either, for example because the reference made the reservation.
    Unknown,
}

/// Reads the reservations of an attachment. Takes no lock.
///
/// # Errors
/// The directory cannot be read.
pub fn of(data_dir: &Path, attachment: &Attachment) -> Result<ReservationLife, StoreError> {
    let Some(store) = Store::open(data_dir, attachment.network())? else {
        return Ok(ReservationLife::Unreserved);
    };
    let addresses = ledger::addresses(&store, attachment)?;
    if addresses.is_empty() {
        return Ok(ReservationLife::Unreserved);
    }
    if let Some(netns) = addresses.iter().find_map(|address| living(&store, *address)) {
        return Ok(ReservationLife::Living(netns));
    }
    let gone = abandoned::find(&store, attachment.network(), |address| addresses.contains(&address))?;
    Ok(if gone.len() == addresses.len() { ReservationLife::Gone } else { ReservationLife::Unknown })
}

/// The namespace in a reservation's record, if its path leads there.
fn living(store: &Store, address: IpAddr) -> Option<ContainerNetns> {
    let file = store.dir.open_file(address.to_string(), Access::Read).ok()?;
    let record = mark::read(&file, &store.boot)?;
    let netns = namespace_record::decode(&record)?;
    (!namespace_record::is_gone(&record) && netns.path.exists()).then_some(netns)
}
