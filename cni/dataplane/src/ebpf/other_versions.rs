// SPDX-License-Identifier: GPL-2.0-or-later

//! Programs of versions with another layout of the maps.

use std::collections::BTreeSet;

use cni_kernel::route::RouteSocket;

use super::attach;
use super::pins::Pins;
use super::tables::{self, Tables};
use crate::Error;

/// Removes what a version with another layout has left: its pins, and its programs where this version's have
/// not replaced them. nftables serves the containers that only they served.
///
/// # Errors
/// [`Error::Kernel`] if a pin cannot be removed.
pub(super) fn give_up_others() -> Result<(), Error> {
    if !Pins::has_others() {
        return Ok(());
    }
    let mut known = BTreeSet::new();
    if let Some(pins) = Pins::find() {
        known.extend(tables::uplinks(&pins)?.all()?.into_iter().map(|(index, _)| index));
        known.extend(Tables::open(&pins)?.pods.all()?.into_iter().map(|(index, _)| index));
    }
    let failed = |e| Error::kernel("look for links with programs of another version", e);
    let links = RouteSocket::open().and_then(|socket| socket.links()).map_err(failed)?;
    let mut left = Vec::new();
    for link in links.into_iter().filter(|link| !known.contains(&link.index)) {
        match attach::detach(&link.name) {
            Ok(true) => left.push(link.name),
            Ok(false) => {}
            // A link may be removed at any time.
            Err(error) => log::debug!("{error}"),
        }
    }
    if !left.is_empty() {
        log::warn!(
            "detached the programs of another version from {}: nftables serves there",
            left.join(", ")
        );
    }
    Pins::remove_others()
}
