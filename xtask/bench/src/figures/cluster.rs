// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table of slipwayd with many Nodes.

use std::fmt::Write as _;

use serde::Deserialize;

use super::{Data, digits};
use xtask_base::error::Result;

/// The run that the page shows.
const FILE: &str = "cluster.json";

/// The numbers of Nodes, as `bench cluster` saves them.
#[derive(Debug, Deserialize)]
struct Cluster {
    other_work: f64,
    heartbeats_per_second: u32,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    nodes: u32,
    first_sync_ms: f64,
    first_sync_cpu_ms: f64,
    memory: Memory,
    memory_after: Memory,
    rest_cpu_percent: f64,
    heartbeat_cpu_us: f64,
    changes: u32,
    change_p50_ms: f64,
    change_p95_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Memory {
    resident_bytes: f64,
}

/// The part of `docs/cluster.md` between the marks.
pub(super) fn tables(data: &Data<'_>) -> Result<String> {
    Ok(format!("{}\n{}", text(&data.read(FILE)?), data.source(FILE)?))
}

fn text(data: &Cluster) -> String {
    let mut text = format!(
        "| |{}\n|---|{}\n",
        column(data, |row| format!("{} Nodes", row.nodes)),
        "---:|".repeat(data.rows.len())
    );
    type Cell = fn(&Row) -> String;
    let lines: [(&str, Cell); 7] = [
        ("start to last route (s)", |row| digits(row.first_sync_ms / 1e3)),
        ("CPU for it (s)", |row| digits(row.first_sync_cpu_ms / 1e3)),
        ("memory after it (MB)", |row| digits(row.memory.resident_bytes / 1e6)),
        ("memory at the end (MB)", |row| digits(row.memory_after.resident_bytes / 1e6)),
        ("CPU at rest (% of one processor)", |row| digits(row.rest_cpu_percent)),
        ("CPU per heartbeat (µs)", |row| digits(row.heartbeat_cpu_us)),
        ("changed address to route (ms): median, 95th percentile", |row| {
            format!("{}, {}", digits(row.change_p50_ms), digits(row.change_p95_ms))
        }),
    ];
    // Writing to a String cannot fail.
    for (name, cell) in lines {
        let _ = writeln!(text, "| {name} |{}", column(data, cell));
    }
    let changes = data.rows.first().map_or(0, |row| row.changes);
    let _ = write!(
        text,
        "\n{} heartbeats per second of all Nodes together; {changes} changes, from the request at the API server to the \
         kernel's\nnotification. Other work took {:.0} % of one processor before the measurements.\n",
        data.heartbeats_per_second,
        data.other_work * 100.0
    );
    text
}

fn column(data: &Cluster, cell: impl Fn(&Row) -> String) -> String {
    data.rows.iter().map(|row| format!(" {} |", cell(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_nodes_has_a_column() {
        let row = |nodes: u32| {
            serde_json::json!({
                "nodes": nodes, "first_sync_ms": 1234.0, "first_sync_cpu_ms": 560.0,
                "memory": { "resident_bytes": 12_300_000 }, "memory_after": { "resident_bytes": 12_400_000 },
                "rest_cpu_percent": 0.1, "heartbeat_cpu_us": 123.0, "changes": 50, "change_p50_ms": 7.0,
                "change_p95_ms": 9.0,
            })
        };
        let data = serde_json::json!({ "other_work": 0.02, "heartbeats_per_second": 40, "rows": [row(10), row(20)] });
        let text = text(&serde_json::from_value(data).unwrap());
        for line in [
            "| | 10 Nodes | 20 Nodes |",
            "|---|---:|---:|",
            "| start to last route (s) | 1.2 | 1.2 |",
            "| memory at the end (MB) | 12.4 | 12.4 |",
            "| changed address to route (ms): median, 95th percentile | 7.0, 9.0 | 7.0, 9.0 |",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(
            text.contains("40 heartbeats") && text.contains("50 changes") && text.contains("2 %"),
            "{text}"
        );
    }
}
