// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notifications of routing netlink: changes that any process makes to links, addresses and routes.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use cni_netlink::message;
use cni_netlink::{Incoming, SockProtocol, Subscription};
use nix::errno::Errno;
use nix::libc;

use super::address::{self, Address};
use super::error::{ReplyError, RouteError};
use super::link::{self, IFINFOMSG, Link};
use super::path::{self, Route};
use crate::AddressFamily;
use crate::netns::Netns;

/// Kinds of objects whose changes are reported, for both address families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotificationGroup {
    /// Links.
    Links,
    /// Addresses of links.
    Addresses,
    /// Routes of all tables. If the kernel deletes IPv4 routes because a link or an address is gone or a link is
    /// down, it does not report that (`fib_table_flush`).
    Routes,
    /// Queueing disciplines and filters of links (tc(8)). If they disappear together with a link, the kernel does not
    /// report that.
    TrafficControl,
    /// Whether the whole namespace and each link forwards packets.
    Settings,
}

impl NotificationGroup {
    /// The groups' bits in `nl_groups` (`enum rtnetlink_groups` of `linux/rtnetlink.h`, counted from 1).
    fn bits(self) -> u32 {
        let bit = |group: u32| 1 << (group - 1);
        match self {
            // RTNLGRP_LINK
            Self::Links => bit(1),
            // RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR
            Self::Addresses => bit(5) | bit(9),
            // RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE
            Self::Routes => bit(7) | bit(11),
            // RTNLGRP_TC
            Self::TrafficControl => bit(4),
            // RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF
            Self::Settings => bit(24) | bit(25),
        }
    }
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// A link is new, changed or deleted.
    Link {
        /// The link after the change.
        link: Box<Link>,
        /// True if it is deleted or has left the namespace.
        deleted: bool,
    },
    /// An address is new, changed or deleted.
    Address {
        /// The address after the change.
        address: Address,
        /// True if it is deleted.
        deleted: bool,
    },
    /// A route is new, changed or deleted. There is one notification for each next hop.
    Route {
        /// The route after the change.
        route: Route,
        /// True if it is deleted.
        deleted: bool,
    },
    /// A queueing discipline or a filter of a link is new, changed or deleted.
    TrafficControl {
        /// The index of the link.
        link: u32,
        /// True if it is deleted.
        deleted: bool,
    },
    /// Forwarding was switched on or off.
    Forwarding {
        /// The family.
        family: AddressFamily,
        /// The index of the link. None for the whole namespace, or for links that are created later.
        link: Option<u32>,
        /// True if it is on now.
        on: bool,
    },
    /// Changes were not reported, because the reader was too slow for the socket's buffer. Read all objects again.
    /// Later notifications are about later changes.
    Lost,
}

/// Size of the socket's buffer in bytes. The kernel counts each message together with its overhead.
const RECEIVE_BUFFER: usize = 2 * 1024 * 1024;

/// A socket that receives the changes in one network namespace, including those that this process makes.
///
/// Subscribe first, and then read the objects, so that no change is missed. Memory use is bounded: in this process, a
/// buffer for one datagram and its contents; in the kernel, the socket's buffer.
#[derive(Debug)]
pub struct Notifications {
    subscription: Subscription,
    /// Notifications from the last message that have not been read yet.
    pending: VecDeque<Notification>,
    /// ` in /run/netns/x`, or empty for the caller's namespace.
    place: String,
}

impl Notifications {
    /// Subscribes to changes in the calling thread's namespace.
    ///
    /// # Errors
    /// [`RouteError::Socket`] if no socket can be opened.
    pub fn open(groups: &[NotificationGroup]) -> Result<Self, RouteError> {
        Self::open_at(String::new(), groups)
    }

    /// Subscribes to changes in another namespace. The calling thread does not change its namespace.
    ///
    /// # Errors
    /// [`RouteError::Netns`] if the namespace cannot be entered, [`RouteError::Socket`] if no socket can be
    /// opened.
    pub fn open_in(netns: &Netns, groups: &[NotificationGroup]) -> Result<Self, RouteError> {
        let place = format!(" in {}", netns.path().display());
        netns.run(|| Self::open_at(place, groups)).map_err(|source| RouteError::Netns {
            action: "subscribe to routing netlink".to_owned(),
            source,
        })?
    }

    fn open_at(place: String, groups: &[NotificationGroup]) -> Result<Self, RouteError> {
        let groups = groups.iter().fold(0, |bits, group| bits | group.bits());
        let subscription =
            Subscription::open(SockProtocol::NetlinkRoute, groups, RECEIVE_BUFFER).map_err(|errno| {
                RouteError::Socket { action: format!("subscribe to routing netlink{place}"), errno }
            })?;
        Ok(Self { subscription, pending: VecDeque::new(), place })
    }

    /// Sets the size of the socket's buffer in bytes. Without `CAP_NET_ADMIN` in the initial user namespace,
    /// `net.core.rmem_max` is the limit.
    ///
    /// # Errors
    /// [`RouteError::Socket`] if the kernel refuses.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), RouteError> {
        self.subscription.set_receive_buffer(bytes).map_err(|errno| self.failed("set receive buffer", errno))
    }

    /// Returns the next change, or none if there is none yet. Does not block.
    ///
    /// # Errors
    /// [`RouteError::Socket`] if the socket fails.
    pub fn read(&mut self) -> Result<Option<Notification>, RouteError> {
        loop {
            if let Some(next) = self.pending.pop_front() {
                return Ok(Some(next));
            }
            match self.subscription.read() {
                Ok(Some(Incoming::Message(header, payload))) => {
                    // A message without its header is useless, but it shows that something has changed.
                    if decode(header.kind, payload, &mut self.pending).is_err() {
                        self.pending.push_back(Notification::Lost);
                    }
                }
                Ok(Some(Incoming::Lost)) => return Ok(Some(Notification::Lost)),
                Ok(None) => return Ok(None),
                Err(errno) => return Err(self.failed("read notifications", errno)),
            }
        }
    }

    /// Waits for the next change, for at most `timeout`.
    ///
    /// # Errors
    /// [`RouteError::Socket`] if the socket fails.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Notification>, RouteError> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(next) = self.read()? {
                return Ok(Some(next));
            }
            if !self.subscription.wait(end).map_err(|errno| self.failed("wait for notifications", errno))? {
                return Ok(None);
            }
        }
    }

    fn failed(&self, action: &str, errno: Errno) -> RouteError {
        RouteError::Socket { action: format!("{action}{}", self.place), errno }
    }
}

/// Lets callers wait for changes like on any socket. After an overflow, the socket has an error (`POLLERR`), which
/// [`Notifications::read`] clears.
impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}

impl AsRawFd for Notifications {
    fn as_raw_fd(&self) -> RawFd {
        self.subscription.as_fd().as_raw_fd()
    }
}

/// Decodes one message. Adds nothing for a type that belongs to no group.
pub(super) fn decode(kind: u16, payload: &[u8], into: &mut VecDeque<Notification>) -> Result<(), ReplyError> {
    let deleted = matches!(kind, libc::RTM_DELLINK | libc::RTM_DELADDR | libc::RTM_DELROUTE);
    match kind {
        // Bridges report their ports in the same group (`br_ifinfo_notify`), and report a port that leaves as
        // deleted. The link itself still exists, and its own change is reported as well.
        libc::RTM_NEWLINK | libc::RTM_DELLINK
            if payload.len() >= IFINFOMSG && message::u8_of(payload) != UNSPECIFIED => {}
        libc::RTM_NEWLINK | libc::RTM_DELLINK => {
            let link = Box::new(link::decode(payload)?);
            into.push_back(Notification::Link { link, deleted });
        }
        libc::RTM_NEWADDR | libc::RTM_DELADDR => {
            into.extend(address::decode(payload)?.map(|address| Notification::Address { address, deleted }));
        }
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
            let routes = path::decode(payload, 0)?.into_iter();
            into.extend(routes.map(|route| Notification::Route { route, deleted }));
        }
        libc::RTM_NEWQDISC | libc::RTM_DELQDISC | libc::RTM_NEWTFILTER | libc::RTM_DELTFILTER => {
            let link = payload.get(TCMSG_IFINDEX..).filter(|rest| rest.len() >= 4);
            let link = message::u32_of(link.ok_or(ReplyError::NoHeader("traffic control"))?);
            let deleted = matches!(kind, libc::RTM_DELQDISC | libc::RTM_DELTFILTER);
            into.push_back(Notification::TrafficControl { link, deleted });
        }
        RTM_NEWNETCONF => into.extend(path::decode_forwarding(payload).map(|(family, link, on)| {
            Notification::Forwarding { family, link: u32::try_from(link).ok(), on }
        })),
        _ => {}
    }
    Ok(())
}

/// From `linux/rtnetlink.h`, because libc lacks it.
const RTM_NEWNETCONF: u16 = 80;

/// The offset of the link's index in `struct tcmsg` (`linux/rtnetlink.h`).
const TCMSG_IFINDEX: usize = 4;

/// `AF_UNSPEC`: a message about the link itself.
const UNSPECIFIED: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(kind: u16, payload: &[u8]) -> Result<Vec<Notification>, ReplyError> {
        let mut all = VecDeque::new();
        decode(kind, payload, &mut all).map(|()| all.into())
    }

    /// `struct ifinfomsg`: family, padding, type, index, flags, change.
    fn link_message(family: u8) -> Vec<u8> {
        let mut bytes = vec![family, 0, 1, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        // IFLA_IFNAME, followed by a truncated attribute.
        bytes.extend([7, 0, 3, 0, b'a', b'b', 0, 0]);
        bytes.extend([200, 0, 4, 0]);
        bytes
    }

    #[test]
    fn a_strange_attribute_leaves_the_link_readable() {
        for (kind, deleted) in [(libc::RTM_NEWLINK, false), (libc::RTM_DELLINK, true)] {
            let link = Link { index: 9, name: "ab".to_owned(), up: true, ..Link::default() };
            let expected = Notification::Link { link: Box::new(link), deleted };
            assert_eq!(decoded(kind, &link_message(UNSPECIFIED)), Ok(vec![expected]));
        }
    }

    #[test]
    fn a_port_that_leaves_its_bridge_is_no_deleted_link() {
        const AF_BRIDGE: u8 = 7;
        assert_eq!(decoded(libc::RTM_DELLINK, &link_message(AF_BRIDGE)), Ok(vec![]));
    }

    #[test]
    fn forwarding_is_of_a_family_and_a_link() {
        // NETCONFA_IFINDEX, NETCONFA_FORWARDING
        let message = |family: u8, link: i32, on: i32| {
            let mut bytes = vec![family, 0, 0, 0, 8, 0, 1, 0];
            bytes.extend(link.to_ne_bytes());
            bytes.extend([8, 0, 2, 0]);
            bytes.extend(on.to_ne_bytes());
            bytes
        };
        for (family, number) in [(AddressFamily::V4, 2), (AddressFamily::V6, 10)] {
            for (index, link) in [(-1, None), (7, Some(7))] {
                let expected = Notification::Forwarding { family, link, on: index == 7 };
                let bytes = message(number, index, i32::from(index == 7));
                assert_eq!(decoded(RTM_NEWNETCONF, &bytes), Ok(vec![expected]));
            }
        }
        assert_eq!(decoded(RTM_NEWNETCONF, &message(10, 7, 0)[..12]), Ok(vec![]));
    }

    #[test]
    fn messages_of_any_length_are_decoded_or_refused() {
        for kind in 0..40 {
            for length in 0..40 {
                for byte in [0, 2, 7, 10, 255] {
                    let _ = decoded(kind, &vec![byte; length]);
                }
            }
        }
        assert!(decoded(libc::RTM_NEWLINK, &[]).is_err());
        assert!(decoded(libc::RTM_DELQDISC, &[0; 7]).is_err());
        assert!(decoded(libc::RTM_NEWROUTE, &[2; 11]).is_err());
    }
}
