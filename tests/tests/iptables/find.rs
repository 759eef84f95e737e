// SPDX-License-Identifier: GPL-2.0-or-later

//! DEL, CHECK and GC find an attachment in every backend, whatever backend the configuration names now.

use serde_json::json;
use slipway_tests::{NEWER_REFERENCE, REFERENCE, Reference, golden, needs, skip};

use crate::{Call, Stage, VARIANTS, map};

#[test]
fn a_del_finds_the_ports_in_the_other_backend() {
    for stage in Stage::each() {
        let iptables = stage.plain("ADD");
        let nftables = iptables.clone().key("backend", json!("nftables"));
        iptables.ok();
        nftables.clone().verb("CHECK").ok();
        nftables.clone().verb("DEL").ok();
        stage.assert_gone();
        nftables.ok();
        iptables.clone().verb("CHECK").ok();
        iptables.clone().verb("DEL").ok();
        assert!(!stage.node.ruleset().contains(" testnet eth0 c1\""));
        // DEL also works without port mappings and prevResult.
        iptables.ok();
        let forgetful = nftables.key("runtimeConfig", json!({})).key("prevResult", json!(null));
        forgetful.verb("DEL").ok();
        stage.assert_gone();
    }
}

#[test]
fn an_add_with_another_backend_moves_the_ports() {
    for stage in Stage::each() {
        let iptables = stage.plain("ADD");
        let nftables = iptables.clone().key("backend", json!("nftables"));
        nftables.ok();
        assert!(stage.node.ruleset().contains(" : 10.22.0.2 . 80"));
        iptables.ok();
        assert!(!stage.node.ruleset().contains(" : 10.22.0.2 . 80"));
        assert!(stage.both().contains("--to-destination 10.22.0.2:80"));
        nftables.ok();
        assert!(!stage.both().contains("CNI-DN-"));
        nftables.verb("CHECK").ok();
    }
}

#[test]
fn a_port_has_one_owner_whatever_the_backend() {
    for stage in Stage::each() {
        let iptables = stage.plain("ADD");
        let nftables = iptables.clone().key("backend", json!("nftables"));
        iptables.ok();
        for other in [&iptables, &nftables] {
            let error = other.clone().container("c2").run().error();
            assert_eq!(error.code, 11, "{error:?}");
            assert_eq!(
                error.msg,
                "host port tcp/0.0.0.0:8080 is taken by network testnet, container c1, interface eth0"
            );
        }
        assert!(!stage.both().contains("c2\\\""), "{}", stage.both());
        iptables.clone().verb("DEL").ok();
        nftables.ok();
        let error = iptables.clone().container("c2").run().error();
        assert_eq!(error.code, 11);
        assert!(error.msg.contains("is taken by network testnet, container c1, interface eth0"), "{error:?}");
        assert!(!stage.both().contains("c2\\\""), "{}", stage.both());
        // Another port is still free.
        let other = stage.call("ADD", &[map("tcp", 8081, 80)], &json!({})).container("c2");
        other.ok();
        other.clone().verb("CHECK").ok();
        other.verb("DEL").ok();
        nftables.clone().verb("CHECK").ok();
        nftables.verb("DEL").ok();
        stage.assert_gone();
    }
}

#[test]
fn a_dead_owners_port_can_be_taken() {
    for stage in Stage::each() {
        let other = stage.node.pod("gone");
        let iptables = stage.plain("ADD");
        let mut dead = iptables.clone().container("c0");
        let path = other.path().display().to_string();
        dead.config["prevResult"]["interfaces"][0]["sandbox"] = json!(path);
        dead.config["prevResult"]["ips"] = json!([{"address": "10.22.0.9/24", "interface": 0}]);
        let call = stage.node.plugin("portmap").command("ADD").container("c0").netns(&path);
        let path = format!("/run/tools:{}", std::env::var("PATH").unwrap_or_default());
        call.ifname("eth0").config(&dead.config).env("PATH", path).run().ok();
        assert_eq!(iptables.run().error().code, 11);
        other.remove();
        iptables.ok();
        let all = stage.both();
        assert!(!all.contains("c0\\\"") && !all.contains("10.22.0.9"), "{all}");
        iptables.clone().verb("CHECK").ok();
        iptables.verb("DEL").ok();
        stage.assert_gone();
    }
}

#[test]
fn gc_removes_stale_attachments_of_its_network_alone() {
    for stage in Stage::each() {
        let add = |network: &str, id: &str, port: u16| {
            let call = stage.call("ADD", &[map("tcp", port, 80)], &json!({"name": network}));
            call.container(id).ok();
        };
        add("testnet", "c1", 8080);
        add("testnet", "c2", 8081);
        add("other", "c3", 8082);
        let valid = json!([{"containerID": "c2", "ifname": "eth0"}]);
        let gc = stage.plain("GC").key("cniVersion", json!("1.1.0")).key("prevResult", json!(null));
        gc.key("cni.dev/valid-attachments", valid).ok();
        let all = stage.both();
        assert!(!all.contains("c1\\\"") && all.contains("c2\\\"") && all.contains("c3\\\""), "{all}");
        let ruleset = stage.node.ruleset();
        assert!(!ruleset.contains(" testnet eth0 c1\"") && ruleset.contains(" testnet eth0 c2\""));
        assert!(ruleset.contains(" other eth0 c3\""));
    }
}

/// The layout that the reference plugin used before it had marks and multiport. An old version may have left it on a
/// node.
#[test]
fn the_oldest_layout_is_removed_by_del_and_by_gc() {
    let text = include_str!("../../../cni/dataplane/golden/iptables/oldest.txt");
    let (v4, _) = text.split_once("# ip6tables").expect("two families");
    for variant in VARIANTS {
        for verb in ["DEL", "GC"] {
            let stage = Stage::new(variant);
            let restored = format!("*nat\n{}COMMIT\n", v4.replace("# iptables\n", ""));
            stage.node.cmd_input(&format!("iptables-{variant}-restore --noflush"), &restored);
            let call = stage.plain(verb).key("cniVersion", json!("1.1.0"));
            call.key("cni.dev/valid-attachments", json!([])).ok();
            let left = stage.saved("iptables");
            golden("iptables-oldest-left.txt", &left);
        }
    }
}

#[test]
fn ports_of_the_references_nftables_backend_are_found() {
    let newer = Reference::with_nftables();
    needs!(!newer.is_empty(), NEWER_REFERENCE);
    for reference in newer {
        let stage = Stage::new("nft");
        let theirs = stage.plain("ADD").key("backend", json!("nftables")).by(&reference);
        theirs.ok();
        theirs.clone().container("c2").key("runtimeConfig", json!({"portMappings": [map("tcp", 9, 9)]})).ok();
        let ours = stage.plain("CHECK");
        ours.ok();
        ours.clone().verb("DEL").ok();
        let left = stage.node.ruleset();
        assert!(!left.contains("comment \"c1\"") && left.contains("comment \"c2\""), "{left}");
        assert!(ours.run().error().msg.contains("has no rule"), "{left}");
        // ADD with Slipway replaces an earlier ADD of the same container with the reference plugin.
        theirs.ok();
        ours.clone().verb("ADD").key("backend", json!("nftables")).ok();
        assert!(!stage.node.ruleset().contains("comment \"c1\""));
    }
}

#[test]
fn a_del_on_a_node_without_chains_runs_nothing() {
    let stage = Stage::new("nft");
    let call = stage.plain("ADD").key("backend", json!("nftables"));
    // Rules of other programs do not cause the plugin to run a tool, in either variant.
    for variant in VARIANTS {
        stage.node.cmd(&format!("iptables-{variant} -t nat -A POSTROUTING -s 192.0.2.77 -j ACCEPT"));
        stage.node.cmd(&format!("ip6tables-{variant} -t nat -N DOCKER"));
    }
    for verb in ["ADD", "CHECK", "DEL", "DEL"] {
        let plugin = stage.node.plugin("portmap").command(verb).container("c1").netns(stage.pod.path());
        let trace = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", "/run/trace"];
        plugin.ifname("eth0").config(&call.config).through(&trace).run().ok();
        let programs = stage.node.read("/run/trace").expect("a trace");
        // The trace contains the plugin's own execve, and after a DEL that of the process which closes its sockets.
        let run = programs
            .lines()
            .filter(|line| line.contains("execve(") && !line.contains("slipway-close-sockets"));
        assert_eq!(run.count(), 1, "{verb}: {programs}");
    }
}

/// If no backend is configured, a kernel without nf_tables gets the chains of iptables.
#[test]
fn a_kernel_without_nf_tables_gets_the_chains() {
    let stage = Stage::new("legacy");
    // Only the plugin's own sockets fail, but not those of the tools. With snat, the plugin would need a socket to find
    // the container's link.
    let mut call = stage.plain("ADD").key("snat", json!(false));
    call.config.as_object_mut().expect("an object").remove("backend");
    let trace = ["strace", "-qq", "-o", "/dev/null", "-e", "inject=socket:error=EPROTONOSUPPORT"];
    let plugin = stage.node.plugin("portmap").command("ADD").container("c1").netns(stage.pod.path());
    let path = format!("/run/tools:{}", std::env::var("PATH").unwrap_or_default());
    let result = plugin.ifname("eth0").config(&call.config).env("PATH", path).through(&trace).run();
    result.ok();
    assert_eq!(stage.node.ruleset(), "");
    assert!(stage.saved("iptables").contains("--to-destination 10.22.0.2:80"), "{}", stage.both());
    call.clone().verb("CHECK").ok();
    call.verb("DEL").ok();
    stage.assert_gone();
}

/// A chain's name does not depend on the interface. Two attachments of one container to one network therefore share a
/// chain, and each DEL removes only its own rules.
#[test]
fn two_interfaces_of_a_container_share_its_chain() {
    for stage in Stage::each() {
        let first = stage.plain("ADD");
        let mut second = stage.call("ADD", &[map("tcp", 8080, 90), map("udp", 53, 53)], &json!({}));
        second.ifname = "eth1".to_owned();
        second.config["prevResult"]["interfaces"][0]["name"] = json!("eth1");
        second.config["prevResult"]["ips"] = json!([{"address": "10.22.0.3/24", "interface": 0}]);
        first.ok();
        second.ok();
        let all = stage.both();
        assert!(
            all.contains("--to-destination 10.22.0.2:80") && all.contains("--to-destination 10.22.0.3:53")
        );
        // The port that both attachments request belongs to the first one.
        assert!(!all.contains("10.22.0.3:90"), "{all}");
        first.clone().verb("CHECK").ok();
        second.clone().verb("DEL").ok();
        let all = stage.both();
        assert!(all.contains("--to-destination 10.22.0.2:80") && !all.contains("10.22.0.3"), "{all}");
        assert!(!all.contains("--dports 53"), "{all}");
        first.clone().verb("CHECK").ok();
        first.verb("DEL").ok();
        stage.assert_gone();
    }
}

/// Each of two concurrent DELs sees the other attachment, and the chain is removed nevertheless.
#[test]
fn two_interfaces_of_a_container_go_at_once() {
    for stage in Stage::each() {
        let first = stage.plain("ADD");
        let mut second = stage.call("ADD", &[map("udp", 53, 53)], &json!({}));
        second.ifname = "eth1".to_owned();
        second.config["prevResult"]["interfaces"][0]["name"] = json!("eth1");
        second.config["prevResult"]["ips"] = json!([{"address": "10.22.0.3/24", "interface": 0}]);
        for _ in 0..5 {
            let both = [&first, &second];
            both.into_iter().for_each(Call::ok);
            let running = both.map(|call| call.clone().verb("DEL").spawn());
            for process in running {
                process.wait().ok();
            }
            stage.assert_gone();
        }
    }
}

#[test]
fn a_container_on_two_networks_has_its_ports_on_the_first() {
    for backend in ["iptables", "nftables"] {
        let stage = Stage::new("nft");
        let first = stage.plain("ADD");
        first.ok();
        let mut second = stage.plain("ADD").key("name", json!("second")).key("backend", json!(backend));
        second.ifname = "eth1".to_owned();
        second.config["prevResult"]["interfaces"][0]["name"] = json!("eth1");
        second.config["prevResult"]["ips"] = json!([{"address": "10.23.0.2/24", "interface": 0}]);
        second.ok();
        first.clone().verb("CHECK").ok();
        second.clone().verb("CHECK").ok();
        second.clone().verb("DEL").ok();
        first.clone().verb("CHECK").ok();
        first.verb("DEL").ok();
        stage.assert_gone();
    }
}

/// Rules of the reference plugin name neither an interface nor a namespace, so their owner counts as alive.
#[test]
fn a_port_of_the_references_is_not_taken() {
    let Some(reference) = Reference::any() else {
        skip!(REFERENCE);
    };
    for stage in Stage::each() {
        let theirs = stage.plain("ADD").by(&reference);
        theirs.ok();
        for backend in ["iptables", "nftables"] {
            let other = stage.plain("ADD").container("c2").key("backend", json!(backend));
            let error = other.run().error();
            assert_eq!(error.code, 11, "{error:?}");
            assert_eq!(
                error.msg,
                "host port tcp/0.0.0.0:8080 is taken by network testnet, container c1 (chain \
                 CNI-DN-328e3d85e6c0f709cddd7 of iptables)"
            );
            // The command in the message frees the port.
            let command = error.details.split('`').nth(1).expect("a command").to_owned();
            assert!(command.ends_with(" -t nat -F CNI-DN-328e3d85e6c0f709cddd7"), "{command}");
            command.split(" && ").for_each(|one| drop(stage.node.cmd(one)));
            other.ok();
            other.verb("DEL").ok();
            theirs.clone().verb("DEL").by(&reference).ok();
            theirs.ok();
        }
    }
}

#[test]
fn check_node_prints_the_variant() {
    for stage in Stage::each() {
        let variant = stage.variant;
        let path = format!("/run/tools:{}", std::env::var("PATH").unwrap_or_default());
        let line = || {
            let mut command = std::process::Command::new(slipway_tests::slipway());
            command.args(["check-node"]).env("PATH", &path);
            let printed = stage.node.exec(command, b"").stdout;
            let found = printed.lines().find(|line| line.contains("backend iptables")).map(str::to_owned);
            found.unwrap_or_else(|| panic!("{printed}"))
        };
        assert!(line().ends_with(&format!("  iptables-{variant}")), "{}", line());
        stage.plain("ADD").ok();
        assert!(
            line().ends_with(&format!("iptables-{variant}, which has chains of containers")),
            "{}",
            line()
        );
        // The variant is determined by the node's chains, and not by the default variant, which has changed meanwhile.
        let other = if variant == "nft" { "legacy" } else { "nft" };
        stage.node.cmd(&format!("ln -sf /usr/sbin/iptables-{other} /run/tools/iptables"));
        assert!(line().starts_with("ok ") && line().contains(&format!("iptables-{variant}")), "{}", line());
        stage.plain("DEL").ok();
        stage.assert_gone();
    }
}

/// A large legacy table is read once for each change of it, and later rules are found nevertheless.
#[test]
fn a_large_legacy_table_is_not_read_for_every_container() {
    let stage = Stage::new("legacy");
    let mut rules = String::from("*nat\n:KUBE-SEP - [0:0]\n");
    for rule in 0..3000 {
        rules.push_str(&format!("-A KUBE-SEP -s 10.{}.{}.1 -j RETURN\n", rule / 250, rule % 250));
    }
    stage.node.cmd_input("iptables-legacy-restore --noflush", &(rules + "COMMIT\n"));
    let nftables = stage.plain("ADD").key("backend", json!("nftables"));
    let reads = |verb: &str| {
        let plugin = stage.node.plugin("portmap").command(verb).container("c1").netns(stage.pod.path());
        let trace = ["strace", "-f", "-qq", "-e", "trace=getsockopt", "-o", "/run/trace"];
        plugin.ifname("eth0").config(&nftables.config).through(&trace).run().ok();
        let trace = stage.node.read("/run/trace").expect("a trace");
        // strace prints IPT_SO_GET_ENTRIES as a name or as a number.
        trace.lines().filter(|line| line.contains("GET_ENTRIES") || line.contains("0x41")).count()
    };
    assert_eq!(reads("ADD"), 1);
    assert_eq!((reads("DEL"), reads("ADD"), reads("DEL"), reads("DEL")), (0, 0, 0, 0));
    // A change by another program causes one read, in which the container's rules are found as well.
    stage.node.cmd("iptables-legacy -t nat -A KUBE-SEP -s 10.99.0.1 -j RETURN");
    assert_eq!((reads("ADD"), reads("DEL")), (1, 0));
    stage.plain("ADD").ok();
    nftables.clone().verb("CHECK").ok();
    nftables.verb("DEL").ok();
    stage.assert_gone();
}
