// SPDX-License-Identifier: GPL-2.0-or-later

//! Map entries without an nftables element that names their owner, of a container that is gone, or that
//! belong to another container now.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{Attach, PROGRAMS, Proto, at, has_programs, needs, patience, slipway, within};

use crate::{PORT, Stage, address, attach, list};

fn counts(stage: &Stage) -> (Value, Value) {
    let status = stage.node.programs();
    (status["containers"].clone(), status["ports"].clone())
}

const NOTHING: fn() -> (Value, Value) = || (json!(0), json!(0));

#[test]
fn del_after_a_flush_deletes_map_entries() {
    needs!(has_programs(), PROGRAMS);
    for is_gone in [false, true] {
        let stage = Stage::new();
        let network = stage.network();
        let (pod, other) = (stage.node.pod("web"), stage.node.pod("other"));
        let attach = attach(&pod);
        network.add(&attach).expect("ADD");
        network.add(&Attach::new(&other).port(Proto::Tcp, PORT + 1, 80)).expect("ADD");
        stage.node.nft("flush ruleset");
        if is_gone {
            pod.remove();
        }
        network.del(&attach).expect("DEL");
        assert_eq!(counts(&stage), (json!(1), json!(2)), "is gone: {is_gone}");
        let _server = stage.node.serve(Proto::Tcp, &format!("0.0.0.0:{PORT}"), "node");
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "node");
    }
}

#[test]
fn gc_and_setup_after_a_flush_delete_map_entries() {
    needs!(has_programs(), PROGRAMS);
    for by_setup in [false, true] {
        let stage = Stage::new();
        let network = stage.network();
        let pod = stage.node.pod("web");
        let result = network.add(&attach(&pod)).expect("ADD");
        stage.node.nft("flush ruleset");
        pod.remove();
        // The kernel deletes a namespace's links asynchronously.
        let link = result["interfaces"][1]["name"].as_str().expect("the node's end");
        let begun = Instant::now();
        while stage.node.has_link(link) {
            assert!(begun.elapsed() < patience(), "{link} is still there");
            thread::sleep(Duration::from_millis(5));
        }
        if by_setup {
            stage.node.slipway("node setup");
        } else {
            network.gc(&[]).expect("GC");
        }
        assert_eq!(counts(&stage), NOTHING(), "by set-up: {by_setup}");
    }
}

/// Two concurrent DELs of one attachment. The slower one has read the elements before they are gone, and
/// deletes map entries after another container got the port.
#[test]
fn a_slow_del_deletes_nothing_of_the_next_container() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let network = stage.network();
    let (pod, next) = (stage.node.pod("web"), stage.node.pod("next"));
    let first = attach(&pod);
    let result = network.add(&first).expect("ADD");
    let mut config = network.configs(Some(&first)).pop().expect("portmap");
    config["prevResult"] = result;
    let delay = "inject=bpf:delay_enter=6000000:when=1";
    let slowly = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=bpf", "-e", delay];
    thread::scope(|scope| {
        let slow = scope.spawn(|| network.prepare("DEL", &config, Some(&first)).through(&slowly).run().ok());
        thread::sleep(Duration::from_secs(2));
        network.call("DEL", &config, Some(&first)).ok();
        let result = network.add(&attach(&next)).expect("ADD");
        slow.join().expect("DEL");
        assert_eq!(stage.node.programs()["ports"], 4);
        let _server = next.serve(Proto::Tcp, &format!("{}:80", address(&result)), "next");
        let before = stage.carried();
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "next");
        assert!(stage.carried() > before, "{}", stage.node.programs());
    });
}

/// From another mount namespace the pinned maps are not found. Calls from there must not replace the attached
/// programs.
#[test]
fn another_mount_namespace_leaves_the_programs_alone() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let network = stage.network();
    let (pod, next) = (stage.node.pod("web"), stage.node.pod("next"));
    network.add(&attach(&pod)).expect("ADD");
    let _far = stage.client.serve(Proto::Tcp, &at(stage.client.v4, 7000).to_string(), "far");
    let reach = |masqueraded: u64| {
        assert_eq!(pod.expect(Proto::Tcp, (stage.client.v4, 7000), "far").peer.ip(), stage.client.node_v4);
        assert_eq!(stage.node.counted("masqueraded_flows"), masqueraded, "{}", stage.node.programs());
    };
    reach(1);
    let filter = stage.filters(&stage.client.node_link);
    stage.node.write("/run/without-bpffs", "umount /sys/fs/bpf && exec \"$@\"\n");
    let slipway = slipway();
    let run_there = |task: &str| {
        stage
            .node
            .try_cmd(&format!("unshare --mount sh /run/without-bpffs {} node {task}", slipway.display()))
    };
    let setup = run_there("setup");
    assert!(setup.code == Some(1) && setup.stderr.contains("another mount namespace"), "{setup}");
    let status = run_there("status");
    assert!(status.stdout.contains("another mount namespace"), "{status}");
    let elsewhere = ["unshare", "--mount", "sh", "/run/without-bpffs"];
    let attach = Attach::new(&next).port(Proto::Tcp, PORT + 1, 80);
    let mut result = Value::Null;
    for mut config in network.configs(Some(&attach)) {
        if !result.is_null() {
            config["prevResult"] = result;
        }
        result = network.prepare("ADD", &config, Some(&attach)).through(&elsewhere).run().ok();
    }
    let _server = next.serve(Proto::Tcp, &format!("{}:80", address(&result)), "next");
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT + 1), "next");
    assert_eq!(stage.filters(&stage.client.node_link), filter);
    reach(2);
}

/// True if the kernel returns the cookie of a process's network namespace (`SO_NETNS_COOKIE`): since Linux
/// 5.14.
fn has_netns_cookies(stage: &Stage) -> bool {
    let release = stage.node.cmd("uname -r");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next()) >= (5, 14)
}

/// The interfaces that the maps name do not exist in another network namespace, and its links may have the
/// same indexes and addresses. Calls from there must neither take the maps over nor change them.
#[test]
fn another_network_namespace_leaves_the_programs_alone() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage
        .node
        .write("/etc/cni/slipway.json", json!({"ebpfFlows": "programs", "backend": "ebpf"}).to_string());
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let network = stage.network();
    let pod = stage.node.pod("web");
    let result = network.add(&attach(&pod)).expect("ADD");
    let link = result["interfaces"][1]["name"].as_str().expect("the node's end");
    let number = |link: &str| {
        let text = stage.node.cmd(&format!("ip -o link show dev {link}"));
        text.split(':').next().expect("a number").trim().to_owned()
    };
    let _web = Proto::ALL.map(|proto| pod.serve(proto, &format!("{}:80", address(&result)), "web"));
    let _far = stage.client.serve(Proto::Tcp, &at(stage.client.v4, 7000).to_string(), "far");
    let mut masqueraded = 0;
    let mut serves = |after: &str| {
        let carried = stage.carried();
        for proto in Proto::ALL {
            stage.client.expect(proto, (stage.client.node_v4, PORT), "web");
        }
        assert!(stage.carried() > carried, "{after}: {}", stage.node.programs());
        assert_eq!(pod.expect(Proto::Tcp, (stage.client.v4, 7000), "far").peer.ip(), stage.client.node_v4);
        masqueraded += 1;
        assert_eq!(
            stage.node.counted("masqueraded_flows"),
            masqueraded,
            "{after}: {}",
            stage.node.programs()
        );
    };
    serves("ADD");
    let filters = || [&stage.client.node_link, link].map(|link| stage.filters(link));
    let before = (filters(), stage.node.programs()["uplinks"].clone(), counts(&stage));
    let mut left_alone = |after: &str| {
        assert_eq!((filters(), stage.node.programs()["uplinks"].clone(), counts(&stage)), before, "{after}");
        serves(after);
    };

    // The other namespace has an uplink with the index of the node's, and a link with the index of the
    // container's.
    let elsewhere = stage.node.pod("elsewhere");
    for (name, twin) in [("up0", stage.client.node_link.as_str()), ("other0", link)] {
        let (number, peer) = (number(twin), format!("{name}-peer"));
        elsewhere
            .cmd(&format!("ip link add {name} index {number} type veth peer name {peer} index 1{number}"));
        elsewhere.cmd(&format!("ip link set {name} up"));
        elsewhere.cmd(&format!("ip link set {peer} up"));
    }
    elsewhere.cmd("ip address add 203.0.113.9/24 dev up0");
    elsewhere.cmd("ip route add default via 203.0.113.1");
    let program = slipway();
    let there = |args: &str| elsewhere.try_cmd(&format!("{} {args}", program.display()));
    if !has_netns_cookies(&stage) {
        let output = there("node status");
        assert_eq!(output.code, Some(0), "{output}: the maps are taken for this namespace's");
        return;
    }
    for task in ["setup", "teardown", "status"] {
        let output = there(&format!("node {task}"));
        assert!(output.code == Some(1) && output.stderr.contains("another network namespace"), "{output}");
        assert!(output.stderr.contains("rm -r /sys/fs/bpf/slipway"), "{output}");
        left_alone(&format!("node {task}"));
    }
    let report = there("check-node").stdout;
    let line = report.lines().find(|line| line.contains("another network namespace")).unwrap_or_default();
    assert!(line.starts_with("warning"), "{report}");

    // A container there publishes the same port at the same address.
    let twin = stage.node.pod("twin");
    let published = attach(&twin);
    let into = format!("--net={}", elsewhere.path().display());
    let run_there = |backend: &str, verb: &str| {
        let network = stage.node.network(list(backend));
        let mut config = network.configs(Some(&published)).pop().expect("portmap");
        config["prevResult"] = result.clone();
        let call = network.prepare(verb, &config, Some(&published)).env("SLIPWAY_LOG", "warn");
        let output = call.through(&["nsenter", &into]).run();
        output.ok();
        output.process.stderr
    };
    let stderr = run_there("ebpf", "ADD");
    assert!(stderr.contains("left to nftables") && stderr.contains("another network namespace"), "{stderr}");
    left_alone("ADD there");
    run_there("ebpf", "CHECK");
    let ports = there("ports --json").stdout;
    assert!(ports.contains("nftables") && !ports.contains("ebpf"), "{ports}");
    run_there("ebpf", "DEL");
    left_alone("DEL there");
    run_there("nftables", "ADD");
    left_alone("ADD with another backend there");
    let mut config = network.configs(None).pop().expect("portmap");
    config["cni.dev/valid-attachments"] = json!([]);
    network.prepare("GC", &config, None).through(&["nsenter", &into]).run().ok();
    left_alone("GC there");
    network.check(&attach(&pod)).expect("CHECK");

    // An uninstall from there leaves the programs attached.
    let output = there("uninstall --dry-run --to /run/no-plugins");
    assert!(output.code == Some(0) && output.stdout.contains("another network namespace"), "{output}");

    // The error's advice works, also after the namespace is gone.
    stage.node.cmd("rm -r /sys/fs/bpf/slipway");
    let output = there("node setup");
    assert_eq!(output.code, Some(0), "{output}");
}

/// A container added while the programs are removed must not keep a program whose maps no process updates.
#[test]
fn a_container_added_during_a_teardown_is_served() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let network = stage.network();
    let (pod, next) = (stage.node.pod("web"), stage.node.pod("next"));
    network.add(&attach(&pod)).expect("ADD");
    let _far = stage.client.serve(Proto::Tcp, &at(stage.client.v4, 7000).to_string(), "far");
    // Teardown waits for packets in transit (membarrier) before it exports the flows.
    let delay = within(Duration::from_secs(4)).as_micros();
    let inject = format!("inject=membarrier:delay_enter={delay}:when=1");
    let slipway = slipway();
    let line = format!("strace -f -qq -o /dev/null -e trace=membarrier -e {inject} {}", slipway.display());
    let result = thread::scope(|scope| {
        let teardown = scope.spawn(|| stage.node.cmd(&format!("{line} node teardown")));
        thread::sleep(within(Duration::from_secs(2)));
        let result = network.add(&Attach::new(&next).port(Proto::Tcp, PORT + 1, 80)).expect("ADD");
        assert_eq!(stage.node.programs()["containers"], 2);
        teardown.join().expect("teardown");
        result
    });
    assert_eq!(stage.node.programs()["loaded"], false);
    let link = result["interfaces"][1]["name"].as_str().expect("the node's end");
    for link in [link, &stage.client.node_link] {
        assert_eq!(stage.filters(link), "", "{link}");
    }
    assert_eq!(next.expect(Proto::Tcp, (stage.client.v4, 7000), "far").peer.ip(), stage.client.node_v4);
    let _next = next.serve(Proto::Tcp, &format!("{}:80", address(&result)), "next");
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT + 1), "next");
}

/// Teardown deletes the maps one after the other.
#[test]
fn the_status_during_a_teardown_is_no_error() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let network = stage.network();
    let pod = stage.node.pod("web");
    network.add(&attach(&pod)).expect("ADD");
    let folder = format!("/sys/fs/bpf/slipway/{}", slipway_ebpf_abi::VERSION);
    let maps = stage.node.list(&folder).len();
    let delay = within(Duration::from_millis(100)).as_micros();
    let inject = format!("inject=unlinkat:delay_enter={delay}");
    let slipway = slipway();
    let line = format!("strace -f -qq -o /dev/null -e trace=unlinkat -e {inject} {}", slipway.display());
    thread::scope(|scope| {
        let teardown = scope.spawn(|| stage.node.cmd(&format!("{line} node teardown")));
        let begun = Instant::now();
        let left = || stage.node.list(&folder).len();
        while !(1..maps).contains(&left()) {
            assert!(begun.elapsed() < within(Duration::from_secs(30)), "{maps} maps, {} left", left());
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(stage.node.programs()["loaded"], false);
        teardown.join().expect("teardown");
    });
}

/// Set-up reserves the ports of other backends. It must not reserve a port whose ADD has concurrently written
/// its map entry.
#[test]
fn a_slow_setup_reserves_no_port_of_a_concurrent_add() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new();
    let network = stage.network();
    let pod = stage.node.pod("web");
    let node = stage.client.node_v4.to_string();
    let attach = Attach::new(&pod).port_on(&node, Proto::Tcp, PORT, 80);
    let result = network.add(&attach).expect("ADD");
    let _server = pod.serve(Proto::Tcp, &format!("{}:80", address(&result)), "web");
    let mut config = network.configs(Some(&attach)).pop().expect("portmap");
    config["prevResult"] = result.clone();
    // The middle of an ADD: the elements exist, the map entries do not.
    let interrupted_add = || {
        network.call("DEL", &config, Some(&attach)).ok();
        let kill = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=bpf:signal=KILL:when=1"];
        let killed = network.prepare("ADD", &config, Some(&attach)).through(&kill).run();
        assert!(matches!(killed.process.code, None | Some(137)), "{}", killed.process);
        assert_eq!(stage.node.programs()["ports"], 0);
    };
    let slipway = slipway();
    let setup = |options: &str| {
        // If a program is attached, set-up iterates over all BPF programs of the machine, so the number of
        // bpf(2) calls varies.
        stage.node.cmd(&format!("tc qdisc del dev {} clsact", stage.client.node_link));
        stage.node.cmd(&format!("strace -f -qq -e trace=bpf {options} {} node setup", slipway.display()))
    };
    // The first set-up makes other changes, too.
    for _ in 0..2 {
        interrupted_add();
        setup("-o /run/setup.trace");
    }
    let trace = stage.node.read("/run/setup.trace").expect("a trace");
    let calls = || trace.lines().filter(|line| line.contains("bpf("));
    let mut map = String::new();
    let written = calls().position(|line| {
        if line.contains("/ports4\"") {
            line.rsplit("= ").next().expect("a descriptor").clone_into(&mut map);
        }
        line.contains("BPF_MAP_UPDATE_ELEM") && line.contains(&format!("map_fd={map},"))
    });
    let written = written.unwrap_or_else(|| panic!("the port was not reserved: {trace}"));
    interrupted_add();
    let delay = format!("-o /dev/null -e inject=bpf:delay_enter=4000000:when={}", written + 1);
    thread::scope(|scope| {
        let slow = scope.spawn(|| setup(&delay));
        thread::sleep(Duration::from_secs(2));
        network.call("ADD", &config, Some(&attach)).ok();
        assert_eq!(stage.node.programs()["ports"], 1);
        slow.join().expect("set-up");
    });
    assert_eq!(stage.node.programs()["ports"], 1);
    let before = stage.carried();
    stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "web");
    assert!(stage.carried() > before, "{}", stage.node.programs());
}
