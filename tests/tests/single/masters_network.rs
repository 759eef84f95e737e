// SPDX-License-Identifier: GPL-2.0-or-later

//! Helpers for macvlan and ipvlan, whose containers are on their master's network.

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{Network, Pod, Proto, address_of};

use crate::PLUGIN;
use crate::single::{World, add};

pub(crate) fn plugin() -> Value {
    json!({"master": "out0"})
}

/// A world whose outside host is the gateway of the containers' subnet.
pub(crate) fn with_gateway() -> Option<World> {
    let world = World::new()?;
    world.client.cmd("ip address add 10.60.1.1/24 dev eth0");
    world.client.cmd("ip address add fd00:60:1::1/64 dev eth0 nodad");
    Some(world)
}

/// The attributes of the container's link as the kernel reports them.
pub(crate) fn info(pod: &Pod) -> Value {
    let link = pod.link("eth0");
    assert_eq!(link["linkinfo"]["info_kind"], PLUGIN, "{link}");
    link["linkinfo"]["info_data"].clone()
}

/// Asserts that two containers and the outside host reach each other with their own addresses. Returns the results of
/// the two ADDs.
#[track_caller]
pub(crate) fn all_meet(world: &World, network: &Network<'_>, one: &Pod, two: &Pod) -> [Value; 2] {
    let results = [add(network, one), add(network, two)];
    let _servers = [
        one.serve(Proto::Tcp, "[::]:80", "one"),
        one.serve(Proto::Udp, "[::]:80", "one"),
        world.client.serve(Proto::Tcp, "[::]:80", "client"),
        world.client.serve(Proto::Udp, "[::]:80", "client"),
    ];
    for proto in Proto::ALL {
        for (family, gateway) in ["10.60.1.1", "fd00:60:1::1"].into_iter().enumerate() {
            let gateway: IpAddr = gateway.parse().expect("an address");
            let (peer, own) = (address_of(&results[0], family), address_of(&results[1], family));
            assert_eq!(two.expect(proto, (gateway, 80), "client").peer.ip(), own);
            assert_eq!(world.client.expect(proto, (peer, 80), "one").peer.ip(), gateway);
            assert_eq!(two.expect(proto, (peer, 80), "one").peer.ip(), own);
        }
    }
    results
}

/// Asserts that neighbours are notified when an address has moved.
#[track_caller]
pub(crate) fn neighbours_are_notified(pod: &Pod) {
    assert_eq!(pod.sysctl_get("net/ipv4/conf/eth0/arp_notify").as_deref(), Some("1"));
    assert_eq!(pod.sysctl_get("net/ipv6/conf/eth0/ndisc_notify").as_deref(), Some("1"));
}
