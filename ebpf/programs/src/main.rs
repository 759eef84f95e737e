// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The BPF programs of the eBPF fast path.
//!
//! Those of [`carried`] carry flows that netfilter has decided about. The others decide themselves:
//! `uplink_ingress` sees the packets from outside, `pod_ingress` those of a pod, and the programs of [`sock`]
//! the destinations of the node's own sockets. They share the maps of [`maps`]; user space writes some (pods,
//! ports, uplinks) and reads others (flows, counters).
//!
//! Two rules hold everywhere. All checks of a packet come before the first write to it, as a changed packet
//! cannot be left to the kernel's stack. And a packet that the BPF programs do not understand is left to the
//! stack, where nftables has every published port, too.
#![no_std]
#![no_main]
#![allow(clippy::cast_possible_truncation, reason = "lengths, offsets and codes of the kernel are small")]
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "a copy of a key takes space on the program's stack, which has 512 bytes"
)]
#![allow(
    clippy::unnecessary_cast,
    reason = "the kernel's constants have other types in other versions of the bindings"
)]

mod admit;
mod carried;
mod config;
mod csum;
mod family;
mod flow;
mod icmp;
mod maps;
mod memory;
mod packet;
mod pod;
mod route;
mod scratch;
mod skb;
mod sock;
mod tcp_state;
mod translate;
mod uplink;
mod v4;
mod v6;

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use slipway_ebpf_abi::carried::{HAS_ETHERNET, TO_PEER};

use crate::skb::{Act, Skb};
use crate::v4::V4;
use crate::v6::V6;

/// tc, ingress of an uplink whose packets begin with an Ethernet header.
#[classifier]
pub(crate) fn uplink_ingress(ctx: TcContext) -> i32 {
    uplink(Skb(ctx.skb.skb), skb::ETHERNET)
}

/// tc, ingress of an uplink whose packets begin with the IP header (tun, WireGuard).
#[classifier]
pub(crate) fn uplink_l3(ctx: TcContext) -> i32 {
    uplink(Skb(ctx.skb.skb), 0)
}

/// tc, ingress of the host's end of a pod's veth.
#[classifier]
pub(crate) fn pod_ingress(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_in_vlan() {
        return Act::STACK;
    }
    match skb.protocol() {
        skb::IPV4 => pod::ingress::<V4>(skb),
        skb::IPV6 => pod::ingress::<V6>(skb),
        _ => Act::STACK,
    }
}

/// tc, ingress of an uplink: carries flows that netfilter has checked.
#[classifier]
pub(crate) fn flow_ingress(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_to_host() { flow(skb, skb::ETHERNET, false) } else { Act::NEXT }
}

/// tc, ingress of an uplink whose packets begin with the IP header: likewise.
#[classifier]
pub(crate) fn flow_ingress_l3(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_to_host() { flow(skb, 0, false) } else { Act::NEXT }
}

/// tc, ingress of the host's end of a pod's veth: likewise.
#[classifier]
pub(crate) fn flow_ingress_pod(ctx: TcContext) -> i32 {
    let skb = Skb(ctx.skb.skb);
    if skb.is_unicast() { flow(skb, skb::ETHERNET, true) } else { Act::NEXT }
}

/// tc, egress of an uplink, or of the host's end of a pod's veth whose queueing discipline must see all
/// packets: records the way of checked packets.
#[classifier]
pub(crate) fn flow_egress(ctx: TcContext) -> i32 {
    checked(Skb(ctx.skb.skb), skb::ETHERNET, HAS_ETHERNET)
}

/// tc, egress of an uplink whose packets begin with the IP header: likewise.
#[classifier]
pub(crate) fn flow_egress_l3(ctx: TcContext) -> i32 {
    checked(Skb(ctx.skb.skb), 0, 0)
}

/// tc, egress of the host's end of a pod's veth: likewise.
#[classifier]
pub(crate) fn flow_egress_pod(ctx: TcContext) -> i32 {
    checked(Skb(ctx.skb.skb), skb::ETHERNET, HAS_ETHERNET | TO_PEER)
}

#[inline(always)]
fn flow(skb: Skb, l3: u32, from_pod: bool) -> i32 {
    // A pod may set the index of a record.
    let index = skb.record();
    if index != 0 {
        skb.set_record(0);
    }
    if skb.has_tag() {
        return Act::NEXT;
    }
    match skb.protocol() {
        skb::IPV4 => carried::ingress::<V4>(skb, l3, index, from_pod),
        skb::IPV6 => carried::ingress::<V6>(skb, l3, index, from_pod),
        _ => Act::NEXT,
    }
}

#[inline(always)]
fn checked(skb: Skb, l3: u32, flags: u32) -> i32 {
    let index = skb.record();
    if index == 0 {
        return Act::NEXT;
    }
    skb.set_record(0);
    if skb.has_tag() {
        return Act::NEXT;
    }
    match skb.protocol() {
        skb::IPV4 => carried::egress::<V4>(skb, index, l3, flags),
        skb::IPV6 => carried::egress::<V6>(skb, index, l3, flags),
        _ => Act::NEXT,
    }
}

#[inline(always)]
fn uplink(skb: Skb, l3: u32) -> i32 {
    // A frame with a VLAN ID belongs to the VLAN's own interface; a frame to another host is not for the
    // node.
    if skb.is_in_vlan() || !skb.is_to_host() {
        return Act::STACK;
    }
    match skb.protocol() {
        skb::IPV4 => uplink::ingress::<V4>(skb, l3),
        skb::IPV6 => uplink::ingress::<V6>(skb, l3),
        _ => Act::STACK,
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
