// SPDX-License-Identifier: GPL-2.0-or-later

//! The moment in which objects are created in the table while rules of another engine translate.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use slipway_tests::{Attach, Proto};

use crate::{PORT, SERVED, World};

/// How often the table is created. When everything was created in a single commit, some 20 packets were not
/// masqueraded.
const ROUNDS: usize = 100;

/// The maximum number of flows per thread, because conntrack keeps each for half a minute.
const FLOWS: usize = 60_000;

/// Rules that translate like those of another engine, which a migration leaves in place until ours are effective.
const OTHER_ENGINE: &str = "table ip other {
    counter translated { }
    counter unmasqueraded { }
    chain output {
        type nat hook output priority -100; policy accept;
        ip daddr 127.0.0.1 udp dport 8080 meta mark set meta mark | 0x2000 dnat to 10.88.1.2:80
    }
    chain postrouting {
        type nat hook postrouting priority 100; policy accept;
        meta mark & 0x2000 == 0x2000 masquerade
    }
    chain seen {
        type filter hook postrouting priority 300; policy accept;
        ip daddr 10.88.1.2 counter name translated
        ip daddr 10.88.1.2 ip saddr 127.0.0.0/8 counter name unmasqueraded
    }
}";

#[test]
fn translated_packets_are_masqueraded_while_the_table_is_made() {
    let world = World::new("nft");
    let network = world.network(1, "bridge", "nftables", &json!({}));
    let pod = world.node.pod("web");
    // The port is a TCP port, because the ADD of a UDP port would look for flows among all of these.
    let attach = Attach::new(&pod).port(Proto::Tcp, PORT, SERVED);
    network.add(&attach).expect("ADD");
    world.node.sysctl("net/ipv4/conf/all/route_localnet", "1");
    let configs = network.configs(Some(&attach));
    let mut portmap = configs[1].clone();
    portmap["prevResult"] = json!({
        "cniVersion": portmap["cniVersion"],
        "interfaces": [{"name": "eth0", "sandbox": pod.path()}],
        "ips": [{"address": "10.88.1.2/24", "interface": 0}],
    });
    world.node.cmd_input("nft -f -", OTHER_ENGINE);
    let stop = AtomicBool::new(false);
    let flows = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                world.node.run(|| {
                    for _ in 0..FLOWS {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
                        let sent = socket.send_to(b"x", ("127.0.0.1", PORT));
                        flows.fetch_add(usize::from(sent.is_ok()), Ordering::Relaxed);
                    }
                });
            });
        }
        for _ in 0..ROUNDS {
            world.node.cmd("nft delete table inet slipway");
            network.call("ADD", &portmap, Some(&attach)).ok();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let packets = |name: &str| {
        let listed = world.node.cmd(&format!("nft --json list counter ip other {name}"));
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        listed["nftables"][1]["counter"]["packets"].as_u64().expect("a number")
    };
    let (all, unmasqueraded) = (packets("translated"), packets("unmasqueraded"));
    eprintln!("{} flows, {all} packets to the container", flows.load(Ordering::Relaxed));
    assert!(all > 500, "too few packets to mean anything: {all}");
    assert_eq!(unmasqueraded, 0, "of {all} packets");
}
