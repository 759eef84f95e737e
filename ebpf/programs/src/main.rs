// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The BPF programs of the eBPF backend: netfilter checks a flow, they carry it.
//!
//! A packet of a flow without an entry passes the kernel's stack, with the index of its record in `tc_index`.
//! The program at the egress of an interface compares the packet that comes out with the record, and writes an
//! entry with the way that the kernel's stack chose: translation, interface, link-layer header. The programs at ingress
//! send the following packets of that direction the same way. Once in each tick, a packet passes the kernel's stack
//! again and renews the entry, so that conntrack keeps its own entry and changed rules apply to running flows. The
//! diagram at [`State`](slipway_ebpf_abi::State) has every state of a flow and what leads to it.
//!
//! Packets that the kernel's stack drops, delivers to the node or encapsulates never come out as they went in, and get
//! no entry. All checks of a packet come before the first write to it, as a changed packet cannot be left to the
//! kernel's stack.
#![no_std]
#![no_main]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![allow(clippy::cast_possible_truncation, reason = "lengths, offsets and codes of the kernel are small")]
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "a copy of a key takes space on the program's stack, which has 512 bytes"
)]
#![allow(
    clippy::unnecessary_cast,
    reason = "the kernel's constants have other types in other versions of the bindings"
)]

mod csum;
mod egress;
mod family;
mod ingress;
mod maps;
mod memory;
mod packet;
mod scratch;
mod skb;
mod translation;
mod v4;
mod v6;

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use slipway_ebpf_abi::{HAS_ETHERNET, TO_PEER};

use crate::skb::{Act, Skb};
use crate::v4::V4;
use crate::v6::V6;

/// tc, ingress of an uplink: carries flows that netfilter has checked.
#[classifier]
pub(crate) fn flow_ingress(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_to_host() { arrive(skb, skb::ETHERNET, false) } else { Act::NEXT }
}

/// tc, ingress of an uplink whose packets begin with the IP header: likewise.
#[classifier]
pub(crate) fn flow_ingress_l3(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_to_host() { arrive(skb, 0, false) } else { Act::NEXT }
}

/// tc, ingress of the host's end of a pod's veth: likewise.
#[classifier]
pub(crate) fn flow_ingress_pod(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_unicast() { arrive(skb, skb::ETHERNET, true) } else { Act::NEXT }
}

/// tc, egress of an uplink, or of the host's end of a pod's veth whose queueing discipline must see all
/// packets: records the way of checked packets.
#[classifier]
pub(crate) fn flow_egress(ctx: TcContext) -> i32 {
    come_out(Skb(ctx.skb.skb), skb::ETHERNET, HAS_ETHERNET)
}

/// tc, egress of an uplink whose packets begin with the IP header: likewise.
#[classifier]
pub(crate) fn flow_egress_l3(ctx: TcContext) -> i32 {
    come_out(Skb(ctx.skb.skb), 0, 0)
}

/// tc, egress of the host's end of a pod's veth: likewise.
#[classifier]
pub(crate) fn flow_egress_pod(ctx: TcContext) -> i32 {
    come_out(Skb(ctx.skb.skb), skb::ETHERNET, HAS_ETHERNET | TO_PEER)
}

#[inline(always)]
fn arrive(skb: Skb, l3: u32, from_pod: bool) -> i32 {
    // A pod can set `tc_index`, so only an index that is set here may remain.
    let index = skb.record();
    if index != 0 {
        skb.set_record(0);
    }
    if skb.has_tag() {
        return Act::NEXT;
    }
    match skb.protocol() {
        skb::IPV4 => ingress::ingress::<V4>(skb, l3, index, from_pod),
        skb::IPV6 => ingress::ingress::<V6>(skb, l3, index, from_pod),
        _ => Act::NEXT,
    }
}

#[inline(always)]
fn come_out(skb: Skb, l3: u32, flags: u32) -> i32 {
    let index = skb.record();
    if index == 0 {
        return Act::NEXT;
    }
    skb.set_record(0);
    if skb.has_tag() {
        return Act::NEXT;
    }
    match skb.protocol() {
        skb::IPV4 => egress::egress::<V4>(skb, index, l3, flags),
        skb::IPV6 => egress::egress::<V6>(skb, index, l3, flags),
        _ => Act::NEXT,
    }
}

/// The kernel provides some helpers only to programs under its own license.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Unreachable: the verifier would refuse the program otherwise.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
