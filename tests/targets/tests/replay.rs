// SPDX-License-Identifier: GPL-3.0-or-later

//! Each target reads its seeds and inputs mutated from them. `cargo xtask fuzz` tries more inputs.

use std::time::{SystemTime, UNIX_EPOCH};

use slipway_fuzz_targets::campaign::{Campaign, Finding};
use slipway_fuzz_targets::{TARGETS, corpus};

/// The variable with the number of mutated inputs for each target.
const INPUTS: &str = "SLIPWAY_MUTATED_INPUTS";
const SEED: &str = "SLIPWAY_SEED";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn targets_read_seeds_and_mutated_inputs_without_a_finding() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (inputs, seed) = (number(INPUTS, 500), number(SEED, now % 1000));
    println!("{SEED}={seed} {INPUTS}={inputs}");
    let mut found = Vec::new();
    for target in TARGETS {
        let mut campaign = Campaign::new(target, corpus::seeds(&corpus::folder(), target).unwrap(), seed);
        campaign.mutate(inputs, None);
        found.extend(campaign.findings().map(|Finding { problem, input }| {
            format!("{}: {problem}\n    input: \"{}\"", target.name, input.escape_ascii())
        }));
    }
    assert!(found.is_empty(), "{SEED}={seed} {INPUTS}={inputs}\n{}", found.join("\n"));
}
