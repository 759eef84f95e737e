// SPDX-License-Identifier: GPL-2.0-or-later

//! Errors of bpf(2) as text for people.

use std::io;

use aya::programs::ProgramError;
use aya::programs::tc::TcError;
use nix::errno::Errno;

use crate::{BpfError, Cause, Error};

pub(super) fn failed(
    operation: impl Into<String>,
    error: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::kernel(operation, bpf(&error))
}

/// The text of an error and its sources, with a hint.
pub(super) fn bpf(error: &(dyn std::error::Error + 'static)) -> BpfError {
    let number = os_error(error);
    BpfError(with_hint(whole(error), number), number)
}

/// True if this process may not use bpf(2) at all.
pub(super) fn is_forbidden(error: &Error) -> bool {
    let Error::Kernel { source: Cause::Bpf(BpfError(_, number)), .. } = error else { return false };
    matches!(number, Some(Errno::EPERM | Errno::EACCES | Errno::ENOSYS))
}

/// The kernel's error number of a request about a program, also where aya's error hides it as a source of itself.
pub(super) fn of_program(error: &ProgramError) -> Option<Errno> {
    let number = match error {
        ProgramError::NetlinkError(e) | ProgramError::TcError(TcError::NetlinkError(e)) => e.raw_os_error(),
        ProgramError::IOError(e) | ProgramError::TcError(TcError::IoError(e)) => e.raw_os_error(),
        _ => return os_error(error),
    };
    number.map(Errno::from_raw)
}

/// The kernel's error number at the end of a chain of errors.
fn os_error(error: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    let own = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    match (own, error.source()) {
        (Some(number), _) => Some(Errno::from_raw(number)),
        (None, Some(source)) => os_error(source),
        (None, None) => None,
    }
}

/// Adds a hint if the kernel forbids bpf(2) altogether, because the error number alone does not say so.
fn with_hint(text: String, error: Option<Errno>) -> String {
    let hint = match error {
        Some(Errno::EPERM | Errno::EACCES) => {
            "bpf(2) takes CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN before Linux 5.8; a seccomp filter or a security \
             module may forbid it all the same"
        }
        Some(Errno::ENOSYS) => "this kernel has no bpf(2), or a seccomp filter hides it",
        _ => return text,
    };
    format!("{text} ({hint})")
}

/// Joins the texts of an error and its sources, of which the last one is the kernel's.
fn whole(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_error_is_printed_once() {
        let wrapped = |number: Errno| {
            let io_error = io::Error::from_raw_os_error(number as i32);
            aya::maps::MapError::SyscallError(aya::sys::SyscallError { call: "bpf", io_error })
        };
        let refused = failed("read a map", wrapped(Errno::EPERM));
        assert!(is_forbidden(&refused));
        let refused = refused.to_string();
        assert!(refused.contains("Operation not permitted") && refused.contains("CAP_BPF"), "{refused}");
        assert_eq!(refused.matches("Operation not permitted").count(), 1);
        let full = failed("read a map", wrapped(Errno::E2BIG));
        assert!(!is_forbidden(&full));
        let full = full.to_string();
        assert!(full.contains("Argument list too long") && !full.contains("bpf(2)"), "{full}");
    }

    #[test]
    fn the_number_is_found_in_each_form_of_a_programs_error() {
        let io_error = || io::Error::from_raw_os_error(Errno::EMFILE as i32);
        for error in [
            ProgramError::IOError(io_error()),
            ProgramError::TcError(TcError::IoError(io_error())),
            ProgramError::SyscallError(aya::sys::SyscallError { call: "bpf", io_error: io_error() }),
        ] {
            assert_eq!(of_program(&error), Some(Errno::EMFILE), "{error:?}");
        }
        assert_eq!(of_program(&ProgramError::NotLoaded), None);
    }
}
