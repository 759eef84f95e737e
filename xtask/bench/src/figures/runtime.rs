// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of the runtime's callers.

use std::fmt::Write as _;

use super::Data;
use crate::runtime::report::{Name, Operation, PAGE, Report, WatchRow};
use crate::statistics::megabytes;
use crate::table::{digits, figures, heading, row};
use xtask_base::error::Result;

/// The run that the page shows.
const FILE: &str = "runtime.json";

/// The part of `docs/reports/callers.md` between the marks.
pub(super) fn tables(data: &Data<'_>) -> Result<String> {
    Ok(format!("{}\n{}", text(&data.read(FILE)?), data.source(FILE)?))
}

fn text(data: &Report) -> String {
    let (repetitions, rounds) = (
        data.calls.first().map_or(0, |row| row.repetitions),
        data.batches.first().map_or(0, |row| row.rounds),
    );
    let mut text = format!(
        "One pod, medians of {repetitions} repetitions in milliseconds, in parentheses the 90th percentile; CPU time of \
         caller and plugins;\nthe peak memory of the calling process alone:\n\n\
         | caller | plugins | ADD (ms) | CPU | DEL (ms) | CPU | memory (MB) |\n|---|---|---:|---:|---:|---:|---:|\n"
    );
    for one in &data.calls {
        let Name { caller, plugins } = &one.name;
        let cells =
            |of: &Operation| [format!("{} ({})", digits(of.p50_ms), digits(of.p90_ms)), digits(of.cpu_ms)];
        let memory = digits(megabytes(one.caller_peak_bytes));
        text += &row(
            &format!("{caller} | {plugins}"),
            &[&cells(&one.add)[..], &cells(&one.del), &[memory]].concat(),
        );
    }
    let Report { pods, callers, .. } = data;
    let heading = heading(&["caller", "plugins", ""], PAGE);
    let (titles, rule) = heading.split_once('\n').unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\n{pods} pods up, then down, {callers} operations at a time: pods per second (the median of {rounds} rounds), the \
         latency of an\noperation (50th, 90th and 99th percentile), CPU time per pod; the peak memory of all calling \
         processes together:\n\n{titles} memory (MB) |\n{}---:|\n",
        rule.trim_end()
    );
    for one in &data.batches {
        let Name { caller, plugins } = &one.name;
        let line = |names: &str, of, memory| row(names, &[figures(of, PAGE), vec![memory]].concat());
        let memory = digits(megabytes(one.callers_peak_bytes));
        text += &line(&format!("{caller} | {plugins} | up"), &one.up, memory);
        text += &line(" |  | down", &one.down, String::new());
    }
    text + &watch(&data.watch)
        + &format!(
            "\nOther work took {:.0} % of one processor before the measurements.\n",
            data.other_work * 100.0
        )
}

fn watch(watch: &WatchRow) -> String {
    let WatchRow { rest, after, changes, .. } = watch;
    let size = |bytes: u64| format!("{:.1} MB", megabytes(bytes));
    format!(
        "\n`slipwayd networks --watch` at rest: {} resident, {} of them private; after {changes} changes {} and {}. From \
         the\nrename of a configuration file to the printed network: median {} ms, 95th percentile {} ms, longest {} \
         ms.\n",
        size(rest.resident_bytes),
        size(rest.private_bytes),
        size(after.resident_bytes),
        size(after.private_bytes),
        digits(watch.p50_ms),
        digits(watch.p95_ms),
        digits(watch.longest_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caller_has_a_row_and_every_batch_two() {
        let memory = |resident: u32| serde_json::json!({"resident_bytes": resident, "proportional_bytes": 0, "private_bytes": 1_000_000});
        let operation = |p50: f64| serde_json::json!({"p50_ms": p50, "p90_ms": 120.0, "cpu_ms": 4.56});
        let rate = |rate: f64| {
            serde_json::json!({
                "pods_per_second": rate, "p50_ms": 1.0, "p90_ms": 2.0, "p99_ms": 3.0, "cpu_ms": 4.0,
                "least_pods_per_second": 1.0, "most_pods_per_second": 2.0,
            })
        };
        let data = serde_json::json!({
            "conditions": [], "other_work": 0.034, "pods": 200, "callers": 32,
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
