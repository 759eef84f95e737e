//! Programs of another version take over.

use serde_json::json;
use slipway_tests::{BridgeNetfilter, PROGRAMS, Proto, at, has_programs, needs, patience, skip};

use crate::{PORT, Stage, address, attach};

/// The number that the kernel has for the program at a link.
fn program_at(stage: &Stage, link: &str) -> String {
    let text = stage.filters(link);
    let words: Vec<&str> = text.split_whitespace().collect();
    let found = words.windows(2).find(|pair| pair[0] == "id").unwrap_or_else(|| panic!("no program: {text}"));
    found[1].to_owned()
}

/// What is pinned under another name is what another version has pinned: the binary does not find its own
/// programs, and loads them beside those.
#[test]
fn conversations_go_on() {
    needs!(has_programs(), PROGRAMS);
    let Some(stage) = Stage::with_cgroup(BridgeNetfilter::Off) else {
        skip!("control groups of version 2");
    };
    stage.node.cmd(&format!("ip route add default via {}", stage.client.v4));
    let pod = stage.node.pod("web");
    let result = stage.network().add(&attach(&pod)).expect("ADD");
    let ip = address(&result);
    let _servers = Proto::ALL.map(|proto| pod.serve(proto, &format!("{ip}:80"), "web"));
    let _far = Proto::ALL.map(|proto| stage.client.serve(proto, &format!("{}:7000", stage.client.v4), "far"));
    let to = at(stage.client.node_v4, PORT);
    let mut talks = Vec::new();
    for proto in Proto::ALL {
        talks.push(stage.client.dial(proto, None, to, patience()).expect("a conversation with the port"));
        talks.push(pod.dial(proto, None, at(stage.client.v4, 7000), patience()).expect("one of the pod"));
    }
    let mut own = stage.node.dial(Proto::Tcp, None, to, patience()).expect("a connection of the node");
    let first: Vec<_> = talks.iter_mut().map(|talk| talk.say().expect("an answer").peer).collect();
    own.say().expect("an answer");
    let folder = format!("/sys/fs/bpf/slipway/{}", slipway_ebpf_abi::VERSION);
    let programs = |stage: &Stage| -> Vec<String> {
        stage.node.list(&folder).into_iter().filter(|name| name.starts_with("programs-")).collect()
    };
    let pod_link = result["interfaces"][1]["name"].as_str().expect("the node's end").to_owned();
    let links = [stage.client.node_link.clone(), pod_link];
    let before = (programs(&stage), links.each_ref().map(|link| program_at(&stage, link)));
    stage.node.cmd(&format!("mv {folder}/{} {folder}/programs-earlier", before.0[0]));
    assert_eq!(stage.node.programs()["current"], false);
    let (carried, led) = (stage.carried(), stage.node.counted("Sockets"));
    stage.node.slipway("node setup");
    let after = (programs(&stage), links.each_ref().map(|link| program_at(&stage, link)));
    // Under the name of this version again, and others than before at each link.
    assert_eq!(before.0, after.0);
    assert!(before.1.iter().zip(&after.1).all(|(old, new)| old != new), "{before:?} {after:?}");
    let status = stage.node.programs();
    assert_eq!((&status["current"], &status["sockets"]), (&json!(true), &json!("/sys/fs/cgroup")));
    // From the same ends as before, and through the programs.
    let again: Vec<_> = talks.iter_mut().map(|talk| talk.say().expect("an answer").peer).collect();
    assert_eq!(first, again);
    own.say().expect("an answer");
    assert!(stage.carried() >= carried + 4, "{status}");
    stage.node.expect(Proto::Tcp, to, "web");
    assert_eq!(stage.node.counted("Sockets"), led + 1);
    // All of it is new flows' way, too.
    stage.client.expect(Proto::Tcp, to, "web");
}
