// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask demo --cluster`: a cluster of three nodes with kubelets. The suite `kubelets` makes it and proves the claims;
//! here its records are shown.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::Uid;
use serde::Deserialize;

use super::screen::Screen;
use crate::build::Flavour;
use crate::ebpf;
use crate::setup;
use crate::test;
use xtask_base::error::{Error, Result};
use xtask_base::progress::{Log, Stages, seconds};
use xtask_base::run;
use xtask_base::test_programs::{self, TestProgram};
use xtask_base::workspace;
use xtask_downloads::kube;
use xtask_downloads::runtimes;

/// The suite, and its test that is a demonstration.
const SUITE: &str = "kubelets";
const TEST: &str = "demo::demonstration";

/// Precedes a record in the suite's output: the record separator of RFC 7464.
const MARK: char = '\u{1e}';

/// The number of requests that are shown for a claim.
const SHOWN: usize = 6;

/// A record of the suite.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
enum Record {
    Claim { claim: String, holds: bool, ms: u64 },
    Step { step: String, ms: u64 },
    Request { from: String, to: String, answer: String },
    Title { title: String },
}

/// Builds and fetches all that the cluster needs, and shows it.
pub(super) fn run() -> Result<()> {
    if !Uid::effective().is_root() {
        return Err(Error::Failed(
            "nodes make control groups and devices: run `sudo --preserve-env=PATH,HOME cargo xtask demo --cluster`"
                .to_owned(),
        ));
    }
    let stages = Stages::new("demo")?;
    stages.run("setup", |_| setup::ensure())?;
    stages.run("BPF programs", |log| ebpf::ensure(|command| run::log(command, &log.file)))?;
    let missing = |what: &str| Error::Failed(format!("no {what}"));
    let kube = kube::provide(true, &stages, true)?.ok_or_else(|| missing("Kubernetes' programs"))?;
    let packages = runtimes::for_nodes(true, &stages, true)?.ok_or_else(|| missing("containerd"))?;
    let mut command = Command::new("");
    stages.run("build", |log| {
        command = suite(log)?;
        Ok(String::new())
    })?;
    command.env(kube::VARIABLE, kube).env(runtimes::NODE_VARIABLE, packages);
    let begun = Instant::now();
    show(&mut command)?;
    println!("\nEvery claim holds ({}).", seconds(begun.elapsed()));
    Ok(())
}

/// The demonstration's program, with the plugins of this workspace.
fn suite(log: &Log) -> Result<Command> {
    let programs = test_programs::build(&[SUITE.to_owned()], &["slipway", "slipwayd"], log)?;
    let is_suite = |program: &&TestProgram| program.name == SUITE;
    let program = programs.iter().find(is_suite);
    let program = program.ok_or_else(|| Error::Failed(format!("cargo built no suite {SUITE}")))?;
    let mut command = Command::new(&program.path);
    command.args(["--ignored", "--exact", TEST, "--test-threads=1"]).current_dir(&program.package);
    command.env("SLIPWAY_BIN_DIR", test::plugin_dir(Flavour::Debug, log)?);
    Ok(command)
}

/// Runs the demonstration and prints its records. The logs of a failed one are in a file.
fn show(command: &mut Command) -> Result<()> {
    let path = workspace::scratch("logs")?.join("demo/cluster.log");
    let errors = File::create(&path).map_err(|e| Error::file("create", &path, e))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .map_err(|e| Error::system("start the demonstration", e))?;
    let screen = Screen::new();
    let mut shown = 0;
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        let line = line.map_err(|e| Error::system("read the demonstration's output", e))?;
        if let Some(record) = record(&line) {
            print(&screen, &record, &mut shown);
        }
    }
    let status = child.wait().map_err(|e| Error::system("wait for the demonstration", e))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Failed(format!("a claim does not hold: {}", path.display()))),
    }
}

/// The record of a line. libtest writes the test's name before the first.
fn record(line: &str) -> Option<Record> {
    serde_json::from_str(line.split_once(MARK)?.1).ok()
}

/// Prints a record. Requests precede their claim, and `shown` counts them.
fn print(screen: &Screen, record: &Record, shown: &mut usize) {
    match record {
        Record::Title { title } => screen.title(title),
        Record::Step { step, ms } => screen.note(&timed(step, *ms)),
        Record::Request { from, to, answer } => {
            *shown += 1;
            if *shown <= SHOWN {
                screen.asked(from, to, answer);
            }
        }
        Record::Claim { claim, holds, ms } => {
            if *shown > SHOWN {
                screen.note(&format!("and {} more requests", *shown - SHOWN));
            }
            *shown = 0;
            screen.verdict(&timed(claim, *ms), *holds);
        }
    }
}

/// A text, with its time if that is a second or more.
fn timed(text: &str, ms: u64) -> String {
    match ms {
        0..1000 => text.to_owned(),
        _ => format!("{text} ({})", seconds(Duration::from_millis(ms))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_in_the_output_of_a_test() {
        let claim = Record::Claim { claim: "a pod answers".to_owned(), holds: true, ms: 3 };
        let line = "test demo ... \u{1e}{\"claim\":\"a pod answers\",\"holds\":true,\"ms\":3}";
        assert_eq!(record(line), Some(claim));
        let step = Record::Step { step: "boot".to_owned(), ms: 3 };
        assert_eq!(record("\u{1e}{\"step\":\"boot\",\"ms\":3}"), Some(step));
        assert_eq!(record("{\"title\":\"no mark\"}"), None);
        assert_eq!(record("test result: ok."), None);
        assert_eq!((timed("boot", 999).as_str(), timed("boot", 1240).as_str()), ("boot", "boot (1.2 s)"));
    }
}
