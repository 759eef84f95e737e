// SPDX-License-Identifier: GPL-2.0-or-later

//! A socket that receives a group of nf_tables' notifications, message by message.

use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvmsg, setsockopt,
    socket, sockopt,
};

use crate::error::Error;
use crate::wire;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message's type.
const SUBSYSTEM: u16 = 10;
/// Size of the socket's buffer in bytes, of which the kernel counts each datagram with its overhead. A proxy
/// that writes the rules of a cluster's services sends megabytes at once.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// Size of the buffer for one datagram: several messages of up to a page together (`NLMSG_GOODSIZE`,
/// `nft_commit_notify`), or a larger one alone.
const DATAGRAM: usize = 64 * 1024;

/// The memory is bounded: a buffer for one datagram here, the socket's buffer in the kernel.
#[derive(Debug)]
pub(crate) struct Subscription {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    /// The bytes of the last datagram that are not read yet.
    unread: Range<usize>,
}

/// The next thing that a socket has.
pub(crate) enum Incoming<'a> {
    /// A message of nf_tables: its type without the subsystem, the address family, its attributes.
    Message { kind: u16, family: u8, body: &'a [u8] },
    /// The kernel has dropped messages, or sent one that is longer than the buffer. All that the socket had
    /// was discarded.
    Lost,
}

/// A received datagram.
enum Received {
    /// Its length; 0 if it is not the kernel's.
    Whole(usize),
    /// It is longer than the buffer.
    Cut,
}

impl Subscription {
    /// Subscribes to a group, given as a bit of `nl_groups`, in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no netfilter netlink; [`Error::Open`] without `CAP_NET_ADMIN`
    /// in the namespace.
    pub(crate) fn open(group: u32) -> Result<Self, Error> {
        let open = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let protocol = SockProtocol::NetlinkNetFilter;
            let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
            enlarge(&socket, RECEIVE_BUFFER)?;
            bind(socket.as_raw_fd(), &NetlinkAddr::new(0, group))?;
            Ok(socket)
        };
        let socket = open().map_err(|errno| match errno {
            Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => Error::Unsupported {
                feature: "netfilter netlink".to_owned(),
                op: "subscribe to nf_tables".to_owned(),
            },
            errno => Error::Open { errno },
        })?;
        Ok(Self { socket, buffer: vec![0; DATAGRAM].into(), unread: 0..0 })
    }

    /// Sets the size of the socket's buffer in bytes. Without `CAP_NET_ADMIN` in the initial user namespace,
    /// `net.core.rmem_max` is the limit.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel refuses.
    pub(crate) fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        enlarge(&self.socket, bytes).map_err(|errno| failed("set receive buffer", errno))
    }

    /// The next message; none if there is none now. Does not block.
    ///
    /// # Errors
    /// [`Error::Io`] if the socket fails.
    pub(crate) fn read(&mut self) -> Result<Option<Incoming<'_>>, Error> {
        loop {
            if let Some((kind, message)) = self.next_in_datagram() {
                let message = self.buffer.get(message).unwrap_or_default();
                return Ok(Some(Incoming::Message {
                    kind,
                    family: message.get(wire::HEADER_LEN).copied().unwrap_or_default(),
                    body: message.get(wire::NF_HEADER_LEN..).unwrap_or_default(),
                }));
            }
            match self.receive() {
                Ok(Received::Whole(length)) => self.unread = 0..length,
                Ok(Received::Cut) | Err(Errno::ENOBUFS) => {
                    self.drain().map_err(|errno| failed("read notifications", errno))?;
                    return Ok(Some(Incoming::Lost));
                }
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed("read notifications", errno)),
            }
        }
    }

    /// Waits until there is something to read. Returns false if there is nothing at `end`.
    ///
    /// # Errors
    /// [`Error::Io`] if the socket fails.
    pub(crate) fn wait(&self, end: Instant) -> Result<bool, Error> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        // poll(2) counts in milliseconds: a rest of less must not become a loop without a pause.
        let left = PollTimeout::try_from(left.max(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], left) {
            Ok(_) | Err(Errno::EINTR) => Ok(true),
            Err(errno) => Err(failed("wait for notifications", errno)),
        }
    }

    /// The next message of nf_tables in the datagram, as its type and its place in the buffer.
    fn next_in_datagram(&mut self) -> Option<(u16, Range<usize>)> {
        while let Some((length, message)) = first_message(self.buffer.get(self.unread.clone())?) {
            let place = self.unread.start..self.unread.start + message.len();
            let header = wire::Header::read(message)?;
            self.unread.start += length;
            if header.kind >> 8 == SUBSYSTEM {
                return Some((header.kind & 0xff, place));
            }
        }
        self.unread = 0..0;
        None
    }

    /// Discards what the socket has. After an overflow the kernel adds nothing, and reports no second one,
    /// until the queue is empty (`NETLINK_S_CONGESTED`): a caller that read the ruleset before that would
    /// miss later changes.
    fn drain(&mut self) -> Result<(), Errno> {
        loop {
            match self.receive() {
                Ok(_) | Err(Errno::ENOBUFS | Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn receive(&mut self) -> Result<Received, Errno> {
        let fd = self.socket.as_raw_fd();
        let mut parts = [IoSliceMut::new(&mut self.buffer)];
        let got = recvmsg::<NetlinkAddr>(fd, &mut parts, None, MsgFlags::MSG_DONTWAIT)?;
        if got.flags.contains(MsgFlags::MSG_TRUNC) {
            return Ok(Received::Cut);
        }
        // Privileged processes can send to the group, too. The kernel's port is 0.
        let is_kernel = got.address.is_some_and(|from| from.pid() == 0);
        Ok(Received::Whole(if is_kernel { got.bytes } else { 0 }))
    }
}

impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The first message and its length with padding; none at the end and before a malformed one.
pub(crate) fn first_message(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let message = bytes.get(..length).filter(|message| message.len() >= wire::HEADER_LEN)?;
    Some((length.next_multiple_of(4).min(bytes.len()), message))
}

fn failed(operation: &str, errno: Errno) -> Error {
    Error::Io { operation: format!("nf_tables: {operation}"), errno }
}

fn enlarge(socket: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    setsockopt(socket, sockopt::RcvBufForce, &bytes).or_else(|_| setsockopt(socket, sockopt::RcvBuf, &bytes))
}
