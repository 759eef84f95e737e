// SPDX-License-Identifier: MIT OR Apache-2.0

//! Single parts of a run, for jobs of continuous integration.

use std::sync::mpsc;

use xtask_base::error::Result;
use xtask_base::progress::Stages;
use xtask_base::run::{self, cargo};

use super::{
    Args, demo, documentation, lints, machines, new_seed, none_is_no_proof, prepare, quiet,
    rebuild_bpf_programs, unit_tests,
};
use crate::pool::Which;

/// A part of the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Part {
    /// Format, lints, dependencies, and the rebuild of the BPF programs
    Lints,
    /// Unit tests
    Unit,
    /// Network tests, and the pages, which need the built programs
    Network,
    /// A sample of the network tests on another kernel, in virtual machines
    Kernels,
}

/// The parts that were asked for, in the order of a whole run.
pub(super) fn run(args: &Args, stages: &Stages) -> Result<String> {
    let mut parts = args.only.clone();
    parts.sort();
    parts.dedup();
    let seed = args.seed.unwrap_or_else(new_seed);
    let mut skipped = String::new();
    for part in parts {
        match part {
            Part::Lints => {
                stages.run("format", |log| quiet(cargo(&["fmt", "--check"]), log))?;
                rebuild_bpf_programs(stages)?;
                lints(args, stages)?;
            }
            Part::Unit => none_is_no_proof(unit_tests(args, stages)?)?,
            Part::Network => {
                let ready = prepare(args, &[], seed, stages)?;
                let mut passed = 0;
                for which in [Which::Pooled, Which::Heavy, Which::Alone] {
                    passed += ready.tests(which, args.repeat, stages)?;
                }
                none_is_no_proof(passed)?;
                demo(stages)?;
                documentation(stages)?;
                skipped += &ready.skips(stages)?;
            }
            Part::Kernels => {
                stages.run("build", |log| {
                    run::log(&mut cargo(&["build", "--package", "xtask-vm"]), &log.file)?;
                    Ok(String::new())
                })?;
                // Nothing else runs for which the VMs would have to wait.
                let (done, wait) = mpsc::channel();
                drop(done);
                skipped += &machines::run(args, Some(seed), stages, &wait)?;
            }
        }
    }
    Ok(skipped)
}
