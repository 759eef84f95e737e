// SPDX-License-Identifier: MIT OR Apache-2.0

//! BPF programs at tcx ingress (Linux 6.6).
#![allow(unsafe_code, reason = "bpf is a system call that nix does not wrap")]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

/// `BPF_PROG_DETACH` (enum bpf_cmd of `linux/bpf.h`).
const DETACH: libc::c_long = 9;
/// `BPF_TCX_INGRESS` (enum bpf_attach_type).
const TCX_INGRESS: u32 = 46;

/// The part of `union bpf_attr` for the command.
#[repr(C)]
#[derive(Debug, Default)]
struct Attributes {
    interface: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    replaced: u32,
    relative: u32,
    revision: u64,
}

/// Detaches a program.
///
/// # Errors
/// ENOENT if it is not attached.
pub fn detach_ingress(interface: u32, program: BorrowedFd<'_>) -> Result<(), Errno> {
    // An open descriptor is not negative.
    let program = program.as_raw_fd().cast_unsigned();
    let attributes = Attributes { interface, program, attach_type: TCX_INGRESS, ..Attributes::default() };
    // SAFETY: the kernel reads `size_of::<Attributes>()` bytes from a value that lives through the call, and writes
    // nothing there.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, DETACH, std::ptr::from_ref(&attributes), size_of::<Attributes>())
    };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_program_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let fd = std::os::fd::AsFd::as_fd(&file);
        // EPERM, no such command, or not a program: never a success.
        assert!(detach_ingress(1, fd).is_err());
    }

    #[test]
    fn the_kernel_reads_as_much_as_there_is() {
        assert_eq!((size_of::<Attributes>(), std::mem::offset_of!(Attributes, revision)), (32, 24));
    }
}
