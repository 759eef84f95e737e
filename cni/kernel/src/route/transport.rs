// SPDX-License-Identifier: MIT OR Apache-2.0

//! One netlink request and its replies.
//!
//! The kernel replies within the call that sends, so the reply is read at once: two system calls for most requests.
//! Messages are bytes here ([`Message`]), and the callers decode replies attribute by attribute: an attribute that a
//! later kernel has changed then costs at most itself, not the whole list.
#![allow(
    unsafe_code,
    reason = "receives into memory that is not initialised, and sets netlink's socket options"
)]

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, send, socket,
};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REQUEST, NetlinkSerializable,
};
use rtnetlink::packet_route::RouteNetlinkMessage;

use super::error::{ReplyError, RouteError};
use super::wire;

/// The time limit of a reply once the request is sent. The kernel replies within the call that sends; this
/// only ends what would otherwise block for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// The kernel fills at most 32 KB per datagram of a list (`NLMSG_GOODSIZE`, `netlink_dump`), unless a single
/// message is larger.
const LARGEST: usize = 128 * 1024;

// linux/netlink.h
const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;

/// Attempts to read a list that changes while it is read.
const DUMP_ATTEMPTS: u32 = 5;

/// The flags of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Changes or deletes an object.
    Change,
    /// Creates an object; an error if it exists (`NLM_F_EXCL`).
    Create,
    /// Creates an object with other flags.
    CreateWith(u16),
    /// Reads one object: exactly one reply.
    Get,
    /// Reads one object of traffic control, which the kernel broadcasts and sends to the requester only with
    /// `NLM_F_ECHO`. There may be no reply, so that an acknowledgement marks the end.
    Echo,
}

/// A message without its netlink header: a request or a reply.
#[derive(Clone)]
pub(super) struct Message {
    /// The message's type.
    pub(super) kind: u16,
    /// The bytes after the header.
    pub(super) payload: Vec<u8>,
}

impl fmt::Debug for Message {
    /// Without the payload, which may have a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} of {} bytes", self.kind, self.payload.len())
    }
}

impl From<RouteNetlinkMessage> for Message {
    fn from(request: RouteNetlinkMessage) -> Self {
        let mut payload = vec![0; NetlinkSerializable::buffer_len(&request)];
        request.serialize(&mut payload);
        Self { kind: request.message_type(), payload }
    }
}

impl Message {
    /// The message with its header (`struct nlmsghdr`).
    fn with_header(&self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = HEADER + self.payload.len();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        // The kernel's address.
        bytes.extend([0; 4]);
        bytes.extend(&self.payload);
        bytes
    }
}

/// A message of a reply.
struct Reply<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Takes the first message of a datagram; none if the rest is no whole message.
    fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
        let half = |at: usize| Some(u16::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
        let length = usize::try_from(word(0)?).ok()?;
        let reply =
            Self { kind: half(4)?, flags: half(6)?, sequence: word(8)?, payload: rest.get(HEADER..length)? };
        *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(reply)
    }
}

/// Memory for one datagram. The kernel writes to its capacity, so that only the pages that replies fill are touched.
#[derive(Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    /// Receives a datagram, without waiting for one.
    fn receive(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        self.0.clear();
        self.0.reserve(LARGEST);
        let (start, room) = (self.0.as_mut_ptr(), self.0.capacity());
        // With MSG_TRUNC the length is that of the whole datagram.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the vector owns `room` bytes from `start` on, and is borrowed exclusively.
        let received = unsafe { libc::recv(socket.as_raw_fd(), start.cast(), room, flags) };
        let length = usize::try_from(Errno::result(received)?).map_err(|_| Errno::EIO)?;
        if length > room {
            return Err(Errno::EMSGSIZE);
        }
        // SAFETY: the kernel has written these `length` bytes, of which there are at most `room`.
        unsafe { self.0.set_len(length) };
        Ok(())
    }

    /// The datagram that was received last.
    fn filled(&self) -> &[u8] {
        &self.0
    }
}

/// A socket to routing or generic netlink in the namespace in which it was opened.
pub(super) struct Transport {
    socket: OwnedFd,
    /// The sequence number of the last request.
    sequence: Cell<u32>,
    /// Taken while a reply is read.
    buffer: RefCell<Buffer>,
    /// See [`PATIENCE`].
    patience: Duration,
    /// ` in /run/netns/x`, or empty for the caller's namespace: appended to the action of every error.
    place: String,
    /// Simulated delay of the kernel.
    #[cfg(test)]
    delay: Duration,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Decodes the payload of one reply. Breaks if the further ones do not matter.
type Decode<'a> = dyn FnMut(&[u8]) -> Result<ControlFlow<()>, ReplyError> + 'a;

/// The end of the replies to one request.
enum End {
    Complete,
    /// The list changed while it was read (`NLM_F_DUMP_INTR`).
    Interrupted,
}

impl Transport {
    pub(super) fn open(place: String) -> Result<Self, RouteError> {
        Self::open_protocol(SockProtocol::NetlinkRoute, "routing netlink", place)
    }

    /// Opens a socket of another netlink protocol, with its name for errors.
    pub(super) fn open_protocol(
        protocol: SockProtocol,
        name: &str,
        place: String,
    ) -> Result<Self, RouteError> {
        let open = || {
            let socket =
                socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)?;
            bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
            Ok(socket)
        };
        let socket = open()
            .map_err(|errno| RouteError::Socket { action: format!("open {name} socket{place}"), errno })?;
        // Kernels before 4.12 and 4.20 do not have these options. The first adds messages to errors; the last
        // lets the kernel filter lists, which the callers do again in any case.
        for (what, option) in [
            ("NETLINK_EXT_ACK", libc::NETLINK_EXT_ACK),
            ("NETLINK_CAP_ACK", libc::NETLINK_CAP_ACK),
            ("NETLINK_GET_STRICT_CHK", libc::NETLINK_GET_STRICT_CHK),
        ] {
            if let Err(errno) = switch_on(&socket, option) {
                log::debug!("netlink socket option {what}: {errno}");
            }
        }
        let (sequence, buffer) = (Cell::new(0), RefCell::default());
        Ok(Self {
            socket,
            sequence,
            buffer,
            patience: PATIENCE,
            place,
            #[cfg(test)]
            delay: Duration::ZERO,
        })
    }

    /// Sends a request that is only acknowledged.
    pub(super) fn run(
        &self,
        verb: Verb,
        message: impl Into<Message>,
        action: fmt::Arguments<'_>,
    ) -> Result<(), RouteError> {
        let done =
            self.exchange(&message.into(), verb_flags(verb), action, &mut |_| Ok(ControlFlow::Continue(())));
        match &done {
            Ok(_) => log::debug!("{action}{}", self.place),
            Err(error) => log::debug!("{error}"),
        }
        done.map(|_| ())
    }

    /// Reads one object.
    pub(super) fn get<T>(
        &self,
        message: impl Into<Message>,
        action: fmt::Arguments<'_>,
        decode: impl Fn(&[u8]) -> Result<T, ReplyError>,
    ) -> Result<T, RouteError> {
        let found = self.ask(Verb::Get, message, action, decode)?;
        found.ok_or_else(|| RouteError::Reply { action: self.action(action), source: ReplyError::Empty })
    }

    /// Reads one object by [`Verb::Get`] or [`Verb::Echo`]; none if the kernel does not send it.
    pub(super) fn ask<T>(
        &self,
        verb: Verb,
        message: impl Into<Message>,
        action: fmt::Arguments<'_>,
        decode: impl Fn(&[u8]) -> Result<T, ReplyError>,
    ) -> Result<Option<T>, RouteError> {
        let mut found = None;
        self.exchange(&message.into(), verb_flags(verb), action, &mut |payload| {
            found = Some(decode(payload)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Reads a list, without the objects for which `decode` returns none.
    pub(super) fn list<T>(
        &self,
        message: impl Into<Message>,
        action: fmt::Arguments<'_>,
        decode: impl Fn(&[u8]) -> Result<Option<T>, ReplyError>,
    ) -> Result<Vec<T>, RouteError> {
        let message = message.into();
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let end = self.exchange(&message, NLM_F_REQUEST | NLM_F_DUMP, action, &mut |payload| {
                found.extend(decode(payload)?);
                Ok(ControlFlow::Continue(()))
            })?;
            if matches!(end, End::Complete) {
                return Ok(found);
            }
        }
        Err(RouteError::Interrupted { action: self.action(action) })
    }

    /// Reads a list until `decode` breaks. Takes the socket: while a list is unread, the kernel refuses to begin
    /// another one on it (EBUSY, `__netlink_dump_start`).
    pub(super) fn list_until(
        self,
        message: impl Into<Message>,
        action: fmt::Arguments<'_>,
        mut decode: impl FnMut(&[u8]) -> Result<ControlFlow<()>, ReplyError>,
    ) -> Result<(), RouteError> {
        match self.exchange(&message.into(), NLM_F_REQUEST | NLM_F_DUMP, action, &mut decode)? {
            End::Complete => Ok(()),
            End::Interrupted => Err(RouteError::Interrupted { action: self.action(action) }),
        }
    }

    /// The error of a lookup that found nothing.
    pub(super) fn not_found(&self, action: fmt::Arguments<'_>, errno: Errno) -> RouteError {
        RouteError::Kernel { action: self.action(action), errno, hint: String::new() }
    }

    fn action(&self, action: fmt::Arguments<'_>) -> String {
        format!("{action}{}", self.place)
    }

    fn exchange(
        &self,
        message: &Message,
        flags: u16,
        action: fmt::Arguments<'_>,
        decode: &mut Decode<'_>,
    ) -> Result<End, RouteError> {
        let socket = |errno| RouteError::Socket { action: self.action(action), errno };
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        self.send(&message.with_header(flags, sequence)).map_err(socket)?;
        // From here: sending takes as long as the kernel works and waits for its locks.
        let until = Instant::now() + self.patience;
        let one = flags & (NLM_F_ACK | NLM_F_DUMP) == 0;
        let mut collector = Collector { sequence, wants_one: one, interrupted: false };
        let mut buffer = self.buffer.take();
        let end = loop {
            let datagram = match self.receive(&mut buffer, until) {
                Ok(datagram) => datagram,
                Err(errno) => break Err(socket(errno)),
            };
            match collector.datagram(datagram, decode) {
                Ok(None) => {}
                Ok(Some(end)) => break Ok(end),
                Err(Refusal::Kernel(errno, hint)) => {
                    break Err(RouteError::Kernel { action: self.action(action), errno, hint });
                }
                Err(Refusal::Reply(source)) => {
                    break Err(RouteError::Reply { action: self.action(action), source });
                }
            }
        };
        self.buffer.replace(buffer);
        end
    }

    fn send(&self, request: &[u8]) -> Result<(), Errno> {
        #[cfg(test)]
        std::thread::sleep(self.delay);
        loop {
            match send(self.socket.as_raw_fd(), request, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                Ok(length) if length != request.len() => return Err(Errno::EMSGSIZE),
                other => return other.map(drop),
            }
        }
    }

    /// Receives a datagram, and waits for it if there is none.
    ///
    /// # Errors
    /// EAGAIN if the time is over, ENOBUFS if the kernel has dropped a reply.
    fn receive<'a>(&self, buffer: &'a mut Buffer, until: Instant) -> Result<&'a [u8], Errno> {
        loop {
            match buffer.receive(&self.socket) {
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Errno::EAGAIN);
                    }
                    readable(&self.socket, left)?;
                }
                Err(errno) => return Err(errno),
                Ok(()) => return Ok(buffer.filled()),
            }
        }
    }
}

/// Switches a socket option of netlink on.
fn switch_on(socket: &OwnedFd, option: libc::c_int) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the descriptor is open; the value is an int that lives through the call, and its length is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            std::ptr::from_ref(&on).cast(),
            length,
        )
    };
    Errno::result(result).map(drop)
}

/// Waits until the socket has something to read, for `left` at most.
fn readable(socket: &OwnedFd, left: Duration) -> Result<(), Errno> {
    let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], left) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// An unsuccessful reply.
enum Refusal {
    Kernel(Errno, String),
    Reply(ReplyError),
}

struct Collector {
    /// The request's sequence number. Messages with another one are rests of earlier replies.
    sequence: u32,
    /// True if the first reply is the only one.
    wants_one: bool,
    interrupted: bool,
}

impl Collector {
    fn datagram(&mut self, mut rest: &[u8], decode: &mut Decode<'_>) -> Result<Option<End>, Refusal> {
        while let Some(reply) = Reply::take(&mut rest) {
            if reply.sequence != self.sequence {
                continue;
            }
            if let Some(end) = self.message(&reply, decode)? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    fn message(&mut self, reply: &Reply<'_>, decode: &mut Decode<'_>) -> Result<Option<End>, Refusal> {
        let Reply { kind, flags, payload, .. } = *reply;
        self.interrupted |= flags & wire::NLM_F_DUMP_INTR != 0;
        // NLMSG_DONE of some lists has no code.
        let code = || payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        match kind {
            NLMSG_NOOP => Ok(None),
            NLMSG_OVERRUN => Err(Refusal::Reply(ReplyError::Overrun)),
            NLMSG_ERROR | NLMSG_DONE => match code() {
                0 if self.interrupted => Ok(Some(End::Interrupted)),
                0 => Ok(Some(End::Complete)),
                code if kind == NLMSG_ERROR => {
                    let request = payload.get(size_of::<i32>()..).unwrap_or_default();
                    Err(refused(code, &wire::hint(flags, request).unwrap_or_default()))
                }
                code => Err(refused(code, "")),
            },
            _ => {
                let flow = decode(payload).map_err(Refusal::Reply)?;
                Ok((self.wants_one || flow.is_break()).then_some(End::Complete))
            }
        }
    }
}

fn refused(code: i32, hint: &str) -> Refusal {
    Refusal::Kernel(Errno::from_raw(code.wrapping_neg()), hint.to_owned())
}

fn verb_flags(verb: Verb) -> u16 {
    match verb {
        Verb::Change => NLM_F_REQUEST | NLM_F_ACK,
        Verb::Create => NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
        Verb::CreateWith(flags) => NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | flags,
        Verb::Get => NLM_F_REQUEST,
        Verb::Echo => NLM_F_REQUEST | NLM_F_ECHO | NLM_F_ACK,
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};

    use super::*;

    fn links(transport: &Transport) -> Result<Vec<()>, RouteError> {
        let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
        transport.list(message, format_args!("list links"), |_| Ok(Some(())))
    }

    /// A busy machine: the kernel has the reply ready when the call that sends returns, which takes longer
    /// than the limit for replies.
    #[test]
    fn the_time_that_sending_takes_does_not_count() {
        let mut transport = Transport::open(String::new()).unwrap();
        transport.patience = Duration::from_millis(200);
        transport.delay = Duration::from_millis(500);
        assert!(!links(&transport).unwrap().is_empty());
    }

    /// The rest of a list that was not read to its end.
    #[test]
    fn messages_of_an_earlier_request_are_no_replies() {
        let transport = Transport::open(String::new()).unwrap();
        let list = Message::from(RouteNetlinkMessage::GetLink(LinkMessage::default()));
        transport.send(&list.with_header(NLM_F_REQUEST | NLM_F_DUMP, 77)).unwrap();
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName("lo".to_owned()));
        let read = transport.get(RouteNetlinkMessage::GetLink(message), format_args!("read lo"), |payload| {
            Ok(wire::u32_of(payload.get(4..8).unwrap_or_default()))
        });
        assert_eq!(read.unwrap(), 1, "the loopback's index");
        assert!(!links(&transport).unwrap().is_empty());
    }

    #[test]
    fn a_refusal_has_the_kernels_message() {
        let transport = Transport::open(String::new()).unwrap();
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::Mtu(1));
        let changed = RouteNetlinkMessage::SetLink(message);
        let error = transport.run(Verb::Change, changed, format_args!("change nothing")).unwrap_err();
        assert!(matches!(error, RouteError::Kernel { errno: Errno::EINVAL | Errno::ENODEV, .. }), "{error}");
    }

    #[test]
    fn a_cut_message_is_none() {
        let mut whole = Message { kind: 9, payload: vec![1, 2, 3] }.with_header(5, 7);
        let reply = Reply::take(&mut whole.as_slice()).unwrap();
        assert_eq!((reply.kind, reply.flags, reply.sequence, reply.payload), (9, 5, 7, &[1, 2, 3][..]));
        whole.pop();
        assert!(Reply::take(&mut whole.as_slice()).is_none());
        assert!(Reply::take(&mut [0; 15].as_slice()).is_none());
        // A length below that of the header would loop for ever.
        assert!(Reply::take(&mut [0; 16].as_slice()).is_none());
    }

    /// No request was sent, so no reply comes.
    #[test]
    fn a_missing_reply_times_out() {
        let mut transport = Transport::open(String::new()).unwrap();
        transport.patience = Duration::from_millis(50);
        let begin = Instant::now();
        let received = transport.receive(&mut Buffer::default(), begin + transport.patience).map(<[u8]>::len);
        assert_eq!(received, Err(Errno::EAGAIN));
        assert!(begin.elapsed() >= transport.patience);
    }
}
