// SPDX-License-Identifier: GPL-2.0-or-later

//! The flowtable setting, on kernels with and without a flowtable.

use slipway_tests::{BridgeNetfilter, Proto, has_flowtable};

use crate::table::devices;
use crate::world::{PORT, Web, World};

#[test]
fn an_add_succeeds_without_a_flowtable_and_check_node_warns() {
    let world = World::new(BridgeNetfilter::Off);
    let network = world.network(1);
    let web = Web::published(&world, &network, "web");
    for proto in Proto::ALL {
        for ip in world.node_ips() {
            world.client.expect(proto, (ip, PORT), "web");
        }
    }
    network.check(&web.attach).expect("CHECK");
    let report = world.node.try_slipway("check-node").stdout;
    let line = report.lines().find(|line| line.split_whitespace().nth(1) == Some("flowtable"));
    let line = line.unwrap_or_else(|| panic!("no finding about the flowtable: {report}"));
    if has_flowtable() {
        assert!(line.starts_with("ok") && line.contains("br1"), "{line}");
        assert!(devices(&world).is_some());
    } else {
        assert!(line.starts_with("warning"), "{line}");
        assert!(devices(&world).is_none());
    }
    network.del(&web.attach).expect("DEL");
}

#[test]
fn an_invalid_value_is_reported() {
    let world = World::new(BridgeNetfilter::Off);
    world.node.write("/etc/cni/slipway.json", r#"{"flowtable": "on"}"#);
    let network = world.network(1);
    let pod = world.node.pod("web");
    let error = network.add(&slipway_tests::Attach::new(&pod)).expect_err("no such value");
    assert_eq!(error.error.code, 7, "{error}");
    assert!(error.error.msg.contains("flowtable"), "{error}");
    let report = world.node.try_slipway("check-node").stdout;
    assert!(report.contains("slipway.json"), "{report}");
}
