//! Programs on interfaces: filters of tc below a `clsact` queueing discipline.
//!
//! clsact is there in every kernel from 4.5 on and is attached in under a millisecond by a program that is
//! pinned already; a tcx link takes twenty times as long and needs Linux 6.6.

use std::path::Path;

use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle};
use aya::programs::{Link as _, ProgramError, SchedClassifier, TcAttachType, tc};
use nix::errno::Errno;

use super::said;
use crate::Error;

/// Priority of the filter: others may come before it and after it.
const PRIORITY: u16 = 0x534c;
/// Handle of the filter at that priority: one of ours for each interface.
const HANDLE: TcHandle = TcHandle::new(0, 1);

/// Whether an interface had our filter before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// It had none.
    None,
    /// It had one, which was replaced in one step: no packet has seen none.
    Replaced,
}

/// Puts a pinned program on the way of what comes in at an interface.
///
/// # Errors
/// The interface is gone, or has another discipline in clsact's place.
pub(super) fn attach(interface: &str, program: &Path) -> Result<Before, Error> {
    let failed = |e: ProgramError| said::failed(format!("attach {} to {interface}", program.display()), e);
    let mut classifier = SchedClassifier::from_pin(program).map_err(failed)?;
    match tc::qdisc_add_clsact(interface) {
        Ok(()) => {}
        Err(TcError::NetlinkError(e)) if e.raw_os_error() == Some(Errno::EEXIST as i32) => {}
        Err(e) => return Err(Error::kernel(format!("add clsact to {interface}"), e)),
    }
    let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
    let attached =
        classifier.attach_with_options(interface, TcAttachType::Ingress, TcAttachOptions::Netlink(options));
    let (link, before) = match attached {
        Ok(link) => (link, Before::None),
        Err(e) if errno(&e) == Some(Errno::EEXIST) => {
            let there = there(interface)?;
            (classifier.attach_to_link(there).map_err(failed)?, Before::Replaced)
        }
        Err(e) => return Err(failed(e)),
    };
    // Dropped, it would be detached: it is to stay when this process has ended.
    std::mem::forget(classifier.take_link(link).map_err(failed)?);
    Ok(before)
}

/// Takes our filter away from an interface; says whether there was one. The discipline stays: others may use
/// it, and it does nothing.
///
/// # Errors
/// The kernel's own.
pub(super) fn detach(interface: &str) -> Result<bool, Error> {
    let gone = [Errno::ENOENT, Errno::EINVAL, Errno::ENODEV];
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
