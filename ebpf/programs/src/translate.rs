// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Writing new addresses and ports into a packet.

use aya_ebpf::bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR};
use slipway_ebpf_abi::{IPPROTO_TCP, IPPROTO_UDP, Port};

use crate::csum::Difference;
use crate::family::Family;
use crate::packet::Fragment;
use crate::scratch::Scratch;
use crate::skb::Skb;

/// Offset of the checksum in the header above IP.
#[inline(always)]
pub(crate) fn checksum_offset(protocol: u8) -> u32 {
    match protocol {
        IPPROTO_TCP => 16,
        IPPROTO_UDP => 6,
        _ => 2,
    }
}

/// True if that checksum covers the addresses.
#[inline(always)]
pub(crate) fn covers_addresses<F: Family>(protocol: u8) -> bool {
    protocol != F::ICMP || F::ICMP_PSEUDO
}

/// Writes the ports, or the identifier of an echo, into the header at `l4`.
#[inline(always)]
pub(crate) fn write_ports<F: Family>(skb: Skb, l4: u32, protocol: u8, ports: (Port, Port)) -> bool {
    if protocol == F::ICMP {
        // One of them is 0: an echo has one identifier, which is the port of the host that requests.
        let id = Port(ports.0.0 | ports.1.0);
        skb.store(l4 + 4, &id, 0)
    } else {
        skb.store(l4, &[ports.0, ports.1], 0)
    }
}

/// Writes [`Scratch::ends`] and the decremented hop limit into the IP header.
#[inline(never)]
pub(crate) fn write_header<F: Family>(skb: Skb, scratch: &Scratch<F>) -> bool {
    F::write_header(skb, &scratch.packet, scratch.ends)
}

/// Translates the packet as the flow requires. Returns false if it failed halfway: the packet must be
/// dropped.
#[inline(never)]
pub(crate) fn translate<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> bool {
    scratch.ends = (scratch.flow.source, scratch.flow.destination);
    if !skb.untag() || !write_header(skb, scratch) {
        return false;
    }
    if scratch.packet.fragment == Fragment::Later {
        return true;
    }
    let (packet, key, flow) = (&scratch.packet, &scratch.packet.key, &scratch.flow);
    let checksum = packet.l4 + checksum_offset(key.protocol);
    // A zero means that a UDP sender omits the checksum (RFC 768); a checksum of zero is sent as all ones.
    let zero = if key.protocol == IPPROTO_UDP { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
    let (old_ports, new_ports) =
        ((key.source_port.0, key.destination_port.0), (flow.source_port.0, flow.destination_port.0));
    if old_ports != new_ports {
        let difference = Difference::default().ports(old_ports, new_ports).sum();
        let ports = (flow.source_port, flow.destination_port);
        if !write_ports::<F>(skb, packet.l4, key.protocol, ports)
            || !skb.update_checksum(checksum, difference, zero)
        {
            return false;
        }
    }
    if !covers_addresses::<F>(key.protocol) {
        return true;
    }
    let difference = F::difference((key.source, key.destination), scratch.ends).sum();
    skb.update_checksum(checksum, difference, zero | u64::from(BPF_F_PSEUDO_HDR))
}
