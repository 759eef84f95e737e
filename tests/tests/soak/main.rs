// SPDX-License-Identifier: GPL-2.0-or-later

//! Random operations of eight workers, in each backend: ADD, DEL, CHECK, STATUS, calls that are killed, repeated ADDs, a
//! network that is renamed, and a cache that is lost. Meanwhile the ruleset is flushed, containers migrate, or the node
//! is restored or cleaned up. After each round the kernel's state is compared with a model.
//!
//! `SLIPWAY_SOAK_SECONDS` sets the duration (default 10) and `SLIPWAY_SEED` the seed of the choices, while the scheduler
//! decides the order of the workers. A failure prints the seed, and the shortest script found that still fails.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod kernel;
mod run;
mod script;

use std::time::{Duration, Instant};

use slipway_tests::{PROGRAMS, Random, has_programs, needs, needs_iptables, slipway_only, tally};

use crate::run::run;
use crate::script::Script;

/// What makes the links, and what publishes the ports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) interface: &'static str,
    pub(crate) backend: &'static str,
    /// The variant of iptables that the node uses.
    pub(crate) variant: &'static str,
    /// The backends that containers migrate to.
    pub(crate) migrations: &'static [&'static str],
}

/// The time in which a failing script is made shorter.
const SHRINKING: Duration = Duration::from_secs(120);
/// How often a script that failed is run again, because a failure may depend on the scheduler.
const AGAIN: usize = 2;

fn number(key: &str, default: u64) -> u64 {
    std::env::var(key).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Runs scripts with consecutive seeds, at least one, until the time is over.
fn soak(setting: Setting) {
    let first = number("SLIPWAY_SEED", 1);
    let end = Instant::now() + Duration::from_secs(number("SLIPWAY_SOAK_SECONDS", 10));
    for seed in first.. {
        eprintln!("SLIPWAY_SEED={seed}");
        let script = Script::random(&mut Random::new(seed), setting.migrations);
        if let Err(reason) = run(setting, &script) {
            let (shortest, last) = shortest(setting, script, reason.clone());
            panic!(
                "SLIPWAY_SEED={seed}: {setting:?}: {reason}\nshortest script, which failed with: {last}\n{shortest}"
            );
        }
        tally("operations", script.len());
        if Instant::now() >= end {
            break;
        }
    }
}

/// Leaves parts out as long as the script still fails. Returns the last script, and why it failed.
fn shortest(setting: Setting, mut script: Script, mut reason: String) -> (Script, String) {
    let end = Instant::now() + SHRINKING;
    let fails = |script: &Script| (0..AGAIN).find_map(|_| run(setting, script).err());
    'shorter: while Instant::now() < end {
        for candidate in script.shorter() {
            if Instant::now() >= end {
                break;
            }
            if let Some(why) = fails(&candidate) {
                (script, reason) = (candidate, why);
                continue 'shorter;
            }
        }
        break;
    }
    (script, reason)
}

const WITH_NFTABLES: Setting = Setting {
    interface: "bridge",
    backend: "nftables",
    variant: "nft",
    migrations: &["iptables", "nftables"],
};

#[test]
fn concurrent_containers_on_a_bridge_leak_nothing_and_share_nothing() {
    soak(Setting { migrations: &["nftables"], ..WITH_NFTABLES });
}

#[test]
fn concurrent_containers_without_a_bridge_leak_nothing_and_share_nothing() {
    soak(Setting { interface: "ptp", migrations: &["nftables"], ..WITH_NFTABLES });
}

#[test]
fn containers_that_migrate_between_nftables_and_iptables() {
    slipway_only!();
    needs_iptables!();
    soak(WITH_NFTABLES);
}

#[test]
fn containers_of_iptables_nft() {
    slipway_only!();
    needs_iptables!();
    soak(Setting { backend: "iptables", ..WITH_NFTABLES });
}

#[test]
fn containers_of_iptables_legacy() {
    slipway_only!();
    needs_iptables!();
    soak(Setting { backend: "iptables", variant: "legacy", ..WITH_NFTABLES });
}

#[test]
fn containers_of_ebpf() {
    slipway_only!();
    needs!(has_programs(), PROGRAMS);
    soak(Setting { backend: "ebpf", migrations: &["nftables", "ebpf"], ..WITH_NFTABLES });
}
