// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The states of a TCP connection, as in conntrack's table `tcp_conntracks`
//! (net/netfilter/nf_conntrack_proto_tcp.c). Sequence numbers are checked for resets only.

use slipway_ebpf_abi::State;

/// FIN, in the flags byte of the TCP header (RFC 9293, section 3.1).
pub(crate) const FIN: u8 = 0x01;
/// SYN.
pub(crate) const SYN: u8 = 0x02;
/// RST.
pub(crate) const RST: u8 = 0x04;
/// ACK.
pub(crate) const ACK: u8 = 0x10;

/// Maximum distance of a segment from the previous one: more than GRO merges or most paths lose at once.
const NEAR: u32 = 1 << 20;

/// True if two sequence numbers are near each other.
#[inline(always)]
pub(crate) fn is_near(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).wrapping_add(NEAR) <= 2 * NEAR
}

/// True if a packet with these flags requests a new connection.
#[inline(always)]
pub(crate) fn opens(flags: u8) -> bool {
    flags & (SYN | ACK | RST | FIN) == SYN
}

/// True if a SYN in this state begins another connection with the same addresses and ports.
#[inline(always)]
pub(crate) fn is_over(state: u8) -> bool {
    state == State::TimeWait as u8 || state == State::Close as u8
}

/// True if both hosts have sent packets and the connection was not refused.
#[inline(always)]
pub(crate) fn is_established(state: u8) -> bool {
    state >= State::Established as u8 && state <= State::TimeWait as u8
}

/// The state after a packet with these flags. `original`: in the direction of the first SYN.
#[inline(always)]
pub(crate) fn next(state: u8, original: bool, flags: u8) -> u8 {
    // Most packets.
    if state == State::Established as u8 && flags & (SYN | FIN | RST) == 0 {
        return state;
    }
    if flags & RST != 0 {
        return State::Close as u8;
    }
    if flags & SYN != 0 {
        let answered = state == State::SynSent as u8 && !original && flags & ACK != 0;
        return if answered { State::SynReceived as u8 } else { state };
    }
    if flags & FIN != 0 {
        return after_fin(state);
    }
    if flags & ACK != 0 { after_ack(state, original) } else { state }
}

#[inline(always)]
fn after_fin(state: u8) -> u8 {
    match state {
        s if s == State::SynReceived as u8 || s == State::Established as u8 => State::FinWait as u8,
        s if s == State::FinWait as u8 || s == State::CloseWait as u8 => State::LastAck as u8,
        other => other,
    }
}

#[inline(always)]
fn after_ack(state: u8, original: bool) -> u8 {
    match state {
        s if s == State::SynReceived as u8 && original => State::Established as u8,
        s if s == State::FinWait as u8 => State::CloseWait as u8,
        s if s == State::LastAck as u8 => State::TimeWait as u8,
        other => other,
    }
}
