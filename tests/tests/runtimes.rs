// SPDX-License-Identifier: GPL-2.0-or-later

//! The call sequences of real runtimes, as they were recorded: same environments, same keys, same order.

use serde_json::{Value, json};
use slipway_tests::{
    BridgeNetfilter, Node, Output, Pod, Proto, Snapshot, is_peer, newest_version, peer_fails,
};

fn node() -> Node {
    let node = Node::new();
    node.bridge_netfilter(BridgeNetfilter::Off);
    node
}

/// A call with all six variables, as libcni makes it.
fn call(node: &Node, verb: &str, config: &Value, to: &To<'_>) -> Output {
    let name = config["type"].as_str().expect("a type");
    let call = node.plugin(name).command(verb).config(config).env("CNI_NETNS", to.netns);
    call.container(to.container).ifname(to.ifname).args(to.args).run()
}

struct To<'a> {
    container: &'a str,
    netns: &'a str,
    ifname: &'a str,
    args: &'a str,
}

const NOBODY: To<'static> = To { container: "", netns: "", ifname: "", args: "" };

fn with(config: &Value, key: &str, value: &Value) -> Value {
    let mut config = config.clone();
    config[key] = value.clone();
    config
}

fn without(config: &Value, key: &str) -> Value {
    let mut config = config.clone();
    config.as_object_mut().expect("an object").remove(key);
    config
}

fn netns(pod: &Pod) -> &str {
    pod.path().to_str().expect("a plain path")
}

fn address(result: &Value) -> String {
    let ip = result["ips"][0]["address"].as_str().expect("an address");
    ip.split('/').next().expect("an address").to_owned()
}

fn bridge(version: &str, name: &str, link: &str) -> Value {
    json!({
        "cniVersion": version, "name": name, "type": "bridge", "bridge": link,
        "isGateway": true, "ipMasq": true, "hairpinMode": true,
        "ipam": {
            "type": "host-local", "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}]],
        },
    })
}

/// The state that must be gone in the end: all but the shared objects of the first ADD.
fn state(node: &Node, pod: &Pod) -> Snapshot {
    // The address index is derived from the reservations.
    let derived = "networks/.slipway/";
    Snapshot::take(node, &[pod]).without(&[
        "last_reserved_ip",
        derived,
        "address \"lo\"",
        "link lo",
        " dev lo ",
    ])
}

/// containerd 1.6 to 2.1: capitalised keys, the pod's loopback with an old version, STATUS again and
/// again, and every pod gets DEL twice, the second time with an empty namespace and no prevResult.
#[test]
fn containerd() {
    const ID: &str = "2f1c1cbe6d4cd08a3cdb1e5fa1e7c2a9ff84a1f6ce0e7b0ab52cf6ab2a5b3f04";
    const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;\
        K8S_POD_INFRA_CONTAINER_ID=2f1c1cbe6d4cd08a3cdb1e5fa1e7c2a9ff84a1f6ce0e7b0ab52cf6ab2a5b3f04;\
        K8S_POD_UID=6f2a4e9a-5e07-4a3f-9d52-3f0a4f6f3d11";
    let node = node();
    let client = node.host("client");
    let loopback = json!({"cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback"});
    let bridge = bridge(newest_version(), "containerd-net", "cni0");
    let portmap = json!({
        "cniVersion": newest_version(), "name": "containerd-net", "type": "portmap",
        "capabilities": {"portMappings": true}, "snat": true,
        "runtimeConfig": {"portMappings": [
            {"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""},
            {"HostPort": 8053, "ContainerPort": 53, "Protocol": "udp", "HostIP": ""},
        ]},
    });
    // A first pod is added and deleted, so that the bridge and the tables exist.
    let round = |name: &str, id: &str, serve: bool| {
        let pod = node.pod(name);
        let to = To { container: id, netns: netns(&pod), ifname: "eth0", args: ARGS };
        let lo = To { ifname: "lo", ..to };
        let before = state(&node, &pod);
        if newest_version() == "1.1.0" {
            for config in [&bridge, &portmap] {
                assert!(call(&node, "STATUS", &without(config, "runtimeConfig"), &NOBODY).ok().is_null());
            }
        }
        let result = call(&node, "ADD", &loopback, &lo).ok();
        assert_eq!(result["cniVersion"], "0.3.1");
        if !is_peer() {
            // The reference's loopback does not convert its result.
            assert_eq!(result["dns"], json!({}), "an old result keeps its empty dns");
        }
        let first = call(&node, "ADD", &bridge, &to).ok();
        let result = call(&node, "ADD", &with(&portmap, "prevResult", &first), &to).ok();
        assert_eq!(result["ips"], first["ips"]);
        if serve {
            let ip = address(&result);
            let _web = pod.serve(Proto::Tcp, &format!("{ip}:80"), "web");
            let _dns = pod.serve(Proto::Udp, &format!("{ip}:53"), "dns");
            client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
            client.expect(Proto::Udp, (client.node_v4, 8053), "dns");
        }
        // StopPodSandbox
        call(&node, "DEL", &with(&loopback, "prevResult", &result), &lo).ok();
        for config in [&portmap, &bridge] {
            assert!(call(&node, "DEL", &with(config, "prevResult", &result), &to).ok().is_null());
        }
        client.expect_none(Proto::Tcp, (client.node_v4, 8080));
        if serve {
            before.assert_same(&state(&node, &pod));
        }
        // RemovePodSandbox: the namespace is gone by now.
        pod.remove();
        let again = To { container: id, netns: "", ifname: "eth0", args: ARGS };
        call(&node, "DEL", &loopback, &To { ifname: "lo", ..again }).ok();
        for config in [&portmap, &bridge] {
            assert!(call(&node, "DEL", config, &again).ok().is_null());
        }
    };
    round("cni-first", "first", false);
    round("cni-0f0c7d4b-2b3c-4b0e-8a60-0d9f6c6c8a11", ID, true);
}

/// podman 4.3: VERSION of every plugin before ADD and DEL, specification 0.4.0.
#[test]
fn podman() {
    const ID: &str = "c5ad3a3cb9d0a1a1b2cce9a6f0b02ed1d53ecf2cf6a0cb7bf6a9d6a2b8f7a3e0";
    const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=web;K8S_POD_NAME=web";
    let node = node();
    let client = node.host("client");
    let bridge = bridge("0.4.0", "podman", "cni-podman0");
    let portmap = json!({
        "cniVersion": "0.4.0", "name": "podman", "type": "portmap",
        "capabilities": {"portMappings": true},
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},
    });
    let versions = || {
        for name in ["bridge", "portmap"] {
            let call = node.plugin(name).command("VERSION").container("dummy").netns("dummy");
            let answer = call.ifname("dummy").args("").stdin("{\"cniVersion\":\"1.0.0\"}").run().ok();
            let supported = answer["supportedVersions"].as_array().expect("a list");
            assert!(supported.contains(&"0.4.0".into()), "{answer}");
            assert!(supported.contains(&answer["cniVersion"]), "{answer}");
        }
    };
    for round_name in ["one", "two"] {
        let pod = node.pod(&format!("netns-{round_name}"));
        let to = To { container: ID, netns: netns(&pod), ifname: "eth0", args: ARGS };
        let before = state(&node, &pod);
        versions();
        let first = call(&node, "ADD", &bridge, &to).ok();
        assert_eq!(first["cniVersion"], "0.4.0");
        assert_eq!(first["ips"][0]["version"], "4");
        assert_eq!(first["ips"][0]["interface"], 2);
        assert_eq!(first["interfaces"][2]["sandbox"], netns(&pod));
        assert_eq!(first["dns"], json!({}));
        let result = call(&node, "ADD", &with(&portmap, "prevResult", &first), &to).ok();
        assert_eq!(result, first);
        let server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
        client.expect(Proto::Tcp, (client.node_v4, 8080), "web");
        node.expect(Proto::Tcp, ([127, 0, 0, 1], 8080), "web");
        drop(server);
        versions();
        for config in [&portmap, &bridge] {
            call(&node, "DEL", &with(config, "prevResult", &result), &to).ok();
        }
        if round_name == "two" {
            before.assert_same(&state(&node, &pod));
        }
    }
}

/// CRI-O: VERSION, STATUS and GC with null lists at its start; ADD is followed at once by CHECK; CHECK
/// again after a restart. It passes no portMappings.
#[test]
fn crio() {
    peer_fails("GC does nothing, and 1.1.1 has no STATUS", || {
        const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web";
        let node = node();
        let bridge = bridge("1.1.0", "crio", "cni0");
        let portmap = json!({
            "cniVersion": "1.1.0", "name": "crio", "type": "portmap", "capabilities": {"portMappings": true},
        });
        let plugins = [&bridge, &portmap];
        let start = |valid: &Value| {
            for config in plugins {
                let name = config["type"].as_str().expect("a type");
                let answer = node.plugin(name).command("VERSION").stdin("{}").run().ok();
                assert_eq!(answer["cniVersion"], "1.1.0");
                assert!(call(&node, "STATUS", config, &NOBODY).ok().is_null());
            }
            for config in plugins {
                let config = with(config, "cni.dev/valid-attachments", valid);
                let config = with(&config, "cni.dev/attachments", valid);
                assert!(call(&node, "GC", &config, &NOBODY).ok().is_null());
            }
        };
        let add = |id: &str, pod: &Pod| {
            let to = To { container: id, netns: netns(pod), ifname: "eth0", args: ARGS };
            let first = call(&node, "ADD", &bridge, &to).ok();
            let result = call(&node, "ADD", &with(&portmap, "prevResult", &first), &to).ok();
            assert_eq!(result, first, "without ports portmap passes the result on");
            for config in plugins {
                assert!(call(&node, "CHECK", &with(config, "prevResult", &result), &to).ok().is_null());
            }
            result
        };
        start(&Value::Null);
        let (one, two) = (node.pod("one"), node.pod("two"));
        let first = add("pod-one", &one);
        let second = add("pod-two", &two);
        // A restart with both pods alive, then one without the first.
        let valid = |ids: &[&str]| -> Value {
            ids.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect()
        };
        start(&valid(&["pod-one", "pod-two"]));
        for (id, pod, result) in [("pod-one", &one, &first), ("pod-two", &two, &second)] {
            let to = To { container: id, netns: netns(pod), ifname: "eth0", args: ARGS };
            for config in plugins {
                call(&node, "CHECK", &with(config, "prevResult", result), &to).ok();
            }
        }
        one.remove();
        start(&valid(&["pod-two"]));
        let reserved = node.list("/var/lib/cni/networks/crio");
        assert!(!reserved.contains(&address(&first)), "{reserved:?}");
        assert!(reserved.contains(&address(&second)), "{reserved:?}");
        // GC without a list removes nothing.
        for config in plugins {
            let _any = call(&node, "GC", config, &NOBODY).result();
        }
        assert!(node.list("/var/lib/cni/networks/crio").contains(&address(&second)));
        assert!(node.ruleset().contains(&address(&second)), "the pod is still masqueraded");
        // A reboot: no pods, and both lists are null. All that is left of the network goes.
        two.remove();
        start(&Value::Null);
        let state = Snapshot::take(&node, &[]);
        for gone in [address(&first), address(&second)] {
            let left = state.matching(&format!("/networks/crio/{gone}"));
            assert!(left.is_empty(), "{left:#?}");
        }
        let left: Vec<_> =
            state.matching("nft element").into_iter().filter(|line| line.contains("pod-")).collect();
        assert!(left.is_empty(), "{left:#?}");
    });
}
