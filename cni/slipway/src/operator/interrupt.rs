// SPDX-License-Identifier: GPL-2.0-or-later

//! SIGINT and SIGTERM, for commands that clean up before they end.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Blocks the signals until it is dropped. Threads that start later inherit the mask. Programs do not, because the
/// standard library resets the mask for them.
#[derive(Debug)]
pub(super) struct Interrupt {
    signals: SignalFd,
    before: SigSet,
}

impl Interrupt {
    /// Blocks the signals.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn hold() -> io::Result<Self> {
        let set: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self { signals: SignalFd::with_flags(&set, flags)?, before })
    }

    /// True if one of the signals has arrived.
    pub(super) fn came(&self) -> bool {
        let mut polled = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut polled, PollTimeout::ZERO) {
                Err(Errno::EINTR) => {}
                other => return other.is_ok_and(|ready| ready > 0),
            }
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // The command has already ended because of a signal that arrived, so the signal is discarded.
        while self.signals.read_signal().is_ok_and(|signal| signal.is_some()) {}
        if let Err(errno) = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None) {
            log::warn!("restore the signal mask: {errno}");
        }
    }
}
