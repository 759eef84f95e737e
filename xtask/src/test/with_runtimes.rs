// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask test --runtimes`: the tests with real runtimes, packages and the newest reference plugins.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use super::{
    Args, NETWORK_TESTS, empty_file, expected, lines_of, none_is_no_proof, plugin_dir, quiet, references,
    result, site, some, tests, with_filter,
};
use crate::build::{self, Flavour};
use crate::delegate::Crate;
use crate::ebpf;
use crate::setup;
use xtask_base::error::{Error, Result};
use xtask_base::progress::Stages;
use xtask_base::run::{self, cargo};
use xtask_base::workspace;
use xtask_downloads::kube;
use xtask_downloads::reference::{self, Reference};
use xtask_downloads::runtimes::Runtimes;

/// The suites with tests that call the reference plugins, and words of those tests' names.
const REFERENCE_TESTS: (&[&str], &[&str]) = (
    &["cnitool", "gc", "host_device", "host_local", "iptables", "keys", "migrate", "static"],
    &["reference", "switched_over", "both_implementations", "each_side_removes"],
);

/// The real runtimes, with the static release build: their libraries may be those of another distribution.
pub(super) fn run(args: &Args, stages: &Stages) -> Result<String> {
    if !Uid::effective().is_root() {
        return Err(Error::Failed(
            "runtimes make control groups and devices: run `sudo --preserve-env=PATH,HOME cargo xtask test \
             --runtimes`"
                .to_owned(),
        ));
    }
    stages.run("setup", |_| setup::ensure())?;
    stages.run("BPF programs", |log| ebpf::ensure(|command| run::log(command, &log.file)))?;
    let mut fetched = Runtimes::default();
    stages.run("runtimes", |log| {
        fetched = Runtimes::fetch(log)?;
        Ok(fetched.versions())
    })?;
    for reason in fetched.missing() {
        if args.require {
            return Err(Error::Failed(reason));
        }
        println!("  SKIP  {reason}");
    }
    let kube = kube::provide(false, stages, false)?;
    let mut bin_dir = PathBuf::new();
    stages.run("build", |log| {
        quiet(Flavour::Static.cargo_build()?, log)?;
        quiet(Flavour::Static.cargo_build_agent()?, log)?;
        bin_dir = plugin_dir(Flavour::Static, log)?;
        build::size(&Flavour::Static.binary())
    })?;
    let mut packages = PathBuf::new();
    stages.run("packages", |log| {
        packages = result(&mut Crate::Dist.cargo_run("test-packages"), log)?.into();
        Ok("each in two versions".to_owned())
    })?;
    let suite = ["test", "--package", NETWORK_TESTS, "--test", "real", "--test", "packages"];
    stages.run("build tests", |log| quiet(cargo(&[&suite[..], &["--no-run"]].concat()), log))?;
    let skips = empty_file("skips.txt")?;
    stages.run("tests", |log| {
        let mut command = cargo(&[&suite[..], &["--no-fail-fast"]].concat());
        command.env("SLIPWAY_BIN_DIR", &bin_dir).env("SLIPWAY_SKIPS", &skips);
        command.env("SLIPWAY_RUNTIMES", fetched.dir()).env("SLIPWAY_PACKAGES", &packages);
        command.envs(kube.iter().map(|dir| (kube::VARIABLE, dir)));
        let count = tests(with_filter(command, args), log)?;
        none_is_no_proof(count)?;
        Ok(some(count))
    })?;
    if args.filter.is_none() {
        site(&["--browser"], args, stages)?;
    }
    let reference =
        if args.filter.is_none() { compare(args, stages, &bin_dir, &skips)? } else { Reference::none() };
    let seen = lines_of(&skips)?;
    let explained = |line: &str| {
        fetched.explains(line)
            || reference.explains(line)
            || kube.is_none() && line.ends_with(": skipped: needs kube-apiserver")
    };
    let listed = lines_of(&workspace::root().join("tests/skips.txt"))?;
    expected(&seen, &allowed(&seen, listed, explained))?;
    Ok(if seen.is_empty() { String::new() } else { format!("; {} tests skipped, see above", seen.len()) })
}

/// The network tests that call the reference plugins, with the newest of these.
fn compare(args: &Args, stages: &Stages, bin_dir: &Path, skips: &Path) -> Result<Reference> {
    let reference = references(stages, &[reference::NEWEST], args.require)?;
    let programs = REFERENCE_TESTS.0.iter().flat_map(|name| ["--test", name]);
    let compared: Vec<&str> = ["test", "--package", NETWORK_TESTS].into_iter().chain(programs).collect();
    stages.run("build comparisons", |log| quiet(cargo(&[&compared[..], &["--no-run"]].concat()), log))?;
    stages.run("comparisons", |log| {
        let mut command = cargo(&[&compared[..], &["--no-fail-fast", "--"], REFERENCE_TESTS.1].concat());
        command.env("SLIPWAY_BIN_DIR", bin_dir).env("SLIPWAY_SKIPS", skips).envs([reference.variable()]);
        let count = tests(command, log)?;
        none_is_no_proof(count)?;
        Ok(some(count))
    })?;
    Ok(reference)
}

/// The skips that the tests of runtimes may have: those that a failed download causes, and those of the other tests'
/// list that no download would prevent.
fn allowed(
    seen: &BTreeSet<String>,
    listed: BTreeSet<String>,
    explained: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let fetched = |line: &str| {
        ["real::", "packages::"].iter().any(|suite| line.starts_with(suite)) || reference::is_needed(line)
    };
    let others = listed.into_iter().filter(|line| !fetched(line));
    seen.iter().filter(|line| explained(line)).cloned().chain(others).collect()
}

#[cfg(test)]
mod tests_of_skips {
    use super::*;

    fn set<const N: usize>(lines: [&str; N]) -> BTreeSet<String> {
        lines.map(str::to_owned).into()
    }

    #[test]
    fn what_was_fetched_for_a_test_is_no_reason_to_skip_it() {
        let runtime = "real::podman::a_reboot: skipped: needs podman of Debian bookworm";
        let reference = "gc::chains_of_the_reference: skipped: needs the reference plugins";
        let kernel = "migrate::programs::x: skipped: needs vrf";
        let all = set([runtime, reference, kernel]);
        assert_eq!(allowed(&all, all.clone(), |_| false), set([kernel]));
        let explained = |line: &str| line == runtime;
        assert_eq!(allowed(&all, all.clone(), explained), set([kernel, runtime]));
        assert!(none_is_no_proof(0).is_err() && none_is_no_proof(1).is_ok());
    }
}
