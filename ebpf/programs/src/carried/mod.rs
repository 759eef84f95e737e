// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Netfilter checks a flow, the BPF programs carry it.
//!
//! A packet of a flow without an entry passes the kernel's stack, with the index of its record in `tc_index`.
//! The program at the egress of an interface compares the packet that comes out with the record, and writes an
//! entry with the way that the kernel's stack chose: translation, interface, link-layer header. The programs at ingress
//! send the following packets of that direction the same way. Once in each tick, a packet passes the kernel's stack
//! again and renews the entry: so conntrack keeps its own, and changed rules apply to running flows.
//!
//! Packets that the kernel's stack drops, delivers to the node or encapsulates never come out as they went in, and get
//! no entry.

mod egress;
mod ingress;
mod maps;

use slipway_ebpf_abi::carried::{Carried, CarriedKey, Pending, Way};
use slipway_ebpf_abi::{IPPROTO_TCP, IPPROTO_UDP, Port};

use crate::family::{Addr, Family};
use crate::packet::{Fragment, Packet};
use crate::skb::Skb;

pub(crate) use egress::egress;
pub(crate) use ingress::ingress;

/// Scratch memory of a program run, in a per-CPU map: see [`crate::scratch`].
pub(crate) struct Scratch<F: Family> {
    packet: Packet<F>,
    /// TCP: acknowledgment number, in host byte order.
    acknowledgment: u32,
    /// [`Pending::proof`].
    proof: [u32; 3],
    /// Length from the header above IP on.
    above: u32,
    key: CarriedKey<Addr<F>>,
    /// The key of the reverse direction.
    reverse: CarriedKey<Addr<F>>,
    record: Pending<Addr<F>>,
    way: Way<Addr<F>>,
    entry: Carried<Addr<F>>,
}

/// First 16 bytes of a TCP header (RFC 9293, section 3.1).
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
    /// neither TCP nor UDP, a fragment, or not whole.
    #[inline(always)]
    fn read(&mut self, skb: Skb, l3: u32) -> bool {
        let packet = &mut self.packet;
        packet.l3 = l3;
        packet.tcp = 0;
        let Some(upper) = F::read_header(skb, l3, packet) else { return false };
        let present = skb.len().wrapping_sub(l3);
        let payload = skb.segment_size();
        // Short frames are padded. A packet of segments is not, and may be longer than the header's field.
        let total = if payload == 0 { packet.total } else { present };
        let before = upper.offset.wrapping_sub(l3);
        if upper.fragment != Fragment::Whole || total > present || total < before {
            return false;
        }
        packet.l4 = upper.offset;
        packet.length = total;
        self.above = total - before;
        let (ports, header) = match upper.protocol {
            IPPROTO_TCP => {
                let Some(tcp) = skb.load::<Tcp>(packet.l4) else { return false };
                let [offset, flags, ..] = tcp.offset_flags_window.to_ne_bytes();
                packet.tcp = flags;
                packet.sequence = u32::from_be(tcp.sequence);
                self.acknowledgment = u32::from_be(tcp.acknowledgment);
                self.proof = [tcp.sequence, tcp.acknowledgment, tcp.offset_flags_window];
                (tcp.ports, u32::from(offset >> 4) * 4)
            }
            IPPROTO_UDP => {
                let Some(udp) = skb.load::<Udp>(packet.l4) else { return false };
                self.proof = [u32::from(udp.length), 0, 0];
                (udp.ports, size_of::<Udp>() as u32)
            }
            _ => return false,
        };
        if payload != 0 {
            packet.length = before + header + payload;
        }
        self.key.source = packet.key.source;
        self.key.destination = packet.key.destination;
        self.key.source_port = ports[0];
        self.key.destination_port = ports[1];
        self.key.interface = skb.interface();
        self.key.protocol = u32::from(upper.protocol);
        true
    }

    /// Adds the beginning of a datagram's payload to [`Scratch::proof`].
    #[inline(always)]
    fn read_payload(&mut self, skb: Skb) {
        if self.key.protocol == u32::from(IPPROTO_UDP)
            && let Some([first, second]) = skb.load::<[u32; 2]>(self.packet.l4 + size_of::<Udp>() as u32)
        {
            self.proof[1] = first;
            self.proof[2] = second;
        }
    }
}
