// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway restore`, tested with packets. After each kind of flush that happens on nodes, live containers get back
//! exactly what they had.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod concurrent;
mod expected;
mod flushed;
mod left_out;
mod limits;
mod programs;
mod reverse_path;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, CommandOutput, Host, Network, Node, Pod, Proto, Server, Space, addresses_of, at, host_local,
    quoted, slipway, with_keys,
};

const SERVED: u16 = 80;
const PORT: u16 = 8080;
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A node that has one host outside.
struct World {
    node: Node,
    client: Host,
}

impl World {
    fn new() -> Self {
        let (node, client) = Node::with_client();
        Self { node, client }
    }

    fn node_ips(&self) -> [IpAddr; 2] {
        [self.client.node_v4.into(), self.client.node_v6.into()]
    }

    /// Network `number` with this interface plugin, and with additional keys for each of the two plugins.
    fn network(&self, number: u8, interface: &str, keys: [Value; 2]) -> Network<'_> {
        self.chain(number, interface, keys, Vec::new())
    }

    /// Such a network with more plugins after these two.
    fn chain(&self, number: u8, interface: &str, keys: [Value; 2], more: Vec<Value>) -> Network<'_> {
        let mut plugins = [
            json!({
                "type": interface, "ipMasq": true, "ipam": host_local(format!("10.88.{number}.0/24"), format!("fd00:88:{number}::/64")),
            }),
            json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        ];
        if interface == "bridge" {
            plugins[0]["bridge"] = format!("br{number}").into();
            plugins[0]["isGateway"] = true.into();
            plugins[0]["hairpinMode"] = true.into();
        }
        let first = plugins.into_iter().zip(&keys).map(|(plugin, keys)| with_keys(plugin, keys));
        let plugins: Vec<_> = first.chain(more).collect();
        self.node.network(json!({"name": format!("net{number}"), "plugins": plugins}))
    }

    fn bridge(&self, number: u8) -> Network<'_> {
        self.network(number, "bridge", [json!({"macspoofchk": true}), json!({})])
    }

    /// Runs `slipway restore`. Returns its report and exit code.
    fn restore(&self, args: &str) -> (Value, i32) {
        Self::told(&self.node.try_slipway(&format!("restore --output json {args}")))
    }

    /// Runs `slipway restore` with a delay before each time that the command reads this file of the runtime's cache, but
    /// the first time.
    fn restore_held_up(&self, file: &str, pause: Duration) -> (Value, i32) {
        let pause = format!("inject=openat:delay_enter={}:when=2+", pause.as_micros());
        let command = quoted(slipway());
        let words =
            format!("strace -f -qq -o /dev/null -P {file} -e {pause} {command} restore --output json");
        Self::told(&self.node.try_cmd(&words))
    }

    fn told(output: &CommandOutput) -> (Value, i32) {
        let report = serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"));
        (report, output.code.expect("an exit code"))
    }

    /// Runs `slipway restore`, which must succeed, and returns the number of restored entries.
    fn restored(&self) -> usize {
        let (report, code) = self.restore("");
        assert_eq!(code, 0, "{report:#}");
        count(&report, "restored")
    }

    /// Opens a TCP service on the node's loopback, and returns true if a container reaches it. The container's own
    /// loopback address is removed for that.
    fn loopback_is_open(&self, web: &Web) -> bool {
        let _service = self.node.serve(Proto::Tcp, "127.0.0.1:7000", "service");
        web.sysctl("net/ipv4/conf/all/route_localnet", "1");
        web.cmd("ip link set lo up");
        web.try_cmd("ip address del 127.0.0.1/8 dev lo");
        let IpAddr::V4(address) = web.ips[0] else { panic!("IPv4 comes first: {:?}", web.ips) };
        let [a, b, c, _] = address.octets();
        web.try_cmd(&format!("ip route add 127.0.0.0/8 via {a}.{b}.{c}.1 dev eth0"));
        web.request_from(Proto::Tcp, None, at(LOOPBACK, 7000), slipway_tests::QUICK).is_ok()
    }
}

/// The number of entries in this state.
fn count(report: &Value, state: &str) -> usize {
    let things = report["items"].as_array().expect("a list");
    things.iter().filter(|thing| thing["state"] == state).count()
}

/// The entry of a container whose text contains all of these words.
fn line<'a>(report: &'a Value, container: &str, words: &str) -> &'a Value {
    let things = report["items"].as_array().expect("a list");
    let found = things.iter().find(|thing| {
        thing["container"] == container && thing["item"].as_str().is_some_and(|what| what.contains(words))
    });
    found.unwrap_or_else(|| panic!("nothing about {container} and {words}: {report:#}"))
}

/// A pod that has been added, is in the runtime's cache, and serves TCP and UDP.
struct Web {
    pod: Pod,
    attach: Attach,
    ips: Vec<IpAddr>,
    _servers: Vec<Server>,
}

impl Web {
    fn new(world: &World, network: &Network<'_>, name: &str, prepare: impl Fn(Attach) -> Attach) -> Self {
        let pod = world.node.pod(name);
        let attach = prepare(Attach::new(&pod));
        let result = network.add(&attach).unwrap_or_else(|e| panic!("ADD {name}: {e}"));
        network.write_cache(&attach);
        let ips = addresses_of(&result);
        let servers = Proto::ALL.map(|proto| pod.serve(proto, &format!("[::]:{SERVED}"), name));
        Self { pod, attach, ips, _servers: servers.into() }
    }

    /// A pod that publishes one port for TCP and UDP.
    fn published(world: &World, network: &Network<'_>, name: &str, port: u16) -> Self {
        Self::new(world, network, name, |attach| {
            attach.port(Proto::Tcp, port, SERVED).port(Proto::Udp, port, SERVED)
        })
    }

    /// Runs DEL and removes the attachment's file from the runtime's cache.
    fn leave(&self, world: &World, network: &Network<'_>) {
        network.del(&self.attach).expect("DEL");
        world.node.cmd(&format!("rm {}", network.cache_path(&self.attach)));
    }

    /// Stops the servers and removes the namespace, without a DEL.
    fn vanish(self) -> Attach {
        let Self { pod, attach, _servers, .. } = self;
        drop(_servers);
        pod.remove();
        attach
    }
}

impl Deref for Web {
    type Target = Pod;
    fn deref(&self) -> &Pod {
        &self.pod
    }
}

/// Each address with the port, for each protocol.
fn each(ips: impl IntoIterator<Item = IpAddr>, port: u16) -> impl Iterator<Item = (Proto, SocketAddr)> {
    ips.into_iter().flat_map(move |ip| Proto::ALL.map(|proto| (proto, at(ip, port))))
}

/// Asserts that no server answers on the port.
fn silent(from: &Space, to: impl Into<SocketAddr>) {
    from.expect_none(Proto::Tcp, to);
}
