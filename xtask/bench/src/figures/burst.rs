// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of bursts.

use std::fmt::Write as _;

use super::{Data, goals};
use crate::burst::report::{PAGE, Report};
use crate::table::{figures, grouped, heading, row};
use xtask_base::error::Result;

/// The runs that the page shows, in this order.
const FILES: [&str; 3] = ["burst-100.json", "burst-250.json", "burst-flows.json"];

/// The contenders: their names in the files, and for readers.
const CONTENDERS: [(&str, &str); 5] = [
    ("slipway", "Slipway, nftables"),
    ("slipway-ebpf", "Slipway, eBPF"),
    ("slipway-iptables", "Slipway, iptables"),
    ("peer-nftables", "reference, nftables"),
    ("peer-iptables", "reference, iptables"),
];

/// The part of `docs/reports/bursts.md` about bursts.
pub(super) fn tables(data: &Data<'_>) -> Result<String> {
    let mut text = String::new();
    for file in FILES.into_iter().filter(|file| data.runs.find(file).is_ok()) {
        if !text.is_empty() {
            text.push('\n');
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "{}\n{}", table(&data.read(file)?), data.source(file)?);
    }
    Ok(text)
}

fn table(data: &Report) -> String {
    let mut levels: Vec<(u32, u32)> = data.rows.iter().map(|row| (row.pods, row.conntrack)).collect();
    levels.dedup();
    let mut text = String::new();
    for (pods, flows) in levels {
        let rows = || data.rows.iter().filter(move |row| (row.pods, row.conntrack) == (pods, flows));
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{} pods from {} callers, {} pods present, {} flows in conntrack; {} bursts:\n\n{}",
            data.burst,
            data.callers,
            grouped(pods),
            grouped(flows),
            rows().map(|row| row.bursts).max().unwrap_or(0),
            heading(&["", ""], PAGE)
        );
        for (name, shown) in CONTENDERS {
            let Some(found) = rows().find(|row| row.contender == name) else { continue };
            text += &row(&format!("{shown} | ADD"), &figures(&found.add, PAGE));
            text += &row(" | DEL", &figures(&found.del, PAGE));
        }
        text.push('\n');
    }
    text + &goals(&data.ratios)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::report::{Figures, Row};

    #[test]
    fn every_contender_has_two_rows() {
        let figures = |rate: f64| Figures {
            pods_per_second: rate,
            p50_ms: 1.0,
            p95_ms: 2.0,
            p99_ms: 3.0,
            slowest_ms: 4.0,
            cpu_ms: 5.0,
            ..Figures::default()
        };
        let row = |contender: &str, pods: u32| Row {
            contender: contender.to_owned(),
            pods,
            conntrack: 200_000,
            bursts: 5,
            add: figures(98.76),
            del: figures(123.4),
        };
        let rows = vec![row("slipway", 0), row("peer-nftables", 0), row("slipway", 1000)];
        let text = table(&Report { burst: 100, callers: 32, rows, ..Report::default() });
        for line in [
            "100 pods from 32 callers, 0 pods present, 200,000 flows in conntrack; 5 bursts:",
            "100 pods from 32 callers, 1,000 pods present, 200,000 flows in conntrack; 5 bursts:",
            "| Slipway, nftables | ADD | 98.8 | 1.0 | 3.0 | 5.0 |",
            "|  | DEL | 123 | 1.0 | 3.0 | 5.0 |",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert_eq!(text.matches("reference, nftables").count(), 1, "{text}");
    }
}
