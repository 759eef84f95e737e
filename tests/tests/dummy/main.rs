// SPDX-License-Identifier: GPL-2.0-or-later

//! The dummy plugin.

#[path = "../single/mod.rs"]
mod single;

use serde_json::{Value, json};
use slipway_tests::{Attach, Proto, address_of, peer_fails, skip};

use single::{World, add};

const PLUGIN: &str = "dummy";
const NEEDS: &str = "dummy links";

fn plugin(_: u16) -> Value {
    json!({})
}

#[test]
fn the_container_reaches_only_its_own_address() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let result = add(&world.network(1, &json!({})), &pod);
    assert_eq!(pod.link("eth0")["linkinfo"]["info_kind"], "dummy");
    pod.cmd("ip link set lo up");
    let _server = pod.serve(Proto::Tcp, "[::]:80", "pod");
    for family in [0, 1] {
        pod.expect(Proto::Tcp, (address_of(&result, family), 80), "pod");
    }
    // The dummy device drops outgoing packets.
    pod.expect_none(Proto::Udp, (std::net::IpAddr::from([10, 60, 1, 1]), 80));
}

#[test]
fn ipam_is_required() {
    let Some((world, pod)) = World::with_pod() else { skip!(NEEDS) };
    let network = world.network(1, &json!({"ipam": {}}));
    let before = world.state(&[&pod]);
    let failure = network.add(&Attach::new(&pod)).expect_err("no IPAM");
    assert_eq!(failure.error.msg, "dummy interface requires an IPAM configuration");
    before.assert_same(&world.state(&[&pod]));
    peer_fails("calls an IPAM plugin without a name", || {
        assert_eq!(failure.error.code, 7);
        network.del(&Attach::new(&pod)).expect("DEL");
    });
}
