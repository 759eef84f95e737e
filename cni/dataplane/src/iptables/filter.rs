// SPDX-License-Identifier: GPL-2.0-or-later

//! The chains of the reference's firewall plugin, in the filter table.
//!
//! ```text
//! FORWARD                 "… (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
//!                         "CNI firewall plugin rules" -j CNI-FORWARD
//! CNI-FORWARD             "CNI firewall plugin admin overrides" -j CNI-ADMIN
//!                         -d ADDRESS -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//!                         -s ADDRESS -j ACCEPT
//! CNI-ISOLATION-STAGE-1   -i BRIDGE -o BRIDGE -j DROP                       isolated
//!                         -i BRIDGE ! -o BRIDGE -j CNI-ISOLATION-STAGE-2    and same-bridge
//!                         -j RETURN
//! CNI-ISOLATION-STAGE-2   -o BRIDGE -j DROP
//!                         -j RETURN
//! ```

use std::net::IpAddr;

use ipnet::IpNet;

use super::batch::Batch;
use super::detect;
use super::listing::Listing;
use super::names::{ChainName, TableName};
use super::rule::Rule;
use super::tools::{self, Place, Tools, table_id};
use crate::policy::IngressPolicy;
use crate::{AddressFamily, Difference, Error};

pub(super) const FORWARD: &str = "FORWARD";
pub(super) const CONTAINERS: &str = "CNI-FORWARD";
/// The administrator's chain, unless a configuration names another one.
pub(super) const ADMIN: &str = "CNI-ADMIN";
pub(super) const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
pub(super) const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
const RULES: &str = "CNI firewall plugin rules";
const ADMIN_OVERRIDES: &str = "CNI firewall plugin admin overrides";
const EITHER: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)";
/// The comment that versions of the reference without the policy `isolated` write in place of [`EITHER`].
const OLDER_EITHER: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge)";

/// The policies for a bridge that its containers ask for.
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

    /// The rules of the first chain, in order.
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
    /// The policies of the container's bridge; none to leave the bridge's rules as they are.
    pub(crate) isolation: Option<Isolation>,
    pub(crate) admin: ChainName,
}

impl FilterPlan {
    /// The chains that the plan reads and changes.
    fn chains(&self) -> [&str; 5] {
        [FORWARD, CONTAINERS, self.admin.as_str(), STAGE_1, STAGE_2]
    }
}

fn of_address(address: IpAddr) -> [Rule; 2] {
    let net = IpNet::from(address);
    let established = ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"];
    [
        Rule::new().with_destination(net).with(established).jump("ACCEPT"),
        Rule::new().with_source(net).jump("ACCEPT"),
    ]
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

/// True if the listed rule is this one, as this or an older version of the reference writes it.
fn is(listed: &Rule, rule: &Rule) -> bool {
    let same =
        |(listed, word): (&String, &String)| listed == word || (word == EITHER && listed == OLDER_EITHER);
    let (listed, words) = (listed.words(), rule.words());
    listed.len() == words.len() && listed.iter().zip(words).all(same)
}

fn has(listing: &Listing, chain: &str, rule: &Rule) -> bool {
    listing.rules(chain).iter().any(|listed| is(listed, rule))
}

/// The tools of the variant that has such chains, else of the node's variant.
pub(crate) fn tools() -> Result<Tools, Error> {
    let held = places()?.first().map(|place| place.variant);
    let variant = held.map_or_else(detect::chosen_variant, Ok)?;
    Ok(Tools::new(Place { variant, family: AddressFamily::V4 }, TableName::Filter))
}

/// The places with such chains, those of the nft variant first. Runs no program.
pub(super) fn places() -> Result<Vec<Place>, Error> {
    let mut places = detect::places_with_chain(TableName::Filter, &[CONTAINERS, STAGE_1])?;
    places.sort();
    Ok(places)
}

/// Looks for the programs that these chains need.
pub(crate) fn status() -> Result<(), Error> {
    tools::programs(tools()?.variant).map(drop)
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

/// True if there may be rules of one of these addresses. Runs no program.
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
    // The kernel ends names with a NUL.
    let name = [bridge.as_bytes(), &[0]].concat();
    for place in places()? {
        if detect::has_rule(place, TableName::Filter, STAGE_1, std::slice::from_ref(&name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The bridges that rules isolate.
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

/// The reason to keep the chains, if rules of a container or an administrator need them.
pub(super) fn needed(listing: &Listing) -> Option<&'static str> {
    // An administrator's chain may have another name.
    let leads_to_admin = |rule: &Rule| rule.target().is_some_and(|to| admin_entry(to) == *rule);
    if listing.rules(CONTAINERS).iter().any(|rule| !leads_to_admin(rule)) {
        return Some("containers' rules are there");
    }
    if listing.rules(STAGE_1).iter().any(|rule| !is(rule, &back())) {
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
    for rule in plan.admitted.iter().flat_map(|address| of_address(*address)) {
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
    }
    // The jump to the isolating chains precedes the one to those that accept.
    let isolating = listing.rules(FORWARD).iter().find(|listed| is(listed, &isolation_entry()));
    if let Some(listed) = isolating.filter(|_| is_new) {
        batch.delete(FORWARD, listed);
        batch.insert(FORWARD, &isolation_entry());
    }
    batch
}

/// Makes these the only rules of the bridge. New ones are inserted, as the reference does.
fn set_bridge(batch: &mut Batch, listing: &Listing, isolation: &Isolation) {
    let bridge = isolation.bridge.as_str();
    for (chain, option, rules) in [(STAGE_1, "-i", isolation.stage_1()), (STAGE_2, "-o", isolation.stage_2())]
    {
        for old in listing.rules(chain).iter().filter(|rule| rule.value(option) == Some(bridge)) {
            if !rules.iter().any(|rule| is(old, rule)) {
                batch.delete(chain, old);
            }
        }
        for rule in rules.iter().rev().filter(|rule| !has(listing, chain, rule)) {
            batch.insert(chain, rule);
        }
    }
}

/// The changes that remove the rules of the plan. As with the reference, [`CONTAINERS`] stays; the isolating
/// chains go with the last bridge.
fn removals(listing: &Listing, plan: &FilterPlan) -> Batch {
    let mut batch = Batch::new(TableName::Filter);
    for rule in plan.dismissed.iter().flat_map(|address| of_address(*address)) {
        // The same rule may be there several times.
        for _ in listing.rules(CONTAINERS).iter().filter(|listed| **listed == rule) {
            batch.delete(CONTAINERS, &rule);
        }
    }
    let Some(isolation) = plan.isolation.as_ref().filter(|_| listing.has(STAGE_1)) else { return batch };
    let of_others = |rule: &Rule| !is(rule, &back()) && rule.value("-i") != Some(&isolation.bridge);
    if !isolation.is_none() || listing.rules(STAGE_1).iter().any(of_others) {
        set_bridge(&mut batch, listing, isolation);
        return batch;
    }
    batch.delete_jumps(listing, FORWARD, &[STAGE_1]);
    batch.delete_chains(listing, &[STAGE_1, STAGE_2]);
    batch
}

/// Compares the listed rules with the plan.
pub(crate) fn check(tools: &Tools, plan: &FilterPlan) -> Result<(), Error> {
    let listing = tools.with_family(plan.family).read(&plan.chains())?;
    let mut expected = vec![(FORWARD, entry()), (CONTAINERS, admin_entry(plan.admin.as_str()))];
    expected.extend(plan.admitted.iter().flat_map(|one| of_address(*one)).map(|rule| (CONTAINERS, rule)));
    if let Some(isolation) = &plan.isolation {
        expected.push((FORWARD, isolation_entry()));
        expected.extend(isolation.stage_1().into_iter().map(|rule| (STAGE_1, rule)));
        expected.extend(isolation.stage_2().into_iter().map(|rule| (STAGE_2, rule)));
    }
    let Some((chain, rule)) = expected.iter().find(|(chain, rule)| !has(&listing, chain, rule)) else {
        return Ok(());
    };
    let table = table_id(plan.family, TableName::Filter).to_string();
    let (chain, rule) = ((*chain).to_owned(), rule.to_string());
    Err(Difference::NoFirewallRule { chain, rule, table }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(addresses: &[&str], isolation: Option<Isolation>) -> FilterPlan {
        FilterPlan {
            family: AddressFamily::V4,
            admitted: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            dismissed: Vec::new(),
            isolation,
            admin: ChainName::fixed("CNI-ADMIN"),
        }
    }

    /// The chains of the reference 1.9.1 after one container with `same-bridge` on br0 and one with
    /// `isolated` on br1.
    const REFERENCE: &str = r#"*filter
:FORWARD ACCEPT [0:0]
:CNI-ADMIN - [0:0]
:CNI-FORWARD - [0:0]
:CNI-ISOLATION-STAGE-1 - [0:0]
:CNI-ISOLATION-STAGE-2 - [0:0]
-A FORWARD -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-A FORWARD -j OTHER
-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
-A CNI-FORWARD -d 10.1.2.3/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 10.1.2.3/32 -j ACCEPT
-A CNI-ISOLATION-STAGE-1 -i br1 -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j DROP
-A CNI-ISOLATION-STAGE-1 -i br1 ! -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j CNI-ISOLATION-STAGE-2
-A CNI-ISOLATION-STAGE-1 -i br0 ! -o br0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge)" -j CNI-ISOLATION-STAGE-2
-A CNI-ISOLATION-STAGE-1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
-A CNI-ISOLATION-STAGE-2 -o br1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP
-A CNI-ISOLATION-STAGE-2 -o br0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP
-A CNI-ISOLATION-STAGE-2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
COMMIT
"#;

    fn reference() -> Listing {
        Listing::parse(REFERENCE, TableName::Filter)
    }

    #[test]
    fn chains_of_the_reference_need_no_change() {
        use IngressPolicy::{Isolated, SameBridge};
        for isolation in
            [None, Some(Isolation::new("br0", &[SameBridge])), Some(Isolation::new("br1", &[Isolated]))]
        {
            let batch = changes(&reference(), &plan(&["10.1.2.3"], isolation));
            assert!(batch.is_empty(), "{batch}");
        }
    }

    #[test]
    fn the_first_container_makes_the_chains() {
        let isolation = Isolation::new("br1", &[IngressPolicy::Isolated]);
        let batch = changes(&Listing::default(), &plan(&["10.1.2.3"], Some(isolation)));
        let batch = batch.to_string();
        let lines: Vec<&str> = batch.lines().collect();
        assert_eq!((lines[0], lines[lines.len() - 1]), ("*filter", "COMMIT"));
        let at = |text: &str| batch.find(text).unwrap_or_else(|| panic!("{text}: {batch}"));
        // The rule that is inserted last precedes the others.
        assert!(at("-j CNI-FORWARD\n") < at("-j CNI-ISOLATION-STAGE-1\n"), "{batch}");
        assert!(at("-i br1 ! -o br1") < at("-i br1 -o br1"), "{batch}");
        assert!(at("-N CNI-ISOLATION-STAGE-2") < at("-j CNI-ISOLATION-STAGE-2\n"), "{batch}");
        assert!(at("-d 10.1.2.3/32 ") < at("-A CNI-FORWARD -s 10.1.2.3/32 -j ACCEPT"), "{batch}");
    }

    #[test]
    fn isolation_stays_before_acceptance() {
        let without = REFERENCE
            .replace("-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n", "");
        let listing = Listing::parse(&without, TableName::Filter);
        let batch = changes(&listing, &plan(&["10.1.2.3"], None)).to_string();
        let lines: Vec<&str> = batch.lines().collect();
        assert_eq!(lines.len(), 5, "{batch}");
        assert!(lines[1].starts_with("-I FORWARD 1 ") && lines[1].ends_with("-j CNI-FORWARD"), "{batch}");
        assert!(lines[2].starts_with("-D FORWARD ") && lines[3].starts_with("-I FORWARD 1 "), "{batch}");
        assert!(lines[3].ends_with("-j CNI-ISOLATION-STAGE-1"), "{batch}");
    }

    #[test]
    fn a_bridge_without_a_policy_loses_its_rules() {
        let gone = |listing: &Listing, bridge: &str| {
            let isolation = Some(Isolation::new(bridge, &[]));
            removals(
                listing,
                &FilterPlan { dismissed: vec!["10.1.2.3".parse().unwrap()], ..plan(&[], isolation) },
            )
        };
        let batch = gone(&reference(), "br1").to_string();
        assert_eq!(batch.lines().filter(|line| line.starts_with("-D CNI-FORWARD")).count(), 2, "{batch}");
        assert_eq!(batch.lines().filter(|line| line.contains("br1")).count(), 3, "{batch}");
        assert!(!batch.contains("br0") && !batch.contains("-X"), "{batch}");
        // The chains go with the last bridge.
        let br0: String =
            REFERENCE.lines().filter(|line| !line.contains("br1")).map(|line| format!("{line}\n")).collect();
        let batch = gone(&Listing::parse(&br0, TableName::Filter), "br0").to_string();
        for line in ["-F CNI-ISOLATION-STAGE-1", "-X CNI-ISOLATION-STAGE-1", "-X CNI-ISOLATION-STAGE-2"] {
            assert!(batch.contains(line), "{line}: {batch}");
        }
        assert!(batch.contains("-D FORWARD") && batch.contains("-j CNI-ISOLATION-STAGE-1"), "{batch}");
        assert!(gone(&Listing::default(), "br0").is_empty());
    }

    #[test]
    fn a_stricter_policy_is_added_to_a_weaker_one() {
        use IngressPolicy::{Isolated, SameBridge};
        let isolation = Isolation::new("br0", &[SameBridge, Isolated]);
        let batch = changes(&reference(), &plan(&[], Some(isolation.clone()))).to_string();
        assert_eq!(
            batch.lines().filter(|line| line.starts_with("-I CNI-ISOLATION-STAGE-1")).count(),
            2,
            "{batch}"
        );
        assert!(!batch.contains("-D "), "{batch}");
        // It goes without the weaker one.
        let weaker = Isolation::new("br1", &[SameBridge]);
        let batch = removals(&reference(), &plan(&[], Some(weaker))).to_string();
        assert_eq!(batch.lines().filter(|line| line.starts_with("-D ")).count(), 2, "{batch}");
        assert_eq!(batch.lines().filter(|line| line.starts_with("-I ")).count(), 1, "{batch}");
    }
}
