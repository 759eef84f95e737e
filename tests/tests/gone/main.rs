// SPDX-License-Identifier: GPL-2.0-or-later

//! Repeated DEL, which runtimes call often. A second DEL only reads: it starts no program, changes no file, ruleset or
//! link, and does not wait for another process.
//!
//! Each case has another attachment of the same network, so that all shared state exists.

mod trace;

use cni_nftables::Socket;
use serde_json::{Value, json};
use slipway_tests::{
    Attach, BridgeNetfilter, FLANNEL_ENV, Network, Node, PROGRAMS, Pod, Proto, REFERENCE, Reference, fixed,
    has_programs, lacks, limited, needs, skip, slipway_only, tuned,
};

#[path = "../firewall/bus.rs"]
#[expect(dead_code, reason = "the suite of firewall needs more of it")]
mod bus;
#[path = "../dhcp/stage.rs"]
#[expect(dead_code, reason = "the suite of dhcp needs more of it")]
mod stage;

/// Generates a test for each line, which consists of a plugin, an interface name and a list.
macro_rules! second_del_reads_only {
    ($($test:ident: $plugin:literal for $ifname:literal in $list:expr;)*) => {
        $(
            #[test]
            fn $test() {
                if let Some(feature) = lacks($plugin) {
                    skip!(feature);
                }
                only_reads(&Node::new(), $ifname, &$list);
            }
        )*
    };
}

second_del_reads_only! {
    bandwidth: "bandwidth" for "eth0" in json!([bridged("nftables"), limited()]);
    bridge: "bridge" for "eth0" in json!([bridged("nftables")]);
    bridge_iptables: "bridge" for "eth0" in json!([bridged("iptables")]);
    dummy: "dummy" for "eth0" in json!([{"type": "dummy", "ipam": ipam()}]);
    firewall_iptables: "firewall" for "eth0" in json!([bridged("nftables"), walled("iptables")]);
    firewall_nftables: "firewall" for "eth0" in json!([bridged("nftables"), walled("nftables")]);
    flannel: "flannel" for "eth0" in json!([{"type": "flannel", "delegate": {"isDefaultGateway": true}}]);
    host_device: "host-device" for "eth0" in json!([{"type": "host-device", "device": "dev0", "ipam": ipam()}]);
    host_local: "host-local" for "eth0" in json!([{"type": "host-local", "ipam": ipam()}]);
    ipvlan: "ipvlan" for "eth0" in json!([{"type": "ipvlan", "master": "out0", "ipam": ipam()}]);
    loopback: "loopback" for "lo" in json!([{"type": "loopback"}]);
    macvlan: "macvlan" for "eth0" in json!([{"type": "macvlan", "master": "out0", "ipam": ipam()}]);
    noop: "noop" for "eth0" in json!([{"type": "ptp", "ipam": ipam()}, {"type": "noop"}]);
    portmap: "portmap" for "eth0" in json!([bridged("nftables"), published("nftables")]);
    portmap_iptables: "portmap" for "eth0" in json!([bridged("nftables"), published("iptables")]);
    ptp: "ptp" for "eth0" in json!([{"type": "ptp", "ipMasq": true, "ipam": ipam()}, published("nftables")]);
    sbr: "sbr" for "eth0" in json!([bridged("nftables"), {"type": "sbr"}]);
    r#static: "static" for "eth0" in json!([{"type": "ptp", "ipam": fixed()}]);
    tap: "tap" for "eth0" in json!([{"type": "tap", "ipam": ipam()}]);
    tuning: "tuning" for "eth0" in json!([bridged("nftables"), tuned()]);
    vlan: "vlan" for "eth0" in json!([{"type": "vlan", "master": "out0", "vlanId": 5, "ipam": ipam()}]);
    vrf: "vrf" for "eth0" in json!([{"type": "ptp", "ipam": ipam()}, {"type": "vrf", "vrfname": "blue"}]);
}

fn bridged(backend: &str) -> Value {
    json!({
        "type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true,
        "ipam": ipam(),
    })
}

fn walled(backend: &str) -> Value {
    json!({"type": "firewall", "backend": backend, "ingressPolicy": "same-bridge"})
}

fn published(backend: &str) -> Value {
    json!({"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}})
}

fn ipam() -> Value {
    slipway_tests::host_local("10.88.0.0/24", "fd00:88::/64")
}

/// Asserts that DEL of the list only reads: after an ADD and a DEL with another attachment of the network
/// present, and on a node without any attachment.
#[track_caller]
fn only_reads(node: &Node, ifname: &str, plugins: &Value) {
    slipway_only!();
    let network = prepared(node, plugins);
    let pod = node.pod("pod");
    let attach = Attach::new(&pod).ifname(ifname).port(Proto::Tcp, 8080, 80).port(Proto::Udp, 8080, 80);
    let mut wrong = reads_only("a node that never had any", node, &network, &attach, &Value::Null);
    // A second attachment is not possible here, because `static` has only one address, a device can be moved only once,
    // and a link has only one VLAN with a given ID.
    let single = |plugin: &Value| {
        plugin["ipam"]["type"] == "static" || plugin["type"] == "host-device" || plugin["type"] == "vlan"
    };
    let other = node.pod("other");
    let neighbour = Attach::new(&other).ifname(ifname).port(Proto::Tcp, 8081, 80);
    if !plugins.as_array().expect("plugins").iter().any(single) {
        network.add(&neighbour).expect("ADD of the other attachment");
    }
    wrong.extend(after_its_del(node, &network, &attach, pod));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the system calls of further DELs after an ADD and the first DEL.
fn after_its_del(node: &Node, network: &Network<'_>, attach: &Attach, pod: Pod) -> Vec<String> {
    let result = network.add(attach).expect("ADD");
    network.del(attach).expect("the first DEL");
    let path = pod.path().to_owned();
    let (nowhere, gone) = (attach.clone().netns(""), attach.clone().netns(path));
    let mut wrong = reads_only("after its DEL", node, network, attach, &Value::Null);
    wrong.extend(reads_only("after its DEL, with the result", node, network, attach, &result));
    wrong.extend(reads_only("without a namespace", node, network, &nowhere, &Value::Null));
    wrong.extend(reads_only("without a namespace, with the result", node, network, &nowhere, &result));
    pod.remove();
    wrong.extend(reads_only("with its namespace gone", node, network, &gone, &result));
    wrong
}

/// The reference plugins' chains have rules of another container. DEL reads them without starting a tool.
#[test]
fn with_the_references_chains() {
    slipway_only!();
    let all = Reference::all();
    needs!(!all.is_empty(), REFERENCE);
    for (reference, variant) in all.iter().flat_map(|one| [(one, "nft"), (one, "legacy")]) {
        let node = Node::new();
        let plugins = json!([bridged("iptables"), published("iptables"), walled("iptables")]);
        let network = prepared(&node, &plugins);
        node.cmd("mkdir /run/tools");
        for name in ["iptables", "ip6tables"] {
            node.cmd(&format!("ln -s /usr/sbin/{name}-{variant} /run/tools/{name}"));
        }
        let path = format!("/run/tools:{}", std::env::var("PATH").unwrap_or_default());
        let other = node.pod("other");
        let neighbour = Attach::new(&other).port(Proto::Tcp, 8081, 80);
        network.add_by(reference.dir(), &neighbour, |call| call.env("PATH", &path));
        let chains = node.cmd(&format!("iptables-{variant}-save"));
        assert!(chains.contains("CNI-DN-") && chains.contains("CNI-ISOLATION-STAGE-1"), "{chains}");
        let pod = node.pod("pod");
        let wrong = after_its_del(&node, &network, &Attach::new(&pod).port(Proto::Tcp, 8080, 80), pod);
        assert!(wrong.is_empty(), "{variant}, {}: {}", reference.dir().display(), wrong.join("\n"));
    }
}

/// Prepares the devices and files of the node that the lists need.
fn prepared<'a>(node: &'a Node, plugins: &Value) -> Network<'a> {
    node.bridge_netfilter(BridgeNetfilter::Off);
    let _client = node.host("client");
    node.cmd("ip link add dev0 type veth peer name wire0 netns client");
    // The file that flanneld would write.
    node.write("/run/flannel/subnet.env", FLANNEL_ENV);
    node.network(json!({"name": "net", "plugins": plugins}))
}

/// Runs DEL of each plugin of the list under strace(1), the last plugin first. Returns each call that does
/// more than read, and each change of the node.
fn reads_only(
    case: &str,
    node: &Node,
    network: &Network<'_>,
    attach: &Attach,
    result: &Value,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for mut config in network.configs(Some(attach)).into_iter().rev() {
        if !result.is_null() {
            config["prevResult"] = result.clone();
        }
        let name = config["type"].as_str().expect("a type").to_owned();
        let before = state(node);
        let mut calls = trace::calls(node, network.prepare("DEL", &config, Some(attach)));
        // A request to a daemon shows as a write to the daemon's socket.
        calls.retain(|call| !asks_a_daemon(&config, result, call));
        let after = state(node);
        wrong.extend(calls.iter().map(|call| format!("{name} {case}: {call}")));
        if before != after {
            wrong.push(format!("{name} {case}: the node has changed:\n{before}\n---\n{after}"));
        }
    }
    wrong
}

/// True for a request to the dhcp daemon, or to firewalld about the zone of an address in the result.
fn asks_a_daemon(config: &Value, result: &Value, call: &str) -> bool {
    let dhcp = config["ipam"]["type"] == "dhcp";
    let firewalld = config["backend"] == "firewalld" && !result.is_null();
    let question = ["AUTH EXTERNAL", "BEGIN", "Hello", "NameHasOwner", "querySource"];
    (dhcp && (call.contains("dhcp.sock\"") || call.contains("release")))
        || (firewalld
            && (call.contains("system_bus_socket\"") || question.iter().any(|text| call.contains(text))))
}

/// The ruleset's generation, and the times of all files in the node's own folders.
fn state(node: &Node) -> String {
    let generation = node.run(|| Socket::open().and_then(|socket| socket.generation()));
    let files = node.cmd(&format!("find /run /var/lib -not -path {} -not -path /run -not -name *.log -not -name *.err -printf %p:%i:%T@:%C@\\n", trace::FILE));
    format!("generation {generation:?}\n{files}")
}

#[test]
fn ebpf() {
    if !has_programs() {
        skip!(PROGRAMS);
    }
    only_reads(&Node::new(), "eth0", &json!([bridged("ebpf"), published("ebpf")]));
}

/// The plugin's record shows that firewalld has no entry, so the plugin makes no call over D-Bus.
#[test]
fn firewall_firewalld() {
    let node = Node::new();
    let Some(_daemon) = bus::Daemon::start(&node) else { skip!("dbus-daemon") };
    let _zones = bus::firewalld(&node);
    // With a result, the plugin asks firewalld only for the address's zone, because the reference plugin may have set
    // it.
    only_reads(&node, "eth0", &json!([bridged("nftables"), {"type": "firewall", "backend": "firewalld"}]));
}

/// The plugin asks the daemon, because only the daemon knows of a lease that is being requested.
#[test]
fn dhcp() {
    slipway_only!();
    needs!(stage::has_dnsmasq(), "dnsmasq");
    let stage = stage::Stage::with_dnsmasq(&[]);
    let network = stage.network(&json!({}));
    let (pod, other) = (stage.node.pod("pod"), stage.node.pod("other"));
    let attach = Attach::new(&pod);
    network.add(&Attach::new(&other)).expect("ADD of the other attachment");
    let result = network.add(&attach).expect("ADD");
    network.del(&attach).expect("the first DEL");
    let wrong = reads_only("after its DEL", &stage.node, &network, &attach, &result);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
