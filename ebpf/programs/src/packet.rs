// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Decoding packets.

use slipway_ebpf_abi::{FlowKey, FragmentKey, FragmentPorts, IPPROTO_TCP, IPPROTO_UDP, Port, Reason};

use crate::config::count_fallback;
use crate::family::{Addr, Family};
use crate::scratch::Scratch;
use crate::skb::Skb;
use crate::tcp_state;

/// Position of a fragment in its packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// Not a fragment.
    Whole,
    /// First fragment, which has the ports.
    First,
    /// Later fragment, without ports.
    Later,
}

/// Role of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Belongs to a flow, or begins one.
    Opening,
    /// Belongs to an existing flow only.
    Following,
    /// An ICMP error about another packet.
    Error,
}

/// A decoded packet.
pub(crate) struct Packet<F: Family> {
    /// Addresses, ports, protocol and side.
    pub(crate) key: FlowKey<Addr<F>>,
    /// Offset of the IP header.
    pub(crate) l3: u32,
    /// Offset of the header above IP.
    pub(crate) l4: u32,
    /// Length from the IP header on; of a packet merged by GRO, that of its segments.
    pub(crate) length: u32,
    /// Length from the IP header on, by that header.
    pub(crate) total: u32,
    /// The 32-bit word of the IP header with the hop limit, in network byte order. It is next to the
    /// addresses, so that one write rewrites all, without reading the word again.
    pub(crate) hops: u32,
    /// Type of service or traffic class, on which a route may depend.
    pub(crate) tos: u8,
    /// TCP: sequence number.
    pub(crate) sequence: u32,
    /// Time to live or hop limit.
    pub(crate) ttl: u8,
    /// TCP: flags; 0 for other protocols and later fragments.
    pub(crate) tcp: u8,
    /// True if an ICMP error must be sent when the packet is too large.
    pub(crate) dont_fragment: bool,
    /// Position in a fragmented packet.
    pub(crate) fragment: Fragment,
    /// Role.
    pub(crate) kind: Kind,
}

/// First 14 bytes of a TCP header (RFC 9293, section 3.1).
#[repr(C)]
#[derive(Clone, Copy)]
struct Tcp {
    ports: [Port; 2],
    sequence: u32,
    acknowledgment: u32,
    offset: u8,
    flags: u8,
}

/// A header of UDP (RFC 768) or of an ICMP echo (RFC 792, RFC 4443 section 4).
#[repr(C)]
#[derive(Clone, Copy)]
struct EightBytes {
    fields: [u16; 4],
}

impl<F: Family> Packet<F> {
    /// Decodes the packet whose IP header is at `l3`. Returns false if the BPF programs do not handle it.
    #[inline(always)]
    pub(crate) fn read(&mut self, skb: Skb, l3: u32, side: u8) -> bool {
        self.reset(l3, side);
        let Some(upper) = F::read_header(skb, l3, self) else { return false };
        self.key.protocol = upper.protocol;
        self.l4 = upper.offset;
        self.fragment = upper.fragment;
        self.length = skb.len().wrapping_sub(l3);
        if upper.fragment == Fragment::Later {
            return self.load_ports(skb, upper.id).is_some();
        }
        if self.read_upper(skb).is_none() {
            return false;
        }
        if upper.fragment == Fragment::First && self.kind != Kind::Error {
            self.store_ports(skb, upper.id);
        }
        true
    }

    /// Decodes the packet inside an ICMP error, of which only the beginning is there.
    #[inline(always)]
    pub(crate) fn read_inner(&mut self, skb: Skb, l3: u32, side: u8) -> bool {
        self.reset(l3, side);
        let Some(upper) = F::read_header(skb, l3, self) else { return false };
        if upper.fragment == Fragment::Later {
            return false;
        }
        self.key.protocol = upper.protocol;
        self.l4 = upper.offset;
        // RFC 792 guarantees 8 bytes after the IP header.
        let Some(header) = skb.load::<EightBytes>(self.l4) else { return false };
        match upper.protocol {
            IPPROTO_TCP | IPPROTO_UDP => {
                self.key.source_port = Port(header.fields[0]);
                self.key.destination_port = Port(header.fields[1]);
                true
            }
            icmp if icmp == F::ICMP => self.read_echo(header).is_some() && self.kind != Kind::Error,
            _ => false,
        }
    }

    #[inline(always)]
    fn reset(&mut self, l3: u32, side: u8) {
        self.key.source_port = Port(0);
        self.key.destination_port = Port(0);
        self.key.side = side;
        self.key.pad = 0;
        self.l3 = l3;
        self.tcp = 0;
        self.fragment = Fragment::Whole;
        self.kind = Kind::Following;
    }

    #[inline(always)]
    fn read_upper(&mut self, skb: Skb) -> Option<()> {
        match self.key.protocol {
            IPPROTO_TCP => {
                let header = skb.load::<Tcp>(self.l4)?;
                self.key.source_port = header.ports[0];
                self.key.destination_port = header.ports[1];
                self.tcp = header.flags;
                self.sequence = u32::from_be(header.sequence);
                if tcp_state::opens(header.flags) {
                    self.kind = Kind::Opening;
                }
                self.limit_to_segment(skb, u32::from(header.offset >> 4) * 4);
            }
            IPPROTO_UDP => {
                let header = skb.load::<EightBytes>(self.l4)?;
                self.key.source_port = Port(header.fields[0]);
                self.key.destination_port = Port(header.fields[1]);
                self.kind = Kind::Opening;
                self.limit_to_segment(skb, size_of::<EightBytes>() as u32);
            }
            icmp if icmp == F::ICMP => {
                let header = skb.load::<EightBytes>(self.l4)?;
                self.read_echo(header)?;
            }
            _ => return None,
        }
        Some(())
    }

    #[inline(always)]
    fn read_echo(&mut self, header: EightBytes) -> Option<()> {
        let kind = header.fields[0].to_ne_bytes()[0];
        let id = Port(header.fields[2]);
        if kind == F::ECHO_REQUEST {
            self.key.source_port = id;
            self.kind = Kind::Opening;
        } else if kind == F::ECHO_REPLY {
            self.key.destination_port = id;
        } else if F::is_error(kind) {
            self.kind = Kind::Error;
        } else {
            return None;
        }
        Some(())
    }

    /// Sets the length to that of a segment, for a packet that was merged by GRO or that the device will
    /// segment.
    #[inline(always)]
    fn limit_to_segment(&mut self, skb: Skb, header: u32) {
        let payload = skb.segment_size();
        if payload != 0 {
            self.length = self.l4.wrapping_sub(self.l3).wrapping_add(header).wrapping_add(payload);
        }
    }

    #[inline(always)]
    fn fragment_key(&self, skb: Skb, id: u32) -> FragmentKey<Addr<F>> {
        FragmentKey {
            source: self.key.source,
            destination: self.key.destination,
            id,
            interface: skb.interface(),
            protocol: u32::from(self.key.protocol),
        }
    }

    #[inline(always)]
    fn store_ports(&self, skb: Skb, id: u32) {
        let ports = FragmentPorts { source: self.key.source_port, destination: self.key.destination_port };
        // A full map evicts an older packet. After an error the later fragments are left to the kernel's stack.
        let _ = F::fragments().insert(self.fragment_key(skb, id), ports, 0);
    }

    #[inline(always)]
    fn load_ports(&mut self, skb: Skb, id: u32) -> Option<()> {
        // SAFETY: copied at once. If the entry is evicted and reused concurrently, a fragment is mistaken for
        // one of another packet, and fails that packet's checksum.
        match unsafe { F::fragments().get(self.fragment_key(skb, id)) } {
            Some(ports) => {
                self.key.source_port = ports.source;
                self.key.destination_port = ports.destination;
                Some(())
            }
            None => {
                count_fallback(Reason::Fragment);
                None
            }
        }
    }
}

/// Decodes the packet ([`Packet::read`]), in a stack frame of its own.
#[inline(never)]
pub(crate) fn read<F: Family>(skb: Skb, scratch: &mut Scratch<F>, l3: u32, side: u8) -> bool {
    scratch.packet.read(skb, l3, side)
}

/// Decodes the packet inside an ICMP error ([`Packet::read_inner`]), in a stack frame of its own.
#[inline(never)]
pub(crate) fn read_inner<F: Family>(skb: Skb, scratch: &mut Scratch<F>, l3: u32, side: u8) -> bool {
    scratch.inner.read_inner(skb, l3, side)
}
