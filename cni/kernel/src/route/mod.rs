// SPDX-License-Identifier: MIT OR Apache-2.0

//! Links, addresses, routes and neighbours over routing netlink (rtnetlink(7)), and WireGuard's peers over generic
//! netlink.
//!
//! A [`RouteSocket`] stays in the namespace in which it was opened, whatever the namespace of the thread that uses
//! it. Creation is exclusive, so it is an error if the object exists ([`RouteError::already_exists`]).
//!
//! Requests are built with the types of `netlink-packet-route`. Replies are decoded attribute by attribute, and only
//! the attributes that are needed, because an attribute that a newer kernel has changed or added must not make a
//! whole list unreadable.
//!
//! [`Notifications`] reports changes by any process.

mod address;
mod bridge;
mod create;
mod error;
mod filter;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod kinds;
mod link;
mod neighbour;
mod notify;
mod path;
mod port;
mod rule;
mod traffic;
mod transport;
mod wire;
mod wireguard;

use crate::netns::{Netns, NetnsError};

pub use address::{Address, DuplicateDetection};
pub use bridge::{NewBridge, PortVlan};
pub use create::{NewKind, NewLink, NewVeth};
pub use error::{ReplyError, RouteError};
pub use filter::{Filter, Hook, IngressFilter, Verdict};
pub use kinds::{IpvlanMode, LinkKind, MacvlanMode, Vxlan};
pub use link::{Link, LinkChange, OperState};
pub use neighbour::{Counts, FdbEntry, KnownNeighbour, Neighbour};
pub use notify::{Notification, NotificationGroup, Notifications};
pub use path::{Existing, LOCAL_TABLE, MAIN_TABLE, Route, RouteKind, RouteScope};
pub use port::{PortSettings, Switch, VlanFiltering};
pub use rule::Rule;
pub use traffic::TokenBucket;
pub use wireguard::{Peer, PeerChange, PrivateKey, PublicKey, WireGuardDevice, WireGuardSocket};

use transport::Transport;

/// A routing netlink socket of one network namespace.
///
/// Methods block until the kernel has replied, for half a minute at most.
#[derive(Debug)]
pub struct RouteSocket {
    transport: Transport,
}

impl RouteSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`RouteError::Socket`] if no socket can be opened.
    pub fn open() -> Result<Self, RouteError> {
        Ok(Self { transport: Transport::open(String::new())? })
    }

    /// Opens a socket in another namespace. The calling thread does not change its namespace.
    ///
    /// # Errors
    /// [`RouteError::Netns`] if the namespace cannot be entered, [`RouteError::Socket`] if no socket can be
    /// opened.
    pub fn open_in(netns: &Netns) -> Result<Self, RouteError> {
        Ok(Self::open_in_with(netns, || ())?.0)
    }

    /// Like [`RouteSocket::open_in`], but also does other work in the namespace, on the same thread.
    ///
    /// # Errors
    /// The errors of [`RouteSocket::open_in`].
    pub fn open_in_with<T: Send>(
        netns: &Netns,
        work: impl FnOnce() -> T + Send,
    ) -> Result<(Self, T), RouteError> {
        let place = format!(" in {}", netns.path().display());
        let opened = netns.run(|| (Transport::open(place), work()));
        let (transport, done) = opened.map_err(|error: NetnsError| RouteError::Netns {
            action: "open routing netlink socket".to_owned(),
            source: error,
        })?;
        Ok((Self { transport: transport? }, done))
    }

    /// The cookie of the socket's namespace (see [`Netns::cookie`]).
    #[must_use]
    pub fn netns_cookie(&self) -> Option<u64> {
        self.transport.netns_cookie()
    }
}
