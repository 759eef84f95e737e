// SPDX-License-Identifier: GPL-2.0-or-later

//! Migrations that run concurrently with ADDs and DELs. Deleted containers must stay deleted, and added ones must have
//! their ports.

use std::time::Duration;

use serde_json::json;
use slipway_tests::{Attach, Proto, sample_of_unknown, stride, within};

use crate::{LEGACY, Maker, NFT, PORT, Web, World};

const WORKERS: u16 = 3;
const TURNS: u16 = 5;

fn adds_and_dels_during_migrations(maker: &Maker) {
    let world = World::new(maker.variant);
    // Two networks, one with each backend.
    let networks = [
        world.network(1, "bridge", "iptables", &json!({})),
        world.network(2, "bridge", "nftables", &json!({})),
    ];
    let pods: Vec<_> = (0..WORKERS * 2).map(|n| world.node.pod(&format!("pod{n}"))).collect();
    let attach = |n: u16| Attach::new(&pods[usize::from(n)]).port(Proto::Tcp, 9000 + n, 80);
    std::thread::scope(|scope| {
        for n in 0..WORKERS * 2 {
            let (network, attach) = (&networks[usize::from(n % 2)], attach(n));
            scope.spawn(move || {
                for round in 0..TURNS {
                    network.add(&attach).unwrap_or_else(|e| panic!("ADD of {n}: {e}"));
                    // Every third container remains after the last round.
                    if n % 3 != 0 || round + 1 < TURNS {
                        network.del(&attach).unwrap_or_else(|e| panic!("DEL of {n}: {e}"));
                    }
                }
            });
        }
        for to in ["nftables", "iptables", "nftables", "iptables"] {
            let (report, code) = world.migrate(&format!("--to {to}"));
            assert!(code == 0 || code == 4, "{report:#}");
        }
    });
    // A final migration without concurrent calls moves what is still in the old backend.
    let (report, code) = world.migrate("--to nftables");
    assert_eq!(code, 0, "{report:#}");
    let all = world.everything();
    for n in 0..WORKERS * 2 {
        let (network, name) = (&networks[usize::from(n % 2)], format!("pod{n}"));
        let stays = n % 3 == 0;
        assert_eq!(all.contains(&format!("eth0 {name}\"")), stays, "{name}: {all}");
        assert_eq!(all.contains(&format!("tcp . {} ", 9000 + n)), stays, "{name}: {all}");
        if stays {
            network.check(&attach(n)).unwrap_or_else(|e| panic!("CHECK of {name}: {e}"));
        }
    }
    assert!(!all.contains("CNI-DN-"), "{all}");
}

/// During its migration, a container is deleted and added again in its old backend, at a different moment in each
/// round.
#[test]
fn a_container_added_again_at_any_moment_is_served() {
    let world = World::new(NFT.variant);
    let network = world.network(1, "bridge", "iptables", &json!({}));
    let web = Web::new(&world, &NFT, &network, "web", PORT);
    let held = within(Duration::from_millis(1500));
    let mut tried = 0;
    // The migration is delayed before every third program that it runs. strace counts separately for each thread and
    // call.
    for nth in sample_of_unknown().map(|at| 1 + 3 * at) {
        let spawns = "clone,clone3,vfork";
        let (trace, delay) = (format!("trace={spawns}"), held.as_micros());
        let inject = format!("inject={spawns}:delay_enter={delay}:when={nth}");
        let strace = ["strace", "-qq", "-o", "/run/held", "-e", &trace, "-e", &inject];
        let call = world.node.plugin("slipway").arguments(&["migrate", "--to", "nftables"]);
        let migration = call.through(&strace).spawn();
        std::thread::sleep(held / 3);
        network.del(&web.attach).unwrap_or_else(|e| panic!("{nth}: DEL: {e}"));
        network.add(&web.attach).unwrap_or_else(|e| panic!("{nth}: ADD: {e}"));
        let output = migration.wait();
        // A migration without concurrent calls moves what is still in the old backend.
        let (report, code) = world.migrate("--to nftables");
        assert_eq!(code, 0, "{nth}: {report:#}");
        network.check(&web.attach).unwrap_or_else(|e| panic!("{nth}: CHECK: {e}; {}", output.process));
        for ip in world.node_ips() {
            world.client.expect(Proto::Tcp, (ip, PORT), "web");
        }
        let (report, code) = world.migrate("--to iptables");
        assert_eq!(code, 0, "{nth}: {report:#}");
        tried += 1;
        if !world.node.read("/run/held").unwrap_or_default().contains("(DELAYED)") {
            break;
        }
    }
    assert!(tried > 8 / stride(), "{tried} are too few to be true");
}

#[test]
fn with_iptables_nft() {
    adds_and_dels_during_migrations(&NFT);
}

#[test]
fn with_iptables_legacy() {
    adds_and_dels_during_migrations(&LEGACY);
}
