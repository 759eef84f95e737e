// SPDX-License-Identifier: GPL-3.0-or-later

//! The report of a run about each target.

use std::fs;
use std::path::PathBuf;

use slipway_fuzz_targets::{Target, corpus};
use xtask_base::error::{Error, Result};
use xtask_base::workspace;

/// The inputs of one target.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) target: &'static Target,
    pub(crate) inputs: u64,
    pub(crate) per_second: u64,
    /// Covered edges, or different results; none if the program did not say.
    pub(crate) reached: Option<u64>,
    pub(crate) new_seeds: usize,
    /// A line for each.
    pub(crate) findings: Vec<String>,
}

impl Report {
    pub(crate) fn print_header(reached: &str) {
        println!(
            "{:22} {:>10} {:>9} {reached:>8} {:>6} {:>9}",
            "target", "inputs", "per s", "seeds", "findings"
        );
    }

    pub(crate) fn print(&self) {
        let reached = self.reached.map_or_else(|| "-".to_owned(), |reached| reached.to_string());
        println!(
            "{:22} {:>10} {:>9} {reached:>8} {:>6} {:>9}",
            self.target.name,
            self.inputs,
            self.per_second,
            format!("+{}", self.new_seeds),
            self.findings.len()
        );
        for finding in &self.findings {
            println!("    {finding}");
        }
    }
}

/// Writes the input of a finding to `tests/fuzz/artifacts`.
pub(crate) fn write_artifact(target: &Target, input: &[u8]) -> Result<PathBuf> {
    let folder = workspace::root().join("tests/fuzz/artifacts").join(target.name);
    fs::create_dir_all(&folder).map_err(|e| Error::file("create", &folder, e))?;
    let path = folder.join(corpus::name(input));
    fs::write(&path, input).map_err(|e| Error::file("write", &path, e))?;
    Ok(path)
}

/// Fails if there are findings.
pub(crate) fn verdict(reports: &[Report]) -> Result<()> {
    let inputs: u64 = reports.iter().map(|report| report.inputs).sum();
    let seeds: usize = reports.iter().map(|report| report.new_seeds).sum();
    let findings: usize = reports.iter().map(|report| report.findings.len()).sum();
    println!("{} targets, {inputs} inputs, {seeds} new seeds, {findings} findings", reports.len());
    match findings {
        0 => Ok(()),
        number => Err(Error::Failed(format!("{number} findings: their inputs are in tests/fuzz/artifacts"))),
    }
}
