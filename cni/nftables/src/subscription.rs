// SPDX-License-Identifier: GPL-2.0-or-later

//! A socket that receives a group of nf_tables' notifications, message by message.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use cni_netlink::SockProtocol;
use nix::errno::Errno;

use crate::error::Error;
use crate::nfnetlink::split;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message's type.
const SUBSYSTEM: u16 = 10 << 8;
/// Size of the socket's buffer in bytes. A proxy that writes the rules of a cluster's Services sends megabytes at
/// once.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;

/// A subscription to one group.
#[derive(Debug)]
pub(crate) struct Subscription(cni_netlink::Subscription);

/// What a socket returns next.
pub(crate) enum Incoming<'a> {
    /// A message. Its type is without the subsystem of nf_tables, so the types of other subsystems are above 255. The
    /// address family and the attributes follow.
    Message { kind: u16, family: u8, body: &'a [u8] },
    /// See [`cni_netlink::Incoming::Lost`].
    Lost,
}

impl Subscription {
    /// Subscribes to a group, given as a bit of `nl_groups`, in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no netfilter netlink; [`Error::Open`] without `CAP_NET_ADMIN`
    /// in the namespace.
    pub(crate) fn open(group: u32) -> Result<Self, Error> {
        let open = cni_netlink::Subscription::open(SockProtocol::NetlinkNetFilter, group, RECEIVE_BUFFER);
        open.map(Self).map_err(|errno| match errno {
            Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => Error::Unsupported {
                feature: "netfilter netlink".to_owned(),
                op: "subscribe to nf_tables".to_owned(),
            },
            errno => Error::Open { errno },
        })
    }

    /// Sets the size of the socket's buffer in bytes. Without `CAP_NET_ADMIN` in the initial user namespace,
    /// `net.core.rmem_max` is the limit.
    pub(crate) fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        self.0.set_receive_buffer(bytes).map_err(|errno| failed("set receive buffer", errno))
    }

    /// Returns the next message, or none if there is none yet. Does not block.
    pub(crate) fn read(&mut self) -> Result<Option<Incoming<'_>>, Error> {
        let read = self.0.read().map_err(|errno| failed("read notifications", errno))?;
        Ok(read.map(|incoming| match incoming {
            cni_netlink::Incoming::Message(header, payload) => {
                let (family, body) = split(payload);
                Incoming::Message { kind: header.kind ^ SUBSYSTEM, family, body }
            }
            cni_netlink::Incoming::Lost => Incoming::Lost,
        }))
    }

    /// Waits until there is something to read. Returns false if there is still nothing at `end`.
    pub(crate) fn wait(&self, end: Instant) -> Result<bool, Error> {
        self.0.wait(end).map_err(|errno| failed("wait for notifications", errno))
    }
}

impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn failed(operation: &str, errno: Errno) -> Error {
    Error::Io { operation: format!("nf_tables: {operation}"), errno }
}
