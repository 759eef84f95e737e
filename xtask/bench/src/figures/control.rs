// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tables of ADD and DEL.

use std::fmt::Write as _;

use super::{Data, goals};
use crate::report::{Profile, Report, Row};
use crate::statistics::megabytes;
use crate::table::{digits, grouped, head, row};
use xtask_base::error::{Error, Result};

/// The run of all contenders, by the number of pods. The constant after it has the numbers that the README shows.
const CONTROL: &str = "control.json";
const PODS: [u32; 2] = [100, 1000];

/// The runs with rules of others: their number, and the variant of iptables.
const FOREIGN: [(&str, u32, &str); 3] = [
    ("control-foreign-nft-0.json", 0, "nft"),
    ("control-foreign-nft-10000.json", 10_000, "nft"),
    ("control-foreign-legacy-10000.json", 10_000, "legacy"),
];

/// The contenders: their names in the files, and for readers.
const CONTENDERS: [(&str, &str); 5] = [
    ("slipway", "Slipway, nftables"),
    ("slipway-ebpf", "Slipway, eBPF"),
    ("slipway-iptables", "Slipway, iptables"),
    ("peer-nftables", "reference 1.9.1, nftables"),
    ("peer-iptables", "reference 1.9.1, iptables"),
];
/// The contenders of the README, and the contenders that are measured next to rules of others.
const README: [&str; 4] = ["slipway", "slipway-ebpf", "peer-nftables", "peer-iptables"];
const IPTABLES: [&str; 4] = ["slipway-iptables", "peer-iptables", "slipway", "peer-nftables"];

impl Report {
    fn row(&self, contender: &str, pods: u32) -> Result<&Row> {
        let row = self.rows.iter().find(|row| row.contender == contender && row.pods == pods);
        row.ok_or_else(|| Error::Failed(format!("the figures lack {contender} with {pods} pods")))
    }

    fn repetitions(&self) -> usize {
        self.rows.iter().map(|row| row.repetitions).max().unwrap_or_default()
    }

    /// The rows of some contenders.
    fn of(&self, contenders: &[&str], pods: u32) -> Result<Vec<&Row>> {
        contenders.iter().map(|name| self.row(name, pods)).collect()
    }
}

/// The contenders' names in the files.
fn all() -> [&'static str; 5] {
    CONTENDERS.map(|(name, _)| name)
}

/// Contenders for readers.
fn shown(contenders: &[&str]) -> Vec<String> {
    let shown = contenders.iter().filter_map(|name| CONTENDERS.iter().find(|(one, _)| one == name));
    shown.map(|(_, shown)| (*shown).to_owned()).collect()
}

/// A median, and in parentheses the CPU time.
fn time(milliseconds: f64, cpu: f64) -> String {
    format!("{} ({})", digits(milliseconds), digits(cpu))
}

/// The README's table of ADD and DEL.
pub(super) fn readme(data: &Data<'_>) -> Result<String> {
    Ok(format!("{}\n{}", readme_table(&data.read(CONTROL)?)?, data.source(CONTROL)?))
}

fn readme_table(run: &Report) -> Result<String> {
    let profile = |name: &str| {
        let found = run.profiles.iter().find(|profile| profile.contender == name);
        found.ok_or_else(|| Error::Failed(format!("the figures lack the profile of {name}")))
    };
    let [few, many] = PODS.map(grouped);
    let mut text = format!(
        "ADD and DEL of `bridge`, `host-local` and `portmap` with three ports and `ipMasq`, on a node with {few} / {many} \
         pods;\nmedians of {} runs:\n\n{}",
        run.repetitions(),
        head("", &shown(&README))
    );
    type Time = fn(&Row) -> f64;
    let times: [(&str, Time); 3] = [
        ("ADD (ms)", |row| row.add_p50_ms),
        ("DEL (ms)", |row| row.del_p50_ms),
        ("DEL of what is gone already (ms)", |row| row.gone_p50_ms),
    ];
    for (name, time) in times {
        let cell = |contender: &&str| {
            let [few, many] = PODS.map(|pods| run.row(contender, pods).map(|row| digits(time(row))));
            Ok(format!("{} / {}", few?, many?))
        };
        text += &row(name, &README.iter().map(cell).collect::<Result<Vec<_>>>()?);
    }
    type Cell = fn(&Profile) -> String;
    let others: [(&str, Cell); 3] = [
        ("programs started by ADD, by DEL", |of| format!("{}, {}", of.add_programs, of.del_programs)),
        ("memory of the largest process (MB)", |of| digits(megabytes(of.add_peak_bytes))),
        ("all plugins on disk (MB)", |of| digits(megabytes(of.directory_bytes))),
    ];
    for (name, cell) in others {
        text += &row(name, &README.iter().map(|name| profile(name).map(cell)).collect::<Result<Vec<_>>>()?);
    }
    Ok(text)
}

/// ADD and DEL by the number of pods, and the goals.
pub(super) fn pods(data: &Data<'_>) -> Result<String> {
    Ok(format!("{}\n{}", pods_tables(&data.read(CONTROL)?)?, data.source(CONTROL)?))
}

fn pods_tables(run: &Report) -> Result<String> {
    let mut columns = shown(&all());
    columns.push("the kernel's floor".to_owned());
    let mut text = format!(
        "Medians of {} repetitions in milliseconds, in parentheses the CPU time of the processes:\n\n{}",
        run.repetitions(),
        head("pods present", &columns)
    );
    for floor in &run.floor {
        let rows = run.of(&all(), floor.pods)?;
        let mut adds: Vec<String> = rows.iter().map(|row| time(row.add_p50_ms, row.add_cpu_ms)).collect();
        adds.push(String::new());
        let mut dels: Vec<String> = rows.iter().map(|row| time(row.del_p50_ms, row.del_cpu_ms)).collect();
        dels.push(digits(floor.sum_p50_ms));
        text += &row(&format!("{}: ADD", grouped(floor.pods)), &adds);
        text += &row("DEL", &dels);
    }
    text.push('\n');
    text += &goals(&run.ratios);
    Ok(text)
}

/// DELs that find nothing.
pub(super) fn second_dels(data: &Data<'_>) -> Result<String> {
    Ok(format!("{}\n{}", second_del_table(&data.read(CONTROL)?)?, data.source(CONTROL)?))
}

fn second_del_table(run: &Report) -> Result<String> {
    let mut text = head("pods present", &shown(&all()));
    for floor in &run.floor {
        let rows = run.of(&all(), floor.pods)?;
        let cells: Vec<String> = rows.iter().map(|row| time(row.gone_p50_ms, row.gone_cpu_ms)).collect();
        text += &row(&grouped(floor.pods), &cells);
    }
    Ok(text)
}

/// ADD and DEL next to rules of others.
pub(super) fn iptables(data: &Data<'_>) -> Result<String> {
    let mut text = head("rules of others, variant", &shown(&IPTABLES));
    let mut sources = String::new();
    for (file, rules, variant) in FOREIGN {
        text += &foreign_rows(&data.read(file)?, rules, variant)?;
        // Each is a paragraph.
        let _ = write!(sources, "\n{}", data.source(file)?);
    }
    Ok(text + &sources)
}

fn foreign_rows(run: &Report, rules: u32, variant: &str) -> Result<String> {
    let rows = run.of(&IPTABLES, 0)?;
    let adds: Vec<String> = rows.iter().map(|row| time(row.add_p50_ms, row.add_cpu_ms)).collect();
    let dels: Vec<String> = rows.iter().map(|row| time(row.del_p50_ms, row.del_cpu_ms)).collect();
    Ok(row(&format!("{}, {variant}: ADD", grouped(rules)), &adds) + &row("DEL", &dels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::FloorRow;

    fn run() -> Report {
        let row = |pods: u32, contender: &str| Row {
            contender: contender.to_owned(),
            pods,
            repetitions: 7,
            add_p50_ms: 5.67 + f64::from(pods) / 1000.0,
            add_cpu_ms: 4.0,
            del_p50_ms: 123.4,
            del_cpu_ms: 3.0,
            gone_p50_ms: 2.3,
            gone_cpu_ms: 2.1,
            ..Row::default()
        };
        let profile = |(contender, _): (&str, &str)| Profile {
            contender: contender.to_owned(),
            directory_bytes: 5_900_000,
            add_peak_bytes: 5_300_000,
            add_programs: 2,
            del_programs: 3,
            ..Profile::default()
        };
        Report {
            rows: PODS.iter().flat_map(|pods| CONTENDERS.map(|(name, _)| row(*pods, name))).collect(),
            profiles: CONTENDERS.map(profile).into(),
            floor: vec![FloorRow { pods: 100, sum_p50_ms: 28.1, ..FloorRow::default() }],
            ..Report::default()
        }
    }

    #[track_caller]
    fn has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|one| one == *line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_readme_has_four_contenders() {
        let text = readme_table(&run()).unwrap();
        has(
            &text,
            &[
                "|  | Slipway, nftables | Slipway, eBPF | reference 1.9.1, nftables | reference 1.9.1, iptables |",
                "| ADD (ms) | 5.8 / 6.7 | 5.8 / 6.7 | 5.8 / 6.7 | 5.8 / 6.7 |",
                "| programs started by ADD, by DEL | 2, 3 | 2, 3 | 2, 3 | 2, 3 |",
                "| all plugins on disk (MB) | 5.9 | 5.9 | 5.9 | 5.9 |",
            ],
        );
    }

    #[test]
    fn each_number_of_pods_has_two_rows_with_the_floor_and_each_goal_one() {
        let text = pods_tables(&run()).unwrap();
        let del = ["123 (3.0)"; 5].join(" | ");
        has(&text, &[&format!("| DEL | {del} | 28.1 |")]);
        assert!(
            text.contains("Medians of 7 repetitions") && text.contains("| 100: ADD | 5.8 (4.0) |"),
            "{text}"
        );
        has(&second_del_table(&run()).unwrap(), &[&format!("| 100 | {} |", ["2.3 (2.1)"; 5].join(" | "))]);
    }

    #[test]
    fn a_missing_contender_is_an_error() {
        let error = foreign_rows(&run(), 0, "nft").unwrap_err().to_string();
        assert_eq!(error, "the figures lack slipway-iptables with 0 pods");
    }
}
