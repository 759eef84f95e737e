// SPDX-License-Identifier: GPL-2.0-or-later

//! A node without free addresses, one with another pod CIDR, and the agent's log as JSON.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{
    API_SERVER, ApiServer, Attach, ClusterNode, Pod, Proto, api_server_programs, at, quoted, skip, slipwayd,
};
use slipwayd::cluster::desired::TunnelMode;

use crate::api::{LOG, words};
use crate::repairs::until;
use crate::{CONFLIST, Lab};

const NODE: &str = "/api/v1/nodes/node-1";

fn register(server: &ApiServer<'_>, node: &ClusterNode, cidr: &str) {
    server.create(
        "/api/v1/nodes",
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-1" },
            "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
            "status": { "addresses": [{ "type": "InternalIP", "address": node.addresses[0] }] },
        }),
    );
}

/// The texts of the Events with this reason.
fn events(server: &ApiServer<'_>, reason: &str) -> Vec<String> {
    let all = server.get("/api/v1/namespaces/default/events");
    let of_reason = all["items"].as_array().expect("a list").iter().filter(|event| event["reason"] == reason);
    of_reason
        .map(|event| {
            assert_eq!(event["involvedObject"]["name"], "node-1", "{event}");
            event["message"].as_str().expect("a text").to_owned()
        })
        .collect()
}

/// The messages in the log, whose lines are JSON objects that all have the same fields.
fn messages(node: &ClusterNode) -> Vec<String> {
    let log = node.read(LOG).unwrap_or_default();
    // The last line may be only half written.
    let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let message = |line: &str| {
        let Ok(Value::Object(record)) = serde_json::from_str::<Value>(line) else {
            panic!("no object: {line}")
        };
        let names: BTreeSet<&str> = record.keys().map(String::as_str).collect();
        assert_eq!(names, ["level", "message", "pid", "target", "time"].into(), "{line}");
        assert!(record["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        record["message"].as_str().expect("a text").to_owned()
    };
    whole.lines().map(message).collect()
}

fn status(node: &ClusterNode) -> String {
    node.cmd(&format!("{} status", quoted(slipwayd())))
}

#[test]
fn a_node_without_free_addresses_and_one_with_another_subnet_are_reported() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let lab = Lab::new(1, TunnelMode::Auto);
    let node = lab.node(1);
    let server = ApiServer::start(&programs, &lab.cluster.control);
    server.wait();
    register(&server, node, "10.244.1.0/29");
    node.cmd("mkdir -p /run/kube");
    node.write("/run/kube/config", server.kubeconfig());
    let words = [words(node, "auto"), ["--log-format", "json"].map(str::to_owned).into()].concat();
    let _agent = node.daemon(slipwayd(), &words.iter().map(String::as_str).collect::<Vec<_>>(), LOG);
    until("the configuration", || node.read(CONFLIST).is_some());

    // Of the eight addresses, pods cannot have the network address, the gateway's and the broadcast address.
    let mut pods: Vec<(Pod, Vec<IpAddr>)> =
        (0..5).map(|number| lab.pod(1, &format!("web{number}"))).collect();
    let exhausted = || events(&server, "AddressesExhausted");
    until("the Event", || exhausted().len() == 1);
    let text = "no address of 10.244.1.0/29 is free: new pods get none until others end";
    assert_eq!(exhausted(), [text]);
    assert!(status(node).contains("addresses     10.244.1.0/29: 5 used, 0 free\n"), "{}", status(node));
    // A free address ends the shortage, and the next shortage is reported again.
    let (last, _) = pods.pop().expect("a pod");
    lab.network(1).del(&Attach::new(&last)).unwrap_or_else(|failure| panic!("{failure}"));
    drop(last);
    until("the end of it", || {
        messages(node).iter().any(|message| message == "10.244.1.0/29 has free addresses again")
    });
    pods.push(lab.pod(1, "again"));
    until("another Event", || exhausted().len() == 2);

    // A Node that registers again may get another pod CIDR.
    server.delete(NODE);
    register(&server, node, "10.244.9.0/24");
    let former =
        |message: &String| message.starts_with("pods keep addresses of a former pod CIDR until they end: ");
    until("the former addresses", || messages(node).iter().any(former));
    let logged = messages(node).into_iter().filter(former).collect::<Vec<_>>();
    assert_eq!(logged.len(), 1, "once: {logged:?}");
    let shown = status(node);
    for (_, addresses) in &pods {
        assert!(logged[0].contains(&format!("{} of ", addresses[0])), "{logged:?}");
        assert!(shown.contains(&format!("former        {} of ", addresses[0])), "{shown}");
    }
    let metrics = node.cmd("curl --silent --max-time 20 http://127.0.0.1:9254/metrics");
    assert!(metrics.contains("\nslipway_former_addresses 5.0\n"), "{metrics}");
    // Pods with addresses of the previous pod CIDR are not cut off, because their gateway remains.
    let _serving = node.serve(Proto::Tcp, "10.244.1.1:9000", "gateway");
    for (pod, addresses) in &pods {
        let answer = pod.expect(Proto::Tcp, at([10, 244, 1, 1], 9000), "gateway");
        assert_eq!(answer.peer.ip(), addresses[0]);
    }
    assert_eq!(exhausted().len(), 2);
}
