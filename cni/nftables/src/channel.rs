// SPDX-License-Identifier: GPL-2.0-or-later

//! A netfilter netlink socket: one batch, one request or one dump at a time.
#![allow(unsafe_code, reason = "netlink's own socket options are set through libmnl")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::rc::Rc;

use mnl::mnl_sys;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::deferred_close;
use crate::open_socket::OpenSocket;
use crate::wire::{self, Header, Message};

/// The time limit of a reply. The kernel replies within the system call that sends; this only ends what would
/// otherwise block for ever.
const TIMEOUT_SECONDS: i64 = 10;
/// Size of the buffer for one datagram: the kernel sends at most 32 KB of a dump (`netlink_dump`), and a page
/// or two for one object (`NLMSG_GOODSIZE`).
const BUFFER_LEN: usize = 64 * 1024;
/// The kernel's default size of the send buffer (`net.core.wmem_default`).
const DEFAULT_SEND_BUFFER: usize = 200 * 1024;
/// `NETLINK_CAP_ACK` in `linux/netlink.h`: errors do not repeat the request.
const NETLINK_CAP_ACK: i32 = 10;
/// `NETLINK_EXT_ACK`: errors come with the kernel's message.
const NETLINK_EXT_ACK: i32 = 11;

/// The kernel's acknowledgement of one message of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) sequence: u32,
    /// None for success.
    pub(crate) errno: Option<Errno>,
    /// The kernel's message, if any.
    pub(crate) message: Option<String>,
}

/// The end of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dump {
    /// Nothing changed during the dump.
    Whole,
    /// The dumped list changed during the dump.
    Interrupted,
}

/// Memory with the alignment of netlink headers. It stays empty: the kernel writes to its capacity. Zeroing it would
/// touch sixteen pages, of which most calls use one.
#[derive(Debug)]
struct Buffer(Vec<u64>);

impl Buffer {
    fn new() -> Self {
        Self(Vec::with_capacity(BUFFER_LEN / size_of::<u64>()))
    }

    /// Receives one datagram.
    ///
    /// # Errors
    /// EMSGSIZE for a datagram that does not fit, if the flags have `MSG_TRUNC`; else the kernel's error.
    fn receive(&mut self, socket: BorrowedFd<'_>, flags: MsgFlags) -> Result<&[u8], Errno> {
        let (start, room) = (self.0.as_mut_ptr(), self.0.capacity() * size_of::<u64>());
        // SAFETY: the vector owns `room` bytes from `start` on, and is borrowed exclusively.
        let received = unsafe { libc::recv(socket.as_raw_fd(), start.cast(), room, flags.bits()) };
        let length = usize::try_from(Errno::result(received)?).map_err(|_| Errno::EIO)?;
        if length > room {
            return Err(Errno::EMSGSIZE);
        }
        // SAFETY: the kernel has written these `length` bytes, of which there are at most `room`; the vector is
        // borrowed for as long as they are.
        Ok(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) })
    }
}

/// A socket with its counter of sequence numbers.
pub(crate) struct Channel {
    socket: Rc<OpenSocket>,
    sequence: Cell<u32>,
    /// False from a request on until its replies are read to their end.
    is_drained: Cell<bool>,
    /// Buffer for replies. Borrowed while one is read: another request on the same socket would mix up the
    /// replies.
    buffer: RefCell<Buffer>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("fd", &self.fd()).finish_non_exhaustive()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.is_drained.get() {
            deferred_close::retire(&self.socket);
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

impl Channel {
    /// Opens a socket in the thread's network namespace, or takes one that an earlier channel has left.
    pub(crate) fn open() -> Result<Self, Errno> {
        if let Some(socket) = deferred_close::idle() {
            return Ok(Self::over(socket));
        }
        let socket = Rc::new(OpenSocket::new().map_err(|error| errno(&error))?);
        deferred_close::keep(&socket);
        let channel = Self::over(socket);
        setsockopt(&channel.fd(), sockopt::ReceiveTimeout, &TimeVal::seconds(TIMEOUT_SECONDS))?;
        // Older kernels lack them; then errors come without messages.
        channel.netlink_option(NETLINK_CAP_ACK);
        channel.netlink_option(NETLINK_EXT_ACK);
        Ok(channel)
    }

    fn over(socket: Rc<OpenSocket>) -> Self {
        let buffer = RefCell::new(Buffer::new());
        Self { socket, sequence: Cell::new(1), is_drained: Cell::new(true), buffer }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn netlink_option(&self, option: i32) {
        const INT_LEN: u32 = 4;
        let mut on: i32 = 1;
        let value = std::ptr::from_mut(&mut on).cast();
        // SAFETY: the socket is alive; the value is an int, as both options require.
        let result =
            unsafe { mnl_sys::mnl_socket_setsockopt(self.socket.as_raw_socket(), option, value, INT_LEN) };
        if result < 0 {
            log::debug!("netlink socket option {option}: {}", Errno::last());
        }
    }

    /// The next sequence number.
    pub(crate) fn next_sequence(&self) -> u32 {
        let sequence = self.sequence.get();
        self.sequence.set(sequence.wrapping_add(1).max(1));
        sequence
    }

    /// Sends a batch, and returns the acknowledgements of its messages.
    ///
    /// The kernel processes a batch within `sendmsg`: all its acknowledgements are in the socket when that
    /// returns.
    pub(crate) fn batch(&self, bytes: &[u8]) -> Result<Vec<Ack>, Errno> {
        if bytes.len() > DEFAULT_SEND_BUFFER / 2 {
            // A batch must be one datagram; the kernel's accounting includes its overhead.
            let size = bytes.len() + bytes.len() / 4 + DEFAULT_SEND_BUFFER;
            // The first needs CAP_NET_ADMIN in the initial user namespace; the second is limited by
            // `net.core.wmem_max`, beyond which sending fails.
            setsockopt(&self.fd(), sockopt::SndBufForce, &size)
                .or_else(|_| setsockopt(&self.fd(), sockopt::SndBuf, &size))?;
        }
        let mut buffer = self.buffer.try_borrow_mut().map_err(|_| Errno::EDEADLK)?;
        deferred_close::committed();
        self.is_drained.set(false);
        self.send(bytes)?;
        let acks = self.read_acks(&mut buffer)?;
        self.is_drained.set(true);
        Ok(acks)
    }

    fn read_acks(&self, buffer: &mut Buffer) -> Result<Vec<Ack>, Errno> {
        let mut acks: Vec<Ack> = Vec::new();
        let mut overflowed = false;
        loop {
            let received = match buffer.receive(self.fd(), MsgFlags::MSG_DONTWAIT) {
                // Of too many errors the first are here; one is enough.
                Err(Errno::EAGAIN) if overflowed && acks.iter().all(|ack| ack.errno.is_none()) => {
                    return Err(Errno::ENOBUFS);
                }
                Err(Errno::EAGAIN) => return Ok(acks),
                Err(Errno::EINTR) => continue,
                Err(Errno::ENOBUFS) => {
                    overflowed = true;
                    continue;
                }
                other => other?,
            };
            for message in mnl::NlMessages::new(received) {
                acks.extend(decode_ack(message.map_err(|error| errno(&error))?));
            }
        }
    }

    /// Sends one request. Calls `each` with the family in `struct nfgenmsg` and the body of each message of
    /// the reply.
    pub(crate) fn request(&self, message: Message, each: impl FnMut(u8, &[u8])) -> Result<Dump, Errno> {
        let mut buffer = self.buffer.try_borrow_mut().map_err(|_| Errno::EDEADLK)?;
        let sequence = self.next_sequence();
        self.is_drained.set(false);
        self.send(&message.finish(sequence))?;
        self.read_reply(sequence, &mut buffer, each)
    }

    fn read_reply(
        &self,
        sequence: u32,
        buffer: &mut Buffer,
        mut each: impl FnMut(u8, &[u8]),
    ) -> Result<Dump, Errno> {
        let mut outcome = Dump::Whole;
        loop {
            let received = match buffer.receive(self.fd(), MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
                other => other?,
            };
            for message in mnl::NlMessages::new(received) {
                let message = message.map_err(|error| errno(&error))?;
                let Some(header) = Header::read(message) else { continue };
                if header.sequence != sequence {
                    continue;
                }
                if header.flags & wire::DUMP_INTERRUPTED != 0 {
                    outcome = Dump::Interrupted;
                }
                match header.kind {
                    wire::MSG_ERROR | wire::MSG_DONE => {
                        self.is_drained.set(true);
                        return error_number(message).map_or(Ok(outcome), Err);
                    }
                    _ => {
                        let family = message.get(wire::HEADER_LEN).copied().unwrap_or_default();
                        each(family, message.get(wire::NF_HEADER_LEN..).unwrap_or_default());
                    }
                }
            }
        }
    }

    /// Sends requests without `NLM_F_ACK` in one datagram: the kernel replies to each with one object, or with an
    /// error. Calls `each` with the family and the body of each object.
    ///
    /// # Errors
    /// The first error other than ENOENT.
    pub(crate) fn requests(
        &self,
        messages: impl IntoIterator<Item = Message>,
        mut each: impl FnMut(u8, &[u8]),
    ) -> Result<(), Errno> {
        let mut buffer = self.buffer.try_borrow_mut().map_err(|_| Errno::EDEADLK)?;
        let (mut bytes, mut open) = (Vec::new(), BTreeSet::new());
        for message in messages {
            let sequence = self.next_sequence();
            bytes.extend(message.finish(sequence));
            open.insert(sequence);
        }
        if open.is_empty() {
            return Ok(());
        }
        self.is_drained.set(false);
        self.send(&bytes)?;
        let mut failure = None;
        while !open.is_empty() {
            let received = match buffer.receive(self.fd(), MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
                other => other?,
            };
            for message in mnl::NlMessages::new(received) {
                let message = message.map_err(|error| errno(&error))?;
                let Some(header) = Header::read(message) else { continue };
                if !open.remove(&header.sequence) {
                    continue;
                }
                match (header.kind, error_number(message)) {
                    (wire::MSG_ERROR, None | Some(Errno::ENOENT)) => {}
                    (wire::MSG_ERROR, errno) => failure = failure.or(errno),
                    _ => {
                        let family = message.get(wire::HEADER_LEN).copied().unwrap_or_default();
                        each(family, message.get(wire::NF_HEADER_LEN..).unwrap_or_default());
                    }
                }
            }
        }
        self.is_drained.set(true);
        failure.map_or(Ok(()), Err)
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Errno> {
        let sent = self.socket.send(bytes).map_err(|error| errno(&error))?;
        if sent == bytes.len() { Ok(()) } else { Err(Errno::EMSGSIZE) }
    }
}

/// The error in an NLMSG_ERROR or NLMSG_DONE; none for success.
fn error_number(message: &[u8]) -> Option<Errno> {
    let field = message.get(wire::HEADER_LEN..wire::HEADER_LEN + 4)?;
    let number = i32::from_ne_bytes(field.try_into().ok()?);
    (number != 0).then(|| Errno::from_raw(number.wrapping_neg()))
}

/// Decodes an NLMSG_ERROR: `struct nlmsgerr`, then, if a flag is set, attributes (`enum nlmsgerr_attrs`).
fn decode_ack(message: &[u8]) -> Option<Ack> {
    const MESSAGE: u16 = 1;
    let header = Header::read(message)?;
    if header.kind != wire::MSG_ERROR {
        return None;
    }
    let text = || {
        // The error number and the header of the request precede the attributes; NETLINK_CAP_ACK leaves out
        // the rest of the request.
        let attributes = message.get(wire::HEADER_LEN + 4 + wire::HEADER_LEN..)?;
        wire::find(attributes, MESSAGE).map(wire::text)
    };
    let text = if header.flags & wire::ACK_TLVS != 0 { text() } else { None };
    Some(Ack { sequence: header.sequence, errno: error_number(message), message: text })
}
