// SPDX-License-Identifier: GPL-2.0-or-later

//! Paths that end early, or that need settings of the node.

use cni_dataplane::explain::{Hit, Masquerade, Origin, Packet, Sources, Target, Truth};
use cni_dataplane::{AddressFamily, HostAddress, HostPorts, Owner, Protocol};
use cni_kernel::route::Switch;
use cni_spec::Attachment;
use expect_test::expect;

use super::facts::{Facts, Place, Table, Way};
use super::render::Explanation;
use super::{Args, Query};
use slipway_cli::Failure;
use slipway_cli::checks;

fn host(port: u16) -> HostPorts {
    let address = HostAddress::Any(AddressFamily::V4);
    HostPorts { protocol: Protocol::Tcp, address, first: port, last: port }
}

/// A published port of a container on a bridge.
fn facts(to: &str, from: Option<&str>, origin: Origin) -> Facts {
    let owner = Owner::of(&Attachment::new("pods", "web", "eth0").unwrap());
    let target = Target::Container("10.22.0.2:80".parse().unwrap());
    let (to, from) = (to.parse().unwrap(), from.map(|from| from.parse().unwrap()));
    Facts {
        packet: Packet { protocol: Protocol::Tcp, to, from, origin },
        place: Place::Here,
        table: Table::Ready,
        first: None,
        hit: Some(Hit { map: "hostports4", owner: Some(owner), dead: false, host: host(8080), target }),
        conditions: None,
        translation: None,
        of_iptables: None,
        near: Vec::new(),
        listens: false,
        way: Some(Way {
            link: "cni0".to_owned(),
            is_bridge: true,
            route_localnet: true,
            accepts_loopback6: true,
            hairpin: Some(Switch::Off),
        }),
        obstacles: Vec::new(),
        sources: Some(Sources::Of(vec!["10.22.0.0/24".parse().unwrap()])),
        masquerade: None,
        forwards: true,
        dropping: Vec::new(),
        admitting: Vec::new(),
        separation: None,
        administrator: false,
        bridge_netfilter: false,
        holding: Vec::new(),
    }
}

fn tell(facts: &Facts) -> String {
    Explanation::of(facts).text()
}

fn elsewhere() -> Origin {
    Origin::Elsewhere(None)
}

fn last(facts: &Facts) -> String {
    tell(facts).lines().last().unwrap_or_default().to_owned()
}

#[test]
fn all_steps_of_a_path() {
    expect![[r#"
        The first packet of a connection, tcp to 127.0.0.1:8080, from the node itself

         1. output       127.0.0.1 is an address of this node: published ports are looked up in table inet slipway
         2. lookup       map hostports4 has tcp/0.0.0.0:8080: network pods, container web, interface eth0
                         the destination becomes 10.22.0.2:80
         3. routing      10.22.0.2 is behind cni0
         4. postrouting  a source on the node's loopback gets the node's address

        It reaches 10.22.0.2:80 of network pods, container web, interface eth0.
    "#]]
    .assert_eq(&tell(&facts("127.0.0.1:8080", None, Origin::Node)));
}

#[test]
fn the_loopback_needs_settings_of_the_link() {
    let mut all = facts("127.0.0.1:8080", None, Origin::Node);
    all.way.as_mut().unwrap().route_localnet = false;
    assert!(last(&all).starts_with("It is dropped. `slipway restore`"), "{}", tell(&all));
    let mut all = facts("[::1]:8080", None, Origin::Node);
    assert!(last(&all).starts_with("It reaches"), "{}", tell(&all));
    all.bridge_netfilter = true;
    assert_eq!(last(&all), "It gets no reply. With net.bridge.bridge-nf-call-ip6tables=0 it does.");
    all.way.as_mut().unwrap().accepts_loopback6 = false;
    assert!(last(&all).contains("`slipway restore` adds the route"), "{}", tell(&all));
}

#[test]
fn the_loopback_is_closed_to_others() {
    for (to, from) in [("127.0.0.1:8080", None), ("192.0.2.1:8080", Some("127.0.0.1"))] {
        let mut all = facts(to, from, elsewhere());
        assert_eq!(last(&all), "It is dropped: the node's loopback is not reachable from outside.");
        all.table = Table::Damaged;
        assert!(tell(&all).contains("`slipway restore` restores the guard"), "{}", tell(&all));
    }
    assert_eq!(last(&facts("[::1]:8080", None, elsewhere())), "It is dropped.");
}

#[test]
fn a_container_that_calls_itself_needs_hairpin() {
    let mut all = facts("192.0.2.1:8080", Some("10.22.0.2"), elsewhere());
    assert!(tell(&all).contains("the container itself: its source becomes"), "{}", tell(&all));
    all.bridge_netfilter = true;
    assert_eq!(last(&all), "It is dropped by the bridge.");
    all.way.as_mut().unwrap().hairpin = Some(Switch::On);
    assert!(last(&all).starts_with("It reaches"), "{}", tell(&all));
}

#[test]
fn unknown_conditions_are_named_as_doubts() {
    let mut all = facts("192.0.2.1:8080", None, elsewhere());
    let hit = all.hit.as_mut().unwrap();
    all.translation = Some(hit.clone());
    hit.target = Target::Chain("container-x-4".to_owned());
    assert!(last(&all).ends_with("unless chain container-x-4 does not let it pass."), "{}", tell(&all));
    all.conditions = Some(vec![("ip saddr 10.0.0.0/8".to_owned(), Truth::Unknown)]);
    all.dropping = vec!["ip filter FORWARD".to_owned()];
    let wanted = "unless `ip saddr 10.0.0.0/8` does not hold, or chain ip filter FORWARD drops it.";
    assert!(last(&all).ends_with(wanted), "{}", tell(&all));
    all.translation = None;
    assert!(last(&all).starts_with("It is not translated"), "{}", tell(&all));
}

#[test]
fn other_ends() {
    let mut all = facts("192.0.2.1:8080", None, elsewhere());
    all.sources = Some(Sources::All);
    assert!(tell(&all).contains("masqAll"));
    all.sources = Some(Sources::None);
    assert!(tell(&all).contains("snat: false"));
    all.sources = None;
    assert!(tell(&all).contains("which is an error"));
    all.hit = None;
    all.table = Table::Unusable("no nf_tables".to_owned());
    assert!(tell(&all).contains("no lookup in nftables: no nf_tables"));
    all.place = Place::Nowhere("ENETUNREACH".to_owned());
    assert_eq!(last(&all), "It is dropped: there is no route.");
    all.place = Place::Behind("eth1".to_owned());
    all.packet.from = Some([10, 22, 0, 2].into());
    all.masquerade = Some(Masquerade {
        network: "10.22.0.0/24".parse().unwrap(),
        exempt: None,
        owner: None,
        chain: "masquerade-10.22.0.0/24".to_owned(),
    });
    assert!(tell(&all).contains("the source is masqueraded: set masqueraded has it"), "{}", tell(&all));
    all.masquerade.as_mut().unwrap().exempt = Some("192.0.2.0/24".parse().unwrap());
    let text = "not masqueraded: 192.0.2.1 is in nonMasqueradeCIDRs (192.0.2.0/24)";
    assert!(tell(&all).contains(text), "{}", tell(&all));
}

#[test]
fn json_has_the_steps() {
    let document = |facts: &Facts| Explanation::of(facts).document();
    let from_node = document(&facts("127.0.0.1:8080", None, Origin::Node));
    let from_link = Origin::Elsewhere(Some("eth1".to_owned()));
    let from_link = document(&facts("192.0.2.1:8080", Some("192.0.2.9"), from_link));
    checks::assert_documented("slipway explain", &[from_node.clone(), from_link.clone()]);
    assert_eq!((from_node.sent_by_node, from_link.link.as_deref()), (true, Some("eth1")));
    assert_eq!(from_node.steps[0].stage, "output");
    assert!(from_node.outcome.starts_with("It reaches 10.22.0.2:80"), "{from_node:?}");
}

#[test]
fn queries() {
    let read = |text: &str| match Query::new(&checks::args::<Args>(text)?) {
        Ok(query) => Ok(query),
        Err(Failure::Usage(text)) => Err(text),
        Err(other) => panic!("{text}: {other:?}"),
    };
    let wanted = Query {
        protocol: Protocol::Udp,
        to: "[2001:db8::1]:53".parse().unwrap(),
        from: Some("2001:db8::2".parse().unwrap()),
        link: Some("eth1".to_owned()),
    };
    assert_eq!(read("UDP [2001:db8::1]:53 --from 2001:db8::2 --iif eth1"), Ok(wanted.clone()));
    assert_eq!(read("udp [2001:db8::1]:53 --iif=eth1 --from=2001:db8::2"), Ok(wanted));
    assert_eq!(read("tcp 192.0.2.1:80 x").unwrap_err(), "unexpected argument \"x\"");
    assert!(read("tcp 192.0.2.1:80 --from fd00::1").unwrap_err().contains("different families"));
    assert!(read("tcp 192.0.2.1").unwrap_err().contains("must be an address and a port"));
}
