//! The socket: one request, its answers, its end.
#![allow(unsafe_code, reason = "two netlink socket options that nix does not wrap")]

use std::cell::{Cell, RefCell};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::error::RouteError;
use super::wire;

/// How long the kernel may take to answer. It answers within the call that sends the request, once
/// it has the lock over all links; so this only ends what would otherwise hang for ever.
const PATIENCE_SECONDS: i64 = 30;

/// How often a list is read again because it changed meanwhile.
const DUMP_ATTEMPTS: u32 = 5;

/// The kernel fills at most 32 KB per datagram of a list (`NLMSG_GOODSIZE`, `netlink_dump`), unless
/// one message alone is larger.
const BUFFER: usize = 128 * 1024;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Change something that exists, or delete it.
    Change,
    /// Make something new; an error if it exists (`NLM_F_EXCL`).
    Create,
    /// Make something beside what exists, or with other flags.
    CreateWith(u16),
    /// Ask for one object: exactly one answer.
    Get,
}

#[derive(Debug)]
pub(super) struct Transport {
    fd: OwnedFd,
    sequence: Cell<u32>,
    buffer: RefCell<Vec<u8>>,
    /// ` in /run/netns/x`, or empty for the caller's namespace; the end of every error's action.
    place: String,
}

/// Takes the payload of one answer, or says what is wrong with it.
type Take<'a> = dyn FnMut(&[u8]) -> Result<(), String> + 'a;

/// How the answers to one request ended.
enum End {
    Complete,
    /// The list changed while it was read (`NLM_F_DUMP_INTR`).
    Interrupted,
}

impl Transport {
    pub(super) fn open(place: String) -> Result<Self, RouteError> {
        let failed =
            |errno| RouteError::Socket { action: format!("open routing netlink socket{place}"), errno };
        let fd =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)
                .map_err(failed)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).map_err(failed)?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE_SECONDS, 0)).map_err(failed)?;
        // Kernels before 4.12 and 4.20 do not know these. The first adds texts to errors, the second
        // makes the kernel filter lists, which is done here again in any case.
        for option in [nix::libc::NETLINK_EXT_ACK, nix::libc::NETLINK_CAP_ACK, NETLINK_GET_STRICT_CHK] {
            switch_on(&fd, option);
        }
        Ok(Self { fd, sequence: Cell::new(0), buffer: RefCell::new(vec![0; BUFFER]), place })
    }

    /// Sends a request that has no answer but success or failure.
    pub(super) fn run(
        &self,
        verb: Verb,
        message: RouteNetlinkMessage,
        action: fmt::Arguments<'_>,
    ) -> Result<(), RouteError> {
        self.exchange(message, verb_flags(verb), action, &mut |_| Ok(())).map(|_| ())
    }

    /// Asks for one object.
    pub(super) fn get<T>(
        &self,
        message: RouteNetlinkMessage,
        action: fmt::Arguments<'_>,
        decode: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, RouteError> {
        let mut found = None;
        self.exchange(message, verb_flags(Verb::Get), action, &mut |payload| {
            found = Some(decode(payload)?);
            Ok(())
        })?;
        found.ok_or_else(|| RouteError::Answer {
            action: self.action(action),
            reason: "it is empty".to_owned(),
        })
    }

    /// Asks for a list. `decode` leaves out what it returns none for.
    pub(super) fn list<T>(
        &self,
        message: &RouteNetlinkMessage,
        action: fmt::Arguments<'_>,
        decode: impl Fn(&[u8]) -> Result<Option<T>, String>,
    ) -> Result<Vec<T>, RouteError> {
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

    /// An error of a lookup that found nothing.
    pub(super) fn not_found(&self, action: fmt::Arguments<'_>, errno: Errno) -> RouteError {
        RouteError::Kernel { action: self.action(action), errno, hint: String::new() }
    }

    fn action(&self, action: fmt::Arguments<'_>) -> String {
        format!("{action}{}", self.place)
    }

    fn exchange(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        action: fmt::Arguments<'_>,
        take: &mut Take<'_>,
    ) -> Result<End, RouteError> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);

        let socket = |errno| RouteError::Socket { action: self.action(action), errno };
        retry(|| send(self.fd.as_raw_fd(), &bytes, MsgFlags::empty())).map_err(socket)?;
        let mut buffer = self.buffer.borrow_mut();
        let mut collector = Collector { sequence, wants_one: flags == NLM_F_REQUEST, interrupted: false };
        loop {
            let length =
                retry(|| recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC)).map_err(socket)?;
            let Some(datagram) = buffer.get(..length) else {
                let reason = format!("{length} bytes in one message");
                return Err(RouteError::Answer { action: self.action(action), reason });
            };
            match collector.datagram(datagram, take) {
                Ok(None) => {}
                Ok(Some(end)) => return Ok(end),
                Err(Refusal::Kernel(errno, hint)) => {
                    return Err(RouteError::Kernel { action: self.action(action), errno, hint });
                }
                Err(Refusal::Answer(reason)) => {
                    return Err(RouteError::Answer { action: self.action(action), reason });
                }
            }
        }
    }
}

/// Why an answer is not a success.
enum Refusal {
    Kernel(Errno, String),
    Answer(String),
}

struct Collector {
    sequence: u32,
    /// Whether the first answer is the only one.
    wants_one: bool,
    interrupted: bool,
}

impl Collector {
    fn datagram(&mut self, datagram: &[u8], take: &mut Take<'_>) -> Result<Option<End>, Refusal> {
        for message in wire::messages(datagram) {
            let message = message.map_err(Refusal::Answer)?;
            // Late answers to a request that was given up.
            if message.sequence != self.sequence {
                continue;
            }
            self.interrupted |= message.flags & wire::NLM_F_DUMP_INTR != 0;
            match message.kind {
                wire::NLMSG_ERROR | wire::NLMSG_DONE => {
                    return match message.error() {
                        None if self.interrupted => Ok(Some(End::Interrupted)),
                        None => Ok(Some(End::Complete)),
                        Some((errno, hint)) => Err(Refusal::Kernel(errno, hint)),
                    };
                }
                wire::NLMSG_NOOP => {}
                wire::NLMSG_OVERRUN => return Err(Refusal::Answer("data was lost".to_owned())),
                _ => {
                    take(message.payload).map_err(Refusal::Answer)?;
                    if self.wants_one {
                        return Ok(Some(End::Complete));
                    }
                }
            }
        }
        Ok(None)
    }
}

fn verb_flags(verb: Verb) -> u16 {
    match verb {
        Verb::Change => NLM_F_REQUEST | NLM_F_ACK,
        Verb::Create => NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
        Verb::CreateWith(flags) => NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | flags,
        Verb::Get => NLM_F_REQUEST,
    }
}

fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// `NETLINK_GET_STRICT_CHK` of `linux/netlink.h`.
const NETLINK_GET_STRICT_CHK: nix::libc::c_int = 12;

fn switch_on(fd: &impl AsFd, option: nix::libc::c_int) {
    let on: nix::libc::c_int = 1;
    #[allow(clippy::cast_possible_truncation, reason = "the size of an int")]
    let size = size_of_val(&on) as nix::libc::socklen_t;
    // SAFETY: the pointer and the size describe `on`, which lives until the call has returned.
    let result = unsafe {
        nix::libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            nix::libc::SOL_NETLINK,
            option,
            std::ptr::from_ref(&on).cast(),
            size,
        )
    };
    if result < 0 {
        log::debug!("netlink socket option {option}: {}", Errno::last());
    }
}
