// SPDX-License-Identifier: GPL-2.0-or-later

use cni_dataplane::trace::{Event, Place, Policy, Step, Verdict};
use expect_test::expect;

use super::*;

struct Known;

impl Facts for Known {
    fn link(&self, index: u32) -> String {
        format!("link{index}")
    }

    fn owner(&self) -> Option<String> {
        Some("network pods, container web, interface eth0".to_owned())
    }

    fn listener(&self) -> String {
        ", where nothing listens on the port".to_owned()
    }

    fn translator(&self, _seen: &TracedPacket, _run: &journey::Run) -> Option<String> {
        Some("the rule was left behind".to_owned())
    }

    fn reason(&self, _seen: &TracedPacket) -> Option<String> {
        Some("It is dropped: the node does not forward.".to_owned())
    }
}

fn place(table: &str, chain: &str, hook: Option<&'static str>) -> Place {
    Place { table: table.to_owned(), chain: chain.to_owned(), hook }
}

fn seen(from: &str, to: &str) -> Option<TracedPacket> {
    let flags = Some(2);
    Some(TracedPacket {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        flags,
        link_in: Some(2),
        link_out: Some(3),
    })
}

fn step(place: Place, event: Event, seen: Option<TracedPacket>) -> Step {
    Step { packet: 7, place, event, seen }
}

fn rule(map: Option<&str>, verdict: Verdict) -> Event {
    let text = Some("th dport 80 drop".to_owned());
    Event::Rule { handle: 5, text, map: map.map(str::to_owned), verdict: Some(verdict) }
}

fn began() -> Journeys {
    let mut journeys = Journeys::default();
    let here = seen("192.0.2.9:40000", "192.0.2.2:8080");
    let first = step(
        place("inet slipway-trace", "prerouting", Some("prerouting")),
        rule(None, Verdict::Continue),
        here.clone(),
    );
    assert_eq!(journeys.take(first, Instant::now()), None);
    let own = |chain, hook| place("inet slipway", chain, hook);
    let goto = rule(None, Verdict::Goto("hostports4".to_owned()));
    for next in [
        step(own("guard", Some("prerouting")), Event::Policy(Policy::Accept), here.clone()),
        step(own("prerouting", Some("prerouting")), goto, here),
        step(own("hostports4", None), rule(None, Verdict::Continue), None),
        step(own("hostports4", None), rule(Some("hostports4"), Verdict::Accept), None),
    ] {
        assert_eq!(journeys.take(next, Instant::now()), None);
    }
    journeys
}

fn text(journey: &Journey) -> String {
    Description::of(journey, Protocol::Tcp, &Known).text(1)
}

#[test]
fn a_rule_that_drops_ends_the_way() {
    let mut journeys = began();
    let there = seen("192.0.2.9:40000", "10.22.0.2:80");
    let last = step(place("ip filter", "FORWARD", Some("forward")), rule(None, Verdict::Drop), there);
    let journey = journeys.take(last, Instant::now()).unwrap();
    assert!(!journeys.any());
    expect![[r#"
        packet 1: from 192.0.2.9:40000, arriving on link2, SYN
         1. guard       neither to nor from 127.0.0.0/8: passes
         2. prerouting  192.0.2.2 is an address of this node: published ports are looked up in table inet slipway
         3. lookup      map hostports4 has tcp port 8080: network pods, container web, interface eth0
                        the destination becomes 10.22.0.2:80
         4. forward     chain FORWARD of table ip filter, rule `th dport 80 drop`: drops it
        It is dropped by chain FORWARD of table ip filter.

    "#]].assert_eq(&text(&journey));
}

#[test]
fn a_packet_that_leaves_has_its_last_addresses() {
    let mut journeys = began();
    let there = seen("10.22.0.2:40000", "10.22.0.2:80");
    let goto = rule(Some("hairpin4"), Verdict::Goto("hairpin-10.22.0.0/24-13".to_owned()));
    journeys
        .take(step(place("inet slipway", "postrouting", Some("postrouting")), goto, there), Instant::now());
    let masquerade = rule(None, Verdict::Accept);
    journeys
        .take(step(place("inet slipway", "hairpin-10.22.0.0/24-13", None), masquerade, None), Instant::now());
    let gone = seen("10.22.0.1:40000", "10.22.0.2:80");
    let last = step(
        place("inet slipway-trace", "postrouting", Some("postrouting")),
        Event::Policy(Policy::Accept),
        gone,
    );
    let text = text(&journeys.take(last, Instant::now()).unwrap());
    assert!(text.contains("the source becomes 10.22.0.1:40000"), "{text}");
    assert!(text.contains("It leaves for 10.22.0.2:80 by link3: network pods"), "{text}");
}

#[test]
fn a_packet_that_is_not_seen_again_is_explained() {
    let mut journeys = began();
    assert!(journeys.quiet(Instant::now()).is_empty(), "it may not have reached its end");
    let [journey] = &journeys.quiet(Instant::now() + Duration::from_secs(1))[..] else { panic!("one") };
    let text = text(journey);
    assert!(text.contains("It is not seen after prerouting"), "{text}");
    assert!(text.contains("the node does not forward"), "{text}");
}

#[test]
fn traces_of_other_programs_are_left_alone() {
    let mut journeys = Journeys::default();
    let there = seen("192.0.2.9:40000", "10.22.0.2:80");
    let foreign = step(place("ip filter", "FORWARD", Some("forward")), rule(None, Verdict::Drop), there);
    assert_eq!(journeys.take(foreign, Instant::now()), None);
}

#[test]
fn json_has_each_packet() {
    let mut journeys = began();
    let journey = journeys.quiet(Instant::now() + Duration::from_secs(1)).remove(0);
    let of_node =
        Journey { first: TracedPacket { link_in: None, ..journey.first.clone() }, ..journey.clone() };
    let packets: Vec<PacketTrace> =
        [journey, of_node].iter().map(|one| Description::of(one, Protocol::Tcp, &Known).document()).collect();
    let wanted = Wanted {
        protocol: Protocol::Tcp,
        to: "192.0.2.2:8080".parse().unwrap(),
        time: Duration::from_secs(10),
        count: 10,
    };
    let summary = Summary { ended: "time", lost: false, carried: None, counted: Vec::new() };
    let counted = vec![(Counter::Carried, 9), (Counter::Unlike, 2)];
    let carried = Summary { carried: Some(3), counted, ..summary.clone() };
    expect![[r#"
        2 packets.
        BPF programs carried 3 packets of flows to this port past netfilter: of these a trace sees the first packets, and up to two per second of each direction. Of a flow that ended, the last packets are not counted.
        During the trace the BPF programs counted, for all ports of the node:
          9 packets that the BPF programs carried
          2 recorded packets that came out changed in another way than the BPF programs can
    "#]].assert_eq(&closing(&wanted, &carried, 2));
    slipway_cli::checks::assert_documented(
        "slipway trace",
        &[document(&wanted, &summary, packets.clone()), document(&wanted, &carried, packets)],
    );
}

#[test]
fn counters_that_grow_are_counted_from_the_start() {
    let before = [(Counter::Carried, 5), (Counter::Checked, 7)];
    let after = vec![(Counter::Carried, 5), (Counter::Checked, 9), (Counter::Unlike, 1)];
    assert_eq!(added(&before, after), [(Counter::Checked, 2), (Counter::Unlike, 1)]);
}

#[test]
fn times_are_read() {
    for (text, time) in [("10s", 10), ("10", 10), ("2m", 120), ("10m", 600)] {
        assert_eq!(seconds(text).ok(), Some(Duration::from_secs(time)), "{text}");
    }
    for text in ["", "s", "0s", "11m", "-1s", "1h", "99999999999999999999m"] {
        assert!(seconds(text).is_err(), "{text}");
    }
}
