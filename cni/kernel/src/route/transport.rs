// SPDX-License-Identifier: MIT OR Apache-2.0

//! One netlink request and its replies.
//!
//! rtnetlink's connection does the protocol, on a socket of ours ([`Patient`]) that [`Transport::wait`] polls
//! in place. The kernel replies within the call that sends, so no event loop is needed. Messages are bytes
//! here ([`Message`]), and the callers decode replies attribute by attribute: an attribute that a later kernel
//! has changed then costs at most itself, not the whole list.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BufMut;
use futures_util::Stream;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rtnetlink::packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::proto::{Connection, ConnectionHandle, new_connection_with_socket};
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket, Socket, SocketAddr};

use super::error::{ReplyError, RouteError};
use super::wire;

/// The time limit of a reply once the request is sent. The kernel replies within the call that sends; this
/// only ends what would otherwise block for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// The kernel fills at most 32 KB per datagram of a list (`NLMSG_GOODSIZE`, `netlink_dump`), unless a single
/// message is larger.
const LARGEST: usize = 128 * 1024;

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
///
/// Requests are encoded at once. rtnetlink's connection formats messages for its log: the `Debug`
/// implementations of `RouteNetlinkMessage` alone would make the binary 3% larger.
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

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.payload.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.payload);
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self { kind: header.message_type, payload: payload.to_vec() })
    }
}

/// A socket that does not block; [`Transport::wait`] waits for it.
///
/// A failure is stored for [`Transport::wait`] and hidden from rtnetlink, whose connection would end with it:
/// the request is lost, but the socket is still needed to undo what was done.
struct Patient {
    socket: Socket,
    failure: Cell<Option<Errno>>,
    /// Simulated delay of the kernel.
    #[cfg(test)]
    delay: Cell<Duration>,
}

impl Patient {
    fn attempt<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> Poll<io::Result<T>> {
        loop {
            match call() {
                Ok(done) => return Poll::Ready(Ok(done)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        self.failure.set(Some(errno_of(&error)));
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Sends a message. One that could not be sent counts as sent: [`Transport::wait`] reports the failure.
    fn send(&self, length: usize, call: impl FnMut() -> io::Result<usize>) -> Poll<io::Result<usize>> {
        #[cfg(test)]
        std::thread::sleep(self.delay.get());
        match self.attempt(call) {
            Poll::Pending => Poll::Ready(Ok(length)),
            sent => sent,
        }
    }
}

impl AsyncSocket for Patient {
    fn socket_ref(&self) -> &Socket {
        &self.socket
    }

    fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    fn new(protocol: isize) -> io::Result<Self> {
        Ok(Self {
            socket: Socket::new(protocol)?,
            failure: Cell::new(None),
            #[cfg(test)]
            delay: Cell::default(),
        })
    }

    fn poll_send(&self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.send(bytes.len(), || self.socket.send(bytes, 0))
    }

    fn poll_send_to(&self, _: &mut Context<'_>, bytes: &[u8], to: &SocketAddr) -> Poll<io::Result<usize>> {
        self.send(bytes.len(), || self.socket.send_to(bytes, to, 0))
    }

    fn poll_recv<B: BufMut>(&self, _: &mut Context<'_>, buffer: &mut B) -> Poll<io::Result<()>> {
        self.attempt(|| self.socket.recv(buffer, nix::libc::MSG_DONTWAIT).map(|_| ()))
    }

    fn poll_recv_from<B: BufMut>(&self, _: &mut Context<'_>, buffer: &mut B) -> Poll<io::Result<SocketAddr>> {
        let room = buffer.chunk_mut().len();
        // With MSG_TRUNC the length is that of the whole datagram.
        let flags = nix::libc::MSG_DONTWAIT | nix::libc::MSG_TRUNC;
        self.attempt(|| match self.socket.recv_from(buffer, flags)? {
            (length, _) if length > room => Err(Errno::EMSGSIZE.into()),
            (_, from) => Ok(from),
        })
    }

    fn poll_recv_from_full(&self, _: &mut Context<'_>) -> Poll<io::Result<(Vec<u8>, SocketAddr)>> {
        self.attempt(|| {
            let mut buffer = Vec::with_capacity(LARGEST);
            let (_, from) = self.socket.recv_from(&mut buffer, nix::libc::MSG_DONTWAIT)?;
            Ok((buffer, from))
        })
    }
}

/// A connection to routing or generic netlink in the namespace in which it was opened.
pub(super) struct Transport {
    connection: RefCell<Connection<Message, Patient>>,
    handle: ConnectionHandle<Message>,
    /// See [`PATIENCE`].
    patience: Duration,
    /// ` in /run/netns/x`, or empty for the caller's namespace: appended to the action of every error.
    place: String,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Decodes the payload of one reply.
type Decode<'a> = dyn FnMut(&[u8]) -> Result<(), ReplyError> + 'a;

/// The end of the replies to one request.
enum End {
    Complete,
    /// The list changed while it was read (`NLM_F_DUMP_INTR`).
    Interrupted,
}

impl Transport {
    pub(super) fn open(place: String) -> Result<Self, RouteError> {
        Self::open_protocol(NETLINK_ROUTE, "routing netlink", place)
    }

    /// Opens a connection of another netlink protocol, with its name for errors.
    pub(super) fn open_protocol(protocol: isize, name: &str, place: String) -> Result<Self, RouteError> {
        let failed = |error: io::Error| RouteError::Socket {
            action: format!("open {name} socket{place}"),
            errno: errno_of(&error),
        };
        let opened = new_connection_with_socket::<Message, Patient>(protocol);
        let (mut connection, handle, _multicast) = opened.map_err(failed)?;
        // Without them a lost reply would look like success.
        connection.set_forward_ack(true);
        connection.set_forward_done(true);
        let socket = connection.socket_mut().socket_mut();
        socket.bind_auto().map_err(failed)?;
        // Kernels before 4.12 and 4.20 do not have these options. The first adds messages to errors; the last
        // lets the kernel filter lists, which the callers do again in any case.
        for (what, done) in [
            ("NETLINK_EXT_ACK", socket.set_ext_ack(true)),
            ("NETLINK_CAP_ACK", socket.set_cap_ack(true)),
            ("NETLINK_GET_STRICT_CHK", socket.set_netlink_get_strict_chk(true)),
        ] {
            if let Err(error) = done {
                log::debug!("netlink socket option {what}: {error}");
            }
        }
        let connection = RefCell::new(connection);
        Ok(Self { connection, handle, patience: PATIENCE, place })
    }

    /// Sends a request that is only acknowledged.
    pub(super) fn run(
        &self,
        verb: Verb,
        message: impl Into<Message>,
        action: fmt::Arguments<'_>,
    ) -> Result<(), RouteError> {
        let done = self.exchange(message.into(), verb_flags(verb), action, &mut |_| Ok(()));
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
        self.exchange(message.into(), verb_flags(verb), action, &mut |payload| {
            found = Some(decode(payload)?);
            Ok(())
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
            let end = self.exchange(message.clone(), NLM_F_REQUEST | NLM_F_DUMP, action, &mut |payload| {
                found.extend(decode(payload)?);
                Ok(())
            })?;
            if matches!(end, End::Complete) {
                return Ok(found);
            }
        }
        Err(RouteError::Interrupted { action: self.action(action) })
    }

    /// The error of a lookup that found nothing.
    pub(super) fn not_found(&self, action: fmt::Arguments<'_>, errno: Errno) -> RouteError {
        RouteError::Kernel { action: self.action(action), errno, hint: String::new() }
    }

    fn action(&self, action: fmt::Arguments<'_>) -> String {
        format!("{action}{}", self.place)
    }

    /// Drives the connection until a reply arrives.
    fn wait<T>(&self, mut replies: Pin<&mut impl Stream<Item = T>>) -> Result<T, Errno> {
        let mut connection = self.connection.borrow_mut();
        let mut context = Context::from_waker(Waker::noop());
        let mut until = None;
        connection.socket_mut().failure.set(None);
        loop {
            let ended = Pin::new(&mut *connection).poll(&mut context).is_ready();
            // From here: sending takes as long as the kernel works and waits for its locks.
            let until = *until.get_or_insert_with(|| Instant::now() + self.patience);
            if let Some(errno) = connection.socket_mut().failure.take() {
                return Err(errno);
            }
            match replies.as_mut().poll_next(&mut context) {
                Poll::Ready(Some(reply)) => return Ok(reply),
                // The replies are cut off before their end.
                Poll::Ready(None) => return Err(Errno::EPIPE),
                Poll::Pending if ended => return Err(Errno::EPIPE),
                Poll::Pending => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::EAGAIN);
            }
            readable(connection.socket_mut().socket_ref(), left)?;
        }
    }

    fn exchange(
        &self,
        message: Message,
        flags: u16,
        action: fmt::Arguments<'_>,
        decode: &mut Decode<'_>,
    ) -> Result<End, RouteError> {
        let socket = |errno| RouteError::Socket { action: self.action(action), errno };
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        let replies = self.handle.request(request, SocketAddr::new(0, 0));
        let mut replies = std::pin::pin!(replies.map_err(|_| socket(Errno::EPIPE))?);
        let one = flags & (NLM_F_ACK | NLM_F_DUMP) == 0;
        let mut collector = Collector { wants_one: one, interrupted: false };
        loop {
            let reply = self.wait(replies.as_mut()).map_err(socket)?;
            match collector.message(&reply, decode) {
                Ok(None) => {}
                Ok(Some(end)) => return Ok(end),
                Err(Refusal::Kernel(errno, hint)) => {
                    return Err(RouteError::Kernel { action: self.action(action), errno, hint });
                }
                Err(Refusal::Reply(source)) => {
                    return Err(RouteError::Reply { action: self.action(action), source });
                }
            }
        }
    }
}

/// Waits until the socket has something to read, for `left` at most.
#[allow(unsafe_code, reason = "the socket's type has no safe way to its descriptor")]
fn readable(socket: &Socket, left: Duration) -> Result<(), Errno> {
    // SAFETY: the descriptor belongs to `socket`, which is borrowed for longer.
    let fd = unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], left) {
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
    /// True if the first reply is the only one.
    wants_one: bool,
    interrupted: bool,
}

impl Collector {
    fn message(
        &mut self,
        message: &NetlinkMessage<Message>,
        decode: &mut Decode<'_>,
    ) -> Result<Option<End>, Refusal> {
        self.interrupted |= message.header.flags & wire::NLM_F_DUMP_INTR != 0;
        let code = match &message.payload {
            NetlinkPayload::Error(error) => match error.code {
                Some(code) => return Err(refused(code.get(), &hint(message.header.flags, error))),
                None => 0,
            },
            NetlinkPayload::Done(done) => done.code,
            NetlinkPayload::Overrun(_) => return Err(Refusal::Reply(ReplyError::Overrun)),
            NetlinkPayload::InnerMessage(Message { payload, .. }) => {
                decode(payload).map_err(Refusal::Reply)?;
                return Ok(self.wants_one.then_some(End::Complete));
            }
            _ => return Ok(None),
        };
        match code {
            0 if self.interrupted => Ok(Some(End::Interrupted)),
            0 => Ok(Some(End::Complete)),
            code => Err(refused(code, "")),
        }
    }
}

fn refused(code: i32, hint: &str) -> Refusal {
    Refusal::Kernel(Errno::from_raw(code.wrapping_neg()), hint.to_owned())
}

fn hint(flags: u16, error: &ErrorMessage) -> String {
    wire::hint(flags, &error.header).unwrap_or_default()
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

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::link::LinkMessage;

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
        transport.connection.get_mut().socket_mut().delay.set(Duration::from_millis(500));
        assert!(!links(&transport).unwrap().is_empty());
    }

    /// No request was sent, so no reply comes.
    #[test]
    fn a_missing_reply_times_out() {
        let mut transport = Transport::open(String::new()).unwrap();
        transport.patience = Duration::from_millis(50);
        let mut nothing = std::pin::pin!(futures_util::stream::pending::<()>());
        let begin = Instant::now();
        assert_eq!(transport.wait(nothing.as_mut()), Err(Errno::EAGAIN));
        assert!(begin.elapsed() >= transport.patience);
    }
}
