// SPDX-License-Identifier: GPL-2.0-or-later

//! static: addresses from the configuration or the runtime, on containers that use them.

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Node, Output, Proto, REFERENCE, Reference, is_peer, newest_version, peer_fails, skip,
};

fn config(ipam: Value) -> Value {
    let mut config = json!({"cniVersion": "1.0.0", "name": "net", "type": "test", "ipam": ipam});
    config["ipam"]["type"] = "static".into();
    config
}

fn call(node: &Node, verb: &str, config: &Value, args: &str) -> Output {
    let call = node.plugin("static").command(verb).container("c").ifname("eth0").netns("/run/netns/c");
    call.args(args).config(config).run()
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    ips.iter().map(|ip| format!("{} {}", text(&ip["address"]), text(&ip["gateway"]))).collect()
}

/// Two containers on a bridge reach each other and the node with their static addresses.
#[test]
fn containers_use_their_addresses() {
    let node = Node::without_bridge_netfilter();
    let list = |host: u8| {
        json!({"name": "net", "plugins": [{
            "type": "bridge", "bridge": "br0", "isGateway": true,
            "capabilities": {"ips": true},
            "ipam": {
                "type": "static",
                "addresses": [
                    {"address": format!("10.88.0.{host}/24"), "gateway": "10.88.0.1"},
                    {"address": format!("fd00:88::{host}/64"), "gateway": "fd00:88::1"},
                ],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                "dns": {"nameservers": ["10.88.0.1"], "search": ["a.test"]},
            },
        }]})
    };
    let (one, two) = (node.pod("one"), node.pod("two"));
    let (network, other) = (node.network(list(5)), node.network(list(6)));
    let result = network.add(&Attach::new(&one)).expect("ADD");
    assert_eq!(addresses(&result), ["10.88.0.5/24 10.88.0.1", "fd00:88::5/64 fd00:88::1"]);
    assert_eq!(result["dns"], json!({"nameservers": ["10.88.0.1"], "search": ["a.test"]}));
    other.add(&Attach::new(&two)).expect("ADD");
    for text in ["10.88.0.5:80", "[fd00:88::5]:80"] {
        let address: std::net::SocketAddr = text.parse().expect("an address");
        let _server = one.serve(Proto::Tcp, text, "one");
        two.expect(Proto::Tcp, address, "one");
        node.expect(Proto::Tcp, address, "one");
    }
    network.check(&Attach::new(&one)).expect("CHECK");
    network.del(&Attach::new(&one)).expect("DEL");
    network.del(&Attach::new(&one)).expect("DEL again");
    // The container gets the address that the runtime requests, and the bridge determines the gateway.
    let attach = Attach::new(&one).capability("ips", json!(["10.88.0.77/24"]));
    let result = network.add(&attach).expect("ADD");
    assert_eq!(addresses(&result), ["10.88.0.77/24 10.88.0.1"]);
    assert!(one.cmd("ip -br address show eth0").contains("10.88.0.77/24"));
    network.check(&attach).expect("CHECK");
    other.del(&Attach::new(&two)).expect("DEL");
    network.del(&attach).expect("DEL");
}

/// Configurations and values of `CNI_ARGS` for which the outcome is compared.
fn cases() -> Vec<(Value, &'static str)> {
    let one = json!({"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]});
    let with = |ipam: &Value, key: &str, value: Value| {
        let mut config = config(ipam.clone());
        config[key] = value;
        config
    };
    vec![
        (config(one.clone()), ""),
        (config(json!({})), ""),
        (config(one.clone()), "IP=10.2.0.5/24,10.3.0.5/24;GATEWAY=10.2.0.1, 10.3.0.1"),
        (config(one.clone()), "K8S_POD_NAME=a;IgnoreUnknown=1;IP=fd00::5/64"),
        (config(one.clone()), "K8S_POD_NAME=a"),
        (config(one.clone()), "IP=10.2.0.5"),
        (config(json!({})), "GATEWAY=x"),
        (with(&one, "args", json!({"cni": {"ips": ["10.4.0.5/24"]}})), "IP=10.2.0.5/24"),
        (with(&one, "runtimeConfig", json!({"ips": ["10.5.0.5/24", "fd00::9/64"]})), ""),
        (with(&one, "runtimeConfig", json!({"ips": ["10.5.0.5"]})), ""),
        (with(&one, "runtimeConfig", json!({"ips": []})), ""),
        (config(json!({"addresses": [{"address": "10.1.0.5"}]})), ""),
        (config(json!({"addresses": [{"gateway": "10.1.0.5"}]})), ""),
        (config(json!({"addresses": [{"address": "10.1.0.5/24"}, {"address": "10.1.0.6/24"}]})), ""),
        (
            with(
                &json!({"addresses": [{"address": "10.1.0.5/24"}, {"address": "10.1.0.6/24"}]}),
                "cniVersion",
                "0.2.0".into(),
            ),
            "",
        ),
        (
            config(json!({
                "addresses": [{"address": "10.1.0.5/24"}],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.9"}],
                "dns": {"nameservers": ["10.1.0.1"], "domain": "a.test", "search": ["b.test"], "options": ["ndots:5"]},
            })),
            "",
        ),
        (with(&one, "cniVersion", "0.2.0".into()), ""),
        (with(&one, "cniVersion", "0.4.0".into()), ""),
    ]
}

/// The results are identical to those of the reference plugin. So are the messages, except that Slipway's may begin
/// with the path of a value.
#[test]
fn results_and_messages_are_the_references() {
    let Some(reference) = Reference::any().map(|reference| reference.plugin("static")) else {
        skip!(REFERENCE);
    };
    let node = Node::new();
    for (config, args) in cases() {
        let call =
            || node.plugin("static").command("ADD").container("c").ifname("eth0").netns("/run/netns/c");
        let ours = call().args(args).config(&config).run().result();
        let theirs = call().args(args).config(&config).instead(&reference).run().result();
        match (ours, theirs) {
            (Ok(ours), Ok(mut theirs)) => {
                // The reference plugin of that time wrote an empty `dns` in results of version 1.0.0.
                if config["cniVersion"] == "1.0.0" && theirs["dns"] == json!({}) {
                    drop(theirs.as_object_mut().expect("an object").remove("dns"));
                }
                assert_eq!(ours, theirs, "{config} {args}");
            }
            (Err(ours), Err(theirs)) => {
                assert!(ours.msg.ends_with(&theirs.msg), "{config} {args}: {ours:?}, theirs {theirs:?}");
            }
            (ours, theirs) => panic!("{config} {args}: {ours:?}, theirs {theirs:?}"),
        }
    }
}

/// A gateway in `CNI_ARGS` applies to each address whose subnet contains it.
#[test]
fn cni_args_may_have_a_gateway_without_addresses() {
    peer_fails("it looks for the addresses of CNI_ARGS alone", || {
        let node = Node::new();
        let config = config(json!({"addresses": [{"address": "10.1.0.5/24"}, {"address": "fd00::5/64"}]}));
        let result = call(&node, "ADD", &config, "GATEWAY=10.1.0.1").ok();
        assert_eq!(addresses(&result), ["10.1.0.5/24 10.1.0.1", "fd00::5/64 -"]);
    });
}

#[test]
fn check_compares_gateways() {
    let node = Node::new();
    let mut config = config(json!({"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]}));
    assert_eq!(call(&node, "CHECK", &config, "").error().msg, "Required prevResult missing");
    config["prevResult"] = call(&node, "ADD", &config, "").ok();
    assert!(call(&node, "CHECK", &config, "").ok().is_null());
    config["prevResult"]["ips"][0]["gateway"] = "10.1.0.2".into();
    let error = call(&node, "CHECK", &config, "").error();
    assert_eq!(error.msg, "static: Failed to match addr 10.1.0.5 on interface eth0");
    // CHECK accepts that another plugin has removed an address from the result.
    config["prevResult"]["ips"] = json!([]);
    assert!(call(&node, "CHECK", &config, "").ok().is_null());
}

#[test]
fn status_reports_an_invalid_configuration() {
    if newest_version() == "1.0.0" {
        return;
    }
    let node = Node::new();
    let mut config = config(json!({"addresses": [{"address": "10.1.0.5/24"}]}));
    config["cniVersion"] = "1.1.0".into();
    let status = |config: &Value| node.plugin("static").command("STATUS").config(config).run();
    assert!(status(&config).ok().is_null());
    config["cni.dev/valid-attachments"] = json!([]);
    assert!(node.plugin("static").command("GC").config(&config).run().ok().is_null());
    if !is_peer() {
        config["ipam"]["addresses"][0]["address"] = "10.1.0.5".into();
        let error = status(&config).error();
        assert_eq!(error.msg, "the 'address' field is expected to be in CIDR notation, got: '10.1.0.5'");
    }
}
