// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Packets of pods.

use aya_ebpf::maps::lpm_trie::Key;
use slipway_ebpf_abi::{
    Action, Counter, ExemptKey, HELD, IPPROTO_TCP, LEFT, MASQUERADED, ONE_SIDED, ORIGINAL, Reason, SIDE_POD,
};

use crate::admit::{self, Admission, Ports};
use crate::config::{config, count, count_fallback, count_packet};
use crate::family::Family;
use crate::flow;
use crate::icmp;
use crate::maps::{PODS, ROUTERS};
use crate::memory::copy;
use crate::packet::{self, Fragment, Kind};
use crate::route::{self, Verdict};
use crate::scratch::Scratch;
use crate::skb::{Act, ETHERNET, Skb, now};
use crate::translate::translate;

/// The program for one family.
#[inline(never)]
pub(crate) fn ingress<F: Family>(skb: Skb) -> i32 {
    let Some(scratch) = F::scratch() else { return Act::STACK };
    if packet::read(skb, scratch, ETHERNET, SIDE_POD) { handle(skb, scratch) } else { Act::STACK }
}

#[inline(never)]
fn handle<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    if scratch.packet.kind == Kind::Error {
        return icmp::error(skb, scratch);
    }
    let now = now();
    if let Some(hit) = flow::find(scratch, now) {
        if scratch.flow.pod != skb.interface() && scratch.flow.pod != 0 {
            // Another pod's address: left alone.
            return Act::STACK;
        }
        if scratch.flow.action != Action::ToUplink as u8 {
            hit.record(skb, scratch, now);
            return Act::STACK;
        }
        let verdict = route::of_packet_of_flow(skb, scratch, now);
        if !matches!(verdict, Verdict::AddressChanged) {
            let act = action_by_route(scratch, &verdict);
            if act != LEAVE {
                return act;
            }
            hit.record(skb, scratch, now);
            return send(skb, scratch);
        }
        // It begins again, with another address. A TCP connection cannot: the kernel's stack, which does not know
        // it, replies with a reset.
        flow::remove(scratch, now);
    }
    if scratch.packet.kind != Kind::Opening
        || scratch.packet.fragment == Fragment::Later
        || scratch.packet.ttl <= 1
    {
        return Act::STACK;
    }
    scratch.begin_flow(skb, now);
    scratch.flow.pod = skb.interface();
    scratch.flow.destination = scratch.packet.key.destination;
    scratch.flow.destination_port = scratch.packet.key.destination_port;
    masquerade(skb, scratch)
}

/// Not an action of tc: the packet may be translated and sent.
const LEAVE: i32 = -2;

/// Decides whether a packet of a flow can be sent by this route: [`LEAVE`], or the action for the unchanged
/// packet.
#[inline(always)]
fn action_by_route<F: Family>(scratch: &Scratch<F>, verdict: &Verdict) -> i32 {
    let packet = &scratch.packet;
    let reason = match verdict {
        Verdict::Forward if packet.ttl <= 1 => Reason::Ttl,
        Verdict::Forward => return LEAVE,
        Verdict::TooBig if !packet.dont_fragment => {
            count(Counter::DropTooBig);
            return Act::DROP;
        }
        Verdict::TooBig => Reason::TooBig,
        _ => Reason::Route,
    };
    count_fallback(reason);
    Act::STACK
}

#[inline(never)]
fn send<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    count_packet(skb, Counter::FromPodPackets, Counter::FromPodBytes);
    if !translate(skb, scratch) {
        count(Counter::DropWrite);
        return Act::DROP;
    }
    route::send(scratch)
}

/// Not an MTU: the pod's flows are being moved.
const BEING_MOVED: u32 = u32::MAX;

/// Decides whether the BPF programs masquerade the flow that the packet begins. Sets the flow's generation,
/// and returns the pod's MTU; 0: no; [`BEING_MOVED`]: not yet.
#[inline(never)]
fn masqueraded_mtu<F: Family>(scratch: &mut Scratch<F>) -> u32 {
    let (source, destination) = (scratch.packet.key.source, scratch.packet.key.destination);
    // SAFETY: copied at once.
    let Some(address) = unsafe { F::pod_addresses().get(source) }.copied() else { return 0 };
    // SAFETY: as above.
    let Some(pod) = unsafe { PODS.get(scratch.flow.pod) }.copied() else { return 0 };
    if address.pod != scratch.flow.pod
        || address.generation != pod.generation
        || pod.flags & LEFT != 0
        || address.flags & MASQUERADED == 0
        || F::same_network(source, destination, address.prefix)
        || !F::is_routable(destination)
        || is_exempt::<F>(address.exempt_list(), destination)
    {
        return 0;
    }
    scratch.flow.generation = pod.generation;
    if pod.flags & HELD == 0 { pod.mtu } else { BEING_MOVED }
}

/// True if a list of networks that are exempt from masquerade has the destination.
#[inline(always)]
fn is_exempt<F: Family>(list: u32, destination: F::Addr) -> bool {
    let bits = ExemptKey::<F::Addr>::LIST_BITS + F::BITS;
    list != 0 && F::exempt().get(Key::new(bits, ExemptKey { list, address: destination })).is_some()
}

/// True if the pod sent the frame to another router on its link than the node.
#[inline(always)]
fn is_for_other_router<F: Family>(skb: Skb, scratch: &Scratch<F>) -> bool {
    // SAFETY: copied at once.
    let Some(router) = unsafe { ROUTERS.get(scratch.flow.pod) }.copied() else { return false };
    if router.generation != scratch.flow.generation {
        return false;
    }
    let [a, b, c] = router.mac;
    !matches!(skb.load::<[u16; 3]>(0), Some([d, e, f]) if (a ^ d) | (b ^ e) | (c ^ f) == 0)
}

/// Decides whether the BPF programs masquerade the flow that the packet begins, and does it.
#[inline(never)]
fn masquerade<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> i32 {
    let pod_mtu = masqueraded_mtu(scratch);
    if pod_mtu == 0 {
        return Act::STACK;
    }
    if pod_mtu == BEING_MOVED {
        return pass(scratch, Reason::Earlier);
    }
    if is_for_other_router(skb, scratch) {
        return pass(scratch, Reason::Router);
    }
    let uplink = match route::of_packet(skb, scratch) {
        Verdict::Forward => match route::uplink(scratch) {
            Some(uplink) => uplink,
            None => return Act::STACK,
        },
        // The lookup then returns no interface. A sender that gets an ICMP error retries; otherwise the kernel's stack
        // fragments the packet, and must have the whole flow.
        Verdict::TooBig if !scratch.packet.dont_fragment => return pass(scratch, Reason::TooBig),
        _ => return Act::STACK,
    };
    copy(F::uplink_address(uplink), &raw mut scratch.flow.source);
    if F::same(scratch.flow.source, Default::default()) {
        return pass(scratch, Reason::NoAddress);
    }
    if route::has_lost_address(skb, scratch) {
        return pass(scratch, Reason::NoAddress);
    }
    // Both ends of a TCP connection discover the path's MTU, unless their packets may be fragmented.
    if pod_mtu > uplink.mtu && (scratch.packet.key.protocol != IPPROTO_TCP || !scratch.packet.dont_fragment) {
        return pass(scratch, Reason::Mtu);
    }
    let Some(config) = config() else { return Act::STACK };
    let (first, last) = (config.masquerade_first, config.masquerade_last);
    if last < first || first == 0 {
        return pass(scratch, Reason::NoPort);
    }
    scratch.ports = Ports {
        first,
        count: u32::from(last.wrapping_sub(first)) + 1,
        own: false,
        avoid_sockets: scratch.packet.key.protocol != F::ICMP,
    };
    scratch.flow.action = Action::ToUplink as u8;
    if admit::record(skb, scratch) != Admission::TRANSLATED {
        // The reason is counted already.
        scratch.flow.action = Action::Pass as u8;
        return record_passed(scratch, Reason::NoPort);
    }
    count(Counter::Masqueraded);
    send(skb, scratch)
}

/// Records a flow that nftables masquerades, and the reason. Its source address there is unknown.
#[inline(always)]
fn pass<F: Family>(scratch: &mut Scratch<F>, reason: Reason) -> i32 {
    count_fallback(reason);
    record_passed(scratch, reason)
}

#[inline(never)]
fn record_passed<F: Family>(scratch: &mut Scratch<F>, reason: Reason) -> i32 {
    scratch.flow.reason = reason as u8;
    scratch.flow.flags = ORIGINAL | ONE_SIDED;
    // If the map is full, the next packet is handled as this one.
    if F::half_open().insert(&scratch.packet.key, &scratch.flow, 0).is_ok() {
        count(Counter::Passed);
    }
    Act::STACK
}
