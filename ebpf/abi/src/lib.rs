// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The part of the BPF programs that code outside of the kernel uses as well. User space uses the names, sizes, keys and
//! values of the maps; the unit tests of this crate also the [life of a flow](State), whose transitions are functions
//! that call no helper of the kernel.
//!
//! Numbers from a packet (addresses, ports) are in network byte order, so that the BPF programs copy them as they
//! are; the types [`Addr4`], [`Addr6`] and [`Port`] distinguish them from other numbers, which are in host byte order.
//! Padding is named and zero: the kernel compares keys byte by byte.
//!
//! Each version of the BPF programs has maps of its own.
#![no_std]

mod address;
mod counters;
mod flow;
mod hash;
mod life;
pub mod maps;
#[cfg(feature = "user")]
mod pod;
mod record;

pub use address::{Addr4, Addr6, Port};
pub use counters::{COUNTERS, Counter};
pub use flow::{
    Container, Entry, Entry4, Entry6, FlowKey, FlowKey4, FlowKey6, HAS_ETHERNET, IPPROTO_TCP, IPPROTO_UDP,
    TICK_SHIFT, TO_PEER, Way,
};
pub use hash::{KEYS, Keyed};
pub use life::{Arrival, CARRIED_FOR, Count, State, Step, Young, first_candidate};
pub use record::{Departure, Outcome, PROOF, Record, Record4, Record6, Stage};
