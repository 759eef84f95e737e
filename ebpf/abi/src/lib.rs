// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! What the BPF programs share with code outside of the kernel. User space needs the names, sizes, keys and
//! values of the maps. The unit tests of this crate need the [life of a flow](State), whose transitions are
//! functions that call no helper of the kernel.
//!
//! Three verbs have a fixed meaning. The programs *note* a packet when they write a [`Record`] of it and
//! leave it to the kernel's stack. The packet *comes out* when the program at egress recognises it by that
//! record. The programs *carry* a packet when they redirect it past the kernel's stack.
//!
//! Addresses and ports stay in network byte order, so that the BPF programs can copy them from a packet as
//! they are. The types [`Addr4`], [`Addr6`] and [`Port`] distinguish them from numbers in host byte order.
//! Words that are only copied and compared, such as those of [`Record::proof`], have the bytes of the packet
//! as well. Padding is a named field that is always zero, because the kernel compares keys byte by byte.
//!
//! Each version of the BPF programs has its own maps, so the layout of keys and values may change with every
//! version.
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
