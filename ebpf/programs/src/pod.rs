//! What a pod sends.

use slipway_ebpf_abi::{
    Action, Counter, HELD, IPPROTO_TCP, LEFT, LONE, MASQUERADED, ORIGINAL, Reason, SIDE_POD,
};

use crate::admit::{self, Admission, Ports};
use crate::config::{config, count, count_fallback, count_packet};
use crate::family::Family;
use crate::flow;
use crate::icmp;
use crate::maps::{PODS, ROUTERS};
use crate::packet::{self, Fragment, Kind};
use crate::route::{self, Verdict};
use crate::skb::{Act, ETHERNET, Skb, now};
use crate::translate::translate;
use crate::words::copy;
use crate::work::Work;

/// The program, for one family.
#[inline(never)]
pub(crate) fn ingress<F: Family>(skb: Skb) -> i32 {
    let Some(work) = F::work() else { return Act::STACK };
    if packet::read(skb, work, ETHERNET, SIDE_POD) { handle(skb, work) } else { Act::STACK }
}

#[inline(never)]
fn handle<F: Family>(skb: Skb, work: &mut Work<F>) -> i32 {
    if work.packet.kind == Kind::Error {
        return icmp::error(skb, work);
    }
    let now = now();
    if let Some(hit) = flow::find(work, now) {
        if work.flow.pod != skb.interface() && work.flow.pod != 0 {
            // Another pod's address: no business of the programs.
            return Act::STACK;
        }
        if work.flow.action != Action::ToUplink as u8 {
            hit.touch(skb, work, now);
            return Act::STACK;
        }
        let verdict = route::of_packet_of_flow(skb, work, now);
        if !matches!(verdict, Verdict::Moved) {
            let act = may_leave(work, &verdict);
            if act != LEAVE {
                return act;
            }
            hit.touch(skb, work, now);
            return send(skb, work);
        }
        // It begins anew, with another address. A connection of TCP cannot: the stack, which knows nothing of it, has
        // its other end say so.
        flow::remove(work, now);
    }
    if work.packet.kind != Kind::Opening || work.packet.fragment == Fragment::Later || work.packet.ttl <= 1 {
        return Act::STACK;
    }
    work.begin(skb, now);
    work.flow.pod = skb.interface();
    work.flow.destination = work.packet.key.destination;
    work.flow.destination_port = work.packet.key.destination_port;
    masquerade(skb, work)
}

/// Not an action of tc: the packet may be translated.
const LEAVE: i32 = -2;

/// Whether a packet of a flow can be sent by this route; else what becomes of it, unchanged.
#[inline(always)]
fn may_leave<F: Family>(work: &Work<F>, verdict: &Verdict) -> i32 {
    let packet = &work.packet;
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
fn send<F: Family>(skb: Skb, work: &mut Work<F>) -> i32 {
    count_packet(skb, Counter::FromPodPackets, Counter::FromPodBytes);
    if !translate(skb, work) {
        count(Counter::DropWrite);
        return Act::DROP;
    }
    route::send(work)
}

/// No link takes packets of this size.
const EARLIER: u32 = u32::MAX;

/// Whether what this address of the pod begins with others is masqueraded by the programs. Fills the flow's
/// generation, and returns the pod's MTU; 0: it is not; [`EARLIER`]: not yet.
#[inline(never)]
fn is_masqueraded<F: Family>(work: &mut Work<F>) -> u32 {
    let (source, destination) = (work.packet.key.source, work.packet.key.destination);
    // SAFETY: copied at once.
    let Some(address) = unsafe { F::pod_addresses().get(source) }.copied() else { return 0 };
    // SAFETY: as above.
    let Some(pod) = unsafe { PODS.get(work.flow.pod) }.copied() else { return 0 };
    if address.pod != work.flow.pod
        || address.generation != pod.generation
        || pod.flags & LEFT != 0
        || address.flags & MASQUERADED == 0
        || F::same_network(source, destination, address.prefix)
        || !F::is_routable(destination)
    {
        return 0;
    }
    work.flow.generation = pod.generation;
    if pod.flags & HELD == 0 { pod.mtu } else { EARLIER }
}

/// Whether the pod has sent this to another router on its link than the node, by the address of the frame.
#[inline(always)]
fn is_for_another<F: Family>(skb: Skb, work: &Work<F>) -> bool {
    // SAFETY: copied at once.
    let Some(router) = unsafe { ROUTERS.get(work.flow.pod) }.copied() else { return false };
    if router.generation != work.flow.generation {
        return false;
    }
    let [a, b, c] = router.mac;
    !matches!(skb.load::<[u16; 3]>(0), Some([d, e, f]) if (a ^ d) | (b ^ e) | (c ^ f) == 0)
}

/// Decides whether the first packet of a conversation is masqueraded here, and does it.
#[inline(never)]
fn masquerade<F: Family>(skb: Skb, work: &mut Work<F>) -> i32 {
    let pod_mtu = is_masqueraded(work);
    if pod_mtu == 0 {
        return Act::STACK;
    }
    if pod_mtu == EARLIER {
        return pass(work, Reason::Earlier);
    }
    if is_for_another(skb, work) {
        return pass(work, Reason::Router);
    }
    let uplink = match route::of_packet(skb, work) {
        Verdict::Forward => match route::uplink(work) {
            Some(uplink) => uplink,
            None => return Act::STACK,
        },
        // Where it would leave is not said then. If the sender is told, it tries again; else the stack cuts
        // it, and has to have the whole flow.
        Verdict::TooBig if !work.packet.dont_fragment => return pass(work, Reason::TooBig),
        _ => return Act::STACK,
    };
    copy(F::uplink_address(uplink), &raw mut work.flow.source);
    if F::same(work.flow.source, Default::default()) {
        return pass(work, Reason::NoAddress);
    }
    if route::has_lost_address(skb, work) {
        return pass(work, Reason::NoAddress);
    }
    // The two sides of a TCP connection discover what the path takes, unless their packets may be cut instead.
    if pod_mtu > uplink.mtu && (work.packet.key.protocol != IPPROTO_TCP || !work.packet.dont_fragment) {
        return pass(work, Reason::Mtu);
    }
    let Some(config) = config() else { return Act::STACK };
    let (first, last) = (config.masquerade_first, config.masquerade_last);
    if last < first || first == 0 {
        return pass(work, Reason::NoPort);
    }
    work.ports = Ports {
        first,
        count: u32::from(last.wrapping_sub(first)) + 1,
        own: false,
        avoid_sockets: work.packet.key.protocol != F::ICMP,
    };
    work.flow.action = Action::ToUplink as u8;
    if admit::open(skb, work) != Admission::TRANSLATED {
        // The reason was counted already.
        work.flow.action = Action::Pass as u8;
        return note(work, Reason::NoPort);
    }
    count(Counter::Masqueraded);
    send(skb, work)
}

/// Notes that nftables has this conversation, whatever source it gives to it, and why.
#[inline(always)]
fn pass<F: Family>(work: &mut Work<F>, reason: Reason) -> i32 {
    count_fallback(reason);
    note(work, reason)
}

#[inline(never)]
fn note<F: Family>(work: &mut Work<F>, reason: Reason) -> i32 {
    work.flow.reason = reason as u8;
    work.flow.flags = ORIGINAL | LONE;
    // If the map takes no more, the next packet finds no place either.
    if F::embryos().insert(&work.packet.key, &work.flow, 0).is_ok() {
        count(Counter::Passed);
    }
    Act::STACK
}
