// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask test`: everything that must pass, stage by stage.

mod machines;
mod parts;
mod with_runtimes;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::Uid;

use crate::build;
use crate::build::Flavour;
use crate::delegate::Crate;
use crate::ebpf;
use crate::failures;
use crate::full::{self, Sample};
use crate::pool::{Pool, Settings, Which};
use crate::setup;
use xtask_base::error::{Error, Result};
use xtask_base::progress::{Log, Stages, seconds};
use xtask_base::run::{self, cargo, tool};
use xtask_base::test_programs::{self, passed};
use xtask_base::workspace;
use xtask_downloads::kube;
use xtask_downloads::reference::{self, Reference};
use xtask_downloads::runtimes;
use xtask_downloads::shells;

/// The package of the network tests, which need root and the built binary.
const NETWORK_TESTS: &str = "slipway-tests";
pub(crate) const NETWORK_TESTS_FOLDER: &str = "tests";

/// The binaries that the tests call. Those of the tasks are built with the rest of the workspace, because a build of
/// their own would have other features of the dependencies.
pub(crate) const BINARIES: [&str; 6] =
    ["slipway", "slipwayd", "xtask-bench", "xtask-dist", "xtask-docs", "xtask-vm"];

/// The longest time in which a `cargo test` may print nothing. The harness ends each command after two minutes, and
/// libtest reports tests that take longer.
const SILENCE: Duration = Duration::from_secs(600);

/// The plain run tries one in this many of the points at which a call can be killed or fail.
const SAMPLE: u64 = 12;

/// The variables with the number of inputs that the tests with mutated input try, and that number with `--full`.
const MUTATED: [&str; 2] = ["SLIPWAY_MUTATED_NODES", "SLIPWAY_MUTATED_REPORTS"];
const MILLION: &str = "1000000";
/// The variable with the number of mutated inputs for each fuzz target, and that number with `--full`.
const FUZZED: (&str, &str) = ("SLIPWAY_MUTATED_INPUTS", "10000");

/// Seeds that a run chooses itself are below this number, so that they are short to type.
const SEEDS: u64 = 1000;

/// Run everything that must pass.
///
/// The network tests run in network namespaces that they create, and never touch the machine's network. They need
/// root; for another user they run inside a user namespace, where the system allows one. A few of them also run on
/// another kernel in a virtual machine; `vm-test` runs all tests, on more kernels.
///
/// Tests that kill a plugin at each of its system calls, or let each call fail, try a twelfth of these points. The
/// run prints the seed that chooses the points and the kernel. `--full` tries all points and kernels, as before a
/// release; `--full --list` prints which.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only format, lints and unit tests
    #[arg(long)]
    quick: bool,
    /// Only these parts, one after the other, so that a job of continuous integration says by its name what has failed
    #[arg(long, value_enum, value_name = "PART", num_args = 1.., conflicts_with_all = ["quick", "full", "runtimes", "kube", "suite", "filter"])]
    only: Vec<parts::Part>,
    /// Try every point and every kernel of the smoke tests, not a sample, and check the pages as a site
    #[arg(long, conflicts_with_all = ["quick", "seed"])]
    full: bool,
    /// Only print the tests and kernels of which a plain run tries a part
    #[arg(long, requires = "full", conflicts_with_all = ["filter", "suite", "repeat", "no_vm", "require", "runtimes"])]
    list: bool,
    /// Repeat the sample of an earlier run
    #[arg(long, value_name = "N", conflicts_with = "quick")]
    seed: Option<u64>,
    /// Only build, and run the tests whose names contain this; only one suite if it begins with the suite's name and ::
    #[arg(long, value_name = "TEXT", conflicts_with = "quick")]
    filter: Option<String>,
    /// Only build and run these suites of the network tests
    #[arg(long, value_name = "NAME", num_args = 1.., conflicts_with_all = ["quick", "runtimes"])]
    suite: Vec<String>,
    /// Run each network test so many times, to find tests that fail now and then
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["quick", "runtimes"])]
    repeat: usize,
    /// Leave out the virtual machine with another kernel
    #[arg(long)]
    no_vm: bool,
    /// Fail when a kernel, the emulator, the reference plugins or what `--kube` builds cannot be had, instead of skipping
    /// what needs them
    #[arg(long)]
    require: bool,
    /// Only the tests with podman, containerd, cnitool and the newest reference plugins, which are fetched and
    /// unpacked below target, and the pages as a site in a browser
    #[arg(long, conflicts_with_all = ["quick", "no_vm"])]
    runtimes: bool,
    /// Only the tests with Kubernetes' own programs. Missing programs are built from Debian 12's source package, below
    /// target: half an hour of CPU, 4 GB of disk space. containerd is fetched for its nodes
    #[arg(long, conflicts_with_all = ["quick", "runtimes"])]
    kube: bool,
}

impl Args {
    /// The suites that are run; empty for all.
    fn suites(&self) -> Vec<String> {
        let tests = workspace::root().join("tests/tests");
        let is_suite = |name: &str| {
            !name.is_empty()
                && (tests.join(name).join("main.rs").is_file() || tests.join(format!("{name}.rs")).is_file())
        };
        let of_filter = self.filter.as_deref().and_then(|text| text.split_once("::")).map(|(name, _)| name);
        let of_filter = of_filter.filter(|name| is_suite(name)).map(str::to_owned);
        let mut suites: Vec<String> = self.suite.iter().cloned().chain(of_filter).collect();
        if suites.is_empty() && self.kube {
            suites.extend(kube::SUITES.map(str::to_owned));
        }
        suites
    }

    /// True if only some tests are run.
    fn is_part(&self) -> bool {
        self.filter.is_some() || !self.suite.is_empty() || self.kube
    }
}

/// Runs the task.
///
/// # Errors
/// The stages that fail; all stages that do not need their results are run to their end.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.list {
        return full::list();
    }
    let stages = Stages::new("test")?;
    let outcome = if args.runtimes { with_runtimes::run(args, &stages) } else { run_stages(args, &stages) };
    let figures = format!("{}{}", stages.summary(), cpu());
    match &outcome {
        Ok(skipped) => println!("PASS: {figures}{skipped}"),
        Err(_) => println!("FAIL: {figures}"),
    }
    // The failures come after everything else that was printed, where people look first.
    let failures = stages.failures();
    outcome.map(|_| ()).map_err(|e| if failures.is_empty() { e } else { Error::Failed(failures.join("\n")) })
}

/// The processor time of all programs that were run, for people.
fn cpu() -> String {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return String::new() };
    let time = usage.user_time() + usage.system_time();
    let time = Duration::from_secs(u64::try_from(time.num_seconds()).unwrap_or_default());
    format!("; {} of CPU", seconds(time))
}

fn run_stages(args: &Args, stages: &Stages) -> Result<String> {
    stages.run("setup", |_| setup::ensure())?;
    stages.run("BPF programs", |log| ebpf::ensure(|command| run::log(command, &log.file)))?;
    if !args.only.is_empty() {
        return parts::run(args, stages);
    }
    if !args.is_part() {
        stages.run("format", |log| quiet(cargo(&["fmt", "--check"]), log))?;
    }
    if args.quick {
        rebuild_bpf_programs(stages)?;
        lints(args, stages)?;
        return unit_tests(args, stages).map(|_| String::new());
    }
    let seed = args.seed.unwrap_or_else(new_seed);
    if !args.full {
        println!("  seed {seed} (--seed {seed} repeats this run's sample, --full tries everything)");
    }
    let suites = args.suites();
    let ready = prepare(args, &suites, seed, stages)?;
    let (network_done, wait) = mpsc::channel::<()>();
    // Independent stages run at once. Cargo's own stages follow each other: they share a lock.
    let (unit, doc, machines, heavy, network) = thread::scope(|scope| {
        let cargo = scope.spawn(|| {
            // The tests are built; the lints then hold cargo's lock for long. A million mutated inputs are tried
            // later: the scheduler may let programs that only compute hold up all others, for many seconds.
            let unit = if suites.is_empty() && !args.full { unit_tests(args, stages) } else { Ok(0) };
            let rebuilt = if args.is_part() { Ok(()) } else { rebuild_bpf_programs(stages) };
            let linted = if args.is_part() { Ok(()) } else { lints(args, stages) };
            let doc = if args.is_part() { Ok(()) } else { documentation(stages) };
            let site = if args.full && !args.is_part() { site(&[], args, stages) } else { Ok(()) };
            (rebuilt.and(linted).and(unit), doc.and(site))
        });
        let machines = (!args.is_part() && !args.no_vm).then(|| {
            let seed = (!args.full).then_some(seed);
            scope.spawn(move || machines::run(args, seed, stages, &wait))
        });
        let heavy = scope.spawn(|| ready.tests(Which::Heavy, args.repeat, stages));
        let network = ready.tests(Which::Pooled, args.repeat, stages);
        let heavy = joined(heavy.join());
        // Nothing is sent, because the receiver only needs to see the end of the channel.
        drop(network_done);
        let (unit, doc) = joined(cargo.join());
        (unit, doc, machines.map(|thread| joined(thread.join())), heavy, network)
    });
    let unit =
        if args.full && suites.is_empty() { unit.and_then(|_| unit_tests(args, stages)) } else { unit };
    // The remaining tests measure, so they run after the others.
    let measured = (heavy.is_ok() && network.is_ok()).then(|| ready.tests(Which::Alone, args.repeat, stages));
    let shown = if args.is_part() { Ok(()) } else { demo(stages) };
    // Skips are compared even after a failure, because the failure would otherwise hide an unlisted skip until it is
    // repaired.
    let skips = ready.skips(stages);
    let passed = unit? + network? + heavy? + measured.transpose()?.unwrap_or_default();
    doc?;
    shown?;
    none_is_no_proof(passed)?;
    Ok(skips? + &machines.transpose()?.unwrap_or_default())
}

fn joined<T>(ended: thread::Result<T>) -> T {
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A seed for a run that was given none.
pub(crate) fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() % SEEDS
}

/// The proof that the committed object comes from its sources.
fn rebuild_bpf_programs(stages: &Stages) -> Result<()> {
    stages.run("BPF programs, rebuilt", |log| {
        ebpf::rebuild(|command| run::log(&mut run::yielding(command), &log.file))
    })
}

fn lints(args: &Args, stages: &Stages) -> Result<()> {
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    stages.run("lints", |log| {
        ebpf::lint(|command| run::log(&mut run::yielding(command), &log.file))?;
        quiet(run::yielding(&cargo(&clippy)), log)
    })?;
    stages.run("dependencies", |log| {
        let mut check = Crate::Dist.cargo_run("dependencies");
        check.args(args.require.then_some("--require"));
        result(&mut check, log)
    })
}

/// Returns the number of tests that passed.
fn unit_tests(args: &Args, stages: &Stages) -> Result<usize> {
    let mut passed = 0;
    if !args.is_part() {
        stages.run("unit tests (BPF)", |log| tests(ebpf::unit_tests()?, log).map(some))?;
    }
    stages.run("unit tests", |log| {
        let unit = ["test", "--no-fail-fast", "--workspace", "--exclude", NETWORK_TESTS];
        let mut unit = with_filter(run::yielding(&cargo(&unit)), args);
        if args.full {
            unit.envs(MUTATED.map(|variable| (variable, MILLION))).env(FUZZED.0, FUZZED.1);
        }
        passed = tests(unit, log)?;
        Ok(some(passed))
    })?;
    Ok(passed)
}

fn documentation(stages: &Stages) -> Result<()> {
    stages.run("documentation", |log| {
        let mut doc = run::yielding(&cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]));
        // Private items are documented as well, so links to them lead somewhere.
        doc.env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links");
        run::log(&mut doc, &log.file)?;
        let mut pages = Crate::Docs.built("pages");
        pages.arg("--slipway").arg(Flavour::Debug.binary()).arg("--slipwayd").arg(Flavour::Debug.agent());
        let checks =
            [pages, Crate::Dist.built("sources"), with_option(Crate::Bench.built("figures"), "--check")];
        let results: Result<Vec<String>> =
            checks.into_iter().map(|mut check| result(&mut check, log)).collect();
        Ok(results?.join("; "))
    })
}

/// Runs the demo, which is the first thing that a newcomer runs. The demo gets a process of its own, because it leaves
/// this machine's namespaces.
fn demo(stages: &Stages) -> Result<()> {
    stages.run("demo", |log| {
        let task = std::env::current_exe().map_err(|e| Error::system("find this program", e))?;
        run::log(Command::new(task).arg("demo"), &log.file)?;
        Ok(String::new())
    })
}

/// Checks the pages as a site. A plain run leaves this out, because mdBook is built first, which takes minutes.
fn site(options: &[&str], args: &Args, stages: &Stages) -> Result<()> {
    stages.run("site", |log| {
        let mut fetch = Crate::Docs.cargo_run("docs");
        if let Err(e) = run::log(fetch.arg("--fetch").args(options), &log.file) {
            return if args.require { Err(e) } else { Ok(format!("SKIP: {e}")) };
        }
        result(Crate::Docs.cargo_run("docs").arg("--check").args(options), log)
    })
}

/// Runs a task of another crate and returns what it prints.
fn result(command: &mut Command, log: &Log) -> Result<String> {
    let copy = log.file.try_clone().map_err(|e| Error::system("duplicate the log's descriptor", e))?;
    run::capture_with(command, copy).map(|text| text.trim().to_owned())
}

fn with_option(mut command: Command, option: &str) -> Command {
    command.arg(option);
    command
}

/// The network tests, built.
struct Ready {
    pool: Pool,
    reference: Reference,
    /// The file that tests write their skips to.
    skips: PathBuf,
    /// The file that tests write the size of their samples to.
    sampled: PathBuf,
}

/// Builds the plugins and the network tests.
fn prepare(args: &Args, suites: &[String], seed: u64, stages: &Stages) -> Result<Ready> {
    let reference = references(stages, &[reference::STABLE], args.require)?;
    let kube = kube::provide(args.kube, stages, args.require)?;
    let packages = node_packages(args, kube.as_deref(), stages)?;
    let shells = shells(stages, suites, args.require)?;
    let mut programs = Vec::new();
    let mut bin_dir = PathBuf::new();
    stages.run("build", |log| {
        programs = test_programs::build(suites, &BINARIES, log)?;
        bin_dir = plugin_dir(Flavour::Debug, log)?;
        Ok(format!("{}, {} test programs", build::size(&Flavour::Debug.binary())?, programs.len()))
    })?;
    let skips = empty_file("skips.txt")?;
    // A run of only some tests, or of every point, keeps the record of the last plain run.
    let is_plain = !args.full && !args.is_part();
    let sampled = empty_file(if is_plain { full::SAMPLED } else { "sampled-part.txt" })?;
    let (name, dirs) = reference.variable();
    let mut env: Vec<(String, OsString)> = vec![
        ("SLIPWAY_BIN_DIR".to_owned(), bin_dir.into()),
        ("SLIPWAY_SKIPS".to_owned(), skips.clone().into()),
        ("SLIPWAY_SAMPLED".to_owned(), sampled.clone().into()),
        (name.to_owned(), dirs.clone()),
    ];
    env.extend(kube.map(|dir| (kube::VARIABLE.to_owned(), dir.into())));
    env.extend(packages.map(|dir| (runtimes::NODE_VARIABLE.to_owned(), dir.into())));
    env.extend(shells.map(|dir| (shells::VARIABLE.to_owned(), dir.into())));
    if !args.full {
        env.push(("SLIPWAY_SAMPLE".to_owned(), SAMPLE.to_string().into()));
        env.push(("SLIPWAY_SAMPLE_SEED".to_owned(), seed.to_string().into()));
    }
    let (filter, repeat) = (args.filter.clone(), args.repeat);
    let settings = Settings { prefix: as_root()?, env, filter, repeat, tallies: false };
    programs.retain(|program| program.is_of(NETWORK_TESTS_FOLDER));
    let pool = Pool::new(programs, settings)?;
    Ok(Ready { pool, reference, skips, sampled })
}

impl Ready {
    /// Runs tests and returns the number that passed.
    fn tests(&self, which: Which, repeat: usize, stages: &Stages) -> Result<usize> {
        if self.pool.is_empty(which) {
            return Ok(0);
        }
        let mut passed = 0;
        let name = match which {
            Which::Pooled => "network tests",
            Which::Heavy => "tests with agents",
            Which::Alone => "measuring tests",
        };
        stages.run(name, |log| {
            let sum = self.pool.run(which, log)?;
            passed = sum.verdict(repeat, &log.path)?;
            let sample = if which == Which::Pooled { self.sample()? } else { String::new() };
            Ok(format!("{}{sample}; the slowest:{}", some(passed), sum.slowest()))
        })?;
        Ok(passed)
    }

    /// The size of the sample, for people; the file has a line for each test.
    fn sample(&self) -> Result<String> {
        let text = fs::read_to_string(&self.sampled).map_err(|e| Error::file("read", &self.sampled, e))?;
        let samples: Vec<Sample> =
            full::samples(&text).into_values().filter(|sample| sample.all > 0).collect();
        let tried: usize = samples.iter().map(|sample| sample.tried).sum();
        let all: usize = samples.iter().map(|sample| sample.all).sum();
        Ok(match samples.len() {
            0 => String::new(),
            tests => format!("; {tests} of them tried {tried} of {all} points ({})", self.sampled.display()),
        })
    }

    /// Compares the skipped tests with the committed list; returns their number for the closing line.
    fn skips(&self, stages: &Stages) -> Result<String> {
        let mut closing = String::new();
        stages.run("skipped tests", |_| {
            let seen = lines_of(&self.skips)?;
            let listed = lines_of(&workspace::root().join("tests/skips.txt"))?;
            let unexplained = seen.iter().filter(|line| !self.reference.explains(line)).cloned().collect();
            expected(&unexplained, &listed)?;
            if !seen.is_empty() {
                closing = format!("; {} tests skipped", seen.len());
            }
            let others = match seen.len() - unexplained.len() {
                0 => String::new(),
                others => format!(", but {others} for the reference plugins"),
            };
            Ok(format!("{} skipped here, all of them listed in tests/skips.txt{others}", seen.len()))
        })?;
        Ok(closing)
    }
}

/// The reference plugins of these suites; prints a line for those that cannot be had.
pub(crate) fn references(stages: &Stages, suites: &[&'static str], require: bool) -> Result<Reference> {
    let mut found = None;
    stages.run("reference plugins", |_| Ok(found.insert(Reference::find(suites)).summary()))?;
    let found = found.ok_or_else(|| Error::Failed("the reference plugins were not looked for".to_owned()))?;
    for reason in found.missing() {
        if require {
            return Err(Error::Failed(reason));
        }
        println!("  SKIP  {reason}");
    }
    Ok(found)
}

/// The root file system of a cluster's nodes. A user who is not root cannot make their control groups and devices.
fn node_packages(args: &Args, kube: Option<&Path>, stages: &Stages) -> Result<Option<PathBuf>> {
    if !Uid::effective().is_root() || !kube.is_some_and(kube::has_kubelet) {
        return Ok(None);
    }
    runtimes::for_nodes(args.kube || args.require, stages, args.require)
}

/// The shells for the tests of completions, if these are run.
fn shells(stages: &Stages, suites: &[String], require: bool) -> Result<Option<PathBuf>> {
    if !suites.is_empty() && !suites.iter().any(|suite| suite == shells::SUITE) {
        return Ok(None);
    }
    let mut found = None;
    stages.run("shells", |_| match shells::find() {
        Ok(dir) => Ok(found.insert(dir).display().to_string()),
        Err(e) if require => Err(e),
        Err(e) => Ok(format!("SKIP: zsh and fish could not be fetched: {e}")),
    })?;
    Ok(found)
}

/// An empty file that tests write to.
fn empty_file(name: &str) -> Result<PathBuf> {
    let path = workspace::scratch("test")?.join(name);
    fs::write(&path, "").map_err(|e| Error::file("empty", &path, e))?;
    Ok(path)
}

fn with_filter(mut command: Command, args: &Args) -> Command {
    command.args(args.filter.as_slice());
    command
}

fn quiet(mut command: Command, log: &Log) -> Result<String> {
    run::log(&mut command, &log.file).map(|()| String::new())
}

/// A number of tests, for people.
fn some(tests: usize) -> String {
    format!("{tests} tests")
}

fn none_is_no_proof(tests: usize) -> Result<()> {
    match tests {
        0 => Err(Error::Failed("no test was run: none has such a name".to_owned())),
        _ => Ok(()),
    }
}

/// Runs a `cargo test` to its end and returns the number of tests that passed.
fn tests(mut command: Command, log: &Log) -> Result<usize> {
    let outcome = run::log_while_it_prints(command.env("CARGO_TERM_COLOR", "never"), &log.file, SILENCE);
    let printed = fs::read(&log.path).map_err(|e| Error::file("read", &log.path, e))?;
    let printed = String::from_utf8_lossy(&printed);
    let failed = failures::in_output(&printed);
    match outcome {
        Ok(()) => Ok(passed(&printed)),
        Err(e) if failed.is_empty() => Err(e),
        Err(_) => {
            Err(Error::Failed(failures::describe(&failed, failed.len() + passed(&printed), 1, &log.path)))
        }
    }
}

/// A plugin directory in the target folder, made by the binary itself.
pub(crate) fn plugin_dir(flavour: Flavour, log: &Log) -> Result<PathBuf> {
    let name = if flavour == Flavour::Static { "bin-static" } else { "bin" };
    let dir = workspace::scratch("test")?.join(name);
    let mut install = Command::new(flavour.binary());
    run::log(install.args(["install", "--to"]).arg(&dir), &log.file)?;
    // The file is renamed into place, because another run may be executing the old one.
    let (agent, new) = (flavour.agent(), dir.join(".slipwayd"));
    fs::copy(&agent, &new).map_err(|e| Error::file("copy", &agent, e))?;
    fs::rename(&new, dir.join("slipwayd")).map_err(|e| Error::file("rename", &new, e))?;
    Ok(dir)
}

/// The words before a program that give it root's rights over namespaces that it makes.
pub(crate) fn as_root() -> Result<Vec<String>> {
    if Uid::effective().is_root() {
        return Ok(Vec::new());
    }
    let unshare = ["unshare", "--user", "--map-root-user"];
    let probe = [&unshare[1..], &["--net", "--mount", "true"]].concat();
    if let Err(e) = run::capture(&mut tool("unshare", &probe)) {
        return Err(Error::Failed(format!(
            "the network tests need root, or a system that lets users make namespaces, which this one \
             does not: {e}\nRun `sudo --preserve-env=PATH,HOME cargo xtask test`, or leave them out with --quick"
        )));
    }
    Ok(unshare.map(str::to_owned).to_vec())
}

/// The lines that are neither empty nor a comment.
fn lines_of(path: &Path) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(path).map_err(|e| Error::file("read", path, e))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

/// A test may be skipped only if the committed list has the very line; a listed test that runs here
/// is fine, for other machines lack other things.
fn expected(seen: &BTreeSet<String>, listed: &BTreeSet<String>) -> Result<()> {
    let surprises: Vec<&str> = seen.difference(listed).map(String::as_str).collect();
    if surprises.is_empty() {
        return Ok(());
    }
    Err(Error::Failed(format!(
        "skipped, but not listed in tests/skips.txt:\n    {}",
        surprises.join("\n    ")
    )))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn set(lines: &[&str]) -> BTreeSet<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn kube_selects_its_suites() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let parse = |words: &str| Line::try_parse_from(words.split(' ')).map(|line| line.args);
        let kube = parse("test --kube").unwrap();
        assert_eq!((kube.suites(), kube.is_part()), (kube::SUITES.map(str::to_owned).to_vec(), true));
        assert_eq!(
            parse("test --kube --filter network_matrix::rows_with").unwrap().suites(),
            ["network_matrix"]
        );
        assert_eq!(parse("test --kube --suite pods").unwrap().suites(), ["pods"]);
        assert!(parse("test").unwrap().suites().is_empty());
    }

    #[test]
    fn results_are_summed_over_all_test_programs() {
        let printed = "test result: ok. 17 passed; 0 failed; 0 ignored\ntest a::b ... FAILED\ntest c ... ok\n\
                       test result: FAILED. 3 passed; 1 failed; 0 ignored\n";
        assert_eq!(passed(printed), 20);
    }

    #[test]
    fn only_a_listed_skip_is_accepted() {
        let listed = set(&["a: skipped: needs vrf", "b: skipped: needs sctp"]);
        assert!(expected(&set(&["a: skipped: needs vrf"]), &listed).is_ok());
        assert!(expected(&set(&[]), &listed).is_ok());
        let error = expected(&set(&["a: skipped: needs root"]), &listed).unwrap_err().to_string();
        assert!(error.ends_with("    a: skipped: needs root"), "{error}");
    }
}
