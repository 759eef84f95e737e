// SPDX-License-Identifier: MIT OR Apache-2.0

//! Receives one datagram from the kernel, or waits for one.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::buffer::spare_capacity;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, recvfrom};

/// The kernel fills at most 32 KB per datagram of a dump (`netlink_dump`), unless a single message is larger. A
/// message with an attribute of the largest size has 64 KB and a few pages.
const LARGEST: usize = 128 * 1024;

/// Memory for one datagram. The kernel writes into its spare capacity, which is not zeroed: that would touch 32
/// pages, of which most replies fill only one, and take a tenth of the time of a plugin, which lives for
/// milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<u8>);

/// A received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Datagram {
    /// The datagram's length.
    Whole(usize),
    /// The datagram was longer than the buffer.
    Cut,
}

impl Buffer {
    /// Receives a datagram, without waiting for one.
    ///
    /// # Errors
    /// EAGAIN if there is none; ENOBUFS if the kernel has dropped one.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<Datagram, Errno> {
        loop {
            self.0.clear();
            self.0.reserve(LARGEST);
            let (flags, room) = (RecvFlags::DONTWAIT | RecvFlags::TRUNC, self.0.capacity());
            // With MSG_TRUNC the length is that of the whole datagram.
            let (_, length, from) = match recvfrom(socket, spare_capacity(&mut self.0), flags) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(Errno::from_raw(errno.raw_os_error())),
                Ok(received) => received,
            };
            // Other processes can also send to the socket. The kernel's port number is 0.
            let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
            if from.is_some_and(|from| from.pid() != 0) {
                continue;
            }
            return Ok(if length > room { Datagram::Cut } else { Datagram::Whole(length) });
        }
    }

    /// A part of the last datagram.
    pub(crate) fn part(&self, range: Range<usize>) -> &[u8] {
        self.0.get(range).unwrap_or_default()
    }
}

/// Waits until the socket has something to read, but not longer than `left`. A signal may end the wait earlier.
pub(crate) fn wait(socket: BorrowedFd<'_>, left: Duration) -> Result<(), Errno> {
    // poll(2) counts milliseconds, so a rest of less than one must not turn the loop into a busy loop.
    let left = PollTimeout::try_from(left.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], left) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
