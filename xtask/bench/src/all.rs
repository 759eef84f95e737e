// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask bench` without a benchmark: all of them, one after the other, into one report.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::figures;
use super::figures::runs::{Run, Runs};
use super::sets::Plugins;
use xtask_base::checkout::Sources;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::seconds;
use xtask_base::run::{self, cargo};
use xtask_base::workspace;

/// The report, in the folder of the figures.
const REPORT: &str = "report.md";

/// The short runs. They have the files of the long ones, fewer pods, ports and repetitions, and at least five rounds.
const QUICK: [(&str, &str); 13] = [
    ("control.json", "control --ebpf --pods 0,100 --reps 5"),
    ("control-foreign-nft-0.json", "control --pods 0 --iptables nft --reps 5"),
    ("control-foreign-nft-10000.json", "control --pods 0 --foreign-rules 10000 --iptables nft --reps 5"),
    (
        "control-foreign-legacy-10000.json",
        "control --pods 0 --foreign-rules 10000 --iptables legacy --reps 5",
    ),
    (
        "traffic.json",
        "traffic --ports 1,1000 --pin one --peer-live 20 --rounds 5 --seconds 0.5 --contenders \
         direct,routed,tracked,reference-iptables,reference-nftables,nftables,ebpf",
    ),
    (
        "traffic-one-port.json",
        "traffic --ports 1 --pin one --works crr --rounds 9 --seconds 0.5 --contenders \
         direct,routed,tracked,reference-iptables,reference-nftables,nftables,ebpf",
    ),
    (
        "traffic-datagrams.json",
        "traffic --ports 1 --pin one --works udp64,udp1400,udp64x1000,udp1400x1000 --rounds 5 --seconds 0.5 --contenders \
         routed,reference-iptables,reference-nftables,nftables,ebpf",
    ),
    (
        "traffic-unpinned.json",
        "traffic --ports 1 --rounds 5 --seconds 0.5 --contenders routed,reference-iptables,reference-nftables,nftables,ebpf",
    ),
    (
        "traffic-ways.json",
        "traffic --ports 100 --pin one --ways masquerade,node,node-direct --rounds 5 --seconds 0.5 --contenders \
         routed,nftables,ebpf",
    ),
    ("runtime.json", "runtime --reps 10 --rounds 5 --pods 32 --changes 50"),
    ("cluster.json", "cluster --without-server --changing 1000 --at-start 5000 --seconds 10"),
    ("burst-100.json", "control --ebpf --pods 0 --burst 50 --callers 32 --reps 5"),
    ("burst-flows.json", "control --ebpf --pods 0 --burst 50 --callers 32 --conntrack 100000 --reps 5"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct AllArgs {
    #[command(flatten)]
    plugins: Plugins,
    /// Short runs, which is also what happens without --full
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// The runs of docs/data/runs.toml, which take more than an hour
    #[arg(long)]
    full: bool,
    /// The directory for the report, report.md, with its figures and pictures
    #[arg(long, value_name = "DIR", default_value = "target/bench/all")]
    save: PathBuf,
}

/// Measures, and writes the report of what was measured.
///
/// # Errors
/// A benchmark that failed; the others are measured nevertheless.
pub(crate) fn run(args: &AllArgs) -> Result<()> {
    let dir = workspace::root().join(&args.save);
    files::create_dir(&dir)?;
    let runs = runs(args.full)?;
    // The directory is the user's: only what an earlier report left there goes.
    for run in &runs {
        run.forget(&dir)?;
    }
    let (begun, count) = (Instant::now(), runs.len());
    let mut failed = Vec::new();
    Runs::begin(&dir)?;
    for (number, run) in runs.iter().enumerate() {
        println!("\n{} of {count}, after {}: {}", number + 1, seconds(begun.elapsed()), run.command());
        if let Err(error) = run.measure(&dir, &options(&args.plugins, run)) {
            println!("not measured: {error}");
            failed.push(run.name().to_owned());
        }
    }
    files::write(dir.join(REPORT), figures::report(&dir)?)?;
    draw(&dir)?;
    println!("written: {}, after {}", dir.join(REPORT).display(), seconds(begun.elapsed()));
    if failed.is_empty() {
        return Ok(());
    }
    Err(Error::Failed(format!("not measured: {}", failed.join(", "))))
}

fn runs(is_full: bool) -> Result<Vec<Run>> {
    let commit = Sources::of_checkout().commit.unwrap_or_else(|| "with changes".to_owned());
    if !is_full {
        return Ok(QUICK.map(|(file, options)| Run::today(file, options, &commit)).into());
    }
    let listed = Runs::read(&workspace::root().join(figures::FOLDER))?;
    let today = |run: &Run| Run::today(run.file(), &without_sets(run.options().unwrap_or_default()), &commit);
    Ok(listed.of_benchmarks().map(today).collect())
}

/// The options without those that name the plugin sets: the caller's are used.
fn without_sets(options: &str) -> String {
    let words: Vec<&str> =
        options.split(' ').filter(|word| !["--static", "--fetch-peer"].contains(word)).collect();
    words.join(" ")
}

/// The caller's options that this benchmark knows.
fn options(plugins: &Plugins, run: &Run) -> Vec<OsString> {
    if run.file() == "cluster.json" { plugins.directory_option() } else { plugins.options() }
}

fn draw(dir: &Path) -> Result<()> {
    let mut plot = cargo(&["run", "--quiet", "--package", "xtask-bench", "--", "bench", "plot", "--data"]);
    run::show(plot.arg(dir).arg("--out").arg(dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bench, Task};
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(subcommand)]
        task: Task,
    }

    /// Short and long runs have the same files, as far as both make them, and options that their benchmarks know.
    #[test]
    fn short_runs_are_short_forms_of_the_long_ones() {
        let (short, long) = (runs(false).unwrap(), runs(true).unwrap());
        for run in &short {
            let same = long.iter().find(|one| one.file() == run.file());
            let same = same.unwrap_or_else(|| panic!("{} is no file of docs/data", run.file()));
            assert_eq!(run.is_burst(), same.is_burst());
        }
        for run in short.iter().chain(&long) {
            let words = ["xtask", "bench"].into_iter().chain(run.options().unwrap().split(' '));
            let parsed =
                Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{}: {error}", run.command()));
            assert!(
                matches!(parsed.task, Task::Bench(crate::BenchArgs { one: Some(_), .. })),
                "{}",
                run.command()
            );
        }
        assert!(
            matches!(Cli::parse_from(["xtask", "bench", "plot"]).task, Task::Bench(args) if matches!(args.one, Some(Bench::Plot(_))))
        );
        assert!(Cli::try_parse_from(["xtask", "bench", "--quick", "--full"]).is_err());
    }

    #[test]
    fn files_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["control.json", "mine.json"] {
            std::fs::write(dir.path().join(name), "{}").unwrap();
        }
        for run in runs(false).unwrap() {
            run.forget(dir.path()).unwrap();
        }
        assert!(!dir.path().join("control.json").exists() && dir.path().join("mine.json").exists());
    }

    #[test]
    fn a_report_names_what_was_not_measured() {
        let dir = tempfile::tempdir().unwrap();
        let data = workspace::root().join(figures::FOLDER);
        for name in ["runs.toml", "control.json", "runtime.json"] {
            std::fs::copy(data.join(name), dir.path().join(name)).unwrap();
        }
        let report = figures::report(dir.path()).unwrap();
        assert!(report.contains("## Callers\n\nOne pod, medians of"), "{report}");
        assert!(report.contains("## Many Nodes\n\nNot measured: read "), "{report}");
        assert!(report.contains("- control: ADD p50 with 1000 pods to that with 0: "), "{report}");
    }
}
