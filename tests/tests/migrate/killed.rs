// SPDX-License-Identifier: GPL-2.0-or-later

//! A migration that is killed leaves every port served, and the next one completes it.

use serde_json::json;
use slipway_tests::{Disturbance, Proto, all_kill_points, disturbed, stride};

use crate::{LEGACY, Maker, NFT, PORT, Web, World};

/// The number of points to try in each direction, divided by [`stride`]. A run whose system calls differ from those of
/// the traced run may miss its point.
const SAMPLE: usize = 8;
/// The minimum number of points, however large [`stride`] is.
const AT_LEAST: usize = 3;

/// Kills migrations in both directions between two backends, the first of which is the maker's.
pub(super) fn killed_and_resumed(maker: &Maker, places: (&str, &str)) {
    let world = World::new(maker.variant);
    let network = world.network(1, "bridge", maker.backend, &json!({}));
    let web = Web::new(&world, maker, &network, "web", PORT);
    let call = |to: &str| world.node.plugin("slipway").arguments(&["migrate", "--to", to]);
    for (from, to) in [places, (places.1, places.0)] {
        let (output, points) = all_kill_points(&world.node, call(to));
        assert_eq!(output.process.code, Some(0), "{}", output.process);
        world.assert_is_in(to);
        world.migrated(from, 2);
        let points: Vec<_> = points.into_iter().filter(|point| point.after_change).collect();
        assert!(points.len() > 10, "too few to be true: {points:?}");
        let mut killed = 0;
        for point in points.iter().step_by(points.len().div_ceil((SAMPLE / stride()).max(AT_LEAST))) {
            let output = disturbed(&world.node, call(to), point, Disturbance::Kill);
            killed += usize::from(output.process.code != Some(0));
            for ip in world.node_ips() {
                for proto in Proto::ALL {
                    world.client.expect(proto, (ip, PORT), "web");
                }
            }
            let (report, code) = world.migrate(&format!("--to {to}"));
            assert_eq!(code, 0, "{to} after {point:?}: {report:#}");
            world.assert_is_in(to);
            network.check(&web.attach).unwrap_or_else(|e| panic!("{to} after {point:?}: CHECK: {e}"));
            let table = world.node.cmd("nft list map inet slipway owners");
            assert!(!table.contains("0x8") && !table.contains("0x4"), "in transit after {point:?}: {table}");
            world.migrated(from, 2);
        }
        assert!(killed > 0, "nothing was killed");
        world.migrated(to, 2);
    }
    network.del(&web.attach).expect("DEL");
    let all = world.everything();
    assert!(!all.contains("slipway1") && !all.contains("CNI-DN"), "{all}");
}

#[test]
fn with_iptables_nft() {
    killed_and_resumed(&NFT, ("iptables", "nftables"));
}

#[test]
fn with_iptables_legacy() {
    killed_and_resumed(&LEGACY, ("iptables", "nftables"));
}
