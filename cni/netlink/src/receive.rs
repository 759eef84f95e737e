// SPDX-License-Identifier: MIT OR Apache-2.0

//! Receiving one datagram of the kernel's, and waiting for one.

use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, NetlinkAddr, recvmsg};

/// The kernel fills at most 32 KB per datagram of a dump (`netlink_dump`), unless a single message is larger: with an
/// attribute of the largest size, 64 KB and a few pages.
const LARGEST: usize = 128 * 1024;

/// Memory for one datagram. An allocation of this size comes zeroed from the kernel, page by page as they are written
/// to: most replies touch one.
#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<u8>);

/// A received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Datagram {
    /// Its length.
    Whole(usize),
    /// It is longer than the buffer.
    Cut,
}

impl Buffer {
    /// Receives a datagram, without waiting for one.
    ///
    /// # Errors
    /// EAGAIN if there is none; ENOBUFS if the kernel has dropped one.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<Datagram, Errno> {
        if self.0.is_empty() {
            self.0 = vec![0; LARGEST];
        }
        loop {
            let mut parts = [IoSliceMut::new(&mut self.0)];
            match recvmsg::<NetlinkAddr>(socket.as_raw_fd(), &mut parts, None, MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
                // Other processes can send to the socket, too. The kernel's port is 0.
                Ok(got) if got.address.is_some_and(|from| from.pid() != 0) => {}
                Ok(got) if got.flags.contains(MsgFlags::MSG_TRUNC) => return Ok(Datagram::Cut),
                Ok(got) => return Ok(Datagram::Whole(got.bytes)),
            }
        }
    }

    /// A part of the last datagram.
    pub(crate) fn part(&self, range: Range<usize>) -> &[u8] {
        self.0.get(range).unwrap_or_default()
    }
}

/// Waits until the socket has something to read, for `left` at most; a signal may end the wait earlier.
pub(crate) fn wait(socket: BorrowedFd<'_>, left: Duration) -> Result<(), Errno> {
    // poll(2) counts in milliseconds: a rest of less must not become a loop without a pause.
    let left = PollTimeout::try_from(left.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], left) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
