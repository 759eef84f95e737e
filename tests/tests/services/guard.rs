// SPDX-License-Identifier: GPL-2.0-or-later

//! Translations in the table must never lead to the node's loopback or to a multicast group.

use std::net::IpAddr;

use slipway_tests::{Proto, at};

use crate::{Backend, PORT, Stage, address};

/// Only an earlier version or an administrator could have made this element.
#[test]
fn an_element_for_the_loopback_does_not_open_it() {
    let stage = Stage::new(Backend::Nftables);
    let _ingress = stage.publish();
    for bad in ["127.0.0.1", "::1"] {
        let ip: IpAddr = address(bad);
        let map = if ip.is_ipv4() { "hostports4" } else { "hostports6" };
        for proto in Proto::ALL {
            let element = format!("{{ {} . 9999 : {ip} . {PORT} }}", proto.name());
            stage.node.nft(&format!("add element inet slipway {map} {element}"));
        }
    }
    stage.node.sysctl("net/ipv4/conf/all/route_localnet", "1");
    stage.node.cmd("ip -6 route add local ::1/128 dev out0 table local metric 2000");
    let secret = ["127.0.0.1", "::1"].map(|ip| {
        Proto::ALL.map(|proto| stage.node.serve(proto, &at(address(ip), 7777).to_string(), "secret"))
    });
    for map in ["hostports4", "hostports6"] {
        let to = if map == "hostports4" { "127.0.0.1" } else { "::1" };
        for proto in Proto::ALL {
            stage
                .node
                .nft(&format!("add element inet slipway {map} {{ {} . 9998 : {to} . 7777 }}", proto.name()));
        }
    }
    for client in [&*stage.client, &*stage.client_pod] {
        let node = [IpAddr::from(stage.client.node_v4), stage.client.node_v6.into()];
        let each = |proto: Proto| node.map(|address| (proto, at(address, 9998)));
        client.expect_none_of(Proto::ALL.into_iter().flat_map(each));
    }
    // Another engine is allowed to translate to the loopback.
    stage.node.nft(
        "table ip proxy { chain prerouting { type nat hook prerouting priority dstnat - 5; \
         tcp dport 9997 dnat to 127.0.0.1:7777; }; }",
    );
    stage.client.expect(Proto::Tcp, at(stage.client.node_v4, 9997), "secret");
    drop(secret);
    // Replies to the node's own loopback pass.
    stage.expect_published("guarded");
}
