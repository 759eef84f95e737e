// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks of other crates.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use xtask_base::error::{Error, Result};
use xtask_base::run;
use xtask_base::workspace;

/// A crate with tasks. Its binary has the name of the package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crate {
    Bench,
    Dist,
    Docs,
    Fuzz,
    Vm,
}

impl Crate {
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Bench => "xtask-bench",
            Self::Dist => "xtask-dist",
            Self::Docs => "xtask-docs",
            Self::Fuzz => "xtask-fuzz",
            Self::Vm => "xtask-vm",
        }
    }

    /// The command that builds the crate and runs one of its tasks.
    pub(crate) fn cargo_run(self, task: &str) -> Command {
        let mut command = run::cargo(&["run", "--quiet", "--package", self.package(), "--manifest-path"]);
        command.arg(workspace::root().join("Cargo.toml")).args(["--", task]);
        command
    }

    /// The command that runs one of its tasks, where the binary is built already.
    pub(crate) fn built(self, task: &str) -> Command {
        let program = workspace::target().join("debug").join(self.package());
        let mut command = run::tool(&program.to_string_lossy(), &[task]);
        command.current_dir(workspace::root());
        command
    }
}

/// Options that the other crate reads.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The options of the task; `--help` explains them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Builds the crate with the task and becomes that.
pub(crate) fn run(package: Crate, task: &str, args: &Args) -> Result<()> {
    let mut command = package.cargo_run(task);
    // Paths among the options are relative to the folder in which the user typed them.
    command.current_dir(env::current_dir().map_err(|e| Error::system("find the current folder", e))?);
    command.args(&args.arguments);
    Err(Error::system(run::line(&command), command.exec()))
}
