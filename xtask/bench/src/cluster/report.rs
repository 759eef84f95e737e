// SPDX-License-Identifier: MIT OR Apache-2.0

//! The figures of a run.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::memory::Memory;
use crate::report::{megabytes, milliseconds, quantile};
use xtask_base::error::{Error, Result};

/// The samples of one number of Nodes.
#[derive(Debug)]
pub(super) struct Samples {
    /// Other Nodes.
    pub(super) nodes: u32,
    /// From the start of the process to the last route.
    pub(super) first_sync: Duration,
    /// Its CPU time until then.
    pub(super) sync_cpu: Duration,
    /// After that.
    pub(super) memory: Memory,
    /// At the end.
    pub(super) after: Memory,
    /// CPU time and time without events.
    pub(super) rest: (Duration, Duration),
    /// CPU time and time with heartbeats.
    pub(super) busy: (Duration, Duration),
    /// The number of heartbeats.
    pub(super) heartbeats: u32,
    /// From the request that changes a Node to the notification of its new route.
    pub(super) reactions: Vec<Duration>,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The machine and the conditions, one line each.
    pub(super) conditions: Vec<String>,
    pub(super) other_work: f64,
    pub(super) heartbeats_per_second: u32,
    pub(super) rows: Vec<Row>,
}

/// One number of Nodes.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    nodes: u32,
    first_sync_ms: f64,
    first_sync_cpu_ms: f64,
    memory: Memory,
    memory_after: Memory,
    rest_cpu_percent: f64,
    heartbeats: u32,
    heartbeat_cpu_percent: f64,
    heartbeat_cpu_us: f64,
    changes: usize,
    change_p50_ms: f64,
    change_p95_ms: f64,
    change_longest_ms: f64,
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

impl Report {
    /// Writes `cluster.json` into a directory and returns its path.
    pub(super) fn save(&self, dir: &Path) -> Result<PathBuf> {
        fs::create_dir_all(dir).map_err(|e| Error::file("create the directory", dir, e))?;
        let json = serde_json::to_string_pretty(self)
            .map_err(|e| Error::Failed(format!("print the figures: {e}")))?;
        let path = dir.join("cluster.json");
        fs::write(&path, json + "\n").map_err(|e| Error::file("write", &path, e))?;
        Ok(path)
    }

    /// The figures for people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for line in &self.conditions {
            let _ = writeln!(text, "{line}");
        }
        for row in &self.rows {
            let _ = write!(
                text,
                "\n{} Nodes\n  first synchronization  {:.0} ms, {:.0} ms of CPU\n  memory                 {:.1} MB resident, {:.1} \
                 MB private; at the end {:.1} and {:.1}\n  CPU at rest            {:.2} %\n  with {} heartbeats    {:.2} %, {:.0} us \
                 each\n  {} changed addresses   median {:.1} ms, p95 {:.1} ms, longest {:.1} ms\n",
                row.nodes,
                row.first_sync_ms,
                row.first_sync_cpu_ms,
                megabytes(row.memory.resident_bytes),
                megabytes(row.memory.private_bytes),
                megabytes(row.memory_after.resident_bytes),
                megabytes(row.memory_after.private_bytes),
                row.rest_cpu_percent,
                row.heartbeats,
                row.heartbeat_cpu_percent,
                row.heartbeat_cpu_us,
                row.changes,
                row.change_p50_ms,
                row.change_p95_ms,
                row.change_longest_ms
            );
        }
        text
    }
}
