// SPDX-License-Identifier: MIT OR Apache-2.0

//! Child processes.
#![allow(unsafe_code, reason = "what a child does between fork and exec cannot be written without")]

use std::io;
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

#[cfg(test)]
mod tests {
    use super::*;

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
