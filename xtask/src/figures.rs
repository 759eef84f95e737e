// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask figures`: the tables of figures in the README, in `docs/benchmarks.md` and `docs/cluster.md`, written from the data in
//! `docs/data`, and measured.

mod burst;
mod cluster;
mod runtime;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::run::{self, cargo};
use crate::vm_test::{Sources, today};
use crate::workspace;

/// The lines of a page around the tables.
const MARKS: [&str; 2] = ["<!-- figures: written by cargo xtask figures -->\n", "<!-- end of figures -->\n"];
/// Those around the tables of bursts, which are in a page with others.
const BURST_MARKS: [&str; 2] =
    ["<!-- bursts: written by cargo xtask figures -->\n", "<!-- end of bursts -->\n"];

/// The run of ADD and DEL that the README shows, and its number of pods.
const CONTROL: (&str, u32) = ("readme-control.json", 100);

/// The run of packets that the README shows.
const TRAFFIC: &str = "readme-traffic.json";

/// A measurement of `--measure`.
struct Measurement {
    /// The page for which it is made.
    page: Page,
    /// The benchmark with its options.
    options: &'static str,
    /// The file that it saves, and the one that is kept.
    saved: &'static str,
    kept: &'static str,
    /// True if the samples are kept, too, as CSV of the same name.
    has_samples: bool,
}

const MEASUREMENTS: [Measurement; 7] = [
    Measurement {
        page: Page::Readme,
        options: "control --static --fetch-peer --ebpf --pods 100 --reps 7",
        saved: "control",
        kept: "readme-control",
        has_samples: false,
    },
    Measurement {
        page: Page::Readme,
        options: "traffic --static --fetch-peer --ports 1,1000,10000,60000 --works crr --pin one --peer-live 20 --rounds 5",
        saved: "traffic",
        kept: "readme-traffic",
        has_samples: false,
    },
    Measurement {
        page: Page::Runtime,
        options: "runtime --static --fetch-peer",
        saved: "runtime",
        kept: "runtime",
        has_samples: true,
    },
    Measurement {
        page: Page::Burst,
        options: "control --static --fetch-peer --ebpf --pods 0,1000 --burst 100 --callers 32",
        saved: "burst",
        kept: "burst-100",
        has_samples: false,
    },
    Measurement {
        page: Page::Burst,
        options: "control --static --fetch-peer --ebpf --pods 0 --burst 250 --callers 64 --reps 3",
        saved: "burst",
        kept: "burst-250",
        has_samples: false,
    },
    Measurement {
        page: Page::Burst,
        options: "control --static --fetch-peer --ebpf --pods 0 --burst 100 --callers 32 --conntrack 200000 --reps 3",
        saved: "burst",
        kept: "burst-flows",
        has_samples: false,
    },
    Measurement {
        page: Page::Cluster,
        options: "cluster --nodes 1000,5000",
        saved: "cluster",
        kept: "cluster",
        has_samples: false,
    },
];

/// A page with tables of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Page {
    /// README.md
    Readme,
    /// The runtime's side in docs/benchmarks.md
    Runtime,
    /// Bursts in docs/benchmarks.md
    Burst,
    /// slipwayd with many Nodes in docs/cluster.md
    Cluster,
}

impl Page {
    const ALL: [Self; 4] = [Self::Readme, Self::Runtime, Self::Burst, Self::Cluster];

    fn file(self) -> &'static str {
        match self {
            Self::Readme => "README.md",
            Self::Runtime | Self::Burst => "docs/benchmarks.md",
            Self::Cluster => "docs/cluster.md",
        }
    }

    fn marks(self) -> [&'static str; 2] {
        if self == Self::Burst { BURST_MARKS } else { MARKS }
    }

    fn tables(self, root: &Path) -> Result<String> {
        match self {
            Self::Readme => tables(root),
            Self::Runtime => runtime::tables(root),
            Self::Burst => burst::tables(root),
            Self::Cluster => cluster::tables(root),
        }
    }
}

/// The contenders of the README's tables: their names in [`CONTROL`], in [`TRAFFIC`], and for readers.
const CONTENDERS: [(&str, &str, &str); 4] = [
    ("slipway", "nftables", "Slipway, nftables"),
    ("slipway-ebpf", "ebpf", "Slipway, eBPF"),
    ("peer-nftables", "reference-nftables", "reference 1.9.1, nftables"),
    ("peer-iptables", "reference-iptables", "reference 1.9.1, iptables"),
];

/// Write the tables of the README, docs/benchmarks.md and docs/cluster.md from the figures in docs/data.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the tables instead
    #[arg(long)]
    print: bool,
    /// Measure first what a page shows: some ten minutes for the README, six for the runtime's side,
    /// five for the cluster, an hour for bursts, as root, on a
    /// machine that does nothing else and a tree without changes
    #[arg(long, value_name = "PAGE", num_args = 0..=1, default_missing_value = "readme")]
    measure: Option<Page>,
}

/// Runs the task.
///
/// # Errors
/// A file cannot be read or written, or the README lacks the marks.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root();
    if let Some(page) = args.measure {
        measure(root, page)?;
    }
    for page in Page::ALL {
        let tables = page.tables(root)?;
        if args.print {
            print!("{tables}");
            continue;
        }
        let path = root.join(page.file());
        let text = read(&path)?;
        let [before, _, after] = around(page, &text)?;
        fs::write(&path, format!("{before}{tables}{after}")).map_err(|e| Error::file("write", &path, e))?;
    }
    Ok(())
}

/// Measures what a page shows, one measurement after the other on one commit, and keeps the figures.
fn measure(root: &Path, page: Page) -> Result<()> {
    let Some(commit) = Sources::of_checkout().commit else {
        return Err(Error::Failed(
            "the figures are of one commit: commit or stash the changes first".to_owned(),
        ));
    };
    let scratch = workspace::scratch("figures")?;
    let (data, list) = (root.join("docs/data"), root.join("docs/data/runs.toml"));
    let mut text = read(&list)?;
    for measurement in MEASUREMENTS.iter().filter(|measurement| measurement.page == page) {
        let Measurement { options, saved, kept, has_samples, .. } = measurement;
        let mut command = cargo(&["run", "--quiet", "--package", "xtask-bench", "--"]);
        command.args(options.split(' ')).arg("--save").arg(&scratch);
        run::show(&mut command)?;
        for ending in ["json", "csv"].into_iter().take(1 + usize::from(*has_samples)) {
            let (from, to) =
                (scratch.join(format!("{saved}.{ending}")), data.join(format!("{kept}.{ending}")));
            fs::copy(&from, &to).map_err(|e| Error::file("copy", &from, e))?;
        }
        let file = format!("{kept}.json");
        let entry = format!(
            "[[run]]\nfile = \"{file}\"\ncommand = \"cargo xtask bench {options}\"\ndate = \"{}\"\ncommit = \"{commit}\"\n",
            today()
        );
        text = with_entry(&text, &file, &entry);
    }
    fs::write(&list, text).map_err(|e| Error::file("write", &list, e))
}

/// The list of runs with this entry in the place of the file's former one, or at the end.
fn with_entry(list: &str, file: &str, entry: &str) -> String {
    let line = format!("file = \"{file}\"");
    let mut parts: Vec<&str> = list.split("\n\n").map(|part| part.trim_end_matches('\n')).collect();
    let entry = entry.trim_end_matches('\n');
    match parts.iter_mut().find(|part| part.lines().any(|one| one == line)) {
        Some(part) => *part = entry,
        None => parts.push(entry),
    }
    parts.join("\n\n") + "\n"
}

/// Compares the pages' tables with the figures, and the list of runs with the files.
///
/// # Errors
/// They differ, or a file cannot be read.
pub(crate) fn check(root: &Path) -> Result<()> {
    for page in Page::ALL {
        let text = read(&root.join(page.file()))?;
        let [_, written, _] = around(page, &text)?;
        if written != page.tables(root)? {
            return Err(Error::Failed(format!(
                "{}: its figures are not those of docs/data: run `cargo xtask figures`",
                page.file()
            )));
        }
    }
    let data = root.join("docs/data");
    let mut files: Vec<String> = fs::read_dir(&data)
        .map_err(|e| Error::file("list", &data, e))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".json"))
        .collect();
    let mut listed: Vec<String> = runs(root)?.into_iter().map(|run| run.file).collect();
    files.sort();
    listed.sort();
    if files == listed {
        return Ok(());
    }
    Err(Error::Failed(format!("docs/data has {files:?}, and runs.toml lists {listed:?}")))
}

/// One run of a benchmark, as `docs/data/runs.toml` lists it.
#[derive(Debug, Deserialize)]
struct Run {
    file: String,
    command: String,
    date: String,
    commit: String,
}

impl Run {
    /// The line below a table, with the folder of the files as the page links it.
    fn source(&self, data: &str) -> String {
        // The task without its options, which the list of runs has.
        let task: Vec<&str> = self.command.split(' ').take_while(|word| !word.starts_with("--")).collect();
        format!(
            "`{}` on {}, commit {}: [data]({data}/{}), [options]({data}/runs.toml).\n",
            task.join(" "),
            self.date,
            self.commit,
            self.file
        )
    }
}

#[derive(Debug, Deserialize)]
struct Runs {
    run: Vec<Run>,
}

/// ADD and DEL, as `bench control` saves them.
#[derive(Debug, Deserialize)]
struct Control {
    rows: Vec<ControlRow>,
    profiles: Vec<Profile>,
}

#[derive(Debug, Deserialize)]
struct ControlRow {
    contender: String,
    pods: u32,
    repetitions: u32,
    add_p50_ms: f64,
    del_p50_ms: f64,
    gone_p50_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Profile {
    contender: String,
    directory_bytes: f64,
    add_peak_bytes: f64,
    add_programs: u32,
    del_programs: u32,
}

/// Packets, as `bench traffic` saves them.
#[derive(Debug, Deserialize)]
struct Traffic {
    rows: Vec<TrafficRow>,
}

#[derive(Debug, Deserialize)]
struct TrafficRow {
    contender: String,
    way: String,
    work: String,
    ports: u32,
    machine: Spread,
    ratio: Spread,
}

#[derive(Debug, Deserialize)]
struct Spread {
    median: f64,
}

fn tables(root: &Path) -> Result<String> {
    let source = |file| source(root, file, "docs/data");
    let data = root.join("docs/data");
    let control = control_table(&json(&data.join(CONTROL.0))?)?;
    let traffic = traffic_table(&json(&data.join(TRAFFIC))?)?;
    Ok(format!("{control}\n{}\n{traffic}\n{}", source(CONTROL.0)?, source(TRAFFIC)?))
}

/// The line below a table of a run.
fn source(root: &Path, file: &str, data: &str) -> Result<String> {
    let runs = runs(root)?;
    let run = runs.iter().find(|run| run.file == file).map(|run| run.source(data));
    run.ok_or_else(|| Error::Failed(format!("docs/data/runs.toml does not list {file}")))
}

fn control_table(data: &Control) -> Result<String> {
    let pods = CONTROL.1;
    let mut columns = Vec::new();
    for (name, _, _) in CONTENDERS {
        let row = data.rows.iter().find(|row| row.contender == name && row.pods == pods);
        let profile = data.profiles.iter().find(|profile| profile.contender == name);
        let (Some(row), Some(profile)) = (row, profile) else {
            return Err(Error::Failed(format!("{} has no {name} with {pods} pods", CONTROL.0)));
        };
        columns.push((row, profile));
    }
    let repetitions = columns.first().map_or(0, |(row, _)| row.repetitions);
    let mut text = format!(
        "ADD and DEL of `bridge`, `host-local` and `portmap` with three ports and `ipMasq`, on a node with {pods} \
         pods; medians of\n{repetitions} runs:\n\n{}",
        header()
    );
    type Cell = fn(&ControlRow, &Profile) -> String;
    let lines: [(&str, Cell); 6] = [
        ("ADD (ms)", |row, _| digits(row.add_p50_ms)),
        ("DEL (ms)", |row, _| digits(row.del_p50_ms)),
        ("DEL of what is gone already (ms)", |row, _| digits(row.gone_p50_ms)),
        ("programs started by ADD, by DEL", |_, of| format!("{}, {}", of.add_programs, of.del_programs)),
        ("memory of the largest process (MB)", |_, of| digits(of.add_peak_bytes / 1e6)),
        ("all plugins on disk (MB)", |_, of| digits(of.directory_bytes / 1e6)),
    ];
    for (name, cell) in lines {
        let cells: Vec<String> = columns.iter().map(|(row, profile)| cell(row, profile)).collect();
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    Ok(text)
}

fn traffic_table(data: &Traffic) -> Result<String> {
    let mut text = format!(
        "A connection to a published port with one byte each way, by the number of published ports: processor \
         time of the\nwhole machine in µs, in parentheses its ratio to a node that only routes.\n\n{}",
        header()
    );
    let rows: Vec<&TrafficRow> =
        data.rows.iter().filter(|row| row.way == "port" && row.work == "CRR").collect();
    let mut numbers: Vec<u32> = rows.iter().map(|row| row.ports).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for ports in numbers {
        let mut cells = Vec::new();
        for (_, name, _) in CONTENDERS {
            let row = rows.iter().find(|row| row.contender == name && row.ports == ports);
            let row =
                row.ok_or_else(|| Error::Failed(format!("{TRAFFIC} has no {name} with {ports} ports")))?;
            cells.push(format!("{} ({:.2})", digits(row.machine.median), row.ratio.median));
        }
        let _ = writeln!(text, "| {} | {} |", grouped(ports), cells.join(" | "));
    }
    Ok(text)
}

fn header() -> String {
    let names: Vec<&str> = CONTENDERS.iter().map(|(_, _, name)| *name).collect();
    format!("| | {} |\n|---{}|\n", names.join(" | "), "|---:".repeat(names.len()))
}

/// A figure with three digits at most, and one after the point at most.
fn digits(value: f64) -> String {
    if value < 99.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// A number with commas between thousands, below a million.
fn grouped(number: u32) -> String {
    match (number / 1000, number % 1000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{thousands},{rest:03}"),
    }
}

fn runs(root: &Path) -> Result<Vec<Run>> {
    let path = root.join("docs/data/runs.toml");
    let runs: Runs = toml::from_str(&read(&path)?)
        .map_err(|error| Error::Failed(format!("decode {}: {error}", path.display())))?;
    Ok(runs.run)
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_str(&read(path)?)
        .map_err(|error| Error::Failed(format!("decode {}: {error}", path.display())))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| Error::file("read", path, e))
}

/// The text up to the first mark, between the marks, and from the second one on.
fn around(page: Page, text: &str) -> Result<[&str; 3]> {
    let [first, last] = page.marks();
    let from = text.find(first).map(|at| at + first.len());
    let to = text.find(last);
    match (from, to) {
        (Some(from), Some(to)) if from <= to => Ok([&text[..from], &text[from..to], &text[to..]]),
        _ => Err(Error::Failed(format!("{} lacks the lines {first:?} and {last:?}", page.file()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_the_figures_of_the_data() {
        check(workspace::root()).unwrap();
    }

    #[test]
    fn figures_have_three_digits_at_most() {
        let shown: Vec<String> = [3.653, 19.732, 99.97, 444.46].into_iter().map(digits).collect();
        assert_eq!(shown, ["3.7", "19.7", "100", "444"]);
        assert_eq!([1, 1000, 60_000].map(grouped), ["1", "1,000", "60,000"]);
    }

    #[test]
    fn an_entry_of_the_list_is_replaced_or_added() {
        let list = "# Runs.\n\n[[run]]\nfile = \"a.json\"\n\n[[run]]\nfile = \"b.json\"\n";
        let entry = "[[run]]\nfile = \"a.json\"\nnew\n";
        assert_eq!(with_entry(list, "a.json", entry), list.replace("a.json\"\n", "a.json\"\nnew\n"));
        assert_eq!(with_entry(list, "c.json", entry), format!("{list}\n{entry}"));
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        for page in [Page::Readme, Page::Burst] {
            let [first, last] = page.marks();
            let text = format!("before\n{first}old\n{last}after\n");
            let [before, old, after] = around(page, &text).unwrap();
            assert_eq!(
                (before, old, after),
                (&*format!("before\n{first}"), "old\n", &*format!("{last}after\n"))
            );
        }
        let error = around(Page::Readme, "none").unwrap_err().to_string();
        assert!(error.starts_with("README.md lacks the lines"), "{error}");
    }
}
