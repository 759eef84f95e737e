// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The BPF programs of the eBPF backend. Netfilter decides about the first packets of a flow, and the
//! programs carry those that follow.
//!
//! The programs at ingress *note* some packets of a flow without an entry: they write a record of the packet,
//! set its `tc_index` to the index of the record, and leave the packet to the kernel's stack. The program at
//! the egress of an interface compares the packet that comes out with the record, and writes an entry with
//! what the kernel's stack chose: translation, interface and link-layer header. The programs at ingress then
//! send the following packets of that direction in the same way. Once in two ticks, they also send a clone of
//! such a packet through the kernel's stack. It renews the entry, so that conntrack keeps its own entry and
//! changed rules apply to running flows. The diagram at [`State`](slipway_ebpf_abi::State) has every state of
//! a flow and what leads to it.
//!
//! Packets that the kernel's stack drops, delivers to the node or encapsulates never come out as they went
//! in, so their flows get no entry. A program checks a packet completely before it writes to it, because a
//! changed packet cannot be left to the kernel's stack.
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

/// tc ingress of an uplink: carries flows that netfilter has checked, and notes packets of others.
#[classifier]
pub(crate) fn flow_ingress(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_to_host() { arrive(skb, skb::ETHERNET, false) } else { Act::NEXT }
}

/// The same for an uplink whose packets begin with the IP header.
#[classifier]
pub(crate) fn flow_ingress_l3(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_to_host() { arrive(skb, 0, false) } else { Act::NEXT }
}

/// The same for the host's end of a pod's veth.
#[classifier]
pub(crate) fn flow_ingress_pod(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_unicast() { arrive(skb, skb::ETHERNET, true) } else { Act::NEXT }
}

/// tc egress of an uplink, or of the host's end of a pod's veth whose queueing discipline must see all
/// packets: learns from noted packets that come out.
#[classifier]
pub(crate) fn flow_egress(ctx: TcContext) -> i32 {
    come_out(Skb(ctx.skb.skb), skb::ETHERNET, HAS_ETHERNET)
}

/// The same for an uplink whose packets begin with the IP header.
#[classifier]
pub(crate) fn flow_egress_l3(ctx: TcContext) -> i32 {
    come_out(Skb(ctx.skb.skb), 0, 0)
}

/// The same for the host's end of a pod's veth, if packets may go straight into the pod.
#[classifier]
pub(crate) fn flow_egress_pod(ctx: TcContext) -> i32 {
    come_out(Skb(ctx.skb.skb), skb::ETHERNET, HAS_ETHERNET | TO_PEER)
}

#[inline(always)]
fn arrive(skb: Skb, l3: u32, from_pod: bool) -> i32 {
    // A pod can set `tc_index`, but the program at egress must see only an index that was set here.
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

/// The kernel provides some helpers only to programs whose license is compatible with the GPL.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Never called: the verifier would refuse a program that can reach this endless loop.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
