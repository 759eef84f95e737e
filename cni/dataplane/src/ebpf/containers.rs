// SPDX-License-Identifier: GPL-2.0-or-later

//! Tells the BPF programs about the container behind each link: the MAC address of its interface, which they need to
//! carry packets there, and whether another program or filter on that link has to see every packet.

use aya::programs::{SchedClassifier, TcAttachType};
use cni_kernel::route::{Hook, Link, LinkKind, RouteError, RouteSocket};
use slipway_ebpf_abi::Container;

use super::links::{self, PREFERENCE, UnservedLink};
use super::store::Store;
use crate::Error;

fn failed(link: &Link) -> impl FnOnce(RouteError) -> Error {
    let name = link.name.clone();
    move |e| Error::kernel(format!("look at the container's end of {name}"), e)
}

/// Why packets to a container must pass the queue of its link, or none if they need not.
fn reason(socket: &RouteSocket, link: &Link, inside: &Link) -> Result<Option<String>, RouteError> {
    if inside.has_native_xdp {
        return Ok(Some("an XDP program in the container".to_owned()));
    }
    // tcx exists since Linux 6.6.
    if SchedClassifier::query_tcx(&link.name, TcAttachType::Egress)
        .is_ok_and(|(_, programs)| !programs.is_empty())
    {
        return Ok(Some("a tcx program at egress".to_owned()));
    }
    let filters = socket.filters(link.index, Hook::Egress)?;
    let other = filters.into_iter().find(|one| one.preference != PREFERENCE);
    Ok(other.map(|one| format!("a filter of the kind {} at egress, preference {}", one.kind, one.preference)))
}

/// Records the container at a link for the programs. Returns false if nothing has changed, or the container is gone.
pub(super) fn write(store: &Store, socket: &RouteSocket, link: &Link) -> Result<bool, Error> {
    let Some(inside) = socket.peer(link).map_err(failed(link))? else { return Ok(false) };
    let Some(mac) = inside.mac else { return Ok(false) };
    let takes_queue = reason(socket, link, &inside).map_err(failed(link))?.is_some();
    store.write_container(link.index, Container { address: mac.0, takes_queue: takes_queue.into() })
}

/// Checks the links of all containers. Returns true if anything has changed.
pub(super) fn look(store: &Store) -> Result<bool, Error> {
    let (socket, uplinks) = (links::socket()?, store.uplinks()?);
    let mut has_changed = false;
    for link in links::with_programs(&socket)? {
        if link.kind == LinkKind::Veth && !uplinks.contains(&link.index) {
            has_changed |= write(store, &socket, &link)?;
        }
    }
    Ok(has_changed)
}

/// The containers' links on which all packets pass the queue, and why.
pub(super) fn with_queue<'a>(
    socket: &RouteSocket,
    all: impl Iterator<Item = &'a Link>,
) -> Result<Vec<UnservedLink>, Error> {
    let mut found = Vec::new();
    for link in all.filter(|link| link.kind == LinkKind::Veth) {
        if let Some(inside) = socket.peer(link).map_err(failed(link))?
            && let Some(why) = reason(socket, link, &inside).map_err(failed(link))?
        {
            found.push(UnservedLink { name: link.name.clone(), why });
        }
    }
    Ok(found)
}
