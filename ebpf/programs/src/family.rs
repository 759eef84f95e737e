// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The differences between IPv4 and IPv6. The programs are written once, for a [`Family`], and compiled
//! twice.

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

    /// Decodes the IP header at `offset` into `packet`. Returns the protocol above; none if the packet is a fragment,
    /// or the kernel's stack may have more to do than to forward it: the header has options. The extension headers of
    /// IPv6 count as protocols above.
    fn read_header(skb: Skb, offset: u32, packet: &mut Packet<Self::Addr>) -> Option<u8>;
    /// Writes new addresses and the decremented hop limit into the IP header.
    fn write_header(skb: Skb, packet: &Packet<Self::Addr>, new: Ends<Self>) -> bool;
    /// The change of a sum by new addresses.
    fn difference(old: Ends<Self>, new: Ends<Self>) -> Difference;
    /// True if two addresses are equal. Compares word by word: `==` of an array calls a function that a BPF
    /// program does not have.
    fn same(one: Self::Addr, other: Self::Addr) -> bool;
}
