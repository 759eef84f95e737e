// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The interface between the BPF programs and user space: names, sizes, keys and values of the maps.
//!
//! Numbers from a packet (addresses, ports, the identification of a fragment) are in network byte order, so
//! that the BPF programs copy them as they are; the types [`Addr4`], [`Addr6`] and [`Port`] distinguish them
//! from other numbers, which are in host byte order. Padding is named and zero: the kernel compares keys byte
//! by byte.
//!
//! A change of anything that is stored in a map needs a new [`VERSION`]; [`maps::unchanged_since`] must
//! return it for that map.
#![no_std]

mod address;
pub mod carried;
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
    IPPROTO_UDP, ONE_SIDED, ORIGINAL, PUBLISHED, SIDE_POD, SIDE_UPLINK, STATES, State,
};
pub use tables::{
    EXEMPT_SHIFT, ExemptKey, ExemptKey4, ExemptKey6, FragmentKey, FragmentKey4, FragmentKey6, FragmentPorts,
    HELD, LEFT, MASQUERADED, NOT_LOOPBACK, Pod, PodAddress, PortKey, PortKey4, PortKey6, PortTarget,
    PortTarget4, PortTarget6, Router, SEVERAL, SocketKey, SocketKey4, SocketKey6, SocketOrigin,
    SocketOrigin4, SocketOrigin6, UPLINK_ETHERNET, Uplink,
};

/// Version of the maps' layout: part of the path of their pins.
pub const VERSION: u32 = 3;
