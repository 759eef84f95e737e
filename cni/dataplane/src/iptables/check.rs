//! CHECK: whether the rules of a plan are there, as the reference asks for them one by one. Rules
//! beyond them are no difference: the reference leaves some behind.

use std::collections::BTreeSet;

use super::listing::Listing;
use super::names;
use super::plan::{MasqueradePlan, PortPlan, shared};
use super::quote;
use super::rule::{Batch, Op, Rule};
use super::tools::{Refusal, Tools, nat_table};
use crate::{AddressFamily, Error};

fn missing(family: AddressFamily, chain: &str, rule: &Rule) -> Error {
    let words = rule.words();
    let line = quote::line(words.iter().map(String::as_str));
    Error::Missing(format!("table {} has no rule -A {chain} {line}", nat_table(family)))
}

fn contains(listing: &Listing, family: AddressFamily, chain: &str, rule: &Rule) -> Result<(), Error> {
    if listing.contains(chain, &rule.words()) { Ok(()) } else { Err(missing(family, chain, rule)) }
}

/// Compares the plan with what is there.
pub(crate) fn ports(tools: &Tools, listing: &Listing, plan: &PortPlan) -> Result<(), Error> {
    let family = plan.family;
    for wanted in shared(plan.mark_bit) {
        contains(listing, family, wanted.chain, &wanted.rule)?;
    }
    for rule in &plan.rules {
        contains(listing, family, plan.chain.as_str(), rule)?;
    }
    for entry in &plan.entries {
        if !entry.is_canonical() {
            ask(tools, family, entry)?;
        } else if !leads_there(listing, entry) {
            return Err(missing(family, names::HOSTPORT_DNAT, entry));
        }
    }
    Ok(())
}

/// Whether all ports of an entry rule are in rules that are like it otherwise. The order of the ports, and
/// how they are shared out, means nothing to a packet: a container that came from the nftables backend has
/// them by number.
pub(super) fn leads_there(listing: &Listing, entry: &Rule) -> bool {
    let words = entry.words();
    let Some(at) = words.iter().position(|word| word == "--dports").map(|option| option + 1) else {
        return listing.contains(names::HOSTPORT_DNAT, &words);
    };
    let ports = |words: &[String]| -> BTreeSet<String> {
        words.get(at).into_iter().flat_map(|list| list.split(',')).map(str::to_owned).collect()
    };
    let alike = |listed: &[String]| {
        listed.len() == words.len()
            && listed.iter().zip(&words).enumerate().all(|(number, (a, b))| number == at || a == b)
    };
    let rules = listing.rules(names::HOSTPORT_DNAT).iter().map(|rule| rule.0.as_slice());
    let there: BTreeSet<String> = rules.filter(|rule| alike(rule)).flat_map(ports).collect();
    ports(&words).is_subset(&there)
}

/// Asks the tool itself for a rule whose words are the configuration's: it prints them in its own.
fn ask(tools: &Tools, family: AddressFamily, entry: &Rule) -> Result<(), Error> {
    let mut batch = Batch::new(family);
    batch.push(Op::Check(names::HOSTPORT_DNAT.to_owned(), entry.words()));
    match tools.commit(&batch) {
        Ok(()) => Ok(()),
        Err(Refusal::Rules(_)) => Err(missing(family, names::HOSTPORT_DNAT, entry)),
        Err(Refusal::Failed(error)) => Err(error),
    }
}

/// Compares the plan with what is there.
pub(crate) fn masquerade(listing: &Listing, plan: &MasqueradePlan) -> Result<(), Error> {
    for rule in &plan.rules {
        contains(listing, plan.family, plan.chain.as_str(), rule)?;
    }
    plan.jumps.iter().try_for_each(|rule| contains(listing, plan.family, "POSTROUTING", rule))
}
