// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of the samples: the rows of JSON, the table and CSV.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::caller::Batch;
use super::watch::Watch;
use crate::measure::Cost;
use crate::memory::Memory;
use crate::report::{mean, megabytes, milliseconds, quantile};
use xtask_base::error::{Error, Result};

/// A caller with a plugin set, by the names in tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Name {
    pub(super) caller: &'static str,
    pub(super) plugins: &'static str,
}

/// The operations of a caller on one pod at a time: ADD and DEL of each repetition.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) name: Name,
    /// The peak resident size of the calling process, in bytes.
    pub(super) peak: u64,
    pub(super) samples: Vec<(Cost, Cost)>,
}

/// The operations of a caller on many pods at once: ADD and DEL of each round.
#[derive(Debug)]
pub(super) struct Batches {
    pub(super) name: Name,
    /// The peak memory of all callers together, in bytes.
    pub(super) memory: u64,
    pub(super) rounds: Vec<(Batch, Batch)>,
}

/// The samples of a run.
#[derive(Debug)]
pub(super) struct Samples {
    pub(super) calls: Vec<Calls>,
    pub(super) batches: Vec<Batches>,
    pub(super) watch: Watch,
    /// The pods of a batch, and the operations at the same time.
    pub(super) pods: u16,
    pub(super) callers: u16,
    /// The share of one processor that other work took before the measurements, at most.
    pub(super) other_work: f64,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The machine and the conditions, one line each.
    conditions: Vec<String>,
    other_work: f64,
    calls: Vec<CallRow>,
    pods: u16,
    callers: u16,
    batches: Vec<BatchRow>,
    watch: WatchRow,
    #[serde(skip)]
    csv: String,
}

/// One pod at a time.
#[derive(Debug, Serialize)]
struct CallRow {
    #[serde(flatten)]
    name: Name,
    repetitions: usize,
    add: Operation,
    del: Operation,
    caller_peak_bytes: u64,
}

/// Times in milliseconds.
#[derive(Debug, Serialize)]
struct Operation {
    p50_ms: f64,
    p90_ms: f64,
    cpu_ms: f64,
}

/// Many pods at once.
#[derive(Debug, Serialize)]
struct BatchRow {
    #[serde(flatten)]
    name: Name,
    rounds: usize,
    up: Throughput,
    down: Throughput,
    callers_peak_bytes: u64,
}

/// Pods per second are medians of the rounds, the latencies those of all operations, in milliseconds.
#[derive(Debug, Serialize)]
struct Throughput {
    pods_per_second: f64,
    least_pods_per_second: f64,
    most_pods_per_second: f64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    /// Of an operation.
    cpu_ms: f64,
}

#[derive(Debug, Serialize)]
struct WatchRow {
    rest: Memory,
    after: Memory,
    changes: usize,
    p50_ms: f64,
    p95_ms: f64,
    longest_ms: f64,
}

impl Report {
    /// Computes the figures.
    pub(super) fn new(conditions: Vec<String>, samples: &Samples) -> Self {
        let Samples { calls, batches, watch, pods, callers, other_work } = samples;
        Self {
            conditions,
            other_work: (other_work * 1e3).round() / 1e3,
            calls: calls.iter().map(CallRow::of).collect(),
            pods: *pods,
            callers: *callers,
            batches: batches.iter().map(BatchRow::of).collect(),
            watch: WatchRow::of(watch),
            csv: csv(samples),
        }
    }

    /// Writes `runtime.json` and `runtime.csv` into a directory and returns their paths.
    pub(super) fn save(&self, dir: &Path) -> Result<[PathBuf; 2]> {
        fs::create_dir_all(dir).map_err(|e| Error::file("create the directory", dir, e))?;
        let json = serde_json::to_string_pretty(self)
            .map_err(|e| Error::Failed(format!("print the figures: {e}")))?;
        let paths = [dir.join("runtime.json"), dir.join("runtime.csv")];
        for (path, text) in paths.iter().zip([json + "\n", self.csv.clone()]) {
            fs::write(path, text).map_err(|e| Error::file("write", path, e))?;
        }
        Ok(paths)
    }

    /// The tables for people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for line in &self.conditions {
            let _ = writeln!(text, "{line}");
        }
        let heading = format!("{:<18} {:<10}", "ms per operation", "plugins");
        let figures = format!("{:>8} {:>8} {:>8}", "p50", "p90", "CPU");
        let _ = writeln!(text, "\n{heading}  ADD {figures}  DEL {figures}  {:>10}", "caller MB");
        for row in &self.calls {
            let figures =
                |of: &Operation| format!("{:>8.2} {:>8.2} {:>8.2}", of.p50_ms, of.p90_ms, of.cpu_ms);
            let _ = writeln!(
                text,
                "{}      {}      {}  {:>10.1}",
                row.name.padded(),
                figures(&row.add),
                figures(&row.del),
                megabytes(row.caller_peak_bytes)
            );
        }
        let heading = format!("{:<18} {:<10}", format!("{} pods", self.pods), "plugins");
        let _ = writeln!(
            text,
            "\n{heading}       pods/s (least–most)        p50      p90      p99      CPU  ({} callers)",
            self.callers
        );
        for row in &self.batches {
            for (word, of) in [("up", &row.up), ("down", &row.down)] {
                let _ = writeln!(
                    text,
                    "{} {word:<4} {:>7.1} {:>16} {:>8.1} {:>8.1} {:>8.1} {:>8.2}",
                    row.name.padded(),
                    of.pods_per_second,
                    format!("({:.1}–{:.1})", of.least_pods_per_second, of.most_pods_per_second),
                    of.p50_ms,
                    of.p90_ms,
                    of.p99_ms,
                    of.cpu_ms
                );
            }
            let megabytes = megabytes(row.callers_peak_bytes);
            let _ = writeln!(text, "{} callers together {megabytes:.1} MB", row.name.padded());
        }
        let WatchRow { rest, after, changes, p50_ms, p95_ms, longest_ms } = &self.watch;
        let _ = writeln!(text, "\nslipwayd networks --watch");
        for (when, memory) in [("at rest", rest), ("after the changes", after)] {
            let _ = writeln!(
                text,
                "{when}: {:.2} MB resident, {:.2} MB proportional, {:.2} MB private",
                megabytes(memory.resident_bytes),
                megabytes(memory.proportional_bytes),
                megabytes(memory.private_bytes)
            );
        }
        let _ = writeln!(
            text,
            "{changes} changes: median {p50_ms:.1} ms, p95 {p95_ms:.1} ms, longest {longest_ms:.1} ms"
        );
        text
    }
}

impl Name {
    fn padded(&self) -> String {
        format!("{:<18} {:<10}", self.caller, self.plugins)
    }
}

impl CallRow {
    fn of(calls: &Calls) -> Self {
        let of = |of: fn(&(Cost, Cost)) -> Cost| {
            let costs = || calls.samples.iter().map(of);
            Operation {
                p50_ms: quantile(costs().map(|cost| cost.wall), 50),
                p90_ms: quantile(costs().map(|cost| cost.wall), 90),
                cpu_ms: mean(costs().map(|cost| cost.cpu)),
            }
        };
        Self {
            name: calls.name.clone(),
            repetitions: calls.samples.len(),
            add: of(|(add, _)| *add),
            del: of(|(_, del)| *del),
            caller_peak_bytes: calls.peak,
        }
    }
}

impl BatchRow {
    fn of(batches: &Batches) -> Self {
        Self {
            name: batches.name.clone(),
            rounds: batches.rounds.len(),
            up: Throughput::of(batches.rounds.iter().map(|(up, _)| up)),
            down: Throughput::of(batches.rounds.iter().map(|(_, down)| down)),
            callers_peak_bytes: batches.memory,
        }
    }
}

impl Throughput {
    fn of<'a>(batches: impl Iterator<Item = &'a Batch>) -> Self {
        let batches: Vec<&Batch> = batches.collect();
        let calls = || batches.iter().flat_map(|batch| batch.calls.iter().copied());
        let mut rates: Vec<f64> = batches.iter().map(|batch| batch.rate()).collect();
        rates.sort_by(f64::total_cmp);
        let rate = |at: usize| rates.get(at).copied().unwrap_or(f64::NAN);
        Self {
            pods_per_second: rate((rates.len().max(1) - 1) / 2),
            least_pods_per_second: rate(0),
            most_pods_per_second: rate(rates.len().max(1) - 1),
            p50_ms: quantile(calls(), 50),
            p90_ms: quantile(calls(), 90),
            p99_ms: quantile(calls(), 99),
            cpu_ms: mean(batches.iter().map(|batch| batch.cpu_of_a_call())),
        }
    }
}

impl Batch {
    fn rate(&self) -> f64 {
        (f64::from(self.count()) / self.wall.as_secs_f64() * 10.0).round() / 10.0
    }

    fn cpu_of_a_call(&self) -> Duration {
        self.cpu.checked_div(self.count()).unwrap_or_default()
    }

    fn count(&self) -> u32 {
        u32::try_from(self.calls.len()).unwrap_or(u32::MAX)
    }
}

impl WatchRow {
    fn of(watch: &Watch) -> Self {
        let reactions = || watch.reactions.iter().copied();
        Self {
            rest: watch.rest,
            after: watch.after,
            changes: watch.reactions.len(),
            p50_ms: quantile(reactions(), 50),
            p95_ms: quantile(reactions(), 95),
            longest_ms: reactions().max().map_or(f64::NAN, milliseconds),
        }
    }
}

/// Every operation on one pod, every batch and every change of the file. A batch's latencies are not listed.
fn csv(samples: &Samples) -> String {
    let mut text = String::from("part,caller,plugins,round,operation,wall_us,cpu_us\n");
    let mut add = |part: &str, name: &Name, round: usize, operation: &str, cost: Cost| {
        let Name { caller, plugins } = name;
        let (wall, cpu) = (cost.wall.as_micros(), cost.cpu.as_micros());
        let _ = writeln!(text, "{part},{caller},{plugins},{round},{operation},{wall},{cpu}");
    };
    for one in &samples.calls {
        for (round, (up, down)) in one.samples.iter().enumerate() {
            add("call", &one.name, round, "ADD", *up);
            add("call", &one.name, round, "DEL", *down);
        }
    }
    for one in &samples.batches {
        for (round, (up, down)) in one.rounds.iter().enumerate() {
            for (word, batch) in [("up", up), ("down", down)] {
                add("batch", &one.name, round, word, Cost { wall: batch.wall, cpu: batch.cpu });
            }
        }
    }
    for (round, time) in samples.watch.reactions.iter().enumerate() {
        let _ = writeln!(text, "change,slipwayd,,{round},change,{},", time.as_micros());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn figures_are_of_all_samples() {
        let name = Name { caller: "library (tokio)", plugins: "slipway" };
        let cost = |n| Cost { wall: ms(n), cpu: ms(n / 2) };
        let batch = |wall| Batch { wall: ms(wall), cpu: ms(40), calls: vec![ms(10), ms(30)] };
        let samples = Samples {
            calls: vec![Calls {
                name: name.clone(),
                peak: 5_000_000,
                samples: vec![(cost(10), cost(40)), (cost(20), cost(60))],
            }],
            batches: vec![Batches {
                name,
                memory: 7_000_000,
                rounds: vec![(batch(100), batch(50)), (batch(200), batch(50)), (batch(400), batch(50))],
            }],
            watch: Watch {
                rest: Memory::default(),
                after: Memory::default(),
                reactions: (1..=20).map(ms).collect(),
            },
            pods: 2,
            callers: 2,
            other_work: 0.0123,
        };
        let report = Report::new(vec!["a machine".to_owned()], &samples);
        let json = serde_json::to_value(&report).unwrap();
        let call = &json["calls"][0];
        assert_eq!((&call["caller"], &call["add"]["p50_ms"]), (&"library (tokio)".into(), &10.0.into()));
        assert_eq!((&call["add"]["p90_ms"], &call["del"]["cpu_ms"]), (&20.0.into(), &25.0.into()));
        let up = &json["batches"][0]["up"];
        let rates = ["pods_per_second", "least_pods_per_second", "most_pods_per_second"].map(|key| &up[key]);
        assert_eq!(rates, [10.0, 5.0, 20.0]);
        assert_eq!((&up["p50_ms"], &up["p99_ms"], &up["cpu_ms"]), (&10.0.into(), &30.0.into(), &20.0.into()));
        let watch = ["p50_ms", "p95_ms", "longest_ms"].map(|key| &json["watch"][key]);
        assert_eq!(watch, [10.0, 19.0, 20.0]);
        assert_eq!(json["other_work"], 0.012);
        assert_eq!(report.csv.lines().count(), 1 + 4 + 6 + 20);
        assert!(report.csv.lines().all(|line| line.split(',').count() == 7));
        for part in ["a machine", "20.00", "callers together 7.0 MB", "20 changes: median 10.0 ms"] {
            assert!(report.text().contains(part), "{part}: {}", report.text());
        }
    }
}
