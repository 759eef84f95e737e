// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Scratch memory of a program run.
//!
//! It is an element of a per-CPU map instead of the program's stack. The verifier tracks every value on a stack
//! through every branch, but knows nothing of values in a map: so it verifies each function once, not once
//! for each path to it. And a stack has only 512 bytes.
//!
//! The programs run in softirq context, where no other one interrupts them on the same processor.

use aya_ebpf::bindings::bpf_fib_lookup;
use slipway_ebpf_abi::{Action, Flow, FlowKey, IPPROTO_TCP, ORIGINAL};

use crate::admit::{Ports, first_state};
use crate::family::{Addr, Ends, Family};
use crate::memory::{clear, copy};
use crate::packet::Packet;
use crate::skb::Skb;

/// The packet, and what is known about it.
pub(crate) struct Scratch<F: Family> {
    /// The packet.
    pub(crate) packet: Packet<F>,
    /// The packet inside it, if it is an ICMP error.
    pub(crate) inner: Packet<F>,
    /// The packet's direction of its flow.
    pub(crate) flow: Flow<Addr<F>>,
    /// Key of the reverse direction.
    pub(crate) reverse_key: FlowKey<Addr<F>>,
    /// The reverse direction, while it is built.
    pub(crate) reverse: Flow<Addr<F>>,
    /// Source ports for a new flow.
    pub(crate) ports: Ports,
    /// New addresses of the packet.
    pub(crate) ends: Ends<F>,
    /// Route lookup: request, then result.
    pub(crate) route: bpf_fib_lookup,
    /// Another lookup, while the result in `route` is still needed.
    pub(crate) second_lookup: bpf_fib_lookup,
}

impl<F: Family> Scratch<F> {
    /// Sets [`Scratch::reverse_key`].
    #[inline(always)]
    pub(crate) fn set_reverse_key(&mut self) {
        let (key, flow, other) = (&self.packet.key, &self.flow, &mut self.reverse_key);
        other.source = flow.destination;
        other.destination = flow.source;
        other.source_port = flow.destination_port;
        other.destination_port = flow.source_port;
        other.protocol = key.protocol;
        other.side = key.side ^ 1;
        other.pad = 0;
    }

    /// Starts a new flow in [`Scratch::flow`].
    #[inline(always)]
    pub(crate) fn begin_flow(&mut self, skb: Skb, now: u32) {
        clear(&raw mut self.flow);
        self.flow.packets = skb.segments();
        self.flow.bytes = u64::from(skb.len());
        self.flow.last_seen = now;
        self.flow.mark = if self.packet.key.protocol == IPPROTO_TCP { self.packet.sequence } else { now };
        self.flow.state = first_state(self.packet.key.protocol);
        self.flow.flags = ORIGINAL;
    }

    /// Sets [`Scratch::reverse`], without packets of its own.
    #[inline(always)]
    pub(crate) fn set_reverse(&mut self) {
        copy(&raw const self.flow, &raw mut self.reverse);
        let (key, reverse) = (&self.packet.key, &mut self.reverse);
        clear(&raw mut reverse.packets);
        clear(&raw mut reverse.bytes);
        if key.protocol == IPPROTO_TCP {
            // Each direction has its own sequence numbers.
            reverse.mark = 0;
        }
        reverse.source = key.destination;
        reverse.destination = key.source;
        reverse.source_port = key.destination_port;
        reverse.destination_port = key.source_port;
        // The reverse of one translating action is the other one.
        if reverse.action != Action::Pass as u8 {
            reverse.action = Action::ToPod as u8 + Action::ToUplink as u8 - reverse.action;
        }
        reverse.flags ^= ORIGINAL;
    }
}
