// SPDX-License-Identifier: MIT OR Apache-2.0

//! A socket that receives what the kernel sends to multicast groups.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, setsockopt, socket, sockopt,
};

use crate::message::{Header, first};
use crate::receive::{Buffer, Datagram, wait};

/// A subscription to multicast groups in the network namespace in which it was opened.
///
/// Subscribe first, and then read the objects, so that no change is missed. Memory use is bounded: in this process, a
/// buffer for one datagram; in the kernel, the socket's buffer.
#[derive(Debug)]
pub struct Subscription {
    socket: OwnedFd,
    buffer: Buffer,
    /// The part of the last datagram that has not been read yet.
    unread: Range<usize>,
}

/// What a subscription returns next.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// A message: its header and its payload.
    Message(Header, &'a [u8]),
    /// The kernel has dropped messages, because the reader was too slow for the socket's buffer, or has sent a
    /// message that is longer than the buffer. Everything in the socket was discarded. Read the objects again. Later
    /// messages are about later changes.
    Lost,
}

impl Subscription {
    /// Subscribes to groups, given as the bits of `nl_groups`, in which bit 0 is group 1. Each datagram, including
    /// the kernel's overhead, counts towards the `receive_buffer` bytes.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(protocol: SockProtocol, groups: u32, receive_buffer: usize) -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        let subscription = Self { socket, buffer: Buffer::default(), unread: 0..0 };
        subscription.set_receive_buffer(receive_buffer)?;
        bind(subscription.socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(subscription)
    }

    /// Sets the size of the socket's buffer in bytes. Without `CAP_NET_ADMIN` in the initial user namespace,
    /// `net.core.rmem_max` is the limit.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), Errno> {
        setsockopt(&self.socket, sockopt::RcvBufForce, &bytes)
            .or_else(|_| setsockopt(&self.socket, sockopt::RcvBuf, &bytes))
    }

    /// Returns the next message, or none if there is none yet. Does not block.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(&mut self) -> Result<Option<Incoming<'_>>, Errno> {
        if self.unread.is_empty() {
            match self.buffer.receive(self.socket.as_fd()) {
                Ok(Datagram::Whole(length)) => self.unread = 0..length,
                Ok(Datagram::Cut) | Err(Errno::ENOBUFS) => {
                    self.drain()?;
                    return Ok(Some(Incoming::Lost));
                }
                Err(Errno::EAGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        let unread = self.unread.clone();
        let Some((header, payload, length)) = first(self.buffer.part(unread.clone())) else {
            // The kernel sends only whole messages.
            self.unread = 0..0;
            return Ok(Some(Incoming::Lost));
        };
        self.unread.start += length;
        Ok(Some(Incoming::Message(header, payload)))
    }

    /// Waits until there is something to read. If the time has already passed, returns false without waiting.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&self, until: Instant) -> Result<bool, Errno> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { Ok(false) } else { wait(self.socket.as_fd(), left).map(|()| true) }
    }

    /// Discards everything in the socket. After an overflow, the kernel adds nothing and reports no second overflow
    /// until the queue is empty (`NETLINK_S_CONGESTED`), so a caller that read the objects before that would miss
    /// later changes.
    fn drain(&mut self) -> Result<(), Errno> {
        loop {
            match self.buffer.receive(self.socket.as_fd()) {
                Ok(_) | Err(Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Lets callers wait for messages. After an overflow, the socket has an error (`POLLERR`), which
/// [`Subscription::read`] clears.
impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// RTNLGRP_LINK.
    const LINKS: u32 = 1;

    #[test]
    fn without_changes_nothing_is_read() {
        let subscription = Subscription::open(SockProtocol::NetlinkGeneric, LINKS, 64 * 1024);
        let mut subscription = subscription.unwrap();
        assert_eq!(subscription.read(), Ok(None));
        assert_eq!(subscription.wait(Instant::now()), Ok(false));
        assert_eq!(subscription.wait(Instant::now() + Duration::from_millis(5)), Ok(true));
        assert_eq!(subscription.read(), Ok(None));
    }
}
