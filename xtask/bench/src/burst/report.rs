// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of bursts: the table, and JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::{Shape, Side};
use crate::report::{milliseconds, quantile};
use xtask_base::error::{Error, Result};

/// All bursts of one contender at one number of pods.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) contender: String,
    pub(super) adds: Vec<Side>,
    pub(super) dels: Vec<Side>,
}

/// One row of the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    contender: String,
    /// Pods that were present before.
    pods: u32,
    /// Flows that were made in conntrack before.
    conntrack: u32,
    bursts: usize,
    add: Figures,
    del: Figures,
}

/// The figures of one verb. Times of a pod are those of its whole list.
#[derive(Debug, Serialize)]
struct Figures {
    pods_per_second: f64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    slowest_ms: f64,
    /// The plugins' CPU time for a pod.
    cpu_ms: f64,
    /// The whole machine's, with the kernel's work for it.
    busy_ms: f64,
}

/// A limit for a ratio.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Debug, Serialize)]
struct Ratio {
    what: String,
    value: f64,
    goal: Goal,
    met: bool,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The machine and the conditions, one line each.
    conditions: Vec<String>,
    /// Pods of a burst.
    burst: u32,
    callers: usize,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
}

impl Figures {
    fn of(sides: &[Side]) -> Self {
        let times = || sides.iter().flat_map(|side| side.times.iter().copied());
        let count = u32::try_from(times().count()).unwrap_or(u32::MAX);
        let sum = |of: fn(&Side) -> Duration| -> Duration { sides.iter().map(of).sum() };
        let each = |of| sum(of).checked_div(count).map_or(f64::NAN, milliseconds);
        Self {
            pods_per_second: f64::from(count) / sum(|side| side.took).as_secs_f64(),
            p50_ms: quantile(times(), 50),
            p95_ms: quantile(times(), 95),
            p99_ms: quantile(times(), 99),
            slowest_ms: quantile(times(), 100),
            cpu_ms: each(|side| side.cpu),
            busy_ms: each(|side| side.busy),
        }
    }
}

impl Row {
    pub(super) fn of(rounds: &Rounds, pods: u32, conntrack: u32) -> Self {
        Self {
            contender: rounds.contender.clone(),
            pods,
            conntrack,
            bursts: rounds.adds.len(),
            add: Figures::of(&rounds.adds),
            del: Figures::of(&rounds.dels),
        }
    }
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

impl Report {
    pub(super) fn new(conditions: Vec<String>, shape: Shape, rows: Vec<Row>) -> Self {
        let ratios = ratios(&rows);
        Self { conditions, burst: shape.pods, callers: shape.callers, rows, ratios }
    }

    /// Writes `burst.json` into a directory and returns its path.
    pub(super) fn save(&self, dir: &Path) -> Result<PathBuf> {
        fs::create_dir_all(dir).map_err(|e| Error::file("create the directory", dir, e))?;
        let json = serde_json::to_string_pretty(self)
            .map_err(|e| Error::Failed(format!("print the figures: {e}")))?;
        let path = dir.join("burst.json");
        fs::write(&path, json + "\n").map_err(|e| Error::file("write", &path, e))?;
        Ok(path)
    }

    /// The tables for people.
    pub(super) fn text(&self) -> String {
        let mut text = self.conditions.join("\n");
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\n\n{:<18} {:>5} {:>4}  {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "ms per pod", "pods", "", "pods/s", "p50", "p95", "p99", "slowest", "CPU", "all busy"
        );
        for row in &self.rows {
            for (verb, one) in [("ADD", &row.add), ("DEL", &row.del)] {
                let _ = writeln!(
                    text,
                    "{:<18} {:>5} {verb:>4}  {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.2} {:>8.2}",
                    row.contender,
                    row.pods,
                    one.pods_per_second,
                    one.p50_ms,
                    one.p95_ms,
                    one.p99_ms,
                    one.slowest_ms,
                    one.cpu_ms,
                    one.busy_ms
                );
            }
        }
        let _ = writeln!(text);
        for ratio in &self.ratios {
            let verdict = if ratio.met { "met   " } else { "MISSED" };
            let (sign, goal) = match ratio.goal {
                Goal::AtLeast(goal) => (">=", goal),
                Goal::AtMost(goal) => ("<=", goal),
            };
            let _ = writeln!(text, "{verdict}  {:>7.2}  goal {sign} {goal:<5}  {}", ratio.value, ratio.what);
        }
        text
    }
}

/// A figure of a row.
type Value = fn(&Row) -> f64;

fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let mut add = |what: String, value: f64, goal: Goal| {
        ratios.push(Ratio { what, value, goal, met: goal.is_met(value) });
    };
    for row in rows.iter().filter(|row| row.contender == "slipway") {
        let pods = row.pods;
        let named = |name: &str| rows.iter().find(|other| other.pods == pods && other.contender == name);
        let is_peer = |other: &&Row| other.pods == pods && !other.contender.starts_with("slipway");
        let best = |of: Value| rows.iter().filter(is_peer).map(of).fold(f64::NAN, f64::max);
        let adds: Value = |row| row.add.pods_per_second;
        let dels: Value = |row| row.del.pods_per_second;
        add(format!("ADDs to the faster peer's, {pods} pods"), adds(row) / best(adds), Goal::AtLeast(20.0));
        add(format!("DELs to the faster peer's, {pods} pods"), dels(row) / best(dels), Goal::AtLeast(12.0));
        let slowest = row.del.slowest_ms / row.del.p50_ms;
        add(format!("slowest DEL to the median, {pods} pods"), slowest, Goal::AtMost(3.0));
        if let Some(ebpf) = named("slipway-ebpf") {
            let value = adds(row) / adds(ebpf);
            add(format!("nftables' ADDs to ebpf's, {pods} pods"), value, Goal::AtMost(1.5));
        }
        if let (Some(ours), Some(peer)) = (named("slipway-iptables"), named("peer-iptables")) {
            let value = adds(ours) / adds(peer);
            add(format!("iptables' ADDs to the peer's, {pods} pods"), value, Goal::AtLeast(5.0));
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(contender: &str, add_ms: u64, del_ms: u64) -> Rounds {
        let side = |ms: u64| Side {
            times: (1..=4).map(|factor| Duration::from_millis(ms * factor)).collect(),
            took: Duration::from_millis(4 * ms),
            cpu: Duration::from_millis(8),
            busy: Duration::from_millis(12),
        };
        Rounds { contender: contender.to_owned(), adds: vec![side(add_ms)], dels: vec![side(del_ms)] }
    }

    #[test]
    fn rows_have_the_rate_and_the_slowest() {
        let row = Row::of(&rounds("slipway", 5, 10), 100, 0);
        assert_eq!((row.add.pods_per_second, row.del.pods_per_second), (200.0, 100.0));
        assert_eq!((row.add.p50_ms, row.add.slowest_ms), (10.0, 20.0));
        assert_eq!((row.add.cpu_ms, row.add.busy_ms, row.bursts), (2.0, 3.0, 1));
    }

    #[test]
    fn ratios_are_to_the_faster_peer_with_as_many_pods() {
        let of = |name: &str, add, del, pods| Row::of(&rounds(name, add, del), pods, 0);
        let rows = vec![
            of("slipway", 1, 1, 0),
            of("slipway-ebpf", 2, 1, 0),
            of("slipway-iptables", 4, 4, 0),
            of("peer-nftables", 40, 10, 0),
            of("peer-iptables", 20, 20, 0),
            of("peer-iptables", 1, 1, 9),
        ];
        let report = Report::new(Vec::new(), Shape { pods: 4, callers: 2 }, rows);
        let found: Vec<(f64, bool)> = report.ratios.iter().map(|ratio| (ratio.value, ratio.met)).collect();
        assert_eq!(found, [(20.0, true), (10.0, false), (2.0, true), (2.0, false), (5.0, true)]);
        let text = report.text();
        assert!(text.contains("MISSED    10.00  goal >= 12"), "{text}");
    }
}
