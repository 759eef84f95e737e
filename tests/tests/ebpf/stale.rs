//! What the programs know without an element that says whose it is, or of somebody who is gone; and what they know of
//! somebody else by now.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{Attach, PROGRAMS, Proto, at, has_programs, needs, patience, slipway};

use crate::{PORT, Stage, address, attach};

fn known(stage: &Stage) -> (Value, Value) {
    let status = stage.node.programs();
    (status["containers"].clone(), status["ports"].clone())
}

const NOTHING: fn() -> (Value, Value) = || (json!(0), json!(0));

#[test]
fn a_container_is_forgotten_after_a_flush_too() {
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
        assert_eq!(known(&stage), (json!(1), json!(2)), "is gone: {is_gone}");
        let _server = stage.node.serve(Proto::Tcp, &format!("0.0.0.0:{PORT}"), "node");
        stage.client.expect(Proto::Tcp, (stage.client.node_v4, PORT), "node");
    }
}

#[test]
fn a_container_that_is_gone_is_garbage_after_a_flush_too() {
    needs!(has_programs(), PROGRAMS);
    for by_setup in [false, true] {
        let stage = Stage::new();
        let network = stage.network();
        let pod = stage.node.pod("web");
        let result = network.add(&attach(&pod)).expect("ADD");
        stage.node.nft("flush ruleset");
        pod.remove();
        // The kernel takes the links of a namespace away in its own time.
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
        assert_eq!(known(&stage), NOTHING(), "by set-up: {by_setup}");
    }
}

/// Two DELs of one attachment, the slower of which has read its elements when they were there, and forgets them in the
/// programs when they are another one's.
#[test]
fn a_slow_del_takes_nothing_from_whoever_came_after() {
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

/// From another mount namespace the maps cannot be found: it takes nothing over from those whom they serve.
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
        assert_eq!(stage.node.counted("Masqueraded"), masqueraded, "{}", stage.node.programs());
    };
    reach(1);
    let filter = stage.filters(&stage.client.node_link);
    stage.node.write("/run/elsewhere", "umount /sys/fs/bpf && exec \"$@\"\n");
    let slipway = slipway();
    let so = |task: &str| {
        stage.node.try_cmd(&format!("unshare --mount sh /run/elsewhere {} node {task}", slipway.display()))
    };
    let setup = so("setup");
    assert!(setup.code == Some(1) && setup.stderr.contains("another mount namespace"), "{setup}");
    let status = so("status");
    assert!(status.stdout.contains("another mount namespace"), "{status}");
    let elsewhere = ["unshare", "--mount", "sh", "/run/elsewhere"];
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
