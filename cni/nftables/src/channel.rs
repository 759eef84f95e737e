//! A netfilter netlink socket: one batch, one question, or one dump at a time.
#![allow(unsafe_code, reason = "netlink's own socket options are set through libmnl")]

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, BorrowedFd};

use mnl::mnl_sys;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::wire::{self, Header, Message};

/// How long an answer may take. The kernel answers within the system call that asks, so that this
/// only ends what should not happen.
const TIMEOUT_SECONDS: i64 = 10;
/// Room for one datagram: the kernel makes dumps of at most 32 KB (`netlink_dump`), and answers to
/// one question of a page or two (`NLMSG_GOODSIZE`).
const BUFFER_LEN: usize = 64 * 1024;
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
#[derive(Debug)]
struct Buffer(Vec<u64>);

impl Buffer {
    fn new() -> Self {
        // Fresh memory is zero already, so that only what answers fill is ever touched.
        Self(vec![0; BUFFER_LEN / size_of::<u64>()])
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.0.as_mut_ptr().cast::<u8>();
        // SAFETY: initialised words are initialised bytes, eight to a word, and bytes need no
        // alignment; the words are borrowed for as long as the bytes are.
        unsafe { std::slice::from_raw_parts_mut(start, self.0.len() * size_of::<u64>()) }
    }
}

/// The socket with its counter of messages.
pub(crate) struct Channel {
    socket: mnl::Socket,
    sequence: Cell<u32>,
    /// Where answers are read to. Borrowed while one is: what is asked meanwhile through the same
    /// socket would take that answer's rest for its own.
    buffer: RefCell<Buffer>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("fd", &self.socket.as_raw_fd()).finish_non_exhaustive()
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

impl Channel {
    /// Opens a socket in the thread's network namespace.
    pub(crate) fn open() -> Result<Self, Errno> {
        let socket = mnl::Socket::new(mnl::Bus::Netfilter).map_err(|error| errno(&error))?;
        let channel = Self { socket, sequence: Cell::new(1), buffer: RefCell::new(Buffer::new()) };
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
            // The first needs the capability in the machine's own user namespace, the second is cut
            // to the machine's limit: then sending fails, and says so.
            setsockopt(&self.fd(), sockopt::SndBufForce, &size)
                .or_else(|_| setsockopt(&self.fd(), sockopt::SndBuf, &size))?;
        }
        let mut buffer = self.buffer.try_borrow_mut().map_err(|_| Errno::EDEADLK)?;
        self.send(bytes)?;
        self.answers(buffer.bytes())
    }

    fn answers(&self, buffer: &mut [u8]) -> Result<Vec<Answer>, Errno> {
        let mut answers: Vec<Answer> = Vec::new();
        let mut overflowed = false;
        loop {
            let received = match recv(self.fd().as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
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
            for message in mnl::NlMessages::new(buffer.get(..received).unwrap_or_default()) {
                answers.extend(read_answer(message.map_err(|error| errno(&error))?));
            }
        }
    }

    /// Asks one question. `each` gets the family in `struct nfgenmsg`, and the body behind it, of
    /// each message of the answer.
    pub(crate) fn ask(&self, message: Message, each: impl FnMut(u8, &[u8])) -> Result<Dump, Errno> {
        let mut buffer = self.buffer.try_borrow_mut().map_err(|_| Errno::EDEADLK)?;
        let sequence = self.next_sequence();
        self.send(&message.finish(sequence))?;
        self.read_answer(sequence, buffer.bytes(), each)
    }

    fn read_answer(
        &self,
        sequence: u32,
        buffer: &mut [u8],
        mut each: impl FnMut(u8, &[u8]),
    ) -> Result<Dump, Errno> {
        let mut outcome = Dump::Whole;
        loop {
            let received = match recv(self.fd().as_raw_fd(), buffer, MsgFlags::MSG_TRUNC) {
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT),
                other => other?,
            };
            if received > BUFFER_LEN {
                return Err(Errno::EMSGSIZE);
            }
            for message in mnl::NlMessages::new(buffer.get(..received).unwrap_or_default()) {
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
