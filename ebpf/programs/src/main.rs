//! The BPF programs of the eBPF fast path.
//!
//! `uplink_ingress` sees what arrives from outside, `pod_ingress` what a pod sends, and the programs of
//! [`sock`] what the node's own sockets ask for. They share the maps of [`maps`], which user space fills
//! (pods, ports, uplinks) and reads (flows, counters).
//!
//! Two rules hold everywhere. Every check comes before the first write to a packet, because a packet that was
//! changed cannot be left to the kernel's stack any more. And a packet that the programs do not understand is
//! left to the stack, whose nftables tables know every published port as well.
#![no_std]
#![no_main]
#![allow(clippy::cast_possible_truncation, reason = "lengths, offsets and codes of the kernel are small")]
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "a copy of a key takes room on the stack, of which a program has 512 bytes"
)]
#![allow(
    clippy::unnecessary_cast,
    reason = "the kernel's constants have other types in other versions of the bindings"
)]

mod admit;
mod config;
mod csum;
mod family;
mod flow;
mod icmp;
mod maps;
mod packet;
mod pod;
mod route;
mod skb;
mod sock;
mod tcp_state;
mod translate;
mod uplink;
mod v4;
mod v6;
mod words;
mod work;

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;

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

#[inline(always)]
fn uplink(skb: Skb, l3: u32) -> i32 {
    // A frame with the number of a VLAN belongs to the VLAN's own interface, and what is not addressed to this machine
    // to nobody here.
    if skb.is_in_vlan() || !skb.is_to_host() {
        return Act::STACK;
    }
    match skb.protocol() {
        skb::IPV4 => uplink::ingress::<V4>(skb, l3),
        skb::IPV6 => uplink::ingress::<V6>(skb, l3),
        _ => Act::STACK,
    }
}

/// The kernel gives some helpers to programs under its own license only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Never reached: the verifier refuses a program that could.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
