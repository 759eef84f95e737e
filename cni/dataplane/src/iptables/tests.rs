// SPDX-License-Identifier: GPL-2.0-or-later

//! Compares the plans as text with the chains of the reference plugins (`golden/iptables`), and tests the
//! changes from one state to another.

use cni_spec::Attachment;

use super::check::covers;
use super::listing::Listing;
use super::names::TableName;
use super::publish::{ChainUse, Position, masquerade_changes, port_changes};
use super::rule::Rule;
use super::withdraw::{owned_chains, removal};
use super::{networks, plan};
use crate::{
    AddressFamily, ContainerNetns, HostAddress, HostPorts, Loopback, MasqueradeRequest, PortRequest,
    Protocol, PublishedPort, Snat,
};

fn attachment(id: &str) -> Attachment {
    Attachment::new("testnet", id, "eth0").unwrap()
}

fn netns() -> ContainerNetns {
    ContainerNetns { path: "/run/netns/x".into(), dev: 1, ino: 2, cookie: None }
}

/// Protocol, host address, host port and container port, as in a configuration.
type Mapping<'a> = (Protocol, &'a str, u16, u16);

const PLAIN: &[Mapping<'_>] = &[(Protocol::Tcp, "", 8080, 80)];
const FAMILIES: &[Mapping<'_>] = &[
    (Protocol::Tcp, "", 8080, 80),
    (Protocol::Udp, "192.0.2.2", 5353, 53),
    (Protocol::Tcp, "0.0.0.0", 8443, 443),
    (Protocol::Tcp, "::", 9443, 443),
    (Protocol::Tcp, "2001:db8::5", 9000, 90),
    (Protocol::Tcp, "127.0.0.1", 7000, 70),
    (Protocol::Tcp, "::1", 7001, 70),
    (Protocol::Sctp, "", 3868, 3868),
];

fn request(id: &str, mappings: &[Mapping<'_>]) -> PortRequest {
    let networks: Vec<ipnet::IpNet> = vec!["10.22.0.2/24".parse().unwrap(), "fd00:22::2/64".parse().unwrap()];
    let mut ports = Vec::new();
    for (protocol, host, first, container_port) in mappings {
        for network in &networks {
            let family = AddressFamily::of(network.addr());
            let address = match host.parse::<std::net::IpAddr>() {
                Err(_) => HostAddress::Any(family),
                Ok(ip) if ip.is_unspecified() => HostAddress::Any(AddressFamily::of(ip)),
                Ok(ip) => HostAddress::One(ip),
            };
            if address.family() == family {
                let host = HostPorts { protocol: *protocol, address, first: *first, last: *first };
                let container = network.addr();
                ports.push(PublishedPort { host, container, container_port: *container_port });
            }
        }
    }
    PortRequest {
        attachment: attachment(id),
        netns: netns(),
        ports,
        networks,
        elsewhere: Vec::new(),
        snat: Snat::Needed,
        loopback: Loopback::Served,
        mark_bit: 13,
        nftables: crate::NftablesOptions::default(),
        iptables: crate::IptablesOptions {
            entry_ports: mappings
                .iter()
                .map(|(protocol, _, port, _)| crate::EntryPort { protocol: *protocol, port: *port })
                .collect(),
            ..Default::default()
        },
    }
}

/// The listing of a table that was empty before the changes.
fn made(batch: &str) -> Listing {
    let mut text = String::new();
    for line in batch.lines() {
        // No golden has two rules that are inserted into one chain.
        text.push_str(&line.replacen("-I POSTROUTING 1 ", "-A POSTROUTING ", 1));
        text.push('\n');
    }
    Listing::parse(&text, TableName::Nat)
}

/// The part of a golden for this family.
fn golden(text: &str, family: AddressFamily) -> Listing {
    let (v4, v6) = text.split_once("# ip6tables\n").unwrap();
    Listing::parse(if family == AddressFamily::V4 { v4 } else { v6 }, TableName::Nat)
}

fn assert_same(request: &PortRequest, golden_text: &str) {
    for plan in plan::ports(request) {
        let batch = port_changes(&Listing::default(), &plan, Position::Last, ChainUse::Exclusive).to_string();
        assert_eq!(made(&batch), golden(golden_text, plan.family), "{batch}");
        // Rules that are already right need no change.
        let again =
            port_changes(&golden(golden_text, plan.family), &plan, Position::Last, ChainUse::Exclusive);
        assert!(again.is_empty() || !request.iptables.conditions.is_empty(), "{again}");
    }
}

macro_rules! golden_file {
    ($name:literal) => {
        include_str!(concat!("../../golden/iptables/", $name, ".txt"))
    };
}

#[test]
fn ports_are_as_the_reference_leaves_them() {
    assert_same(&request("c1", PLAIN), golden_file!("plain"));
    assert_same(&request("c1", FAMILIES), golden_file!("families"));
    let long = "a".repeat(300);
    assert_same(&request(&long, PLAIN), golden_file!("long"));
}

#[test]
fn fifteen_ports_make_a_rule() {
    let mut many: Vec<Mapping<'_>> = (1..=17).map(|i| (Protocol::Tcp, "", 9100 - i, 100 + i)).collect();
    many.push((Protocol::Udp, "", 53, 53));
    assert_same(&request("c1", &many), golden_file!("many"));
}

/// A migration from nftables sorts the ports.
#[test]
fn the_order_of_ports_in_entry_rules_does_not_matter() {
    let mappings: Vec<Mapping<'_>> = (0..20).rev().map(|n| (Protocol::Tcp, "", 8000 + n, 80)).collect();
    let mut sorted = mappings.clone();
    sorted.sort_by_key(|mapping| mapping.2);
    let by_number = plan::ports(&request("id", &sorted));
    let with_one_less = plan::ports(&request("id", &sorted[1..]));
    let listing = |plan: &plan::PortPlan| {
        let batch = port_changes(&Listing::default(), plan, Position::Last, ChainUse::Exclusive);
        made(&batch.to_string())
    };
    for (number, asked) in plan::ports(&request("id", &mappings)).iter().enumerate() {
        assert_ne!(asked.entries, by_number[number].entries);
        let there = |listing: &Listing| asked.entries.iter().all(|entry| covers(listing, entry));
        assert!(there(&listing(asked)) && there(&listing(&by_number[number])));
        assert!(!there(&listing(&with_one_less[number])));
    }
}

#[test]
fn source_nat_is_as_the_reference_has_it() {
    let with = |change: fn(&mut PortRequest), mappings| {
        let mut request = request("c1", mappings);
        change(&mut request);
        request
    };
    assert_same(&with(|r| r.snat = Snat::Never, FAMILIES), golden_file!("nosnat"));
    assert_same(&with(|r| r.snat = Snat::Always, FAMILIES), golden_file!("masqall"));
    assert_same(&with(|r| r.mark_bit = 5, PLAIN), golden_file!("bit"));
    assert_same(&with(|r| r.mark_bit = 0, PLAIN), golden_file!("bit0"));
    let external = |r: &mut PortRequest| {
        r.iptables.set_mark_chain = Some(super::ChainName::new("KUBE-MARK-MASQ").unwrap());
    };
    assert_same(&with(external, PLAIN), golden_file!("external"));
}

#[test]
fn a_single_address_comes_before_all() {
    let mixed = [
        (Protocol::Tcp, "", 8080, 80),
        (Protocol::Tcp, "", 8081, 81),
        (Protocol::Tcp, "192.0.2.2", 8080, 90),
    ];
    let plans = plan::ports(&request("c1", &mixed));
    let dnat: Vec<String> = plans[0]
        .rules
        .iter()
        .map(|rule| rule.words().join(" "))
        .filter(|line| line.contains("DNAT"))
        .collect();
    let ports: Vec<&str> = dnat.iter().filter_map(|line| line.rsplit(':').next()).collect();
    assert_eq!(ports, ["81", "90", "80"], "{dnat:?}");
}

#[test]
fn a_spared_loopback_is_a_destination_only_if_named() {
    let request = PortRequest { loopback: Loopback::Spared, ..request("web", FAMILIES) };
    for plan in plan::ports(&request) {
        let batch = port_changes(&Listing::default(), &plan, Position::Last, ChainUse::Exclusive).to_string();
        let (all, localhost) = match plan.family {
            AddressFamily::V4 => ("! -d 127.0.0.0/8", "127.0.0.1/32"),
            AddressFamily::V6 => ("! -d ::1/128", "::1/128"),
        };
        let own = format!("-A {} ", plan.chain);
        let lines: Vec<&str> = batch.lines().filter(|line| line.starts_with(&own)).collect();
        assert!(lines.len() > 4, "{batch}");
        for line in lines {
            assert_eq!(line.contains(all), !line.contains(" -d ") || line.contains(all), "{line}");
        }
        assert!(batch.contains(&format!("{own}-d {localhost} ")), "{batch}");
        // The rules that are made are found again and need no change.
        let again = port_changes(&made(&batch), &plan, Position::Last, ChainUse::Exclusive);
        assert!(again.is_empty(), "{again}");
    }
}

#[test]
fn masquerade_is_as_the_reference_has_it() {
    let request = MasqueradeRequest {
        attachment: Attachment::new("testnet", "cnitool-20b4ff582526573bbe7d", "eth0").unwrap(),
        netns: netns(),
        addresses: vec!["10.22.0.2/24".parse().unwrap(), "fd00:22::2/64".parse().unwrap()],
        exempt: Vec::new(),
    };
    let text = golden_file!("masquerade");
    for plan in plan::masquerade(&request) {
        let batch = masquerade_changes(&Listing::default(), &plan, ChainUse::Exclusive).to_string();
        assert_eq!(made(&batch), golden(text, plan.family), "{batch}");
        let again = masquerade_changes(&golden(text, plan.family), &plan, ChainUse::Exclusive);
        assert!(again.is_empty(), "{again}");
    }
}

#[test]
fn networks_exempt_from_masquerade_are_accepted_after_the_containers_own() {
    let request = MasqueradeRequest {
        attachment: Attachment::new("testnet", "c1", "eth0").unwrap(),
        netns: netns(),
        addresses: vec!["10.22.0.2/24".parse().unwrap(), "fd00:22::2/64".parse().unwrap()],
        exempt: ["10.0.0.0/8", "10.22.0.0/24", "fd00::/8"].map(|one| one.parse().unwrap()).to_vec(),
    };
    let plans = plan::masquerade(&request);
    let shown = |plan: &plan::MasqueradePlan| -> Vec<String> {
        let listing = made(&masquerade_changes(&Listing::default(), plan, ChainUse::Exclusive).to_string());
        let rules = listing.rules(plan.chain.as_str());
        rules.iter().map(|rule| format!("{:?} {:?}", rule.destination(), rule.target())).collect()
    };
    assert_eq!(
        shown(&plans[0]),
        [
            "Some(10.22.0.0/24) Some(\"ACCEPT\")",
            "Some(10.0.0.0/8) Some(\"ACCEPT\")",
            "None Some(\"MASQUERADE\")"
        ]
    );
    assert_eq!(
        shown(&plans[1]),
        [
            "Some(fd00:22::/64) Some(\"ACCEPT\")",
            "Some(fd00::/8) Some(\"ACCEPT\")",
            "None Some(\"MASQUERADE\")"
        ]
    );
    let without = MasqueradeRequest { exempt: Vec::new(), ..request.clone() };
    for (family, removed) in [(0, "10.0.0.0/8"), (1, "fd00::/8")] {
        let (with, without) = (&plans[family], &plan::masquerade(&without)[family]);
        let there = made(&masquerade_changes(&Listing::default(), with, ChainUse::Exclusive).to_string());
        let batch = masquerade_changes(&there, without, ChainUse::Exclusive).to_string();
        assert!(batch.contains("-F CNI-") && !batch.contains(removed), "{batch}");
        let more = super::check::masquerade(&there, without).unwrap_err().to_string();
        let text = "are not masqueraded, but nonMasqueradeCIDRs does not have";
        assert_eq!(more, format!("packets to {removed} {text} {removed}"));
        super::check::masquerade(&there, with).unwrap();
    }
    // Another interface of the container, whose networks are in the same chain.
    let second = MasqueradeRequest { addresses: vec!["10.23.0.2/24".parse().unwrap()], ..without.clone() };
    let second = &plan::masquerade(&second)[0];
    let both = masquerade_changes(&Listing::default(), &plans[0], ChainUse::Exclusive).to_string()
        + &masquerade_changes(&Listing::default(), second, ChainUse::Exclusive).to_string();
    super::check::masquerade(&made(&both), second).unwrap();
    super::check::masquerade(&made(&both), &plans[0]).unwrap();
    let bare = made(
        &masquerade_changes(&Listing::default(), &plan::masquerade(&without)[0], ChainUse::Exclusive)
            .to_string(),
    );
    let missing = super::check::masquerade(&bare, &plans[0]).unwrap_err().to_string();
    assert!(missing.contains("has no rule -A CNI-") && missing.contains("-d 10.0.0.0/8"), "{missing}");
}

#[test]
fn other_ports_replace_present_ones() {
    let there = golden(golden_file!("plain"), AddressFamily::V4);
    let plans = plan::ports(&request("c1", &[(Protocol::Udp, "", 53, 5353)]));
    let batch = port_changes(&there, &plans[0], Position::Last, ChainUse::Exclusive).to_string();
    let chain = "CNI-DN-328e3d85e6c0f709cddd7";
    let comment = r#"-m comment --comment "dnat name: \"testnet\" id: \"c1\"" -m multiport --dports"#;
    assert_eq!(
        batch,
        format!(
            "*nat\n-F {chain}\n\
             -A {chain} -s 10.22.0.0/24 -p udp -m udp --dport 53 -j CNI-HOSTPORT-SETMARK\n\
             -A {chain} -s 127.0.0.1/32 -p udp -m udp --dport 53 -j CNI-HOSTPORT-SETMARK\n\
             -A {chain} -p udp -m udp --dport 53 -j DNAT --to-destination 10.22.0.2:5353\n\
             -D CNI-HOSTPORT-DNAT -p tcp {comment} 8080 -j {chain}\n\
             -A CNI-HOSTPORT-DNAT -p udp {comment} 53 -j {chain}\nCOMMIT\n"
        )
    );
}

#[test]
fn the_oldest_layout_is_removed_with_its_chains() {
    let text = golden_file!("oldest");
    let listing = golden(text, AddressFamily::V4);
    let chains: Vec<String> = owned_chains(&listing).into_iter().map(|owned| owned.chain).collect();
    assert_eq!(
        chains,
        ["CNI-DN-0123456789abcdef01234", "CNI-DN-328e3d85e6c0f709cddd7", "CNI-SN-328e3d85e6c0f709cddd7"]
    );
    let one: Vec<&str> = chains[1..].iter().map(String::as_str).collect();
    let batch = removal(&listing, &one).to_string();
    expect_test::expect_file!["../../golden/iptables/oldest-removed.txt"].assert_eq(&batch);
}

#[test]
fn other_networks_of_the_container_are_marked_before_each_translation() {
    marked_before_each_translation(["10.23.0.2/24", "fd00:23::2/64"]);
}

#[test]
fn a_network_that_contains_the_containers_own_is_another_one() {
    marked_before_each_translation(["10.0.0.7/8", "fd00::7/16"]);
}

fn marked_before_each_translation(elsewhere: [&str; 2]) {
    let alone = request("web", FAMILIES);
    let elsewhere: Vec<ipnet::IpNet> = elsewhere.iter().map(|one| one.parse().unwrap()).collect();
    let both = PortRequest { elsewhere: elsewhere.clone(), ..alone.clone() };
    let addresses = |more: &[ipnet::IpNet]| {
        let own = alone.networks.iter().map(|net| (2, *net));
        own.chain(more.iter().map(|net| (3, *net))).collect()
    };
    let container = |more: &[ipnet::IpNet]| crate::ContainerNetworks {
        container_id: "web".to_owned(),
        netns: alone.netns.clone(),
        addresses: addresses(more),
    };
    for (before, after) in plan::ports(&alone).iter().zip(&plan::ports(&both)) {
        let sources = |rules: &[Rule], net: &ipnet::IpNet| {
            rules.iter().filter(|rule| rule.source() == Some(net.trunc())).count()
        };
        let own = alone.networks.iter().find(|net| AddressFamily::of(net.addr()) == before.family).unwrap();
        let other = elsewhere.iter().find(|net| AddressFamily::of(net.addr()) == before.family).unwrap();
        assert_eq!(sources(&after.rules, other), sources(&before.rules, own));
        // A network that is joined later, or left again, gives the same chain as an ADD in the other order.
        assert_eq!(networks::with_networks(&before.rules, &container(&elsewhere)), after.rules);
        assert_eq!(networks::with_networks(&after.rules, &container(&elsewhere)), after.rules);
        assert_eq!(networks::with_networks(&after.rules, &container(&[])), before.rules);
    }
}
