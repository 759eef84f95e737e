// SPDX-License-Identifier: MIT OR Apache-2.0

//! BPF programs at tcx ingress (Linux 6.6): without a queueing discipline.
//!
//! Adding the first ingress discipline to an interface makes the kernel deactivate its other disciplines for
//! a moment (`qdisc_graft`, net/sched/sch_api.c). Packets sent in that moment are lost.
#![allow(unsafe_code, reason = "bpf is a system call that nix does not wrap")]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

// enum bpf_cmd (`linux/bpf.h`)
const ATTACH: libc::c_long = 8;
const DETACH: libc::c_long = 9;
/// `BPF_TCX_INGRESS` (enum bpf_attach_type).
const TCX_INGRESS: u32 = 46;
/// `BPF_F_REPLACE`.
const REPLACE: u32 = 1 << 2;

/// The part of `union bpf_attr` that both commands use.
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

/// Attaches a program behind those that are attached already. It stays until it is detached or the interface
/// is deleted.
///
/// # Errors
/// EINVAL before Linux 6.6.
pub fn attach_ingress(interface: u32, program: BorrowedFd<'_>) -> Result<(), Errno> {
    call(ATTACH, &Attributes { interface, program: number(program), ..Attributes::default() })
}

/// Replaces the program `other`, atomically.
///
/// # Errors
/// ENOENT if `other` is not attached.
pub fn replace_ingress(interface: u32, program: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<(), Errno> {
    let (program, replaced) = (number(program), number(other));
    call(ATTACH, &Attributes { interface, program, replaced, flags: REPLACE, ..Attributes::default() })
}

/// Detaches a program.
///
/// # Errors
/// ENOENT if it is not attached.
pub fn detach_ingress(interface: u32, program: BorrowedFd<'_>) -> Result<(), Errno> {
    call(DETACH, &Attributes { interface, program: number(program), ..Attributes::default() })
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    // An open descriptor is not negative.
    fd.as_raw_fd().cast_unsigned()
}

fn call(command: libc::c_long, attributes: &Attributes) -> Result<(), Errno> {
    let attributes = Attributes { attach_type: TCX_INGRESS, ..*attributes };
    // SAFETY: the kernel reads `size_of::<Attributes>()` bytes from a value that lives through the call; both
    // commands write nothing there.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(&attributes), size_of::<Attributes>())
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
        assert!(attach_ingress(1, fd).is_err());
        assert!(replace_ingress(1, fd, fd).is_err());
        assert!(detach_ingress(1, fd).is_err());
    }

    #[test]
    fn the_kernel_reads_as_much_as_there_is() {
        assert_eq!((size_of::<Attributes>(), std::mem::offset_of!(Attributes, revision)), (32, 24));
    }
}
