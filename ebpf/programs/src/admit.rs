//! New flows: both halves are made, or none.

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_sk_lookup_udp, bpf_sk_release, bpf_skc_lookup_tcp};
use slipway_ebpf_abi::{Action, Counter, FlowKey, IPPROTO_TCP, IPPROTO_UDP, Port, Reason, State};

use crate::config::{count, count_fallback};
use crate::family::{Addr, Family};
use crate::flow::{self, Claim, claim};
use crate::skb::Skb;
use crate::work::Work;

/// How many ports are looked at for one that is free.
const PROBES: u32 = 8;

/// What becomes of the packet that wants to begin a flow. A number, because that is all that a function can
/// return to the verifier.
pub(crate) struct Admission;

impl Admission {
    /// It is left to the stack; no flow was noted.
    pub(crate) const LEFT: u32 = 0;
    /// The flow was noted, and is left to the stack.
    pub(crate) const PASSED: u32 = 1;
    /// The flow was noted, and is translated.
    pub(crate) const TRANSLATED: u32 = 2;
}

/// Source ports that a flow may get, as the other side sees it.
pub(crate) struct Ports {
    /// First.
    pub(crate) first: u16,
    /// How many; not 0.
    pub(crate) count: u32,
    /// Whether the flow's own port is tried first.
    pub(crate) own: bool,
    /// Whether a port where the node has a socket is left out.
    pub(crate) avoid_sockets: bool,
}

impl Ports {
    /// What a client's port is exchanged for, if another flow of it has the pod's end already.
    pub(crate) const CLIENT: Self = Self { first: 1024, count: 64512, own: true, avoid_sockets: false };
}

/// The state that a flow of this protocol begins with.
#[inline(always)]
pub(crate) fn first_state(protocol: u8) -> u8 {
    match protocol {
        IPPROTO_TCP => State::SynSent as u8,
        IPPROTO_UDP => State::Unreplied as u8,
        _ => State::Echo as u8,
    }
}

/// Whether a socket of the node would take a packet with this key.
#[inline(never)]
pub(crate) fn has_socket<F: Family>(skb: Skb, key: &FlowKey<Addr<F>>) -> bool {
    /// `BPF_F_CURRENT_NETNS`: the namespace that the packet is in.
    const HERE: u64 = -1_i64 as u64;
    let mut tuple = F::socket_tuple(key);
    // SAFETY: the tuple lives until the helper has returned; a socket that was found
    // is released.
    unsafe {
        let context = skb.0.cast();
        let socket = match key.protocol {
            IPPROTO_TCP => bpf_skc_lookup_tcp(context, &raw mut tuple, F::TUPLE, HERE, 0),
            IPPROTO_UDP => bpf_sk_lookup_udp(context, &raw mut tuple, F::TUPLE, HERE, 0),
            _ => return false,
        };
        if socket.is_null() {
            return false;
        }
        bpf_sk_release(socket.cast());
        true
    }
}

/// Chooses a source port for the flow at hand from [`Work::ports`], at random: taken ports stand in rows, which a
/// search from one to the next would follow. To look costs the packet less than to claim in vain, and the verifier less
/// than to follow a claim as often. 0: none was found.
#[inline(never)]
fn choose<F: Family>(skb: Skb, work: &mut Work<F>, now: u32) -> u32 {
    work.turn_key();
    for _ in 0..PROBES {
        // SAFETY: no arguments.
        let place = unsafe { bpf_get_prandom_u32() }.checked_rem(work.ports.count).unwrap_or(0);
        let port = Port::new(work.ports.first.wrapping_add(place as u16));
        work.flow.source_port = port;
        work.other.destination_port = port;
        let is_taken =
            flow::is_taken(work, now) || work.ports.avoid_sockets && has_socket::<F>(skb, &work.other);
        if !is_taken {
            return 1;
        }
    }
    0
}

/// Notes the flow at hand: the half with the packet's key, which is [`Work::flow`], and the other one. Its source
/// port is chosen from [`Work::ports`], so that the other half's key is nobody else's.
#[inline(never)]
pub(crate) fn open<F: Family>(skb: Skb, work: &mut Work<F>) -> u32 {
    let mut outcome = Claim::Busy;
    if work.ports.own {
        outcome = note(work);
    }
    if outcome == Claim::Busy && may_change_port(work) && choose(skb, work, work.flow.last_seen) != 0 {
        outcome = note(work);
        if outcome == Claim::Taken && work.ports.own {
            count(Counter::PortChanged);
        }
    }
    match outcome {
        Claim::Taken if work.flow.action == Action::Pass as u8 => Admission::PASSED,
        Claim::Taken => Admission::TRANSLATED,
        Claim::Full => {
            count_fallback(Reason::Full);
            Admission::LEFT
        }
        Claim::Busy => {
            count_fallback(if work.ports.own { Reason::Clash } else { Reason::NoPort });
            Admission::LEFT
        }
    }
}

/// Notes both halves of the flow at hand, or none.
#[inline(always)]
fn note<F: Family>(work: &mut Work<F>) -> Claim {
    work.turn_key();
    work.turn_half();
    let mut outcome = claim(work, work.flow.last_seen);
    if outcome == Claim::Taken
        && F::embryos().insert(&work.packet.key, &work.flow, u64::from(BPF_ANY)).is_err()
    {
        let _ = F::embryos().remove(&work.other);
        outcome = Claim::Full;
    }
    outcome
}

/// Whether the flow at hand may have another source port than its own.
#[inline(always)]
fn may_change_port<F: Family>(work: &mut Work<F>) -> bool {
    if work.flow.action == Action::Pass as u8 {
        // Only the programs can tell the two apart: a flow that needed no translation needs one now.
        if work.flow.reason != Reason::Direct as u8 && work.flow.reason != Reason::Mtu as u8 {
            return false;
        }
        work.flow.action = Action::ToPod as u8;
        work.flow.reason = 0;
    }
    true
}
