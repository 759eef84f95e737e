// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests on a socket of one namespace: their flags, and errors that name the operation, its object and the
//! namespace.
//!
//! Callers decode replies attribute by attribute: an attribute that a later kernel has changed then costs at most
//! itself, not the whole list.

use std::fmt;
use std::ops::ControlFlow;

use cni_netlink::message::flag;
use cni_netlink::{Error, Message, Refusal, SockProtocol, Socket, SocketOption, changing};
use nix::errno::Errno;
use rtnetlink::packet_core::NetlinkSerializable;
use rtnetlink::packet_route::RouteNetlinkMessage;

use super::error::{ReplyError, RouteError};

/// The flags of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Changes or deletes an object.
    Change,
    /// Creates an object. It is an error if the object exists (`NLM_F_EXCL`).
    Create,
    /// Creates an object with other flags.
    CreateWith(u16),
    /// Reads one object: exactly one reply.
    Get,
    /// Reads one object of traffic control. The kernel broadcasts the object, and sends it to the requester only with
    /// `NLM_F_ECHO`. There may be no reply at all, so an acknowledgement marks the end.
    Echo,
}

impl Verb {
    const fn flags(self) -> u16 {
        match self {
            Self::Change => flag::ACK,
            Self::Create => flag::ACK | flag::CREATE | flag::EXCLUSIVE,
            Self::CreateWith(flags) => flag::ACK | flag::CREATE | flags,
            Self::Get => 0,
            Self::Echo => flag::ECHO | flag::ACK,
        }
    }
}

/// A request that can be sent: a message of `cni-netlink`, or one of `netlink-packet-route`.
pub(super) trait Request {
    /// The message with these flags.
    fn message(self, flags: u16) -> Message;
}

impl Request for Message {
    fn message(self, flags: u16) -> Message {
        self.with_flags(flags)
    }
}

impl Request for RouteNetlinkMessage {
    fn message(self, flags: u16) -> Message {
        let mut message = Message::new(self.message_type(), flags);
        self.serialize(message.space(NetlinkSerializable::buffer_len(&self)));
        message
    }
}

/// A socket to routing or generic netlink in the namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Transport {
    socket: Socket,
    /// ` in /run/netns/x`, or empty for the caller's namespace: appended to the action of every error.
    place: String,
}

impl Transport {
    pub(super) fn netns_cookie(&self) -> Option<u64> {
        crate::netns::cookie_of(&self.socket)
    }

    pub(super) fn open(place: String) -> Result<Self, RouteError> {
        Self::open_protocol(SockProtocol::NetlinkRoute, "routing netlink", place)
    }

    /// Opens a socket of another netlink protocol, with its name for errors.
    pub(super) fn open_protocol(
        protocol: SockProtocol,
        name: &str,
        place: String,
    ) -> Result<Self, RouteError> {
        let socket = Socket::open(protocol)
            .map_err(|errno| RouteError::Socket { action: format!("open {name} socket{place}"), errno })?;
        // Kernels without the last option do not filter lists, but the callers filter them in any case.
        socket.enable(&[SocketOption::ExtendedAck, SocketOption::CappedAck, SocketOption::StrictCheck]);
        Ok(Self { socket, place })
    }

    /// Sends a request that is only acknowledged.
    pub(super) fn run(
        &self,
        verb: Verb,
        request: impl Request,
        action: fmt::Arguments<'_>,
    ) -> Result<(), RouteError> {
        let done = self.ask(verb, request, action, |_| Ok(())).map(drop);
        match &done {
            Ok(()) => log::debug!("{action}{}", self.place),
            Err(error) => log::debug!("{error}"),
        }
        done
    }

    /// Reads one object.
    pub(super) fn get<T>(
        &self,
        request: impl Request,
        action: fmt::Arguments<'_>,
        decode: impl Fn(&[u8]) -> Result<T, ReplyError>,
    ) -> Result<T, RouteError> {
        let found = self.ask(Verb::Get, request, action, decode)?;
        found.ok_or_else(|| self.unreadable(action, ReplyError::Empty))
    }

    /// Reads one object by [`Verb::Get`] or [`Verb::Echo`]. None if the kernel does not send it.
    pub(super) fn ask<T>(
        &self,
        verb: Verb,
        request: impl Request,
        action: fmt::Arguments<'_>,
        decode: impl Fn(&[u8]) -> Result<T, ReplyError>,
    ) -> Result<Option<T>, RouteError> {
        let mut found = Ok(None);
        let mut message = request.message(verb.flags());
        let end = self.socket.request(&mut message, &mut |payload| {
            // Further objects do not make up for one that cannot be decoded.
            if found.is_ok() {
                found = decode(payload).map(Some);
            }
            ControlFlow::Continue(())
        });
        end.map_err(|error| self.failed(action, error))?;
        found.map_err(|defect| self.unreadable(action, defect))
    }

    /// Reads a list, without the objects for which `decode` returns none.
    pub(super) fn list<T>(
        &self,
        request: impl Request,
        action: fmt::Arguments<'_>,
        decode: impl Fn(&[u8]) -> Result<Option<T>, ReplyError>,
    ) -> Result<Vec<T>, RouteError> {
        self.dump(request, action, |found: &mut Vec<T>, payload| {
            found.extend(decode(payload)?);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Reads a list of links, or of their addresses, which come and go all the time on a full node ([`changing::list`]).
    /// `key` identifies an object. Since Linux 6.9, the kernel goes through the links in the order of their indexes
    /// (`for_each_netdev_dump`), and an interrupted list misses none that exist all the time.
    pub(super) fn list_changing<T, K: Ord>(
        &self,
        request: impl Request,
        action: fmt::Arguments<'_>,
        decode: impl Fn(&[u8]) -> Result<Option<T>, ReplyError>,
        key: impl Fn(&T) -> K,
    ) -> Result<Vec<T>, RouteError> {
        let mut message = request.message(flag::DUMP);
        let (found, _) = changing::list(|found| {
            let mut defect = None;
            let end = self.socket.request(&mut message, &mut |payload| {
                match decode(payload) {
                    Ok(object) => found.extend(object.map(|object| (key(&object), object))),
                    // The rest is received as well, so that the socket can be used again.
                    Err(error) => defect = Some(error),
                }
                ControlFlow::Continue(())
            });
            let end = end.map_err(|error| self.failed(action, error))?;
            defect.map_or(Ok(end), |defect| Err(self.unreadable(action, defect)))
        })?;
        Ok(found)
    }

    /// Reads the beginning of a list, until `each` breaks. Takes the socket, because while the rest of the list is
    /// unread, the kernel refuses to begin another list on the same socket.
    pub(super) fn list_until<T>(
        self,
        request: impl Request,
        action: fmt::Arguments<'_>,
        each: impl FnMut(&mut Vec<T>, &[u8]) -> Result<ControlFlow<()>, ReplyError>,
    ) -> Result<Vec<T>, RouteError> {
        self.dump(request, action, each)
    }

    fn dump<T>(
        &self,
        request: impl Request,
        action: fmt::Arguments<'_>,
        mut each: impl FnMut(&mut Vec<T>, &[u8]) -> Result<ControlFlow<()>, ReplyError>,
    ) -> Result<Vec<T>, RouteError> {
        let mut message = request.message(flag::DUMP);
        let gathered =
            self.socket.dump(&mut message, |(found, defect): &mut (Vec<T>, Option<ReplyError>), payload| {
                each(found, payload).unwrap_or_else(|error| {
                    *defect = Some(error);
                    ControlFlow::Break(())
                })
            });
        match gathered.map_err(|error| self.failed(action, error))? {
            (found, None) => Ok(found),
            (_, Some(defect)) => Err(self.unreadable(action, defect)),
        }
    }

    /// The error of a lookup that found nothing.
    pub(super) fn not_found(&self, action: fmt::Arguments<'_>, errno: Errno) -> RouteError {
        self.failed(action, Error::Refused(Refusal { errno, hint: String::new() }))
    }

    fn unreadable(&self, action: fmt::Arguments<'_>, source: ReplyError) -> RouteError {
        RouteError::Reply { action: format!("{action}{}", self.place), source }
    }

    fn failed(&self, action: fmt::Arguments<'_>, error: Error) -> RouteError {
        let action = format!("{action}{}", self.place);
        match error {
            Error::Refused(Refusal { errno, hint }) => RouteError::Kernel { action, errno, hint },
            Error::Unstable => RouteError::Interrupted { action },
            Error::Overrun => RouteError::Reply { action, source: ReplyError::Overrun },
            Error::Socket(_) | Error::TimedOut => RouteError::Socket { action, errno: error.errno() },
        }
    }
}
