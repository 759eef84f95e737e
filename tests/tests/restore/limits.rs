// SPDX-License-Identifier: GPL-2.0-or-later

//! Damage to the bandwidth plugin's limits by users of tc(8): packets pass without a limit, every reader reports that,
//! and `restore` puts the limit back.

use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{Attach, Fate, Network, Pod, fate_of_burst, host_local};

use crate::{World, count};

/// The limits in bits per second.
const RATE: u32 = 400_000;

/// A container with limits in both directions that is in the runtime's cache.
struct Limited<'a> {
    world: &'a World,
    network: Network<'a>,
    attach: Attach,
    pod: Pod,
    /// The addresses of the container and of its gateway.
    address: IpAddr,
    gateway: IpAddr,
    veth: String,
    device: String,
}

impl<'a> Limited<'a> {
    fn new(world: &'a World) -> Self {
        let bridge = json!({
            "type": "bridge", "bridge": "br0", "isGateway": true, "ipam": host_local("10.88.1.0/24", "fd00:88:1::/64"),
        });
        let limits = json!({
            "type": "bandwidth", "ingressRate": RATE, "ingressBurst": 24_224, "egressRate": RATE,
            "egressBurst": 24_224,
        });
        let network = world.node.network(json!({"name": "net1", "plugins": [bridge, limits]}));
        let pod = world.node.pod("web");
        let attach = Attach::new(&pod);
        let result = network.add(&attach).expect("ADD");
        network.write_cache(&attach);
        let link = |number: usize| result["interfaces"][number]["name"].as_str().expect("a link").to_owned();
        let ip = |key: &str| -> IpAddr {
            let text = result["ips"][0][key].as_str().expect("an address");
            text.split('/').next().and_then(|ip| ip.parse().ok()).expect("an address")
        };
        let (address, gateway) = (ip("address"), ip("gateway"));
        Self { world, network, attach, pod, address, gateway, veth: link(1), device: link(3) }
    }

    /// What becomes of bursts into the container and out of it.
    fn fates(&self) -> (Fate, Fate) {
        let node = &self.world.node;
        (
            fate_of_burst(node, &self.pod, self.address, RATE),
            fate_of_burst(&self.pod, node, self.gateway, RATE),
        )
    }

    #[track_caller]
    fn expect_limits(&self, when: &str) {
        assert_eq!(self.fates(), (Fate::Limited, Fate::Limited), "{when}");
    }

    fn tc(&self, words: &str) {
        let words = words.replace("VETH", &self.veth).replace("DEVICE", &self.device);
        for command in words.split("; ") {
            self.world.node.cmd(command);
        }
    }
}

/// The names of the objects in this state.
fn in_state(report: &Value, state: &str) -> Vec<String> {
    let rows = report["items"].as_array().expect("a list").iter().filter(|row| row["state"] == state);
    rows.map(|row| row["item"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn limits_that_users_of_tc_take_away_come_back() {
    use Fate::{Free, Limited as Kept, Lost};
    let world = World::new();
    let limited = Limited::new(&world);
    world.node.cmd("ip link add monitor type ifb");
    world.node.cmd("ip link set monitor up");
    let mirror = "u32 match u32 0 0 action mirred egress mirror dev monitor";
    let ours = "u32 match u32 0 0 action mirred egress redirect dev DEVICE";
    limited.expect_limits("after ADD");
    for (words, fates, items) in [
        ("tc qdisc del dev VETH clsact".to_owned(), (Kept, Free), &["redirection"][..]),
        ("tc filter del dev VETH ingress".to_owned(), (Kept, Free), &["redirection"]),
        ("tc qdisc del dev VETH root".to_owned(), (Free, Kept), &["rate limit of veth"]),
        ("tc qdisc replace dev VETH root handle 7: bfifo".to_owned(), (Free, Kept), &["rate limit of veth"]),
        (
            "tc qdisc del dev VETH root; tc qdisc add dev VETH root handle 1: bfifo".to_owned(),
            (Free, Kept),
            &["rate limit of veth"],
        ),
        (
            "tc qdisc replace dev VETH root handle 1: tbf rate 1gbit burst 1000000 limit 1000000".to_owned(),
            (Free, Kept),
            &["rate limit of veth"],
        ),
        ("tc qdisc replace dev DEVICE root bfifo".to_owned(), (Kept, Free), &["rate limit of bwp"]),
        ("ip link set DEVICE down".to_owned(), (Kept, Lost), &["device"]),
        ("ip link del DEVICE".to_owned(), (Kept, Lost), &["device", "rate limit of bwp", "redirection"]),
        // Imitates earlier versions, whose filter came after all that were added without a preference.
        (
            format!(
                "tc filter del dev VETH ingress; tc filter add dev VETH ingress pref 49152 protocol all {ours}; tc filter \
                 add dev VETH ingress protocol ip {mirror}"
            ),
            (Kept, Free),
            &["redirection"],
        ),
    ] {
        limited.tc(&words);
        assert_eq!(limited.fates(), fates, "{words}");
        limited.network.check(&limited.attach).expect_err(&words);
        let (report, _) = world.restore("--dry-run");
        let missing = in_state(&report, "missing");
        let as_wanted = missing.iter().zip(items).all(|(name, item)| name.starts_with(item));
        assert!(missing.len() == items.len() && as_wanted, "{words}: {missing:?}");
        let checked = world.node.try_slipway("check-node").stdout;
        assert!(missing.iter().all(|item| checked.contains(item)), "{words}: {checked}");
        assert!(world.restored() > 0, "{words}");
        limited.expect_limits(&words);
        limited.network.check(&limited.attach).unwrap_or_else(|error| panic!("CHECK after {words}: {error}"));
        assert_eq!(count(&world.restore("--dry-run").0, "missing"), 0, "{words}");
    }
    let filters = world.node.cmd(&format!("tc filter show dev {} ingress", limited.veth));
    assert!(filters.contains("Mirror to device monitor"), "the other program's filter stays: {filters}");
    limited.network.del(&limited.attach).expect("DEL");
}

/// Another filter with the first preference stays, so `restore` fails and prints the command that deletes it.
#[test]
fn a_filter_that_keeps_its_place_is_named() {
    let world = World::new();
    let limited = Limited::new(&world);
    world.node.cmd("ip link add monitor type ifb");
    world.node.cmd("ip link set monitor up");
    limited.tc(
        "tc filter del dev VETH ingress; tc filter add dev VETH ingress pref 1 protocol ip u32 match u32 0 0 \
                action mirred egress mirror dev monitor",
    );
    let (report, code) = world.restore("");
    assert_eq!(code, 1, "{report:#}");
    let failed = report["items"].as_array().expect("a list").iter().find(|row| row["state"] == "failed");
    let reason = failed.expect("a failure")["reason"].as_str().expect("a reason").to_owned();
    assert_eq!(limited.fates().1, Fate::Free, "{reason}");
    world.node.cmd(reason.split('`').nth(1).unwrap_or_else(|| panic!("no command: {reason}")));
    limited.expect_limits(&reason);
    let (report, code) = world.restore("--dry-run");
    assert_eq!(code, 0, "{report:#}");
    limited.network.check(&limited.attach).expect("CHECK");
    limited.network.del(&limited.attach).expect("DEL");
}
