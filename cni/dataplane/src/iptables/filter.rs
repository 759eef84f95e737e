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

use super::apply::settle;
use super::listing::{ListedRule, Listing};
use super::names::ChainName;
use super::presence;
use super::quote;
use super::rule::{Batch, Match, Op, Rule, TableName, Target};
use super::tools::{Tools, Variant, table_id};
use crate::policy::IngressPolicy;
use crate::{AddressFamily, Error};

pub(super) const FORWARD: &str = "FORWARD";
pub(super) const CONTAINERS: &str = "CNI-FORWARD";
/// The administrator's, unless a configuration has a name of its own for it.
pub(super) const ADMIN: &str = "CNI-ADMIN";
pub(super) const STAGE_1: &str = "CNI-ISOLATION-STAGE-1";
pub(super) const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";
const RULES: &str = "CNI firewall plugin rules";
const ADMIN_OVERRIDES: &str = "CNI firewall plugin admin overrides";
const EITHER: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)";
/// The comment that the reference writes in place of [`EITHER`] in versions without the policy `isolated`.
const OLDER_EITHER: &str = "CNI firewall plugin rules (ingressPolicy: same-bridge)";

/// How a bridge is kept apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Isolation {
    bridge: String,
    /// The policies that somebody asks for.
    same_bridge: bool,
    isolated: bool,
}

impl Isolation {
    /// As the containers on the bridge ask for; not at all if nobody does.
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
    fn first(&self) -> Vec<Rule> {
        let comment = |policy: &str| Match::Comment(format!("{RULES} (ingressPolicy: {policy})"));
        let leaving = |policy: &str| {
            let matches =
                vec![Match::In(self.bridge.clone()), Match::NotOut(self.bridge.clone()), comment(policy)];
            Rule::new(matches, Target::Chain(ChainName::fixed(STAGE_2)))
        };
        let mut rules = Vec::new();
        if self.isolated {
            let within =
                vec![Match::In(self.bridge.clone()), Match::Out(self.bridge.clone()), comment("isolated")];
            rules.push(Rule::new(within, Target::Drop));
            rules.push(leaving("isolated"));
        }
        if self.same_bridge {
            rules.push(leaving("same-bridge"));
        }
        rules
    }

    /// Those of the second.
    fn second(&self) -> Vec<Rule> {
        if self.is_none() {
            return Vec::new();
        }
        let matches = vec![Match::Out(self.bridge.clone()), Match::Comment(EITHER.to_owned())];
        vec![Rule::new(matches, Target::Drop)]
    }
}

/// What is to hold in one family's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) family: AddressFamily,
    /// Addresses whose packets pass.
    pub(crate) admitted: Vec<IpAddr>,
    /// Addresses whose rules go.
    pub(crate) dismissed: Vec<IpAddr>,
    /// The bridge that is to be kept apart so, and not otherwise.
    pub(crate) isolation: Option<Isolation>,
    pub(crate) admin: ChainName,
}

fn of_address(address: IpAddr) -> [Rule; 2] {
    let net = IpNet::from(address);
    [
        Rule::new(vec![Match::Destination(net), Match::Established], Target::Accept),
        Rule::new(vec![Match::Source(net)], Target::Accept),
    ]
}

fn entry() -> Rule {
    Rule::new(vec![Match::Comment(RULES.to_owned())], Target::Chain(ChainName::fixed(CONTAINERS)))
}

fn isolation_entry() -> Rule {
    Rule::new(vec![Match::Comment(EITHER.to_owned())], Target::Chain(ChainName::fixed(STAGE_1)))
}

fn admin_entry(admin: &ChainName) -> Rule {
    Rule::new(vec![Match::Comment(ADMIN_OVERRIDES.to_owned())], Target::Chain(admin.clone()))
}

fn back() -> Rule {
    Rule::new(vec![Match::Comment(EITHER.to_owned())], Target::Return)
}

/// True if the listed rule is this one, as this or an older version of the reference writes it.
fn is(listed: &ListedRule, rule: &Rule) -> bool {
    let words = rule.words();
    let same =
        |(listed, word): (&String, &String)| listed == word || (word == EITHER && listed == OLDER_EITHER);
    listed.0.len() == words.len() && listed.0.iter().zip(&words).all(same)
}

fn has(listing: &Listing, chain: &str, rule: &Rule) -> bool {
    listing.rules(chain).iter().any(|listed| is(listed, rule))
}

/// The variant that holds such chains, else the one that this node uses.
pub(crate) fn tools() -> Result<Tools, Error> {
    let held = places()?.into_iter().next().map(|(variant, _)| variant);
    let variant = held.map_or_else(presence::chosen_variant, Ok)?;
    Ok(Tools::of(variant, TableName::Filter))
}

/// Where such chains are. No program is run.
pub(super) fn places() -> Result<Vec<(Variant, AddressFamily)>, Error> {
    let mut places = presence::any_chain_in(TableName::Filter, &[CONTAINERS, STAGE_1])?;
    places.sort();
    Ok(places)
}

/// Whether there are programs for it.
pub(crate) fn status() -> Result<(), Error> {
    super::Iptables::programs(tools()?.variant).map(drop)
}

fn read(tools: &Tools, family: AddressFamily, admin: &str) -> Result<Listing, Error> {
    tools.read(family, &[FORWARD, CONTAINERS, admin, STAGE_1, STAGE_2])
}

/// Makes it hold.
pub(crate) fn bring_about(tools: &Tools, wanted: &Wanted) -> Result<(), Error> {
    let operation = "change the chains of the firewall plugin";
    let admin = wanted.admin.as_str();
    settle(tools, operation, || read(tools, wanted.family, admin), |listing| Ok(changes(listing, wanted)))
}

/// Takes rules of these addresses away wherever there are any, and keeps a bridge apart as is said now.
pub(crate) fn clear(addresses: &[IpAddr], isolation: Option<&Isolation>) -> Result<(), Error> {
    if addresses.is_empty() && isolation.is_none() {
        return Ok(());
    }
    for (variant, family) in places()? {
        let tools = Tools::of(variant, TableName::Filter);
        let own = addresses.iter().filter(|address| AddressFamily::of(**address) == family);
        let wanted = Wanted {
            family,
            admitted: Vec::new(),
            dismissed: own.copied().collect(),
            isolation: isolation.cloned(),
            admin: ChainName::fixed(ADMIN),
        };
        settle(
            &tools,
            "remove rules of the firewall plugin",
            || read(&tools, family, wanted.admin.as_str()),
            |listing| Ok(removals(listing, &wanted)),
        )?;
    }
    Ok(())
}

/// True if there may be rules of one of these addresses. No program is run.
pub(crate) fn may_name_any(addresses: &[IpAddr]) -> Result<bool, Error> {
    if addresses.is_empty() {
        return Ok(false);
    }
    for place in places()? {
        let own = addresses.iter().filter(|address| AddressFamily::of(**address) == place.1);
        let texts: Vec<Vec<u8>> = own.map(|address| octets(*address)).collect();
        if !texts.is_empty() && presence::has_rule(place, (TableName::Filter, CONTAINERS), &texts)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// True if there may be rules that keep the bridge apart. No program is run.
pub(crate) fn may_separate(bridge: &str) -> Result<bool, Error> {
    // As the kernel ends it.
    let name = [bridge.as_bytes(), &[0]].concat();
    for place in places()? {
        if presence::has_rule(place, (TableName::Filter, STAGE_1), std::slice::from_ref(&name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The bridges that are kept apart.
pub(crate) fn separated() -> Result<Vec<String>, Error> {
    let mut bridges = Vec::new();
    for (variant, family) in places()? {
        let listing = Tools::of(variant, TableName::Filter).read(family, &[STAGE_1])?;
        bridges.extend(listing.rules(STAGE_1).iter().filter_map(|rule| rule.incoming().map(str::to_owned)));
    }
    bridges.sort();
    bridges.dedup();
    Ok(bridges)
}

/// What keeps the chains there when the node is to be without them; none if nothing does.
pub(super) fn needed(listing: &Listing) -> Option<&'static str> {
    // Also one that leads to an administrator's chain of another name.
    let own = |rule: &ListedRule| {
        rule.target().is_some_and(|to| ChainName::new(to).is_ok_and(|to| admin_entry(&to).words() == rule.0))
    };
    if listing.rules(CONTAINERS).iter().any(|rule| !own(rule)) {
        return Some("containers' rules are there");
    }
    if listing.rules(STAGE_1).iter().any(|rule| !is(rule, &back())) {
        return Some("a bridge is kept apart there");
    }
    (!listing.rules(ADMIN).is_empty()).then_some("an administrator's rules are there")
}

/// What has to change so that it holds.
fn changes(listing: &Listing, wanted: &Wanted) -> Batch {
    let mut batch = Batch::of(wanted.family, TableName::Filter);
    for chain in [CONTAINERS, wanted.admin.as_str()] {
        make_chain(&mut batch, listing, chain);
    }
    let new_entry = !listing.contains(FORWARD, &entry().words());
    if new_entry {
        batch.push(Op::Insert(FORWARD.to_owned(), entry().words()));
    }
    let admin = admin_entry(&wanted.admin).words();
    if !listing.contains(CONTAINERS, &admin) {
        batch.push(Op::Insert(CONTAINERS.to_owned(), admin));
    }
    for rule in wanted.admitted.iter().flat_map(|address| of_address(*address)) {
        if !listing.contains(CONTAINERS, &rule.words()) {
            batch.append(CONTAINERS, &rule);
        }
    }
    if let Some(isolation) = wanted.isolation.as_ref().filter(|isolation| !isolation.is_none()) {
        for chain in [STAGE_2, STAGE_1] {
            make_chain(&mut batch, listing, chain);
            if !has(listing, chain, &back()) {
                batch.append(chain, &back());
            }
        }
        set_bridge(&mut batch, listing, isolation);
        if !has(listing, FORWARD, &isolation_entry()) {
            batch.push(Op::Insert(FORWARD.to_owned(), isolation_entry().words()));
            return batch;
        }
    }
    // What separates goes before what accepts.
    let separating = listing.rules(FORWARD).iter().find(|listed| is(listed, &isolation_entry()));
    if let Some(listed) = separating.filter(|_| new_entry) {
        batch.push(Op::Delete(FORWARD.to_owned(), listed.0.clone()));
        batch.push(Op::Insert(FORWARD.to_owned(), isolation_entry().words()));
    }
    batch
}

fn make_chain(batch: &mut Batch, listing: &Listing, chain: &str) {
    let made = Op::NewChain(chain.to_owned());
    if !listing.has(chain) && !batch.has(&made) {
        batch.push(made);
    }
}

/// The bridge's rules are these and no others. New ones go to the beginning, as the reference puts them.
fn set_bridge(batch: &mut Batch, listing: &Listing, isolation: &Isolation) {
    let name = isolation.bridge.as_str();
    type Interface = fn(&ListedRule) -> Option<&str>;
    let of_bridge: [(&str, Vec<Rule>, Interface); 2] = [
        (STAGE_1, isolation.first(), ListedRule::incoming),
        (STAGE_2, isolation.second(), ListedRule::outgoing),
    ];
    for (chain, rules, interface) in of_bridge {
        for old in listing.rules(chain).iter().filter(|rule| interface(rule) == Some(name)) {
            if !rules.iter().any(|rule| is(old, rule)) {
                batch.push(Op::Delete(chain.to_owned(), old.0.clone()));
            }
        }
        for rule in rules.iter().rev().filter(|rule| !has(listing, chain, rule)) {
            batch.push(Op::Insert(chain.to_owned(), rule.words()));
        }
    }
}

/// What has to go. The chains of containers stay, as the reference's; those that keep bridges apart go with
/// the last bridge.
fn removals(listing: &Listing, wanted: &Wanted) -> Batch {
    let mut batch = Batch::of(wanted.family, TableName::Filter);
    for rule in wanted.dismissed.iter().flat_map(|address| of_address(*address)) {
        let words = rule.words();
        // As often as it is there.
        for _ in listing.rules(CONTAINERS).iter().filter(|is| is.0 == words) {
            batch.push(Op::Delete(CONTAINERS.to_owned(), words.clone()));
        }
    }
    let Some(isolation) = &wanted.isolation else { return batch };
    if !listing.has(STAGE_1) {
        return batch;
    }
    let of_others = |rule: &ListedRule| !is(rule, &back()) && rule.incoming() != Some(&isolation.bridge);
    if !isolation.is_none() || listing.rules(STAGE_1).iter().any(of_others) {
        set_bridge(&mut batch, listing, isolation);
        return batch;
    }
    for leading in listing.rules(FORWARD).iter().filter(|rule| rule.target() == Some(STAGE_1)) {
        batch.push(Op::Delete(FORWARD.to_owned(), leading.0.clone()));
    }
    let present: Vec<&str> = [STAGE_1, STAGE_2].into_iter().filter(|chain| listing.has(chain)).collect();
    present.iter().for_each(|chain| batch.push(Op::Flush((*chain).to_owned())));
    present.iter().for_each(|chain| batch.push(Op::DeleteChain((*chain).to_owned())));
    batch
}

/// Compares what is there with what should be.
pub(crate) fn check(tools: &Tools, wanted: &Wanted) -> Result<(), Error> {
    let listing = read(tools, wanted.family, wanted.admin.as_str())?;
    let mut expected = vec![(FORWARD, entry()), (CONTAINERS, admin_entry(&wanted.admin))];
    expected.extend(wanted.admitted.iter().flat_map(|one| of_address(*one)).map(|rule| (CONTAINERS, rule)));
    if let Some(isolation) = &wanted.isolation {
        expected.push((FORWARD, isolation_entry()));
        expected.extend(isolation.first().into_iter().map(|rule| (STAGE_1, rule)));
        expected.extend(isolation.second().into_iter().map(|rule| (STAGE_2, rule)));
    }
    let missing = expected.iter().find(|(chain, rule)| !has(&listing, chain, rule));
    let Some((chain, rule)) = missing else { return Ok(()) };
    let words = rule.words();
    let line = quote::line(words.iter().map(String::as_str));
    let table = table_id(wanted.family, TableName::Filter);
    Err(Error::Missing(format!("expected {chain} rule [{line}] not found in table {table}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(addresses: &[&str], isolation: Option<Isolation>) -> Wanted {
        Wanted {
            family: AddressFamily::V4,
            admitted: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            dismissed: Vec::new(),
            isolation,
            admin: ChainName::fixed("CNI-ADMIN"),
        }
    }

    /// What the reference 1.9.1 left after one container with `same-bridge` on br0 and one with `isolated`
    /// on br1.
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
        Listing::parse_table(REFERENCE, TableName::Filter)
    }

    #[test]
    fn what_the_reference_made_needs_no_change() {
        use IngressPolicy::{Isolated, SameBridge};
        for isolation in
            [None, Some(Isolation::new("br0", &[SameBridge])), Some(Isolation::new("br1", &[Isolated]))]
        {
            let batch = changes(&reference(), &wanted(&["10.1.2.3"], isolation));
            assert!(batch.is_empty(), "{batch}");
        }
    }

    #[test]
    fn the_first_container_makes_the_chains() {
        let isolation = Isolation::new("br1", &[IngressPolicy::Isolated]);
        let batch = changes(&Listing::default(), &wanted(&["10.1.2.3"], Some(isolation)));
        let batch = batch.to_string();
        let lines: Vec<&str> = batch.lines().collect();
        assert_eq!((lines[0], lines[lines.len() - 1]), ("*filter", "COMMIT"));
        let at = |text: &str| batch.find(text).unwrap_or_else(|| panic!("{text}: {batch}"));
        // What is inserted last comes first.
        assert!(at("-j CNI-FORWARD\n") < at("-j CNI-ISOLATION-STAGE-1\n"), "{batch}");
        assert!(at("-i br1 ! -o br1") < at("-i br1 -o br1"), "{batch}");
        assert!(at("-N CNI-ISOLATION-STAGE-2") < at("-j CNI-ISOLATION-STAGE-2\n"), "{batch}");
        assert!(at("-d 10.1.2.3/32 ") < at("-A CNI-FORWARD -s 10.1.2.3/32 -j ACCEPT"), "{batch}");
    }

    #[test]
    fn separation_stays_before_acceptance() {
        let without = REFERENCE
            .replace("-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n", "");
        let listing = Listing::parse_table(&without, TableName::Filter);
        let batch = changes(&listing, &wanted(&["10.1.2.3"], None)).to_string();
        let lines: Vec<&str> = batch.lines().collect();
        assert_eq!(lines.len(), 5, "{batch}");
        assert!(lines[1].starts_with("-I FORWARD 1 ") && lines[1].ends_with("-j CNI-FORWARD"), "{batch}");
        assert!(lines[2].starts_with("-D FORWARD ") && lines[3].starts_with("-I FORWARD 1 "), "{batch}");
        assert!(lines[3].ends_with("-j CNI-ISOLATION-STAGE-1"), "{batch}");
    }

    #[test]
    fn a_bridge_that_nobody_needs_apart_is_joined_again() {
        let gone = |listing: &Listing, bridge: &str| {
            let isolation = Some(Isolation::new(bridge, &[]));
            removals(
                listing,
                &Wanted { dismissed: vec!["10.1.2.3".parse().unwrap()], ..wanted(&[], isolation) },
            )
        };
        let batch = gone(&reference(), "br1").to_string();
        assert_eq!(batch.lines().filter(|line| line.starts_with("-D CNI-FORWARD")).count(), 2, "{batch}");
        assert_eq!(batch.lines().filter(|line| line.contains("br1")).count(), 3, "{batch}");
        assert!(!batch.contains("br0") && !batch.contains("-X"), "{batch}");
        // With the last one the chains go.
        let br0: String =
            REFERENCE.lines().filter(|line| !line.contains("br1")).map(|line| format!("{line}\n")).collect();
        let batch = gone(&Listing::parse_table(&br0, TableName::Filter), "br0").to_string();
        for line in ["-F CNI-ISOLATION-STAGE-1", "-X CNI-ISOLATION-STAGE-1", "-X CNI-ISOLATION-STAGE-2"] {
            assert!(batch.contains(line), "{line}: {batch}");
        }
        assert!(batch.contains("-D FORWARD") && batch.contains("-j CNI-ISOLATION-STAGE-1"), "{batch}");
        assert!(gone(&Listing::default(), "br0").is_empty());
    }

    #[test]
    fn a_stricter_policy_comes_beside_a_weaker_one() {
        use IngressPolicy::{Isolated, SameBridge};
        let isolation = Isolation::new("br0", &[SameBridge, Isolated]);
        let batch = changes(&reference(), &wanted(&[], Some(isolation.clone()))).to_string();
        assert_eq!(
            batch.lines().filter(|line| line.starts_with("-I CNI-ISOLATION-STAGE-1")).count(),
            2,
            "{batch}"
        );
        assert!(!batch.contains("-D "), "{batch}");
        // And goes alone.
        let weaker = Isolation::new("br1", &[SameBridge]);
        let batch = removals(&reference(), &wanted(&[], Some(weaker))).to_string();
        assert_eq!(batch.lines().filter(|line| line.starts_with("-D ")).count(), 2, "{batch}");
        assert_eq!(batch.lines().filter(|line| line.starts_with("-I ")).count(), 1, "{batch}");
    }
}
