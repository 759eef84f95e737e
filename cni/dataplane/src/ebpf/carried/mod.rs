// SPDX-License-Identifier: GPL-2.0-or-later

//! Flows that netfilter checks and the BPF programs carry (`ebpf/programs/src/carried`).
//!
//! nftables has every published port and masquerade. The programs learn from the packets that come out of the
//! kernel's stack, so user space writes no ports and addresses: it attaches the programs, and increments the
//! epoch when rules may have changed. A link without the programs loses nothing but speed.

mod conntrack;
mod links;
mod setup;
mod store;

pub(super) use setup::{
    Carrying, Wanted, attach, attach_link, detach_link, directions, find, has_programs, owners, ready,
    remove, set_up, status, withhold_peer,
};
pub(super) use store::{Store, is_there, next_epoch, refuse_abroad};
