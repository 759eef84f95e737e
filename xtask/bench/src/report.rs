// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of samples of ADD and DEL: quantiles, ratios, the table, JSON and CSV.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::contender::Sample;
use super::floor;
use super::goal::{self, Goal};
use super::measure::Cost;
use super::output;
use super::statistics::{mean, megabytes, milliseconds, quantile};
use super::table::{Column, Table, column};
use super::trace::Trace;

/// The calls of a sample, in their order: two of each ADD, each DEL, and each DEL that finds nothing.
const CALLS: [&str; 6] =
    ["bridge ADD", "portmap ADD", "portmap DEL", "bridge DEL", "portmap second DEL", "bridge second DEL"];

/// All samples of one contender at one number of pods.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) contender: String,
    pub(super) pods: u32,
    pub(super) samples: Vec<Sample>,
    /// The machine's busy time over all of this contender's operations, without the idle control's.
    pub(super) busy: Duration,
}

/// The floor's samples at one number of pods.
#[derive(Debug)]
pub(super) struct FloorSeries {
    pub(super) pods: u32,
    pub(super) samples: Vec<floor::Sample>,
}

/// A contender's static figures.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Profile {
    pub(super) contender: String,
    /// The version that the plugins print.
    pub(super) version: String,
    /// Size of all files in the plugin directory, in bytes; links count nothing.
    pub(super) directory_bytes: u64,
    /// The largest process's peak resident size, in bytes.
    pub(super) add_peak_bytes: u64,
    pub(super) del_peak_bytes: u64,
    /// Programs that one ADD of the list starts, the plugins included.
    pub(super) add_programs: u32,
    pub(super) del_programs: u32,
    pub(super) add_program_names: Vec<String>,
}

impl Profile {
    /// With the counts of a traced ADD and DEL.
    pub(super) fn new(
        contender: &str,
        version: String,
        directory_bytes: u64,
        add: &Trace,
        del: &Trace,
    ) -> Self {
        Self {
            contender: contender.to_owned(),
            version,
            directory_bytes,
            add_peak_bytes: add.peak,
            del_peak_bytes: del.peak,
            add_programs: add.started(),
            del_programs: del.started(),
            add_program_names: add.programs.iter().map(|(name, n)| format!("{name} x{n}")).collect(),
        }
    }
}

/// ADD and DEL of one contender at one number of pods.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) contender: String,
    pub(super) pods: u32,
    pub(super) repetitions: usize,
    pub(super) add_p50_ms: f64,
    pub(super) add_p95_ms: f64,
    pub(super) add_cpu_ms: f64,
    pub(super) del_p50_ms: f64,
    pub(super) del_p95_ms: f64,
    pub(super) del_cpu_ms: f64,
    /// A DEL of an attachment that is gone.
    pub(super) gone_p50_ms: f64,
    pub(super) gone_p95_ms: f64,
    pub(super) gone_cpu_ms: f64,
    /// Whole machine, per ADD and both DELs together.
    pub(super) pair_busy_ms: f64,
    /// Each plugin, in the order of the calls.
    pub(super) plugins: Vec<PluginRow>,
}

const ROW: &[Column<Row>] = &[
    column("ADD p50 (ms)", |row| row.add_p50_ms),
    column("p95", |row| row.add_p95_ms),
    column("CPU", |row| row.add_cpu_ms),
    column("DEL p50", |row| row.del_p50_ms),
    column("p95", |row| row.del_p95_ms),
    column("CPU", |row| row.del_cpu_ms),
    column("second p50", |row| row.gone_p50_ms),
    column("p95", |row| row.gone_p95_ms),
    column("CPU", |row| row.gone_cpu_ms),
    column("all busy", |row| row.pair_busy_ms),
];

/// One plugin's part.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PluginRow {
    /// `bridge ADD`.
    call: String,
    p50_ms: f64,
    cpu_ms: f64,
}

/// The floor of a DEL.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FloorRow {
    pub(super) pods: u32,
    pub(super) repetitions: usize,
    pub(super) batch_p50_ms: f64,
    pub(super) veth_p50_ms: f64,
    /// Of the sums, not the sum of the medians.
    pub(super) sum_p50_ms: f64,
    pub(super) sum_p95_ms: f64,
}

const FLOOR: &[Column<FloorRow>] = &[
    column("DEL p50 (ms)", |row| row.sum_p50_ms),
    column("p95", |row| row.sum_p95_ms),
    column("batch p50", |row| row.batch_p50_ms),
    column("veth p50", |row| row.veth_p50_ms),
];

const PROFILE: &[Column<Profile>] = &[
    column("ADD peak (MB)", |of| megabytes(of.add_peak_bytes)),
    column("DEL peak (MB)", |of| megabytes(of.del_peak_bytes)),
    column("ADD programs", |of| of.add_programs.into()),
    column("DEL programs", |of| of.del_programs.into()),
    column("directory (MB)", |of| megabytes(of.directory_bytes)),
];

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Report {
    /// The machine and the conditions, one line each.
    pub(super) conditions: Vec<String>,
    pub(super) rows: Vec<Row>,
    pub(super) floor: Vec<FloorRow>,
    pub(super) profiles: Vec<Profile>,
    pub(super) ratios: Vec<Goal>,
    #[serde(skip)]
    pub(super) csv: String,
}

impl Report {
    /// Computes the figures. The others are compared with the contender `own`.
    pub(super) fn new(
        conditions: Vec<String>,
        series: &[Series],
        floors: &[FloorSeries],
        profiles: Vec<Profile>,
        own: &str,
    ) -> Self {
        let rows: Vec<Row> = series.iter().map(Row::of).collect();
        let floor: Vec<FloorRow> = floors.iter().map(FloorRow::of).collect();
        let ratios = ratios(&rows, &floor, &profiles, own);
        Self { conditions, rows, floor, profiles, ratios, csv: csv(series, floors) }
    }
}

impl output::Report for Report {
    const NAME: &str = "control";

    fn text(&self) -> String {
        let mut rows = Table::new(&["", "pods"], ROW);
        let (mut floor, mut profiles) =
            (Table::new(&["the kernel's floor with pods"], FLOOR), Table::new(&[""], PROFILE));
        let (mut plugins, mut programs) = (String::new(), String::new());
        for row in &self.rows {
            rows.add(&[&row.contender, &row.pods], row);
            let part =
                |part: &PluginRow| format!("{} {:.2} (CPU {:.2})", part.call, part.p50_ms, part.cpu_ms);
            let parts: Vec<String> = row.plugins.iter().map(part).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(plugins, "{}, {} pods: {}", row.contender, row.pods, parts.join(", "));
        }
        self.floor.iter().for_each(|row| floor.add(&[&row.pods], row));
        for of in &self.profiles {
            profiles.add(&[&of.contender], of);
            let started = of.add_program_names.join(", ");
            let _ = writeln!(programs, "{}, {}: ADD starts {started}", of.contender, of.version);
        }
        let goals = goal::text(&self.ratios);
        [
            self.conditions.join("\n"),
            rows.to_string(),
            plugins,
            floor.to_string(),
            profiles.to_string(),
            programs,
            goals,
        ]
        .join("\n")
    }

    fn csv(&self) -> Option<&str> {
        Some(&self.csv)
    }
}

impl Row {
    fn of(series: &Series) -> Self {
        let (adds, dels, gone) = (
            || series.samples.iter().map(|s| Cost::sum(&s.add)),
            || series.samples.iter().map(|s| Cost::sum(&s.del)),
            || series.samples.iter().map(|s| Cost::sum(&s.gone)),
        );
        let count = u32::try_from(series.samples.len()).unwrap_or(u32::MAX);
        Self {
            contender: series.contender.clone(),
            pods: series.pods,
            repetitions: series.samples.len(),
            add_p50_ms: quantile(adds().map(|c| c.wall), 50),
            add_p95_ms: quantile(adds().map(|c| c.wall), 95),
            add_cpu_ms: mean(adds().map(|c| c.cpu)),
            del_p50_ms: quantile(dels().map(|c| c.wall), 50),
            del_p95_ms: quantile(dels().map(|c| c.wall), 95),
            del_cpu_ms: mean(dels().map(|c| c.cpu)),
            gone_p50_ms: quantile(gone().map(|c| c.wall), 50),
            gone_p95_ms: quantile(gone().map(|c| c.wall), 95),
            gone_cpu_ms: mean(gone().map(|c| c.cpu)),
            pair_busy_ms: series.busy.checked_div(count).map_or(f64::NAN, milliseconds),
            plugins: PluginRow::all(series),
        }
    }
}

impl PluginRow {
    fn all(series: &Series) -> Vec<Self> {
        let of = |(at, call): (usize, &&str)| {
            let costs = || series.samples.iter().filter_map(move |sample| sample.calls().nth(at));
            let (p50_ms, cpu_ms) = (quantile(costs().map(|c| c.wall), 50), mean(costs().map(|c| c.cpu)));
            Self { call: (*call).to_owned(), p50_ms, cpu_ms }
        };
        CALLS.iter().enumerate().map(of).collect()
    }
}

impl FloorRow {
    fn of(series: &FloorSeries) -> Self {
        let samples = || series.samples.iter();
        Self {
            pods: series.pods,
            repetitions: series.samples.len(),
            batch_p50_ms: quantile(samples().map(|s| s.batch), 50),
            veth_p50_ms: quantile(samples().map(|s| s.veth), 50),
            sum_p50_ms: quantile(samples().map(|s| s.batch + s.veth), 50),
            sum_p95_ms: quantile(samples().map(|s| s.batch + s.veth), 95),
        }
    }
}

fn ratios(rows: &[Row], floor: &[FloorRow], profiles: &[Profile], own: &str) -> Vec<Goal> {
    let mut ratios = Vec::new();
    let mut add = |what: String, value: f64, goal: f64| ratios.push(Goal::at_most(what, value, goal));
    let ours: Vec<&Row> = rows.iter().filter(|row| row.contender == own).collect();
    let Some(first) = ours.first() else { return ratios };
    for row in &ours {
        // Our own plugins with another backend are not a peer.
        let is_peer = |peer: &&Row| !peer.contender.starts_with(own) && peer.pods == row.pods;
        let peers = || rows.iter().filter(is_peer);
        let (pods, best) = (row.pods, |of: fn(&Row) -> f64| peers().map(of).fold(f64::NAN, f64::min));
        type Value = fn(&Row) -> f64;
        let to_peers: [(&str, Value, f64); 4] = [
            ("ADD p50 to the faster", |row| row.add_p50_ms, 0.1),
            ("DEL p50 to the faster", |row| row.del_p50_ms, 0.25),
            ("ADD CPU to the thriftier", |row| row.add_cpu_ms, 0.1),
            ("DEL CPU to the thriftier", |row| row.del_cpu_ms, 0.25),
        ];
        for (what, value, goal) in to_peers {
            add(format!("{what} peer's, {pods} pods"), value(row) / best(value), goal);
        }
        for floor in floor.iter().filter(|floor| floor.pods == pods) {
            let what = format!("DEL p50 to the kernel's floor, {pods} pods");
            add(what, row.del_p50_ms / floor.sum_p50_ms, 1.3);
        }
    }
    for row in &ours[1..] {
        let growth = |verb: &str| format!("{verb} p50 with {} pods to that with {}", row.pods, first.pods);
        add(growth("ADD"), row.add_p50_ms / first.add_p50_ms, 1.2);
        add(growth("DEL"), row.del_p50_ms / first.del_p50_ms, 1.2);
    }
    for profile in profiles.iter().filter(|profile| profile.contender == own) {
        let peak = profile.add_peak_bytes.max(profile.del_peak_bytes);
        add("MB of peak memory of a process".to_owned(), megabytes(peak), 6.0);
        add("MB of the plugin directory".to_owned(), megabytes(profile.directory_bytes), 6.3);
        add("programs started by an ADD".to_owned(), f64::from(profile.add_programs), 2.0);
    }
    ratios
}

/// Every call: contender, pods, repetition, plugin and verb, wall and CPU microseconds.
fn csv(series: &[Series], floors: &[FloorSeries]) -> String {
    let mut text = String::from("contender,pods,repetition,call,wall_us,cpu_us\n");
    for one in series {
        for (rep, sample) in one.samples.iter().enumerate() {
            for (call, cost) in CALLS.iter().zip(sample.calls()) {
                let (wall, cpu) = (cost.wall.as_micros(), cost.cpu.as_micros());
                let _ = writeln!(text, "{},{},{rep},{call},{wall},{cpu}", one.contender, one.pods);
            }
        }
    }
    for one in floors {
        for (rep, sample) in one.samples.iter().enumerate() {
            for (what, time) in [("batch", sample.batch), ("veth", sample.veth)] {
                let _ = writeln!(text, "floor,{},{rep},{what},{},", one.pods, time.as_micros());
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn series(contender: &str, pods: u32, add: u64, del: u64) -> Series {
        let cost = |wall| vec![Cost { wall: ms(wall / 2), cpu: ms(wall / 2) }; 2];
        let sample = Sample { add: cost(add), del: cost(del), gone: cost(2) };
        Series { contender: contender.into(), pods, samples: vec![sample; 3], busy: ms(30) }
    }

    #[test]
    fn ratios_are_to_the_faster_peer_at_the_same_number_of_pods() {
        let all = [
            series("own", 0, 10, 40),
            series("a", 0, 100, 200),
            series("b", 0, 200, 160),
            series("own", 9, 11, 48),
        ];
        let floors =
            [FloorSeries { pods: 0, samples: vec![floor::Sample { batch: ms(12), veth: ms(20) }; 2] }];
        let report = Report::new(vec![], &all, &floors, vec![], "own");
        let found: Vec<(f64, bool)> = report.ratios.iter().map(|r| (r.value, r.met)).collect();
        assert_eq!(found[..5], [(0.1, true), (0.25, true), (0.1, true), (0.25, true), (1.25, true)]);
        // No goal is met without a peer at that number of pods.
        assert!(found[5..9].iter().all(|(value, met)| value.is_nan() && !met));
        assert_eq!(found[9..], [(1.0, true), (1.2, true)], "half milliseconds are cut");
        assert_eq!(report.csv.lines().count(), 1 + 4 * 3 * 6 + 4);
    }
}
