//! firewalld over a real bus.

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, is_peer, newest_version, peer_fails};

use super::bus::{Daemon, Zones, firewalld, refusing};
use super::{filter, network, recorded};

fn sources(zones: &Zones) -> Vec<String> {
    zones.lock().expect("not poisoned").iter().map(|(source, zone)| format!("{source} {zone}")).collect()
}

/// Whoever has no bus skips.
macro_rules! daemon {
    ($node:expr) => {{
        match Daemon::start($node) {
            Some(daemon) => daemon,
            None => slipway_tests::skip!("dbus-daemon"),
        }
    }};
}

#[test]
fn addresses_go_into_the_zone_and_out() {
    let node = Node::new();
    let _daemon = daemon!(&node);
    let zones = firewalld(&node);
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    // As podman writes it, by name, and with a zone.
    for (keys, zone) in [
        (json!({"backend": ""}), "trusted"),
        (json!({"backend": "firewalld"}), "trusted"),
        (json!({"backend": "firewalld", "firewalldZone": "public"}), "public"),
    ] {
        let network = network(&node, 1, &keys);
        let result = network.add(&attach).expect("ADD");
        let address = |index: usize| {
            let text = result["ips"][index]["address"].as_str().expect("an address").to_owned();
            text.replace("/24", "/32").replace("/64", "/128")
        };
        let mut wanted = vec![format!("{} {zone}", address(0)), format!("{} {zone}", address(1))];
        wanted.sort();
        assert_eq!(sources(&zones), wanted, "{keys}");
        assert!(!filter(&node, "iptables-save").contains("CNI-"), "{keys}");
        network.check(&attach).expect("CHECK");
        let _ = network.call_one(1, "ADD", &attach, &result).ok();
        network.del(&attach).expect("DEL");
        assert!(sources(&zones).is_empty(), "{:?}", sources(&zones));
        network.del(&attach).expect("DEL again");
    }
}

#[test]
fn a_failed_add_leaves_nothing() {
    peer_fails("the first address stays", || {
        let node = Node::new();
        let _daemon = daemon!(&node);
        let zones = firewalld(&node);
        let pod = node.pod("pod");
        let attach = Attach::new(&pod);
        let network = network(&node, 1, &json!({"backend": "firewalld"}));
        let previous = network.add_first(&attach);
        // Another zone has the second address.
        zones.lock().expect("not poisoned").insert("fd00:1::2/128".to_owned(), "public".to_owned());
        let error = network.call_one(1, "ADD", &attach, &previous).error();
        assert!(error.msg.contains("ZONE_CONFLICT"), "{error:?}");
        assert_eq!(sources(&zones), ["fd00:1::2/128 public"]);
        assert!(!recorded(&node).contains("elements"), "{}", recorded(&node));
    });
}

#[test]
fn check_asks_for_each_address() {
    peer_fails("it only looks whether the call succeeds", || {
        let node = Node::new();
        let _daemon = daemon!(&node);
        let zones = firewalld(&node);
        let pod = node.pod("pod");
        let attach = Attach::new(&pod);
        let network = network(&node, 1, &json!({"backend": "firewalld"}));
        network.add(&attach).expect("ADD");
        network.check(&attach).expect("CHECK");
        zones.lock().expect("not poisoned").remove("fd00:1::2/128");
        let error = network.check(&attach).expect_err("CHECK").error;
        assert_eq!(error.msg, "firewalld: fd00:1::2 is not in zone trusted");
    });
}

#[test]
fn a_del_needs_nothing_and_gc_finds_the_dead() {
    peer_fails("without the result it removes nothing", || {
        let node = Node::new();
        let _daemon = daemon!(&node);
        let zones = firewalld(&node);
        let (one, two) = (node.pod("one"), node.pod("two"));
        let network = network(&node, 1, &json!({"backend": "firewalld"}));
        for pod in [&one, &two] {
            network.add(&Attach::new(pod)).expect("ADD");
        }
        assert_eq!(sources(&zones).len(), 4);
        let gone = Attach::new(&one).netns("");
        assert!(network.call_one(1, "DEL", &gone, &Value::Null).ok().is_null());
        assert_eq!(sources(&zones), ["10.1.1.3/32 trusted", "fd00:1::3/128 trusted"]);
        network.forget();
        network.gc_plugins(&Value::Null).expect("GC");
        assert!(sources(&zones).is_empty());
    });
}

/// Its zones went with it.
#[test]
fn a_del_succeeds_when_firewalld_is_gone() {
    let node = Node::new();
    let daemon = daemon!(&node);
    let _zones = firewalld(&node);
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let network = network(&node, 1, &json!({"backend": "firewalld"}));
    network.add(&attach).expect("ADD");
    drop(daemon);
    network.del(&attach).expect("DEL");
}

#[test]
fn without_firewalld_it_is_iptables_unless_it_is_asked_for() {
    let node = Node::new();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let auto = network(&node, 1, &json!({}));
    auto.add(&attach).expect("ADD");
    assert!(filter(&node, "iptables-save").contains("-s 10.1.1.2/32 -j ACCEPT"));
    auto.check(&attach).expect("CHECK");
    auto.del(&attach).expect("DEL");
    // A bus without firewalld is the same.
    let _daemon = daemon!(&node);
    auto.add(&attach).expect("ADD");
    assert!(filter(&node, "iptables-save").contains("-j ACCEPT"));
    auto.del(&attach).expect("DEL");
    let asked = network(&node, 1, &json!({"backend": "firewalld"}));
    let _ = asked.add(&attach).expect_err("nobody answers");
    if newest_version() == "1.1.0" {
        peer_fails("it does nothing", || {
            let error = asked.status().expect_err("STATUS").error;
            assert_eq!((error.code, error.msg.as_str()), (50, "firewalld does not run"));
        });
    }
}

/// A rootless runtime reaches the bus of the machine, and is not let in.
#[test]
fn where_the_bus_refuses_it_is_iptables_unless_firewalld_is_asked_for() {
    let node = Node::new();
    refusing(&node);
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let auto = network(&node, 1, &json!({}));
    auto.add(&attach).expect("ADD");
    assert!(filter(&node, "iptables-save").contains("-s 10.1.1.2/32 -j ACCEPT"));
    auto.check(&attach).expect("CHECK");
    let previous = auto.cached(&attach).expect("it was added");
    auto.del(&attach).expect("DEL");
    assert!(auto.call_one(1, "DEL", &attach, &previous).ok().is_null(), "of one who has nothing");
    if !is_peer() {
        auto.status().expect("STATUS");
        let asked = network(&node, 1, &json!({"backend": "firewalld"}));
        let error = asked.add(&attach).expect_err("it was asked for").error;
        assert!(error.msg.contains("authenticate at the system bus"), "{error:?}");
        assert_eq!(asked.status().expect_err("STATUS").error.code, 50);
    }
}
