// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The configuration and the counters.

use slipway_ebpf_abi::{Config, Counter, Reason};

use crate::maps::{CONFIG, COUNTERS};
use crate::skb::Skb;

/// The configuration.
#[inline(always)]
pub(crate) fn config() -> Option<&'static Config> {
    CONFIG.get(0)
}

/// Stores the cookie of the node's network namespace.
#[inline(always)]
pub(crate) fn store_netns_cookie(netns_cookie: u64) {
    if let Some(config) = CONFIG.get_ptr_mut(0) {
        // SAFETY: one aligned word of the element; user space waits for it.
        unsafe { (&raw mut (*config).netns_cookie).write_volatile(netns_cookie) };
    }
}

#[inline(always)]
fn add(index: usize, number: u64) {
    if let Some(counters) = COUNTERS.get_ptr_mut(0) {
        // SAFETY: the element is this processor's own, and no program of this kind interrupts another one on
        // the same processor.
        if let Some(counter) = unsafe { (*counters).get_mut(index) } {
            *counter = counter.wrapping_add(number);
        }
    }
}

/// Increments a counter.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    add(counter as usize, 1);
}

/// Counts a packet that is left to the kernel's stack.
#[inline(always)]
pub(crate) fn count_fallback(reason: Reason) {
    add(reason.fallback(), 1);
}

/// Counts a translated packet and its bytes.
#[inline(always)]
pub(crate) fn count_packet(skb: Skb, packets: Counter, bytes: Counter) {
    if let Some(counters) = COUNTERS.get_ptr_mut(0) {
        // SAFETY: as in `add`.
        unsafe {
            if let Some(counter) = (*counters).get_mut(packets as usize) {
                *counter = counter.wrapping_add(skb.segments());
            }
            if let Some(counter) = (*counters).get_mut(bytes as usize) {
                *counter = counter.wrapping_add(u64::from(skb.len()));
            }
        }
    }
}

/// Counts a packet that is left to the kernel's stack for the reason that its flow has.
#[inline(always)]
pub(crate) fn count_fallback_number(reason: u8) {
    add(Reason::Direct.fallback() - Reason::Direct as usize + usize::from(reason & 0x1f), 1);
}
