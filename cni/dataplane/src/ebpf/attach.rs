// SPDX-License-Identifier: GPL-2.0-or-later

//! Attaches programs to interfaces: filters of tc at a `clsact` queueing discipline, or tcx.
//!
//! clsact exists since Linux 4.5, and a filter with a pinned program is attached in under a millisecond; tcx
//! takes twenty times as long and needs Linux 6.6. But an interface loses the packets that it sends while it
//! gets clsact. So a container in use gets its program by tcx, if the kernel has tcx and the interface has no
//! clsact yet.

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

/// Priority of the filter.
pub(super) const PRIORITY: u16 = 0x534c;
/// Handle of the filter at that priority: one for each interface.
pub(super) const HANDLE: TcHandle = TcHandle::new(0, NUMBER);
pub(super) const NUMBER: u16 = 1;

/// The state of an interface before an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// It had no program of ours.
    None,
    /// It had a program of ours, which was replaced in one step: no packet passed without one.
    Replaced,
}

/// The use of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Not in use yet, or packets may be lost.
    None,
    /// In use: no packet is lost if the kernel has tcx.
    Busy,
}

/// Attaches a pinned program to an interface's ingress.
///
/// # Errors
/// [`Error::Kernel`] if the interface is gone, or has another discipline in clsact's place.
pub(super) fn attach(interface: &str, program: &Path, used: Use) -> Result<Before, Error> {
    let failed = |e: ProgramError| error::failed(format!("attach {} to {interface}", program.display()), e);
    let mut classifier = pinned(program).map_err(failed)?;
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
        // With clsact in place, no packet is lost.
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
    add_clsact(interface)?;
    attach_to_clsact(&mut classifier, interface).map_err(failed)
}

/// Opens a pinned program. [`SchedClassifier::from_pin`] tries a dozen features of the kernel, by programs and maps
/// that it loads in each process.
pub(super) fn pinned(program: &Path) -> Result<SchedClassifier, ProgramError> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    SchedClassifier::from_program_info(ProgramInfo::from_pin(program)?, name.into())
}

/// Adds clsact to an interface, unless it has it.
///
/// # Errors
/// [`Error::Kernel`] if the interface is gone, or has another discipline in its place.
pub(super) fn add_clsact(interface: &str) -> Result<(), Error> {
    match tc::qdisc_add_clsact(interface) {
        Ok(()) => Ok(()),
        Err(TcError::NetlinkError(e)) if e.raw_os_error() == Some(Errno::EEXIST as i32) => Ok(()),
        Err(e) => Err(Error::kernel(format!("add clsact to {interface}"), e)),
    }
}

/// Our program that is attached to an interface by tcx, with the interface's index.
fn in_tcx(interface: &str) -> Option<(u32, ProgramInfo)> {
    const NAMES: [&str; 3] =
        [maps::programs::POD_INGRESS, maps::programs::UPLINK_INGRESS, maps::programs::UPLINK_L3];
    // Fails before Linux 6.6.
    let (_, all) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress).ok()?;
    let own = all.into_iter().find(|one| one.name_as_str().is_some_and(|name| NAMES.contains(&name)))?;
    Some((if_nametoindex(interface).ok()?, own))
}

fn attach_to_clsact(classifier: &mut SchedClassifier, interface: &str) -> Result<Before, ProgramError> {
    attach_filter(classifier, interface, TcAttachType::Ingress, PRIORITY)
}

/// Attaches a program as the filter of a priority at clsact.
///
/// # Errors
/// The kernel refuses: the interface has no clsact, for instance.
pub(super) fn attach_filter(
    classifier: &mut SchedClassifier,
    interface: &str,
    side: TcAttachType,
    priority: u16,
) -> Result<Before, ProgramError> {
    let options = NlOptions { priority, handle: HANDLE, classid: None };
    let attached = classifier.attach_with_options(interface, side, TcAttachOptions::Netlink(options));
    let (link, before) = match attached {
        Ok(link) => (link, Before::None),
        Err(e) if errno(&e) == Some(Errno::EEXIST) => {
            let there = SchedClassifierLink::attached(interface, side, priority, HANDLE, None)
                .map_err(TcError::IoError)?;
            (classifier.attach_to_link(there)?, Before::Replaced)
        }
        Err(e) => return Err(e),
    };
    // Dropping the link would detach the program, which has to outlive this process.
    std::mem::forget(classifier.take_link(link)?);
    Ok(before)
}

/// The ID of our program at an interface; none if there is no program or no interface. Costs one request, or
/// two if the program is not at clsact.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses.
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

/// The IDs of a program's maps; none if the program is gone.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses.
pub(super) fn maps_of(program: u32) -> Result<Vec<u32>, Error> {
    // Programs may be unloaded while they are listed.
    let found = loaded_programs().filter_map(Result::ok).find(|one| one.id() == program);
    let maps = found.map(|found| found.map_ids()).transpose();
    Ok(maps
        .map_err(|e| error::failed("look for the maps of a BPF program", e))?
        .flatten()
        .unwrap_or_default())
}

/// Detaches our program from an interface; true if there was one. clsact stays: other filters may use it.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses.
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

/// A handle of our filter, which may be missing.
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
