// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway restore` while a migration of the same containers is running, as slipwayd runs it. No port may be lost or
//! left in two places, and no flow may be interrupted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use slipway_tests::{
    Deliveries, Disturbance, Network, Output, Proto, SteadyFlow, all_kill_points, at, disturbed,
    has_programs, needs, sample, slowed, stride, within,
};

use crate::{Maker, NFT, PORT, PROGRAMS, TABLE, Web, World};

/// The delay before each program that a restoration runs, which makes the moments between its steps last longer.
const SLOWER: Duration = Duration::from_millis(400);
/// The system call with which a migration waits for packets in transit.
const WAIT: &str = "membarrier";
/// More than the number of waits in a migration.
const MOST: usize = 10;
/// How long a migration is delayed at one of its waits. This is longer than a restoration takes to put something back,
/// and shorter than it then takes to remove it from other backends.
const HELD: Duration = Duration::from_secs(6);
/// The number of points at which a migration is killed in each direction.
const KILLS: usize = 8;

/// A node with a container that is in the runtime's cache, and with flows to the container's port.
struct Stage {
    world: World,
    maker: Maker,
}

impl Stage {
    fn new(maker: Maker) -> Self {
        Self { world: World::new(maker.variant), maker }
    }

    fn network(&self) -> Network<'_> {
        self.world.network(1, "bridge", self.maker.backend, &json!({}))
    }

    fn web(&self, network: &Network<'_>) -> Web {
        let web = Web::new(&self.world, &self.maker, network, "web", PORT);
        network.write_cache(&web.attach);
        web
    }

    /// Steady flows of both families from outside to the port.
    fn flows(&self) -> Vec<SteadyFlow> {
        let client = &self.world.client;
        let interval = Duration::from_millis(5);
        self.world.node_ips().iter().map(|ip| client.steady(at(*ip, PORT), "web", interval)).collect()
    }

    fn restore(&self) -> Output {
        slowed(&self.world.node, self.call("restore", &[]), "vfork,clone,clone3", within(SLOWER))
    }

    fn call(&self, command: &str, more: &[&str]) -> slipway_tests::PluginCall {
        let words: Vec<&str> = [command].iter().chain(more).copied().collect();
        self.world.node.plugin("slipway").arguments(&words)
    }

    fn migrate_to(&self, to: &str) -> slipway_tests::PluginCall {
        self.call("migrate", &["--to", to])
    }

    fn serves(&self) {
        for ip in self.world.node_ips() {
            for proto in Proto::ALL {
                self.world.client.expect(proto, (ip, PORT), "web");
            }
        }
    }

    /// Runs a migration without concurrent calls, after which everything must be in one place.
    fn settles_in(&self, to: &str, network: &Network<'_>, web: &Web, when: &str) {
        let (report, code) = self.world.migrate(&format!("--to {to}"));
        assert_eq!(code, 0, "{when}: {report:#}");
        self.world.assert_is_in(to);
        self.serves();
        network.check(&web.attach).unwrap_or_else(|error| panic!("{when}: CHECK: {error}"));
    }
}

fn none_lost(flows: Vec<SteadyFlow>, when: &str) {
    // The work may take less than ten intervals, so the flows continue a little longer.
    thread::sleep(Duration::from_millis(100));
    let ended: Vec<Deliveries> = flows.into_iter().map(SteadyFlow::stop).collect();
    assert!(ended.iter().all(|flow| flow.lost() == 0 && flow.sent() > 10), "{when}: {ended:#?}");
}

/// Delays a migration at each of its waits for packets in transit, between which it changes one of the two places, and
/// runs a restoration at that moment.
fn at_any_moment(maker: Maker, to: &str, back: &str) {
    let stage = Stage::new(maker);
    let network = stage.network();
    let web = stage.web(&network);
    let mut tried = 0;
    for nth in 1..=MOST {
        let when = format!("to {to}, wait {nth}");
        let flows = stage.flows();
        let trace = format!("trace={WAIT}");
        let held = format!("inject={WAIT}:delay_enter={}:when={nth}", within(HELD).as_micros());
        stage.world.node.cmd("rm -f /run/held");
        let strace =
            ["strace", "-f", "-qq", "-o", "/run/held", "-e", "signal=none", "-e", &trace, "-e", &held];
        let migration = stage.migrate_to(to).through(&strace).spawn();
        let begun = Instant::now();
        let is_held = || {
            let trace = stage.world.node.read("/run/held").unwrap_or_default();
            trace.lines().filter(|line| line.contains(&format!("{WAIT}("))).count() >= nth
        };
        while !is_held() && begun.elapsed() < within(Duration::from_secs(3)) {
            thread::sleep(Duration::from_millis(5));
        }
        let restored = stage.restore();
        assert_eq!(restored.process.code, Some(0), "{when}: {}", restored.process);
        let migrated = migration.wait();
        let code = migrated.process.code;
        assert!(matches!(code, Some(0 | 4)), "{when}: {}", migrated.process);
        stage.serves();
        none_lost(flows, &when);
        stage.settles_in(to, &network, &web, &when);
        stage.settles_in(back, &network, &web, &when);
        tried += 1;
        if !stage.world.node.read("/run/held").unwrap_or_default().contains("(DELAYED)") {
            break;
        }
    }
    assert!(tried > 1 && tried < MOST, "{tried} are not all");
    network.del(&web.attach).expect("DEL");
    let all = stage.world.everything();
    assert!(!all.contains("slipway1") && !all.contains("CNI-DN"), "{all}");
}

#[test]
fn a_restoration_at_any_moment_of_a_migration_to_chains() {
    at_any_moment(TABLE, "iptables", "nftables");
}

#[test]
fn a_restoration_at_any_moment_of_a_migration_to_the_table_loses_no_port() {
    at_any_moment(NFT, "nftables", "iptables");
}

#[test]
fn a_restoration_at_any_moment_of_a_migration_from_the_programs_loses_no_port() {
    needs!(has_programs(), slipway_tests::PROGRAMS);
    at_any_moment(PROGRAMS, "iptables", "ebpf");
}

/// The ruleset is flushed during a migration. After the next restoration, everything must exist again, in one place.
#[test]
fn a_flush_during_a_migration_loses_no_port() {
    let stage = Stage::new(TABLE);
    let network = stage.network();
    let web = stage.web(&network);
    for (nth, to) in sample((1..=40).step_by(2)).into_iter().zip(["iptables", "nftables"].into_iter().cycle())
    {
        let when = format!("to {to}, message {nth}");
        let held =
            format!("inject=sendto:delay_enter={}:when={nth}", within(Duration::from_secs(1)).as_micros());
        let strace = ["strace", "-f", "-qq", "-o", "/run/held", "-e", "trace=sendto", "-e", &held];
        let migration = stage.migrate_to(to).through(&strace).spawn();
        thread::sleep(within(Duration::from_millis(500)));
        stage.world.node.cmd("nft flush ruleset");
        let restored = stage.call("restore", &[]).run();
        migration.wait();
        let again = stage.call("restore", &[]).run();
        assert_eq!(again.process.code, Some(0), "{when}: {}{}", restored.process, again.process);
        stage.serves();
        stage.settles_in(to, &network, &web, &when);
    }
    network.del(&web.attach).expect("DEL");
}

/// The ports of a killed migration are restored, and the next migration completes it.
#[test]
fn a_restoration_after_a_killed_migration() {
    let stage = Stage::new(TABLE);
    let network = stage.network();
    let web = stage.web(&network);
    for (to, back) in [("iptables", "nftables"), ("nftables", "iptables")] {
        let (output, points) = all_kill_points(&stage.world.node, stage.migrate_to(to));
        assert_eq!(output.process.code, Some(0), "{}", output.process);
        stage.settles_in(back, &network, &web, "traced");
        let points: Vec<_> = points.into_iter().filter(|point| point.after_change).collect();
        let every = points.len().div_ceil((KILLS / stride()).max(3));
        let mut killed = 0;
        for point in points.iter().step_by(every) {
            let when = format!("to {to}, killed at {point:?}");
            let flows = stage.flows();
            let output = disturbed(&stage.world.node, stage.migrate_to(to), point, Disturbance::Kill);
            killed += usize::from(output.process.code != Some(0));
            let restored = stage.call("restore", &[]).run();
            assert_eq!(restored.process.code, Some(0), "{when}: {}", restored.process);
            stage.serves();
            none_lost(flows, &when);
            stage.settles_in(to, &network, &web, &when);
            stage.settles_in(back, &network, &web, &when);
        }
        assert!(killed > 0, "nothing was killed");
        stage.settles_in(to, &network, &web, "at the end");
    }
    network.del(&web.attach).expect("DEL");
}

/// Restorations run one after the other while containers migrate back and forth. Nothing is missing at any time, so
/// none of the restorations may change anything, and no flow may be interrupted.
#[test]
fn restorations_during_migrations_change_nothing() {
    let stage = Stage::new(TABLE);
    let network = stage.network();
    let web = stage.web(&network);
    let flows = stage.flows();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let restoring = scope.spawn(|| {
            let mut count = 0;
            while !ended.load(Ordering::Relaxed) && count < 1000 {
                let output = stage.call("restore", &["--output", "json"]).run();
                assert_eq!(output.process.code, Some(0), "{}", output.process);
                assert!(!output.process.stdout.contains("\"restored\""), "{}", output.process);
                count += 1;
            }
            count
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for to in ["iptables", "nftables"].into_iter().cycle().take(6) {
                stage.world.migrated(to, 2);
            }
        }));
        ended.store(true, Ordering::Relaxed);
        let count = restoring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        println!("{count} restorations during 6 migrations");
        assert!(count > 2, "too few to mean anything");
    });
    stage.settles_in("nftables", &network, &web, "at the end");
    none_lost(flows, "during migrations");
}
