// SPDX-License-Identifier: GPL-2.0-or-later

//! Pods keep answering and the agents keep up, whatever happens to other Nodes and to the API server.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{API_SERVER, ApiServer, Attach, Proto, api_server_programs, at, skip, stride, within};
use slipwayd::cluster::desired::TunnelMode;

use crate::Lab;
use crate::agents::{Agents, Flows, Web, object, of};
use crate::api::{NODES, condition};
use crate::deployment::{ROLE, create, rendered};
use crate::repairs::until;

const PORT: u16 = 8080;
const INTERVAL: Duration = Duration::from_millis(20);
/// How long the API server is away.
const AWAY: Duration = Duration::from_secs(60);
/// How long the API server is away in a run that takes samples.
const SHORTLY_AWAY: Duration = Duration::from_secs(10);

/// The time limit for a change to arrive. After an outage, the longest delay between two attempts may have to pass
/// first, and a second time if the first attempt fails.
const ARRIVAL: Duration = Duration::from_secs(150);

fn ip(last: u8) -> IpAddr {
    [192, 168, 50, last].into()
}

/// The world of the test. Nodes 1 and 2 have agents and pods, other Nodes exist only as objects.
struct World<'a> {
    lab: &'a Lab,
    server: ApiServer<'a>,
    agents: Agents<'a>,
}

impl World<'_> {
    /// Waits until both nodes have a route to `net` via `via`.
    fn has_route(&self, net: &str, via: IpAddr) {
        for number in [1, 2] {
            let wanted = format!("{net} via {via} ");
            slipway_tests::until(ARRIVAL, &wanted, || {
                self.lab.node(number).cmd("ip route show").contains(&wanted)
            });
        }
    }

    fn has_no_route(&self, net: &str) {
        for number in [1, 2] {
            slipway_tests::until(ARRIVAL, &format!("no route to {net}"), || {
                !self.lab.node(number).cmd("ip route show").contains(net)
            });
        }
    }

    fn add(&self, name: &str, net: &str, address: IpAddr) {
        self.server.create(NODES, &of(name, &[net], &[address]));
    }

    fn delete(&self, name: &str) {
        self.server.delete(&format!("{NODES}/{name}"));
    }

    fn restart(&mut self) {
        self.server.stop();
        self.server.resume();
        self.server.wait();
    }

    /// Fails if an agent retried without pausing. Each failed attempt adds a line to the log.
    fn assert_patient(&self, most: usize) {
        for number in [1, 2] {
            let log = self.agents.log(number);
            assert!(log.lines().count() <= most, "more than {most} lines: {log}");
        }
    }
}

#[test]
fn pods_answer_whatever_happens_to_nodes_and_the_api_server() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let lab = Lab::new(2, TunnelMode::Auto);
    let server = ApiServer::start_with_roles(&programs, &lab.cluster.control);
    server.wait();
    until("the namespace", || server.has("/api/v1/namespaces/kube-system"));
    create(&server, &rendered("manifests"));
    let user = json!({ "token": server.token("kube-system", "slipwayd") });
    let agents = Agents::start(&lab, &server, &server.kubeconfig_of(&user), "auto", &[]);
    let webs =
        [1, 2].map(|number| Web::new(lab.node(number), &lab.network(number), &format!("web{number}"), PORT));
    let mut world = World { lab: &lab, server, agents };
    let flows = Flows::start(&lab, webs.each_ref(), PORT, INTERVAL);
    nodes_come_change_and_go(&world);
    the_agents_are_forbidden_to_read(&mut world);
    the_server_is_away(&mut world);
    the_server_forgets(&mut world);
    flows.assert_whole();
    world.agents.assert_running();
    a_node_is_deleted_and_created_again(&world, &webs);
}

fn nodes_come_change_and_go(world: &World<'_>) {
    let path = format!("{NODES}/node-3");
    world.add("node-3", "10.244.3.0/24", ip(33));
    world.has_route("10.244.3.0/24", ip(33));
    let addresses = json!([{ "type": "InternalIP", "address": ip(34) }]);
    world.server.patch(&format!("{path}/status"), &json!({ "status": { "addresses": addresses } }));
    world.has_route("10.244.3.0/24", ip(34));
    // Cordons a Node without pods and one with pods.
    for name in ["node-3", "node-2"] {
        world.server.patch(&format!("{NODES}/{name}"), &json!({ "spec": { "unschedulable": true } }));
    }
    // When this later change has arrived, the agents must have seen the earlier one as well.
    world.add("node-4", "10.244.4.0/24", ip(44));
    world.has_route("10.244.4.0/24", ip(44));
    world.has_route("10.244.3.0/24", ip(34));
    for number in [1, 2] {
        let log = world.agents.log(number);
        let changes = log.lines().filter(|line| line.contains("10.244.3.0/24")).count();
        assert_eq!(changes, 2, "added once and changed once: {log}");
    }
    world.delete("node-3");
    world.has_no_route("10.244.3.0/24");
    world.add("node-3", "10.244.33.0/24", ip(33));
    world.has_route("10.244.33.0/24", ip(33));
}

/// The server answers 403, as if another program had changed the role. The agents keep what they know.
fn the_agents_are_forbidden_to_read(world: &mut World<'_>) {
    let rules = world.server.get(ROLE)["rules"].clone();
    let mut fewer = rules.clone();
    for rule in fewer.as_array_mut().expect("rules") {
        let verbs = rule["verbs"].as_array_mut().expect("verbs");
        verbs.retain(|verb| verb != "list" && verb != "watch");
    }
    let rights: Vec<Value> =
        fewer.as_array().expect("rules").iter().filter(|rule| rule["verbs"] != json!([])).cloned().collect();
    world.server.patch(ROLE, &json!({ "rules": rights }));
    // The server does not check the rights of a running watch again.
    world.restart();
    for number in [1, 2] {
        until("a refusal", || world.agents.log(number).contains("forbidden"));
    }
    world.add("node-5", "10.244.5.0/24", ip(55));
    thread::sleep(within(Duration::from_secs(5)));
    for number in [1, 2] {
        let shown = world.lab.node(number).cmd("ip route show");
        assert!(shown.contains("10.244.4.0/24") && !shown.contains("10.244.5.0/24"), "{shown}");
    }
    world.server.patch(ROLE, &json!({ "rules": rules }));
    world.has_route("10.244.5.0/24", ip(55));
    world.assert_patient(60);
}

fn the_server_is_away(world: &mut World<'_>) {
    world.server.stop();
    let away = if stride() > 1 { SHORTLY_AWAY } else { AWAY };
    thread::sleep(away);
    world.server.resume();
    world.server.wait();
    world.add("node-6", "10.244.6.0/24", ip(66));
    world.has_route("10.244.6.0/24", ip(66));
    world.assert_patient(120);
}

/// etcd is compacted while the agents cannot reach the server. Their watch then ends with 410, and they list the Nodes
/// again.
fn the_server_forgets(world: &mut World<'_>) {
    let nodes = [1, 2].map(|number| world.lab.node(number));
    world.server.stop();
    for node in nodes {
        node.nft(
            "table inet away {
                chain out { type filter hook output priority 0; tcp dport 6443 reject with tcp reset; }
            }",
        );
    }
    world.server.resume();
    world.server.wait();
    world.delete("node-6");
    world.add("node-7", "10.244.7.0/24", ip(77));
    world.server.stop();
    world.server.compact();
    world.server.resume();
    world.server.wait();
    for node in nodes {
        node.cmd("nft delete table inet away");
    }
    world.has_route("10.244.7.0/24", ip(77));
    world.has_no_route("10.244.6.0/24");
    world.assert_patient(200);
}

/// The pods of a Node that is deleted are cut off until it is created again. Nothing else is affected.
fn a_node_is_deleted_and_created_again(world: &World<'_>, webs: &[Web; 2]) {
    let to = |index: usize| at(webs[index].addresses[0], 80);
    world.delete("node-2");
    until("no route", || !world.lab.node(1).cmd("ip route show").contains("10.244.2.0/24"));
    assert!(world.lab.node(2).cmd("ip route show").contains("10.244.1.0/24"), "node 2 keeps its routes");
    world.server.create(NODES, &object(world.lab.node(2)));
    until("a route", || world.lab.node(1).cmd("ip route show").contains("10.244.2.0/24"));
    webs[0].pod.expect(Proto::Tcp, to(1), "web2");
    webs[1].pod.expect(Proto::Tcp, to(0), "web1");
    // The next pod also gets its network.
    until("the condition of the new Node", || {
        condition(&world.server, 2).is_some_and(|one| one["status"] == "False")
    });
    let pod = world.lab.node(2).pod("next");
    world.lab.network(2).add(&Attach::new(&pod)).unwrap_or_else(|error| panic!("ADD: {error}"));
    pod.expect(Proto::Tcp, to(0), "web1");
}
