// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads the rules of nf_tables and of the legacy tables through which carried packets would have passed.

use std::collections::{BTreeMap, BTreeSet};

use cni_kernel::AddressFamily;
use cni_kernel::xtables;
use cni_nftables::{EncodedChain, Error as NftError, Family, Socket, TableId};

use super::hold::{Flows, Held, Hold};
use super::judge::{Extensions, Judgement, Reader, is_per_packet, judge};
use super::xtables::{judge_match, judge_target};
use crate::nftables::schema;
use crate::{Cause, Error};

pub(super) const EXTENSIONS: Extensions = Extensions { of_match: judge_match, of_target: judge_target };

/// How much of the ruleset is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// All rules, or nothing if there are more than a few hundred, because reading them must not slow an ADD down.
    Small,
}

/// An ADD reads the ruleset only if it has at most this many chains and rules.
const MOST_CHAINS_OF_ADD: u32 = 300;
const MOST_RULES_OF_ADD: u32 = 600;

/// The numbers of hooks that forwarded packets pass (`NF_INET_PRE_ROUTING`, `_FORWARD`, `_POST_ROUTING`, `_INGRESS`).
const FORWARDED: [u32; 4] = [0, 2, 4, 5];
/// The legacy tables except nat, whose rules see only the first packet of each flow.
const LEGACY: [&str; 4] = ["raw", "mangle", "filter", "security"];

fn failed(error: impl Into<Cause>) -> Error {
    Error::kernel("read the rules that decide about single packets", error)
}

/// True if every forwarded packet passes this base chain, not only the first one of each flow.
fn sees_each(chain: &EncodedChain) -> bool {
    let Some((hook, kind)) = &chain.base else { return false };
    match chain.table.family {
        Family::Arp => false,
        Family::Bridge | Family::Netdev => true,
        _ => kind != "nat" && FORWARDED.contains(hook),
    }
}

fn flows_of(family: Family) -> Flows {
    match family {
        Family::Ip => Flows::of_family(AddressFamily::V4),
        Family::Ip6 => Flows::of_family(AddressFamily::V6),
        _ => Flows::all(),
    }
}

/// Adds the flows that rules of nf_tables keep with netfilter. Returns false if there are more rules than `extent`
/// allows.
pub(super) fn read_nftables(held: &mut Held, extent: Extent) -> Result<bool, Error> {
    let socket = match Socket::open() {
        Err(error) if error.unsupported().is_some() => return Ok(true),
        other => other.map_err(failed)?,
    };
    match read_tables(&socket, held, extent) {
        Err(error) if error.unsupported().is_some() => Ok(true),
        other => other.map_err(failed),
    }
}

fn read_tables(socket: &Socket, held: &mut Held, extent: Extent) -> Result<bool, NftError> {
    let ours = schema::table();
    let tables = socket.tables()?.into_iter().filter(|table| table.id != ours);
    let uses: u32 = tables.map(|table| table.uses).fold(0, u32::saturating_add);
    if extent == Extent::Small && uses > MOST_CHAINS_OF_ADD {
        return Ok(false);
    }
    let mut of_tables = BTreeMap::<TableId, Vec<EncodedChain>>::new();
    let mut rules = 0_u32;
    for chain in socket.encoded_chains()?.into_iter().filter(|chain| chain.table != ours) {
        rules = rules.saturating_add(chain.uses);
        of_tables.entry(chain.table.clone()).or_default().push(chain);
    }
    if extent == Extent::Small && rules > MOST_RULES_OF_ADD {
        return Ok(false);
    }
    for (table, chains) in of_tables.iter().filter(|(_, chains)| chains.iter().any(sees_each)) {
        read_table(socket, table, chains, held)?;
    }
    Ok(true)
}

/// A rule that keeps flows with netfilter, or leads to another chain.
struct FoundRule {
    chain: String,
    handle: u64,
    judgement: Judgement,
}

fn read_table(
    socket: &Socket,
    table: &TableId,
    chains: &[EncodedChain],
    held: &mut Held,
) -> Result<(), NftError> {
    let limited = socket.sets_with_expression(table, is_per_packet)?;
    let flows = flows_of(table.family);
    let found = socket.fold_rules(table, |rule| {
        let judgement = judge(rule.expressions, flows, &limited, EXTENSIONS);
        let is_plain = judgement == Judgement::default();
        (!is_plain).then(|| FoundRule { chain: rule.chain.to_owned(), handle: rule.handle, judgement })
    })?;
    let mut by_chain = BTreeMap::<&str, Vec<&FoundRule>>::new();
    for rule in &found {
        by_chain.entry(&rule.chain).or_default().push(rule);
    }
    let mut waiting: Vec<String> =
        chains.iter().filter(|chain| sees_each(chain)).map(|chain| chain.name.clone()).collect();
    let (mut reached, mut maps) = (BTreeSet::new(), BTreeSet::new());
    while let Some(chain) = waiting.pop() {
        // Thousands of rules may lead to one chain.
        if !reached.insert(chain.clone()) {
            continue;
        }
        for rule in by_chain.get(chain.as_str()).into_iter().flatten() {
            waiting.extend(rule.judgement.chains.iter().filter(|next| !reached.contains(*next)).cloned());
            for map in &rule.judgement.maps {
                if maps.insert(map.clone()) {
                    waiting.extend(socket.verdict_targets(table, map)?);
                }
            }
        }
    }
    for FoundRule { chain, handle, judgement } in
        found.into_iter().filter(|rule| reached.contains(&rule.chain))
    {
        if let Some(hold) = judgement.hold {
            held.add(|| format!("the rule with handle {handle} in chain {chain} of table {table}"), hold);
        }
    }
    Ok(())
}

/// Adds the flows that rules of the legacy tables keep with netfilter. Returns false if there are more rules than
/// `extent` allows.
pub(super) fn read_legacy(held: &mut Held, extent: Extent) -> Result<bool, Error> {
    for family in AddressFamily::BOTH {
        for table in LEGACY {
            let info = xtables::info(family, table).map_err(failed)?;
            let Some(info) = info else { continue };
            if extent == Extent::Small && info.entries > MOST_RULES_OF_ADD as usize {
                return Ok(false);
            }
            read_legacy_table(held, family, table)?;
        }
    }
    Ok(true)
}

fn read_legacy_table(held: &mut Held, family: AddressFamily, table: &str) -> Result<(), Error> {
    let chains = xtables::rules(family, table).map_err(failed)?;
    let is_forwarded = |chain: &xtables::RawChain| chain.hook.is_some_and(|hook| FORWARDED.contains(&hook));
    let mut waiting: Vec<usize> = (0..chains.len()).filter(|index| is_forwarded(&chains[*index])).collect();
    let mut reached = BTreeSet::new();
    while let Some(index) = waiting.pop() {
        if reached.insert(index)
            && let Some(chain) = chains.get(index)
        {
            waiting.extend(chain.rules.iter().filter_map(|rule| rule.leads_to));
        }
    }
    let tool = match family {
        AddressFamily::V4 => "iptables-legacy",
        AddressFamily::V6 => "ip6tables-legacy",
    };
    for chain in reached.into_iter().filter_map(|index| chains.get(index)) {
        for rule in &chain.rules {
            if let Some(hold) = judge_legacy(family, rule) {
                let place =
                    || format!("rule {} of chain {} in `{tool} --table {table}`", rule.number, chain.name);
                held.add(place, hold);
            }
        }
    }
    Ok(())
}

pub(super) fn judge_legacy(family: AddressFamily, rule: &xtables::RawRule) -> Option<Hold> {
    let none = BTreeSet::new();
    let mut reader = Reader::new(Flows::of_family(family), &none, EXTENSIONS);
    if rule.protocol != 0 {
        reader.only_protocol(rule.protocol);
    }
    for one in &rule.matches {
        judge_match(&mut reader, &one.name, &one.data);
    }
    judge_target(&mut reader, &rule.target.name, &rule.target.data);
    reader.hold()
}
