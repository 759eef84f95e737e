// SPDX-License-Identifier: GPL-2.0-or-later

//! dhcp with each plugin that makes a link, and a real server outside the node.

use serde_json::{Value, json};
use slipway_tests::{Attach, Proto, lacks, needs, skip, slipway_only};

use crate::stage::{Stage, address, has_dnsmasq};

/// Tests a lease that is obtained through the plugin's link. The server listens on `link` of another host.
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
    let before = stage.logged(&ack);
    network.check(&attach).expect("CHECK");
    stage.wait("the lease is renewed", || stage.logged(&ack) > before);
    network.del(&attach).expect("DEL");
    stage.wait("the server receives the release", || stage.logged(&format!("DHCPRELEASE({link}) {ip}")) == 1);
    assert!(!pod.has_link("eth0"));
    assert_eq!(stage.leases(), Vec::<String>::new());
}

/// Generates a test for each plugin from its configuration and the server's link.
macro_rules! has_a_lease {
    ($($test:ident: $keys:tt, $link:literal;)*) => {
        $(
            #[test]
            fn $test() {
                let config = json!($keys);
                slipway_only!();
                if let Some(feature) = lacks(config["type"].as_str().expect("a type")) {
                    skip!(feature);
                }
                needs!(has_dnsmasq(), "dnsmasq");
                has_a_lease(config, $link);
            }
        )*
    };
}

has_a_lease! {
    host_device: {"type": "host-device", "device": "out0"}, "eth0";
    // All ipvlan links share the master's MAC address, so the client requests broadcast replies.
    ipvlan: {"type": "ipvlan", "master": "out0"}, "eth0";
    macvlan: {"type": "macvlan", "master": "out0"}, "eth0";
    vlan: {"type": "vlan", "master": "out0", "vlanId": 5}, "eth0.5";
}
