// SPDX-License-Identifier: MIT OR Apache-2.0

//! The figures of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::memory::Memory;
use crate::output;
use crate::statistics::{megabytes, milliseconds, quantile};
use crate::table::{Column, column};

/// The samples of one number of Nodes.
#[derive(Debug)]
pub(super) struct Samples {
    /// Other Nodes.
    pub(super) nodes: u32,
    /// From the start of the process to the last route.
    pub(super) first_sync: Duration,
    /// The CPU time of the process until then.
    pub(super) sync_cpu: Duration,
    /// The memory after the first synchronization.
    pub(super) memory: Memory,
    /// The memory at the end.
    pub(super) after: Memory,
    /// CPU time and time without events.
    pub(super) rest: (Duration, Duration),
    /// CPU time and time with heartbeats.
    pub(super) busy: (Duration, Duration),
    pub(super) heartbeats: u32,
    /// From the request that changes a Node to the notification of its new route.
    pub(super) reactions: Vec<Duration>,
}

/// The samples of a number of Nodes that all change.
#[derive(Debug)]
pub(super) struct StormSamples {
    /// Other Nodes.
    pub(super) nodes: u32,
    /// From the start of the process to the last route.
    pub(super) first_sync: Duration,
    /// The CPU time of the process until then.
    pub(super) sync_cpu: Duration,
    /// The memory after the first synchronization.
    pub(super) memory: Memory,
    /// The memory at the end.
    pub(super) after: Memory,
    /// CPU time and time with reports.
    pub(super) busy: (Duration, Duration),
    pub(super) reports: u32,
    /// From a report with another address to the notification of its route.
    pub(super) reactions: Vec<Duration>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The machine and the conditions, one line each.
    pub(crate) conditions: Vec<String>,
    pub(crate) other_work: f64,
    pub(crate) heartbeats_per_second: u32,
    pub(crate) rows: Vec<Row>,
    /// With the API server inside the benchmark.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) storms: Vec<StormRow>,
}

/// One number of Nodes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) nodes: u32,
    first_sync_ms: f64,
    first_sync_cpu_ms: f64,
    memory: Memory,
    memory_after: Memory,
    rest_cpu_percent: f64,
    heartbeats: u32,
    heartbeat_cpu_percent: f64,
    heartbeat_cpu_us: f64,
    pub(crate) changes: usize,
    pub(crate) change_p50_ms: f64,
    pub(crate) change_p95_ms: f64,
    change_longest_ms: f64,
}

const COLUMNS: &[Column<Row>] = &[
    column("start to last route (s)", |row| row.first_sync_ms / 1e3),
    column("CPU for it (s)", |row| row.first_sync_cpu_ms / 1e3),
    column("memory after it (MB)", |row| megabytes(row.memory.resident_bytes)),
    column("memory at the end (MB)", |row| megabytes(row.memory_after.resident_bytes)),
    column("CPU at rest (% of one processor)", |row| row.rest_cpu_percent),
    column("CPU per heartbeat (µs)", |row| row.heartbeat_cpu_us),
    column("private memory after it (MB)", |row| megabytes(row.memory.private_bytes)),
    column("private memory at the end (MB)", |row| megabytes(row.memory_after.private_bytes)),
    column("heartbeats", |row| row.heartbeats.into()),
    column("CPU with heartbeats (%)", |row| row.heartbeat_cpu_percent),
    column("change, median (ms)", |row| row.change_p50_ms),
    column("p95", |row| row.change_p95_ms),
    column("longest", |row| row.change_longest_ms),
];
/// The columns of the page, each of which is a line there.
pub(crate) const PAGE: &[Column<Row>] = COLUMNS.split_at(6).0;

/// A number of Nodes that all change.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct StormRow {
    pub(crate) nodes: u32,
    first_sync_ms: f64,
    first_sync_cpu_ms: f64,
    memory: Memory,
    memory_after: Memory,
    pub(crate) reports: u32,
    reports_per_second: f64,
    cpu_percent: f64,
    pub(crate) changes: usize,
    pub(crate) change_p50_ms: f64,
    pub(crate) change_p95_ms: f64,
    change_longest_ms: f64,
}

pub(crate) const STORM_COLUMNS: &[Column<StormRow>] = &[
    column("start to last route (s)", |row| row.first_sync_ms / 1e3),
    column("CPU for it (s)", |row| row.first_sync_cpu_ms / 1e3),
    column("memory after it (MB)", |row| megabytes(row.memory.resident_bytes)),
    column("memory at the end (MB)", |row| megabytes(row.memory_after.resident_bytes)),
    column("changes per second", |row| row.reports_per_second),
    column("CPU with them (% of one processor)", |row| row.cpu_percent),
    column("changed address to route, median (ms)", |row| row.change_p50_ms),
    column("95th percentile", |row| row.change_p95_ms),
    column("longest", |row| row.change_longest_ms),
];

impl StormRow {
    pub(super) fn of(samples: &StormSamples) -> Self {
        let has_reactions = !samples.reactions.is_empty();
        let reaction =
            |percent| if has_reactions { quantile(samples.reactions.iter().copied(), percent) } else { 0.0 };
        let seconds = samples.busy.1.as_secs_f64();
        let has_reports = samples.reports > 0;
        let rounded = |value: f64| if has_reports { (value * 1e3).round() / 1e3 } else { 0.0 };
        Self {
            nodes: samples.nodes,
            first_sync_ms: milliseconds(samples.first_sync),
            first_sync_cpu_ms: milliseconds(samples.sync_cpu),
            memory: samples.memory,
            memory_after: samples.after,
            reports: samples.reports,
            reports_per_second: rounded(f64::from(samples.reports) / seconds),
            cpu_percent: rounded(samples.busy.0.as_secs_f64() / seconds * 1e2),
            changes: samples.reactions.len(),
            change_p50_ms: reaction(50),
            change_p95_ms: reaction(95),
            change_longest_ms: reaction(100),
        }
    }

    /// The line of the stage.
    pub(super) fn line(&self) -> String {
        format!("{:.0} ms to {} routes, {:.1} % CPU", self.first_sync_ms, self.nodes, self.cpu_percent)
    }
}

impl Row {
    pub(super) fn of(samples: &Samples) -> Self {
        let percent =
            |(cpu, time): (Duration, Duration)| (cpu.as_secs_f64() / time.as_secs_f64() * 1e5).round() / 1e3;
        let reactions = || samples.reactions.iter().copied();
        Self {
            nodes: samples.nodes,
            first_sync_ms: milliseconds(samples.first_sync),
            first_sync_cpu_ms: milliseconds(samples.sync_cpu),
            memory: samples.memory,
            memory_after: samples.after,
            rest_cpu_percent: percent(samples.rest),
            heartbeats: samples.heartbeats,
            heartbeat_cpu_percent: percent(samples.busy),
            heartbeat_cpu_us: (samples.busy.0.as_secs_f64() * 1e6 / f64::from(samples.heartbeats.max(1)))
                .round(),
            changes: samples.reactions.len(),
            change_p50_ms: quantile(reactions(), 50),
            change_p95_ms: quantile(reactions(), 95),
            change_longest_ms: quantile(reactions(), 100),
        }
    }

    /// The line of the stage.
    pub(super) fn line(&self) -> String {
        format!("{:.0} ms to {} routes", self.first_sync_ms, self.nodes)
    }
}

impl output::Report for Report {
    const NAME: &str = "cluster";

    fn text(&self) -> String {
        let mut text = self.conditions.join("\n") + "\n";
        for row in &self.rows {
            text += &format!("\n{} Nodes\n", row.nodes);
            for Column { name, value } in COLUMNS {
                text += &format!("  {name:<34} {:>9.2}\n", value(row));
            }
        }
        for row in &self.storms {
            text += &format!("\n{} Nodes, {} changes\n", row.nodes, row.reports);
            for Column { name, value } in STORM_COLUMNS {
                text += &format!("  {name:<38} {:>9.2}\n", value(row));
            }
        }
        text
    }
}
