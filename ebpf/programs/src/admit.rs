// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! New flows: both directions are recorded, or none.

use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::helpers::{bpf_get_prandom_u32, bpf_sk_lookup_udp, bpf_sk_release, bpf_skc_lookup_tcp};
use slipway_ebpf_abi::{Action, Counter, FlowKey, IPPROTO_TCP, IPPROTO_UDP, Port, Reason, State};

use crate::config::{count, count_fallback};
use crate::family::{Addr, Family};
use crate::flow::{self, Claim, claim};
use crate::scratch::Scratch;
use crate::skb::Skb;

/// Attempts to find a free port.
const PROBES: u32 = 8;

/// The result for the first packet of a flow. A number, as functions can return only numbers to the verifier.
pub(crate) struct Admission;

impl Admission {
    /// Left to the kernel's stack; no flow was recorded.
    pub(crate) const LEFT: u32 = 0;
    /// The flow was recorded, and is left to the kernel's stack.
    pub(crate) const PASSED: u32 = 1;
    /// The flow was recorded, and is translated.
    pub(crate) const TRANSLATED: u32 = 2;
}

/// Candidates for the source port of a flow.
pub(crate) struct Ports {
    /// First port.
    pub(crate) first: u16,
    /// Number of ports; not 0.
    pub(crate) count: u32,
    /// True to try the packet's own port first.
    pub(crate) own: bool,
    /// True to avoid ports on which the node has a socket.
    pub(crate) avoid_sockets: bool,
}

impl Ports {
    /// Replacements for a client's port in a source port collision at the pod.
    pub(crate) const CLIENT: Self = Self { first: 1024, count: 64512, own: true, avoid_sockets: false };
}

/// The initial state of a flow of this protocol.
#[inline(always)]
pub(crate) fn first_state(protocol: u8) -> u8 {
    match protocol {
        IPPROTO_TCP => State::SynSent as u8,
        IPPROTO_UDP => State::Unreplied as u8,
        _ => State::Echo as u8,
    }
}

/// True if a socket of the node would receive a packet with this key.
#[inline(never)]
pub(crate) fn has_socket<F: Family>(skb: Skb, key: &FlowKey<Addr<F>>) -> bool {
    /// `BPF_F_CURRENT_NETNS`: the packet's namespace.
    const CURRENT_NETNS: u64 = -1_i64 as u64;
    let mut tuple = F::socket_tuple(key);
    // SAFETY: the tuple lives until the helper has returned; a socket found is released.
    unsafe {
        let context = skb.0.cast();
        let socket = match key.protocol {
            IPPROTO_TCP => bpf_skc_lookup_tcp(context, &raw mut tuple, F::TUPLE, CURRENT_NETNS, 0),
            IPPROTO_UDP => bpf_sk_lookup_udp(context, &raw mut tuple, F::TUPLE, CURRENT_NETNS, 0),
            _ => return false,
        };
        if socket.is_null() {
            return false;
        }
        bpf_sk_release(socket.cast());
        true
    }
}

/// Chooses a free source port for the flow from [`Scratch::ports`]; returns 0 if none was found. Chooses at
/// random: ports in use are consecutive, and a search from one to the next would follow them. A lookup costs
/// the packet less than a failed claim, and the verifier less than following a claim as often.
#[inline(never)]
fn choose_port<F: Family>(skb: Skb, scratch: &mut Scratch<F>, now: u32) -> u32 {
    scratch.set_reverse_key();
    for _ in 0..PROBES {
        // SAFETY: no arguments.
        let offset = unsafe { bpf_get_prandom_u32() }.checked_rem(scratch.ports.count).unwrap_or(0);
        let port = Port::new(scratch.ports.first.wrapping_add(offset as u16));
        scratch.flow.source_port = port;
        scratch.reverse_key.destination_port = port;
        let is_taken = flow::is_taken(scratch, now)
            || scratch.ports.avoid_sockets && has_socket::<F>(skb, &scratch.reverse_key);
        if !is_taken {
            return 1;
        }
    }
    0
}

/// Records the flow: [`Scratch::flow`] with the packet's key, and the reverse direction. The source port is
/// chosen from [`Scratch::ports`] so that no other flow has the reverse direction's key.
#[inline(never)]
pub(crate) fn record<F: Family>(skb: Skb, scratch: &mut Scratch<F>) -> u32 {
    let mut outcome = Claim::Busy;
    if scratch.ports.own {
        outcome = record_both(scratch);
    }
    if outcome == Claim::Busy
        && may_change_port(scratch)
        && choose_port(skb, scratch, scratch.flow.last_seen) != 0
    {
        outcome = record_both(scratch);
        if outcome == Claim::Taken && scratch.ports.own {
            count(Counter::PortChanged);
        }
    }
    match outcome {
        Claim::Taken if scratch.flow.action == Action::Pass as u8 => Admission::PASSED,
        Claim::Taken => Admission::TRANSLATED,
        Claim::Full => {
            count_fallback(Reason::Full);
            Admission::LEFT
        }
        Claim::Busy => {
            count_fallback(if scratch.ports.own { Reason::PortCollision } else { Reason::NoPort });
            Admission::LEFT
        }
    }
}

/// Records both directions of the flow, or none.
#[inline(always)]
fn record_both<F: Family>(scratch: &mut Scratch<F>) -> Claim {
    scratch.set_reverse_key();
    scratch.set_reverse();
    let mut outcome = claim(scratch, scratch.flow.last_seen);
    if outcome == Claim::Taken
        && F::half_open().insert(&scratch.packet.key, &scratch.flow, u64::from(BPF_ANY)).is_err()
    {
        let _ = F::half_open().remove(&scratch.reverse_key);
        outcome = Claim::Full;
    }
    outcome
}

/// True if the flow may get another source port.
#[inline(always)]
fn may_change_port<F: Family>(scratch: &mut Scratch<F>) -> bool {
    if scratch.flow.action == Action::Pass as u8 {
        // Only by a translation can the replies of both flows be distinguished.
        if scratch.flow.reason != Reason::Direct as u8 && scratch.flow.reason != Reason::Mtu as u8 {
            return false;
        }
        scratch.flow.action = Action::ToPod as u8;
        scratch.flow.reason = 0;
    }
    true
}
