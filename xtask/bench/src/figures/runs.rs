// SPDX-License-Identifier: MIT OR Apache-2.0

//! The runs whose figures the pages have, `docs/data/runs.toml`.

use std::ffi::OsString;
use std::path::Path;

use serde::Deserialize;

use super::FOLDER;
use xtask_base::checkout::{PRODUCT, Sources, is_unchanged, today};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, cargo};
use xtask_base::workspace;

/// The list, in the folder of the data.
const LIST: &str = "runs.toml";

/// The beginning of a measured command.
const BENCH: &str = "cargo xtask bench ";

/// The benchmarks, without their drawing.
const MEASURED_BY: [&str; 4] = [
    "xtask/bench",
    ":(exclude)xtask/bench/src/plot.rs",
    ":(exclude)xtask/bench/src/table.rs",
    ":(exclude)xtask/bench/src/figures",
];

/// One run of a benchmark.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Run {
    /// Its figures.
    file: String,
    /// The command that repeats it.
    command: String,
    /// Its day, and the commit of what it measured.
    date: String,
    commit: String,
    /// True if each sample is kept, too, as CSV.
    #[serde(default)]
    samples: bool,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Runs {
    #[serde(default)]
    run: Vec<Run>,
}

impl Run {
    /// A run that is made today, by the command with these options.
    pub(crate) fn today(file: &str, options: &str, commit: &str) -> Self {
        let command = format!("{BENCH}{options}");
        Self { file: file.to_owned(), command, date: today(), commit: commit.to_owned(), samples: false }
    }

    /// The options of its command, if it is one of this benchmark.
    pub(crate) fn options(&self) -> Option<&str> {
        self.command.strip_prefix(BENCH)
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    /// Measures the run with more options, with the progress on the terminal. Then keeps the figures in `dir`, and the
    /// run's entry in the list there.
    pub(crate) fn measure(&self, dir: &Path, more: &[OsString]) -> Result<()> {
        let options = self.options().unwrap_or_default();
        let scratch = workspace::scratch("figures")?;
        let words = options.split(' ').map(OsString::from).chain(more.iter().cloned());
        bench(words.chain(["--save".into(), scratch.clone().into()]))?;
        for ending in ["json", "csv"].into_iter().take(1 + usize::from(self.samples)) {
            let from = scratch.join(Self::saved(options)).with_extension(ending);
            files::copy(&from, dir.join(self.name()).with_extension(ending))?;
        }
        let list = dir.join(LIST);
        files::write(&list, with_entry(&files::read(&list)?, self))
    }

    /// Removes the figures that an earlier run of this name has left in `dir`.
    pub(crate) fn forget(&self, dir: &Path) -> Result<()> {
        ["json", "csv"]
            .iter()
            .try_for_each(|end| workspace::remove(&dir.join(self.name()).with_extension(end)))
    }

    pub(crate) fn is_burst(&self) -> bool {
        self.options().is_some_and(|options| Self::saved(options) == "burst")
    }

    /// Its name for `--measure`.
    pub(crate) fn name(&self) -> &str {
        self.file.strip_suffix(".json").unwrap_or(&self.file)
    }

    /// The line below a table, with the folder of the data as the page links it.
    pub(super) fn source(&self, data: &str) -> String {
        // The task without its options, which the list of runs has.
        let task: Vec<&str> = self.command.split(' ').take_while(|word| !word.starts_with("--")).collect();
        format!(
            "`{}` on {}, commit {}: [data]({data}/{}), [options]({data}/{LIST}).\n",
            task.join(" "),
            self.date,
            self.commit,
            self.file
        )
    }

    /// The name of the file that its benchmark saves.
    fn saved(options: &str) -> &str {
        if options.contains(" --burst ") { "burst" } else { options.split(' ').next().unwrap_or_default() }
    }

    fn entry(&self) -> String {
        let Self { file, command, date, commit, samples } = self;
        let samples = if *samples { "samples = true\n" } else { "" };
        format!(
            "[[run]]\nfile = \"{file}\"\ncommand = \"{command}\"\n{samples}date = \"{date}\"\ncommit = \"{commit}\"\n"
        )
    }
}

impl Runs {
    /// Writes the list of a folder that has no run yet.
    pub(crate) fn begin(dir: &Path) -> Result<()> {
        files::write(dir.join(LIST), "# The runs of these figures.\n")
    }

    /// The list of a folder.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(LIST);
        toml::from_str(&files::read(&path)?)
            .map_err(|error| Error::Failed(format!("decode {}: {error}", path.display())))
    }

    /// The run with these figures.
    pub(super) fn find(&self, file: &str) -> Result<&Run> {
        let run = self.run.iter().find(|run| run.file == file);
        run.ok_or_else(|| Error::Failed(format!("{LIST} does not list {file}")))
    }

    /// The runs that a benchmark of this crate makes.
    pub(crate) fn of_benchmarks(&self) -> impl Iterator<Item = &Run> {
        self.run.iter().filter(|run| run.options().is_some())
    }

    /// Compares the list with the files.
    pub(super) fn check(&self, root: &Path) -> Result<()> {
        let paths = files::list(root.join(FOLDER))?;
        let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
        let saved: Vec<&str> = names.filter(|name| name.ends_with(".json")).collect();
        let mut listed: Vec<&str> = self.run.iter().map(|run| &*run.file).collect();
        listed.sort();
        if saved == listed {
            return Ok(());
        }
        Err(Error::Failed(format!("{FOLDER} has {saved:?}, and {LIST} lists {listed:?}")))
    }
}

/// Measures the runs of these names, or all that a benchmark makes, one after the other on one commit, and keeps the
/// figures of each when it is done. Then draws the pictures. Runs of today's product are left out, or measured `again`.
pub(super) fn measure(root: &Path, names: &[String], again: bool) -> Result<()> {
    let Some(commit) = Sources::of_checkout().commit else {
        return Err(Error::Failed(
            "the figures are of one commit: commit or stash the changes first".to_owned(),
        ));
    };
    let dir = root.join(FOLDER);
    let runs = Runs::read(&dir)?;
    if let Some(name) = names.iter().find(|name| !runs.run.iter().any(|run| run.name() == **name)) {
        let known: Vec<&str> = runs.run.iter().map(Run::name).collect();
        return Err(Error::Failed(format!("no run {name}: {FOLDER}/{LIST} has {}", known.join(", "))));
    }
    let chosen = |run: &&Run| names.is_empty() || names.iter().any(|name| name == run.name());
    for run in runs.run.iter().filter(chosen) {
        if run.options().is_none() {
            println!("{}: not of a benchmark: {}", run.name(), run.command);
            continue;
        }
        if !again && is_unchanged(&run.commit, &[PRODUCT.as_slice(), &MEASURED_BY].concat()) {
            println!("{}: measured on {}, the product is the same", run.name(), run.commit);
            continue;
        }
        println!("{}: {}", run.name(), run.command);
        Run { date: today(), commit: commit.clone(), ..run.clone() }.measure(&dir, &[])?;
    }
    bench(["plot".into()].into_iter())
}

/// Runs a benchmark's command, which shows its progress.
fn bench(arguments: impl Iterator<Item = OsString>) -> Result<()> {
    run::show(cargo(&["run", "--quiet", "--package", "xtask-bench", "--", "bench"]).args(arguments))
}

/// The list with this run in the place of the file's former one, or at the end.
fn with_entry(list: &str, run: &Run) -> String {
    let line = format!("file = \"{}\"", run.file);
    let entry = run.entry();
    let entry = entry.trim_end_matches('\n');
    let mut parts: Vec<&str> = list.split("\n\n").map(|part| part.trim_end_matches('\n')).collect();
    match parts.iter_mut().find(|part| part.lines().any(|one| one == line)) {
        Some(former) => *former = entry,
        None => parts.push(entry),
    }
    parts.join("\n\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_the_list_is_replaced() {
        let list = "# Runs.\n\n[[run]]\nfile = \"a.json\"\nold\n\n[[run]]\nfile = \"b.json\"\n";
        let word = |text: &str| text.to_owned();
        let run = |samples| Run {
            file: word("a.json"),
            command: word("cargo xtask bench control --burst 100"),
            date: word("2026-11-27"),
            commit: word("0123"),
            samples,
        };
        let text = with_entry(list, &run(true));
        assert_eq!(text, list.replace("[[run]]\nfile = \"a.json\"\nold\n", &run(true).entry()));
        assert!(text.contains("samples = true\n") && !run(false).entry().contains("samples"), "{text}");
        assert_eq!(with_entry("# Runs.\n", &run(false)), format!("# Runs.\n\n{}", run(false).entry()));
        assert_eq!(
            ["control --pods 0 --burst 100", "traffic --ports 1"].map(Run::saved),
            ["burst", "traffic"]
        );
        let source = run(true).source("data");
        assert!(
            source.starts_with("`cargo xtask bench control` on 2026-11-27, commit 0123: [data](data/a.json)")
        );
    }
}
