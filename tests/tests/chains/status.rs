// SPDX-License-Identifier: GPL-2.0-or-later

//! STATUS of a list, which says whether the next ADD can succeed.

use serde_json::{Value, json};

use crate::world::{Chain, World};

/// The plugin that must report the problem, and a change of the node or the list that causes it.
type Cause = (&'static str, fn(&World, &mut Value));

const NO_ADDRESSES: Cause = ("bridge", |_, list| list["plugins"][0]["ipam"] = no_addresses());

pub(crate) fn status_reports_each_plugins_failure(world: &World) {
    world.node.network(world.chain.modern()).status().expect("STATUS of a good node");
    let causes: &[Cause] = match world.chain {
        Chain::Everything(_) => &[
            NO_ADDRESSES,
            ("bridge", |_, list| list["plugins"][0]["ipam"]["type"] = "absent".into()),
            ("portmap", |_, list| list["plugins"][1]["markMasqBit"] = 99.into()),
            ("bandwidth", |_, list| list["plugins"][2]["ingressRate"] = 1000.into()),
            ("firewall", |_, list| list["plugins"][3]["backend"] = "firewalld".into()),
            ("tuning", |world, list| {
                world.node.write("/run/file", "");
                list["plugins"][4]["dataDir"] = "/run/file".into();
            }),
        ],
        Chain::Routed => &[
            ("ptp", |_, list| list["plugins"][0]["ipam"] = no_addresses()),
            ("portmap", |world, list| {
                list["plugins"][0]["ipMasq"] = false.into();
                world.node.nft("add table inet slipway\nadd chain inet slipway theirs\n");
            }),
        ],
        Chain::Second => &[
            ("macvlan", |_, list| list["plugins"][0]["master"] = "absent".into()),
            ("macvlan", |_, list| list["plugins"][0]["ipam"] = no_addresses()),
            ("sbr", |_, list| list["plugins"][1]["gateways"] = json!(["10.60.1.1", "10.60.1.2"])),
        ],
        Chain::Flannel => &[
            ("flannel", |_, list| list["plugins"][0]["delegate"]["type"] = "absent".into()),
            ("flannel", |world, _| drop(world.node.cmd("rm /run/flannel/subnet.env"))),
        ],
        Chain::Kubenet => &[
            NO_ADDRESSES,
            ("portmap", |world, _| world.node.nft("add table inet slipway\nadd chain inet slipway theirs\n")),
        ],
    };
    for (plugin, cause) in causes {
        let mut list = world.chain.modern();
        cause(world, &mut list);
        let failure = world.node.network(list.clone()).status().expect_err(&format!("{plugin}: {list}"));
        assert_eq!(failure.plugin, *plugin, "{failure}");
        assert!([7, 50, 999].contains(&failure.error.code), "{failure}");
    }
}

/// Returns a range whose only address is the gateway's.
fn no_addresses() -> Value {
    json!({"type": "host-local", "subnet": "10.77.1.0/24", "rangeStart": "10.77.1.1", "rangeEnd": "10.77.1.1"})
}
