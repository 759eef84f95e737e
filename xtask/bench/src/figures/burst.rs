// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of bursts.

use std::fmt::Write as _;

use serde::Deserialize;

use super::{Data, GOALS, digits, grouped, met};
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

/// The bursts of one size, as `bench control --burst` saves them.
#[derive(Debug, Deserialize)]
struct Burst {
    burst: u32,
    callers: u32,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Deserialize)]
struct Row {
    contender: String,
    pods: u32,
    conntrack: u32,
    bursts: u32,
    add: Figures,
    del: Figures,
}

#[derive(Debug, Deserialize)]
struct Figures {
    pods_per_second: f64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    slowest_ms: f64,
    cpu_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Ratio {
    what: String,
    value: f64,
    goal: Goal,
    met: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

/// The part of `docs/benchmarks.md` about bursts.
pub(super) fn tables(data: &Data<'_>) -> Result<String> {
    let mut text = String::new();
    for file in FILES {
        // Writing to a String cannot fail.
        let _ = write!(text, "{}\n{}", table(&data.read(file)?), data.source(file)?);
        if Some(&file) != FILES.last() {
            text.push('\n');
        }
    }
    Ok(text)
}

fn table(data: &Burst) -> String {
    let mut levels: Vec<(u32, u32)> = data.rows.iter().map(|row| (row.pods, row.conntrack)).collect();
    levels.dedup();
    let mut text = String::new();
    // Writing to a String cannot fail.
    for (pods, flows) in levels {
        let rows = || data.rows.iter().filter(move |row| (row.pods, row.conntrack) == (pods, flows));
        let _ = write!(
            text,
            "{} pods from {} callers, {} pods present, {} flows in conntrack; {} bursts:\n\n\
             | | | pods/s | p50 (ms) | p95 | p99 | slowest | CPU (ms) |\n|---|---|---:|---:|---:|---:|---:|---:|\n",
            data.burst,
            data.callers,
            grouped(pods),
            grouped(flows),
            rows().map(|row| row.bursts).max().unwrap_or(0)
        );
        for (name, shown) in CONTENDERS {
            let Some(row) = rows().find(|row| row.contender == name) else { continue };
            for (name, verb, of) in [(shown, "ADD", &row.add), ("", "DEL", &row.del)] {
                let figures = [of.pods_per_second, of.p50_ms, of.p95_ms, of.p99_ms, of.slowest_ms, of.cpu_ms]
                    .map(digits);
                let _ = writeln!(text, "| {name} | {verb} | {} |", figures.join(" | "));
            }
        }
        text.push('\n');
    }
    text.push_str(GOALS);
    for ratio in &data.ratios {
        let goal = match ratio.goal {
            Goal::AtLeast(goal) => format!("≥ {goal}"),
            Goal::AtMost(goal) => format!("≤ {goal}"),
        };
        let _ = writeln!(text, "| {} | {:.2} | {goal} | {} |", ratio.what, ratio.value, met(ratio.met));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_has_two_rows_and_every_goal_one() {
        let figures = |rate: f64| {
            serde_json::json!({
                "pods_per_second": rate, "p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "slowest_ms": 4.0,
                "cpu_ms": 5.0, "busy_ms": 6.0,
            })
        };
        let row = |contender: &str, pods: u32| {
            serde_json::json!({
                "contender": contender, "pods": pods, "conntrack": 200_000, "bursts": 5, "add": figures(98.76),
                "del": figures(123.4),
            })
        };
        let data = serde_json::json!({
            "burst": 100, "callers": 32,
            "rows": [row("slipway", 0), row("peer-nftables", 0), row("slipway", 1000)],
            "ratios": [{"what": "ADDs", "value": 13.77, "goal": {"at_least": 20.0}, "met": false}],
        });
        let text = table(&serde_json::from_value(data).unwrap());
        for line in [
            "100 pods from 32 callers, 0 pods present, 200,000 flows in conntrack; 5 bursts:",
            "100 pods from 32 callers, 1,000 pods present, 200,000 flows in conntrack; 5 bursts:",
            "| Slipway, nftables | ADD | 98.8 | 1.0 | 2.0 | 3.0 | 4.0 | 5.0 |",
            "|  | DEL | 123 | 1.0 | 2.0 | 3.0 | 4.0 | 5.0 |",
            "| ADDs | 13.77 | ≥ 20 | missed |",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert_eq!(text.matches("reference, nftables").count(), 1, "{text}");
    }
}
