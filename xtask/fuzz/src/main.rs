// SPDX-License-Identifier: GPL-3.0-or-later

//! `cargo xtask fuzz`: mutated inputs for the parsers of foreign bytes.
//!
//! With a nightly compiler and cargo-fuzz, libFuzzer chooses the inputs by the code that they reach; otherwise the mutator of
//! `tests/targets` does, by the shapes of the results.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod built_in;
mod lib_fuzzer;
mod report;

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slipway_fuzz_targets::{TARGETS, Target, find};
use xtask::task::{self, Tasks};
use xtask_base::error::{Error, Result};

use report::Report;

#[derive(Debug, clap::Subcommand)]
enum Task {
    /// Feed mutated inputs to the parsers of foreign bytes
    Fuzz(Args),
}

/// Feed mutated inputs to the parsers of foreign bytes.
///
/// Prints a line for each target: the number of inputs, how many per second, the covered edges with libFuzzer or the number
/// of different results without, new seeds, and findings. A finding is written to tests/fuzz/artifacts as the shortest input
/// that shows it, and fails the run. Inputs with new results are shortened and added to tests/fuzz/seeds, 2 MB at most.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The target, all if none is named; --list prints them
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// The time for all targets together
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// So many mutated inputs for each target in place of a time, with the mutator that is built in
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    inputs: Option<u64>,
    /// Repeat the inputs of a run with the mutator that is built in
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Add no seeds
    #[arg(long)]
    no_seeds: bool,
    /// Only print the targets and their inputs
    #[arg(long)]
    list: bool,
}

impl Tasks for Task {
    fn run(self) -> Result<()> {
        let Self::Fuzz(args) = self;
        fuzz(&args)
    }
}

fn main() -> ExitCode {
    task::main::<Task>("xtask fuzz")
}

fn fuzz(args: &Args) -> Result<()> {
    let targets = chosen(args.target.as_deref())?;
    if args.list {
        for target in targets {
            println!("{:22} {}", target.name, target.input);
        }
        return Ok(());
    }
    let number = u32::try_from(targets.len()).unwrap_or(u32::MAX);
    let each = Duration::from_secs(args.minutes * 60) / number.max(1);
    let needs_built_in = args.inputs.is_some() || args.seed.is_some();
    let reports = match lib_fuzzer::find().filter(|_| !needs_built_in) {
        Some(fuzzer) => {
            println!("libFuzzer by {}", fuzzer.version());
            Report::print_header("edges");
            targets
                .into_iter()
                .map(|target| fuzzer.run(target, each, !args.no_seeds))
                .collect::<Result<Vec<_>>>()?
        }
        None => {
            let seed = args.seed.unwrap_or_else(new_seed);
            let why =
                if needs_built_in { "" } else { ", because cargo-fuzz with a nightly compiler is missing" };
            println!("the mutator that is built in{why}; --seed {seed}");
            Report::print_header("results");
            let amount = args.inputs.map_or(built_in::Amount::Time(each), built_in::Amount::Inputs);
            let run = |target| built_in::run(target, amount, seed, !args.no_seeds);
            targets.into_iter().map(run).collect::<Result<Vec<_>>>()?
        }
    };
    report::verdict(&reports)
}

fn chosen(name: Option<&str>) -> Result<Vec<&'static Target>> {
    let Some(name) = name else { return Ok(TARGETS.iter().collect()) };
    let unknown =
        || Error::Failed(format!("{name:?} is not a target; `cargo xtask fuzz --list` prints them"));
    find(name).map(|target| vec![target]).ok_or_else(unknown)
}

fn new_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_chosen_by_its_name() {
        assert_eq!(chosen(None).unwrap().len(), TARGETS.len());
        assert_eq!(chosen(Some("owner")).unwrap()[0].name, "owner");
        let error = chosen(Some("nothing")).unwrap_err().to_string();
        assert_eq!(error, "\"nothing\" is not a target; `cargo xtask fuzz --list` prints them");
    }
}
