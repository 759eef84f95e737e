// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask bench compare`: two saved runs of `bench control`, and whether the second one is faster.
//!
//! The samples of a run spread, and a machine is not the same on two days. So a verdict needs both: an interval of the
//! ratio that resampling gives (bootstrap), and the peers, whose programs are the same in both runs: by how much they
//! changed is how much the machine changed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::output;
use super::report::Report;
use super::statistics::median;
use super::table::{head, row};
use xtask_base::error::{Error, Result};
use xtask_base::files;

/// Compare two saved runs of `bench control`, with a verdict where their spread allows one
///
/// Both were saved with --save, on the same kernel and machine and with the same options. The reference plugins are the
/// yardstick: a change that they show as well is one of the machine.
#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// The folder with the control.json and control.csv of the earlier run
    #[arg(value_name = "A")]
    before: PathBuf,
    /// That of the later run
    #[arg(value_name = "B")]
    after: PathBuf,
}

/// Resamplings of a series: enough for the ends of an interval of 95 %.
const RESAMPLINGS: usize = 2000;
/// A change below this share is not worth a verdict, however certain it is.
const LEAST_CHANGE: f64 = 0.02;

/// The calls that an operation of a chain consists of.
const OPERATIONS: [(&str, [&str; 2]); 3] = [
    ("ADD", ["bridge ADD", "portmap ADD"]),
    ("DEL", ["portmap DEL", "bridge DEL"]),
    ("second DEL", ["portmap second DEL", "bridge second DEL"]),
];
/// The name of the reference's contenders begins so.
const PEER: &str = "peer-";

/// What is measured about an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Quantity {
    Wall,
    Cpu,
}

/// A series of samples: contender, pods, operation, quantity.
type Key = (String, u32, &'static str, Quantity);

#[derive(Debug)]
struct Run {
    report: Report,
    samples: BTreeMap<Key, Vec<f64>>,
}

/// The ratio of two medians, and the interval in which 95 of 100 resamplings lie.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ratio {
    low: f64,
    value: f64,
    high: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Faster,
    Slower,
    Unclear,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Unclear => "no difference shown",
        }
    }
}

pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    let (before, after) = (Run::read(&args.before)?, Run::read(&args.after)?);
    before.must_match(&after)?;
    println!("{}", table(&before, &after)?);
    Ok(())
}

impl Run {
    fn read(folder: &Path) -> Result<Self> {
        let report: Report = output::read(&folder.join("control.json"))?;
        let csv = folder.join("control.csv");
        let samples = samples(&files::read(&csv)?)
            .ok_or_else(|| Error::Failed(format!("{}: a line is not one of bench control", csv.display())))?;
        Ok(Self { report, samples })
    }

    /// Refuses runs of other machines or conditions. The load before a run may differ, as the peers show its effect.
    fn must_match(&self, other: &Self) -> Result<()> {
        let fixed = |run: &Self| -> Vec<String> {
            let varies = |line: &&String| line.starts_with("load ") || line.starts_with("idle control ");
            run.report.conditions.iter().filter(|line| !varies(line)).cloned().collect()
        };
        let (ours, theirs) = (fixed(self), fixed(other));
        match ours.iter().zip(&theirs).find(|(a, b)| a != b) {
            Some((a, b)) => Err(Error::Failed(format!("the runs cannot be compared: {a:?} and {b:?}"))),
            None if ours.len() != theirs.len() => {
                Err(Error::Failed("the runs cannot be compared: one has more conditions".to_owned()))
            }
            None => Ok(()),
        }
    }
}

/// Sums the calls of each operation; none if a line does not fit.
fn samples(csv: &str) -> Option<BTreeMap<Key, Vec<f64>>> {
    let mut sums = BTreeMap::<(Key, u32), f64>::new();
    for line in csv.lines().skip(1) {
        let fields: [&str; 6] = line.split(',').collect::<Vec<_>>().try_into().ok()?;
        let [contender, pods, repetition, call, wall, cpu] = fields;
        let Some((operation, _)) = OPERATIONS.iter().find(|(_, calls)| calls.contains(&call)) else {
            continue;
        };
        let (pods, repetition) = (pods.parse().ok()?, repetition.parse().ok()?);
        for (quantity, text) in [(Quantity::Wall, wall), (Quantity::Cpu, cpu)] {
            let key = (contender.to_owned(), pods, *operation, quantity);
            *sums.entry((key, repetition)).or_default() += text.parse::<f64>().ok()? / 1000.0;
        }
    }
    let mut series = BTreeMap::<Key, Vec<f64>>::new();
    for ((key, _), sum) in sums {
        series.entry(key).or_default().push(sum);
    }
    Some(series)
}

impl Ratio {
    /// The ratio of `after` to `before`, by medians. The same samples give the same interval.
    fn of(before: &[f64], after: &[f64]) -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut ratios: Vec<f64> = (0..RESAMPLINGS)
            .map(|_| median(random.resample(after)) / median(random.resample(before)))
            .collect();
        ratios.sort_by(f64::total_cmp);
        let cut = RESAMPLINGS / 40;
        Self {
            low: ratios.get(cut).copied().unwrap_or(f64::NAN),
            value: median(after.to_vec()) / median(before.to_vec()),
            high: ratios.get(RESAMPLINGS - 1 - cut).copied().unwrap_or(f64::NAN),
        }
    }

    /// The verdict on the change beyond that of the machine, which is within the interval of `machine`.
    fn beyond(self, machine: Self) -> Verdict {
        // The interval of a machine that did not change contains 1.
        let (low, high) = (self.low / machine.high.max(1.0), self.high / machine.low.min(1.0));
        if high < 1.0 - LEAST_CHANGE {
            Verdict::Faster
        } else if low > 1.0 + LEAST_CHANGE {
            Verdict::Slower
        } else {
            Verdict::Unclear
        }
    }
}

/// A generator of numbers for resampling (xorshift64, G. Marsaglia): its quality is enough to choose samples.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap_or(u64::MAX)).unwrap_or_default()
    }

    fn resample(&mut self, samples: &[f64]) -> Vec<f64> {
        (0..samples.len()).filter_map(|_| samples.get(self.below(samples.len())).copied()).collect()
    }
}

/// The comparison for the terminal.
fn table(before: &Run, after: &Run) -> Result<String> {
    let ratios: Vec<(&Key, Ratio)> = before
        .samples
        .iter()
        .filter_map(|(key, samples)| Some((key, Ratio::of(samples, after.samples.get(key)?))))
        .collect();
    if ratios.is_empty() {
        return Err(Error::Failed("the runs have no contender in common".to_owned()));
    }
    // The widest change of the peers at the same number of pods, for the same operation.
    let machine = |key: &Key| {
        let peers = ratios.iter().filter(|(peer, _)| {
            peer.0.starts_with(PEER) && (peer.1, peer.2, peer.3) == (key.1, key.2, key.3)
        });
        peers.fold(Ratio { low: 1.0, value: 1.0, high: 1.0 }, |widest, (_, peer)| Ratio {
            low: widest.low.min(peer.value),
            value: 1.0,
            high: widest.high.max(peer.value),
        })
    };
    let columns = ["pods", "", "B : A", "95 %", "the machine", "verdict"].map(str::to_owned);
    let mut text = head("", &columns);
    for (key, ratio) in &ratios {
        let (contender, pods, operation, quantity) = key;
        let quantity = match quantity {
            Quantity::Wall => "wall clock",
            Quantity::Cpu => "CPU",
        };
        let machine = machine(key);
        let verdict = match contender.starts_with(PEER) {
            true => "the yardstick",
            false => ratio.beyond(machine).word(),
        };
        let cells = [
            pods.to_string(),
            format!("{operation}, {quantity}"),
            format!("{:.3}", ratio.value),
            format!("{:.3} to {:.3}", ratio.low, ratio.high),
            format!("{:.3} to {:.3}", machine.low, machine.high),
            verdict.to_owned(),
        ];
        // Writing to a String cannot fail.
        let _ = write!(text, "{}", row(contender, &cells));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(conditions: &[&str], series: &[(&str, &[f64])]) -> Run {
        let report = Report {
            conditions: conditions.iter().map(|&line| line.to_owned()).collect(),
            ..Report::default()
        };
        let samples = series.iter().map(|(contender, samples)| {
            (((*contender).to_owned(), 0, "ADD", Quantity::Wall), samples.to_vec())
        });
        Run { report, samples: samples.collect() }
    }

    fn verdict(before: &[f64], after: &[f64], peer_before: &[f64], peer_after: &[f64]) -> String {
        let before = run(&[], &[("slipway", before), ("peer-iptables", peer_before)]);
        let after = run(&[], &[("slipway", after), ("peer-iptables", peer_after)]);
        let table = table(&before, &after).unwrap();
        let line = table.lines().find(|line| line.starts_with("| slipway ")).unwrap();
        line.split('|').rfind(|cell| !cell.trim().is_empty()).unwrap().trim().to_owned()
    }

    const STEADY: [f64; 10] = [100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0, 99.0, 100.0];

    #[test]
    fn a_verdict_needs_more_than_the_spread_and_the_change_of_the_machine() {
        let scaled = |by: f64| STEADY.map(|sample| sample * by);
        let faster = scaled(0.8);
        assert_eq!(verdict(&STEADY, &faster, &STEADY, &STEADY), "faster");
        assert_eq!(verdict(&faster, &STEADY, &STEADY, &STEADY), "slower");
        assert_eq!(verdict(&STEADY, &STEADY, &STEADY, &STEADY), "no difference shown");
        // The whole machine has become faster by the same factor.
        assert_eq!(verdict(&STEADY, &faster, &STEADY, &scaled(0.8)), "no difference shown");
        // The difference is certain, but too small to matter.
        assert_eq!(verdict(&[100.0; 10], &[99.0; 10], &STEADY, &STEADY), "no difference shown");
        // The samples spread as much as they differ.
        let wild = [60.0, 140.0, 70.0, 130.0, 80.0, 120.0, 90.0, 110.0, 95.0, 65.0];
        assert_eq!(verdict(&STEADY, &wild, &STEADY, &STEADY), "no difference shown");
    }

    #[test]
    fn other_machines_and_options_are_refused_and_another_load_is_not() {
        let one = run(&["10 repetitions", "Linux 6.18, 2 processors", "load before the run: 0.1"], &[]);
        let busy = run(&["10 repetitions", "Linux 6.18, 2 processors", "load before the run: 2.0"], &[]);
        let other = run(&["10 repetitions", "Linux 6.12, 2 processors", "load before the run: 0.1"], &[]);
        one.must_match(&busy).unwrap();
        let error = one.must_match(&other).unwrap_err().to_string();
        assert!(error.contains("\"Linux 6.18, 2 processors\" and \"Linux 6.12, 2 processors\""), "{error}");
        assert!(one.must_match(&run(&["10 repetitions"], &[])).is_err());
    }

    #[test]
    fn the_calls_of_an_operation_are_summed_by_repetition() {
        let csv = "contender,pods,repetition,call,wall_us,cpu_us\n\
                   slipway,0,0,bridge ADD,3000,2000\nslipway,0,0,portmap ADD,1000,500\n\
                   slipway,0,1,bridge ADD,5000,2000\nslipway,0,1,portmap ADD,1000,500\nfloor,0,0,veth,9,\n";
        let series = samples(csv).unwrap();
        let key = |quantity| ("slipway".to_owned(), 0, "ADD", quantity);
        assert_eq!(series[&key(Quantity::Wall)], [4.0, 6.0]);
        assert_eq!(series[&key(Quantity::Cpu)], [2.5, 2.5]);
        assert_eq!(series.len(), 2);
        assert_eq!(samples("header\nslipway,0\n"), None);
        assert_eq!(samples("header\nslipway,x,0,bridge ADD,1,1\n"), None);
    }
}
