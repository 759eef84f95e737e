//! Programs on interfaces: filters of tc below a `clsact` queueing discipline.
//!
//! clsact is there in every kernel from 4.5 on and is attached in under a millisecond by a program that is
//! pinned already; tcx takes twenty times as long and needs Linux 6.6. But when an interface gets clsact, what it
//! sends in that moment is lost: a container that is in use gets its program by tcx, where that is to be had and
//! clsact is not there.

use std::os::fd::AsFd;
use std::path::Path;

use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle};
use aya::programs::{
    Link as _, ProgramError, ProgramInfo, SchedClassifier, TcAttachType, loaded_programs, tc,
};
use cni_kernel::bpf;
use cni_kernel::route::RouteSocket;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use slipway_ebpf_abi::maps;

use super::error;
use crate::Error;

/// Priority of the filter: others may come before it and after it.
pub(super) const PRIORITY: u16 = 0x534c;
/// Handle of the filter at that priority: one of ours for each interface.
const HANDLE: TcHandle = TcHandle::new(0, NUMBER);
const NUMBER: u16 = 1;

/// Whether an interface had our filter before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// It had none.
    None,
    /// It had one, which was replaced in one step: no packet has seen none.
    Replaced,
}

/// Whether an interface is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Not yet, or a packet that is lost is no matter.
    None,
    /// It is: no packet is to be lost, if the kernel can do without.
    Busy,
}

/// Puts a pinned program on the way of what comes in at an interface.
///
/// # Errors
/// The interface is gone, or has another discipline in clsact's place.
pub(super) fn attach(interface: &str, program: &Path, used: Use) -> Result<Before, Error> {
    let failed = |e: ProgramError| error::failed(format!("attach {} to {interface}", program.display()), e);
    let mut classifier = SchedClassifier::from_pin(program).map_err(failed)?;
    if let Some((index, there)) = in_tcx(interface) {
        let own = classifier.info().map_err(failed)?;
        if own.id() != there.id() {
            let (new, old) = (classifier.fd().map_err(failed)?, there.fd().map_err(failed)?);
            bpf::replace_ingress(index, new.as_fd(), old.as_fd())
                .map_err(|e| Error::kernel(format!("replace the program of {interface}"), e))?;
        }
        return Ok(Before::Replaced);
    }
    if used == Use::Busy {
        // Where clsact is there already, nothing is lost.
        match attach_to_clsact(&mut classifier, interface) {
            Ok(before) => return Ok(before),
            Err(e) => log::debug!("{interface} has no clsact: {e}"),
        }
        let index =
            if_nametoindex(interface).map_err(|e| Error::kernel(format!("find interface {interface}"), e))?;
        match bpf::attach_ingress(index, classifier.fd().map_err(failed)?.as_fd()) {
            Ok(()) => return Ok(Before::None),
            Err(e) => log::debug!("attach to {interface} by tcx: {e}"),
        }
    }
    match tc::qdisc_add_clsact(interface) {
        Ok(()) => {}
        Err(TcError::NetlinkError(e)) if e.raw_os_error() == Some(Errno::EEXIST as i32) => {}
        Err(e) => return Err(Error::kernel(format!("add clsact to {interface}"), e)),
    }
    attach_to_clsact(&mut classifier, interface).map_err(failed)
}

/// Our program at this interface, if it was attached without a discipline, with the interface's number.
fn in_tcx(interface: &str) -> Option<(u32, ProgramInfo)> {
    const NAMES: [&str; 3] =
        [maps::programs::POD_INGRESS, maps::programs::UPLINK_INGRESS, maps::programs::UPLINK_L3];
    // Before Linux 6.6 the kernel does not know the question.
    let (_, all) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress).ok()?;
    let own = all.into_iter().find(|one| one.name_as_str().is_some_and(|name| NAMES.contains(&name)))?;
    Some((if_nametoindex(interface).ok()?, own))
}

fn attach_to_clsact(classifier: &mut SchedClassifier, interface: &str) -> Result<Before, ProgramError> {
    let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
    let attached =
        classifier.attach_with_options(interface, TcAttachType::Ingress, TcAttachOptions::Netlink(options));
    let (link, before) = match attached {
        Ok(link) => (link, Before::None),
        Err(e) if errno(&e) == Some(Errno::EEXIST) => {
            let there =
                SchedClassifierLink::attached(interface, TcAttachType::Ingress, PRIORITY, HANDLE, None)
                    .map_err(TcError::IoError)?;
            (classifier.attach_to_link(there)?, Before::Replaced)
        }
        Err(e) => return Err(e),
    };
    // Dropped, it would be detached: it is to stay when this process has ended.
    std::mem::forget(classifier.take_link(link)?);
    Ok(before)
}

/// The number that the kernel has for our program at an interface, which is given by its number; none if it has none, or
/// if there is no such interface. One question, a second one where a program is not below clsact.
///
/// # Errors
/// The kernel's own.
pub(super) fn program_at(socket: &RouteSocket, index: u32) -> Result<Option<u32>, Error> {
    let failed = |e| Error::kernel(format!("look for the BPF program at interface {index}"), e);
    match socket.program_at(index, PRIORITY, u32::from(NUMBER)) {
        Ok(None) => {}
        Ok(found) => return Ok(found),
        Err(e) if e.is_not_found() => return Ok(None),
        Err(e) => return Err(failed(e)),
    }
    match socket.link_by_index(index) {
        Ok(link) => Ok(in_tcx(&link.name).map(|(_, program)| program.id())),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

/// The numbers of the maps that a program works with, by its number; none if it is gone.
///
/// # Errors
/// The kernel's own.
pub(super) fn maps_of(program: u32) -> Result<Vec<u32>, Error> {
    // One may go while all are looked at.
    let found = loaded_programs().filter_map(Result::ok).find(|one| one.id() == program);
    let maps = found.map(|found| found.map_ids()).transpose();
    Ok(maps
        .map_err(|e| error::failed("look for the maps of a BPF program", e))?
        .flatten()
        .unwrap_or_default())
}

/// Takes our filter away from an interface; says whether there was one. The discipline stays: others may use
/// it, and it does nothing.
///
/// # Errors
/// The kernel's own.
pub(super) fn detach(interface: &str) -> Result<bool, Error> {
    let gone = [Errno::ENOENT, Errno::EINVAL, Errno::ENODEV];
    if let Some((index, program)) = in_tcx(interface) {
        let failed = |e: ProgramError| error::failed(format!("find the program of {interface}"), e);
        match bpf::detach_ingress(index, program.fd().map_err(failed)?.as_fd()) {
            Ok(()) => return Ok(true),
            Err(Errno::ENOENT) => {}
            Err(e) => return Err(Error::kernel(format!("detach from {interface}"), e)),
        }
    }
    match there(interface)?.detach() {
        Ok(()) => Ok(true),
        Err(e) if errno(&e).is_some_and(|errno| gone.contains(&errno)) => Ok(false),
        Err(e) => Err(Error::kernel(format!("detach from {interface}"), e)),
    }
}

/// Our filter, whether there is one or not.
fn there(interface: &str) -> Result<SchedClassifierLink, Error> {
    SchedClassifierLink::attached(interface, TcAttachType::Ingress, PRIORITY, HANDLE, None)
        .map_err(|e| Error::kernel(format!("find interface {interface}"), e))
}

fn errno(error: &ProgramError) -> Option<Errno> {
    let code = match error {
        ProgramError::TcError(TcError::NetlinkError(e)) | ProgramError::NetlinkError(e) => e.raw_os_error(),
        _ => None,
    };
    code.map(Errno::from_raw)
}
