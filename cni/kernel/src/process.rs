// SPDX-License-Identifier: MIT OR Apache-2.0

//! Child processes.
#![allow(
    unsafe_code,
    reason = "what a child does between fork and exec cannot be written without; nix does not wrap pidfd_open"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;

/// Kills the child when the thread that starts it ends (prctl(2), `PR_SET_PDEATHSIG`: the thread, not the
/// process), so that a killed plugin leaves no orphaned helper.
pub fn kill_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only calls that are safe in a signal handler are made: prctl and
    // getppid, both bare system calls. Nothing is allocated: an error of the system is a number.
    unsafe {
        let parent = libc::getpid();
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended before the call.
            if libc::getppid() == parent { Ok(()) } else { Err(Errno::ECANCELED.into()) }
        })
    }
}

/// A descriptor that becomes readable when the process ends (pidfd_open(2), Linux 5.3). The process must be an
/// unreaped child of this one: another process could have got the number.
///
/// # Errors
/// ENOSYS before Linux 5.3; EPERM if a seccomp filter refuses the call; ESRCH if there is no such process.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_ulong::from(pid), 0) };
    match RawFd::try_from(fd) {
        // SAFETY: the kernel has just made the descriptor, and nothing else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pidfd_is_readable_after_the_end_of_the_process() {
        use nix::poll::{PollFd, PollFlags, poll};
        use std::os::fd::AsFd as _;
        let mut child = Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let fd = pidfd(child.id()).unwrap();
        let ready = |milliseconds: u16| {
            poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], milliseconds).unwrap() == 1
        };
        assert!(!ready(0));
        child.kill().unwrap();
        assert!(ready(10_000));
        child.wait().unwrap();
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
