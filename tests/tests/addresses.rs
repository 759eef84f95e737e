// SPDX-License-Identifier: GPL-2.0-or-later

//! Addresses that no container can have, from IPAM plugins and previous results. Plugins refuse them before
//! they create anything, and DEL of an attachment with such an address still works.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Node, Output, Pod, Proto, QUICK, REFERENCE, Reference, at, lacks, patience, quoted, skip,
    slipway_only,
};
use tempfile::TempDir;

/// Refused addresses, with a word of the error message.
const REFUSED: [(&str, &str); 12] = [
    ("127.0.0.1/8", "loopback"),
    ("127.0.0.53/32", "loopback"),
    ("0.0.0.0/32", "unspecified"),
    ("0.0.0.5/24", "unspecified"),
    ("224.1.1.1/24", "multicast"),
    ("255.255.255.255/32", "broadcast"),
    ("10.66.0.0/24", "subnet"),
    ("10.66.0.255/24", "broadcast address of its subnet"),
    ("10.66.0.5/0", "prefix"),
    ("::1/128", "loopback"),
    ("ff02::1/64", "multicast"),
    ("fd00:66::/64", "subnet"),
];

/// Unusual addresses that are valid.
const ACCEPTED: [&str; 7] = [
    "10.66.0.5/24",
    "10.66.0.0/32",
    "10.66.0.0/31",
    "169.254.7.7/16",
    "240.0.0.5/24",
    "fd00:66::/127",
    "fe80::66/64",
];

/// An IPAM plugin named `foreign`, found before the usual plugins. It gives one address and records each DEL.
struct Foreign {
    dir: TempDir,
    path: String,
}

impl Foreign {
    fn new(node: &Node) -> Self {
        let dir = TempDir::new().expect("a directory");
        let path = format!("{}:{}", dir.path().display(), node.bin().display());
        Self { dir, path }
    }

    /// Sets the result that each following ADD prints.
    fn give(&self, ip: &Value) {
        let at = self.dir.path();
        let result = json!({"cniVersion": "1.0.0", "ips": [ip]}).to_string();
        fs::write(at.join("result"), result).expect("write the result");
        let _none = fs::remove_file(at.join("dels"));
        let at = quoted(at);
        let script = format!(
            "#!/bin/sh\ncase $CNI_COMMAND in\nADD) cat {at}/result ;;\nDEL) echo DEL >> {at}/dels ;;\nesac\n"
        );
        let program = self.dir.path().join("foreign");
        fs::write(&program, script).expect("write the program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make it executable");
    }

    fn dels(&self) -> usize {
        fs::read_to_string(self.dir.path().join("dels")).unwrap_or_default().lines().count()
    }

    fn call(&self, node: &Node, pod: &Pod, verb: &str, plugin: &Value) -> Output {
        let mut config = plugin.clone();
        config["cniVersion"] = "1.0.0".into();
        config["name"] = "net".into();
        config["ipam"] = json!({"type": "foreign"});
        let name = plugin["type"].as_str().expect("a type");
        let call = node.plugin(name).command(verb).container("c").ifname("eth0").netns(pod.path());
        call.env("CNI_PATH", &self.path).config(&config).run()
    }
}

/// Every plugin that calls an IPAM plugin.
fn interfaces() -> Vec<Value> {
    vec![
        json!({"type": "bridge", "isGateway": true, "ipMasq": true}),
        json!({"type": "ptp", "ipMasq": true}),
        json!({"type": "macvlan", "master": "up0"}),
        json!({"type": "ipvlan", "master": "up0"}),
        json!({"type": "vlan", "master": "up0", "vlanId": 5}),
        json!({"type": "dummy"}),
        json!({"type": "tap"}),
        json!({"type": "host-device", "device": "dev0"}),
        json!({"type": "flannel", "delegate": {"type": "bridge"}}),
    ]
}

#[test]
fn interface_plugins_refuse_impossible_addresses_from_ipam() {
    slipway_only!();
    let node = Node::new();
    node.cmd("ip link add up0 up type veth peer name up1");
    node.cmd("ip link add dev0 type veth peer name dev1");
    let pod = node.pod("pod");
    let foreign = Foreign::new(&node);
    let mut seen = 0;
    for plugin in interfaces() {
        let name = plugin["type"].as_str().expect("a type");
        // flannel delegates to host-local; see `flannel_refuses_impossible_addresses`.
        if name == "flannel" || lacks(name).is_some() {
            continue;
        }
        for (address, why) in REFUSED {
            foreign.give(&json!({"address": address}));
            let error = foreign.call(&node, &pod, "ADD", &plugin).error();
            assert_eq!(error.code, 7, "{name} {address}: {error:?}");
            assert!(error.msg.contains(&format!("no container can have address {address}: ")), "{error:?}");
            assert!(error.msg.contains(why), "{error:?}");
            assert_eq!(foreign.dels(), 1, "{name} {address}: calls of IPAM's DEL");
            assert!(!pod.has_link("eth0"), "{name} {address}");
            foreign.call(&node, &pod, "DEL", &plugin).ok();
        }
        foreign.give(&json!({"address": "10.66.0.5/24", "gateway": "127.0.0.1"}));
        let error = foreign.call(&node, &pod, "ADD", &plugin).error();
        assert_eq!(error.code, 7, "{error:?}");
        assert!(error.msg.contains("no router can have address 127.0.0.1"), "{error:?}");
        assert!(!node.cmd("ip -br address show").contains("127.0.0.1/24"));
        seen += 1;
    }
    assert!(seen >= 2, "fewer than two plugins were tested");
}

#[test]
fn unusual_but_valid_addresses_are_accepted() {
    slipway_only!();
    let (node, pod) = Node::with_pod();
    let foreign = Foreign::new(&node);
    let plugin = json!({"type": "bridge"});
    for address in ACCEPTED {
        foreign.give(&json!({"address": address}));
        let result = foreign.call(&node, &pod, "ADD", &plugin).ok();
        assert_eq!(result["ips"][0]["address"], address);
        assert!(pod.cmd("ip address show eth0").contains(address), "{address}");
        foreign.call(&node, &pod, "DEL", &plugin).ok();
    }
}

#[test]
fn host_local_never_gives_impossible_addresses() {
    let node = Node::new();
    let config = |ipam: Value| {
        let mut config = json!({"cniVersion": "1.0.0", "name": "net", "type": "test", "ipam": ipam});
        config["ipam"]["type"] = "host-local".into();
        config
    };
    let call = |verb: &str, id: &str, config: &Value| {
        node.plugin("host-local")
            .command(verb)
            .container(id)
            .ifname("eth0")
            .netns("/run/netns/c")
            .config(config)
            .run()
    };
    slipway_only!();
    for subnet in ["127.0.0.0/24", "224.1.0.0/24", "0.0.0.0/8", "ff02::/64"] {
        let error = call("ADD", "c", &config(json!({"subnet": subnet}))).error();
        assert_eq!(error.code, 7, "{error:?}");
        assert!(error.msg.contains("no container can have address"), "{error:?}");
    }
    // A range may include the network and broadcast address, as in the reference; host-local skips them.
    let whole = json!({"subnet": "10.66.0.0/29", "rangeStart": "10.66.0.0", "rangeEnd": "10.66.0.7"});
    let ids: Vec<String> = (0..5).map(|number| format!("c{number}")).collect();
    let given: Vec<String> = ids
        .iter()
        .map(|id| {
            call("ADD", id, &config(whole.clone())).ok()["ips"][0]["address"]
                .as_str()
                .expect("a text")
                .to_owned()
        })
        .collect();
    assert_eq!(given, (2..=6).map(|host| format!("10.66.0.{host}/29")).collect::<Vec<_>>());
    assert!(call("ADD", "c9", &config(whole.clone())).error().msg.contains("no IP addresses available"));
    ids.iter().for_each(|id| drop(call("DEL", id, &config(whole.clone())).ok()));
}

/// flannel takes the addresses from flanneld's file and passes them to host-local.
#[test]
fn flannel_refuses_impossible_addresses() {
    slipway_only!();
    let (node, pod) = Node::with_pod();
    let env =
        "FLANNEL_NETWORK=127.0.0.0/16\nFLANNEL_SUBNET=127.0.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    node.write("/run/flannel/subnet.env", env);
    let network = node.network(json!({"name": "net", "plugins": [{"type": "flannel", "delegate": {}}]}));
    let failure = network.add(&Attach::new(&pod)).expect_err("ADD");
    assert_eq!(failure.error.code, 7, "{failure}");
    assert!(failure.error.msg.contains("it is a loopback address"), "{failure}");
    network.del(&Attach::new(&pod)).expect("DEL");
}

/// Chained plugins that use addresses refuse them, but delete an existing attachment that has one.
#[test]
fn chained_plugins_refuse_impossible_addresses_in_results() {
    slipway_only!();
    let (node, pod) = Node::with_pod();
    pod.cmd("ip link add eth0 up type veth peer name eth1");
    let plugins = [
        json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        json!({"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}),
        json!({"type": "firewall", "backend": "nftables"}),
        json!({"type": "sbr"}),
        json!({"type": "ipvlan", "master": "eth0", "linkInContainer": true}),
    ];
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    for plugin in plugins {
        let name = plugin["type"].as_str().expect("a type").to_owned();
        let network = node.network(json!({"name": "net", "cniVersion": "1.0.0", "plugins": [plugin]}));
        for (address, _) in REFUSED {
            let previous = json!({
                "cniVersion": "1.0.0",
                "interfaces": [{"name": "eth0", "sandbox": pod.path()}],
                "ips": [{"address": address, "interface": 0}],
            });
            let (rules, ruleset) = (pod.cmd("ip rule"), node.ruleset());
            let error = network.call_one(0, "ADD", &attach, &previous).error();
            assert_eq!(error.code, 7, "{name} {address}: {error:?}");
            assert!(error.msg.contains(&format!("no container can have address {address}: ")), "{error:?}");
            assert_eq!((pod.cmd("ip rule"), node.ruleset()), (rules, ruleset), "{name} {address}");
            network.call_one(0, "DEL", &attach, &previous).ok();
        }
        // ipvlan's DEL keeps the link, which another plugin made.
        assert!(pod.has_link("eth0"), "{name}");
    }
}

/// A service on the node's 127.0.0.1; a pod with a published port, for which portmap sets route_localnet on
/// its bridge; and a second attachment with 127.0.0.1 as the address in its previous result.
struct Scene {
    node: Node,
    web: Pod,
    other: Pod,
}

impl Scene {
    fn new() -> Self {
        let node = Node::without_bridge_netfilter();
        let (web, other) = (node.pod("web"), node.pod("other"));
        Self { node, web, other }
    }

    /// Adds the pods, then calls portmap for the second attachment, whose published port leads to the
    /// service. Returns the output of that call.
    fn publish(&self, portmap: &Value, dir: Option<&Reference>) -> Output {
        let ipam = json!({"type": "host-local", "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]});
        let bridge = json!({"type": "bridge", "isGateway": true, "ipam": ipam});
        let network =
            self.node.network(json!({"name": "net", "cniVersion": "1.0.0", "plugins": [bridge, portmap]}));
        let call = |at: usize, attach: &Attach, previous: &Value| {
            let mut config = network.configs(Some(attach)).swap_remove(at);
            if !previous.is_null() {
                config["prevResult"] = previous.clone();
            }
            let call = network.prepare("ADD", &config, Some(attach));
            match dir {
                Some(reference) if at == 1 => call.instead(&reference.plugin("portmap")).run(),
                _ => call.run(),
            }
        };
        let attach = Attach::new(&self.web).port(Proto::Tcp, 8080, 80);
        let result = call(0, &attach, &Value::Null).ok();
        call(1, &attach, &result).ok();
        call(0, &Attach::new(&self.other), &Value::Null).ok();
        let evil = Attach::new(&self.web).container("evil").port(Proto::Tcp, 8081, 7000).port(
            Proto::Udp,
            8081,
            7000,
        );
        let mut forged = result;
        forged["ips"][0]["address"] = "127.0.0.1/8".into();
        call(1, &evil, &forged)
    }

    /// True if another pod reaches the node's service through the published port.
    fn reaches_the_service(&self, proto: Proto, limit: Duration) -> bool {
        let _service = self.node.serve(proto, "127.0.0.1:7000", "service");
        let answer = self.other.request_from(proto, None, at([10, 88, 0, 1], 8081), limit);
        answer.is_ok_and(|answer| answer.who == "service")
    }
}

/// The control: with such a result, a port published by the reference opens the node's loopback to every pod.
#[test]
fn the_reference_lets_results_open_the_nodes_loopback_to_pods() {
    let reference = Reference::all().into_iter().next_back();
    let Some(reference) = reference else { skip!(REFERENCE) };
    let scene = Scene::new();
    scene
        .publish(
            &json!({"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}),
            Some(&reference),
        )
        .ok();
    assert!(scene.reaches_the_service(Proto::Tcp, patience()));
    assert!(scene.reaches_the_service(Proto::Udp, patience()));
}

#[test]
fn no_result_opens_the_nodes_loopback_to_pods() {
    slipway_only!();
    for backend in ["nftables", "iptables"] {
        let scene = Scene::new();
        let portmap = json!({"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}});
        let error = scene.publish(&portmap, None).error();
        assert_eq!(error.code, 7, "{error:?}");
        assert_eq!(error.msg, "no container can have address 127.0.0.1/8: it is a loopback address");
        assert!(!scene.reaches_the_service(Proto::Tcp, QUICK), "{backend}");
        assert!(!scene.reaches_the_service(Proto::Udp, QUICK), "{backend}");
    }
}
