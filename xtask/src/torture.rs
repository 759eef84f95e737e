// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask torture`: the tests that disturb Slipway, again and again with other choices, until the time is over.

mod rows;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::build::Flavour;
use crate::ebpf;
use crate::failures::{self, Failure};
use crate::pool::{Pool, Settings, Verdict, Which};
use crate::setup;
use crate::test::{BINARIES, NETWORK_TESTS_FOLDER, as_root, new_seed, plugin_dir, references};
use xtask_base::error::{Error, Result};
use xtask_base::progress::Stages;
use xtask_base::run;
use xtask_base::test_programs::{self, TestProgram};
use xtask_downloads::reference;

use table::Table;

/// In runs of at least this many minutes, calls are killed or fail at every system call, not only at those that may
/// have changed something.
const EVERY_CALL: u64 = 60;
/// In a run that is at least [`EVERY_CALL`] long, each round tries one in this many points.
const LONG_STRIDE: u64 = 4;
/// Minutes in which a round can try all points. Shorter runs try fewer points, so that they reach all tests.
const WHOLE: u64 = 40;
/// The coarsest sample.
const WIDEST: u64 = 10;
/// The share of the time that a test may take if it runs for as long as it is told, and the limits of that time in
/// seconds.
const RANDOM_SHARE: u64 = 8;
const RANDOM_SECONDS: (u64, u64) = (10, 600);

/// Disturb Slipway in every way that its reliability is about, and print what that found.
///
/// Processes are killed at their system calls, calls fail, workers do random things, inputs are mutated, disks are full,
/// rulesets are flushed, and neighbours attack. This runs the network tests of `test` that do so, as rounds with
/// consecutive seeds, and ends with a table. The exit code is 1 if a test has found something.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Begin no test after so many minutes, without those of the build
    #[arg(long, value_name = "M", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Repeat the choices of an earlier run
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Only the tests of these suites
    #[arg(long, value_name = "NAME", num_args = 1..)]
    suite: Vec<String>,
}

/// Runs the task.
///
/// # Errors
/// Tests that have found something, or that cannot be built or run.
pub(crate) fn run(args: &Args) -> Result<()> {
    let suites = rows::suites(&args.suite);
    if let Some(unknown) = args.suite.iter().find(|name| !suites.contains(name)) {
        return Err(Error::Failed(format!(
            "{unknown}: no such suite; these disturb: {}",
            rows::suites(&[]).join(", ")
        )));
    }
    let seed = args.seed.unwrap_or_else(new_seed);
    println!("  seed {seed} (--seed {seed} repeats this run's choices)");
    let stages = Stages::new("torture")?;
    stages.run("setup", |_| setup::ensure())?;
    stages.run("BPF programs", |log| ebpf::ensure(|command| run::log(command, &log.file)))?;
    let mut torture = Torture::build(args, &suites, &stages)?;
    let until = Instant::now() + Duration::from_secs(args.minutes * 60);
    for round in 0.. {
        if Instant::now() >= until || !torture.round(seed.wrapping_add(round), until, &stages)? {
            break;
        }
    }
    println!(
        "\n{}",
        torture.table.text(|row| torture.titles.iter().any(|title| rows::row_of(title) == Some(row)))
    );
    torture.verdict(seed)
}

/// The tests, and what they have found so far.
struct Torture {
    programs: Vec<TestProgram>,
    prefix: Vec<String>,
    env: Vec<(String, OsString)>,
    /// The titles of all tests.
    titles: Vec<String>,
    table: Table,
    runs: usize,
    failed: Vec<Failure>,
    /// The log of the first round in which a test failed.
    log: PathBuf,
}

impl Torture {
    fn build(args: &Args, suites: &[String], stages: &Stages) -> Result<Self> {
        let reference = references(stages, &[reference::STABLE], false)?;
        let (mut programs, mut bin_dir) = (Vec::new(), PathBuf::new());
        stages.run("build", |log| {
            programs = test_programs::build(suites, &BINARIES, log)?;
            programs.retain(|program| program.is_of(NETWORK_TESTS_FOLDER) && suites.contains(&program.name));
            bin_dir = plugin_dir(Flavour::Debug, log)?;
            Ok(format!("{} test programs", programs.len()))
        })?;
        let (name, dirs) = reference.variable();
        let mut env = vec![("SLIPWAY_BIN_DIR".to_owned(), bin_dir.into()), (name.to_owned(), dirs.clone())];
        env.extend(lengths(args.minutes).map(|(name, value)| (name.to_owned(), value.to_string().into())));
        if args.minutes >= EVERY_CALL {
            env.push(("SLIPWAY_EVERY_CALL".to_owned(), "1".into()));
        }
        Ok(Self {
            programs,
            prefix: as_root()?,
            env,
            titles: Vec::new(),
            table: Table::new(),
            runs: 0,
            failed: Vec::new(),
            log: PathBuf::new(),
        })
    }

    /// Runs each test once, as far as the time allows. Returns false if there is none.
    fn round(&mut self, seed: u64, until: Instant, stages: &Stages) -> Result<bool> {
        let mut env = self.env.clone();
        let seeds =
            ["SLIPWAY_SEED", "SLIPWAY_SAMPLE_SEED"].map(|name| (name.to_owned(), seed.to_string().into()));
        env.extend(seeds);
        let prefix = self.prefix.clone();
        let settings = Settings { prefix, env, filter: None, repeat: 1, tallies: true };
        let pool = Pool::new(self.programs.clone(), settings)?;
        let of = |which| in_turn(pool.titles(which).map(str::to_owned).collect(), seed);
        let (alone, pooled) = (of(Which::Alone), of(Which::Pooled));
        self.titles = [alone.clone(), pooled.clone()].concat();
        if self.titles.is_empty() {
            return Err(Error::Failed("there is no such test".to_owned()));
        }
        stages.run(&format!("seed {seed}"), |log| {
            // Tests that must run alone come first, for a quarter of the time.
            let left = until.saturating_duration_since(Instant::now());
            let share = if pooled.is_empty() { left } else { left / 4 };
            let mut verdicts = pool.run_until(Which::Alone, &alone, Instant::now() + share, log)?;
            verdicts.extend(pool.run_until(Which::Pooled, &pooled, until, log)?);
            let (ran, before) = (verdicts.len(), self.failed.len());
            if verdicts.iter().any(|verdict| verdict.failure.is_some()) && self.failed.is_empty() {
                self.log = log.path.clone();
            }
            self.runs += ran;
            for verdict in verdicts {
                self.keep(verdict);
            }
            Ok(format!(
                "{ran} of {} tests, {} found something",
                self.titles.len(),
                self.failed.len() - before
            ))
        })?;
        Ok(true)
    }

    fn keep(&mut self, verdict: Verdict) {
        self.table.add(&verdict);
        let Verdict { title, failure, .. } = verdict;
        self.failed.extend(failure.map(|output| Failure { title, output }));
    }

    fn verdict(&self, seed: u64) -> Result<()> {
        match self.table.found() {
            0 => Ok(()),
            found => {
                let text = failures::describe(&self.failed, self.runs, 1, &self.log);
                Err(Error::Failed(format!(
                    "{text}\n{found} found something; --seed {seed} repeats the choices"
                )))
            }
        }
    }
}

/// The variables of the environment that determine how much each test tries in one round.
fn lengths(minutes: u64) -> [(&'static str, u64); 3] {
    let stride = if minutes >= EVERY_CALL { LONG_STRIDE } else { WHOLE.div_ceil(minutes).clamp(1, WIDEST) };
    let seconds = (minutes * 60 / RANDOM_SHARE).clamp(RANDOM_SECONDS.0, RANDOM_SECONDS.1);
    [("SLIPWAY_SAMPLE", stride), ("SLIPWAY_SOAK_SECONDS", seconds), ("SLIPWAY_PROPERTY_SECONDS", seconds)]
}

/// Orders tests so that the rows take turns, each with its tests in an order that depends on the seed. A run that ends
/// early has then tried something of every row.
fn in_turn(titles: Vec<String>, seed: u64) -> Vec<String> {
    let mut rows: Vec<Vec<String>> = rows::ROWS.iter().map(|_| Vec::new()).collect();
    for title in titles {
        if let Some(row) = rows::row_of(&title).and_then(|row| rows.get_mut(row)) {
            row.push(title);
        }
    }
    for row in &mut rows {
        row.sort_by_key(|title| mixed(title, seed));
    }
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|at| rows.iter().filter_map(move |row| row.get(at).cloned())).collect()
}

/// FNV-1a of the title and the seed.
fn mixed(title: &str, seed: u64) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(title.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_take_turns_and_the_seed_decides_the_order_within_one() {
        let titles: Vec<String> =
            ["reliability::a", "reliability::b", "reliability::c", "soak::a", "foreign::a"]
                .map(str::to_owned)
                .into();
        let order = in_turn(titles.clone(), 1);
        assert_eq!(order.len(), 4, "{order:?}");
        assert!(order[0].starts_with("reliability::") && order[1] == "soak::a", "{order:?}");
        let orders: std::collections::BTreeSet<Vec<String>> =
            (0..20).map(|seed| in_turn(titles.clone(), seed)).collect();
        assert!(orders.len() > 2, "{orders:?}");
    }

    #[test]
    fn long_runs_try_all_points_in_consecutive_rounds() {
        let stride = |minutes| lengths(minutes)[0].1;
        assert_eq!([1, 4, 8, 40, 59, 60, 600].map(stride), [10, 10, 5, 1, 1, 4, 4]);
        assert_eq!([1, 4, 600].map(|minutes| lengths(minutes)[1].1), [10, 30, 600]);
    }
}
