// SPDX-License-Identifier: GPL-2.0-or-later

//! The programs at interfaces: filters at both hooks of `clsact`.

use aya::programs::tc::SchedClassifierLink;
use aya::programs::{Link as _, TcAttachType};
use cni_kernel::route::{Link, RouteSocket};
use slipway_ebpf_abi::carried;

use super::super::{attach, error, pods};
use super::store::Store;
use crate::Error;

/// Priority of the filters: after those of programs that decide, and after most others, whose verdict counts.
const PRIORITY: u16 = 0x534d;

/// The kind of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An uplink whose packets begin with an Ethernet header.
    Uplink,
    /// An uplink whose packets begin with the IP header.
    UplinkL3,
    /// The host's end of a pod's veth.
    Pod,
    /// The same, with a queueing discipline that must see all packets.
    LimitedPod,
}

impl Kind {
    /// The programs at ingress and egress.
    const fn programs(self) -> (&'static str, &'static str) {
        match self {
            Self::Uplink => (carried::INGRESS, carried::EGRESS),
            Self::UplinkL3 => (carried::INGRESS_L3, carried::EGRESS_L3),
            Self::Pod => (carried::INGRESS_POD, carried::EGRESS_POD),
            Self::LimitedPod => (carried::INGRESS_POD, carried::EGRESS),
        }
    }

    /// The kind of a pod's link.
    ///
    /// # Errors
    /// [`Error::Kernel`] if its queueing disciplines cannot be listed.
    pub(super) fn of_pod(link: &Link) -> Result<Self, Error> {
        Ok(if pods::is_limited(link)? { Self::LimitedPod } else { Self::Pod })
    }
}

/// Attaches both programs, or replaces those of another version.
///
/// # Errors
/// [`Error::Kernel`] if the interface is gone, or has another discipline in clsact's place.
pub(super) fn attach(store: &Store, interface: &str, kind: Kind) -> Result<(), Error> {
    attach::add_clsact(interface)?;
    let (ingress, egress) = kind.programs();
    // Ingress last: an interface with it has both.
    for (name, side) in [(egress, TcAttachType::Egress), (ingress, TcAttachType::Ingress)] {
        let attached = attach::pinned(&store.path(name))
            .and_then(|mut program| attach::attach_filter(&mut program, interface, side, PRIORITY));
        attached.map_err(|e| error::failed(format!("attach {name} to {interface}"), e))?;
    }
    Ok(())
}

/// True if an interface has the programs, of any version.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses; a missing interface has none.
pub(super) fn has_programs(socket: &RouteSocket, index: u32) -> Result<bool, Error> {
    match socket.program_at(index, PRIORITY, attach::NUMBER.into()) {
        Ok(found) => Ok(found.is_some()),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(Error::kernel(format!("look for the BPF program at interface {index}"), e)),
    }
}

/// The links with the programs.
///
/// # Errors
/// [`Error::Kernel`] if links or their programs cannot be listed.
pub(super) fn with_programs(socket: &RouteSocket) -> Result<Vec<Link>, Error> {
    let mut found = Vec::new();
    for link in socket.links().map_err(|e| Error::kernel("list the links with BPF programs", e))? {
        if has_programs(socket, link.index)? {
            found.push(link);
        }
    }
    Ok(found)
}

/// Detaches the programs from an interface, which may be gone.
pub(super) fn detach(interface: &str) {
    // Ingress first, as above.
    for side in [TcAttachType::Ingress, TcAttachType::Egress] {
        if let Ok(filter) = SchedClassifierLink::attached(interface, side, PRIORITY, attach::HANDLE, None) {
            // Most links have none.
            let _ = filter.detach();
        }
    }
}
