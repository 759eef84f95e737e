//! A netfilter netlink socket: one batch, one question, or one dump at a time.
#![allow(unsafe_code, reason = "netlink's own socket options are set through libmnl")]

use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd};

use mnl::mnl_sys;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::wire::{self, Header, Message};

/// How long an answer may take. The kernel answers within the system call that asks, so that this
/// only ends what should not happen.
const TIMEOUT_SECONDS: i64 = 10;
/// Room for one datagram: the kernel makes dumps of at most 32 KB (`NLMSG_GOODSIZE`), an answer to
/// one question holds at most one attribute of 64 KB.
const BUFFER_LEN: usize = 128 * 1024;
/// The kernel's own default (`net.core.wmem_default`), below which nothing needs to be asked for.
const DEFAULT_SEND_BUFFER: usize = 200 * 1024;
/// `NETLINK_CAP_ACK` in `linux/netlink.h`: errors do not repeat the message they are about.
const NETLINK_CAP_ACK: i32 = 10;
/// `NETLINK_EXT_ACK`: errors come with the kernel's own words.
const NETLINK_EXT_ACK: i32 = 11;

/// What the kernel said to a message of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) sequence: u32,
    /// None for an acknowledgement.
    pub(crate) errno: Option<Errno>,
    /// The kernel's own words, if it had any.
    pub(crate) words: Option<String>,
}

/// How a dump ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dump {
    /// It is the state of one moment.
    Whole,
    /// Something changed meanwhile.
    Interrupted,
}

/// Memory aligned as netlink headers want it.
#[repr(C, align(8))]
struct Buffer([u8; BUFFER_LEN]);

/// The socket with its counter of messages.
pub(crate) struct Channel {
    socket: mnl::Socket,
    sequence: Cell<u32>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("fd", &self.socket.as_raw_fd()).finish_non_exhaustive()
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn buffer() -> Box<Buffer> {
    Box::new(Buffer([0; BUFFER_LEN]))
}

impl Channel {
    /// Opens a socket in the thread's network namespace.
    pub(crate) fn open() -> Result<Self, Errno> {
        let socket = mnl::Socket::new(mnl::Bus::Netfilter).map_err(|error| errno(&error))?;
        let channel = Self { socket, sequence: Cell::new(1) };
        setsockopt(&channel.fd(), sockopt::ReceiveTimeout, &TimeVal::seconds(TIMEOUT_SECONDS))?;
        // Older kernels lack one or the other; all that is lost is explanations.
        channel.netlink_option(NETLINK_CAP_ACK);
        channel.netlink_option(NETLINK_EXT_ACK);
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the socket, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }

    fn netlink_option(&self, option: i32) {
        const INT_LEN: u32 = 4;
        let mut on: i32 = 1;
        let value = std::ptr::from_mut(&mut on).cast();
        // SAFETY: the socket is alive; the value is an int, as both options want it.
        let result =
            unsafe { mnl_sys::mnl_socket_setsockopt(self.socket.as_raw_socket(), option, value, INT_LEN) };
        if result < 0 {
            log::debug!("netlink socket option {option}: {}", Errno::last());
        }
    }

    /// A fresh sequence number.
    pub(crate) fn next_sequence(&self) -> u32 {
        let sequence = self.sequence.get();
        self.sequence.set(sequence.wrapping_add(1).max(1));
        sequence
    }

    /// Sends a batch, and gathers what the kernel said to its messages.
    ///
    /// The kernel works a batch off inside `sendmsg`, so that all its answers wait in the socket
    /// when that returns.
    pub(crate) fn batch(&self, bytes: &[u8]) -> Result<Vec<Answer>, Errno> {
        if bytes.len() > DEFAULT_SEND_BUFFER / 2 {
            // A batch must be one datagram; the kernel keeps some room beside the data.
            let size = bytes.len() + bytes.len() / 4 + DEFAULT_SEND_BUFFER;
            setsockopt(&self.fd(), sockopt::SndBufForce, &size)?;
        }
        self.send(bytes)?;
        let mut buffer = buffer();
        let mut answers: Vec<Answer> = Vec::new();
        let mut overflowed = false;
        loop {
            let received = match recv(self.fd().as_raw_fd(), &mut buffer.0, MsgFlags::MSG_DONTWAIT) {
                // The first of too many errors are there; one of them is all that is needed.
                Err(Errno::EAGAIN) if overflowed && answers.iter().all(|answer| answer.errno.is_none()) => {
                    return Err(Errno::ENOBUFS);
                }
                Err(Errno::EAGAIN) => return Ok(answers),
                Err(Errno::EINTR) => continue,
                Err(Errno::ENOBUFS) => {
                    overflowed = true;
                    continue;
                }
                other => other?,
            };
            for message in mnl::NlMessages::new(buffer.0.get(..received).unwrap_or_default()) {
                answers.extend(read_answer(message.map_err(|error| errno(&error))?));
            }
        }
    }

    /// Asks one question. `each` gets the family in `struct nfgenmsg`, and the body behind it, of
    /// each message of the answer.
    pub(crate) fn ask(&self, message: Message, mut each: impl FnMut(u8, &[u8])) -> Result<Dump, Errno> {
        let sequence = self.next_sequence();
        self.send(&message.finish(sequence))?;
        let mut buffer = buffer();
        let mut outcome = Dump::Whole;
        loop {
            let received = match recv(self.fd().as_raw_fd(), &mut buffer.0, MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
                other => other?,
            };
            if received > BUFFER_LEN {
                return Err(Errno::EMSGSIZE);
            }
            for message in mnl::NlMessages::new(buffer.0.get(..received).unwrap_or_default()) {
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

    fn send(&self, bytes: &[u8]) -> Result<(), Errno> {
        let sent = self.socket.send(bytes).map_err(|error| errno(&error))?;
        if sent == bytes.len() { Ok(()) } else { Err(Errno::EMSGSIZE) }
    }
}

/// The error in an NLMSG_ERROR or NLMSG_DONE; none for success.
fn error_number(message: &[u8]) -> Option<Errno> {
    let place = message.get(wire::HEADER_LEN..wire::HEADER_LEN + 4)?;
    let number = i32::from_ne_bytes(place.try_into().ok()?);
    (number != 0).then(|| Errno::from_raw(number.wrapping_neg()))
}

/// Reads an NLMSG_ERROR: `struct nlmsgerr`, then, if a flag says so, attributes (`enum nlmsgerr_attrs`).
fn read_answer(message: &[u8]) -> Option<Answer> {
    const MESSAGE: u16 = 1;
    let header = Header::read(message)?;
    if header.kind != wire::MSG_ERROR {
        return None;
    }
    let words = || {
        // The error number and the header of the message that it is about; with NETLINK_CAP_ACK
        // nothing else lies before the attributes.
        let attributes = message.get(wire::HEADER_LEN + 4 + wire::HEADER_LEN..)?;
        wire::find(attributes, MESSAGE).map(wire::text)
    };
    let words = if header.flags & wire::ACK_TLVS != 0 { words() } else { None };
    Some(Answer { sequence: header.sequence, errno: error_number(message), words })
}
