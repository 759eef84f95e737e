// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Packets from outside.

use slipway_ebpf_abi::{
    Action, Counter, HELD, IPPROTO_TCP, IPPROTO_UDP, LEFT, ORIGINAL, PUBLISHED, PodAddress, PortKey,
    PortTarget, Reason, SIDE_UPLINK,
};

use crate::admit::{self, Admission, Ports};
use crate::config::{count, count_fallback, count_fallback_number, count_packet};
use crate::family::{Addr, Family};
use crate::flow;
use crate::icmp;
use crate::maps::{PODS, UPLINKS};
use crate::memory::clear;
use crate::packet::{self, Fragment, Kind, Packet};
use crate::route::{self, Verdict};
use crate::scratch::Scratch;
use crate::skb::{Act, Skb, now};
use crate::translate::translate;

/// The program for one family. `l3`: offset of the IP header.
#[inline(never)]
pub(crate) fn ingress<F: Family>(skb: Skb, l3: u32) -> i32 {
    let Some(scratch) = F::scratch() else { return Act::STACK };
    if packet::read(skb, scratch, l3, SIDE_UPLINK) { handle(skb, scratch) } else { Act::STACK }
}

#[inline(never)]
fn handle<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    if scratch.packet.kind == Kind::Error {
        return icmp::error(skb, scratch);
    }
    let now = now();
    if let Some(hit) = flow::find(scratch, now) {
        if scratch.flow.action == Action::ToPod as u8 && scratch.packet.ttl <= 1 {
            count_fallback(Reason::Ttl);
            return Act::STACK;
        }
        hit.record(skb, scratch, now);
        if scratch.flow.action != Action::ToPod as u8 {
            return Act::STACK;
        }
        return into_pod(skb, scratch);
    }
    // Only TCP's first SYN and UDP begin a flow to a pod; the node itself replies to pings.
    let begins = scratch.packet.kind == Kind::Opening
        && scratch.packet.fragment != Fragment::Later
        && (scratch.packet.key.protocol == IPPROTO_TCP || scratch.packet.key.protocol == IPPROTO_UDP);
    if !begins || scratch.packet.ttl <= 1 {
        return Act::STACK;
    }
    scratch.begin_flow(skb, now);
    scratch.flow.source = scratch.packet.key.source;
    scratch.flow.source_port = scratch.packet.key.source_port;
    if admit(skb, scratch) != Admission::TRANSLATED {
        return Act::STACK;
    }
    into_pod(skb, scratch)
}

/// Translates the packet and redirects it into the pod.
#[inline(never)]
fn into_pod<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    count_packet(skb, Counter::ToPodPackets, Counter::ToPodBytes);
    if !translate(skb, scratch) || scratch.packet.l3 == 0 && !skb.add_ethernet() {
        count(Counter::DropWrite);
        return Act::DROP;
    }
    skb.into_pod(scratch.flow.pod)
}

/// The published port of a packet: first with its address, then for all addresses.
#[inline(always)]
fn port_of<F: Family>(packet: &Packet<F>) -> Option<PortTarget<Addr<F>>> {
    let mut key = PortKey {
        address: packet.key.destination,
        port: packet.key.destination_port,
        protocol: packet.key.protocol,
        pad: 0,
    };
    // SAFETY: copied at once; user space replaces whole elements.
    if let Some(target) = unsafe { F::ports().get(&key) } {
        return Some(*target);
    }
    clear(&raw mut key.address);
    // SAFETY: as above.
    unsafe { F::ports().get(&key) }.copied()
}

/// Decides about the first packet of a flow, completes [`Scratch::flow`] and records it.
#[inline(never)]
fn admit<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> u32 {
    // A port is published on the node's addresses: a pod's own address comes first, whatever the port.
    let wanted = match pod_of(&scratch.packet) {
        Some(pod) => direct(skb, scratch, pod),
        None => port_of(&scratch.packet).is_some_and(|target| published(skb, scratch, &target)),
    };
    if !wanted {
        return Admission::LEFT;
    }
    scratch.ports = Ports::CLIENT;
    let admission = admit::record(skb, scratch);
    if admission == Admission::TRANSLATED {
        count(Counter::Published);
    } else if admission == Admission::PASSED {
        count(Counter::Passed);
        count_fallback_number(scratch.flow.reason);
    }
    admission
}

/// Handles a packet to a published port. Returns true to record the flow.
#[inline(always)]
fn published<F: Family>(skb: Skb, scratch: &mut Scratch<F>, target: &PortTarget<Addr<F>>) -> bool {
    if target.pod == 0 {
        return false;
    }
    // SAFETY: copied at once.
    let pod = unsafe { PODS.get(target.pod) }.copied();
    let Some(pod) = pod.filter(|pod| pod.generation == target.generation) else {
        count_fallback(Reason::PodGone);
        return false;
    };
    if pod.flags & LEFT != 0 {
        count_fallback(Reason::Pod);
        return false;
    }
    if route::interface_is_gone(skb, scratch, target.pod) {
        count_fallback(Reason::PodGone);
        return false;
    }
    if route::replies_bypass_uplinks(skb, scratch) {
        count_fallback(Reason::Route);
        return false;
    }
    let flow = &mut scratch.flow;
    flow.flags = ORIGINAL | PUBLISHED;
    flow.pod = target.pod;
    flow.generation = target.generation;
    flow.destination = target.address;
    flow.destination_port = target.port;
    flow.action = Action::ToPod as u8;
    match reason_to_pass(skb, scratch, pod.mtu) {
        TRANSLATE if pod.flags & HELD == 0 => true,
        NOT_OURS => false,
        reason => {
            scratch.flow.action = Action::Pass as u8;
            scratch.flow.reason = if reason == TRANSLATE { Reason::Earlier as u8 } else { reason };
            true
        }
    }
}

/// The pod that has the packet's destination as its own address.
#[inline(always)]
fn pod_of<F: Family>(packet: &Packet<F>) -> Option<PodAddress> {
    // SAFETY: copied at once.
    let address = unsafe { F::pod_addresses().get(packet.key.destination) }.copied();
    address.filter(|address| flow::is_pod(address.pod, address.generation))
}

/// Handles a packet to a pod's own address. The flow is recorded so that replies are not masqueraded, and no
/// other flow gets the same ends. Returns true to record it.
#[inline(always)]
fn direct<F: Family>(skb: Skb, scratch: &mut Scratch<F>, address: PodAddress) -> bool {
    if route::interface_is_gone(skb, scratch, address.pod) {
        count_fallback(Reason::PodGone);
        return false;
    }
    if route::replies_bypass_uplinks(skb, scratch) {
        count_fallback(Reason::Route);
        return false;
    }
    let flow = &mut scratch.flow;
    flow.pod = address.pod;
    flow.generation = address.generation;
    flow.destination = scratch.packet.key.destination;
    flow.destination_port = scratch.packet.key.destination_port;
    flow.action = Action::Pass as u8;
    flow.reason = Reason::Direct as u8;
    true
}

/// No reason to leave the flow to nftables.
const TRANSLATE: u8 = 0;
/// A flow that is left to the kernel's stack and not recorded.
const NOT_OURS: u8 = 255;

/// The [`Reason`] to leave a flow to a published port to nftables, or one of the two above.
#[inline(never)]
fn reason_to_pass<F: Family>(skb: Skb, scratch: &mut Scratch<F>, pod_mtu: u32) -> u8 {
    // A port is published on the node's own addresses: forwarded packets are not translated, whatever their
    // port. A missing route has the same result as an address of the node, so the map is checked, too.
    let verdict = route::of_packet(skb, scratch);
    let packet = &scratch.packet;
    match verdict {
        Verdict::Local => {}
        Verdict::Disabled => {
            count_fallback(Reason::NotForwarding);
            return NOT_OURS;
        }
        _ => return NOT_OURS,
    }
    // SAFETY: the value is not read.
    if unsafe { F::locals().get(packet.key.destination) }.is_none() {
        return Reason::UnknownAddress as u8;
    }
    if packet.key.protocol == IPPROTO_TCP {
        // Both hosts agree on their interfaces' MTU (MSS), and discover that of the path.
        return TRANSLATE;
    }
    if admit::has_socket::<F>(skb, &packet.key) {
        return Reason::NodeSocket as u8;
    }
    // SAFETY: as in `port_of`.
    match unsafe { UPLINKS.get(skb.interface()) } {
        Some(uplink) if uplink.mtu == pod_mtu => TRANSLATE,
        _ => Reason::Mtu as u8,
    }
}
