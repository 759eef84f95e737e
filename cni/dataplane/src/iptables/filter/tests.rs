// SPDX-License-Identifier: GPL-2.0-or-later

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

/// The rules that an ADD adds to these.
const ADDED: [&str; 2] = [
    "-A CNI-FORWARD -d 10.1.2.3/32 -m conntrack --ctstate DNAT -j ACCEPT",
    "-I CNI-ISOLATION-STAGE-1 1 -m comment --comment \"made by slipway: published ports\" -m conntrack --ctstate DNAT -j RETURN",
];

/// The chains after an ADD.
fn ours() -> Listing {
    let first = "-A CNI-ISOLATION-STAGE-1";
    let own = ADDED[1].replace("-I CNI-ISOLATION-STAGE-1 1", first);
    let text = REFERENCE.replacen(first, &format!("{}\n{own}\n{first}", ADDED[0]), 1);
    Listing::parse(&text, TableName::Filter)
}

#[test]
fn chains_of_the_reference_get_the_rules_for_published_ports_alone() {
    use IngressPolicy::{Isolated, SameBridge};
    for isolation in
        [None, Some(Isolation::new("br0", &[SameBridge])), Some(Isolation::new("br1", &[Isolated]))]
    {
        let batch = changes(&reference(), &plan(&["10.1.2.3"], isolation)).to_string();
        let lines: Vec<&str> = batch.lines().collect();
        assert_eq!(lines, ["*filter", ADDED[0], ADDED[1], "COMMIT"], "rules of the reference change");
    }
    // After that nothing is left to do.
    let batch = changes(&ours(), &plan(&["10.1.2.3"], Some(Isolation::new("br0", &[SameBridge]))));
    assert!(batch.is_empty(), "{batch}");
}

/// A rule that the reference inserts later comes before ours, and closes published ports.
#[test]
fn translated_packets_pass_before_they_meet_a_rule_of_a_bridge() {
    let first = "-A CNI-ISOLATION-STAGE-1 -i br1 -o br1";
    let own = ADDED[1].replace("-I CNI-ISOLATION-STAGE-1 1", "-A CNI-ISOLATION-STAGE-1");
    let text = REFERENCE.replacen("-A CNI-ISOLATION-STAGE-2", &format!("{own}\n-A CNI-ISOLATION-STAGE-2"), 1);
    assert!(text.find(first) < text.find(&own));
    let listing = Listing::parse(&text, TableName::Filter);
    for isolation in [None, Some(Isolation::new("br0", &[IngressPolicy::SameBridge]))] {
        let batch = changes(&listing, &plan(&[], isolation)).to_string();
        let lines: Vec<&str> = batch.lines().collect();
        assert_eq!(lines[1..], [own.replace("-A ", "-D ").as_str(), ADDED[1], "COMMIT"]);
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
    assert_eq!(lines.len(), 7, "{batch}");
    assert!(lines[1].starts_with("-I FORWARD 1 ") && lines[1].ends_with("-j CNI-FORWARD"), "{batch}");
    assert_eq!(lines[2..4], ADDED);
    assert!(lines[4].starts_with("-D FORWARD ") && lines[5].starts_with("-I FORWARD 1 "), "{batch}");
    assert!(lines[5].ends_with("-j CNI-ISOLATION-STAGE-1"), "{batch}");
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
        3,
        "{batch}"
    );
    assert!(!batch.contains("-D "), "{batch}");
    // Removing the weaker policy of another bridge.
    let weaker = Isolation::new("br1", &[SameBridge]);
    let batch = removals(&reference(), &plan(&[], Some(weaker))).to_string();
    assert_eq!(batch.lines().filter(|line| line.starts_with("-D ")).count(), 2, "{batch}");
    assert_eq!(batch.lines().filter(|line| line.starts_with("-I ")).count(), 2, "{batch}");
    assert!(batch.contains(ADDED[1]), "{batch}");
}
