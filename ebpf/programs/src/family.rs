// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The differences between IPv4 and IPv6. The programs are written once, generic over a [`Family`], and
//! compiled for both.

use crate::csum::Difference;
use crate::packet::Packet;
use crate::skb::Skb;

pub(crate) type Addr<F> = <F as Family>::Addr;

/// Source and destination.
pub(crate) type Ends<F> = (Addr<F>, Addr<F>);

/// IPv4 or IPv6.
pub(crate) trait Family: Copy + Sized + 'static {
    type Addr: Copy + Default;

    const IS_V6: bool;
    /// Length of an IP header without options.
    const HEADER: u32;

    /// Decodes the IP header at `offset` into `packet`. Returns the protocol above IP. Returns none if the
    /// packet is a fragment, or if its header has options, because the kernel's stack may then have more to
    /// do than to forward it. Extension headers of IPv6 count as protocols above IP.
    fn read_header(skb: Skb, offset: u32, packet: &mut Packet<Self::Addr>) -> Option<u8>;
    /// Writes new addresses and the decremented hop limit into the IP header. Returns false if that fails.
    fn write_header(skb: Skb, packet: &Packet<Self::Addr>, new: Ends<Self>) -> bool;
    /// The change of a checksum when new addresses replace the old ones.
    fn difference(old: Ends<Self>, new: Ends<Self>) -> Difference;
    /// True if two addresses are equal. The words are compared one by one, because `==` of arrays calls a
    /// function that a BPF program does not have.
    fn same(one: Self::Addr, other: Self::Addr) -> bool;
}
