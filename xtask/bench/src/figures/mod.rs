// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask figures`: the tables of figures in the README and in `docs/reports`, written from the data in
//! `docs/data`, and measured.

mod burst;
mod cluster;
mod control;
pub(crate) mod runs;
mod runtime;
mod traffic;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::goal::Goal;
use crate::output::{self, Report};
use crate::table::{grouped, head, row};
use runs::Runs;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::workspace;

/// The line of a page behind each part.
const END: &str = "<!-- end of figures -->\n";

/// A part of a page that is written from data.
struct Part {
    /// The page, from the root of the workspace.
    page: &'static str,
    /// The name in the mark before it.
    name: &'static str,
    text: fn(&Data<'_>) -> Result<String>,
}

const PARTS: [Part; 11] = [
    Part { page: "README.md", name: "pods", text: control::readme },
    Part { page: "README.md", name: "packets", text: traffic::readme },
    Part { page: "docs/reports/add-and-del.md", name: "pods", text: control::pods },
    Part { page: "docs/reports/add-and-del.md", name: "second DELs", text: control::second_dels },
    Part { page: "docs/reports/add-and-del.md", name: "iptables", text: control::iptables },
    Part { page: "docs/reports/bursts.md", name: "bursts", text: burst::tables },
    Part { page: "docs/reports/callers.md", name: "callers", text: runtime::tables },
    Part { page: "docs/reports/packets.md", name: "packets", text: traffic::packets },
    Part { page: "docs/reports/packets.md", name: "datagrams", text: traffic::datagrams },
    Part { page: "docs/reports/packets.md", name: "other packets", text: traffic::others },
    Part { page: "docs/reports/cluster.md", name: "nodes", text: cluster::tables },
];

impl Part {
    fn mark(&self) -> String {
        format!("<!-- figures of {}: written by cargo xtask figures -->\n", self.name)
    }

    /// The page up to this part, the part, and the page from its end on.
    fn around<'a>(&self, page: &'a str) -> Result<[&'a str; 3]> {
        let mark = self.mark();
        let missing = || Error::Failed(format!("{} lacks the lines {mark:?} and {END:?}", self.page));
        let from = page.find(&mark).map(|at| at + mark.len()).ok_or_else(missing)?;
        let to = page[from..].find(END).map(|at| from + at).ok_or_else(missing)?;
        Ok([&page[..from], &page[from..to], &page[to..]])
    }
}

/// The data of the figures, for one page.
struct Data<'a> {
    dir: PathBuf,
    runs: &'a Runs,
    /// The folder of the data as the page links it.
    link: &'static str,
}

impl<'a> Data<'a> {
    fn new(root: &Path, runs: &'a Runs, page: &str) -> Self {
        let link = if page.starts_with("docs/reports/") {
            "../data"
        } else if page.starts_with("docs/") {
            "data"
        } else {
            FOLDER
        };
        Self { dir: root.join(FOLDER), runs, link }
    }

    /// Reads what a benchmark saved.
    fn read<R: Report>(&self, file: &str) -> Result<R> {
        output::read(&self.dir.join(file))
    }

    /// The goals of all runs that were measured.
    fn goals(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for run in self.runs.of_benchmarks() {
            let (file, named) = (run.file(), |goal: Goal| goal.of(run.name()));
            let of_run = if run.is_burst() {
                self.read::<crate::burst::report::Report>(file).map(|report| report.ratios)
            } else if file.starts_with("control") {
                self.read::<crate::report::Report>(file).map(|report| report.ratios)
            } else if file.starts_with("traffic") {
                self.read::<crate::traffic::figures::Report>(file).map(|report| report.goals)
            } else {
                continue;
            };
            goals.extend(of_run.unwrap_or_default().into_iter().map(named));
        }
        goals
    }

    /// The line below a table of a run.
    fn source(&self, file: &str) -> Result<String> {
        self.runs.find(file).map(|run| run.source(self.link))
    }
}

/// The folder of the committed figures.
pub(crate) const FOLDER: &str = "docs/data";

/// Write the tables of the README, docs/reports and docs/reports/cluster.md from the figures in docs/data.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print the tables instead
    #[arg(long)]
    print: bool,
    /// Compare the tables with the data, and write nothing
    #[arg(long, conflicts_with_all = ["print", "measure"])]
    check: bool,
    /// Measure first, and draw the pictures: these runs of docs/data/runs.toml, or all, which takes an hour and a quarter; but
    /// for those of today's product. As root, on a machine that does nothing else, and a tree without changes
    #[arg(long, value_name = "RUN", num_args = 0..)]
    measure: Option<Vec<String>>,
    /// Measure those of today's product, too
    #[arg(long, requires = "measure")]
    again: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root();
    if args.check {
        check(root)?;
        println!("the figures of the pages are those of the data");
        return Ok(());
    }
    if let Some(names) = &args.measure {
        runs::measure(root, names, args.again)?;
    }
    let runs = Runs::read(&root.join(FOLDER))?;
    for part in PARTS {
        let written = (part.text)(&Data::new(root, &runs, part.page))?;
        if args.print {
            println!("{written}");
            continue;
        }
        let path = root.join(part.page);
        let page = files::read(&path)?;
        let [before, _, after] = part.around(&page)?;
        files::write(&path, format!("{before}{written}{after}"))?;
    }
    Ok(())
}

/// Compares the pages' tables with the figures, and the list of runs with the files.
fn check(root: &Path) -> Result<()> {
    let runs = Runs::read(&root.join(FOLDER))?;
    for part in PARTS {
        let page = files::read(root.join(part.page))?;
        let [_, written, _] = part.around(&page)?;
        if written != (part.text)(&Data::new(root, &runs, part.page))? {
            return Err(Error::Failed(format!(
                "{}: its figures of {} are not those of docs/data: run `cargo xtask figures`",
                part.page, part.name
            )));
        }
    }
    runs.check(root)
}

/// A function that writes a section.
type Section = fn(&Data<'_>) -> Result<String>;

/// The sections of a report of all benchmarks.
const SECTIONS: [(&str, Section); 9] = [
    ("ADD and DEL by the number of pods", control::pods),
    ("A DEL that finds nothing", control::second_dels),
    ("Next to iptables rules of others", control::iptables),
    ("Bursts", burst::tables),
    ("Callers", runtime::tables),
    ("Packets to a published port", traffic::packets),
    ("Datagrams", traffic::datagrams),
    ("Other packets", traffic::others),
    ("Many Nodes", cluster::tables),
];

/// The report of the runs in a folder: the missed goals, then a section for each question. A section without
/// measurements states the reason.
pub(crate) fn report(dir: &Path) -> Result<String> {
    let runs = Runs::read(dir)?;
    let data = Data { dir: dir.to_owned(), runs: &runs, link: "." };
    let goals = data.goals();
    let missed: Vec<&Goal> = goals.iter().filter(|goal| !goal.met).collect();
    let mut text =
        format!("# Benchmarks\n\n{} of {} goals are met.", goals.len() - missed.len(), goals.len());
    text += if missed.is_empty() { "\n" } else { " Missed:\n\n" };
    for goal in missed {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {}: {:.2}, goal {}", goal.what, goal.value, goal.limit());
    }
    if let Ok(control) = data.read::<crate::report::Report>("control.json") {
        text += "\n## Conditions\n\n";
        text.extend(control.conditions.iter().map(|line| format!("- {line}\n")));
    }
    for (title, section) in SECTIONS {
        let body = section(&data).unwrap_or_else(|reason| format!("Not measured: {reason}.\n"));
        let _ = write!(text, "\n## {title}\n\n{body}");
    }
    // The pages name the version of the reference; the conditions have that of this run's peer.
    Ok(text.replace("reference 1.9.1", "reference"))
}

/// The table of goals. Goals that differ only in a number (of pods, of ports) share a row and have a column for each
/// number, because most readers compare a goal across these numbers. A missed goal is bold.
fn goals(goals: &[Goal]) -> String {
    let named: Vec<_> = goals.iter().map(|goal| (numbered(&goal.what), goal)).collect();
    let numbers: BTreeSet<Option<u32>> = named.iter().map(|((_, number), _)| *number).collect();
    let mut rows: Vec<(&str, String)> = Vec::new();
    for ((name, _), goal) in &named {
        if !rows.iter().any(|(known, limit)| known == name && *limit == goal.limit()) {
            rows.push((name, goal.limit()));
        }
    }
    let titles = numbers.iter().map(|number| number.map_or_else(String::new, grouped));
    let titles: Vec<String> = std::iter::once("goal".to_owned()).chain(titles).collect();
    let mut text = head("ratio, by N", &titles);
    for (name, limit) in rows {
        let cell = |number: &Option<u32>| {
            let of_cell =
                named.iter().find(|((one, of), goal)| one == name && of == number && goal.limit() == limit);
            of_cell.map_or_else(String::new, |(_, goal)| value(goal))
        };
        let cells: Vec<String> = std::iter::once(limit.clone()).chain(numbers.iter().map(cell)).collect();
        text += &row(name, &cells);
    }
    text
}

/// A goal's name with N in place of its first number, and this number.
fn numbered(what: &str) -> (String, Option<u32>) {
    let words: Vec<&str> = what.split(' ').collect();
    let Some(at) = words.iter().position(|word| word.parse::<u32>().is_ok()) else {
        return (what.to_owned(), None);
    };
    let number = words[at].parse().ok();
    ([&words[..at], &["N"], &words[at + 1..]].concat().join(" "), number)
}

fn value(goal: &Goal) -> String {
    if goal.met { format!("{:.2}", goal.value) } else { format!("**{:.2}**", goal.value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::Bound;

    #[test]
    fn the_pages_have_the_figures_of_the_data() {
        check(workspace::root()).unwrap();
    }

    #[test]
    fn what_was_saved_is_read_and_written_with_the_same_bytes() {
        fn again<R: Report>(name: &str) {
            let path = workspace::root().join(FOLDER).join(name);
            let report: R = output::read(&path).unwrap();
            let written = serde_json::to_string_pretty(&report).unwrap() + "\n";
            assert!(written == files::read(&path).unwrap(), "{name} would be saved in another form");
        }
        for file in ["control", "control-foreign-nft-0", "control-foreign-legacy-10000"] {
            again::<crate::report::Report>(&format!("{file}.json"));
        }
        for file in ["burst-100.json", "burst-250.json", "burst-flows.json"] {
            again::<crate::burst::report::Report>(file);
        }
        for file in ["traffic.json", "traffic-ways.json", "traffic-datagrams.json"] {
            again::<crate::traffic::figures::Report>(file);
        }
        again::<crate::runtime::report::Report>("runtime.json");
        again::<crate::cluster::report::Report>("cluster.json");
    }

    #[test]
    fn goals_that_differ_in_a_number_share_a_row() {
        let goal = |what: &str, value: f64| Goal::at_most(what.to_owned(), value, 0.1);
        let least = Goal::bounded("ADDs, 0 pods".to_owned(), 13.77, Bound::AtLeast(20.0));
        let all = [goal("p50 of 0 pods", 0.057), goal("MB", 0.05), goal("p50 of 1000 pods", 0.2), least];
        let table = "| ratio, by N | goal |  | 0 | 1,000 |\n|---|---:|---:|---:|---:|\n\
                     | p50 of N pods | ≤ 0.1 |  | 0.06 | **0.20** |\n| MB | ≤ 0.1 | 0.05 |  |  |\n\
                     | ADDs, N pods | ≥ 20 |  | **13.77** |  |\n";
        assert_eq!(goals(&all), table);
    }

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let part = |name| Part { page: "README.md", name, text: |_| Ok(String::new()) };
        let [first, second] = ["one", "two"].map(|name| part(name).mark());
        let page = format!("before\n{first}old\n{END}between\n{second}other\n{END}after\n");
        let [before, old, after] = part("two").around(&page).unwrap();
        assert_eq!((old, after), ("other\n", &*format!("{END}after\n")));
        assert_eq!(before, format!("before\n{first}old\n{END}between\n{second}"));
        for page in ["none", &first] {
            let error = part("one").around(page).unwrap_err().to_string();
            assert!(error.starts_with("README.md lacks the lines"), "{error}");
        }
    }
}
