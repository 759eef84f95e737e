// SPDX-License-Identifier: GPL-2.0-or-later

//! A DEL that comes while the ADD of the same container is still running, as when a runtime loses its patience.

use std::thread;
use std::time::Duration;

use slipway_tests::{PROGRAMS, Random, has_programs, needs, needs_iptables, sample, slipway_only, tally};

use crate::backends::{Backend, EBPF, IPTABLES, LEGACY, NFTABLES, Scene};

/// The latest beginning of the DEL after that of the ADD.
const LATEST: Duration = Duration::from_millis(250);
const TURNS: u64 = 40;

/// Whichever call wins, the next DEL leaves nothing, and a fresh ADD succeeds.
fn a_del_beside_its_add(backend: Backend) {
    slipway_only!();
    let scene = Scene::new(backend);
    let network = scene.network();
    let before = (scene.state(), scene.served());
    scene.ends_clean(&network, &before, "at first");
    let mut random = Random::seeded();
    for turn in sample(0..TURNS) {
        let pause = random.time_below(LATEST);
        let attach = scene.attach();
        let (added, deleted) = thread::scope(|scope| {
            let add = scope.spawn(|| network.add(&attach));
            thread::sleep(pause);
            let deleted = network.del(&attach);
            (add.join().expect("a result or an error"), deleted)
        });
        tally("DELs beside an ADD", 1);
        let why = format!("turn {turn}: DEL {pause:?} after the beginning of {added:?}");
        deleted.unwrap_or_else(|failure| panic!("{why}: {failure}"));
        scene.ends_clean(&network, &before, &why);
    }
}

#[test]
fn with_nftables() {
    a_del_beside_its_add(NFTABLES);
}

#[test]
fn with_iptables_nft() {
    needs_iptables!();
    a_del_beside_its_add(IPTABLES);
}

#[test]
fn with_iptables_legacy() {
    needs_iptables!();
    a_del_beside_its_add(LEGACY);
}

#[test]
fn with_ebpf() {
    needs!(has_programs(), PROGRAMS);
    a_del_beside_its_add(EBPF);
}
