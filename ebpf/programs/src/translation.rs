// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Writes new addresses and ports into a packet.

use aya_ebpf::bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR};
use slipway_ebpf_abi::IPPROTO_TCP;

use crate::csum::Difference;
use crate::family::Family;
use crate::scratch::Scratch;
use crate::skb::Skb;

/// Offsets of the checksums in the headers of TCP and UDP.
const TCP_CHECKSUM: u32 = 16;
const UDP_CHECKSUM: u32 = 6;

/// Writes addresses, ports and hop limit into the packet. Returns false if a write fails, even if others have
/// succeeded before.
#[inline(always)]
pub(crate) fn translate<F: Family>(skb: Skb, scratch: &Scratch<F>) -> bool {
    let (packet, key, way) = (&scratch.packet, &scratch.key, &scratch.way);
    let ends = (way.source, way.destination);
    if !F::write_header(skb, packet, ends) {
        return false;
    }
    // In UDP, a checksum of zero means that the sender has omitted it (RFC 768), so it must stay zero. A sum
    // that turns out to be zero is sent as all ones.
    let (offset, zero) = if key.protocol == u32::from(IPPROTO_TCP) {
        (TCP_CHECKSUM, 0)
    } else {
        (UDP_CHECKSUM, u64::from(BPF_F_MARK_MANGLED_0))
    };
    let checksum = packet.l4 + offset;
    let (old, new) =
        ((key.source_port.0, key.destination_port.0), (way.source_port.0, way.destination_port.0));
    if old != new {
        let difference = Difference::default().ports(old, new).sum();
        if !skb.store(packet.l4, &[way.source_port, way.destination_port], 0)
            || !skb.update_checksum(checksum, difference, zero)
        {
            return false;
        }
    }
    if F::same(key.source, way.source) && F::same(key.destination, way.destination) {
        return true;
    }
    let difference = F::difference((key.source, key.destination), ends).sum();
    skb.update_checksum(checksum, difference, zero | u64::from(BPF_F_PSEUDO_HDR))
}
