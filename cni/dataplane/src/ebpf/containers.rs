// SPDX-License-Identifier: GPL-2.0-or-later

//! Tells the BPF programs about the container behind each link: the MAC address of its interface, which they need to
//! carry packets there, and whether another program or filter on that link has to see every packet.

use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use cni_kernel::route::{Hook, Link, LinkKind, RouteError, RouteSocket};
use nix::errno::Errno;
use slipway_ebpf_abi::Container;

use super::error;
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
    if let Some(tcx) = shown_tcx(SchedClassifier::query_tcx(&link.name, TcAttachType::Egress)) {
        return Ok(Some(tcx));
    }
    let filters = socket.filters(link.index, Hook::Egress)?;
    let other = filters.into_iter().find(|one| one.preference != PREFERENCE);
    Ok(other.map(|one| format!("a filter of the kind {} at egress, preference {}", one.kind, one.preference)))
}

/// Describes the tcx programs that the kernel shows at a link's egress. After an error that leaves open whether there
/// are any, packets take the queue until a later look, because otherwise a program would not see them.
fn shown_tcx<T>(shown: Result<(u64, Vec<T>), ProgramError>) -> Option<String> {
    match shown {
        Ok((_, programs)) => (!programs.is_empty()).then(|| "a tcx program at egress".to_owned()),
        Err(e) => match error::of_program(&e) {
            // The kernel has no tcx, which exists since Linux 6.6, or the link is gone.
            Some(Errno::EINVAL | Errno::ENODEV) => None,
            _ => Some(format!("maybe a tcx program at egress, which cannot be looked up: {e}")),
        },
    }
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

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;

    use super::*;

    #[test]
    fn packets_take_the_queue_unless_no_tcx_program_is_there() {
        let failed = |errno: Errno| {
            let io_error = std::io::Error::from_raw_os_error(errno as i32);
            shown_tcx::<()>(Err(SyscallError { call: "bpf_prog_query", io_error }.into()))
        };
        assert_eq!(failed(Errno::EINVAL), None, "as before Linux 6.6");
        assert_eq!(shown_tcx(SchedClassifier::query_tcx("no-such-link", TcAttachType::Egress)), None);
        assert_eq!(shown_tcx::<()>(Ok((1, Vec::new()))), None);
        assert!(shown_tcx(Ok((1, vec![()]))).is_some());
        for errno in [Errno::EMFILE, Errno::ENOMEM] {
            assert!(failed(errno).is_some(), "{errno}");
        }
    }
}
