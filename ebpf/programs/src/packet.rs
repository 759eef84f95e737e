// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! A decoded packet.

use slipway_ebpf_abi::Arrival;

// The flags byte of the TCP header (RFC 9293, section 3.1).
pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// The fields of a packet that the programs need.
pub(crate) struct Packet<A> {
    pub(crate) source: A,
    pub(crate) destination: A,
    /// Offset of the IP header.
    pub(crate) l3: u32,
    /// Offset of the TCP or UDP header.
    pub(crate) l4: u32,
    /// The length from the IP header on; for a packet that GRO merged, the length of its segments.
    pub(crate) length: u32,
    /// The length from the IP header on, as that header states it.
    pub(crate) total: u32,
    /// The 32-bit word of the IP header that contains the hop limit, in network byte order. The addresses
    /// follow it, so that one write changes all of them, and the word need not be read again.
    pub(crate) hops: u32,
    pub(crate) sequence: u32,
    /// The identification of IPv4, or the flow label of IPv6.
    pub(crate) id: u32,
    /// Type of service, or the traffic class of IPv6.
    pub(crate) tos: u8,
    /// Time to live, or the hop limit of IPv6.
    pub(crate) ttl: u8,
    /// The flags of TCP; 0 for UDP.
    pub(crate) tcp: u8,
}

impl<A> Packet<A> {
    /// True if a connection may begin or end with the packet.
    #[inline(always)]
    pub(crate) fn is_control(&self) -> bool {
        self.tcp & (SYN | FIN | RST) != 0
    }

    #[inline(always)]
    pub(crate) fn is_acknowledgment(&self) -> bool {
        self.tcp & ACK != 0
    }

    #[inline(always)]
    pub(crate) fn arrival(&self) -> Arrival {
        Arrival { length: self.length, dscp: u32::from(self.tos >> 2), ttl: self.ttl }
    }
}
