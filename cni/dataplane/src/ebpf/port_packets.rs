// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets of one port's flows that the BPF programs have carried past netfilter.

use std::net::SocketAddr;

use super::setup;
use crate::{Error, Protocol};

/// The packets, of both directions, that the BPF programs have carried of the flows to a destination that they
/// carry now; none on a node without the programs.
///
/// # Errors
/// [`Error::Kernel`] if the maps cannot be read.
pub fn carried_packets(protocol: Protocol, to: SocketAddr) -> Result<Option<u64>, Error> {
    let Some(store) = setup::find() else { return Ok(None) };
    // The reverse direction becomes one that comes from where the first one goes to.
    let all = store
        .directions()?
        .into_iter()
        .filter(|one| one.protocol == protocol.number() && (one.before.1 == to || one.after.0 == to));
    Ok(Some(all.map(|one| one.packets).fold(0, u64::saturating_add)))
}
