// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask`: the tasks that everybody runs: setup, build, ebpf, test, demo, install. `cargo xtask help` lists them.
//!
//! The other tasks are crates of their own, so that a first `cargo xtask demo` need not compile them: [`delegate`] builds
//! and starts these. What all tasks share is in `xtask-base` and `xtask-downloads`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

pub mod build;
pub mod cni;
mod delegate;
mod demo;
pub mod ebpf;
mod failures;
mod full;
pub mod install;
pub mod manual;
mod pool;
pub mod sandbox;
mod serve;
pub mod setup;
pub mod task;
mod test;
mod torture;

use std::process::ExitCode;

use xtask_base::error::Result;

use delegate::Crate;
use task::Tasks;

#[derive(Debug, clap::Subcommand)]
enum Task {
    /// Install what this machine lacks to build, test and show Slipway
    Setup(setup::Args),
    /// Build the slipway binary
    Build(build::Args),
    /// Build the BPF programs that the binary carries
    Ebpf(ebpf::Args),
    /// Run everything that must pass: format, lints, build, unit tests, network tests, documentation
    Test(test::Args),
    /// Disturb Slipway in every way that its reliability is about, and print what that found
    Torture(torture::Args),
    /// Show two pods and a published port, with a real request for each claim; nftables, then eBPF
    Demo(demo::Args),
    /// Run the test suites on other kernels, in virtual machines
    #[command(disable_help_flag = true)]
    VmTest(delegate::Args),
    /// Feed mutated inputs to the parsers of foreign bytes
    #[command(disable_help_flag = true)]
    Fuzz(delegate::Args),
    /// Measure against other plugin sets (builds the benchmarks first)
    #[command(disable_help_flag = true)]
    Bench(delegate::Args),
    /// Write the tables of figures in the README and in docs from the data in docs/data
    #[command(disable_help_flag = true)]
    Figures(delegate::Args),
    /// Build the binary that is shipped and check its properties
    #[command(disable_help_flag = true)]
    Dist(delegate::Args),
    /// Build and check what is published for a version; tagging and signing are left to the releaser
    #[command(disable_help_flag = true)]
    Release(delegate::Args),
    /// Write the manual pages and completions of `slipway` and `slipwayd`
    Manual(manual::Args),
    /// Build for release and install the binary with a link per plugin
    Install(install::Args),
    /// Remove what `install` installed and restore what it replaced
    Uninstall(install::UninstallArgs),
    /// Render the documentation as a site with search, which needs no server
    #[command(disable_help_flag = true)]
    Docs(delegate::Args),
    #[command(hide = true)]
    Serve(serve::Args),
}

impl Tasks for Task {
    fn run(self) -> Result<()> {
        match self {
            Self::Setup(args) => setup::run(&args),
            Self::Build(args) => build::run(&args),
            Self::Ebpf(args) => ebpf::run(&args),
            Self::Test(args) => test::run(&args),
            Self::Torture(args) => torture::run(&args),
            Self::Demo(args) => demo::run(&args),
            Self::VmTest(args) => delegate::run(Crate::Vm, "vm-test", &args),
            Self::Fuzz(args) => delegate::run(Crate::Fuzz, "fuzz", &args),
            Self::Bench(args) => delegate::run(Crate::Bench, "bench", &args),
            Self::Figures(args) => delegate::run(Crate::Bench, "figures", &args),
            Self::Dist(args) => delegate::run(Crate::Dist, "dist", &args),
            Self::Release(args) => delegate::run(Crate::Dist, "release", &args),
            Self::Manual(args) => manual::run(&args),
            Self::Install(args) => install::run(&args),
            Self::Uninstall(args) => install::run_uninstall(&args),
            Self::Docs(args) => delegate::run(Crate::Docs, "docs", &args),
            Self::Serve(args) => serve::run(&args),
        }
    }
}

pub fn command() -> clap::Command {
    task::command::<Task>()
}

pub fn main() -> ExitCode {
    task::main::<Task>("xtask")
}
