// SPDX-License-Identifier: GPL-2.0-or-later

//! A node with two uplinks and strict reverse path filtering, which drops packets from distant hosts that come in
//! through the second uplink.

use std::net::IpAddr;

use serde_json::json;
use slipway_tests::{Proto, QUICK, at};

use crate::{PORT, Web, World};

#[test]
fn a_strict_filter_on_a_second_uplink_is_named() {
    const FAR: &str = "100.64.0.9";
    let world = World::new();
    let (node, client) = (&world.node, &world.client);
    for line in [
        "ip link add second type veth peer name eth9 netns client".to_owned(),
        "ip address add 10.66.0.1/24 dev second".to_owned(),
        "ip link set second up".to_owned(),
        format!("ip route add default via {}", client.v4),
        "ip route add default via 10.66.0.2 metric 100".to_owned(),
    ] {
        node.cmd(&line);
    }
    for line in [
        "ip address add 10.66.0.2/24 dev eth9".to_owned(),
        "ip link set eth9 up".to_owned(),
        format!("ip address add {FAR}/32 dev lo"),
    ] {
        client.cmd(&line);
    }
    for (space, link) in [(&**node, "second"), (&**client, "eth0")] {
        space.sysctl("net/ipv4/conf/all/rp_filter", "0");
        space.sysctl(&format!("net/ipv4/conf/{link}/rp_filter"), "0");
    }
    let network = world.network(1, "bridge", [json!({}), json!({})]);
    let web = Web::published(&world, &network, "web", PORT);
    let answers = || {
        let [from, to] = [FAR, "10.66.0.1"].map(|text| text.parse::<IpAddr>().expect("an address"));
        client.request_from(Proto::Tcp, Some(at(from, 0)), at(to, PORT), QUICK).is_ok()
    };
    assert!(answers(), "the control");
    node.sysctl("net/ipv4/conf/second/rp_filter", "1");
    assert!(!answers(), "strict");
    let item = "no strict reverse path filter on second (net/ipv4/conf/second/rp_filter)";
    let (report, code) = world.restore("");
    assert_eq!(code, 0, "{report:#}");
    let rows = report["items"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["item"] == item).expect("the object is listed");
    assert_eq!(row["state"], "skipped", "{row}");
    let first =
        rows.iter().find(|row| row["item"].as_str().is_some_and(|item| item.contains("filter on out0")));
    assert_eq!(first.expect("the first uplink")["state"], "present", "{report:#}");
    network.check(&web.attach).expect("CHECK: the setting is not the plugin's");
    assert!(node.try_slipway("check-node").stdout.contains(item));
    let explained = node.slipway(&format!("explain tcp 10.66.0.1:{PORT}"));
    assert!(explained.contains("replies to them leave by out0"), "{explained}");
    let reason = row["reason"].as_str().expect("a reason");
    node.cmd(reason.split('`').nth(1).expect("a command"));
    assert!(answers(), "after {reason}");
    web.leave(&world, &network);
}
