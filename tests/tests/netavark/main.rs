// SPDX-License-Identifier: GPL-2.0-or-later

//! The driver for netavark, called as netavark and podman call it, but without them. [`real`](../real) tests it with
//! the programs themselves.

mod calls;
mod create;
mod killed;
mod migrate;
mod networks;
mod ports;

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{Node, Output, PluginCall, Pod, Snapshot};

/// The node's address in each family on the bridge of [`Net::new`].
const GATEWAYS: [&str; 2] = ["10.89.0.1", "fd00:89::1"];

/// A network as netavark 2 passes it.
#[derive(Debug, Clone)]
struct Net(Value);

impl Net {
    /// A network with a subnet of each family.
    fn new() -> Self {
        Self::with_subnets("blue", "sw0", "10.89.0", "fd00:89:")
    }

    fn with_subnets(name: &str, bridge: &str, v4: &str, v6: &str) -> Self {
        Self(json!({
            "name": name, "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
            "driver": "slipway", "network_interface": bridge, "created": "2026-01-02T03:04:05Z",
            "subnets": [
                {"subnet": format!("{v4}.0/24"), "gateway": format!("{v4}.1"), "lease_range": null},
                {"subnet": format!("{v6}:/64"), "gateway": format!("{v6}:1"), "lease_range": null},
            ],
            "ipv6_enabled": true, "internal": false, "dns_enabled": false, "options": {},
            "ipam_options": {"driver": "host-local"},
        }))
    }

    /// The same network as netavark 1 passes it: without the creation time, but with all keys.
    fn of_netavark_1(mut self) -> Self {
        let keys = self.0.as_object_mut().expect("an object");
        keys.remove("created");
        keys.insert("routes".to_owned(), json!(null));
        keys.insert("network_dns_servers".to_owned(), json!(null));
        self
    }

    fn key(mut self, key: &str, value: Value) -> Self {
        self.0[key] = value;
        self
    }

    /// The network with one more option, as from `podman network create --opt`.
    fn option(mut self, key: &str, value: &str) -> Self {
        self.0["options"][key] = json!(value);
        self
    }
}

/// A container in a network, as podman describes it to netavark.
#[derive(Clone)]
struct Call<'a> {
    node: &'a Node,
    netns: String,
    exec: Value,
}

impl<'a> Call<'a> {
    /// A call for the pod with the addresses that end in `number`.
    fn new(node: &'a Node, net: &Net, pod: &Pod, number: u8) -> Self {
        let of = |at: usize| net.0["subnets"][at]["subnet"].as_str().expect("a subnet");
        let addresses =
            [of(0).replace("0/24", &number.to_string()), of(1).replace("/64", &format!("{number:x}"))];
        let exec = json!({
            "container_id": pod.name(), "container_name": pod.name(), "port_mappings": [], "network": net.0,
            "network_options": {
                "aliases": [pod.name()], "interface_name": "eth0", "static_ips": addresses, "static_mac": null,
                "options": null,
            },
        });
        Self { node, netns: pod.path().display().to_string(), exec }
    }

    /// The call with one more published port, given like the options of `--publish`.
    fn publish(mut self, host_ip: &str, protocol: &str, host: u16, container: u16, range: u16) -> Self {
        let mapping = json!({
            "container_port": container, "host_ip": host_ip, "host_port": host, "protocol": protocol, "range": range,
        });
        self.exec["port_mappings"].as_array_mut().expect("a list").push(mapping);
        self
    }

    /// The call with another value for one of the container's network options.
    fn option(mut self, key: &str, value: Value) -> Self {
        self.exec["network_options"][key] = value;
        self
    }

    /// The call of the driver for a command, ready to run.
    fn prepare(&self, command: &str) -> PluginCall {
        let call = self.node.plugin("slipway").without("CNI_PATH").arguments(&[command, &self.netns]);
        call.config(&self.exec)
    }

    fn run(&self, command: &str) -> Output {
        self.prepare(command).run()
    }

    #[track_caller]
    fn setup(&self) -> Value {
        let output = self.run("setup");
        assert_eq!(output.process.code, Some(0), "{}", output.process);
        output.json()
    }

    #[track_caller]
    fn teardown(&self) {
        let output = self.run("teardown");
        assert_eq!(
            (output.process.code, output.process.stdout.as_str()),
            (Some(0), ""),
            "{}",
            output.process
        );
    }

    /// Runs a set-up that must fail, and returns the error.
    #[track_caller]
    fn refused(&self) -> String {
        error(&self.run("setup"))
    }

    fn address(&self, at: usize) -> IpAddr {
        self.exec["network_options"]["static_ips"][at]
            .as_str()
            .and_then(|ip| ip.parse().ok())
            .expect("an address")
    }
}

/// The error that the driver printed in netavark's format.
#[track_caller]
fn error(output: &Output) -> String {
    assert_eq!(output.process.code, Some(1), "{}", output.process);
    output.json()["error"].as_str().expect("a message").to_owned()
}

/// The state that a teardown must restore. The driver's directories stay, with a lock for each bridge.
fn state(node: &Node, pods: &[&Pod]) -> Snapshot {
    let spaces: Vec<_> = pods.iter().map(|pod| &***pod).collect();
    Snapshot::take(node, &spaces).without(&["/run/slipway/netavark", "address \"lo\"", "link lo", " dev lo "])
}
