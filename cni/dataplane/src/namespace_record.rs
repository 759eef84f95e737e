// SPDX-License-Identifier: GPL-2.0-or-later

//! Encodes the record of a container's namespace for owners that are stored outside our table. The bytes are the same
//! as in the table, and so is the proof that the namespace is gone.

use std::path::Path;

use crate::ContainerNetns;
use crate::nftables::liveness::Record;
use crate::owner::Life;

/// The record of the namespace at a path in this mount namespace. None if there is no namespace, or if nothing could
/// later prove that it is gone.
#[must_use]
pub fn encode(netns: &Path) -> Option<Vec<u8>> {
    Record::new(&ContainerNetns::without_cookie(netns).ok()?)?.encode()
}

/// The namespace of a record that was made in this mount namespace. In another one, its path may lead elsewhere.
#[must_use]
pub fn decode(record: &[u8]) -> Option<ContainerNetns> {
    Record::decode(record)?.here()
}

/// True if a record's namespace is provably gone: in the mount namespace in which it was recorded, its path is
/// missing or leads to another namespace.
#[must_use]
pub fn is_gone(record: &[u8]) -> bool {
    Record::decode(record).is_some_and(|record| record.life() == Life::Dead)
}
