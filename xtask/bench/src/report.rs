// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures of samples: quantiles, ratios, the table, JSON and CSV.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::contender::Sample;
use super::floor;
use super::measure::Cost;
use super::trace::Trace;
use xtask_base::error::{Error, Result};

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
#[derive(Debug, Serialize)]
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

/// One row of the table. Times in milliseconds.
#[derive(Debug, Serialize)]
struct Row {
    contender: String,
    pods: u32,
    repetitions: usize,
    add_p50_ms: f64,
    add_p95_ms: f64,
    add_cpu_ms: f64,
    del_p50_ms: f64,
    del_p95_ms: f64,
    del_cpu_ms: f64,
    /// A DEL of an attachment that is gone.
    gone_p50_ms: f64,
    gone_p95_ms: f64,
    gone_cpu_ms: f64,
    /// Whole machine, per ADD and both DELs together.
    pair_busy_ms: f64,
    /// Each plugin, in the order of the calls.
    plugins: Vec<PluginRow>,
}

/// One plugin's part. Times in milliseconds.
#[derive(Debug, Serialize)]
struct PluginRow {
    /// `bridge ADD`.
    call: String,
    p50_ms: f64,
    cpu_ms: f64,
}

/// The floor of a DEL. Times in milliseconds.
#[derive(Debug, Serialize)]
struct FloorRow {
    pods: u32,
    repetitions: usize,
    batch_p50_ms: f64,
    veth_p50_ms: f64,
    /// Of the sums, not the sum of the medians.
    sum_p50_ms: f64,
    sum_p95_ms: f64,
}

/// A ratio and the goal for it.
#[derive(Debug, Serialize)]
struct Ratio {
    what: String,
    value: f64,
    goal: f64,
    met: bool,
}

/// The figures of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The machine and the conditions, one line each.
    conditions: Vec<String>,
    rows: Vec<Row>,
    floor: Vec<FloorRow>,
    profiles: Vec<Profile>,
    ratios: Vec<Ratio>,
    #[serde(skip)]
    csv: String,
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

    /// Writes `control.json` and `control.csv` into a directory and returns their paths.
    pub(super) fn save(&self, dir: &Path) -> Result<[PathBuf; 2]> {
        fs::create_dir_all(dir).map_err(|e| Error::file("create the directory", dir, e))?;
        let json = serde_json::to_string_pretty(self)
            .map_err(|e| Error::Failed(format!("print the figures: {e}")))?;
        let paths = [dir.join("control.json"), dir.join("control.csv")];
        for (path, text) in paths.iter().zip([json + "\n", self.csv.clone()]) {
            fs::write(path, text).map_err(|e| Error::file("write", path, e))?;
        }
        Ok(paths)
    }

    /// The tables for people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for line in &self.conditions {
            let _ = writeln!(text, "{line}");
        }
        let _ = writeln!(
            text,
            "\n{:<18} {:>5}  {:>9} {:>9} {:>9}  {:>9} {:>9} {:>9}  {:>10} {:>9} {:>9}  {:>10}",
            "ms per operation",
            "pods",
            "ADD p50",
            "p95",
            "CPU",
            "DEL p50",
            "p95",
            "CPU",
            "second p50",
            "p95",
            "CPU",
            "all busy"
        );
        for row in &self.rows {
            let _ = writeln!(
                text,
                "{:<18} {:>5}  {:>9.2} {:>9.2} {:>9.2}  {:>9.2} {:>9.2} {:>9.2}  {:>10.2} {:>9.2} {:>9.2}  {:>10.1}",
                row.contender,
                row.pods,
                row.add_p50_ms,
                row.add_p95_ms,
                row.add_cpu_ms,
                row.del_p50_ms,
                row.del_p95_ms,
                row.del_cpu_ms,
                row.gone_p50_ms,
                row.gone_p95_ms,
                row.gone_cpu_ms,
                row.pair_busy_ms
            );
        }
        self.plugin_text(&mut text);
        for row in &self.floor {
            let _ = writeln!(
                text,
                "{:<18} {:>5}  {:>9} {:>9} {:>9}  {:>9.2} {:>9.2}  (batch {:.2} + veth {:.2})",
                "kernel's floor",
                row.pods,
                "",
                "",
                "",
                row.sum_p50_ms,
                row.sum_p95_ms,
                row.batch_p50_ms,
                row.veth_p50_ms
            );
        }
        self.profile_text(&mut text);
        text
    }

    fn plugin_text(&self, text: &mut String) {
        for row in &self.rows {
            let parts: Vec<String> = row
                .plugins
                .iter()
                .map(|part| format!("{} {:.2} (CPU {:.2})", part.call, part.p50_ms, part.cpu_ms))
                .collect();
            let _ = writeln!(text, "{:<18} {:>5}  {}", row.contender, row.pods, parts.join(", "));
        }
    }

    fn profile_text(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n{:<18} {:>12} {:>12} {:>14} {:>14}  directory MB",
            "", "ADD peak MB", "DEL peak MB", "ADD programs", "DEL programs"
        );
        for p in &self.profiles {
            let _ = writeln!(
                text,
                "{:<18} {:>12.1} {:>12.1} {:>14} {:>14}  {:>12.1}   {}",
                p.contender,
                megabytes(p.add_peak_bytes),
                megabytes(p.del_peak_bytes),
                p.add_programs,
                p.del_programs,
                megabytes(p.directory_bytes),
                p.version
            );
            let _ = writeln!(text, "{:<18} ADD starts {}", "", p.add_program_names.join(", "));
        }
        let _ = writeln!(text);
        for ratio in &self.ratios {
            let verdict = if ratio.met { "met   " } else { "MISSED" };
            let _ = writeln!(text, "{verdict}  {:>7.3}  goal {:>6}  {}", ratio.value, ratio.goal, ratio.what);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
pub(super) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// The nearest-rank quantile, in per cent.
pub(super) fn quantile(times: impl Iterator<Item = Duration>, percent: usize) -> f64 {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times.get(rank - 1).copied().map_or(f64::NAN, milliseconds)
}

pub(super) fn mean(times: impl Iterator<Item = Duration>) -> f64 {
    let (count, sum) = times.fold((0u32, Duration::ZERO), |(n, sum), time| (n + 1, sum + time));
    sum.checked_div(count).map_or(f64::NAN, milliseconds)
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
        let of = |call: &str, costs: Vec<Cost>| Self {
            call: call.to_owned(),
            p50_ms: quantile(costs.iter().map(|c| c.wall), 50),
            cpu_ms: mean(costs.iter().map(|c| c.cpu)),
        };
        let adds = |index| series.samples.iter().filter_map(|s| s.add.get(index).copied()).collect();
        let dels = |index| series.samples.iter().filter_map(|s| s.del.get(index).copied()).collect();
        let gone = |index| series.samples.iter().filter_map(|s| s.gone.get(index).copied()).collect();
        vec![
            of("bridge ADD", adds(0)),
            of("portmap ADD", adds(1)),
            of("portmap DEL", dels(0)),
            of("bridge DEL", dels(1)),
            of("portmap second DEL", gone(0)),
            of("bridge second DEL", gone(1)),
        ]
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

fn ratios(rows: &[Row], floor: &[FloorRow], profiles: &[Profile], own: &str) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    let mut add = |what: String, value: f64, goal: f64| {
        ratios.push(Ratio { what, value, goal, met: value <= goal });
    };
    let ours: Vec<&Row> = rows.iter().filter(|row| row.contender == own).collect();
    let Some(first) = ours.first() else { return ratios };
    for row in &ours {
        // Our plugins with another backend are no peer.
        let is_peer = |peer: &&Row| !peer.contender.starts_with(own) && peer.pods == row.pods;
        let peers = || rows.iter().filter(is_peer);
        let (pods, best) = (row.pods, |of: fn(&Row) -> f64| peers().map(of).fold(f64::NAN, f64::min));
        add(
            format!("ADD p50 to the faster peer's, {pods} pods"),
            row.add_p50_ms / best(|r| r.add_p50_ms),
            0.1,
        );
        add(
            format!("DEL p50 to the faster peer's, {pods} pods"),
            row.del_p50_ms / best(|r| r.del_p50_ms),
            0.25,
        );
        add(
            format!("ADD CPU to the thriftier peer's, {pods} pods"),
            row.add_cpu_ms / best(|r| r.add_cpu_ms),
            0.1,
        );
        add(
            format!("DEL CPU to the thriftier peer's, {pods} pods"),
            row.del_cpu_ms / best(|r| r.del_cpu_ms),
            0.25,
        );
        for floor in floor.iter().filter(|floor| floor.pods == pods) {
            add(
                format!("DEL p50 to the kernel's floor, {pods} pods"),
                row.del_p50_ms / floor.sum_p50_ms,
                1.3,
            );
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
            let calls = [
                "bridge ADD",
                "portmap ADD",
                "portmap DEL",
                "bridge DEL",
                "portmap second DEL",
                "bridge second DEL",
            ];
            let costs = sample.add.iter().chain(&sample.del).chain(&sample.gone);
            for (call, cost) in calls.iter().zip(costs) {
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
    fn quantiles_are_nearest_ranks() {
        let times = || (1..=20).map(ms);
        assert_eq!((quantile(times(), 50), quantile(times(), 95)), (10.0, 19.0));
        assert_eq!(quantile([ms(7)].into_iter(), 95), 7.0);
        assert!(quantile(std::iter::empty(), 50).is_nan());
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
