// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipwayd pod`: set-up, teardown, status, list and garbage collection.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use slipway_tests::{Proto, REFERENCE, Reference, is_peer, slipway, slipway_only, slipwayd};

use crate::stage::{CONF, SlowPlugin, Stage, list, pods_list, tiny_list};

const UP: &str = "pod up test/web --sandbox s1 --uid u1 --create-netns --port 8080:80 --network pods --network storage=net1";

fn two_networks(stage: &Stage) {
    stage.warm_up();
    let client = stage.node.host("client");
    let before = stage.state(&[]);
    let printed: Value = serde_json::from_str(&stage.ok(&format!("{UP} --output json"))).expect("JSON");
    let netns = "/run/netns/slipwayd-s1";
    let pod = json!({"namespace": "test", "name": "web", "uid": "u1", "sandbox": "s1", "netns": netns});
    assert_eq!((&printed["schema"], &printed["pod"]), (&json!(1), &pod));
    let attachments = printed["attachments"].as_array().expect("a list");
    let names: Vec<_> = attachments.iter().map(|one| (&one["network"], &one["interface"])).collect();
    assert_eq!(names, [(&json!("pods"), &json!("eth0")), (&json!("storage"), &json!("net1"))]);
    let space = stage.node.namespace("web", netns.as_ref());
    assert!(space.has_link("eth0") && space.has_link("net1"));
    assert!(space.link("lo")["flags"].to_string().contains("\"UP\""));

    let server = space.serve(Proto::Tcp, "0.0.0.0:80", "web");
    client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
    drop(server);
    let status: Value =
        serde_json::from_str(&stage.ok("pod status test/web --sandbox s1 --output json")).expect("JSON");
    assert_eq!(status["attachments"], printed["attachments"]);
    let listed: Value = serde_json::from_str(&stage.ok("pod list --output json")).expect("JSON");
    let of_list: Vec<_> =
        listed["attachments"].as_array().expect("a list").iter().map(|one| &one["pod"]).collect();
    assert_eq!(of_list, ["test/web", "test/web"]);
    let table = stage.ok("pod list");
    let row: Vec<_> = table.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(row[..4], ["test/web", "s1", "pods", "eth0"], "{table}");
    let again = stage.fails(&UP.replace("--create-netns", &format!("--netns {netns}")));
    assert!(again.contains("sandbox s1 is attached to network \"pods\" as eth0 already"), "{again}");
    assert!(space.has_link("eth0"));

    drop(space);
    stage.ok("pod down test/web --sandbox s1");
    before.assert_same(&stage.state(&[]));
    stage.ok("pod down test/web --sandbox s1");
    before.assert_same(&stage.state(&[]));
}

#[test]
fn a_pod_gets_two_networks_and_ports_and_leaves_nothing() {
    if !is_peer() {
        two_networks(&Stage::new());
    }
}

#[test]
fn a_pod_gets_two_networks_and_ports_of_the_reference() {
    slipway_tests::needs!(Reference::any().is_some(), REFERENCE);
    let Some(reference) = Reference::any().filter(|_| !is_peer()) else { return };
    let stage = Stage::of(reference.dir());
    // CHECK of the reference's portmap also looks for IPv6 rules, and would fail.
    let mut unchecked = pods_list("pods");
    unchecked["disableCheck"] = true.into();
    stage.write("10-pods.conflist", &unchecked);
    two_networks(&stage);
}

#[test]
fn the_namespace_stays_while_a_network_is_attached() {
    slipway_only!();
    let stage = Stage::new();
    stage.warm_up();
    let before = stage.state(&[]);
    stage.ok("pod up test/web --sandbox s1 --create-netns --network pods --network storage=net1");
    stage.ok("pod down test/web --sandbox s1 --network storage=net1");
    let status = stage.ok("pod status test/web --sandbox s1");
    assert!(status.contains("pods") && !status.contains("storage"), "{status}");
    stage.ok("pod down test/web --sandbox s1 --network pods");
    before.assert_same(&stage.state(&[]));
}

#[test]
fn a_failed_set_up_is_undone() {
    slipway_only!();
    let stage = Stage::new();
    stage.write("30-tiny.conflist", &tiny_list());
    stage.warm_up();
    stage.ok("pod up test/other --sandbox other --create-netns --network tiny");
    let pod = stage.node.pod("web");
    let before = stage.state(&[&pod]);
    let error = stage.fails(
        "pod up test/web --sandbox s1 --netns /run/netns/web --network pods --port 8080:80 --network storage \
         --network tiny",
    );
    assert!(
        error.starts_with("slipwayd pod up: error adding pod test_web to CNI network \"tiny\": "),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "the undo failed: {error}");
    before.assert_same(&stage.state(&[&pod]));
    // The namespace that the failed set-up created is gone as well.
    stage.fails("pod up test/web --sandbox s2 --create-netns --network pods --network tiny");
    before.assert_same(&stage.state(&[&pod]));
}

#[test]
fn a_set_up_that_gets_a_signal_is_undone() {
    slipway_only!();
    let stage = Stage::new();
    stage.warm_up();
    SlowPlugin::write(&stage);
    stage.write("30-slow.conflist", &list("slow", &json!([{"type": "slow"}])));
    let before = stage.state(&[]);
    let words = "pod up test/web --sandbox s1 --create-netns --network pods --network slow";
    let output = SlowPlugin::signal_during_add(&stage, words, "TERM");
    assert_eq!(output.code, Some(1), "{output}");
    assert!(
        output.stderr.contains("to CNI network \"slow\"") && output.stderr.contains("cancelled"),
        "{output}"
    );
    before.assert_same(&stage.state(&[]));
}

#[test]
fn teardown_needs_neither_configuration_nor_namespace() {
    slipway_only!();
    let stage = Stage::new();
    stage.warm_up();
    let before = stage.state(&[]);
    let pod = stage.node.pod("web");
    stage.ok(
        "pod up test/web --sandbox s1 --netns /run/netns/web --port 8080:80 --network pods --network storage",
    );
    pod.remove();
    stage.node.cmd(&format!("rm -r {CONF}"));
    stage.ok("pod down test/web --sandbox s1");
    stage.ok("pod down test/web --sandbox s1");
    stage.ok("pod down test/web --sandbox s1 --network pods --network gone");
    let after = stage.state(&[]);
    // The test itself has deleted the configuration.
    let changes: Vec<_> = before.changes(&after).into_iter().filter(|line| !line.contains(CONF)).collect();
    assert!(changes.is_empty(), "{}", changes.join("\n"));
}

#[test]
fn a_network_alone_is_removed_by_its_name() {
    slipway_only!();
    let stage = Stage::new();
    let pod = stage.node.pod("web");
    stage.ok("pod up test/web --sandbox s1 --netns /run/netns/web --network pods --network storage=net1");
    stage.ok("pod down test/web --sandbox s1 --network storage=net1");
    assert!(pod.has_link("eth0") && !pod.has_link("net1"));
    // The configuration changes in between, so the teardown uses the cached one.
    stage.write("10-pods.conflist", &list("pods", &json!([{"type": "missing"}])));
    stage.ok("pod down test/web --sandbox s1 --network pods");
    assert!(!pod.has_link("eth0"));
}

/// The name of the network identifies it, whatever the interface is called.
#[test]
fn a_network_with_an_interface_of_another_name_is_removed_by_its_name() {
    slipway_only!();
    let stage = Stage::new();
    let pod = stage.node.pod("web");
    let up = "pod up test/web --sandbox s1 --netns /run/netns/web";
    for storage in ["storage=net1", "storage"] {
        stage.ok(&format!("{up} --network pods --network {storage}"));
        let output = stage.run("pod down test/web --sandbox s1 --network storage");
        assert!(output.code == Some(0) && output.stderr.is_empty(), "{output}");
        assert!(pod.has_link("eth0") && !pod.has_link("net1") && !pod.has_link("eth1"));
        // The command reports what is not attached, and leaves the other network alone.
        for (network, wanted) in [
            (
                "storage",
                "sandbox s1 is not attached to network \"storage\" as eth0, as far as the cache knows",
            ),
            (
                "pods=net7",
                "sandbox s1 is not attached to network \"pods\" as net7, as far as the cache knows",
            ),
            ("gone", "pod test_web: nothing to tear down: failed to find requested network name gone"),
        ] {
            for netns in ["", "--netns /run/netns/web"] {
                let output =
                    stage.run(&format!("pod down test/web --sandbox s1 --network {network} {netns}"));
                assert!(output.code == Some(0) && output.stderr.contains(wanted), "{network}: {output}");
                assert!(pod.has_link("eth0"), "{network}");
            }
        }
        stage.ok("pod down test/web --sandbox s1 --network pods");
        assert!(!pod.has_link("eth0"));
    }
    // The same applies to a status, which then covers all attachments to a network.
    stage.ok(&format!("{up} --network storage=net1 --network storage=net2"));
    let status = stage.ok("pod status test/web --sandbox s1 --network storage");
    assert!(status.contains("net1") && status.contains("net2"), "{status}");
    stage.ok("pod down test/web --sandbox s1 --network storage=net2 --network storage");
    assert!(!pod.has_link("net1") && !pod.has_link("net2"));
}

#[test]
fn a_sandbox_that_is_not_attached_is_named() {
    slipway_only!();
    let stage = Stage::new();
    let before = stage.state(&[]);
    let error = stage.fails("pod status test/web --sandbox nope");
    let wanted =
        "slipwayd pod status: sandbox nope is not attached to network \"pods\", as far as the cache knows\n";
    assert_eq!(error, wanted);
    assert!(stage.node.list("/var/lib/cni/locks").iter().all(|name| !name.contains("nope")));
    before.assert_same(&stage.state(&[]));
    // Given a namespace, the command can look for the pod.
    let _pod = stage.node.pod("web");
    let error = stage.fails("pod status test/web --sandbox nope --netns /run/netns/web");
    assert!(error.contains("the loopback in /run/netns/web is down"), "{error}");
}

#[test]
fn a_file_that_is_skipped_is_named_once() {
    slipway_only!();
    let stage = Stage::new();
    stage.node.write(&format!("{CONF}/05-bad.conf"), "{");
    let output = stage.run("networks");
    for text in [&output.stdout, &output.stderr] {
        assert_eq!(text.matches("05-bad.conf").count(), 1, "{output}");
    }
    let output = stage.run("pod status");
    assert_eq!(output.stdout, "NETWORK  STATE\npods     ready\n");
    assert_eq!(output.stderr.lines().count(), 1, "{output}");
}

/// The burst that passes at once is proportional to the rate, in bytes as tc counts them.
#[test]
fn a_burst_goes_with_its_rate_unless_it_is_given() {
    slipway_only!();
    let stage = Stage::new();
    let mut limited = pods_list("limited");
    let bandwidth = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    limited["plugins"].as_array_mut().expect("plugins").push(bandwidth);
    stage.write("30-limited.conflist", &limited);
    let up = "pod up test/web --sandbox s1 --create-netns --network limited";
    for (options, rate, burst) in [
        ("--bandwidth 10M:0", "10Mbit", 156_250),
        ("--bandwidth 10M:0 --burst 800k", "10Mbit", 100_000),
        // Rates from kubelet's annotations have kubelet's burst.
        ("--annotation kubernetes.io/ingress-bandwidth=10M", "10Mbit", 268_435_455),
    ] {
        stage.ok(&format!("{up} {options}"));
        let text = stage.node.cmd("tc -j qdisc show");
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let limits = all.as_array().expect("a list").iter().find(|one| one["kind"] == "tbf");
        let options_of = &limits.expect("a limit")["options"];
        let text = stage.node.cmd("tc qdisc show");
        assert!(text.contains(&format!("rate {rate}")), "{options}: {text}");
        // tc stores the time that the burst takes, in units of 64 ns.
        let shown = options_of["burst"].as_u64().expect("a burst");
        assert!(shown.abs_diff(burst) <= burst / 1000 + 1, "{options}: {shown} instead of {burst}");
        stage.ok("pod down test/web --sandbox s1");
    }
}

#[test]
fn errors_are_those_of_the_reference() {
    slipway_only!();
    let stage = Stage::new();
    let up = "pod up test/web --sandbox s1 --create-netns";
    for (words, want) in [
        ("--network x", "failed to find requested network name x"),
        (
            "--network pods=eth0 --network storage=eth0",
            "network \"storage\" requested interface name \"eth0\" already assigned",
        ),
        (
            "--default-network x",
            "no CNI configuration file in /var/lib/net.d. Has your network provider started?",
        ),
        (
            "--annotation kubernetes.io/ingress-bandwidth=1",
            "annotation kubernetes.io/ingress-bandwidth: resource is unreasonably small (< 1kbit)",
        ),
    ] {
        assert_eq!(stage.fails(&format!("{up} {words}")).trim_end(), format!("slipwayd pod up: {want}"));
    }
    assert!(stage.node.list("/run/netns").is_empty());
    stage.ok("pod status");
    stage.node.cmd(&format!("rm -r {CONF}"));
    assert!(stage.fails("pod status").contains("Has your network provider started?"));
    assert_eq!(stage.run("pod up").code, Some(2));
}

#[test]
fn status_reads_addresses_from_the_namespace_without_a_cached_result() {
    slipway_only!();
    let stage = Stage::new();
    let mut old = pods_list("pods");
    old["cniVersion"] = "0.3.1".into();
    stage.write("10-pods.conflist", &old);
    let pod = stage.node.pod("web");
    let up = stage.ok("pod up test/web --sandbox s1 --netns /run/netns/web");
    stage.node.cmd("rm /var/lib/cni/results/pods-s1-eth0");
    let status = stage.ok("pod status test/web --sandbox s1 --netns /run/netns/web");
    assert_eq!(status, up);
    assert!(status.contains(&pod.mac("eth0")), "{status}");
    pod.cmd("ip link set lo down");
    let error = stage.fails("pod status test/web --sandbox s1 --netns /run/netns/web");
    assert!(error.contains("the loopback in /run/netns/web is down"), "{error}");
}

#[test]
fn gc_keeps_valid_sandboxes_and_removes_the_others() {
    slipway_only!();
    let stage = Stage::new();
    stage.warm_up();
    stage.ok("pod up test/kept --sandbox kept --create-netns --port 8081:80 --network pods");
    let before = stage.state(&[]);
    stage.ok("pod up test/web --sandbox s1 --create-netns --port 8080:80 --network pods --network storage");
    stage.remove("20-storage.conflist");
    stage.ok("pod gc --keep kept");
    let changes = before.changes(&stage.state(&[]));
    let changes: Vec<_> = changes.iter().filter(|line| !line.contains("20-storage.conflist")).collect();
    assert!(changes.is_empty(), "{changes:#?}");
    stage.ok("pod status test/kept --sandbox kept");
    // A network that disables GC keeps its pods and their namespaces.
    let mut pods = pods_list("pods");
    pods["disableGC"] = true.into();
    stage.write("10-pods.conflist", &pods);
    stage.ok("pod gc --all");
    stage.ok("pod status test/kept --sandbox kept");
    stage.write("10-pods.conflist", &pods_list("pods"));
    stage.ok("pod gc --all");
    assert!(stage.node.list("/run/netns").is_empty() && stage.node.list("/var/lib/cni/results").is_empty());
}

/// `head` closes the pipe once it has read enough, so standard output has no reader any more.
#[test]
fn a_reader_that_goes_ends_a_command_without_a_message() {
    slipway_only!();
    let stage = Stage::new();
    stage.ok("pod up test/web --sandbox s1 --create-netns --network pods --port 8080:80");
    let conf = format!("--cni-conf-dir {CONF} --cni-bin-dir {}", stage.bin.display());
    let own =
        ["ports", "ports --output json", "check-node", "plugins", "version", "--help", "completions bash"];
    let cnitool = "cnitool validate pods --output json".to_owned();
    let of_pod = ["pod list", "pod list --output json", "version", "completions zsh", "--help", "top --once"];
    let with_conf =
        ["networks", "pod status", "pod status test/web --sandbox s1"].map(|words| format!("{words} {conf}"));
    let calls = own.map(|words| (slipway(), words.to_owned())).into_iter();
    let calls = calls.chain(of_pod.map(|words| (slipwayd(), words.to_owned())));
    let calls = calls.chain(with_conf.map(|words| (slipwayd(), words))).chain([(slipway(), cnitool)]);
    for (program, words) in calls {
        let call = |stdout: Stdio| {
            stage.node.run(|| {
                let mut command = Command::new(&program);
                command
                    .args(words.split_whitespace())
                    .env("CNI_PATH", &stage.bin)
                    .env("NETCONFPATH", CONF)
                    .stdout(stdout);
                command.stderr(Stdio::piped()).output().expect("the program runs")
            })
        };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = call(writer.into());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.as_str()), (Some(1), ""), "{words}");
        // As the control, an error with another cause is reported.
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let output = call(full.into());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && text.contains("No space left on device"),
            "{words}: {text}"
        );
    }
    stage.ok("pod down test/web --sandbox s1");
}
