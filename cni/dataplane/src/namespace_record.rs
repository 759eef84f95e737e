// SPDX-License-Identifier: GPL-2.0-or-later

//! The record of a container's namespace as bytes, for owners that are written elsewhere than in the table: the same
//! bytes, and the same proof that the namespace is gone.

use std::path::Path;

use crate::ContainerNetns;
use crate::nftables::liveness::Record;
use crate::owner::Life;

/// The record of the namespace at a path, as seen from this mount namespace. None if there is none, or if its death could
/// not be proven later.
#[must_use]
pub fn encode(netns: &Path) -> Option<Vec<u8>> {
    Record::new(&ContainerNetns::without_cookie(netns).ok()?)?.encode()
}

/// The namespace of a record that was made in this mount namespace: elsewhere its path may lead to another one.
#[must_use]
pub fn decode(record: &[u8]) -> Option<ContainerNetns> {
    Record::decode(record)?.here()
}

/// True if the namespace of a record is provably gone: its path is missing or leads to another one, in the mount namespace in
/// which it was recorded.
#[must_use]
pub fn is_gone(record: &[u8]) -> bool {
    Record::decode(record).is_some_and(|record| record.life() == Life::Dead)
}
