// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK: compares the rules of a plan, one by one like the reference plugin, with the listed rules. Additional rules
//! are not a difference, because the reference plugin leaves some behind. The only exception are networks that should
//! no longer be exempt from masquerade.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::batch::Batch;
use super::listing::Listing;
use super::names::{HOSTPORT_DNAT, POSTROUTING, TableName};
use super::plan::{MasqueradePlan, PortPlan};
use super::rule::Rule;
use super::tools::{Refusal, Tools, nat_table};
use crate::difference::{Difference, ExemptDifference};
use crate::{AddressFamily, Error};

fn require(family: AddressFamily, chain: &str, rule: &Rule, is_there: bool) -> Result<(), Error> {
    if is_there {
        return Ok(());
    }
    let (table, chain) = (nat_table(family).to_string(), chain.to_owned());
    Err(Difference::NoRule { table, chain, rule: rule.to_string() }.into())
}

/// Compares the rules of published ports.
pub(crate) fn ports(tools: &Tools, listing: &Listing, plan: &PortPlan) -> Result<(), Error> {
    let require = |chain, rule: &Rule, is_there| require(plan.family, chain, rule, is_there);
    for wanted in &plan.shared {
        require(wanted.chain, &wanted.rule, listing.contains(wanted.chain, &wanted.rule))?;
    }
    // Programs in the container may have links of their own, whose networks do not count as a difference.
    for rule in plan.rules.iter().filter(|rule| !plan.is_of_other_network(rule)) {
        require(plan.chain.as_str(), rule, listing.contains(plan.chain.as_str(), rule))?;
    }
    for entry in &plan.entries {
        let is_there = if entry.has_conditions() { ask(tools, entry)? } else { covers(listing, entry) };
        require(HOSTPORT_DNAT, entry, is_there)?;
    }
    Ok(())
}

/// True if all ports of an entry rule are in listed rules that are otherwise the same. The order of the ports and
/// their distribution over rules make no difference to packets, and a migration from nftables sorts the ports.
pub(super) fn covers(listing: &Listing, entry: &Rule) -> bool {
    let words = entry.words();
    let Some(at) = words.iter().position(|word| word == "--dports").map(|option| option + 1) else {
        return listing.contains(HOSTPORT_DNAT, entry);
    };
    let ports = |words: &[String]| -> BTreeSet<String> {
        words.get(at).into_iter().flat_map(|list| list.split(',')).map(str::to_owned).collect()
    };
    let alike = |listed: &[String]| {
        listed.len() == words.len()
            && listed.iter().zip(words).enumerate().all(|(number, (a, b))| number == at || a == b)
    };
    let rules = listing.rules(HOSTPORT_DNAT).iter().map(Rule::words);
    let there: BTreeSet<String> = rules.filter(|rule| alike(rule)).flat_map(ports).collect();
    ports(words).is_subset(&there)
}

/// Asks the tool whether a rule with conditions exists, because the tool may list conditions in other words.
fn ask(tools: &Tools, entry: &Rule) -> Result<bool, Error> {
    let mut batch = Batch::new(TableName::Nat);
    batch.require(HOSTPORT_DNAT, entry);
    match tools.commit(&batch) {
        Ok(()) => Ok(true),
        Err(Refusal::Ruleset(_)) => Ok(false),
        Err(Refusal::Failed(error)) => Err(error),
    }
}

/// Compares the rules of a masquerade.
pub(crate) fn masquerade(listing: &Listing, plan: &MasqueradePlan) -> Result<(), Error> {
    let require = |chain, rule| require(plan.family, chain, rule, listing.contains(chain, rule));
    plan.rules.iter().try_for_each(|rule| require(plan.chain.as_str(), rule))?;
    plan.jumps.iter().try_for_each(|rule| require(POSTROUTING, rule))?;
    match no_longer_exempt(listing, plan) {
        Some(network) => Err(Difference::ExemptNetwork(ExemptDifference::More(network)).into()),
        None => Ok(()),
    }
}

/// A network to which packets keep their source although the plan does not contain it. If another interface of the
/// container uses the same chain, the network may belong to that interface.
fn no_longer_exempt(listing: &Listing, plan: &MasqueradePlan) -> Option<IpNet> {
    let chain = plan.chain.as_str();
    if listing.jumps(POSTROUTING, chain).any(|rule| !plan.jumps.contains(rule)) {
        return None;
    }
    let kept = |rules: &[Rule]| -> Vec<IpNet> {
        let kept = rules.iter().filter(|rule| rule.target() == Some("ACCEPT"));
        kept.filter_map(Rule::destination).map(|network| network.trunc()).collect()
    };
    let wanted = kept(&plan.rules);
    kept(listing.rules(chain)).into_iter().find(|network| !wanted.contains(network))
}
