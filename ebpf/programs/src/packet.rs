// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! A decoded packet.

use crate::family::{Addr, Family};

/// FIN, in the flags byte of the TCP header (RFC 9293, section 3.1).
pub(crate) const FIN: u8 = 0x01;
/// SYN.
pub(crate) const SYN: u8 = 0x02;
/// RST.
pub(crate) const RST: u8 = 0x04;
/// ACK.
pub(crate) const ACK: u8 = 0x10;

/// A packet, as far as a program needs it.
pub(crate) struct Packet<F: Family> {
    /// Source.
    pub(crate) source: Addr<F>,
    /// Destination.
    pub(crate) destination: Addr<F>,
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
    /// TCP: sequence number.
    pub(crate) sequence: u32,
    /// Type of service or traffic class.
    pub(crate) tos: u8,
    /// Time to live or hop limit.
    pub(crate) ttl: u8,
    /// TCP: flags; 0 for UDP.
    pub(crate) tcp: u8,
}
