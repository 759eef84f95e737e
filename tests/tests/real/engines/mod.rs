// SPDX-License-Identifier: GPL-2.0-or-later

//! Engines from Debian's packages, on a node with pods. With `backend: ebpf`, each packet must have the same fate as
//! with `backend: nftables`: before the engine starts, while it starts, reloads and stops, and afterwards.

mod docker;
mod firewalld;
mod libvirt;
mod podman;
mod world;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::thread;

use slipway_tests::{Server, Space, slipway_only};

use world::{Backend, Running, World};

/// Generates tests that use the packages of a Debian suite, and are skipped if those are missing.
macro_rules! cells {
    ($suite:literal, $program:literal, $needed:literal: $($name:ident => $cell:expr;)*) => { $(
        #[test]
        fn $name() {
            let Some(packages) = slipway_tests::system::unpacked($suite, $program) else {
                slipway_tests::skip!($needed)
            };
            slipway_tests::needs!(slipway_tests::has_programs(), slipway_tests::PROGRAMS);
            $cell(&packages);
        }
    )* };
}
use cells;

/// When the engine starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    BeforeAdd,
    AfterAdd,
}

/// The pods' network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chain {
    Plain,
    /// The network with the plugin firewall, whose rules accept the pods' packets.
    Firewall,
}

/// An engine that can run on the node.
trait Engine {
    /// Starts the engine, and a container of the engine if it has one.
    fn start(&mut self, world: &World);
    /// Makes the engine write its rules again.
    fn reload(&mut self, world: &World);
    /// Stops the engine and its container.
    fn stop(&mut self, world: &World);
    /// The engine's container, if any.
    fn guest(&self) -> Option<&Guest>;
}

/// A container of the engine, with servers for each protocol and family.
struct Guest {
    space: Space,
    /// The container's addresses: IPv4, and IPv6 if it has one.
    ips: Vec<IpAddr>,
    /// The port of the node that leads to the container.
    published: Option<u16>,
    _servers: Vec<Server>,
}

/// The port of the engine's container.
const GUEST_PORT: u16 = 81;
/// The port of the node that leads to the engine's container.
const GUEST_PUBLISHED: u16 = 8090;

impl Guest {
    fn new(space: Space, ips: Vec<IpAddr>, published: Option<u16>) -> Self {
        let servers = world::serve(&space, &ips, GUEST_PORT, "guest");
        Self { space, ips, published, _servers: servers }
    }
}

/// podman's reload removes the bridge for a moment, and with it the kernel forgets the flows that were masqueraded to
/// it, and removes the rules as well. If a segment arrives at that moment, the node resets the connection, with either
/// backend.
const BY_CHANCE: &str = "reloaded: running pod to guest's port, tcp";

/// The outcomes by phase and path.
type Outcomes = BTreeMap<String, String>;

/// Compares both backends, with the engine started before and after the ADD.
fn equal<E: Engine>(packages: &Path, chain: Chain, make: impl Fn() -> E + Sync) {
    slipway_only!();
    let orders = [Order::BeforeAdd, Order::AfterAdd];
    let mut wrong = Vec::new();
    for order in orders {
        let (control, found) = thread::scope(|scope| {
            let run = |backend| {
                let make = &make;
                scope.spawn(move || outcomes(packages, backend, chain, order, make()))
            };
            let (control, found) = (run(Backend::Nftables), run(Backend::Ebpf));
            (control.join().expect("a run"), found.join().expect("a run"))
        });
        for (path, outcome) in &control {
            eprintln!("{order:?} {path}: {outcome}");
            if found.get(path) != Some(outcome) && !path.starts_with(BY_CHANCE) {
                wrong.push(format!("{order:?} {path}: {:?} instead of {outcome:?}", found.get(path)));
            }
        }
        assert_eq!(control.len(), found.len(), "{order:?}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn outcomes(
    packages: &Path,
    backend: Backend,
    chain: Chain,
    order: Order,
    mut engine: impl Engine,
) -> Outcomes {
    let world = World::new(packages, backend);
    let mut seen = Outcomes::new();
    if order == Order::BeforeAdd {
        engine.start(&world);
    }
    let pods = world.pods(chain);
    let running = Running::open(&world, &pods, engine.guest());
    world.settle();
    let carried = world.carried();
    if order == Order::AfterAdd {
        assert!(backend == Backend::Nftables || carried > 0, "no packet was carried");
        assert!(running.alive().values().all(|state| state == "runs"), "{:?}", running.alive());
        engine.start(&world);
        world.settle();
    }
    let mut look = |phase: &str, engine: &dyn Engine| {
        let found = running.alive().into_iter().chain(world.probe(&pods, engine.guest()));
        seen.extend(found.map(|(path, outcome)| (format!("{phase}: {path}"), outcome)));
    };
    look("started", &engine);
    engine.reload(&world);
    world.settle();
    look("reloaded", &engine);
    engine.stop(&world);
    world.settle();
    look("stopped", &engine);
    eprintln!("{backend:?} {order:?}: {} packets carried, {carried} before", world.carried());
    seen
}
