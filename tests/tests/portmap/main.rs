// SPDX-License-Identifier: GPL-2.0-or-later

//! portmap as a process: its ruleset, conflicts, repairs, and interrupted calls. The contract suites test that packets
//! arrive; here packets are used only for portmap's own keys.

mod concurrent;
mod keys;
mod owners;
mod table;

use serde_json::{Value, json};
use slipway_tests::{Node, PluginCall, Pod};

fn map(protocol: &str, host: u16, container: u16) -> Value {
    json!({"hostPort": host, "containerPort": container, "protocol": protocol})
}

/// A mapping with a host address.
fn map_on(ip: &str, protocol: &str, host: u16, container: u16) -> Value {
    let mut mapping = map(protocol, host, container);
    mapping["hostIP"] = json!(ip);
    mapping
}

/// `count` mappings, starting at `first`, whose container ports equal the host ports.
fn run_of(first: u16, count: u16) -> Vec<Value> {
    (first..first + count).map(|port| map("tcp", port, port)).collect()
}

/// portmap's input for a pod: addresses and ports. No other plugin has worked on the pod, so all changes come from
/// portmap.
#[derive(Clone)]
struct Call<'a> {
    node: &'a Node,
    id: String,
    netns: String,
    config: Value,
}

impl<'a> Call<'a> {
    /// A call for the pod with the addresses 10.77.0.`number` and fd00:77::`number`.
    fn new(node: &'a Node, pod: &Pod, number: u8, ports: &[Value]) -> Self {
        let netns = pod.path().display().to_string();
        let config = json!({
            "cniVersion": "1.1.0", "name": "net", "type": "portmap",
            "runtimeConfig": {"portMappings": ports},
            "prevResult": {
                "cniVersion": "1.1.0",
                "interfaces": [{"name": "eth0", "sandbox": netns}],
                "ips": [
                    {"address": format!("10.77.0.{number}/24"), "interface": 0},
                    {"address": format!("fd00:77::{number:x}/64"), "interface": 0},
                ],
            },
        });
        Self { node, id: pod.name().to_owned(), netns, config }
    }

    /// The call with one more key.
    fn key(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    /// The call with other ports.
    fn ports(mut self, ports: &[Value]) -> Self {
        self.config["runtimeConfig"]["portMappings"] = json!(ports);
        self
    }

    /// The call without namespace, `prevResult` and mappings, as for the DEL of a runtime that has lost its cache.
    fn forgetful(mut self) -> Self {
        self.netns = String::new();
        for key in ["prevResult", "runtimeConfig"] {
            self.config.as_object_mut().expect("an object").remove(key);
        }
        self
    }

    fn call(&self, verb: &str) -> PluginCall {
        let call = self.node.plugin("portmap").command(verb).container(&self.id).ifname("eth0");
        call.netns(&self.netns).config(&self.config)
    }

    #[track_caller]
    fn add(&self) {
        let result = self.call("ADD").run().ok();
        assert_eq!(result["ips"], self.config["prevResult"]["ips"]);
    }

    #[track_caller]
    fn check(&self) {
        self.call("CHECK").run().ok();
    }

    #[track_caller]
    fn del(&self) {
        self.call("DEL").run().ok();
    }
}

/// The number of comments in the ruleset that name a container as the owner.
fn elements_of(node: &Node, id: &str) -> usize {
    let tail = format!(" net eth0 {id}\"");
    node.ruleset().matches(&tail).count()
}

/// The output of `slipway ports`, as `tcp 0.0.0.0:80-81 container`.
fn listed(node: &Node) -> Vec<String> {
    let all: Value = serde_json::from_str(&node.slipway("ports --output json")).expect("JSON");
    let line = |port: &Value| {
        let text = |key: &str| port[key].as_str().unwrap_or("-").to_owned();
        let (first, last) = (&port["host_port"], &port["host_port_end"]);
        let owner = port["attachment"].as_u64().and_then(|place| usize::try_from(place).ok());
        let container = owner.and_then(|place| all["attachments"][place]["container"].as_str());
        let container = container.unwrap_or("-");
        format!("{} {} {first}-{last} {container}", text("protocol"), text("host_ip"))
    };
    all["ports"].as_array().expect("a list").iter().map(line).collect()
}
