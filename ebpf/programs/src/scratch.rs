// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The scratch memory of a program run, and the decoding of a packet into it.
//!
//! The memory is an element of a per-CPU map rather than a part of the program's stack. The verifier tracks
//! the values on the stack, and follows the same code again if they differ. It knows nothing about the values
//! in a map, so it has far fewer states to follow. Besides, the stack has only 512 bytes.
//!
//! The programs run with bottom halves disabled, so that no other one interrupts them on the same processor.
//! That does not hold on real-time kernels, where user space does not load them.

use slipway_ebpf_abi::{Entry, FlowKey, IPPROTO_TCP, IPPROTO_UDP, PROOF, Port, Record, Way};

use crate::family::{Addr, Family};
use crate::packet::Packet;
use crate::skb::Skb;

/// The packet, and what a program has found out about it.
pub(crate) struct Scratch<F: Family> {
    pub(crate) packet: Packet<Addr<F>>,
    /// TCP: the acknowledgment number, in host byte order.
    pub(crate) acknowledgment: u32,
    /// The words for [`Record::proof`].
    pub(crate) proof: [u32; PROOF],
    /// The length from the TCP or UDP header on.
    pub(crate) above: u32,
    /// The key of the packet's direction.
    pub(crate) key: FlowKey<Addr<F>>,
    /// The key of the reverse direction.
    pub(crate) reverse: FlowKey<Addr<F>>,
    /// At egress a copy of the packet's record; at ingress the record to be written.
    pub(crate) record: Record<Addr<F>>,
    pub(crate) way: Way<Addr<F>>,
    /// [`Entry::queued`] after the packet itself was counted.
    pub(crate) queued: u64,
    pub(crate) entry: Entry<Addr<F>>,
}

/// The first 16 bytes of a TCP header (RFC 9293, section 3.1).
#[repr(C)]
#[derive(Clone, Copy)]
struct Tcp {
    ports: [Port; 2],
    sequence: u32,
    acknowledgment: u32,
    offset_flags_window: u32,
}

/// A UDP header (RFC 768).
#[repr(C)]
#[derive(Clone, Copy)]
struct Udp {
    ports: [Port; 2],
    length: u16,
    checksum: u16,
}

impl<F: Family> Scratch<F> {
    /// Decodes the packet whose IP header is at `l3`, and sets [`Scratch::key`]. Returns false if it is
    /// neither TCP nor UDP, is a fragment, has IP options or extension headers, or is truncated.
    #[inline(always)]
    pub(crate) fn read(&mut self, skb: Skb, l3: u32) -> bool {
        let packet = &mut self.packet;
        packet.l3 = l3;
        packet.tcp = 0;
        let Some(protocol) = F::read_header(skb, l3, packet) else { return false };
        let present = skb.len().wrapping_sub(l3);
        let payload = skb.segment_size();
        // A short frame may be padded, so the length in the IP header counts. A packet of several segments is
        // never padded, and may be longer than that field can say.
        let total = if payload == 0 { packet.total } else { present };
        if total > present || total < F::HEADER {
            return false;
        }
        packet.l4 = l3 + F::HEADER;
        packet.length = total;
        self.above = total - F::HEADER;
        let (ports, header) = match protocol {
            IPPROTO_TCP => {
                let Some(tcp) = skb.load::<Tcp>(packet.l4) else { return false };
                let [offset, flags, ..] = tcp.offset_flags_window.to_ne_bytes();
                packet.tcp = flags;
                packet.sequence = u32::from_be(tcp.sequence);
                self.acknowledgment = u32::from_be(tcp.acknowledgment);
                self.proof = [tcp.sequence, tcp.acknowledgment, tcp.offset_flags_window, packet.id, 0, 0];
                (tcp.ports, u32::from(offset >> 4) * 4)
            }
            IPPROTO_UDP => {
                let Some(udp) = skb.load::<Udp>(packet.l4) else { return false };
                self.proof = [u32::from(udp.length), packet.id, 0, 0, 0, 0];
                (udp.ports, size_of::<Udp>() as u32)
            }
            _ => return false,
        };
        if payload != 0 {
            packet.length = F::HEADER + header + payload;
        }
        self.key.source = packet.source;
        self.key.destination = packet.destination;
        self.key.source_port = ports[0];
        self.key.destination_port = ports[1];
        self.key.interface = skb.interface();
        self.key.protocol = u32::from(protocol);
        true
    }

    /// Adds the beginning and the end of a UDP payload to [`Scratch::proof`].
    #[inline(always)]
    pub(crate) fn read_payload(&mut self, skb: Skb) {
        const HEADER: u32 = size_of::<Udp>() as u32;
        /// The number of bytes at the beginning, and at the end.
        const PART: u32 = size_of::<[u32; 2]>() as u32;
        if self.key.protocol != u32::from(IPPROTO_UDP) {
            return;
        }
        let begin = self.packet.l4 + HEADER;
        if self.above < HEADER + PART {
            if let Some(first) = skb.load::<u32>(begin) {
                self.proof[2] = first;
            }
            return;
        }
        if let Some([first, second]) = skb.load::<[u32; 2]>(begin) {
            self.proof[2] = first;
            self.proof[3] = second;
        }
        if let Some([first, second]) = skb.load::<[u32; 2]>(self.packet.l4 + self.above - PART) {
            self.proof[4] = first;
            self.proof[5] = second;
        }
    }
}
