// SPDX-License-Identifier: GPL-2.0-or-later

//! The firewalld backend, tested over a real bus.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Disturbance, Node, disturbed, is_peer, newest_version, peer_fails, point_of, slipway,
    slipway_only, until,
};
use slipwayd::repair;
use slipwayd::repair::program::Program;

use super::bus::{Daemon, Zones, firewalld, refusing};
use super::{filter, network, recorded};

fn sources(zones: &Zones) -> Vec<String> {
    zones.lock().expect("not poisoned").iter().map(|(source, zone)| format!("{source} {zone}")).collect()
}

/// Makes a node, its bus, and the zones of a firewalld on the bus. Skips the test if dbus-daemon is not installed.
macro_rules! with_firewalld {
    () => {{
        let node = Node::new();
        let Some(daemon) = Daemon::start(&node) else { slipway_tests::skip!("dbus-daemon") };
        let zones = firewalld(&node);
        (node, daemon, zones)
    }};
}

#[test]
fn add_and_del_change_the_zone() {
    let (node, _daemon, zones) = with_firewalld!();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    // The first case is podman's configuration, the second names the backend, and the third configures a zone.
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

/// A plugin without a free descriptor cannot reach the bus, which does not show that no firewalld is there. strace lets
/// the connection fail with the error that the socket before it would give.
#[test]
fn firewalld_does_not_count_as_absent_for_lack_of_descriptors() {
    slipway_only!();
    let (node, _daemon, zones) = with_firewalld!();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let network = network(&node, 1, &json!({"backend": ""}));
    let previous = network.add_first(&attach);
    let call = |verb: &str| {
        let mut config = network.configs(Some(&attach)).swap_remove(1);
        config["prevResult"] = previous.clone();
        network.prepare(verb, &config, Some(&attach))
    };
    let failing = |verb: &str, point| {
        let error = disturbed(&node, call(verb), point, Disturbance::Error("EMFILE")).error();
        assert!(error.msg.contains("Too many open files"), "{verb}: {error:?}");
    };
    let bus = "system_bus_socket";
    let of_add = point_of(&node, call("ADD"), bus);
    let added = sources(&zones);
    assert!(!added.is_empty());
    let of_del = point_of(&node, call("DEL"), bus);
    assert!(sources(&zones).is_empty(), "{:?}", sources(&zones));

    failing("ADD", &of_add);
    assert!(sources(&zones).is_empty(), "{:?}", sources(&zones));
    assert!(!filter(&node, "iptables-save").contains("CNI-"), "rules of another backend");
    call("ADD").run().ok();
    assert_eq!(sources(&zones), added);
    failing("DEL", &of_del);
    assert_eq!(sources(&zones), added);
    // The failed DEL has not lost the record of the addresses, so the next one removes them.
    call("DEL").run().ok();
    assert!(sources(&zones).is_empty(), "{:?}", sources(&zones));
}

#[test]
fn a_failed_add_leaves_nothing() {
    slipway_tests::needs_ipv6!();
    peer_fails("the first address stays", || {
        let (node, _daemon, zones) = with_firewalld!();
        let pod = node.pod("pod");
        let attach = Attach::new(&pod);
        let network = network(&node, 1, &json!({"backend": "firewalld"}));
        let previous = network.add_first(&attach);
        // The second address is in another zone.
        zones.lock().expect("not poisoned").insert("fd00:1::2/128".to_owned(), "public".to_owned());
        let error = network.call_one(1, "ADD", &attach, &previous).error();
        assert!(error.msg.contains("ZONE_CONFLICT"), "{error:?}");
        assert_eq!(sources(&zones), ["fd00:1::2/128 public"]);
        assert!(!recorded(&node).contains("elements"), "{}", recorded(&node));
    });
}

#[test]
fn check_queries_each_address() {
    slipway_tests::needs_ipv6!();
    peer_fails("it does not read firewalld's reply", || {
        let (node, _daemon, zones) = with_firewalld!();
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
fn del_works_without_a_result_and_gc_removes_stale_sources() {
    peer_fails("without the result it removes nothing", || {
        let (node, _daemon, zones) = with_firewalld!();
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

/// firewalld's zones disappear with it.
#[test]
fn a_del_succeeds_when_firewalld_is_gone() {
    let (node, daemon, _zones) = with_firewalld!();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let network = network(&node, 1, &json!({"backend": "firewalld"}));
    network.add(&attach).expect("ADD");
    drop(daemon);
    network.del(&attach).expect("DEL");
}

#[test]
fn without_firewalld_the_default_backend_is_iptables() {
    slipway_tests::needs_iptables!();
    let (node, _pod, attach) = Node::with_attachment();
    let auto = network(&node, 1, &json!({}));
    auto.add(&attach).expect("ADD");
    assert!(filter(&node, "iptables-save").contains("-s 10.1.1.2/32 -j ACCEPT"));
    auto.check(&attach).expect("CHECK");
    auto.del(&attach).expect("DEL");
    // Tests the same on a bus on which firewalld does not run.
    let Some(_daemon) = Daemon::start(&node) else { slipway_tests::skip!("dbus-daemon") };
    auto.add(&attach).expect("ADD");
    assert!(filter(&node, "iptables-save").contains("-j ACCEPT"));
    auto.del(&attach).expect("DEL");
    let asked = network(&node, 1, &json!({"backend": "firewalld"}));
    let _ = asked.add(&attach).expect_err("no firewalld on the bus");
    if newest_version() == "1.1.0" {
        peer_fails("it does nothing", || {
            let error = asked.status().expect_err("STATUS").error;
            assert_eq!((error.code, error.msg.as_str()), (50, "firewalld does not run"));
        });
    }
}

/// A rootless runtime reaches the machine's bus, which refuses authentication.
#[test]
fn where_the_bus_refuses_the_default_backend_is_iptables() {
    slipway_tests::needs_iptables!();
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
    assert!(auto.call_one(1, "DEL", &attach, &previous).ok().is_null(), "DEL without rules");
    if !is_peer() {
        auto.status().expect("STATUS");
        let asked = network(&node, 1, &json!({"backend": "firewalld"}));
        let error = asked.add(&attach).expect_err("ADD with backend firewalld").error;
        assert!(error.msg.contains("authenticate at the system bus"), "{error:?}");
        assert_eq!(asked.status().expect_err("STATUS").error.code, 50);
    }
}

/// A late DEL must not remove the next owner of the address from the zone.
#[test]
fn a_late_del_leaves_the_next_holder_in_the_zone() {
    peer_fails("a zone names no owner", || {
        let (node, _daemon, zones) = with_firewalld!();
        let (old, new) = (node.pod("old"), node.pod("new"));
        let network = network(&node, 1, &json!({"backend": "firewalld"}));
        let previous = network.add_first(&Attach::new(&old));
        // The addresses come first from `prevResult`, and then from the attachment's record.
        for given in [&previous, &Value::Null] {
            let _ = network.call_one(1, "ADD", &Attach::new(&old), &previous).ok();
            if !given.is_null() {
                assert!(network.call_one(1, "DEL", &Attach::new(&old), &previous).ok().is_null());
            }
            let _ = network.call_one(1, "ADD", &Attach::new(&new), &previous).ok();
            assert!(network.call_one(1, "DEL", &Attach::new(&old), given).ok().is_null());
            assert_eq!(sources(&zones), ["10.1.1.2/32 trusted", "fd00:1::2/128 trusted"]);
            assert!(network.call_one(1, "CHECK", &Attach::new(&new), &previous).ok().is_null());
            assert!(network.call_one(1, "DEL", &Attach::new(&new), &Value::Null).ok().is_null());
            assert!(sources(&zones).is_empty(), "{:?}", sources(&zones));
        }
    });
}

/// `firewall-cmd --reload` removes the addresses from the zone, but the record remains.
#[test]
fn restore_repairs_a_reload() {
    slipway_only!();
    let (node, _daemon, zones) = with_firewalld!();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let network = network(&node, 1, &json!({}));
    network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    let before = sources(&zones);
    zones.lock().expect("not poisoned").clear();
    let report = node.slipway("restore");
    assert_eq!(sources(&zones), before, "{report}");
    network.check(&attach).expect("CHECK");
}

/// Repeats an ADD with another backend, with fewer addresses, or with another zone.
#[test]
fn a_repeated_add_removes_sources_no_longer_configured() {
    slipway_only!();
    let (node, _daemon, zones) = with_firewalld!();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let keys = |zone: &str| json!({"backend": "firewalld", "firewalldZone": zone});
    let (trusted, public) = (network(&node, 1, &keys("trusted")), network(&node, 1, &keys("public")));
    let both = trusted.add(&attach).expect("ADD");
    let mut one = both.clone();
    one["ips"].as_array_mut().expect("a list").truncate(1);
    let _ = trusted.call_one(1, "ADD", &attach, &one).ok();
    assert_eq!(sources(&zones), ["10.1.1.2/32 trusted"], "one address less");
    let _ = public.call_one(1, "ADD", &attach, &both).ok();
    assert_eq!(sources(&zones), ["10.1.1.2/32 public", "fd00:1::2/128 public"], "another zone");
    assert!(public.call_one(1, "CHECK", &attach, &both).ok().is_null());
    for backend in ["nftables", "iptables"] {
        let other = network(&node, 1, &json!({"backend": backend}));
        let _ = other.call_one(1, "ADD", &attach, &both).ok();
        assert!(sources(&zones).is_empty(), "{backend}: {:?}", sources(&zones));
        let _ = public.call_one(1, "ADD", &attach, &both).ok();
        assert_eq!(sources(&zones).len(), 2, "{backend}");
    }
    assert!(public.call_one(1, "DEL", &attach, &both).ok().is_null());
    assert!(sources(&zones).is_empty());
}

#[test]
fn del_and_gc_use_the_zone_of_the_add() {
    peer_fails("it uses the configuration's zone", || {
        let (node, _daemon, zones) = with_firewalld!();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let network_of =
            |zone: &str| network(&node, 1, &json!({"backend": "firewalld", "firewalldZone": zone}));
        let then = network_of("public");
        for pod in [&one, &two] {
            then.add(&Attach::new(pod)).expect("ADD");
        }
        // The administrator added this source; no plugin recorded it.
        zones.lock().expect("not poisoned").insert("10.9.9.9/32".to_owned(), "public".to_owned());
        let now = network_of("trusted");
        let previous = then.cached(&Attach::new(&one)).expect("it was added");
        assert!(now.call_one(1, "DEL", &Attach::new(&one), &previous).ok().is_null());
        assert_eq!(sources(&zones).len(), 3, "{:?}", sources(&zones));
        network_of("not a zone").gc_plugins(&Value::Null).expect("GC");
        assert_eq!(sources(&zones), ["10.9.9.9/32 public"]);
    });
}

/// Repairs the node as slipwayd does while `body` runs. `body` gets the descriptions of the damages so far.
fn with_repairs(node: &Node, body: impl FnOnce(&Mutex<Vec<String>>)) {
    let (ended, damages) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let (seen, ended) = (&damages, &ended);
    thread::scope(|scope| {
        let agent = scope.spawn(move || {
            node.run(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let stop = async {
                    while !ended.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                let done = |repair: repair::Repair| {
                    let failures: Vec<String> = repair.failures().collect();
                    assert!(failures.is_empty(), "{failures:?}");
                    let mut seen = seen.lock().expect("not poisoned");
                    seen.push("a repair".to_owned());
                    seen.extend(repair.damages.iter().map(ToString::to_string));
                };
                runtime.expect("a runtime").block_on(repair::run(Program::new(slipway()), stop, done))
            })
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(Duration::from_secs(60), "the first repair", || {
                !seen.lock().expect("not poisoned").is_empty()
            });
            body(seen);
        }));
        ended.store(true, Ordering::Relaxed);
        agent.join().expect("no panic").expect("the repairs run");
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// The script in docs/neighbours.md, with the path of this build's program in it.
fn script_of_the_page() -> String {
    let page = include_str!("../../../docs/neighbours.md");
    let (_, rest) = page.split_once("```sh\n").expect("the page has the script");
    let (script, _) = rest.split_once("```").expect("it ends");
    script.replace("/opt/cni/bin/slipway ", &format!("{} ", slipway().display()))
}

/// A complete reload empties firewalld's zones. The agent is notified over the bus. Without an agent, the script in the
/// documentation puts the addresses back.
#[test]
fn sources_come_back_after_a_reload() {
    let (node, daemon, zones) = with_firewalld!();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let network = network(&node, 1, &json!({"backend": "firewalld"}));
    network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    let before = sources(&zones);
    assert_eq!(before.len(), 2);
    let reload = || {
        zones.lock().expect("not poisoned").clear();
        let signal = "org.fedoraproject.FirewallD1.Reloaded";
        let send = "dbus-send --system --type=signal /org/fedoraproject/FirewallD1";
        node.cmd(&format!("{send} {signal}"));
    };
    with_repairs(&node, |damages| {
        reload();
        until(Duration::from_secs(60), "the sources are back", || sources(&zones) == before);
        let all = || damages.lock().expect("not poisoned").join("\n");
        until(Duration::from_secs(60), "the damage", || all().contains("firewalld has reloaded its rules"));
    });
    // As the control, nothing puts them back without an agent, until the script from the documentation runs.
    reload();
    assert!(sources(&zones).is_empty());
    node.write("/run/slipway-firewalld", script_of_the_page());
    let mut unit = node.run(|| {
        let mut command = Command::new("setsid");
        command.args(["sh", "/run/slipway-firewalld"]).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().expect("start the script")
    });
    // The script may not listen yet when the first signal is sent.
    until(Duration::from_secs(60), "the script restores the sources", || {
        reload();
        thread::sleep(Duration::from_millis(300));
        sources(&zones) == before
    });
    drop(daemon);
    // dbus-monitor ends with its bus, and the script ends with dbus-monitor.
    unit.wait().expect("the script ends");
}
