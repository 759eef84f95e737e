// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules that decide about each packet separately: limits, quotas, lengths, random choices, copies, and conntrack's
//! helpers. Netfilter sees only samples of a carried flow, which say nothing about the packets in between, so flows
//! to which such a rule can apply stay with netfilter.
//!
//! The first set-up, `slipway node setup` and slipwayd read all rules. An ADD reads them only if slipwayd does not
//! run and the ruleset is small, because other programs' rules must not slow it down.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hold;
mod judge;
mod tables;
mod xtables;

use std::fs;

use cni_kernel::AddressFamily;
use cni_nftables::Socket;

pub use hold::HoldingRule;
pub(crate) use tables::Extent;

use super::store::Store;
use crate::Error;
use hold::Held;

/// How many seconds an ADD relies on slipwayd's last reading of the rules.
const FOLLOWED_FOR: u64 = 3;

/// Reads the rules. None if there are more than `extent` allows.
fn read(extent: Extent) -> Result<Option<Held>, Error> {
    let mut held = Held::default();
    let is_whole = tables::read_nftables(&mut held, extent)? && tables::read_legacy(&mut held, extent)?;
    add_automatic_helpers(&mut held);
    Ok(is_whole.then_some(held))
}

/// Adds the flows for which conntrack may choose a helper by their port, which was possible before Linux 6.0.
fn add_automatic_helpers(held: &mut Held) {
    const SWITCH: &str = "/proc/sys/net/netfilter/nf_conntrack_helper";
    const TCP: [u16; 6] = [21, 1720, 1723, 5060, 6566, 6667];
    const UDP: [u16; 7] = [69, 137, 161, 1719, 5060, 10_080, 5061];
    if !fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "1") {
        return;
    }
    let of = |protocol: u8, ports: &[u16]| -> Vec<(u8, u16)> {
        ports.iter().map(|port| (protocol, *port)).collect()
    };
    for (protocol, port) in [of(6, &TCP), of(17, &UDP)].concat() {
        let flows = hold::Flows::of_protocol(protocol);
        let what = "conntrack chooses helpers by itself".to_owned();
        held.add(
            || "net.netfilter.nf_conntrack_helper=1".to_owned(),
            hold::Hold { what, flows, port: Some(port) },
        );
    }
}

/// The rules that keep flows with netfilter.
pub(super) fn holding() -> Result<Vec<HoldingRule>, Error> {
    Ok(read(Extent::Whole)?.map(|held| held.rules).unwrap_or_default())
}

/// Reads the rules and tells the programs which flows stay with netfilter. If these are not the same flows as before,
/// netfilter checks every flow again.
pub(super) fn follow(store: &Store, extent: Extent) -> Result<(), Error> {
    let generation = Socket::open().and_then(|socket| socket.generation()).unwrap_or_default();
    if extent == Extent::Small && (store.is_followed(FOLLOWED_FOR)? || store.generation_read()? == generation)
    {
        return Ok(());
    }
    let Some(held) = read(extent)? else {
        log::debug!("the ruleset is too large for an ADD to read: `slipway node setup` and slipwayd read it");
        return Ok(());
    };
    let is_other = store.write_held(held.bits, &held.ports)?;
    // The generation was read before the rules, so rules that have changed since then are read again.
    store.write_generation_read(generation)?;
    if is_other { store.next_epoch() } else { Ok(()) }
}

/// A fingerprint that changes with the legacy tables. Obtaining it does not read the rules.
pub(super) fn legacy_sign() -> Vec<u8> {
    let tables = AddressFamily::BOTH
        .into_iter()
        .flat_map(|family| ["raw", "mangle", "filter"].map(|table| (family, table)));
    let info = |(family, table)| cni_kernel::xtables::info(family, table).ok().flatten();
    tables.filter_map(info).flat_map(|info| info.bytes).collect()
}
