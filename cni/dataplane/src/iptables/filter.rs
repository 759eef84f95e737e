// SPDX-License-Identifier: GPL-2.0-or-later

//! The chains of the reference's firewall plugin in the filter table, with our own rules.
//!
//! ```text
//! FORWARD                 "… (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
//!                         "CNI firewall plugin rules" -j CNI-FORWARD
//! CNI-FORWARD             "CNI firewall plugin admin overrides" -j CNI-ADMIN
//!                         -d ADDRESS -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//!                         -s ADDRESS -j ACCEPT
//!                         -d ADDRESS -m conntrack --ctstate DNAT -j ACCEPT  ours
//! CNI-ISOLATION-STAGE-1   -m conntrack --ctstate DNAT -j RETURN             ours, always the first
//!                         -i BRIDGE -o BRIDGE -j DROP                       isolated
//!                         -i BRIDGE ! -o BRIDGE -j CNI-ISOLATION-STAGE-2    and same-bridge
//!                         -j RETURN
//! CNI-ISOLATION-STAGE-2   -o BRIDGE -j DROP
//!                         -j RETURN
//! ```
//!
//! The reference plugin does not have the rules that are marked as ours, for published ports. Without them, a chain
//! FORWARD that drops by default closes the ports of the plugin's containers, and isolation closes them to containers
//! on other bridges. The rule for a container contains the container's address, because otherwise it would also open
//! ports of other engines, which an administrator may have restricted in a later chain.

use std::net::IpAddr;

use ipnet::IpNet;

use super::batch::Batch;
use super::detect;
use super::listing::Listing;
use super::names::{ChainName, TableName};
use super::rule::Rule;
use super::tools::{self, Place, Tools, table_id};
use super::trial;
use crate::policy::IngressPolicy;
use crate::{AddressFamily, Difference, Error};

pub(super) const FORWARD: &str = "FORWARD";
const STATE: [&str; 3] = ["-m", "conntrack", "--ctstate"];
/// A connection whose destination was translated, in both directions.
const TRANSLATED: [&str; 4] = ["-m", "conntrack", "--ctstate", "DNAT"];
pub(super) const CONTAINERS: &str = "CNI-FORWARD";
/// The administrator's chain, unless a configuration names another one.
pub(super) const ADMIN: &str = "CNI-ADMIN";
pub(super) const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
pub(super) const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
const RULES: &str = "CNI firewall plugin rules";
const ADMIN_OVERRIDES: &str = "CNI firewall plugin admin overrides";
const EITHER: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)";
/// The comment of the rule that the reference plugin does not have.
const PUBLISHED: &str = "made by slipway: published ports";
/// The uses of [`CONTAINERS`] without containers: the rule that jumps to it, and the jump to the administrator's
/// chain.
const EMPTY_USES: u32 = 2;

/// The comment that versions of the reference plugin without the policy `isolated` write instead of [`EITHER`].
const OLDER_EITHER: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge)";

/// The policies that a bridge's containers ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Isolation {
    bridge: String,
    same_bridge: bool,
    isolated: bool,
}

impl Isolation {
    pub(crate) fn new(bridge: &str, policies: &[IngressPolicy]) -> Self {
        Self {
            bridge: bridge.to_owned(),
            same_bridge: policies.contains(&IngressPolicy::SameBridge),
            isolated: policies.contains(&IngressPolicy::Isolated),
        }
    }

    fn is_none(&self) -> bool {
        !self.same_bridge && !self.isolated
    }

    /// The rules of the first isolating chain, in order.
    fn stage_1(&self) -> Vec<Rule> {
        let bridge = self.bridge.as_str();
        let comment = |policy: &str| format!("{RULES} (ingressPolicy: {policy})");
        let leaving = |policy: &str| {
            let rule = Rule::new().with(["-i", bridge, "!", "-o", bridge]);
            rule.with_comment(&comment(policy)).jump(STAGE_2)
        };
        let mut rules = Vec::new();
        if self.isolated {
            let within = Rule::new().with(["-i", bridge, "-o", bridge]);
            rules.push(within.with_comment(&comment("isolated")).jump("DROP"));
            rules.push(leaving("isolated"));
        }
        if self.same_bridge {
            rules.push(leaving("same-bridge"));
        }
        rules
    }

    fn stage_2(&self) -> Vec<Rule> {
        let rule = || Rule::new().with(["-o", &self.bridge]).with_comment(EITHER).jump("DROP");
        if self.is_none() { Vec::new() } else { vec![rule()] }
    }
}

/// The rules of a container in one family's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilterPlan {
    pub(crate) family: AddressFamily,
    /// Addresses whose packets are accepted.
    pub(crate) admitted: Vec<IpAddr>,
    /// Addresses whose rules are removed.
    pub(crate) dismissed: Vec<IpAddr>,
    /// The policies of the container's bridge, or none to leave the bridge's rules as they are.
    pub(crate) isolation: Option<Isolation>,
    pub(crate) admin: ChainName,
}

impl FilterPlan {
    /// The chains that the plan reads and changes.
    fn chains(&self) -> [&str; 5] {
        [FORWARD, CONTAINERS, self.admin.as_str(), STAGE_1, STAGE_2]
    }
}

/// The rules that the reference plugin makes for an address.
fn of_address(address: IpAddr) -> [Rule; 2] {
    let net = IpNet::from(address);
    [
        Rule::new().with_destination(net).with(STATE).with(["RELATED,ESTABLISHED"]).jump("ACCEPT"),
        Rule::new().with_source(net).jump("ACCEPT"),
    ]
}

/// The rule that accepts connections which were translated to an address.
fn of_published(address: IpAddr) -> Rule {
    Rule::new().with_destination(IpNet::from(address)).with(TRANSLATED).jump("ACCEPT")
}

/// All rules for an address.
fn all_of_address(address: IpAddr) -> impl Iterator<Item = Rule> {
    of_address(address).into_iter().chain([of_published(address)])
}

/// The rule that lets translated packets skip the chains that isolate.
fn published() -> Rule {
    Rule::new().with_comment(PUBLISHED).with(TRANSLATED).jump("RETURN")
}

/// True if translated packets skip the chains that isolate, or if there are no such chains.
fn passes_published(listing: &Listing) -> bool {
    !listing.has(STAGE_1) || listing.rules(STAGE_1).first() == Some(&published())
}

fn entry() -> Rule {
    Rule::new().with_comment(RULES).jump(CONTAINERS)
}

fn isolation_entry() -> Rule {
    Rule::new().with_comment(EITHER).jump(STAGE_1)
}

fn admin_entry(admin: &str) -> Rule {
    Rule::new().with_comment(ADMIN_OVERRIDES).jump(admin)
}

fn back() -> Rule {
    Rule::new().with_comment(EITHER).jump("RETURN")
}

/// True if the listed rule is this one, in the form that this or an older version of the reference plugin writes.
fn is(listed: &Rule, rule: &Rule) -> bool {
    let same =
        |(listed, word): (&String, &String)| listed == word || (word == EITHER && listed == OLDER_EITHER);
    let (listed, words) = (listed.words(), rule.words());
    listed.len() == words.len() && listed.iter().zip(words).all(same)
}

/// True if a rule of the isolating chains names no bridge.
fn is_shared(rule: &Rule) -> bool {
    is(rule, &back()) || *rule == published()
}

fn has(listing: &Listing, chain: &str, rule: &Rule) -> bool {
    listing.rules(chain).iter().any(|listed| is(listed, rule))
}

/// The tools of the variant that has such chains, or else those of the node's variant.
pub(crate) fn tools() -> Result<Tools, Error> {
    let of = |variant| Tools::new(Place { variant, family: AddressFamily::V4 }, TableName::Filter);
    for place in places()? {
        if tools::are_installed(place.variant)? {
            return Ok(of(place.variant));
        }
    }
    detect::variant_for(TableName::Filter).map(of)
}

/// True if containers have rules in chains that the node's programs can change. Runs no program.
pub(crate) fn holds_containers() -> Result<bool, Error> {
    for place in places()? {
        if tools::are_installed(place.variant)? && detect::has_more_than(place, CONTAINERS, EMPTY_USES)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The places with such chains, those of the nft variant first. Runs no program.
pub(super) fn places() -> Result<Vec<Place>, Error> {
    let mut places = detect::places_with_chain(TableName::Filter, &[CONTAINERS, STAGE_1])?;
    places.sort();
    Ok(places)
}

/// Tries the programs that these chains need.
pub(crate) fn status() -> Result<(), Error> {
    match places()?.first() {
        Some(place) => trial::try_out(place.variant, TableName::Filter),
        None => detect::tried_variant(TableName::Filter).map(drop),
    }
}

/// Adds the rules of the plan.
pub(crate) fn admit(tools: &Tools, plan: &FilterPlan) -> Result<(), Error> {
    let operation = "change the chains of the firewall plugin";
    tools.with_family(plan.family).update(operation, &plan.chains(), None, |listing| changes(listing, plan))
}

/// Removes the rules of these addresses in all places, and sets the policies of a bridge.
pub(crate) fn dismiss(addresses: &[IpAddr], isolation: Option<&Isolation>) -> Result<(), Error> {
    if addresses.is_empty() && isolation.is_none() {
        return Ok(());
    }
    for place in places()? {
        let plan = FilterPlan {
            family: place.family,
            admitted: Vec::new(),
            dismissed: of_family(addresses, place.family).collect(),
            isolation: isolation.cloned(),
            admin: ChainName::fixed(ADMIN),
        };
        let operation = "remove rules of the firewall plugin";
        let tools = Tools::new(place, TableName::Filter);
        tools.update(operation, &plan.chains(), None, |listing| removals(listing, &plan))?;
    }
    Ok(())
}

pub(crate) fn of_family(addresses: &[IpAddr], family: AddressFamily) -> impl Iterator<Item = IpAddr> {
    addresses.iter().copied().filter(move |address| AddressFamily::of(*address) == family)
}

/// True if there may be rules for one of these addresses. Runs no program.
pub(crate) fn may_name_any(addresses: &[IpAddr]) -> Result<bool, Error> {
    if addresses.is_empty() {
        return Ok(false);
    }
    let octets = |address| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    for place in places()? {
        let texts: Vec<Vec<u8>> = of_family(addresses, place.family).map(octets).collect();
        if !texts.is_empty() && detect::has_rule(place, TableName::Filter, CONTAINERS, &texts)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if there may be rules that isolate the bridge. Runs no program.
pub(crate) fn may_isolate(bridge: &str) -> Result<bool, Error> {
    // The kernel terminates names with a NUL.
    let name = [bridge.as_bytes(), &[0]].concat();
    for place in places()? {
        if detect::has_rule(place, TableName::Filter, STAGE_1, std::slice::from_ref(&name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The bridges that are isolated by rules.
pub(crate) fn isolated_bridges() -> Result<Vec<String>, Error> {
    let mut bridges = Vec::new();
    for place in places()? {
        let listing = Tools::new(place, TableName::Filter).read(&[STAGE_1])?;
        bridges.extend(listing.rules(STAGE_1).iter().filter_map(|rule| rule.value("-i").map(str::to_owned)));
    }
    bridges.sort();
    bridges.dedup();
    Ok(bridges)
}

/// The chain that drops packets from one link to another, and whether it lets translated packets pass.
pub(crate) fn separates(
    from: &str,
    to: &str,
    family: AddressFamily,
) -> Result<Option<(&'static str, bool)>, Error> {
    for place in places()?.into_iter().filter(|place| place.family == family) {
        let listing = Tools::new(place, TableName::Filter).read(&[STAGE_1, STAGE_2])?;
        if let Some(chain) = separating(&listing, from, to) {
            return Ok(Some((chain, passes_published(&listing))));
        }
    }
    Ok(None)
}

fn separating(listing: &Listing, from: &str, to: &str) -> Option<&'static str> {
    let drops = |rule: &&Rule| rule.target() == Some("DROP");
    if from == to {
        let within = |rule: &Rule| rule.value("-i") == Some(from) && rule.value("-o") == Some(to);
        return listing.rules(STAGE_1).iter().filter(drops).any(within).then_some(STAGE_1);
    }
    let leads = listing.jumps(STAGE_1, STAGE_2).any(|rule| rule.value("-i") == Some(from));
    let ends = listing.rules(STAGE_2).iter().filter(drops).any(|rule| rule.value("-o") == Some(to));
    (leads && ends).then_some(STAGE_2)
}

/// Why the chains must be kept: rules of a container or of an administrator need them.
pub(super) fn needed(listing: &Listing) -> Option<&'static str> {
    // The administrator's chain may have another name.
    let leads_to_admin = |rule: &Rule| rule.target().is_some_and(|to| admin_entry(to) == *rule);
    if listing.rules(CONTAINERS).iter().any(|rule| !leads_to_admin(rule)) {
        return Some("containers' rules are there");
    }
    if listing.rules(STAGE_1).iter().any(|rule| !is_shared(rule)) {
        return Some("a bridge is kept apart there");
    }
    (!listing.rules(ADMIN).is_empty()).then_some("an administrator's rules are there")
}

/// The changes that add the rules of the plan.
fn changes(listing: &Listing, plan: &FilterPlan) -> Batch {
    let mut batch = Batch::new(TableName::Filter);
    for chain in [CONTAINERS, plan.admin.as_str()] {
        batch.make_chain(listing, chain);
    }
    let is_new = !listing.contains(FORWARD, &entry());
    if is_new {
        batch.insert(FORWARD, &entry());
    }
    let admin = admin_entry(plan.admin.as_str());
    if !listing.contains(CONTAINERS, &admin) {
        batch.insert(CONTAINERS, &admin);
    }
    for rule in plan.admitted.iter().flat_map(|address| all_of_address(*address)) {
        if !listing.contains(CONTAINERS, &rule) {
            batch.append(CONTAINERS, &rule);
        }
    }
    if let Some(isolation) = plan.isolation.as_ref().filter(|isolation| !isolation.is_none()) {
        for chain in [STAGE_2, STAGE_1] {
            batch.make_chain(listing, chain);
            if !has(listing, chain, &back()) {
                batch.append(chain, &back());
            }
        }
        set_bridge(&mut batch, listing, isolation);
        if !has(listing, FORWARD, &isolation_entry()) {
            batch.insert(FORWARD, &isolation_entry());
            return batch;
        }
    } else if !passes_published(listing) {
        put_published_first(&mut batch, listing);
    }
    // The jump to the isolating chains must precede the jump to the chain that accepts.
    let isolating = listing.rules(FORWARD).iter().find(|listed| is(listed, &isolation_entry()));
    if let Some(listed) = isolating.filter(|_| is_new) {
        batch.delete(FORWARD, listed);
        batch.insert(FORWARD, &isolation_entry());
    }
    batch
}

/// Moves the rule for translated packets to the beginning.
fn put_published_first(batch: &mut Batch, listing: &Listing) {
    if listing.contains(STAGE_1, &published()) {
        batch.delete(STAGE_1, &published());
    }
    batch.insert(STAGE_1, &published());
}

/// Replaces the bridge's rules with these. New ones are inserted, as the reference plugin does.
fn set_bridge(batch: &mut Batch, listing: &Listing, isolation: &Isolation) {
    let bridge = isolation.bridge.as_str();
    let mut inserted = false;
    for (chain, option, rules) in [(STAGE_1, "-i", isolation.stage_1()), (STAGE_2, "-o", isolation.stage_2())]
    {
        for old in listing.rules(chain).iter().filter(|rule| rule.value(option) == Some(bridge)) {
            if !rules.iter().any(|rule| is(old, rule)) {
                batch.delete(chain, old);
            }
        }
        for rule in rules.iter().rev().filter(|rule| !has(listing, chain, rule)) {
            batch.insert(chain, rule);
            inserted |= chain == STAGE_1;
        }
    }
    if inserted || !listing.has(STAGE_1) || !passes_published(listing) {
        put_published_first(batch, listing);
    }
}

/// The changes that remove the rules of the plan. Like with the reference plugin, [`CONTAINERS`] stays. The isolating
/// chains are removed together with the last bridge.
fn removals(listing: &Listing, plan: &FilterPlan) -> Batch {
    let mut batch = Batch::new(TableName::Filter);
    for rule in plan.dismissed.iter().flat_map(|address| all_of_address(*address)) {
        // The same rule may be there several times.
        for _ in listing.rules(CONTAINERS).iter().filter(|listed| **listed == rule) {
            batch.delete(CONTAINERS, &rule);
        }
    }
    let Some(isolation) = plan.isolation.as_ref().filter(|_| listing.has(STAGE_1)) else { return batch };
    let of_others = |rule: &Rule| !is_shared(rule) && rule.value("-i") != Some(&isolation.bridge);
    if !isolation.is_none() || listing.rules(STAGE_1).iter().any(of_others) {
        set_bridge(&mut batch, listing, isolation);
        return batch;
    }
    batch.delete_jumps(listing, FORWARD, &[STAGE_1]);
    batch.delete_chains(listing, &[STAGE_1, STAGE_2]);
    batch
}

/// Compares the listed rules with those rules of the plan that the reference plugin makes as well. Containers that it
/// or an earlier version attached do not have the others.
pub(crate) fn check(tools: &Tools, plan: &FilterPlan) -> Result<(), Error> {
    compare(tools, plan, |_| Vec::new())
}

/// Compares the listed rules with the whole plan, including the rules for published ports.
pub(crate) fn check_all(tools: &Tools, plan: &FilterPlan) -> Result<(), Error> {
    compare(tools, plan, |listing| {
        let of_addresses = plan.admitted.iter().map(|address| (CONTAINERS, of_published(*address)));
        let first = plan.isolation.is_some() && !passes_published(listing);
        of_addresses
            .filter(|(chain, rule)| !has(listing, chain, rule))
            .chain(first.then(|| (STAGE_1, published())))
            .collect()
    })
}

/// Compares the listed rules with the plan; `more` finds missing ones.
fn compare(
    tools: &Tools,
    plan: &FilterPlan,
    more: impl Fn(&Listing) -> Vec<(&'static str, Rule)>,
) -> Result<(), Error> {
    let listing = tools.with_family(plan.family).read(&plan.chains())?;
    let mut expected = vec![(FORWARD, entry()), (CONTAINERS, admin_entry(plan.admin.as_str()))];
    expected.extend(plan.admitted.iter().flat_map(|one| of_address(*one)).map(|rule| (CONTAINERS, rule)));
    if let Some(isolation) = &plan.isolation {
        expected.push((FORWARD, isolation_entry()));
        expected.extend(isolation.stage_1().into_iter().map(|rule| (STAGE_1, rule)));
        expected.extend(isolation.stage_2().into_iter().map(|rule| (STAGE_2, rule)));
    }
    let mut missing = expected.into_iter().filter(|(chain, rule)| !has(&listing, chain, rule));
    let Some((chain, rule)) = missing.next().or_else(|| more(&listing).into_iter().next()) else {
        return Ok(());
    };
    let table = table_id(plan.family, TableName::Filter).to_string();
    let (chain, rule) = (chain.to_owned(), rule.to_string());
    Err(Difference::NoFirewallRule { chain, rule, table }.into())
}

#[cfg(test)]
mod tests;
