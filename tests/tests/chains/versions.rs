// SPDX-License-Identifier: GPL-2.0-or-later

//! The longest list in every version of the specification that its plugins support.

use serde_json::{Value, json};
use slipway_tests::Proto;

use crate::world::{Chain, PORT, SERVED, World, address};

#[test]
fn the_longest_list_works_in_every_version() {
    let Some(world) = World::of(Chain::Everything("nftables")) else { return };
    world.warm_up();
    let pod = world.pod("pod");
    let before = world.state(&[&pod]);
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let mut list = world.chain.list();
        list["cniVersion"] = version.into();
        if version == "0.3.1" {
            // firewall does not support the older versions.
            let refused = world.node.network(list.clone());
            let config = refused.configs(None).swap_remove(3);
            let error = refused.call("ADD", &config, Some(&world.chain.attach(&pod, PORT))).error();
            assert_eq!((error.code, &*error.msg), (1, "incompatible CNI versions"));
            list["plugins"].as_array_mut().expect("plugins").remove(3);
        }
        let network = world.node.network(list);
        let attach = world.chain.attach(&pod, PORT);
        let result = network.add(&attach).unwrap_or_else(|failure| panic!("{version}: {failure}"));
        has_the_form(version, &result);
        let _server = pod.serve(Proto::Tcp, &format!("{}:{SERVED}", address(&result, 0)), "pod");
        world.client.expect(Proto::Tcp, (world.client.node_v4, PORT), "pod");
        match version {
            "0.3.1" => {}
            _ => network.check(&attach).unwrap_or_else(|failure| panic!("{version}: CHECK: {failure}")),
        }
        network.del(&attach).unwrap_or_else(|failure| panic!("{version}: DEL: {failure}"));
        before.assert_same(&world.state(&[&pod]));
    }
}

fn has_the_form(version: &str, result: &Value) {
    assert_eq!(result["cniVersion"], version);
    let kinds: Vec<&str> = result["interfaces"].as_array().expect("interfaces").iter().map(kind).collect();
    assert_eq!(kinds, ["all1", "veth", "eth0", "bwp"], "{result}");
    // Until 1.0.0, addresses in results had a `version` field.
    let families: Vec<&Value> =
        result["ips"].as_array().expect("ips").iter().map(|ip| &ip["version"]).collect();
    match version.starts_with('0') {
        true => assert_eq!(families, [&json!("4"), &json!("6")], "{result}"),
        false => assert!(families.iter().all(|family| family.is_null()), "{result}"),
    }
    assert_eq!(result["interfaces"][2]["mac"], crate::world::MAC, "not the MAC address set by tuning");
}

fn kind(interface: &Value) -> &str {
    let name = interface["name"].as_str().expect("a name");
    ["veth", "bwp"].into_iter().find(|kind| name.starts_with(kind)).unwrap_or(name)
}
