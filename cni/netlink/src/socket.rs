// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests, dumps and batches on a netlink socket.

use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, send, setsockopt, socket,
    sockopt,
};

use crate::ack::{Ack, ERROR, refusal};
use crate::error::{Error, Refusal};
use crate::message::{Message, messages};
use crate::receive::{Buffer, Datagram, wait};
use crate::reply::{Each, End, Reply};

/// The time limit for the next datagram of a reply. The kernel replies within the system call that sends the request,
/// so this limit only ends what would otherwise block forever.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a dump is repeated while the listed objects change.
const DUMP_PATIENCE: Duration = Duration::from_secs(5);
/// The kernel's default size of the send buffer (`net.core.wmem_default`).
const DEFAULT_SEND_BUFFER: usize = 200 * 1024;

/// An option of netlink sockets. If a kernel lacks an option, the socket works without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketOption {
    /// Errors come with the kernel's text (`NETLINK_EXT_ACK`, since Linux 4.12).
    ExtendedAck,
    /// Errors do not repeat the request (`NETLINK_CAP_ACK`, since Linux 4.3).
    CappedAck,
    /// The kernel refuses requests for a dump that contain anything unknown, and applies the request's filter
    /// (`NETLINK_GET_STRICT_CHK`, since Linux 4.20).
    StrictCheck,
}

/// The options in the form that [`setsockopt`] needs.
mod option {
    use nix::{libc, setsockopt_impl, sockopt_impl};

    sockopt_impl!(ExtendedAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, bool);
    sockopt_impl!(CappedAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, bool);
    sockopt_impl!(StrictCheck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, bool);
}

/// A netlink socket in the network namespace in which it was opened: one request, dump or batch at a time.
pub struct Socket<S = OwnedFd> {
    socket: S,
    /// The sequence number of the last request.
    sequence: Cell<u32>,
    /// Borrowed while a reply is read, because another request on the same socket would mix up the replies.
    buffer: RefCell<Buffer>,
    /// False from the time when a request is sent until its replies have been read to the end.
    is_idle: Cell<bool>,
    /// True once a request was sent while replies to an earlier one had not been read. This socket skips them because
    /// of their numbers, but another owner of the socket would begin with the same numbers again.
    has_leftovers: Cell<bool>,
    /// See [`PATIENCE`].
    patience: Duration,
}

impl<S: AsFd> AsFd for Socket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<S: AsFd> fmt::Debug for Socket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("fd", &self.socket.as_fd()).finish_non_exhaustive()
    }
}

impl Socket {
    /// Opens a socket in the thread's network namespace.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(protocol: SockProtocol) -> Result<Self, Errno> {
        let socket = socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self::over(socket))
    }
}

impl<S: AsFd> Socket<S> {
    /// Uses a bound socket that another library has opened, and on which nothing is left to be read.
    pub fn over(socket: S) -> Self {
        Self {
            socket,
            sequence: Cell::new(0),
            buffer: RefCell::default(),
            is_idle: Cell::new(true),
            has_leftovers: Cell::new(false),
            patience: PATIENCE,
        }
    }

    /// The socket as it was given to [`Socket::over`].
    pub const fn inner(&self) -> &S {
        &self.socket
    }

    /// Enables options, and logs those that the kernel lacks.
    pub fn enable(&self, options: &[SocketOption]) {
        for option in options {
            let done = match option {
                SocketOption::ExtendedAck => setsockopt(&self.socket, option::ExtendedAck, &true),
                SocketOption::CappedAck => setsockopt(&self.socket, option::CappedAck, &true),
                SocketOption::StrictCheck => setsockopt(&self.socket, option::StrictCheck, &true),
            };
            if let Err(errno) = done {
                log::debug!("netlink socket option {option:?}: {errno}");
            }
        }
    }

    /// True if no reply is left to be read, so that another owner can use the socket.
    pub const fn is_idle(&self) -> bool {
        self.is_idle.get() && !self.has_leftovers.get()
    }

    /// The next sequence number. Never 0, because notifications have that number.
    pub fn next_sequence(&self) -> u32 {
        let sequence = self.sequence.get().wrapping_add(1).max(1);
        self.sequence.set(sequence);
        sequence
    }

    /// Sends a request, and calls `each` with the payload of each object in the reply until `each` breaks. The flags
    /// of the request decide whether the reply is an acknowledgement, a list, or one object.
    ///
    /// After a break, the rest of a list remains unread, and the kernel refuses to begin another list on this socket
    /// (EBUSY, `__netlink_dump_start`).
    ///
    /// # Errors
    /// Any [`Error`] except for [`Error::Unstable`].
    pub fn request(
        &self,
        message: &mut Message,
        each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<End, Error> {
        let mut buffer = self.begin()?;
        let sequence = self.next_sequence();
        self.send(message.seal(sequence))?;
        self.collect(&mut buffer, Reply::new(sequence, message.flags()), each)
    }

    fn collect(&self, buffer: &mut Buffer, mut reply: Reply, each: &mut Each<'_>) -> Result<End, Error> {
        loop {
            let end = reply.datagram(self.receive(buffer)?, each);
            self.is_idle
                .set(matches!(end, Ok(Some(End::Complete | End::Interrupted)) | Err(Error::Refused(_))));
            if let Some(end) = end? {
                return Ok(end);
            }
        }
    }

    /// Reads a list, and repeats that until nothing has changed during the dump. Each attempt begins with an empty
    /// `T`. A break ends the list, as for [`Socket::request`].
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn dump<T: Default>(
        &self,
        message: &mut Message,
        mut each: impl FnMut(&mut T, &[u8]) -> ControlFlow<()>,
    ) -> Result<T, Error> {
        let since = Instant::now();
        loop {
            let mut gathered = T::default();
            match self.request(message, &mut |payload| each(&mut gathered, payload)) {
                Ok(End::Complete | End::Broken) => return Ok(gathered),
                Ok(End::Interrupted) => {}
                // nf_tables ends a dump with EINTR if the ruleset has changed.
                Err(Error::Refused(Refusal { errno: Errno::EINTR, .. })) => {}
                Err(error) => return Err(error),
            }
            if since.elapsed() > DUMP_PATIENCE {
                return Err(Error::Unstable);
            }
        }
    }

    /// Sends requests that have neither [`flag::ACK`](crate::message::flag::ACK) nor
    /// [`flag::DUMP`](crate::message::flag::DUMP) in one datagram. The kernel replies to each with one object or with
    /// an error, and `each` gets both. All replies wait in the socket at the same time.
    ///
    /// # Errors
    /// [`Error::Socket`] and [`Error::TimedOut`].
    pub fn requests(
        &self,
        requests: impl IntoIterator<Item = Message>,
        mut each: impl FnMut(Result<&[u8], Refusal>),
    ) -> Result<(), Error> {
        let mut buffer = self.begin()?;
        let (mut bytes, mut open) = (Vec::new(), Vec::new());
        for mut message in requests {
            let sequence = self.next_sequence();
            bytes.extend_from_slice(message.seal(sequence));
            open.push(sequence);
        }
        if open.is_empty() {
            return Ok(());
        }
        self.send(&bytes)?;
        while !open.is_empty() {
            for (header, payload) in messages(self.receive(&mut buffer)?) {
                let Some(place) = open.iter().position(|sequence| *sequence == header.sequence) else {
                    continue;
                };
                open.swap_remove(place);
                if header.kind != ERROR {
                    each(Ok(payload));
                } else if let Some(refusal) = refusal(header, payload) {
                    each(Err(refusal));
                }
            }
        }
        self.is_idle.set(true);
        Ok(())
    }

    /// Sends a batch of messages with their headers as one datagram, and returns their acknowledgements: those of
    /// messages that were refused, and those of messages that asked for one.
    ///
    /// The kernel handles a batch within the call that sends it, so afterwards all acknowledgements are in the
    /// socket.
    ///
    /// # Errors
    /// [`Error::Socket`]. The error is ENOBUFS if acknowledgements were lost and none of the remaining ones is a
    /// refusal.
    pub fn batch(&self, bytes: &[u8]) -> Result<Vec<Ack>, Error> {
        if bytes.len() > DEFAULT_SEND_BUFFER / 2 {
            // The kernel counts its own overhead as well.
            let size = bytes.len() + bytes.len() / 4 + DEFAULT_SEND_BUFFER;
            // The first option needs CAP_NET_ADMIN in the initial user namespace. The second one is limited by
            // `net.core.wmem_max`, and sending more than that fails.
            setsockopt(&self.socket, sockopt::SndBufForce, &size)
                .or_else(|_| setsockopt(&self.socket, sockopt::SndBuf, &size))?;
        }
        let mut buffer = self.begin()?;
        self.send(bytes)?;
        let mut acks: Vec<Ack> = Vec::new();
        let mut overflowed = false;
        loop {
            match buffer.receive(self.socket.as_fd()) {
                Ok(Datagram::Whole(length)) => {
                    acks.extend(
                        messages(buffer.part(0..length))
                            .filter_map(|(header, payload)| Ack::read(header, payload)),
                    );
                }
                Ok(Datagram::Cut) | Err(Errno::ENOBUFS) => overflowed = true,
                // If there was no room for all refusals, the first ones are here, and one is enough.
                Err(Errno::EAGAIN) if overflowed && acks.iter().all(|ack| ack.refusal.is_none()) => {
                    return Err(Errno::ENOBUFS.into());
                }
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.is_idle.set(true);
        Ok(acks)
    }

    /// Begins a request.
    fn begin(&self) -> Result<RefMut<'_, Buffer>, Errno> {
        self.buffer.try_borrow_mut().map_err(|_| Errno::EDEADLK)
    }

    fn send(&self, request: &[u8]) -> Result<(), Errno> {
        if !self.is_idle.replace(false) {
            self.has_leftovers.set(true);
        }
        loop {
            match send(self.socket.as_fd().as_raw_fd(), request, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                Ok(length) if length != request.len() => return Err(Errno::EMSGSIZE),
                other => return other.map(drop),
            }
        }
    }

    /// Receives a datagram, waiting for it if there is none yet.
    fn receive<'a>(&self, buffer: &'a mut Buffer) -> Result<&'a [u8], Error> {
        let socket: BorrowedFd<'_> = self.socket.as_fd();
        // The time limit begins when there is no datagram to read, not when the request is sent, because sending
        // takes as long as the kernel works and waits for its locks.
        let mut until = None;
        loop {
            match buffer.receive(socket) {
                Ok(Datagram::Whole(length)) => return Ok(buffer.part(0..length)),
                Ok(Datagram::Cut) => return Err(Errno::EMSGSIZE.into()),
                Err(Errno::EAGAIN) => {
                    let now = Instant::now();
                    let left = until.get_or_insert(now + self.patience).saturating_duration_since(now);
                    if left.is_zero() {
                        return Err(Error::TimedOut);
                    }
                    wait(socket, left)?;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{attributes, flag, text, u32_of};

    // linux/rtnetlink.h
    const RTM_GETLINK: u16 = 18;
    const RTM_SETLINK: u16 = 19;
    const IFLA_IFNAME: u16 = 3;
    const IFLA_MTU: u16 = 4;
    /// Length of `struct ifinfomsg`.
    const IFINFOMSG: usize = 16;

    fn open() -> Socket {
        let socket = Socket::open(SockProtocol::NetlinkRoute).unwrap();
        socket.enable(&[SocketOption::ExtendedAck, SocketOption::CappedAck, SocketOption::StrictCheck]);
        socket
    }

    fn link_request(kind: u16, flags: u16) -> Message {
        let mut message = Message::new(kind, flags);
        message.space(IFINFOMSG);
        message
    }

    fn loopback() -> Message {
        let mut message = link_request(RTM_GETLINK, 0);
        message.text(IFLA_IFNAME, "lo");
        message
    }

    fn names(socket: &Socket) -> Vec<String> {
        let each = |all: &mut Vec<String>, payload: &[u8]| {
            let name = attributes(&payload[IFINFOMSG..]).find(|(kind, _)| *kind == IFLA_IFNAME);
            all.extend(name.map(|(_, value)| text(value)));
            ControlFlow::Continue(())
        };
        socket.dump(&mut link_request(RTM_GETLINK, flag::DUMP), each).unwrap()
    }

    fn index(socket: &Socket, message: &mut Message) -> Result<u32, Error> {
        let mut index = 0;
        let end = socket.request(message, &mut |payload| {
            index = u32_of(&payload[4..]);
            ControlFlow::Continue(())
        });
        end.map(|_| index)
    }

    /// Simulates a busy machine: when the call that sends returns, the kernel has the reply ready, but the call takes
    /// longer than the time limit for replies.
    #[test]
    fn the_time_that_sending_takes_does_not_count() {
        let mut socket = open();
        socket.patience = Duration::from_millis(50);
        let mut message = loopback();
        socket.send(message.seal(7)).unwrap();
        assert!(!socket.is_idle());
        std::thread::sleep(socket.patience * 3);
        let end =
            socket.collect(&mut Buffer::default(), Reply::new(7, 0), &mut |_| ControlFlow::Continue(()));
        assert_eq!(end, Ok(End::Complete));
        assert!(socket.is_idle());
    }

    /// An earlier list was not read to its end, so the rest of it is still in the socket.
    #[test]
    fn messages_of_an_earlier_request_are_no_replies() {
        let socket = open();
        socket.send(link_request(RTM_GETLINK, flag::DUMP).seal(77)).unwrap();
        assert_eq!(index(&socket, &mut loopback()), Ok(1), "the loopback's index");
        assert!(names(&socket).contains(&"lo".to_owned()));
        assert!(!socket.is_idle(), "another owner would take what is left for its own replies");
    }

    #[test]
    fn a_refusal_has_the_kernels_error() {
        let socket = open();
        let mut message = link_request(RTM_SETLINK, flag::ACK);
        message.u32(IFLA_MTU, 1);
        let error = index(&socket, &mut message).unwrap_err();
        let Error::Refused(refusal) = &error else { panic!("{error}") };
        assert!(matches!(refusal.errno, Errno::EINVAL | Errno::ENODEV | Errno::EPERM), "{refusal}");
        assert!(socket.is_idle());
    }

    #[test]
    fn requests_in_one_datagram_are_answered_one_by_one() {
        let socket = open();
        let mut missing = link_request(RTM_GETLINK, 0);
        missing.text(IFLA_IFNAME, "no-such-link");
        let (mut found, mut refused) = (Vec::new(), Vec::new());
        let done = socket.requests([loopback(), missing, loopback()], |reply| match reply {
            Ok(payload) => found.push(u32_of(&payload[4..])),
            Err(refusal) => refused.push(refusal.errno),
        });
        assert_eq!((done, found, refused), (Ok(()), vec![1, 1], vec![Errno::ENODEV]));
        assert_eq!(socket.requests([], |_| unreachable!()), Ok(()));
        assert!(socket.is_idle());
    }

    #[test]
    fn a_batch_is_acknowledged_by_sequence_numbers() {
        let socket = open();
        let mut bytes = Vec::new();
        let mut sequences = Vec::new();
        for name in ["lo", "no-such-link"] {
            let mut message = link_request(RTM_GETLINK, flag::ACK);
            message.text(IFLA_IFNAME, name);
            sequences.push(socket.next_sequence());
            bytes.extend_from_slice(message.seal(sequences[sequences.len() - 1]));
        }
        let acks = socket.batch(&bytes).unwrap();
        let found: Vec<_> = acks
            .iter()
            .map(|ack| (ack.sequence, ack.refusal.as_ref().map(|refusal| refusal.errno)))
            .collect();
        assert_eq!(found, [(sequences[0], None), (sequences[1], Some(Errno::ENODEV))]);
    }

    #[test]
    fn a_socket_that_is_being_read_is_in_use() {
        let socket = open();
        let mut inner = None;
        let message = &mut link_request(RTM_GETLINK, flag::DUMP);
        let end = socket.request(message, &mut |_| {
            inner = Some(index(&socket, &mut loopback()));
            ControlFlow::Break(())
        });
        assert_eq!((end, inner), (Ok(End::Broken), Some(Err(Error::Socket(Errno::EDEADLK)))));
        assert!(!socket.is_idle());
    }

    /// No request was sent, so no reply comes.
    #[test]
    fn a_missing_reply_times_out() {
        let mut socket = open();
        socket.patience = Duration::from_millis(50);
        let begin = Instant::now();
        let received = socket.receive(&mut Buffer::default()).map(<[u8]>::len);
        assert_eq!(received, Err(Error::TimedOut));
        assert!(begin.elapsed() >= socket.patience);
    }
}
