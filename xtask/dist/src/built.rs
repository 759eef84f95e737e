// SPDX-License-Identifier: MIT OR Apache-2.0

//! The binaries that are shipped, and what they print about themselves.

use std::path::PathBuf;
use std::process::Command;

use xtask::{build, manual};
use xtask_base::error::Result;
use xtask_base::progress::Log;
use xtask_base::{run, workspace};

use crate::toolchain::{Library, Toolchain};

/// The binaries. Each is built by itself: in one build they would share the features of their dependencies.
pub(crate) const PROGRAMS: [Program; 2] = [
    Program { name: "slipway", package: "cni/slipway", limit: 7_000_000 },
    Program { name: "slipwayd", package: "cni/node", limit: 11_000_000 },
];

/// A binary, by the name of its package.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The folder of its package.
    pub(crate) package: &'static str,
    /// The most that it may take on a node's disk, in bytes.
    pub(crate) limit: u64,
}

/// The binaries, and what a list of their parts needs to know.
#[derive(Debug)]
pub(crate) struct Built {
    /// The binaries with their paths.
    pub(crate) programs: Vec<(Program, PathBuf)>,
    /// The folder with their manual pages and completions.
    pub(crate) share: PathBuf,
    /// The target, as the compiler calls it.
    pub(crate) triple: String,
    /// The C libraries in the binaries.
    pub(crate) libraries: Vec<Library>,
    /// The plugins' names, as `slipway plugins` prints them.
    pub(crate) plugins: Vec<String>,
    /// slipwayd's systemd unit, as `slipwayd render` prints it.
    pub(crate) unit: String,
}

impl Built {
    /// Lets the programs write and print what belongs to them.
    pub(crate) fn of(
        toolchain: &Toolchain,
        programs: [(Program, PathBuf); 2],
        share: PathBuf,
        log: &Log,
    ) -> Result<Self> {
        workspace::remove(&share)?;
        for (_, path) in &programs {
            run::log(&mut toolchain.call(manual::write(path, &share)), &log.file)?;
        }
        let print = |(_, path): &(Program, PathBuf), words: &[&str]| {
            let mut command = Command::new(path);
            command.args(words);
            run::capture(&mut toolchain.call(command))
        };
        let [plugins, agent] = &programs;
        // A line per plugin: its name, and what it does.
        let table = print(plugins, &["plugins"])?;
        let names = table.lines().filter_map(|line| line.split_whitespace().next());
        Ok(Self {
            plugins: names.map(str::to_owned).collect(),
            unit: print(agent, &["render", "systemd"])?,
            programs: programs.into(),
            share,
            triple: toolchain.triple(),
            libraries: toolchain.libraries()?,
        })
    }

    /// The static binaries that `cargo build` has left in the target folder, for tests of packages.
    pub(crate) fn in_target(share: PathBuf, log: &Log) -> Result<Self> {
        let [plugins, agent] = PROGRAMS;
        let flavour = build::Flavour::Static;
        Self::of(&Toolchain::Own, [(plugins, flavour.binary()), (agent, flavour.agent())], share, log)
    }
}
