// SPDX-License-Identifier: MIT OR Apache-2.0

//! Netlink (netlink(7)) without the contents of any protocol.
//!
//! - [`message`] writes and reads messages and attributes. Nothing in it performs input or output.
//! - [`Socket`] sends requests, and collects their replies, acknowledgements and errors.
//! - [`changing`] lists objects that come and go all the time.
//! - [`Subscription`] receives what the kernel sends to multicast groups.
//!
//! The kernel handles a request within the system call that sends it, so that a blocking call takes two system calls
//! and never waits for another process.

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod changing;
pub mod message;

mod ack;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod receive;
mod reply;
mod socket;
mod subscription;

pub use ack::Ack;
pub use error::{Error, Refusal};
pub use message::{Attributes, Header, Message};
pub use reply::End;
pub use socket::{Socket, SocketOption};
pub use subscription::{Incoming, Subscription};

/// The protocols of netlink, as [`Socket::open`] and [`Subscription::open`] take them.
pub use nix::sys::socket::SockProtocol;
