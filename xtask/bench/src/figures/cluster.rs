// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table of slipwayd with many Nodes.

use std::fmt::Write as _;

use super::Data;
use crate::cluster::report::{PAGE, Report, Row, STORM_COLUMNS, StormRow};
use crate::table::{Column, digits};
use xtask_base::error::Result;

/// The run that the page shows.
const FILE: &str = "cluster.json";

/// The part of `docs/reports/cluster.md` between the marks.
pub(super) fn tables(data: &Data<'_>) -> Result<String> {
    Ok(format!("{}\n{}", text(&data.read(FILE)?), data.source(FILE)?))
}

fn text(data: &Report) -> String {
    let mut text = if data.rows.is_empty() { String::new() } else { by_server(data) };
    if !data.storms.is_empty() {
        text += &storms(data);
    }
    text
}

/// With a real API server.
fn by_server(data: &Report) -> String {
    let mut text = format!(
        "| |{}\n|---|{}\n",
        column(data, |row| format!("{} Nodes", row.nodes)),
        "---:|".repeat(data.rows.len())
    );
    // Writing to a String cannot fail.
    for Column { name, value } in PAGE {
        let _ = writeln!(text, "| {name} |{}", column(data, |row| digits(value(row))));
    }
    let change = column(data, |row| format!("{}, {}", digits(row.change_p50_ms), digits(row.change_p95_ms)));
    let _ = writeln!(text, "| changed address to route (ms): median, 95th percentile |{change}");
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

/// The table of Nodes that all change.
fn storms(data: &Report) -> String {
    let column = |cell: &dyn Fn(&StormRow) -> String| -> String {
        data.storms.iter().map(|row| format!(" {} |", cell(row))).collect()
    };
    let heading = column(&|row| match row.reports {
        0 => format!("{} Nodes at start", row.nodes),
        _ => format!("{} Nodes that change", row.nodes),
    });
    let space = if data.rows.is_empty() { "" } else { "\n" };
    let mut text = format!("{space}| |{heading}\n|---|{}\n", "---:|".repeat(data.storms.len()));
    for Column { name, value } in STORM_COLUMNS {
        // Writing to a String cannot fail.
        // Where only the start is measured, the rest is zero.
        let cell = |row: &StormRow| match value(row) {
            0.0 => "–".to_owned(),
            number => digits(number),
        };
        let _ = writeln!(text, "| {name} |{}", column(&cell));
    }
    text += "\nThe API server of this table is a part of the benchmark and uses no TLS. Every Node reports once a second, \
             and each\ntime one in a hundred has another address.\n";
    text
}

fn column(data: &Report, cell: impl Fn(&Row) -> String) -> String {
    data.rows.iter().map(|row| format!(" {} |", cell(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_nodes_has_a_column() {
        let row = |nodes: u32| {
            serde_json::from_value(serde_json::json!({
                "nodes": nodes, "first_sync_ms": 1234.0, "first_sync_cpu_ms": 560.0,
                "memory": { "resident_bytes": 12_300_000, "proportional_bytes": 0, "private_bytes": 0 },
                "memory_after": { "resident_bytes": 12_400_000, "proportional_bytes": 0, "private_bytes": 0 },
                "rest_cpu_percent": 0.1, "heartbeats": 1, "heartbeat_cpu_percent": 0.1, "heartbeat_cpu_us": 123.0,
                "changes": 50, "change_p50_ms": 7.0, "change_p95_ms": 9.0, "change_longest_ms": 9.5,
            }))
            .unwrap()
        };
        let rows = vec![row(10), row(20)];
        let data = Report { other_work: 0.02, heartbeats_per_second: 40, rows, ..Report::default() };
        let text = text(&data);
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
