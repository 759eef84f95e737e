//! What a program is working on.
//!
//! It is kept in a map of one element for each processor instead of the stack. The verifier follows every value
//! on the stack through every branch, but takes what is in a map as unknown: so that it looks at each function
//! once, and not once for each way that leads there. And the stack has 512 bytes.
//!
//! The programs run in softirq context, where none of them is interrupted by another one on the same processor.

use aya_ebpf::bindings::bpf_fib_lookup;
use slipway_ebpf_abi::{Action, Flow, FlowKey, IPPROTO_TCP, ORIGINAL};

use crate::admit::{Ports, first_state};
use crate::family::{Addr, Ends, Family};
use crate::packet::Packet;
use crate::skb::Skb;
use crate::words::{clear, copy};

/// The packet at hand, and what is known about it.
pub(crate) struct Work<F: Family> {
    /// The packet.
    pub(crate) packet: Packet<F>,
    /// The packet inside it, if it is an ICMP error.
    pub(crate) inner: Packet<F>,
    /// The half of its flow that it belongs to.
    pub(crate) flow: Flow<Addr<F>>,
    /// Key of the other half.
    pub(crate) other: FlowKey<Addr<F>>,
    /// The other half, when it is made.
    pub(crate) half: Flow<Addr<F>>,
    /// Where a port for a new flow is looked for.
    pub(crate) ports: Ports,
    /// The addresses that the packet gets.
    pub(crate) ends: Ends<F>,
    /// The question for its route, and the answer.
    pub(crate) route: bpf_fib_lookup,
    /// Another question, whose answer is one word: that in `route` is still needed.
    pub(crate) doubt: bpf_fib_lookup,
}

impl<F: Family> Work<F> {
    /// Fills [`Work::other`].
    #[inline(always)]
    pub(crate) fn turn_key(&mut self) {
        let (key, flow, other) = (&self.packet.key, &self.flow, &mut self.other);
        other.source = flow.destination;
        other.destination = flow.source;
        other.source_port = flow.destination_port;
        other.destination_port = flow.source_port;
        other.protocol = key.protocol;
        other.side = key.side ^ 1;
        other.pad = 0;
    }

    /// Fills [`Work::flow`] with what every flow begins with.
    #[inline(always)]
    pub(crate) fn begin(&mut self, skb: Skb, now: u32) {
        clear(&raw mut self.flow);
        self.flow.packets = skb.segments();
        self.flow.bytes = u64::from(skb.len());
        self.flow.last_seen = now;
        self.flow.mark = if self.packet.key.protocol == IPPROTO_TCP { self.packet.sequence } else { now };
        self.flow.state = first_state(self.packet.key.protocol);
        self.flow.flags = ORIGINAL;
    }

    /// Fills [`Work::half`], which has seen no packet of its own yet.
    #[inline(always)]
    pub(crate) fn turn_half(&mut self) {
        copy(&raw const self.flow, &raw mut self.half);
        let (key, half) = (&self.packet.key, &mut self.half);
        clear(&raw mut half.packets);
        clear(&raw mut half.bytes);
        if key.protocol == IPPROTO_TCP {
            // Each side has its own numbers.
            half.mark = 0;
        }
        half.source = key.destination;
        half.destination = key.source;
        half.source_port = key.destination_port;
        half.destination_port = key.source_port;
        // To the uplink and to the pod are each other's counterpart, and 3 in sum.
        if half.action != Action::Pass as u8 {
            half.action = Action::ToPod as u8 + Action::ToUplink as u8 - half.action;
        }
        half.flags ^= ORIGINAL;
    }
}
