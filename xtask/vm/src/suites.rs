// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask vm-test`: the test suites on other kernels, in VMs.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser as _;
use slipway_vm::{DISK_DRIVERS, Event, Plan, Suite};

use crate::arch::Arch;
use crate::fetch::{Ready, Refresh};
use crate::image::Userland;
use crate::kernels::{Kernel, Kernels};
use crate::outcome::{Outcome, Status};
use crate::parts::Part;
use crate::programs::{Programs, Wanted};
use crate::qemu::{Accelerator, Qemu, Vm};
use crate::record::Record;
use crate::report::{NotRun, Row};
use crate::system::System;
use crate::{disk, fetch, image, kernels, outcome, parts, programs, report};
use xtask::build::Profile;
use xtask::setup;
use xtask_base::checkout::{self, Sources};
use xtask_base::error::{Error, Result};
use xtask_base::progress::Stages;
use xtask_base::workspace::{self, Lock};
use xtask_dist::Toolchain;
use xtask_downloads::kube;
use xtask_downloads::reference;

/// Tests at a time in a VM. They mostly wait: for grace periods of the kernel, and for replies that must not come. With
/// three of them an emulated processor was idle for half of the time.
const THREADS: usize = 6;

/// The time limit of one test program.
const SUITE_LIMIT: Duration = Duration::from_secs(1800);
/// Only one in this many sampled cases is tried, because the cases run ten times faster outside of VMs.
const SAMPLE: u32 = 8;

/// Run the test suites on other kernels, in virtual machines.
///
/// Kernels and, where the host has none, the emulator are Debian's packages, unpacked below the
/// target folder; nothing is installed. Where they cannot be had the kernel is skipped, with the reason.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The processor of the VMs; if it is not this machine's, it is emulated, and compiler, tools and libraries for it are
    /// fetched
    #[arg(long, value_enum, default_value = "amd64", conflicts_with = "smoke")]
    arch: Arch,
    /// Only these kernels, by the names in vm-tests/kernels.toml
    #[arg(long, value_name = "NAME", num_args = 1.., conflicts_with = "smoke")]
    kernel: Vec<String>,
    /// Only the kernels and the test programs that the list marks for every run
    #[arg(long, conflicts_with = "suite")]
    smoke: bool,
    /// Only these test programs
    #[arg(long, value_name = "NAME", num_args = 1..)]
    suite: Vec<String>,
    /// Only the tests whose names contain this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Fail when a kernel cannot be run, instead of skipping it
    #[arg(long)]
    require: bool,
    /// VMs at a time: a kernel's test programs are divided among as many
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    jobs: u8,
    /// The accelerator of the emulator (detected, when not given)
    #[arg(long, value_enum, env = "SLIPWAY_VM_ACCEL")]
    accel: Option<Accelerator>,
    /// Minutes for one VM (120 with KVM, 360 without, when not given)
    #[arg(long, value_name = "MINUTES")]
    limit: Option<u64>,
    /// Leave these modules out, as on a node whose kernel lacks them; names as in vm-tests/kernels.toml
    #[arg(long, value_name = "MODULE", num_args = 1.., conflicts_with = "write_docs")]
    without: Vec<String>,
    /// More arguments of the kernels, for instance ipv6.disable=1
    #[arg(long, value_name = "ARGUMENT", num_args = 1.., conflicts_with = "write_docs")]
    boot: Vec<String>,
    /// Build the plugins without link-time optimization, for a first look: such a run is not kept
    #[arg(long, conflicts_with = "write_docs")]
    quick: bool,
    /// Fetch the kernels again
    #[arg(long)]
    refresh: bool,
    /// Print each VM's console when it has ended
    #[arg(long)]
    keep_console: bool,
    /// Test the plugins of another folder in place of ours
    #[arg(long, value_name = "DIR")]
    peer: Option<PathBuf>,
    /// Run the measurements among the tests, and nothing else, and print their figures
    #[arg(long, requires = "suite")]
    measure: bool,
    /// Write docs/reports/kernels.md afterwards; refused if the sources differ from the commit
    #[arg(long, conflicts_with_all = ["filter", "peer", "measure"])]
    write_docs: bool,
    /// Only write them, from earlier runs: marks the rows that have become stale
    #[arg(long, exclusive = true)]
    docs_only: bool,
}

impl Args {
    /// The test programs that are run on every kernel; none if each kernel has its own.
    fn named_suites<'a>(&'a self, list: &'a Kernels) -> Option<&'a [String]> {
        match self.suite.as_slice() {
            _ if self.smoke => Some(&list.smoke),
            [] => None,
            named => Some(named),
        }
    }
}

/// The parts that all VMs of a run share.
struct Bench<'a> {
    sources: Sources,
    args: &'a Args,
    list: &'a Kernels,
    qemu: Qemu,
    programs: Programs,
    userland: Userland,
    /// The image of a disk with kube-proxy, if a test program needs it.
    disk: Option<PathBuf>,
}

/// Runs the task.
///
/// # Errors
/// A kernel that failed; with `--require`, one that could not be run.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.docs_only {
        return report::write(&Kernels::load()?);
    }
    if args.write_docs && Sources::of_checkout().commit.is_none() {
        return Err(Error::Failed(
            "a row of docs/reports/kernels.md is one commit: commit the changes first (those of docs and *.md may stay)"
                .to_owned(),
        ));
    }
    let stages = Stages::new("vm-test")?;
    stages.run("setup", |_| setup::ensure())?;
    let verdict = run_kernels(args, &stages, &|| {})?;
    match verdict.skipped.as_slice() {
        [] => println!("PASS: {}; {}", verdict.text, stages.summary()),
        _ => println!("SKIP: {}; what was skipped proves nothing", verdict.text),
    }
    Ok(())
}

/// Run the kernels and test programs that the list marks for every run.
#[derive(Debug, clap::Args)]
pub(crate) struct SmokeArgs {
    /// Run one of these kernels only, because each takes minutes of a processor; which one follows from the number
    #[arg(long)]
    seed: Option<u64>,
    /// Fail when a kernel cannot be run, instead of skipping it
    #[arg(long)]
    require: bool,
}

/// Runs them. When all is built, and before a VM starts, it waits for the end of standard input. The last line of its
/// output is the result.
pub(crate) fn smoke(args: &SmokeArgs) -> Result<()> {
    let words = ["smoke", "--smoke"].into_iter().chain(args.require.then_some("--require"));
    let mut all = Smoke::parse_from(words).args;
    if let Some(seed) = args.seed {
        let list = Kernels::load()?;
        let marked: Vec<&Kernel> = list.kernel.iter().filter(|kernel| kernel.smoke).collect();
        let at = usize::try_from(seed).unwrap_or_default().checked_rem(marked.len()).unwrap_or_default();
        all.kernel = marked.get(at).map(|kernel| kernel.name.clone()).into_iter().collect();
    }
    let verdict = run_kernels(&all, &Stages::new("vm-test")?, &|| {
        // An error ends the wait as well.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
    })?;
    match verdict.skipped.as_slice() {
        [] => println!("{}", verdict.text),
        skipped => println!("SKIP: not run on Linux {}", skipped.join(", ")),
    }
    Ok(())
}

/// Gives [`Args`] the defaults and the environment variables that its fields are declared with.
#[derive(Debug, clap::Parser)]
struct Smoke {
    #[command(flatten)]
    args: Args,
}

/// The result of a run that did not fail.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// For people.
    pub(crate) text: String,
    /// The kernels that were not run.
    pub(crate) skipped: Vec<String>,
}

fn run_kernels(args: &Args, stages: &Stages, wait: &dyn Fn()) -> Result<Verdict> {
    let list = Kernels::load()?;
    let mut wanted = list.select(&args.kernel, args.arch)?;
    wanted.retain(|kernel| !args.smoke || kernel.smoke);
    let mut emulator = None;
    stages.run("emulator", |_| {
        match emulator.insert(Qemu::find(args.arch, args.accel).map_err(Arc::new)) {
            Ok(qemu) => Ok(format!("{}, {}", qemu.version()?, qemu.accelerator.describe())),
            Err(e) => Ok(format!("cannot be had: {e}")),
        }
    })?;
    let rows = match emulator {
        None => Vec::new(),
        Some(Err(e)) => {
            wanted.into_iter().map(|one| (one, Err(NotRun::NoEmulator(Arc::clone(&e))))).collect()
        }
        Some(Ok(qemu)) => run_in_vms(args, &list, &wanted, qemu, stages, wait)?,
    };
    conclude(args, &list, &rows)
}

fn run_in_vms<'a>(
    args: &Args,
    list: &Kernels,
    wanted: &[&'a Kernel],
    qemu: Qemu,
    stages: &Stages,
    wait: &dyn Fn(),
) -> Result<Vec<Row<'a>>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    let mut ready = Vec::new();
    let refresh = if args.refresh { Refresh::Yes } else { Refresh::No };
    for kernel in wanted {
        stages.run(&format!("kernel {}", kernel.name), |_| match fetch::fetch(kernel, refresh) {
            Ok(fetched) => {
                let release = fetched.release.clone();
                ready.push((*kernel, fetched));
                Ok(release)
            }
            Err(e) => {
                let text = format!("cannot be had: {e}");
                rows.push((*kernel, Err(NotRun::NoPackage(e))));
                Ok(text)
            }
        })?;
    }
    if ready.is_empty() {
        return Ok(rows);
    }
    let Some((toolchain, system)) = tools(args, stages)? else { return Ok(rows) };
    let reference = match system.reference() {
        Some(dir) => Some(dir),
        None => reference_plugins(args, stages)?,
    };
    let of_kernels;
    let wanted_suites: &[String] = match args.named_suites(list) {
        Some(named) => named,
        None => {
            of_kernels = list.suites_of_any(wanted);
            &of_kernels
        }
    };
    let is_wanted = |name: &String| wanted_suites.is_empty() || wanted_suites.contains(name);
    let kubernetes = match list.kubernetes.iter().any(is_wanted) {
        true => kube::provide(false, stages, args.require)?,
        false => None,
    };
    let mut built = None;
    stages.run("build for VMs", |log| {
        let _lock = Lock::take(&build_lock()?)?;
        if let Some(one) = list.left_out.iter().find(|one| wanted_suites.contains(&one.suite)) {
            return Err(Error::Failed(format!("{} is not run in VMs: {}", one.suite, one.reason.trim())));
        }
        let agent = list.slipwayd.iter().any(is_wanted);
        // The smoke tests ask what works on the kernel: they need not wait for link-time optimization.
        let profile = if args.smoke || args.quick { Profile::Quick } else { Profile::Release };
        let wanted = Wanted { suites: wanted_suites, agent, peer: args.peer.as_deref(), profile };
        let mut programs = programs::build(args.arch, &toolchain, &wanted, log)?;
        programs.tests.retain(|own| list.left_out.iter().all(|one| one.suite != own.name));
        let paths: Vec<&Path> = programs.tests.iter().map(|own| own.path.as_path()).collect();
        let userland = Userland::find(&system, &paths, reference.as_deref())?;
        let disk = kubernetes.as_deref().map(disk::write).transpose()?;
        let text = format!("{} test programs", programs.tests.len());
        built = Some((programs, userland, disk));
        Ok(text)
    })?;
    let Some((programs, userland, disk)) = built else { return Ok(rows) };
    let bench = Bench { sources: Sources::of_checkout(), args, list, qemu, programs, userland, disk };
    wait();
    stages.run("VMs", |log| {
        rows.extend(bench.run_all(&ready, &log.file)?);
        Ok(format!("{} kernels", rows.iter().filter(|(_, row)| row.is_ok()).count()))
    })?;
    // The rows are in the order of the list, not in the order in which they became ready.
    rows.sort_by_key(|(kernel, _)| wanted.iter().position(|one| one.name == kernel.name));
    Ok(rows)
}

/// The compiler for the VMs' processor, and the system of their tools.
fn tools(args: &Args, stages: &Stages) -> Result<Option<(Toolchain, System)>> {
    if args.arch.is_own() {
        let system = System::find(args.arch, &Toolchain::Own)?;
        image::need_tools(&system)?;
        return Ok(Some((Toolchain::Own, system)));
    }
    let mut found = None;
    stages.run(&format!("tools for {}", args.arch.debian()), |_| {
        let toolchain = Toolchain::find(args.arch.target())?;
        let system = System::find(args.arch, &toolchain)?;
        image::need_tools(&system)?;
        found = Some((toolchain, system));
        Ok("fetched".to_owned())
    })?;
    Ok(found)
}

/// The folder of the reference plugins for this machine's processor, if they can be fetched.
fn reference_plugins(args: &Args, stages: &Stages) -> Result<Option<PathBuf>> {
    let mut reference = None;
    stages.run("reference plugins", |_| match reference::fetch(reference::STABLE) {
        Ok(dir) => Ok(reference.insert(dir).display().to_string()),
        Err(e) if args.require => Err(e),
        Err(e) => Ok(format!("SKIP: the tests that compare with them, for they cannot be had: {e}")),
    })?;
    Ok(reference)
}

/// Prints the results and makes the verdict.
fn conclude(args: &Args, list: &Kernels, rows: &[Row<'_>]) -> Result<Verdict> {
    for (_, row) in rows {
        if let Ok(outcome) = row
            && !outcome.passed()
        {
            println!("{}", report::failure(outcome));
        }
    }
    print!("{}", report::lines(rows));
    if args.write_docs {
        report::write(list)?;
    }
    let outcomes: Vec<&Outcome> = rows.iter().filter_map(|(_, row)| row.as_ref().ok()).collect();
    let skipped: Vec<String> =
        rows.iter().filter(|(_, row)| row.is_err()).map(|(kernel, _)| kernel.name.clone()).collect();
    let failed = outcomes.iter().filter(|outcome| !outcome.passed()).count();
    let passed = outcomes.len() - failed;
    let tests: usize = outcomes.iter().map(|outcome| outcome.count(Status::Passed)).sum();
    let text = format!("{passed} kernels passed ({tests} tests), {failed} failed, {} skipped", skipped.len());
    if failed > 0 || args.require && !skipped.is_empty() {
        return Err(Error::Failed(text));
    }
    Ok(Verdict { text, skipped })
}

/// The lock of the programs for VMs: exclusive while they are built, shared while they are read.
fn build_lock() -> Result<PathBuf> {
    Ok(kernels::cache()?.join("lock"))
}

impl Bench<'_> {
    /// Runs the VMs, a few at a time.
    fn run_all<'k>(&self, ready: &[(&'k Kernel, Ready)], log: &File) -> Result<Vec<Row<'k>>> {
        let mut queue = VecDeque::new();
        for (at, (kernel, _)) in ready.iter().enumerate() {
            queue.extend(self.parts(kernel)?.into_iter().map(|part| (at, part)));
        }
        let queue = Mutex::new(queue);
        let done: Mutex<BTreeMap<usize, Vec<Outcome>>> = Mutex::default();
        thread::scope(|scope| {
            let workers: Vec<_> = (0..self.args.jobs)
                .map(|_| {
                    scope.spawn(|| {
                        loop {
                            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                            let Some((at, part)) = next else { return Ok(()) };
                            let (kernel, ready) = &ready[at];
                            let outcome = self.run_one(kernel, ready, &part, log)?;
                            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                            done.entry(at).or_default().push(outcome);
                        }
                    })
                })
                .collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| Err(Error::Failed("the thread of a VM panicked".to_owned())))
            })
        })?;
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(done.into_iter().map(|(at, parts)| (ready[at].0, Ok(Outcome::join(parts)))).collect())
    }

    /// The test programs of a kernel, divided among the VMs that run at a time. What has not been run on this kernel
    /// takes as long as on another.
    fn parts(&self, kernel: &Kernel) -> Result<Vec<Part<'_>>> {
        let own = |one: &&Kernel| one.name == kernel.name;
        let others = self.list.kernel.iter().filter(|one| !own(one));
        let mut known = Vec::new();
        for one in others.chain(self.list.kernel.iter().find(own)) {
            known.extend(Record::known(&one.name)?.map(|row| row.suites).unwrap_or_default());
        }
        let times = known.iter().map(|suite| (suite.name.as_str(), suite.millis)).collect();
        let suites = self.args.named_suites(self.list).unwrap_or_else(|| self.list.suites(kernel));
        let all = self.programs.tests.iter();
        let tests: Vec<_> = all.filter(|test| suites.is_empty() || suites.contains(&test.name)).collect();
        Ok(parts::divide(&tests, &times, usize::from(self.args.jobs)))
    }

    fn run_one(&self, kernel: &Kernel, ready: &Ready, part: &Part<'_>, log: &File) -> Result<Outcome> {
        let dir = kernels::cache()?.join("runs").join(&kernel.name).join(part.folder());
        fs::create_dir_all(&dir).map_err(|e| Error::file("create the directory", &dir, e))?;
        // Another run may use the same kernel, or rebuild the programs.
        let _own = Lock::take(&dir.join("lock"))?;
        let disk = self.disk.as_deref().filter(|_| part.has_any(&self.list.kubernetes));
        let plan = self.plan(kernel, part, disk.is_some());
        let initramfs = dir.join("initramfs.cpio");
        let mut patterns = self.list.modules.clone();
        patterns.extend(disk.iter().flat_map(|_| DISK_DRIVERS).map(|name| (*name).to_owned()));
        let without = [kernel.without.as_slice(), &self.args.without].concat();
        let modules = image::modules(ready, &patterns, &without)?;
        let unchanged = Lock::share(&build_lock()?)?;
        image::write(&initramfs, &self.userland, &self.programs, part, ready, &modules, &plan)?;
        drop(unchanged);
        let boot = [kernel.boot.as_slice(), &self.args.boot].concat();
        let vm = Vm {
            image: &ready.image,
            initramfs: &initramfs,
            disk,
            dir: &dir,
            nonce: &plan.nonce,
            boot: &boot,
            limit: Duration::from_secs(60 * self.args.limit.unwrap_or(self.qemu.accelerator.patience())),
            suite_limit: SUITE_LIMIT,
        };
        let mut log = log;
        let run = self.qemu.run(&vm, |event| {
            let text = match event {
                Event::Hello(release) => format!("{release} runs"),
                Event::Start(suite) => suite.clone(),
                Event::Output(line) | Event::Unfinished(line) if line.starts_with("test ") => line.clone(),
                Event::Trouble(text) => text.clone(),
                _ => return,
            };
            // Only the lines that show progress are printed, because the reports are kept.
            let _ = writeln!(log, "{}: {text}", kernel.name);
        })?;
        // The archive is big, and each run makes its own.
        let _ = fs::remove_file(&initramfs);
        let mut outcome = outcome::judge(self.list, kernel, &plan, &run);
        for wrong in kernel.wrong_options(&self.list.promised, &ready.config) {
            outcome.problems.push(format!("kernels.toml and its configuration differ: {wrong}"));
        }
        println!(
            "  {:<8} tried one in {SAMPLE} of the sampled cases, seed {}",
            kernel.name,
            self.seed(kernel)
        );
        for figure in &outcome.figures {
            println!("  {:<8} {figure}", kernel.name);
        }
        // Only runs of whole test programs, with the plugins as they are shipped, are kept.
        let is_shipped = !self.args.smoke && !self.args.quick;
        let whole = self.args.filter.is_none() && !self.args.measure && is_shipped;
        let is_usual = self.args.without.is_empty() && self.args.boot.is_empty();
        if whole && is_usual && self.args.peer.is_none() {
            self.keep(kernel, &outcome)?;
        }
        if self.args.keep_console {
            println!("--- console of {}\n{}", kernel.name, run.console);
        }
        Ok(outcome)
    }

    /// Keeps the row of a VM's run.
    fn keep(&self, kernel: &Kernel, outcome: &Outcome) -> Result<()> {
        let is_left_out = |name: &&String| self.list.left_out.iter().any(|one| one.suite == **name);
        let Some(row) = Record::of(outcome, &self.sources, &checkout::today()) else { return Ok(()) };
        match self.list.suites(kernel) {
            [] => row.keep(self.programs.names.iter().filter(|name| !is_left_out(name))),
            some => row.keep(some.iter()),
        }
    }

    /// The seed of a kernel's sample, so that each kernel tries another part of the cases.
    fn seed(&self, kernel: &Kernel) -> usize {
        self.list.kernel.iter().position(|one| one.name == kernel.name).unwrap_or_default()
    }

    fn plan(&self, kernel: &Kernel, part: &Part<'_>, has_disk: bool) -> Plan {
        let suites = part.tests.iter().map(|test| {
            let alone = self.args.measure || self.list.one_by_one.contains(&test.name);
            let threads = if alone { 1 } else { THREADS };
            let mut args = vec![format!("--test-threads={threads}"), "--color=never".to_owned()];
            let part = self.list.only(self.args.arch, &test.name);
            args.extend(self.args.filter.as_ref().or(part).cloned());
            if self.args.measure {
                args.extend(["--ignored".to_owned(), "--show-output".to_owned()]);
            }
            Suite {
                name: test.name.clone(),
                program: format!("{}/{}", image::TESTS, test.name),
                dir: test.package.display().to_string(),
                args,
                limit: SUITE_LIMIT.as_secs(),
            }
        });
        let mut env = vec![
            ("SLIPWAY_BIN_DIR".to_owned(), image::PLUGINS.to_owned()),
            ("RUST_BACKTRACE".to_owned(), "1".to_owned()),
            // Random input and disturbed calls are a sample.
            ("PROPTEST_CASES".to_owned(), "16".to_owned()),
            ("SLIPWAY_GARBAGE".to_owned(), "40".to_owned()),
            ("SLIPWAY_SAMPLE".to_owned(), SAMPLE.to_string()),
            ("SLIPWAY_SAMPLE_SEED".to_owned(), self.seed(kernel).to_string()),
            ("SLIPWAY_SLOWER".to_owned(), "5".to_owned()),
            // The tests find the files with expected output through this variable.
            ("CARGO_WORKSPACE_DIR".to_owned(), workspace::root().display().to_string()),
        ];
        if self.programs.peer.is_some() {
            env.push(("SLIPWAY_PEER_DIR".to_owned(), image::PEER.to_owned()));
        }
        let disk = has_disk.then(|| image::KUBERNETES.to_owned());
        env.extend(disk.iter().map(|dir| (kube::VARIABLE.to_owned(), dir.clone())));
        let reports = self.args.arch.machine().reports.to_owned();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nonce =
            format!("{:x}{}", now.as_nanos(), kernel.name.replace(|c: char| !c.is_ascii_alphanumeric(), ""));
        Plan { nonce, reports, preload: self.list.preload.clone(), disk, env, suites: suites.collect() }
    }
}
