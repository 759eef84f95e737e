//! What a packet says about itself.

use slipway_ebpf_abi::{FlowKey, FragmentKey, FragmentPorts, IPPROTO_TCP, IPPROTO_UDP, Port, Reason};

use crate::config::count_fallback;
use crate::family::{Addr, Family};
use crate::skb::Skb;
use crate::tcp_state;
use crate::work::Work;

/// Which piece of a packet this is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// All of it.
    Whole,
    /// The first piece: it has the ports.
    First,
    /// Another piece: it has not.
    Later,
}

/// What kind of packet it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Belongs to a flow, and begins one if there is none.
    Opening,
    /// Belongs to a flow, or to nobody here.
    Following,
    /// An ICMP error: about another packet.
    Error,
}

/// A packet that the programs understand.
pub(crate) struct Packet<F: Family> {
    /// Its addresses, ports and protocol, seen from one side.
    pub(crate) key: FlowKey<Addr<F>>,
    /// Offset of the IP header.
    pub(crate) l3: u32,
    /// Offset of the header above.
    pub(crate) l4: u32,
    /// Length from the IP header on, of the packet or of each that it will be cut into.
    pub(crate) length: u32,
    /// The word of the IP header that has the hops that are left, as the packet has it: it lies before the addresses,
    /// or one word before them, so that all that is rewritten is written at once, and not read again.
    pub(crate) hops: u32,
    /// Type of service or traffic class, which a route may depend on.
    pub(crate) tos: u8,
    /// The sequence number of TCP.
    pub(crate) sequence: u32,
    /// Hops that are left.
    pub(crate) ttl: u8,
    /// The flags byte of TCP, 0 for other protocols and for pieces without a header.
    pub(crate) tcp: u8,
    /// Whether the sender wants to be told when the packet is too large.
    pub(crate) dont_fragment: bool,
    /// Which piece it is.
    pub(crate) fragment: Fragment,
    /// What kind it is.
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

/// The headers of UDP (RFC 768) and of ICMP echoes (RFC 792, RFC 4443 section 4) have the same length.
#[repr(C)]
#[derive(Clone, Copy)]
struct Eight {
    halves: [u16; 4],
}

impl<F: Family> Packet<F> {
    /// Reads the packet whose IP header is at `l3`. `false`: it is not one for the programs.
    #[inline(always)]
    pub(crate) fn read(&mut self, skb: Skb, l3: u32, side: u8) -> bool {
        self.reset(l3, side);
        let Some(upper) = F::read_header(skb, l3, self) else { return false };
        self.key.protocol = upper.protocol;
        self.l4 = upper.offset;
        self.fragment = upper.fragment;
        self.length = skb.len().wrapping_sub(l3);
        if upper.fragment == Fragment::Later {
            return self.recall_ports(skb, upper.id).is_some();
        }
        if self.read_upper(skb).is_none() {
            return false;
        }
        if upper.fragment == Fragment::First && self.kind != Kind::Error {
            self.remember_ports(skb, upper.id);
        }
        true
    }

    /// Reads the packet inside an ICMP error, of which only the beginning is there.
    #[inline(always)]
    pub(crate) fn read_inner(&mut self, skb: Skb, l3: u32, side: u8) -> bool {
        self.reset(l3, side);
        let Some(upper) = F::read_header(skb, l3, self) else { return false };
        if upper.fragment == Fragment::Later {
            return false;
        }
        self.key.protocol = upper.protocol;
        self.l4 = upper.offset;
        // RFC 792 promises 8 bytes above the IP header, no more.
        let Some(header) = skb.load::<Eight>(self.l4) else { return false };
        match upper.protocol {
            IPPROTO_TCP | IPPROTO_UDP => {
                self.key.source_port = Port(header.halves[0]);
                self.key.destination_port = Port(header.halves[1]);
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
                let header = skb.load::<Eight>(self.l4)?;
                self.key.source_port = Port(header.halves[0]);
                self.key.destination_port = Port(header.halves[1]);
                self.kind = Kind::Opening;
                self.limit_to_segment(skb, size_of::<Eight>() as u32);
            }
            icmp if icmp == F::ICMP => {
                let header = skb.load::<Eight>(self.l4)?;
                self.read_echo(header)?;
            }
            _ => return None,
        }
        Some(())
    }

    #[inline(always)]
    fn read_echo(&mut self, header: Eight) -> Option<()> {
        let kind = header.halves[0].to_ne_bytes()[0];
        let id = Port(header.halves[2]);
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

    /// A packet that was merged of several, or that the device will cut, travels in pieces of this length.
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
    fn remember_ports(&self, skb: Skb, id: u32) {
        let ports = FragmentPorts { source: self.key.source_port, destination: self.key.destination_port };
        // A full map evicts an older packet; an error here only means that the pieces are left to the stack.
        let _ = F::fragments().insert(self.fragment_key(skb, id), ports, 0);
    }

    #[inline(always)]
    fn recall_ports(&mut self, skb: Skb, id: u32) -> Option<()> {
        // SAFETY: copied at once; a piece that is taken for one of another packet needs an entry that is
        // evicted and filled again in between, and has a wrong checksum then.
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

/// Reads the packet at hand ([`Packet::read`]), on a stack of its own.
#[inline(never)]
pub(crate) fn read<F: Family>(skb: Skb, work: &mut Work<F>, l3: u32, side: u8) -> bool {
    work.packet.read(skb, l3, side)
}

/// Reads the packet inside the one at hand ([`Packet::read_inner`]), likewise.
#[inline(never)]
pub(crate) fn read_inner<F: Family>(skb: Skb, work: &mut Work<F>, l3: u32, side: u8) -> bool {
    work.inner.read_inner(skb, l3, side)
}
