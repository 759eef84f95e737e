// SPDX-License-Identifier: GPL-2.0-or-later

//! The programs at interfaces, which are attached as filters to both hooks of `clsact`.
//!
//! When a link gets its first `clsact`, a running container loses the packets that it sends at that moment. tcx,
//! which needs no `clsact`, exists since Linux 6.6, but attaching by tcx takes twenty times as long.

use std::path::Path;

use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle};
use aya::programs::{Link as _, ProgramError, ProgramInfo, SchedClassifier, TcAttachType, tc};
use cni_kernel::netns::Netns;
use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket};
use nix::errno::Errno;
use slipway_ebpf_abi::maps::programs;

use super::error;
use super::store::Store;
use crate::{Cause, ContainerNetns, Error};

/// The preference of our filters, in the terms of tc(8). They come last, because the verdicts of the other filters
/// take precedence. The kernel assigns preferences from 0xc000 downwards to filters that ask for none, and the
/// redirection that limits the rate at which a container sends has preference 1.
pub const PREFERENCE: u16 = 0xc34d;
/// The number of our filter at that preference. There is one at each hook of an interface.
const NUMBER: u16 = 1;
const HANDLE: TcHandle = TcHandle::new(0, NUMBER);

/// A link that should have the programs, but does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnservedLink {
    pub name: String,
    /// The reason, or empty if it is unknown.
    pub why: String,
}

/// The kind of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An uplink whose packets begin with an Ethernet header.
    Uplink,
    /// An uplink whose packets begin with the IP header.
    UplinkL3,
    /// The host's end of a pod's veth.
    Pod,
    /// The same, with a queueing discipline that must see every packet.
    LimitedPod,
}

impl Kind {
    /// The programs at ingress and egress.
    const fn programs(self) -> (&'static str, &'static str) {
        match self {
            Self::Uplink => (programs::INGRESS, programs::EGRESS),
            Self::UplinkL3 => (programs::INGRESS_L3, programs::EGRESS_L3),
            Self::Pod => (programs::INGRESS_POD, programs::EGRESS_POD),
            Self::LimitedPod => (programs::INGRESS_POD, programs::EGRESS),
        }
    }

    /// The kind of a pod's link.
    pub(super) fn of_pod(link: &Link) -> Result<Self, Error> {
        Ok(if is_limited(link)? { Self::LimitedPod } else { Self::Pod })
    }
}

pub(super) fn socket() -> Result<RouteSocket, Error> {
    RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))
}

/// Attaches both programs, or replaces those of another version of Slipway.
pub(super) fn attach(store: &Store, interface: &str, kind: Kind) -> Result<(), Error> {
    add_clsact(interface)?;
    let (ingress, egress) = kind.programs();
    // Ingress is attached last, so that an interface that has it has both.
    for (name, side) in [(egress, TcAttachType::Egress), (ingress, TcAttachType::Ingress)] {
        let attached =
            pinned(&store.path(name)).and_then(|mut program| attach_filter(&mut program, interface, side));
        attached.map_err(|e| error::failed(format!("attach {name} to {interface}"), e))?;
    }
    Ok(())
}

/// Opens a pinned program. [`SchedClassifier::from_pin`] would probe a dozen kernel features in each process, by
/// loading programs and maps.
fn pinned(program: &Path) -> Result<SchedClassifier, ProgramError> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    SchedClassifier::from_program_info(ProgramInfo::from_pin(program)?, name.into())
}

/// Adds clsact to an interface that does not have it yet.
pub(super) fn add_clsact(interface: &str) -> Result<(), Error> {
    match tc::qdisc_add_clsact(interface) {
        Ok(()) => Ok(()),
        Err(TcError::NetlinkError(e)) if e.raw_os_error() == Some(Errno::EEXIST as i32) => Ok(()),
        Err(e) => Err(error::failed(format!("add clsact to {interface}"), e)),
    }
}

/// Attaches a program as our filter at clsact, or replaces the one that is there.
fn attach_filter(
    classifier: &mut SchedClassifier,
    interface: &str,
    side: TcAttachType,
) -> Result<(), ProgramError> {
    let options = NlOptions { priority: PREFERENCE, handle: HANDLE, classid: None };
    let attached = classifier.attach_with_options(interface, side, TcAttachOptions::Netlink(options));
    let link = match attached {
        Err(ProgramError::TcError(TcError::NetlinkError(e)) | ProgramError::NetlinkError(e))
            if e.raw_os_error() == Some(Errno::EEXIST as i32) =>
        {
            let there = SchedClassifierLink::attached(interface, side, PREFERENCE, HANDLE, None)
                .map_err(TcError::IoError)?;
            classifier.attach_to_link(there)?
        }
        attached => attached?,
    };
    // Dropping the link would detach the program, but the program has to outlive this process.
    std::mem::forget(classifier.take_link(link)?);
    Ok(())
}

/// True if an interface has the programs, of any version. A missing interface has none.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses.
pub(super) fn has_programs(socket: &RouteSocket, index: u32) -> Result<bool, Error> {
    match socket.program_at(index, PREFERENCE, NUMBER.into()) {
        Ok(found) => Ok(found.is_some()),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(Error::kernel(format!("look for the BPF program at interface {index}"), e)),
    }
}

pub(super) fn with_programs(socket: &RouteSocket) -> Result<Vec<Link>, Error> {
    let mut found = Vec::new();
    for link in socket.links().map_err(|e| Error::kernel("list the links with BPF programs", e))? {
        if has_programs(socket, link.index)? {
            found.push(link);
        }
    }
    Ok(found)
}

/// Detaches the programs from an interface, which may be gone or have none.
///
/// # Errors
/// [`Error::Kernel`] if a program may still be attached.
pub(super) fn detach(interface: &str) -> Result<(), Error> {
    // Ingress is detached first, for the same reason.
    for side in [TcAttachType::Ingress, TcAttachType::Egress] {
        let filter = SchedClassifierLink::attached(interface, side, PREFERENCE, HANDLE, None);
        match filter.map_err(ProgramError::IOError).and_then(SchedClassifierLink::detach) {
            Err(e) if !shows_none(error::of_program(&e)) => {
                return Err(error::failed(format!("detach the BPF programs from {interface}"), e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// True if no such filter can be there: the interface, its clsact or the filter is missing, or the interface cannot
/// have filters.
fn shows_none(answer: Option<Errno>) -> bool {
    matches!(answer, Some(Errno::ENOENT | Errno::EINVAL | Errno::ENODEV | Errno::EOPNOTSUPP))
}

/// True if the rate of a link is limited.
fn is_limited(link: &Link) -> Result<bool, Error> {
    let failed = |e: RouteError| Error::kernel(format!("ask for the limits of {}", link.name), e);
    let socket = RouteSocket::open().map_err(failed)?;
    let queue = socket.token_bucket(link).map_err(failed)?;
    Ok(queue.is_some() || !socket.redirections(link).map_err(failed)?.is_empty())
}

/// The other end of a container's interface, as far as the node has one.
pub(super) enum HostEnd {
    Link(Link),
    /// The interface is not a veth, or its peer is not in this namespace.
    NoVeth,
    /// The container has no such interface, for instance because a DEL is removing it.
    NoInterface(Error),
}

/// Finds the host end of a container's veth.
pub(super) fn host_end(netns: &ContainerNetns, ifname: &str) -> Result<HostEnd, Error> {
    let failed =
        |e: Cause| Error::kernel(format!("find the host's end of {ifname} in {}", netns.path.display()), e);
    let inside = Netns::open(&netns.path).map_err(|e| failed(e.into()))?;
    let socket = RouteSocket::open_in(&inside).map_err(|e| failed(e.into()))?;
    let own = match socket.link(ifname) {
        Ok(own) => own,
        Err(e) if e.is_not_found() => return Ok(HostEnd::NoInterface(failed(e.into()))),
        Err(e) => return Err(failed(e.into())),
    };
    let Some(peer) = own.peer.filter(|_| own.kind == LinkKind::Veth) else { return Ok(HostEnd::NoVeth) };
    let socket = RouteSocket::open().map_err(|e| failed(e.into()))?;
    match socket.link_by_index(peer) {
        // If the peer is in a third namespace, this index belongs to an unrelated link here.
        Ok(link) if link.kind == LinkKind::Veth && link.peer == Some(own.index) => Ok(HostEnd::Link(link)),
        Ok(_) => Ok(HostEnd::NoVeth),
        Err(e) if e.is_not_found() => Ok(HostEnd::NoVeth),
        Err(e) => Err(failed(e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_about_the_filter_shows_that_there_is_none() {
        detach("no-such-link").unwrap();
        assert!(shows_none(Some(Errno::ENOENT)) && shows_none(Some(Errno::EINVAL)));
        for other in [None, Some(Errno::EMFILE), Some(Errno::ENOBUFS), Some(Errno::EPERM)] {
            assert!(!shows_none(other), "{other:?}");
        }
    }
}
