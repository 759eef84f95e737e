// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of the runtime's side.

use std::fmt::Write as _;

use serde::Deserialize;

use super::{Data, digits};
use xtask_base::error::Result;

/// The run that the page shows.
const FILE: &str = "runtime.json";

/// The callers, as `bench runtime` saves them.
#[derive(Debug, Deserialize)]
struct Runtime {
    other_work: f64,
    calls: Vec<CallRow>,
    pods: u32,
    callers: u32,
    batches: Vec<BatchRow>,
    watch: Watch,
}

#[derive(Debug, Deserialize)]
struct CallRow {
    caller: String,
    plugins: String,
    repetitions: u32,
    add: Operation,
    del: Operation,
    caller_peak_bytes: f64,
}

#[derive(Debug, Deserialize)]
struct Operation {
    p50_ms: f64,
    p90_ms: f64,
    cpu_ms: f64,
}

#[derive(Debug, Deserialize)]
struct BatchRow {
    caller: String,
    plugins: String,
    rounds: u32,
    up: Throughput,
    down: Throughput,
    callers_peak_bytes: f64,
}

#[derive(Debug, Deserialize)]
struct Throughput {
    pods_per_second: f64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    cpu_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Watch {
    rest: Memory,
    after: Memory,
    changes: u32,
    p50_ms: f64,
    p95_ms: f64,
    longest_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Memory {
    resident_bytes: f64,
    private_bytes: f64,
}

/// The part of `docs/benchmarks.md` between the marks.
pub(super) fn tables(data: &Data<'_>) -> Result<String> {
    Ok(format!("{}\n{}", text(&data.read(FILE)?), data.source(FILE)?))
}

fn text(data: &Runtime) -> String {
    let (repetitions, rounds) = (
        data.calls.first().map_or(0, |row| row.repetitions),
        data.batches.first().map_or(0, |row| row.rounds),
    );
    let mut text = format!(
        "One pod, medians of {repetitions} repetitions in milliseconds, in parentheses the 90th percentile; CPU time of \
         caller and plugins;\nthe peak memory of the calling process alone:\n\n\
         | caller | plugins | ADD (ms) | CPU | DEL (ms) | CPU | memory (MB) |\n|---|---|---:|---:|---:|---:|---:|\n"
    );
    // Writing to a String cannot fail.
    for row in &data.calls {
        let CallRow { caller, plugins, add, del, .. } = row;
        let time = |of: &Operation| format!("{} ({})", digits(of.p50_ms), digits(of.p90_ms));
        let _ = writeln!(
            text,
            "| {caller} | {plugins} | {} | {} | {} | {} | {} |",
            time(add),
            digits(add.cpu_ms),
            time(del),
            digits(del.cpu_ms),
            digits(row.caller_peak_bytes / 1e6)
        );
    }
    let Runtime { pods, callers, watch, .. } = data;
    let _ = write!(
        text,
        "\n{pods} pods up, then down, {callers} operations at a time: pods per second (the median of {rounds} rounds), the \
         latency of an\noperation (50th, 90th and 99th percentile), CPU time per pod; the peak memory of all calling \
         processes together:\n\n\
         | caller | plugins | | pods/s | p50 (ms) | p90 | p99 | CPU | memory (MB) |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|\n"
    );
    for row in &data.batches {
        let BatchRow { caller, plugins, up, down, .. } = row;
        let memory = digits(row.callers_peak_bytes / 1e6);
        let up_names = format!("{caller} | {plugins}");
        for (names, word, of, memory) in [(&*up_names, "up", up, &*memory), (" | ", "down", down, "")] {
            let figures =
                [of.pods_per_second, of.p50_ms, of.p90_ms, of.p99_ms, of.cpu_ms].map(digits).join(" | ");
            let _ = writeln!(text, "| {names} | {word} | {figures} | {memory} |");
        }
    }
    let Watch { rest, after, changes, .. } = watch;
    let megabytes = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
    let _ = write!(
        text,
        "\n`slipwayd networks --watch` at rest: {} resident, {} of them private; after {changes} changes {} and {}. From \
         the\nrename of a configuration file to the printed network: median {} ms, 95th percentile {} ms, longest {} \
         ms.\n\nOther work took {:.0} % of one processor before the measurements.\n",
        megabytes(rest.resident_bytes),
        megabytes(rest.private_bytes),
        megabytes(after.resident_bytes),
        megabytes(after.private_bytes),
        digits(watch.p50_ms),
        digits(watch.p95_ms),
        digits(watch.longest_ms),
        data.other_work * 100.0
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caller_has_a_row_and_every_batch_two() {
        let memory =
            |resident: u32| serde_json::json!({"resident_bytes": resident, "private_bytes": 1_000_000});
        let operation = |p50: f64| serde_json::json!({"p50_ms": p50, "p90_ms": 120.0, "cpu_ms": 4.56});
        let rate = |rate: f64| {
            serde_json::json!({
                "pods_per_second": rate, "p50_ms": 1.0, "p90_ms": 2.0, "p99_ms": 3.0, "cpu_ms": 4.0,
            })
        };
        let data = serde_json::json!({
            "other_work": 0.034, "pods": 200, "callers": 32,
            "calls": [
                {"caller": "library", "plugins": "slipway", "repetitions": 20, "add": operation(12.34),
                 "del": operation(56.7), "caller_peak_bytes": 3_450_000},
            ],
            "batches": [
                {"caller": "manager", "plugins": "slipway", "rounds": 5, "up": rate(98.76), "down": rate(45.0),
                 "callers_peak_bytes": 7_890_000},
            ],
            "watch": {"rest": memory(4_000_000), "after": memory(5_000_000), "changes": 200, "p50_ms": 11.1,
                      "p95_ms": 12.2, "longest_ms": 133.3},
        });
        let text = text(&serde_json::from_value(data).unwrap());
        for line in [
            "| library | slipway | 12.3 (120) | 4.6 | 56.7 (120) | 4.6 | 3.5 |",
            "| manager | slipway | up | 98.8 | 1.0 | 2.0 | 3.0 | 4.0 | 7.9 |",
            "|  |  | down | 45.0 | 1.0 | 2.0 | 3.0 | 4.0 |  |",
            "Other work took 3 % of one processor before the measurements.",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        for part in ["medians of 20 rep", "200 pods up", "median of 5", "4.0 MB resident", "longest 133 ms."]
        {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
