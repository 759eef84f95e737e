//! All plugins that make links, with a real server outside the node.

use serde_json::{Value, json};
use slipway_tests::{Attach, Proto, lacks, needs, skip};

use crate::stage::{Stage, address, has_dnsmasq};

/// A lease through the link of a plugin, whose packets reach `link` of a host outside.
fn has_a_lease(plugin: Value, link: &str) {
    let stage = Stage::new();
    let host = stage.node.host("server");
    if link != "eth0" {
        host.cmd(&format!("ip link add link eth0 name {link} type vlan id 5"));
        host.cmd(&format!("ip link set {link} up"));
    }
    host.cmd(&format!("ip address add 10.77.0.1/24 dev {link}"));
    stage.node.cmd("ip address flush dev lan0");
    stage.start_dnsmasq(&host, link, &[]);
    stage.start_daemon(&[]);
    let network = stage.network_of(plugin, &json!({}));
    let pod = stage.node.pod("pod");
    let attach = Attach::new(&pod);
    let ip = address(&network.add(&attach).expect("ADD"));
    let _server = host.serve(Proto::Tcp, "0.0.0.0:80", "server");
    let gateway: std::net::IpAddr = "10.77.0.1".parse().expect("an address");
    pod.expect(Proto::Tcp, (gateway, 80), "server");
    let ack = format!("DHCPACK({link}) {ip}");
    let before = stage.said(&ack);
    network.check(&attach).expect("CHECK");
    stage.wait("the lease is renewed", || stage.said(&ack) > before);
    network.del(&attach).expect("DEL");
    stage.wait("the server hears it", || stage.said(&format!("DHCPRELEASE({link}) {ip}")) == 1);
    assert!(!pod.has_link("eth0"));
    assert_eq!(stage.leases(), Vec::<String>::new());
}

#[test]
fn macvlan() {
    ours_alone!();
    if let Some(feature) = lacks("macvlan") {
        skip!(feature);
    }
    needs!(has_dnsmasq(), "dnsmasq");
    has_a_lease(json!({"type": "macvlan", "master": "out0"}), "eth0");
}

/// All containers have the master's address: the server is asked to answer everybody.
#[test]
fn ipvlan() {
    ours_alone!();
    if let Some(feature) = lacks("ipvlan") {
        skip!(feature);
    }
    needs!(has_dnsmasq(), "dnsmasq");
    has_a_lease(json!({"type": "ipvlan", "master": "out0"}), "eth0");
}

#[test]
fn vlan() {
    ours_alone!();
    if let Some(feature) = lacks("vlan") {
        skip!(feature);
    }
    needs!(has_dnsmasq(), "dnsmasq");
    has_a_lease(json!({"type": "vlan", "master": "out0", "vlanId": 5}), "eth0.5");
}

#[test]
fn host_device() {
    needs_dnsmasq!();
    has_a_lease(json!({"type": "host-device", "device": "out0"}), "eth0");
}
