//! Links, addresses and routes over routing netlink (rtnetlink(7)).
//!
//! A [`RouteSocket`] belongs to the namespace it was opened in for all its life, whatever the
//! namespace of the thread that uses it. Creation is exclusive: what exists already is an error
//! ([`RouteError::already_exists`]), never silently taken over.
//!
//! Requests are built with the types of `netlink-packet-route`. Answers are read attribute by
//! attribute, only those that are needed: an attribute that a newer kernel has changed or added
//! must not make a whole list unreadable.

mod address;
mod bridge;
mod error;
mod kinds;
mod link;
mod path;
mod rule;
mod traffic;
mod transport;
mod wire;

use crate::netns::{Netns, NetnsError};

pub use address::{Address, DuplicateDetection};
pub use bridge::{NewBridge, PortSettings, PortVlan, Switch, VlanFiltering};
pub use error::RouteError;
pub use kinds::{IpvlanMode, MacvlanMode, NewKind, NewLink};
pub use link::{Link, LinkChange, LinkKind, NewVeth, OperState};
pub use path::{Existing, Family, LOCAL_TABLE, MAIN_TABLE, Route, RouteKind, RouteScope};
pub use rule::Rule;
pub use traffic::TokenBucket;

use transport::Transport;

/// A routing netlink socket of one network namespace.
///
/// All methods block until the kernel has answered, at most for half a minute.
#[derive(Debug)]
pub struct RouteSocket {
    transport: Transport,
}

impl RouteSocket {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn open() -> Result<Self, RouteError> {
        Ok(Self { transport: Transport::open(String::new())? })
    }

    /// Opens a socket in another namespace. The caller's thread stays where it is.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or the kernel gives no socket.
    pub fn open_in(netns: &Netns) -> Result<Self, RouteError> {
        let place = format!(" in {}", netns.path().display());
        let transport = netns.run(|| Transport::open(place)).map_err(|error: NetnsError| {
            RouteError::Netns { action: "open routing netlink socket".to_owned(), source: error }
        })??;
        Ok(Self { transport })
    }
}
