//! What the BPF programs and user space share: names, sizes, keys and values of the maps.
//!
//! Numbers that a packet carries (addresses, ports, the identification of a fragment) are kept as the packet
//! has them, in network byte order, so that a program copies them without turning them round; the types
//! [`Addr4`], [`Addr6`] and [`Port`] keep them apart from numbers of the host. Everything else is in the
//! host's byte order. Padding is named and zero: the kernel compares a key byte by byte.
//!
//! A change of anything here that is stored in a map needs a new [`VERSION`], which is what
//! [`maps::unchanged_since`] says of that map from then on.
#![no_std]

mod address;
mod config;
mod counters;
mod flow;
pub mod maps;
#[cfg(feature = "user")]
mod pod;
mod tables;

pub use address::{Addr4, Addr6, Port};
pub use config::{Config, TICK_SHIFT, Timeouts, ticks};
pub use counters::{COUNTERS, Counter, Counters, Reason};
pub use flow::{
    Action, Flow, Flow4, Flow6, FlowKey, FlowKey4, FlowKey6, IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP,
    IPPROTO_UDP, LONE, ORIGINAL, PUBLISHED, SIDE_POD, SIDE_UPLINK, STATES, State,
};
pub use tables::{
    FragmentKey, FragmentKey4, FragmentKey6, FragmentPorts, HELD, LEFT, MASQUERADED, Pod, PodAddress,
    PortKey, PortKey4, PortKey6, PortTarget, PortTarget4, PortTarget6, Router, SEVERAL, SPARES_LOOPBACK,
    SocketKey, SocketKey4, SocketKey6, SocketOrigin, SocketOrigin4, SocketOrigin6, UPLINK_ETHERNET, Uplink,
};

/// Version of the maps' layout: part of the path under which they are pinned.
pub const VERSION: u32 = 2;
