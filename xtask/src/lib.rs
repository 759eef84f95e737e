// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tasks of the workspace: `cargo xtask help` lists them.
//!
//! Public items are those that the benchmarks, a crate of their own, use too.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod apt_root;
mod bench;
pub mod build;
pub mod cni;
mod crates;
mod debian_root;
mod demo;
mod deny;
mod dist;
mod docs;
mod docs_check;
mod ebpf;
pub mod error;
mod failures;
mod figures;
mod full;
pub mod install;
pub mod kube;
mod licenses;
mod links;
mod manual;
mod packages;
mod pool;
pub mod progress;
pub mod reference;
mod release;
pub mod run;
pub mod runtimes;
pub mod sandbox;
mod serve;
mod setup;
mod shells;
mod test;
mod test_programs;
mod tools;
mod vm_test;
mod words;
pub mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, tests, shows, measures and installs Slipway.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install what this machine lacks to build, test and show Slipway
    Setup(setup::Args),
    /// Build the slipway binary
    Build(build::Args),
    /// Build the BPF programs that the binary carries
    Ebpf(ebpf::Args),
    /// Run everything that must pass: format, lints, build, unit tests, network tests, documentation
    Test(test::Args),
    /// Show two pods and a published port, with a real request for each claim; nftables, then eBPF
    Demo(demo::Args),
    /// Run the test suites on other kernels, in virtual machines
    VmTest(vm_test::Args),
    /// Measure against other plugin sets (builds the benchmarks first)
    #[command(disable_help_flag = true)]
    Bench(bench::Args),
    /// Write the tables of the README and of docs/benchmarks.md from the figures in docs/data
    Figures(figures::Args),
    /// Build the binary that is shipped and check its properties
    Dist(dist::Args),
    /// Build and check what is published for a version; tagging and signing are left to the releaser
    Release(release::Args),
    /// Write the manual pages and completions of `slipway` and `slipwayd`
    Manual(manual::Args),
    /// Build for release and install the binary with a link per plugin
    Install(install::Args),
    /// Remove what `install` installed and restore what it replaced
    Uninstall(install::UninstallArgs),
    /// Render the documentation as a site with search, which needs no server
    Docs(docs::Args),
    /// Look for words and forms that the project does not use
    Words(words::Args),
    #[command(hide = true)]
    Serve(serve::Args),
}

/// Runs the task that the command line names.
pub fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Setup(args) => setup::run(&args),
        Task::Build(args) => build::run(&args),
        Task::Ebpf(args) => ebpf::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::VmTest(args) => vm_test::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Figures(args) => figures::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Release(args) => release::run(&args),
        Task::Manual(args) => manual::run(&args),
        Task::Install(args) => install::run(&args),
        Task::Uninstall(args) => install::run_uninstall(&args),
        Task::Docs(args) => docs::run(&args),
        Task::Words(args) => words::run(&args),
        Task::Serve(args) => serve::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}
