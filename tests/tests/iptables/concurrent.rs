// SPDX-License-Identifier: GPL-2.0-or-later

//! Concurrent calls and killed processes.

use serde_json::json;
use slipway_tests::{Disturbance, disturbed, kill_points, sample};

use crate::{Call, Stage, map};

const MANY: usize = 24;

/// The specification's code for "try again later".
const TRY_AGAIN: u32 = 11;

/// A call for a container with this number.
fn call<'a>(stage: &'a Stage, number: usize, port: u16) -> Call<'a> {
    let mappings = [map("tcp", port, 80), map("udp", port, 80)];
    let mut call = stage.call("ADD", &mappings, &json!({})).container(&format!("c{number}"));
    call.config["prevResult"]["ips"] = json!([
        {"address": format!("10.22.0.{}/24", number + 2), "interface": 0},
        {"address": format!("fd00:22::{:x}/64", number + 2), "interface": 0},
    ]);
    call
}

/// Concurrent ADDs on an empty node succeed, and each family has the shared rules only once, although iptables-nft
/// repeats its input if another process has changed the ruleset meanwhile.
#[test]
fn concurrent_adds_succeed() {
    for stage in Stage::each() {
        let calls: Vec<_> =
            (0..MANY).map(|i| call(&stage, i, 9000 + u16::try_from(i).expect("few"))).collect();
        let all = |verb: &str| {
            let running: Vec<_> = calls.iter().map(|c| c.clone().verb(verb).spawn()).collect();
            for (process, call) in running.into_iter().zip(&calls) {
                let mut output = process.wait();
                // On a slow machine, the wait for the xtables lock may time out, and a runtime would repeat such a
                // call.
                for _ in 0..MANY {
                    match output.result() {
                        Err(failure) if failure.code == TRY_AGAIN => output = call.clone().verb(verb).run(),
                        _ => break,
                    }
                }
                output.ok();
            }
        };
        all("ADD");
        let made = stage.both();
        for rule in ["-A PREROUTING ", "-A OUTPUT ", "-A POSTROUTING ", "-A CNI-HOSTPORT-MASQ "] {
            let [v4, v6] = [made.split("# ip6tables").next(), made.split("# ip6tables").nth(1)];
            let once = |text: &Option<&str>| text.is_some_and(|text| text.matches(rule).count() == 1);
            assert!([v4, v6].iter().all(once), "{rule}: {made}");
        }
        assert_eq!(made.matches("-A CNI-HOSTPORT-DNAT ").count(), 4 * MANY, "{made}");
        for call in &calls {
            call.clone().verb("CHECK").ok();
        }
        all("DEL");
        let left = stage.both();
        assert!(!left.contains("CNI-DN-") && !left.contains("-A CNI-HOSTPORT-DNAT"), "{left}");
        assert!(!stage.node.ruleset().contains("slipway1"), "{}", stage.node.ruleset());
    }
}

/// When concurrent ADDs request the same port, at most one gets it.
#[test]
fn one_of_many_gets_the_port() {
    for stage in Stage::each() {
        let calls: Vec<_> = (0..8).map(|i| call(&stage, i, 9000)).collect();
        let running: Vec<_> = calls.iter().map(Call::spawn).collect();
        let results: Vec<_> = running.into_iter().map(|process| process.wait().result()).collect();
        let won: Vec<usize> = (0..calls.len()).filter(|i| results[*i].is_ok()).collect();
        assert!(won.len() <= 1, "{won:?}");
        for error in results.into_iter().filter_map(Result::err) {
            assert_eq!(error.code, 11, "{error:?}");
        }
        let made = stage.both();
        for i in 0..calls.len() {
            let there = made.contains(&format!("id: \\\"c{i}\\\""));
            assert_eq!(there, won.contains(&i), "{i}: {made}");
        }
    }
}

/// Wherever the plugin or one of its tools is killed, a DEL without port mappings and prevResult removes everything,
/// and a new ADD succeeds.
#[test]
fn an_add_and_a_del_may_be_killed_anywhere() {
    for stage in Stage::each() {
        let variant = stage.variant;
        let add = call(&stage, 1, 9000);
        add.ok();
        add.clone().verb("DEL").ok();
        // The state leaves out the rest of the ruleset, because rules of iptables count packets.
        let state = || (stage.both(), stage.node.cmd("nft list table inet slipway"));
        let before = state();
        let forgetful =
            add.clone().verb("DEL").key("prevResult", json!(null)).key("runtimeConfig", json!({}));
        for verb in ["ADD", "DEL"] {
            let prepare = || {
                if verb == "DEL" {
                    add.ok();
                }
            };
            prepare();
            let (output, points) = kill_points(&stage.node, add.clone().verb(verb).plugin());
            output.ok();
            forgetful.ok();
            let moments: Vec<_> = points.iter().filter(|point| point.after_change).collect();
            assert!(moments.len() > 10, "{points:?}");
            for point in sample(moments.into_iter().step_by(4)) {
                prepare();
                let _ = disturbed(&stage.node, add.clone().verb(verb).plugin(), point, Disturbance::Kill);
                forgetful.ok();
                assert_eq!(state(), before, "{verb} {variant} {point:?}");
            }
        }
        add.ok();
        add.verb("CHECK").ok();
    }
}
