// SPDX-License-Identifier: MIT OR Apache-2.0

//! Starts child processes safely, and tunes the memory of this process.
#![allow(
    unsafe_code,
    reason = "what a child does between fork and exec cannot be written without; nix does not wrap mallopt"
)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;

/// Tunes the allocator for a process that lives for some milliseconds: all threads share one heap, which grows in
/// large steps and never returns memory to the kernel. Has no effect with C libraries other than glibc.
pub fn spare_allocations() {
    #[cfg(target_env = "gnu")]
    {
        /// More than a plugin needs, but only pages that are used cost anything.
        const STEP: libc::c_int = 1 << 20;
        let options = [
            (libc::M_ARENA_MAX, 1),
            (libc::M_MMAP_THRESHOLD, STEP),
            (libc::M_TOP_PAD, STEP),
            (libc::M_TRIM_THRESHOLD, libc::c_int::MAX),
        ];
        for (option, value) in options {
            // SAFETY: takes and returns numbers; the allocator locks itself.
            unsafe { libc::mallopt(option, value) };
        }
    }
}

/// Kills the child when the thread that starts it ends, so that a plugin that is killed leaves no helper behind
/// (prctl(2), `PR_SET_PDEATHSIG`, which depends on the thread, not on the process).
pub fn kill_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only calls that are safe in a signal handler are made: prctl and
    // getppid, both bare system calls. Nothing is allocated: an error of the system is a number.
    unsafe {
        let parent = libc::getpid();
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended before prctl was called.
            if libc::getppid() == parent { Ok(()) } else { Err(Errno::ECANCELED.into()) }
        })
    }
}

/// Lets the child inherit only standard input, output and error. A runtime may have left other descriptors open in
/// the plugin, and may wait until every process that has them ends.
pub fn without_other_descriptors(command: &mut Command) -> &mut Command {
    const FIRST: libc::c_uint = 3;
    /// The usual limit of a process.
    const LAST: libc::c_int = 1024;
    // SAFETY: bare system calls with numbers, which are safe in a signal handler. Descriptors are closed on exec, not
    // before, because the standard library reports a failed exec through one of them.
    unsafe {
        command.pre_exec(|| {
            if libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0
            {
                // Kernels before Linux 5.11 lack the flag. Closing a number that is not open fails, which does no
                // harm.
                for number in FIRST.cast_signed()..LAST {
                    libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC);
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_no_descriptor_that_was_left_open() {
        use nix::fcntl::{FcntlArg, FdFlag, fcntl};
        let file = std::fs::File::open("/dev/null").unwrap();
        fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        let is_inherited = |command: &mut Command| {
            command.args(["-c", &format!("test -e /proc/self/fd/{number}")]).status().unwrap().success()
        };
        assert!(is_inherited(&mut Command::new("/bin/sh")));
        assert!(!is_inherited(without_other_descriptors(&mut Command::new("/bin/sh"))));
    }

    #[test]
    fn a_program_ends_with_the_thread_that_started_it() {
        let mut child = std::thread::spawn(|| {
            let mut command = Command::new("/bin/sleep");
            kill_with_parent(command.arg("60")).spawn().unwrap()
        })
        .join()
        .unwrap();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
        assert!(kill_with_parent(&mut Command::new("/bin/true")).status().unwrap().success());
    }
}
