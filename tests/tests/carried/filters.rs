// SPDX-License-Identifier: GPL-2.0-or-later

//! Filters of other programs that run before ours are reported, do not count as errors, and cause no loss.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use serde_json::{Value, json};
use slipway_ebpf_abi::Counter;
use slipway_ebpf_abi::maps::programs;
use slipway_tests::{Attach, PROGRAMS, Proto, has_programs, needs, patience};

use crate::{Engine, FAR, PORT, Stage, list};

const SUBJECT: &str = "tc filters before the BPF programs";

/// The finding about filters in the report of `slipway check-node`.
fn finding(stage: &Stage) -> Option<Value> {
    let output = stage.node.try_slipway("check-node --output json");
    let report: Value = serde_json::from_str(&output.stdout).expect("check-node prints JSON");
    assert_eq!(report["ok"], true, "{report:#}");
    report["findings"].as_array().expect("a list").iter().find(|one| one["subject"] == SUBJECT).cloned()
}

#[test]
fn filters_before_ours_are_named() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let pod = stage.node.pod("web");
    let attach = Attach::new(&pod).port(Proto::Tcp, PORT, 80);
    let network = stage.network();
    let result = network.add(&attach).expect("ADD");
    let (uplink, link) = (&stage.client.node_link, result["interfaces"][1]["name"].as_str().expect("a link"));
    assert_eq!((&stage.node.programs()["earlier_filters"], finding(&stage)), (&json!([]), None));
    for (place, preference) in [
        (format!("{uplink} ingress"), 7),
        // This filter runs after ours.
        (format!("{uplink} egress"), 60_000),
        (format!("{link} egress"), 1),
    ] {
        stage.node.cmd(&format!(
            "tc filter add dev {place} protocol all pref {preference} u32 match u32 0 0 flowid :1"
        ));
    }
    let mut expected = vec![
        json!({"interface": uplink, "hook": "ingress", "kind": "u32", "preference": 7}),
        json!({"interface": link, "hook": "egress", "kind": "u32", "preference": 1}),
    ];
    let by_name = |one: &Value| one["interface"].to_string();
    expected.sort_by_key(by_name);
    let found = || {
        let status = stage.node.programs();
        let mut found = status["earlier_filters"].as_array().expect("a list").clone();
        found.sort_by_key(by_name);
        found
    };
    assert_eq!(found(), expected);
    let report = finding(&stage).expect("a finding");
    assert_eq!(report["state"], "note");
    let text = report["found"].as_str().expect("a text");
    assert!(text.contains(&format!("{uplink} ingress: u32, preference 7")), "{text}");
    let text = stage.node.slipway("node status");
    assert!(text.contains(&format!("before      {link} egress: u32, preference 1")), "{text}");
    network.check(&attach).expect("CHECK");
    network.status().expect("STATUS");
    stage.node.cmd(&format!("tc filter del dev {uplink} ingress pref 7"));
    stage.node.cmd(&format!("tc filter del dev {link} egress pref 1"));
    assert_eq!((found(), finding(&stage)), (Vec::new(), None));
}

/// The bandwidth plugin's filter comes first on purpose, and packets that such a container sends are not carried.
#[test]
fn a_rate_limit_is_no_finding() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let pod = stage.node.pod("web");
    let attach = Attach::new(&pod).port(Proto::Tcp, PORT, 80);
    let mut chain = list::list("ebpf");
    let limit = json!({"type": "bandwidth", "egressRate": 1_000_000, "egressBurst": 1_000_000});
    chain["plugins"].as_array_mut().expect("plugins").push(limit);
    let result = stage.node.network(chain).add(&attach).expect("ADD");
    let filters = stage.node.programs()["earlier_filters"].clone();
    let link = &result["interfaces"][1]["name"];
    assert_eq!(filters, json!([{"interface": link, "hook": "ingress", "kind": "u32", "preference": 1}]));
    assert_eq!(finding(&stage), None);
}

#[test]
fn a_tcx_program_before_ours_is_named() {
    needs!(has_programs(), PROGRAMS);
    let stage = Stage::new(Engine::Carried);
    let (_pod, _) = stage.pod("web");
    let uplink = &stage.client.node_link;
    let path = stage.pin(programs::INGRESS);
    stage.node.run(|| {
        let mut program = SchedClassifier::from_pin(path).expect("open the program");
        let order = TcAttachOptions::TcxOrder(LinkOrder::default());
        if program.attach_with_options(uplink, TcAttachType::Ingress, order).is_err() {
            eprintln!("no tcx, which begins with Linux 6.6");
            return;
        }
        let status = stage.node.programs();
        let expected = json!([{"interface": uplink, "hook": "ingress", "kind": "tcx", "preference": null}]);
        assert_eq!(status["earlier_filters"], expected);
        assert!(finding(&stage).expect("a finding").to_string().contains("ingress: tcx"));
        drop(program);
        assert_eq!(stage.node.programs()["earlier_filters"], json!([]));
    });
}

/// Receives datagrams, which are numbered, until the one with this number. Returns the number of duplicates of earlier
/// ones that came before it.
fn receive(socket: &UdpSocket, number: u32, what: &str) -> (SocketAddr, usize) {
    let mut bytes = [0; 4];
    for duplicates in 0..10 {
        let (_, peer) = socket.recv_from(&mut bytes).unwrap_or_else(|e| panic!("{what} {number}: {e}"));
        match u32::from_be_bytes(bytes) {
            found if found == number => return (peer, duplicates),
            found => assert!(found < number, "{what} {number}: {found} came before"),
        }
    }
    panic!("{what} {number}: only earlier ones came");
}

/// A final verdict at a single hook while flows are carried must not lose a datagram. A filter at egress hides the drop
/// of copies that netfilter checks, so one duplicate arrives each second until the programs leave the flow to
/// netfilter.
#[test]
fn a_final_verdict_at_any_hook_loses_nothing() {
    needs!(has_programs(), PROGRAMS);
    const STEP: Duration = Duration::from_millis(10);
    const MOST_DUPLICATES: usize = 3;
    for (at_uplink, hook) in [(true, "ingress"), (true, "egress"), (false, "ingress"), (false, "egress")] {
        let stage = Stage::new(Engine::Carried);
        let pod = stage.node.pod("web");
        let result = stage.network().add(&Attach::new(&pod)).expect("ADD");
        let pods_link = result["interfaces"][1]["name"].as_str().expect("a link");
        let link = if at_uplink { stage.client.node_link.as_str() } else { pods_link };
        let what = format!("{} {hook}", if at_uplink { "uplink" } else { "pod" });
        let far = SocketAddr::new(stage.client_ips()[0], FAR);
        let server = stage.client.bind(|| UdpSocket::bind(far)).expect("bind");
        let client = pod.bind(|| UdpSocket::bind("0.0.0.0:0")).expect("bind");
        [&server, &client].iter().for_each(|one| one.set_read_timeout(Some(patience())).expect("a limit"));
        let (mut duplicates, mut carried) = ([0; 2], 0);
        for number in 0..600_u32 {
            if number == 200 {
                carried = stage.count(Counter::Carried);
                stage.node.cmd(&format!(
                    "tc filter add dev {link} {hook} protocol all pref 1 u32 match u32 0 0 flowid :1"
                ));
            }
            client.send_to(&number.to_be_bytes(), far).expect("send");
            let (peer, of_server) = receive(&server, number, &what);
            server.send_to(&number.to_be_bytes(), peer).expect("send");
            let (_, of_client) = receive(&client, number, &what);
            duplicates = [duplicates[0] + of_server, duplicates[1] + of_client];
            thread::sleep(STEP);
        }
        println!("{what}: {carried} carried before, {duplicates:?} duplicates");
        assert!(carried > 300, "{what}: {carried}");
        assert!(duplicates.iter().all(|count| *count <= MOST_DUPLICATES), "{what}: {duplicates:?}");
    }
}
