// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of the samples: the rows of JSON, the table and CSV.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::caller::Batch;
use super::watch::Watch;
use crate::measure::Cost;
use crate::memory::Memory;
use crate::output;
use crate::statistics::{mean, megabytes, milliseconds, quantile};
use crate::table::{Column, Table, column};

/// A caller with a plugin set, by the names in tables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Name {
    pub(crate) caller: String,
    pub(crate) plugins: String,
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

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The machine and the conditions, one line each.
    conditions: Vec<String>,
    pub(crate) other_work: f64,
    pub(crate) calls: Vec<CallRow>,
    pub(crate) pods: u16,
    pub(crate) callers: u16,
    pub(crate) batches: Vec<BatchRow>,
    pub(crate) watch: WatchRow,
    #[serde(skip)]
    csv: String,
}

/// One pod at a time.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct CallRow {
    #[serde(flatten)]
    pub(crate) name: Name,
    pub(crate) repetitions: usize,
    pub(crate) add: Operation,
    pub(crate) del: Operation,
    /// The peak memory of the calling process alone.
    pub(crate) caller_peak_bytes: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    /// Of caller and plugins.
    pub(crate) cpu_ms: f64,
}

const CALL: &[Column<CallRow>] = &[
    column("ADD (ms)", |row| row.add.p50_ms),
    column("p90", |row| row.add.p90_ms),
    column("CPU", |row| row.add.cpu_ms),
    column("DEL (ms)", |row| row.del.p50_ms),
    column("p90", |row| row.del.p90_ms),
    column("CPU", |row| row.del.cpu_ms),
    column("memory (MB)", |row| megabytes(row.caller_peak_bytes)),
];

/// Many pods at once.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct BatchRow {
    #[serde(flatten)]
    pub(crate) name: Name,
    pub(crate) rounds: usize,
    pub(crate) up: Throughput,
    pub(crate) down: Throughput,
    /// The peak memory of all calling processes together.
    pub(crate) callers_peak_bytes: u64,
}

/// Pods per second are medians of the rounds, the latencies those of all operations.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Throughput {
    pods_per_second: f64,
    least_pods_per_second: f64,
    most_pods_per_second: f64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    /// Of an operation.
    cpu_ms: f64,
}

const BATCH: &[Column<Throughput>] = &[
    column("pods/s", |of| of.pods_per_second),
    column("p50 (ms)", |of| of.p50_ms),
    column("p90", |of| of.p90_ms),
    column("p99", |of| of.p99_ms),
    column("CPU", |of| of.cpu_ms),
    column("least pods/s", |of| of.least_pods_per_second),
    column("most", |of| of.most_pods_per_second),
];
/// The columns of the page.
pub(crate) const PAGE: &[Column<Throughput>] = BATCH.split_at(5).0;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct WatchRow {
    pub(crate) rest: Memory,
    pub(crate) after: Memory,
    pub(crate) changes: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) longest_ms: f64,
}

const MEMORY: &[Column<Memory>] = &[
    column("resident (MB)", |memory| megabytes(memory.resident_bytes)),
    column("proportional", |memory| megabytes(memory.proportional_bytes)),
    column("private", |memory| megabytes(memory.private_bytes)),
];

impl Report {
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
}

impl output::Report for Report {
    const NAME: &str = "runtime";

    fn text(&self) -> String {
        let mut calls = Table::new(&["caller", "plugins"], CALL);
        for row in &self.calls {
            calls.add(&[&row.name.caller, &row.name.plugins], row);
        }
        let pods = format!("{} pods", self.pods);
        let mut batches = Table::new(&["caller", "plugins", &pods], BATCH);
        let mut memory = String::new();
        for BatchRow { name: Name { caller, plugins }, up, down, callers_peak_bytes, .. } in &self.batches {
            batches.add(&[caller, plugins, &"up"], up);
            batches.add(&[caller, plugins, &"down"], down);
            // Writing to a String cannot fail.
            let _ = writeln!(
                memory,
                "{} {caller} of {plugins}: {:.1} MB",
                self.callers,
                megabytes(*callers_peak_bytes)
            );
        }
        let WatchRow { rest, after, changes, p50_ms, p95_ms, longest_ms } = &self.watch;
        let mut watch = Table::new(&["slipwayd networks --watch"], MEMORY);
        watch.add(&[&"at rest"], rest);
        watch.add(&[&"after the changes"], after);
        let reactions = format!(
            "{changes} changes: median {p50_ms:.1} ms, p95 {p95_ms:.1} ms, longest {longest_ms:.1} ms\n"
        );
        let parts =
            [self.conditions.join("\n"), calls.to_string(), batches.to_string(), memory, watch.to_string()];
        parts.join("\n") + &reactions
    }

    fn csv(&self) -> Option<&str> {
        Some(&self.csv)
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
        let name = Name { caller: "library (tokio)".to_owned(), plugins: "slipway".to_owned() };
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
        for part in
            ["a machine", "20.00", "2 library (tokio) of slipway: 7.0 MB", "20 changes: median 10.0 ms"]
        {
            let text = output::Report::text(&report);
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
