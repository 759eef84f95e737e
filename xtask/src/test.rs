//! `cargo xtask test`: everything that must pass, stage by stage.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::unistd::Uid;

use crate::build::Flavour;
use crate::error::{Error, Result};
use crate::pool::{Pool, Summary};
use crate::progress::{Log, Stages};
use crate::reference::{self, Reference};
use crate::run::{self, cargo, tool};
use crate::runtimes::Runtimes;
use crate::test_programs::{TestProgram, test_programs};
use crate::{build, deny, docs_check, ebpf, links, setup, vm_test, words, workspace};

/// The package of the network tests, which need root and the built binary.
const NETWORK_TESTS: &str = "slipway-tests";

/// The test programs in which the reference plugins work too, and what those tests' names have in common.
const REFERENCE_TESTS: (&[&str], &[&str]) = (
    &["gc", "host_device", "host_local", "iptables", "keys", "migrate", "static"],
    &["reference", "switched_over", "both_implementations", "each_side_removes"],
);

/// How long a run of tests may print nothing: the harness ends a test's commands after a minute each, and
/// says so of tests that take longer.
const SILENCE: Duration = Duration::from_secs(600);

/// Run everything that must pass.
///
/// The network tests make namespaces of their own and never touch the machine's network. They need
/// root; for another user they run inside a user namespace, where the system allows one. A part of them
/// is run again on two other kernels, in virtual machines; `vm-test` has more kernels, and all tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only format, lints and unit tests
    #[arg(long)]
    quick: bool,
    /// Only build, and run the tests whose names contain this
    #[arg(long, value_name = "TEXT", conflicts_with = "quick")]
    filter: Option<String>,
    /// Run each network test so many times: finds those that fail now and then
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["quick", "runtimes"])]
    repeat: usize,
    /// Leave out the virtual machines with other kernels
    #[arg(long)]
    no_vm: bool,
    /// Fail when a kernel, the emulator or the reference plugins cannot be had, instead of skipping what needs them
    #[arg(long)]
    require: bool,
    /// Only the tests with podman, containerd, cnitool and the newest reference plugins, which are fetched and
    /// unpacked below target
    #[arg(long, conflicts_with_all = ["quick", "no_vm"])]
    runtimes: bool,
}

/// Runs the task.
///
/// # Errors
/// The first stage that fails; its log was shown.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut stages = Stages::new("test")?;
    let outcome = if args.runtimes { run_runtimes(args, &mut stages) } else { run_stages(args, &mut stages) };
    match &outcome {
        Ok(skipped) => println!("PASS: {}{skipped}", stages.summary()),
        Err(_) => println!("FAIL: {}", stages.summary()),
    }
    outcome.map(|_| ())
}

fn run_stages(args: &Args, stages: &mut Stages) -> Result<String> {
    stages.run("setup", |_| setup::ensure())?;
    stages.run("BPF programs", |log| ebpf::ensure(|command| run::log(command, &log.file)))?;
    if args.filter.is_none() {
        stages.run("format", |log| quiet(cargo(&["fmt", "--check"]), log))?;
        let clippy = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
        stages.run("lints", |log| {
            ebpf::lint(|command| run::log(command, &log.file))?;
            quiet(cargo(&clippy), log)
        })?;
        stages.run("dependencies", |log| deny::check(log, args.require))?;
        stages.run("unit tests (BPF)", |log| tests(ebpf::unit_tests()?, log).map(some))?;
    }
    let unit = ["test", "--no-fail-fast", "--workspace", "--exclude", NETWORK_TESTS];
    let mut passed = 0;
    stages.run("unit tests", |log| {
        passed = tests(with_filter(cargo(&unit), args), log)?;
        Ok(some(passed))
    })?;
    if args.quick {
        return Ok(String::new());
    }
    let reference = references(stages, &[reference::STABLE], args.require)?;
    let mut bin_dir = PathBuf::new();
    stages.run("build", |log| {
        quiet(Flavour::Debug.cargo_build()?, log)?;
        bin_dir = plugin_dir(Flavour::Debug, log)?;
        build::size(&Flavour::Debug.binary())
    })?;
    let mut programs = Vec::new();
    stages.run("build network tests", |log| {
        programs = network_tests(log)?;
        Ok(String::new())
    })?;
    let skips = no_skips()?;
    stages.run("network tests", |log| {
        let variable = |name: &str, value: &Path| (name.to_owned(), value.into());
        let (name, dirs) = reference.variable();
        let env = vec![
            variable("SLIPWAY_BIN_DIR", &bin_dir),
            variable("SLIPWAY_SKIPS", &skips),
            (name.to_owned(), dirs.clone()),
        ];
        let pool = Pool { prefix: as_root()?, env, filter: args.filter.clone(), repeat: args.repeat };
        let sum = pool.run(&programs, log)?;
        passed += sum.passed;
        if sum.failed.is_empty() {
            return Ok(format!("{}; the slowest:{}", some(sum.passed), sum.slowest()));
        }
        Err(Error::Failed(failures(&sum, args.repeat, &log.path)))
    })?;
    none_is_no_proof(passed)?;
    let mut skipped = String::new();
    stages.run("skipped tests", |_| {
        let seen = lines_of(&skips)?;
        let listed = lines_of(&workspace::root().join("tests/skips.txt"))?;
        let unexplained = seen.iter().filter(|line| !reference.explains(line)).cloned().collect();
        expected(&unexplained, &listed)?;
        skipped = if seen.is_empty() { String::new() } else { format!("; {} tests skipped", seen.len()) };
        let others = seen.len() - unexplained.len();
        let told =
            if others == 0 { String::new() } else { format!(", but {others} for the reference plugins") };
        Ok(format!("{} skipped here, all of them listed in tests/skips.txt{told}", seen.len()))
    })?;
    if args.filter.is_none() {
        stages.run("documentation", |log| {
            let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
            doc.env("RUSTDOCFLAGS", "--deny warnings");
            run::log(&mut doc, &log.file)?;
            let links = links::check(workspace::root())?;
            let commands = docs_check::check(workspace::root(), &Flavour::Debug.binary())?;
            let words = words::check(workspace::root())?;
            Ok(format!("{links} links in the pages lead somewhere; {commands}; {words}"))
        })?;
    }
    if args.filter.is_none() && !args.no_vm {
        let verdict = vm_test::smoke(stages, args.require)?;
        if !verdict.skipped.is_empty() {
            let kernels = verdict.skipped.join(", ");
            skipped.push_str(&format!("; SKIP: not run on Linux {kernels}, see above"));
        }
    }
    Ok(skipped)
}

/// The real runtimes, on the release build without shared libraries: theirs may be another distribution's
/// than the machine's.
fn run_runtimes(args: &Args, stages: &mut Stages) -> Result<String> {
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
    let mut bin_dir = PathBuf::new();
    stages.run("build", |log| {
        quiet(Flavour::Static.cargo_build()?, log)?;
        bin_dir = plugin_dir(Flavour::Static, log)?;
        build::size(&Flavour::Static.binary())
    })?;
    let suite = ["test", "--package", NETWORK_TESTS, "--test", "real"];
    stages.run("build tests", |log| quiet(cargo(&[&suite[..], &["--no-run"]].concat()), log))?;
    let skips = no_skips()?;
    stages.run("tests", |log| {
        let mut command = cargo(&[&suite[..], &["--no-fail-fast"]].concat());
        command.env("SLIPWAY_BIN_DIR", &bin_dir).env("SLIPWAY_SKIPS", &skips);
        command.env("SLIPWAY_RUNTIMES", fetched.dir());
        let count = tests(with_filter(command, args), log)?;
        none_is_no_proof(count)?;
        Ok(some(count))
    })?;
    let reference =
        if args.filter.is_none() { compare(args, stages, &bin_dir, &skips)? } else { Reference::none() };
    let seen = lines_of(&skips)?;
    let explained = |line: &str| fetched.explains(line) || reference.explains(line);
    let listed = lines_of(&workspace::root().join("tests/skips.txt"))?;
    expected(&seen, &allowed_with_runtimes(&seen, listed, explained))?;
    Ok(if seen.is_empty() { String::new() } else { format!("; {} tests skipped, see above", seen.len()) })
}

/// Those of the network tests in which the reference plugins work, with the newest of them.
fn compare(args: &Args, stages: &mut Stages, bin_dir: &Path, skips: &Path) -> Result<Reference> {
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

/// The skips that the tests of runtimes may have: what could not be fetched, and what the list of the other tests
/// has that is not fetched for these.
fn allowed_with_runtimes(
    seen: &BTreeSet<String>,
    listed: BTreeSet<String>,
    explained: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let fetched = |line: &str| line.starts_with("real::") || reference::is_needed(line);
    let others = listed.into_iter().filter(|line| !fetched(line));
    seen.iter().filter(|line| explained(line)).cloned().chain(others).collect()
}

/// The reference plugins of these suites; those that cannot be had are told.
fn references(stages: &mut Stages, suites: &[&'static str], require: bool) -> Result<Reference> {
    let mut found = None;
    stages.run("reference plugins", |_| Ok(found.insert(Reference::find(suites)).summary()))?;
    let found = found.ok_or_else(|| Error::Failed("nobody looked for the reference plugins".to_owned()))?;
    for reason in found.missing() {
        if require {
            return Err(Error::Failed(reason));
        }
        println!("  SKIP  {reason}");
    }
    Ok(found)
}

/// The file that tests write their skips to, empty.
fn no_skips() -> Result<PathBuf> {
    let skips = workspace::scratch("test")?.join("skips.txt");
    fs::write(&skips, "").map_err(|e| Error::file("empty", &skips, e))?;
    Ok(skips)
}

fn with_filter(mut command: Command, args: &Args) -> Command {
    command.args(args.filter.as_slice());
    command
}

fn quiet(mut command: Command, log: &Log) -> Result<String> {
    run::log(&mut command, &log.file).map(|()| String::new())
}

/// For people.
fn some(tests: usize) -> String {
    format!("{tests} tests")
}

/// # Errors
/// Nothing was tested.
fn none_is_no_proof(tests: usize) -> Result<()> {
    match tests {
        0 => Err(Error::Failed("no test was run: none has such a name".to_owned())),
        _ => Ok(()),
    }
}

/// Runs a `cargo test` to the end, counts what passed and names what failed.
fn tests(mut command: Command, log: &Log) -> Result<usize> {
    let outcome = run::log_while_it_talks(command.env("CARGO_TERM_COLOR", "never"), &log.file, SILENCE);
    let printed = fs::read(&log.path).map_err(|e| Error::file("read", &log.path, e))?;
    let printed = String::from_utf8_lossy(&printed);
    let failed = failed(&printed);
    match outcome {
        Ok(()) => Ok(passed(&printed)),
        Err(e) if failed.is_empty() => Err(e),
        Err(_) => Err(Error::Failed(format!(
            "{} of {} tests failed (all of it is in {}):\n    {}",
            failed.len(),
            failed.len() + passed(&printed),
            log.path.display(),
            failed.join("\n    ")
        ))),
    }
}

/// The names in libtest's `test NAME ... FAILED` lines.
fn failed(printed: &str) -> Vec<&str> {
    printed.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED")).collect()
}

/// The sum of libtest's `test result: ok. N passed; …` and `test result: FAILED. N passed; …` lines.
pub(crate) fn passed(printed: &str) -> usize {
    let results = printed.lines().filter_map(|line| line.strip_prefix("test result: "));
    results.filter_map(|rest| rest.split(' ').nth(1)?.parse::<usize>().ok()).sum()
}

/// A plugin directory in the target folder, made by the binary itself.
fn plugin_dir(flavour: Flavour, log: &Log) -> Result<PathBuf> {
    let name = if flavour == Flavour::Static { "bin-static" } else { "bin" };
    let dir = workspace::scratch("test")?.join(name);
    let mut install = Command::new(flavour.binary());
    run::log(install.args(["install", "--to"]).arg(&dir), &log.file)?;
    Ok(dir)
}

/// The programs of the network tests, built.
fn network_tests(log: &Log) -> Result<Vec<TestProgram>> {
    let copy = log.file.try_clone().map_err(|e| Error::system("duplicate the log's descriptor", e))?;
    let words = ["test", "--package", NETWORK_TESTS, "--no-run", "--message-format=json-render-diagnostics"];
    // Cargo writes its progress to standard error.
    run::capture_with(cargo(&words).env("CARGO_TERM_COLOR", "never"), copy).map(|text| test_programs(&text))
}

/// A line per test that failed, and where its output is.
fn failures(sum: &Summary, repeat: usize, log: &Path) -> String {
    let line = |(title, times): (&String, &usize)| match repeat {
        0 | 1 => format!("\n    {title}"),
        _ => format!("\n    {title}: {times} of {repeat} times"),
    };
    let lines: String = sum.failed.iter().map(line).collect();
    let tests = sum.passed + sum.failed.values().sum::<usize>();
    format!("{} of {tests} failed (all of it is in {}):{lines}", tests - sum.passed, log.display())
}

/// The words before a program that give it root's rights over namespaces that it makes.
fn as_root() -> Result<Vec<String>> {
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
    use super::*;

    fn set(lines: &[&str]) -> BTreeSet<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn results_are_summed_over_all_test_programs() {
        let printed = "test result: ok. 17 passed; 0 failed; 0 ignored\ntest a::b ... FAILED\ntest c ... ok\n\
                       test result: FAILED. 3 passed; 1 failed; 0 ignored\n";
        assert_eq!(passed(printed), 20);
        assert_eq!(failed(printed), ["a::b"]);
    }

    #[test]
    fn what_was_fetched_for_a_test_is_no_reason_to_skip_it() {
        let runtime = "real::podman::a_reboot: skipped: needs podman of Debian bookworm";
        let reference = "gc::what_the_reference_made: skipped: needs the reference plugins";
        let kernel = "migrate::programs::x: skipped: needs vrf";
        let all = set(&[runtime, reference, kernel]);
        assert_eq!(allowed_with_runtimes(&all, all.clone(), |_| false), set(&[kernel]));
        let explained = |line: &str| line == runtime;
        assert_eq!(allowed_with_runtimes(&all, all.clone(), explained), set(&[kernel, runtime]));
        assert!(none_is_no_proof(0).is_err() && none_is_no_proof(1).is_ok());
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
