// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of bursts: the table, and JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Shape, Side};
use crate::goal::{self, Bound, Goal};
use crate::output;
use crate::statistics::{milliseconds, quantile};
use crate::table::{Column, Table, column};

/// All bursts of one contender at one number of pods.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) contender: String,
    pub(super) adds: Vec<Side>,
    pub(super) dels: Vec<Side>,
}

/// The bursts of one contender at one number of pods.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) contender: String,
    /// Pods that were present before.
    pub(crate) pods: u32,
    /// Flows that were made in conntrack before.
    pub(crate) conntrack: u32,
    pub(crate) bursts: usize,
    pub(crate) add: Figures,
    pub(crate) del: Figures,
}

/// The figures of one verb. Times of a pod are those of its whole list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) pods_per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) slowest_ms: f64,
    /// The plugins' CPU time for a pod.
    pub(crate) cpu_ms: f64,
    /// The whole machine's, with the kernel's work for it.
    pub(crate) busy_ms: f64,
}

const COLUMNS: &[Column<Figures>] = &[
    column("pods/s", |of| of.pods_per_second),
    column("p50 (ms)", |of| of.p50_ms),
    column("p95", |of| of.p95_ms),
    column("p99", |of| of.p99_ms),
    column("slowest", |of| of.slowest_ms),
    column("CPU (ms)", |of| of.cpu_ms),
    column("all busy", |of| of.busy_ms),
];
/// The columns of the page: the median and the 99th percentile are enough for its readers.
pub(crate) const PAGE: &[Column<Figures>] = &[
    column("pods/s", |of| of.pods_per_second),
    column("p50 (ms)", |of| of.p50_ms),
    column("p99", |of| of.p99_ms),
    column("CPU (ms)", |of| of.cpu_ms),
];

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The machine and the conditions, one line each.
    pub(crate) conditions: Vec<String>,
    /// Pods of a burst.
    pub(crate) burst: u32,
    pub(crate) callers: usize,
    pub(crate) rows: Vec<Row>,
    pub(crate) ratios: Vec<Goal>,
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

impl Report {
    pub(super) fn new(conditions: Vec<String>, shape: Shape, rows: Vec<Row>) -> Self {
        let ratios = ratios(&rows);
        Self { conditions, burst: shape.pods, callers: shape.callers, rows, ratios }
    }
}

impl output::Report for Report {
    const NAME: &str = "burst";

    fn text(&self) -> String {
        let mut table = Table::new(&["", "pods", ""], COLUMNS);
        for row in &self.rows {
            table.add(&[&row.contender, &row.pods, &"ADD"], &row.add);
            table.add(&[&row.contender, &row.pods, &"DEL"], &row.del);
        }
        [self.conditions.join("\n"), table.to_string(), goal::text(&self.ratios)].join("\n")
    }
}

/// A figure of a row.
type Value = fn(&Row) -> f64;

fn ratios(rows: &[Row]) -> Vec<Goal> {
    let mut ratios = Vec::new();
    let mut add = |what: String, value: f64, bound: Bound| ratios.push(Goal::bounded(what, value, bound));
    for row in rows.iter().filter(|row| row.contender == "slipway") {
        let pods = row.pods;
        let named = |name: &str| rows.iter().find(|other| other.pods == pods && other.contender == name);
        let is_peer = |other: &&Row| other.pods == pods && !other.contender.starts_with("slipway");
        let best = |of: Value| rows.iter().filter(is_peer).map(of).fold(f64::NAN, f64::max);
        let adds: Value = |row| row.add.pods_per_second;
        let dels: Value = |row| row.del.pods_per_second;
        add(format!("ADDs to the faster peer's, {pods} pods"), adds(row) / best(adds), Bound::AtLeast(20.0));
        add(format!("DELs to the faster peer's, {pods} pods"), dels(row) / best(dels), Bound::AtLeast(12.0));
        let slowest = row.del.slowest_ms / row.del.p50_ms;
        add(format!("slowest DEL to the median, {pods} pods"), slowest, Bound::AtMost(3.0));
        if let Some(ebpf) = named("slipway-ebpf") {
            let value = adds(row) / adds(ebpf);
            add(format!("nftables' ADDs to ebpf's, {pods} pods"), value, Bound::AtMost(1.5));
        }
        if let (Some(ours), Some(peer)) = (named("slipway-iptables"), named("peer-iptables")) {
            let value = adds(ours) / adds(peer);
            add(format!("iptables' ADDs to the peer's, {pods} pods"), value, Bound::AtLeast(5.0));
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
        let text = output::Report::text(&report);
        assert!(text.contains("MISSED   10.000  goal ≥ 12    DELs to the faster peer's"), "{text}");
    }
}
