//! What arrives from outside.

use slipway_ebpf_abi::{
    Action, Counter, HELD, IPPROTO_TCP, IPPROTO_UDP, LEFT, ORIGINAL, PUBLISHED, PortKey, PortTarget, Reason,
    SIDE_UPLINK,
};

use crate::admit::{self, Admission, Ports};
use crate::config::{count, count_fallback, count_fallback_number, count_packet};
use crate::family::{Addr, Family};
use crate::flow;
use crate::icmp;
use crate::maps::{PODS, UPLINKS};
use crate::packet::{self, Fragment, Kind, Packet};
use crate::route::{self, Verdict};
use crate::skb::{Act, Skb, now};
use crate::translate::translate;
use crate::words::clear;
use crate::work::Work;

/// The program, for one family. `l3`: offset of the IP header.
#[inline(never)]
pub(crate) fn ingress<F: Family>(skb: Skb, l3: u32) -> i32 {
    let Some(work) = F::work() else { return Act::STACK };
    if packet::read(skb, work, l3, SIDE_UPLINK) { handle(skb, work) } else { Act::STACK }
}

#[inline(never)]
fn handle<F: Family>(skb: Skb, work: &mut Work<F>) -> i32 {
    if work.packet.kind == Kind::Error {
        return icmp::error(skb, work);
    }
    let now = now();
    if let Some(hit) = flow::find(work, now) {
        if work.flow.action == Action::ToPod as u8 && work.packet.ttl <= 1 {
            count_fallback(Reason::Ttl);
            return Act::STACK;
        }
        hit.touch(skb, work, now);
        if work.flow.action != Action::ToPod as u8 {
            return Act::STACK;
        }
        return into_pod(skb, work);
    }
    // Only TCP's first SYN and UDP begin a conversation with a pod; pings are the node's to answer.
    let begins = work.packet.kind == Kind::Opening
        && work.packet.fragment != Fragment::Later
        && (work.packet.key.protocol == IPPROTO_TCP || work.packet.key.protocol == IPPROTO_UDP);
    if !begins || work.packet.ttl <= 1 {
        return Act::STACK;
    }
    work.begin(skb, now);
    work.flow.source = work.packet.key.source;
    work.flow.source_port = work.packet.key.source_port;
    if admit(skb, work) != Admission::TRANSLATED {
        return Act::STACK;
    }
    into_pod(skb, work)
}

/// Translates the packet and puts it into the pod.
#[inline(never)]
fn into_pod<F: Family>(skb: Skb, work: &mut Work<F>) -> i32 {
    count_packet(skb, Counter::ToPodPackets, Counter::ToPodBytes);
    if !translate(skb, work) || work.packet.l3 == 0 && !skb.add_ethernet() {
        count(Counter::DropWrite);
        return Act::DROP;
    }
    skb.into_pod(work.flow.pod)
}

/// The published port that a packet is for: one with the address first, then one for all addresses.
#[inline(always)]
fn port_of<F: Family>(packet: &Packet<F>) -> Option<PortTarget<Addr<F>>> {
    let mut key = PortKey {
        address: packet.key.destination,
        port: packet.key.destination_port,
        protocol: packet.key.protocol,
        pad: 0,
    };
    // SAFETY: copied at once; user space writes whole elements, never over one that is there.
    if let Some(target) = unsafe { F::ports().get(&key) } {
        return Some(*target);
    }
    clear(&raw mut key.address);
    // SAFETY: as above.
    unsafe { F::ports().get(&key) }.copied()
}

/// Decides what becomes of the first packet of a conversation, fills the rest of [`Work::flow`] and notes it.
#[inline(never)]
fn admit<F: Family>(skb: Skb, work: &mut Work<F>) -> u32 {
    let wanted = match port_of(&work.packet) {
        Some(target) => published(skb, work, &target),
        None => direct(skb, work),
    };
    if !wanted {
        return Admission::LEFT;
    }
    work.ports = Ports::CLIENT;
    let admission = admit::open(skb, work);
    if admission == Admission::TRANSLATED {
        count(Counter::Published);
    } else if admission == Admission::PASSED {
        count(Counter::Passed);
        count_fallback_number(work.flow.reason);
    }
    admission
}

/// A packet for a published port. Returns whether the flow is to be noted.
#[inline(always)]
fn published<F: Family>(skb: Skb, work: &mut Work<F>, target: &PortTarget<Addr<F>>) -> bool {
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
    if route::is_gone(skb, work, target.pod) {
        count_fallback(Reason::PodGone);
        return false;
    }
    if route::is_one_way(skb, work) {
        count_fallback(Reason::Route);
        return false;
    }
    let flow = &mut work.flow;
    flow.flags = ORIGINAL | PUBLISHED;
    flow.pod = target.pod;
    flow.generation = target.generation;
    flow.destination = target.address;
    flow.destination_port = target.port;
    flow.action = Action::ToPod as u8;
    match reason_to_pass(skb, work, pod.mtu) {
        TRANSLATE if pod.flags & HELD == 0 => true,
        NOT_OURS => false,
        reason => {
            work.flow.action = Action::Pass as u8;
            work.flow.reason = if reason == TRANSLATE { Reason::Earlier as u8 } else { reason };
            true
        }
    }
}

/// A pod that is reached at its own address: noted, so that its answers are not masqueraded, and that no other
/// flow gets the same ends. Returns whether it is one.
#[inline(always)]
fn direct<F: Family>(skb: Skb, work: &mut Work<F>) -> bool {
    // SAFETY: copied at once.
    let address = unsafe { F::pod_addresses().get(work.packet.key.destination) }.copied();
    let Some(address) = address.filter(|address| flow::is_pod(address.pod, address.generation)) else {
        return false;
    };
    if route::is_gone(skb, work, address.pod) {
        count_fallback(Reason::PodGone);
        return false;
    }
    if route::is_one_way(skb, work) {
        count_fallback(Reason::Route);
        return false;
    }
    let flow = &mut work.flow;
    flow.pod = address.pod;
    flow.generation = address.generation;
    flow.destination = work.packet.key.destination;
    flow.destination_port = work.packet.key.destination_port;
    flow.action = Action::Pass as u8;
    flow.reason = Reason::Direct as u8;
    true
}

/// No reason to leave the conversation to nftables.
const TRANSLATE: u8 = 0;
/// None of ours, not even to be noted.
const NOT_OURS: u8 = 255;

/// Why a conversation with a published port is left to nftables, a [`Reason`], if it is.
#[inline(never)]
fn reason_to_pass<F: Family>(skb: Skb, work: &mut Work<F>, pod_mtu: u32) -> u8 {
    // A port is the node's own addresses': what is merely forwarded is not taken, whatever its port. A route
    // that is missing looks the same as an address of the node, hence the map.
    let verdict = route::of_packet(skb, work);
    let packet = &work.packet;
    match verdict {
        Verdict::Here => {}
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
        // The two sides agree on what their interfaces take (MSS), and discover what the path takes.
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
