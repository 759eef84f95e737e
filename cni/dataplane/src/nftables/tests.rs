// SPDX-License-Identifier: GPL-2.0-or-later

//! Plans and batches as text.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_nftables::Transaction;
use cni_spec::Attachment;
use expect_test::{expect, expect_file};
use proptest::prelude::*;

use super::schema::Layout;
use super::{conditions, plan, schema};
use crate::owner::{AttachmentHash, COMMENT_MAX};
use crate::{
    AddressFamily, Conditions, ContainerNetns, HostAddress, HostPorts, IptablesOptions, Loopback,
    MasqueradeRequest, NftablesOptions, Owner, PortRequest, Protocol, PublishedPort, Snat,
};

fn port(protocol: Protocol, address: HostAddress, first: u16, last: u16, to: (&str, u16)) -> PublishedPort {
    let host = HostPorts { protocol, address, first, last };
    PublishedPort { host, container: to.0.parse().unwrap(), container_port: to.1 }
}

fn any4(first: u16, last: u16, to: u16) -> PublishedPort {
    port(Protocol::Tcp, HostAddress::Any(AddressFamily::V4), first, last, ("10.88.0.2", to))
}

#[test]
fn the_names_of_all_chains_are_known() {
    let names = |layout| {
        schema::fixed_chains(layout).into_iter().map(|fixed| fixed.chain.name).collect::<BTreeSet<_>>()
    };
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let all = names(Layout { offloading: Some(schema::Protocols::Tcp), addresses: true });
    assert_eq!(all, set(&schema::CHAINS));
    let optional = all.difference(&names(Layout::PLAIN)).cloned().collect::<BTreeSet<_>>();
    assert_eq!(optional, set(&schema::OPTIONAL_CHAINS));
}

fn request(ports: Vec<PublishedPort>) -> PortRequest {
    PortRequest {
        attachment: Attachment::new("podman", "0123456789ab", "eth0").unwrap(),
        netns: ContainerNetns { path: "/run/netns/a".into(), dev: 4, ino: 1, cookie: None },
        ports,
        networks: vec!["10.88.0.2/16".parse().unwrap(), "fd00::2/64".parse().unwrap()],
        elsewhere: Vec::new(),
        snat: Snat::Needed,
        loopback: Loopback::Served,
        mark_bit: schema::DEFAULT_MARK_BIT,
        nftables: NftablesOptions::default(),
        iptables: IptablesOptions::default(),
    }
}

fn show(plan: &plan::Plan) -> String {
    let items = plan.items.iter().map(|item| {
        let values =
            |v: &[cni_nftables::Value]| v.iter().map(ToString::to_string).collect::<Vec<_>>().join(" . ");
        let end = item.end.as_ref().map_or_else(String::new, |end| format!(" to {}", values(end)));
        let data = match &item.data {
            plan::Datum::Values(data) => values(data),
            plan::Datum::Chain(name) => name.clone(),
            plan::Datum::None => "in the set".to_owned(),
        };
        format!("{}: {}{end} : {data}\n", item.map.name(), values(&item.key))
    });
    let leads = plan
        .leads
        .iter()
        .map(|lead| format!("{}: {} : {}\n", lead.map.name(), lead.address, lead.chain.name()));
    items.chain(leads).collect()
}

#[test]
fn the_whole_table() {
    expect_file!["../../golden/bootstrap.nft"].assert_eq(&schema::bootstrap(Layout::PLAIN).to_string());
}

#[test]
fn a_repair_keeps_maps_and_elements() {
    let text = schema::repair(
        &[schema::SharedChain::HairpinAll { family: AddressFamily::V4, bit: 13 }],
        Layout::PLAIN,
    )
    .to_string();
    assert!(!text.contains("delete") && !text.contains("flush set"), "{text}");
    expect_file!["../../golden/repair.nft"].assert_eq(&text);
}

#[test]
fn shared_chains() {
    let mut batch = Transaction::new();
    for chain in [
        schema::SharedChain::Masquerade { network: "10.88.0.0/16".parse().unwrap(), exempt: None },
        schema::SharedChain::Masquerade { network: "fd00::/64".parse().unwrap(), exempt: None },
        schema::SharedChain::Hairpin {
            network: "10.88.0.0/16".parse().unwrap(),
            others: Vec::new(),
            bit: 13,
        },
        schema::SharedChain::Hairpin { network: "fd00::/64".parse().unwrap(), others: Vec::new(), bit: 5 },
        schema::SharedChain::HairpinAll { family: AddressFamily::V6, bit: 13 },
    ] {
        assert_eq!(schema::SharedChain::from_name(&chain.name()), Some(chain.clone()));
        schema::add_shared(&mut batch, &chain, Layout::PLAIN);
    }
    expect_file!["../../golden/shared-chains.nft"].assert_eq(&batch.to_string());
    for name in
        ["prerouting", "masquerade-", "hairpin-10.0.0.0/8", "hairpin-10.0.0.0/8-32", "masquerade-10.0.0.1"]
    {
        assert_eq!(schema::SharedChain::from_name(name), None, "{name}");
    }
}

#[test]
fn single_ports_of_both_families() {
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let plan = plan::ports(&request(vec![
        any4(8080, 8080, 80),
        port(Protocol::Udp, HostAddress::One(ip), 53, 53, ("10.88.0.2", 5353)),
        port(Protocol::Sctp, HostAddress::Any(AddressFamily::V6), 7, 7, ("fd00::2", 7)),
    ]));
    expect![[r"
        hostports4: tcp . 8080 : 10.88.0.2 . 80
        hostips4: 127.0.0.1 . udp . 53 : 10.88.0.2 . 5353
        hostports6: sctp . 7 : fd00::2 . 7
        published4: 10.88.0.2 : in the set
        published6: fd00::2 : in the set
        hairpin-own4: 10.88.0.2 : hairpin-10.88.0.0/16-13
        hairpin-own6: fd00::2 : hairpin-fd00__/64-13
    "]]
    .assert_eq(&show(&plan.unwrap()));
}

#[test]
fn runs_become_intervals_when_they_keep_the_port() {
    let plan = plan::ports(&request(vec![any4(9000, 9999, 9000), any4(5000, 5002, 6000)])).unwrap();
    expect![[r"
        hostports4: tcp . 5000 : 10.88.0.2 . 6000
        hostports4: tcp . 5001 : 10.88.0.2 . 6001
        hostports4: tcp . 5002 : 10.88.0.2 . 6002
        ranges4: tcp . 9000 to tcp . 9999 : 10.88.0.2
        published4: 10.88.0.2 : in the set
        hairpin-own4: 10.88.0.2 : hairpin-10.88.0.0/16-13
    "]]
    .assert_eq(&show(&plan));
}

#[test]
fn snat_never_and_always() {
    let never = plan::ports(&PortRequest { snat: Snat::Never, ..request(vec![any4(1, 1, 1)]) }).unwrap();
    // No container is masqueraded, but the mark's bit is cleared.
    assert!(show(&never).ends_with("hairpin-own4: 10.88.0.2 : hairpin-none4-13\n"));
    let always = plan::ports(&PortRequest { snat: Snat::Always, ..request(vec![any4(1, 1, 1)]) }).unwrap();
    assert!(show(&always).ends_with("hairpin-own4: 10.88.0.2 : hairpin-all4-13\n"));
}

#[test]
fn conditions_give_a_container_its_own_chain() {
    let request = PortRequest {
        nftables: NftablesOptions {
            conditions: Conditions { v4: vec!["ip saddr != 192.0.2.0/24".to_owned()], v6: Vec::new() },
        },
        mark_bit: 5,
        ..request(vec![any4(8080, 8080, 80)])
    };
    let plan = plan::ports(&request).unwrap();
    assert_eq!(plan.own_chains, [AddressFamily::V4]);
    let hash = cni_spec::text::hex(&AttachmentHash::of(&request.attachment).0);
    let text = show(&plan).replace(&hash, "HASH");
    expect![[r"
        hostports4: tcp . 8080 : 10.88.0.2 . 80
        conditions4: tcp . 8080 to tcp . 8080 : container-HASH-4
        published4: 10.88.0.2 : in the set
        hairpin-own4: 10.88.0.2 : hairpin-10.88.0.0/16-5
    "]]
    .assert_eq(&text);
    let parsed = conditions::parse(&request.nftables.conditions.v4, AddressFamily::V4).unwrap();
    let mut batch = Transaction::new();
    schema::add_rules(&mut batch, "own", schema::own_chain_rules(&parsed, None, 5, AddressFamily::V4));
    expect![[r"
        add rule inet slipway own ip saddr != 192.0.2.0/24 meta mark set meta mark & 0xffffdfdf ^ 0x00000020 goto translate4
        add rule inet slipway own meta mark set meta mark & 0xffffdfff
    "]]
    .assert_eq(&batch.to_string());
}

#[test]
fn a_spared_loopback_is_a_condition_that_named_addresses_need_not_meet() {
    let localhost = HostAddress::One("127.0.0.1".parse().unwrap());
    let named = port(Protocol::Tcp, localhost, 9000, 9001, ("10.88.0.2", 9000));
    let request = PortRequest { loopback: Loopback::Spared, ..request(vec![any4(8080, 8080, 80), named]) };
    assert_eq!(plan::ports(&request).unwrap().own_chains, [AddressFamily::V4]);
    let hosts: Vec<HostPorts> = request.on_loopback(AddressFamily::V4).map(|port| port.host).collect();
    assert_eq!(hosts, [named.host]);
    let mut batch = Transaction::new();
    schema::add_rules(&mut batch, "own", schema::own_chain_rules(&[], Some(&hosts), 13, AddressFamily::V4));
    schema::add_rules(&mut batch, "own", schema::own_chain_rules(&[], Some(&[]), 13, AddressFamily::V6));
    expect![[r"
        add rule inet slipway own ip daddr 127.0.0.1 meta l4proto tcp th dport 9000-9001 meta mark set meta mark | 0x00002000 goto translate4
        add rule inet slipway own ip daddr != 127.0.0.0/8 meta mark set meta mark | 0x00002000 goto translate4
        add rule inet slipway own meta mark set meta mark & 0xffffdfff
        add rule inet slipway own ip6 daddr != ::1 meta mark set meta mark | 0x00002000 goto translate6
        add rule inet slipway own meta mark set meta mark & 0xffffdfff
    "]]
    .assert_eq(&batch.to_string());
    // A container with named addresses only needs no chain.
    let alone = PortRequest { ports: vec![named], ..request };
    assert!(plan::ports(&alone).unwrap().own_chains.is_empty());
}

#[test]
fn masqueraded_addresses() {
    let plan = plan::masquerade(&MasqueradeRequest {
        attachment: Attachment::new("podman", "0123456789ab", "eth0").unwrap(),
        netns: ContainerNetns { path: "/run/netns/a".into(), dev: 4, ino: 1, cookie: None },
        addresses: vec!["10.88.0.2/16".parse().unwrap(), "fd00::2/64".parse().unwrap()],
        exempt: Vec::new(),
    });
    expect![[r"
        masqueraded4: 10.88.0.2 : in the set
        masqueraded6: fd00::2 : in the set
        masquerade-own4: 10.88.0.2 : masquerade-10.88.0.0/16
        masquerade-own6: fd00::2 : masquerade-fd00__/64
    "]]
    .assert_eq(&show(&plan));
}

#[test]
fn networks_exempt_from_masquerade_are_a_set_and_a_chain_of_their_own() {
    let request = |exempt: &[&str]| MasqueradeRequest {
        attachment: Attachment::new("podman", "0123456789ab", "eth0").unwrap(),
        netns: ContainerNetns { path: "/run/netns/a".into(), dev: 4, ino: 1, cookie: None },
        addresses: vec!["10.88.0.2/16".parse().unwrap(), "fd00::2/64".parse().unwrap()],
        exempt: exempt.iter().map(|one| one.parse().unwrap()).collect(),
    };
    let plan = plan::masquerade(&request(&["172.16.0.0/12", "10.0.0.0/9", "10.128.0.0/9"]));
    expect![[r"
        masqueraded4: 10.88.0.2 : in the set
        masqueraded6: fd00::2 : in the set
        masquerade-own4: 10.88.0.2 : masquerade-10.88.0.0/16-e845710bd85ce501
        masquerade-own6: fd00::2 : masquerade-fd00__/64
    "]]
    .assert_eq(&show(&plan));
    // Another order, or a network that is in another one, is the same list.
    let same = request(&["10.0.0.0/8", "10.1.0.0/16", "172.16.0.0/12", "10.88.0.0/16"]);
    assert_eq!(plan::masquerade(&same), plan);
    let mut batch = Transaction::new();
    for plan::Exempt { id, networks } in &plan.exempt {
        schema::exempt::fill(&mut batch, *id, networks);
    }
    let chains: Vec<_> = plan.leads.iter().map(|lead| lead.chain.clone()).collect();
    for chain in &chains {
        assert_eq!(schema::SharedChain::from_name(&chain.name()), Some(chain.clone()));
        schema::add_shared(&mut batch, chain, Layout::PLAIN);
    }
    batch.append(schema::repair(&chains[..1], Layout::PLAIN));
    let text = batch.to_string();
    let (made, repaired) = text.split_at(text.find("add table").unwrap());
    expect![[r"
        add set inet slipway exempt4-e845710bd85ce501 { type ipv4_addr ; flags interval ; }
        flush set inet slipway exempt4-e845710bd85ce501
        create element inet slipway exempt4-e845710bd85ce501 { 10.0.0.0-10.255.255.255 }
        create element inet slipway exempt4-e845710bd85ce501 { 172.16.0.0-172.31.255.255 }
        create chain inet slipway masquerade-10.88.0.0/16-e845710bd85ce501
        add rule inet slipway masquerade-10.88.0.0/16-e845710bd85ce501 ip daddr { 10.88.0.0/16, 224.0.0.0/4 } return
        add rule inet slipway masquerade-10.88.0.0/16-e845710bd85ce501 ip daddr @exempt4-e845710bd85ce501 return
        add rule inet slipway masquerade-10.88.0.0/16-e845710bd85ce501 masquerade
        create chain inet slipway masquerade-fd00__/64
        add rule inet slipway masquerade-fd00__/64 ip6 daddr { fd00::/64, ff00::/8 } return
        add rule inet slipway masquerade-fd00__/64 masquerade
    "]]
    .assert_eq(made);
    let repaired: Vec<&str> = repaired.lines().filter(|line| line.contains("exempt4")).collect();
    expect![[r"
        add set inet slipway exempt4-e845710bd85ce501 { type ipv4_addr ; flags interval ; }
        add rule inet slipway masquerade-10.88.0.0/16-e845710bd85ce501 ip daddr @exempt4-e845710bd85ce501 return
    "]]
    .assert_eq(&(repaired.join("\n") + "\n"));
}

#[test]
fn contradictions_are_refused() {
    let twice = plan::ports(&request(vec![any4(8080, 8080, 80), any4(8080, 8080, 81)])).unwrap_err();
    assert_eq!(
        twice.to_string(),
        "tcp/0.0.0.0:8080 -> 10.88.0.2:80 and tcp/0.0.0.0:8080 -> 10.88.0.2:81 are published for the same container"
    );
    assert!(plan::ports(&request(vec![any4(8080, 8080, 80), any4(8080, 8080, 80)])).is_ok());
    assert!(plan::ports(&request(vec![any4(9000, 9099, 9000), any4(9050, 9050, 80)])).is_err());
    let crossed = port(Protocol::Tcp, HostAddress::Any(AddressFamily::V6), 1, 1, ("10.88.0.2", 1));
    assert!(plan::ports(&request(vec![crossed])).unwrap_err().to_string().contains("family"));
}

#[test]
fn an_own_chain_is_found_by_the_attachment_alone() {
    let hash = AttachmentHash::of(&Attachment::new("a", "b", "c").unwrap());
    assert_ne!(hash, AttachmentHash::of(&Attachment::new("ab", "c", "c").unwrap()));
    assert_eq!(schema::own_chain(&hash, AddressFamily::V6).len(), "container-".len() + 32 + 2);
}

prop_compose! {
    fn any_port()(
        protocol in 0..3usize, specific in any::<bool>(), first in 1..=200u16, len in 0..40u16, kept in any::<bool>(),
        to in 1..2000u16, container in 2..4u8,
    ) -> PublishedPort {
        let address = if specific { HostAddress::One([192, 0, 2, 1].into()) } else { HostAddress::Any(AddressFamily::V4) };
        let host = HostPorts { protocol: Protocol::ALL[protocol], address, first, last: first + len };
        PublishedPort { host, container: [10, 0, 0, container].into(), container_port: if kept { first } else { to } }
    }
}

/// Every (protocol, address, port) → (container, port) that the mappings mean.
fn meaning(ports: &[PublishedPort]) -> std::collections::BTreeSet<String> {
    let of = |p: &PublishedPort| {
        let p = *p;
        p.host.ports().enumerate().map(move |(i, port)| {
            let to = usize::from(p.container_port) + i;
            format!("{} {} {port} {} {to}", p.host.protocol, p.host.address, p.container)
        })
    };
    ports.iter().flat_map(of).collect()
}

proptest! {
    #[test]
    fn collapsing_changes_no_mapping(ports in proptest::collection::vec(any_port(), 0..12), seed in any::<u64>()) {
        let collapsed = plan::collapse(&ports);
        prop_assert_eq!(meaning(&collapsed), meaning(&ports));
        for run in collapsed.iter().filter(|p| p.host.len() > 1) {
            prop_assert_eq!(run.host.first, run.container_port);
            prop_assert!(run.host.len() >= plan::RANGE_MIN);
        }
        let mut other = ports.clone();
        other.rotate_left(usize::try_from(seed % 13).unwrap().min(ports.len()));
        prop_assert_eq!(plan::collapse(&other), collapsed);
    }

    #[test]
    fn a_mapping_is_read_back_from_its_element(ports in proptest::collection::vec(any_port(), 0..6)) {
        for run in plan::collapse(&ports) {
            let map = schema::Map::for_ports(&run.host);
            let Ok(plan) = plan::ports(&request(vec![run])) else { continue };
            let item = plan.items.iter().find(|item| item.map == map).unwrap();
            let plan::Datum::Values(data) = &item.data else { panic!("{item:?}") };
            prop_assert_eq!(plan::published(map, &item.key, item.end.as_deref(), data), Some(run));
        }
    }

    #[test]
    fn an_owner_is_read_back_from_its_comment(
        network in "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,80}", id in "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,80}", ifname in "[!-~&&[^/:%]]{1,15}",
    ) {
        prop_assume!(ifname != "." && ifname != "..");
        let attachment = Attachment::new(&network, &id, &ifname).unwrap();
        let owner = Owner::of(&attachment);
        let comment = owner.to_comment();
        prop_assert!(comment.len() <= COMMENT_MAX, "{}", comment);
        prop_assert!(comment.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) && !comment.contains('"'));
        let read = Owner::from_comment(&comment).unwrap();
        prop_assert_eq!(read.attachment_hash, owner.attachment_hash);
        prop_assert_eq!(read.network_hash, owner.network_hash);
        prop_assert_eq!(read.ifname, ifname.replace(['"', '\\'], "?"));
        let begins = |read: &str, full: &str| read == full || read.strip_suffix('~').is_some_and(|r| full.starts_with(r));
        prop_assert!(begins(&read.network, &network) && begins(&read.container_id, &id));
        prop_assert!(read.container_id.len() >= 12.min(id.len()), "{}", comment);
    }

    #[test]
    fn foreign_comments_have_no_owner(comment in "\\PC{0,140}") {
        prop_assert_eq!(Owner::from_comment(&comment), None);
    }
}
