// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask bench`: plugin sets measured side by side in one run; `cargo xtask figures`: what the pages show of it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod all;
mod burst;
mod cluster;
mod compare;
mod contender;
mod control;
mod figures;
mod floor;
mod goal;
mod measure;
mod memory;
mod output;
mod plot;
mod process;
mod report;
mod runtime;
mod sets;
mod statistics;
mod table;
mod trace;
mod traffic;

use std::path::PathBuf;
use std::process::ExitCode;

use sets::Plugins;
use xtask::task::{self, Tasks};
use xtask_base::error::Result;

#[derive(Debug, clap::Subcommand)]
#[expect(clippy::large_enum_variant, reason = "one value in the life of the process")]
enum Task {
    /// Measure plugin sets side by side
    Bench(BenchArgs),
    /// Write the tables of figures in the README and in docs from the data in docs/data
    Figures(figures::Args),
}

/// Measure plugin sets side by side: one benchmark, or without a command all of them, into one report.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct BenchArgs {
    #[command(subcommand)]
    one: Option<Bench>,
    #[command(flatten)]
    all: all::AllArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Bench {
    /// ADD and DEL of bridge + host-local + portmap (3 ports, ipMasq), as whole processes
    Control(ControlArgs),
    /// Cost of a packet: TCP_STREAM, TCP_RR and TCP_CRR by the number of published ports
    Traffic(traffic::TrafficArgs),
    /// ADD and DEL through the library, cnitool, slipwayd and the reference's cnitool; many pods; changed files
    Runtime(runtime::RuntimeArgs),
    /// slipwayd with many Nodes: first synchronization, memory, CPU at rest and with heartbeats, time to a changed route
    Cluster(cluster::ClusterArgs),
    /// Compare two saved runs of `control`, with a verdict where their spread allows one
    Compare(compare::CompareArgs),
    /// Draw the figures that a run saved
    Plot(plot::PlotArgs),
}

/// Measure ADD and DEL of whole processes: wall clock, CPU, memory, programs started.
///
/// Each contender has its own node (a network namespace) and its state on a real disk. The operations of
/// contenders alternate, so that other load affects all alike. Pods that are present were attached by real
/// ADDs of the contender.
#[derive(Debug, clap::Args)]
pub(crate) struct ControlArgs {
    #[command(flatten)]
    plugins: Plugins,
    /// Numbers of pods that are present, one after the other
    #[arg(long, value_delimiter = ',', default_value = "0,100,1000", value_name = "N,N,…",
          value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pods: Vec<u32>,
    /// Measure the eBPF backend, too
    #[arg(long)]
    ebpf: bool,
    /// Also compare with an older version in this directory, with the iptables backend
    #[arg(long, value_name = "DIR")]
    older_peer: Option<PathBuf>,
    /// Rules of another engine in each node's nat table of iptables, in chains of twenty, as of kube-proxy
    #[arg(long, default_value_t = 0, value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    foreign_rules: u32,
    /// The nodes' variant of iptables, also for those rules
    #[arg(long, default_value = "nft", value_parser = ["nft", "legacy"])]
    iptables: String,
    /// ADDs and DELs of each contender at each number of pods (20), or its bursts (5)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: Option<u32>,
    /// Measure bursts: so many pods at once, with one port each
    #[arg(long, value_name = "N", conflicts_with_all = ["foreign_rules", "older_peer"],
          value_parser = clap::value_parser!(u32).range(1..=500))]
    burst: Option<u32>,
    /// Callers of a burst at a time
    #[arg(long, requires = "burst", default_value_t = 32, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=512))]
    callers: u16,
    /// Flows that each node's conntrack has before the bursts
    #[arg(long, requires = "burst", default_value_t = 0, value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=260_000))]
    conntrack: u32,
    /// Also write the figures to this directory, as control.json and control.csv, or burst.json
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

impl Tasks for Task {
    fn run(self) -> Result<()> {
        match self {
            Self::Bench(BenchArgs { one: Some(bench), .. }) => run(&bench),
            Self::Bench(BenchArgs { one: None, all }) => all::run(&all),
            Self::Figures(args) => figures::run(&args),
        }
    }
}

fn main() -> ExitCode {
    task::main::<Task>("bench")
}

fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Control(args) => match args.burst {
            Some(pods) => burst::run(args, pods),
            None => control::run(args),
        },
        Bench::Traffic(args) => traffic::run(args),
        Bench::Runtime(args) => runtime::run(args),
        Bench::Cluster(args) => cluster::run(args),
        Bench::Compare(args) => compare::run(args),
        Bench::Plot(args) => plot::run(args),
    }
}
