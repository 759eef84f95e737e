// SPDX-License-Identifier: GPL-3.0-or-later

//! A run with libFuzzer, by cargo-fuzz.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use slipway_fuzz_targets::campaign::Campaign;
use slipway_fuzz_targets::{Target, corpus};
use xtask_base::error::{Error, Result};
use xtask_base::run::{capture, tool};
use xtask_base::workspace;

use crate::built_in;
use crate::report::Report;

/// The binary in `tests/fuzz`, and the variable that names its target.
const BINARY: &str = "any";
const VARIABLE: &str = "SLIPWAY_FUZZ_TARGET";
/// The longest input, in bytes.
const LONGEST: &str = "-max_len=8192";

/// cargo-fuzz.
#[derive(Debug)]
pub(crate) struct LibFuzzer {
    version: String,
}

/// cargo-fuzz, if it is installed next to a nightly compiler.
pub(crate) fn find() -> Option<LibFuzzer> {
    let version = capture(&mut tool("rustup", &["run", "nightly", "cargo", "fuzz", "--version"])).ok()?;
    Some(LibFuzzer { version: version.trim().to_owned() })
}

impl LibFuzzer {
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Runs a target for a time. What libFuzzer has kept is in `tests/fuzz/corpus`.
    pub(crate) fn run(&self, target: &'static Target, time: Duration, adds_seeds: bool) -> Result<Report> {
        let fuzz = workspace::root().join("tests/fuzz");
        let (kept, artifacts) =
            (fuzz.join("corpus").join(target.name), fuzz.join("artifacts").join(target.name));
        for folder in [&kept, &artifacts] {
            fs::create_dir_all(folder).map_err(|e| Error::file("create", folder, e))?;
        }
        let mut command = self.command(&fuzz, target);
        command.arg(&kept).arg(corpus::folder().join(target.name)).arg("--");
        command.args([LONGEST, "-print_final_stats=1", "-timeout=10"]);
        command.arg(format!("-max_total_time={}", time.as_secs().max(1)));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        let output = command.output().map_err(|e| Error::system("start cargo fuzz", e))?;
        let printed = String::from_utf8_lossy(&output.stderr);
        let mut findings = findings(&printed);
        if !output.status.success() && findings.is_empty() {
            let last = printed.lines().last().unwrap_or_default();
            findings.push(format!("cargo fuzz ended with {}: {last}", output.status));
        }
        let new_seeds = if adds_seeds { add(target, &kept)? } else { 0 };
        let number = |name| number_after(&printed, name);
        let report = Report {
            target,
            inputs: number("stat::number_of_executed_units:").unwrap_or_default(),
            per_second: number("stat::average_exec_per_sec:").unwrap_or_default(),
            reached: number(" cov: "),
            new_seeds,
            findings,
        };
        report.print();
        Ok(report)
    }

    fn command(&self, fuzz: &Path, target: &Target) -> Command {
        let mut command = tool("rustup", &["run", "nightly", "cargo", "fuzz", "run", "--fuzz-dir"]);
        command.arg(fuzz).arg(BINARY).env(VARIABLE, target.name).current_dir(workspace::root());
        command
    }
}

/// Adds those inputs to the committed seeds whose results have new shapes.
fn add(target: &'static Target, kept: &Path) -> Result<usize> {
    let mut campaign = Campaign::new(target, built_in::seeds(target)?, 0);
    let found = corpus::seeds(kept.parent().unwrap_or(kept), target);
    campaign.offer(found.map_err(|e| Error::file("read", kept, e))?);
    built_in::add(target, &campaign)
}

/// The panics and sanitizers' reports that libFuzzer printed, and the files with their inputs.
fn findings(printed: &str) -> Vec<String> {
    let is_finding = |line: &&str| {
        line.contains(" panicked at ")
            || line.starts_with("==") && line.contains("ERROR: ")
            || line.contains("Test unit written to ")
    };
    printed.lines().filter(is_finding).map(str::to_owned).collect()
}

/// The number after the last occurrence of a text.
fn number_after(printed: &str, text: &str) -> Option<u64> {
    let (_, rest) = printed.rsplit_once(text)?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_findings_are_read_from_what_libfuzzer_prints() {
        let printed = "#2\tINITED cov: 12 ft: 13 corp: 1/1b\n#99\tDONE   cov: 345 ft: 400\n\
                       thread '<unnamed>' (7) panicked at cni/a.rs:1:2:\nno\n\
                       ==7== ERROR: libFuzzer: deadly signal\n\
                       artifact_prefix='a/'; Test unit written to a/crash-1\n\
                       stat::number_of_executed_units: 99\nstat::average_exec_per_sec:     33\n";
        assert_eq!(number_after(printed, " cov: "), Some(345));
        assert_eq!(number_after(printed, "stat::average_exec_per_sec:"), Some(33));
        assert_eq!(number_after(printed, "stat::peak_rss_mb:"), None);
        assert_eq!(findings(printed).len(), 3);
        assert!(findings("#99\tDONE cov: 345\n").is_empty());
    }
}
