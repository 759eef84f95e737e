// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask dist`: builds the binaries that are shipped and checks their properties.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::builder::PossibleValuesParser;
use serde_json::Value;

use crate::built::{Built, PROGRAMS, Program};
use crate::cross::Cross;
use crate::package::{self, Format};
use crate::toolchain::{self, Toolchain};
use xtask::build::{self, Profile};
use xtask::ebpf;
use xtask::setup;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::{Log, Stages};
use xtask_base::run::{self, cargo, tool};
use xtask_base::tools::{CARGO_AUDITABLE, RUST_AUDIT_INFO};
use xtask_base::workspace;

/// Build the binaries that are shipped: static, stripped, reproducible in any folder, with the lists of their
/// dependencies.
///
/// They are put into target/dist with their manual pages, completions and checksums. `--verify` builds a copy of
/// the sources in another folder and compares the bytes, which also depend on the toolchain and the C library.
/// A binary for another processor is run under an emulator: the plugins' VERSION and the unit tests, no ADD and no
/// installation.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Target processor; if it is not this machine's, compiler and libraries for it are fetched
    #[arg(long, value_name = "ARCH", default_value = ARCH, value_parser = PossibleValuesParser::new(toolchain::targets()))]
    target: String,
    /// Build twice, in different folders, and compare the bytes
    #[arg(long)]
    verify: bool,
    /// Do not run the tests of the binary, which need root
    #[arg(long)]
    no_test: bool,
    /// Make packages for Debian, too, and check them with lintian
    #[arg(long)]
    deb: bool,
    /// Make rpm packages, too, and check them with rpmlint
    #[arg(long)]
    rpm: bool,
    /// Make the packages of the binaries that the last run has left
    #[arg(long, conflicts_with = "verify")]
    reuse: bool,
}

/// The checks of a binary that take long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Proof {
    /// Build it again in another folder and compare the bytes.
    pub(crate) verify: bool,
    /// Run it.
    pub(crate) test: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let stages = Stages::new("dist")?;
    let proof = Proof { verify: args.verify, test: !args.no_test };
    let built = if args.reuse { reuse(&args.target, &stages)? } else { make(&args.target, proof, &stages)? };
    let out = out_dir(&args.target);
    let formats = Format::chosen(args.deb, args.rpm);
    if !formats.is_empty() {
        packages(&built, &formats, &out, args.verify, &stages)?;
    }
    let sum = run::capture(tool("sha256sum", &PROGRAMS.map(|program| program.name)).current_dir(&out))?;
    let file = out.join("SHA256SUMS");
    files::write(&file, &sum)?;
    println!("{}\n{}", out.display(), sum.trim_end());
    Ok(())
}

/// The folder of the binaries for a processor.
pub(crate) fn out_dir(target: &str) -> PathBuf {
    workspace::target().join("dist").join(target)
}

/// Builds the binaries for a processor and checks them.
pub(crate) fn make(target: &str, proof: Proof, stages: &Stages) -> Result<Built> {
    stages.run("setup", |_| setup::ensure())?;
    let own = workspace::scratch("dist")?;
    let out = out_dir(target);
    files::create_dir(&out)?;
    let [plugins, agent] = PROGRAMS;
    let binary = out.join(plugins.name);
    let mut toolchain = Toolchain::Own;
    stages.run("toolchain", |_| {
        toolchain = Toolchain::find(target)?;
        match &toolchain {
            Toolchain::Own => Ok("this machine's own".to_owned()),
            Toolchain::Cross(cross) => cross.version(),
        }
    })?;
    stages.run("BPF programs", |log| ebpf::rebuild(|command| run::log(command, &log.file)))?;
    for program in [plugins, agent] {
        let Program { name, limit, .. } = program;
        let binary = out.join(name);
        stages.run(&format!("build {name}"), |log| {
            let copy = own.join("sources").join(name);
            copy_sources(program, &toolchain.triple(), &copy)?;
            ebpf::copy_built(workspace::root(), &copy)?;
            let built = build_in(&toolchain, program, &copy, &own.join("target"), log)?;
            files::copy(&built, &binary)?;
            build::size(&binary)
        })?;
        stages.run(&format!("look inside {name}"), |log| look_inside(&binary, limit, log))?;
    }
    if proof.verify {
        stages.run("build again elsewhere", |log| {
            let copy = |program: Program| own.join("elsewhere").join(program.name);
            for program in [plugins, agent] {
                copy_sources(program, &toolchain.triple(), &copy(program))?;
            }
            ebpf::build_elsewhere(&copy(plugins), |command| run::log(command, &log.file))?;
            ebpf::copy_built(&copy(plugins), &copy(agent))?;
            for program in [plugins, agent] {
                let again =
                    build_in(&toolchain, program, &copy(program), &own.join("target-elsewhere"), log)?;
                same(&out.join(program.name), &again)?;
            }
            Ok("the same bytes".to_owned())
        })?;
    }
    if proof.test {
        stages.run("run it", |log| match &toolchain {
            Toolchain::Own => test(&own, &binary, log),
            Toolchain::Cross(cross) => test_emulated(cross, &binary, &out.join(agent.name), log),
        })?;
    }
    described(&toolchain, &out, stages)
}

/// The binaries of the last run.
fn reuse(target: &str, stages: &Stages) -> Result<Built> {
    described(&Toolchain::find(target)?, &out_dir(target), stages)
}

/// The binaries in a folder, with what they write and print about themselves.
fn described(toolchain: &Toolchain, out: &Path, stages: &Stages) -> Result<Built> {
    let mut built = None;
    stages.run("manual pages and completions", |log| {
        let programs = PROGRAMS.map(|program| (program, out.join(program.name)));
        let built = built.insert(Built::of(toolchain, programs, out.join("share"), log)?);
        Ok(built.share.display().to_string())
    })?;
    built.ok_or_else(|| Error::Failed("nothing was built".to_owned()))
}

/// Makes the packages and checks them.
pub(crate) fn packages(
    built: &Built,
    formats: &[Format],
    out: &Path,
    verify: bool,
    stages: &Stages,
) -> Result<PathBuf> {
    let folder = package::folder(out);
    let build = package::Build { built, version: package::VERSION, checkout: workspace::root() };
    stages.run("packages", |_| {
        workspace::remove(&folder)?;
        Ok(build.write(formats, &folder)?.join(", "))
    })?;
    if verify {
        stages.run("packages again", |_| {
            let elsewhere = workspace::scratch("dist")?.join("elsewhere").join(PROGRAMS[0].name);
            build.verify(formats, &folder, &elsewhere)?;
            Ok("the same bytes".to_owned())
        })?;
    }
    stages.run("check packages", |log| package::lint::check(&folder, log))?;
    Ok(folder)
}

/// Builds a program of a checkout into a target folder and returns the binary's path.
fn build_in(
    toolchain: &Toolchain,
    program: Program,
    checkout: &Path,
    target: &Path,
    log: &Log,
) -> Result<PathBuf> {
    let mut command = with_dependency_list(&toolchain.static_build(&[program.name], Profile::Release)?, log)?;
    command.arg("--locked").current_dir(checkout).env("CARGO_TARGET_DIR", target);
    // Without these, panic messages hold the paths of the machine that built it.
    let home = workspace::cargo_home()?;
    let mut flags = build::STATIC_FLAGS.to_owned();
    for (from, to) in [(checkout, "slipway"), (home.as_path(), "cargo")] {
        if from.to_string_lossy().contains([' ', '=']) {
            return Err(Error::Failed(format!("{}: a blank or = in this path", from.display())));
        }
        flags.push_str(&format!(" --remap-path-prefix={}={to}", from.display()));
    }
    command.env("RUSTFLAGS", flags);
    run::log(&mut command, &log.file)?;
    Ok(target.join(toolchain.triple()).join("release").join(program.name))
}

/// The same cargo command, by way of cargo-auditable: the binary carries the names and versions of its
/// dependencies.
fn with_dependency_list(build: &Command, log: &Log) -> Result<Command> {
    let mut command = Command::new(CARGO_AUDITABLE.ensure(&log.file)?);
    command.arg("auditable").args(build.get_args()).env("CARGO", build.get_program());
    for (key, value) in build.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    Ok(command)
}

/// The dependencies that a binary lists, as the JSON of cargo-auditable.
pub(crate) fn dependency_list(binary: &Path, log: &Log) -> Result<Value> {
    let printed = run::capture(Command::new(RUST_AUDIT_INFO.ensure(&log.file)?).arg(binary))?;
    serde_json::from_str(&printed)
        .map_err(|e| Error::Failed(format!("read the binary's dependency list: {e}")))
}

/// Checks the file itself: its size, that it needs no loader, that it holds no path of this machine, and that
/// its list of dependencies can be read.
fn look_inside(binary: &Path, limit: u64, log: &Log) -> Result<String> {
    let bytes = files::read_bytes(binary)?;
    if bytes.len() as u64 > limit {
        return Err(Error::Failed(format!("{} bytes, the limit is {limit}", bytes.len())));
    }
    let headers = run::capture(tool("readelf", &["--wide", "--program-headers", "--sections"]).arg(binary))?;
    for unwanted in ["INTERP", "DYNAMIC", ".symtab", ".debug_info"] {
        if headers.split_whitespace().any(|word| word == unwanted) {
            return Err(Error::Failed(format!("has {unwanted}: not static, or not stripped")));
        }
    }
    for place in [workspace::root().to_owned(), workspace::cargo_home()?] {
        let text = place.to_string_lossy().into_owned();
        if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
            return Err(Error::Failed(format!("contains a path of this machine: {text}")));
        }
    }
    let list = dependency_list(binary, log)?;
    let listed = list["packages"].as_array().map_or(0, Vec::len);
    if listed == 0 {
        return Err(Error::Failed("its list of dependencies is empty".to_owned()));
    }
    Ok(format!("static, stripped, no path of this machine, lists {listed} packages"))
}

/// Copies the files that git tracks or would track into a new folder, as a workspace of one program.
///
/// cargo-auditable asks cargo for the dependencies, and cargo names those of a build of the whole workspace: with
/// the features that any member enables. So each program is built in a workspace of its own.
fn copy_sources(program: Program, triple: &str, to: &Path) -> Result<()> {
    workspace::remove(to)?;
    let words = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let files = run::capture(tool("git", &words).current_dir(workspace::root()))?;
    for file in files.lines() {
        let (from, copy) = (workspace::root().join(file), to.join(file));
        if !from.is_file() {
            continue;
        }
        if let Some(folder) = copy.parent() {
            files::create_dir(folder)?;
        }
        files::copy(&from, &copy)?;
    }
    let manifest = to.join("Cargo.toml");
    let text = files::read(&manifest)?;
    files::write(&manifest, alone(&text, program))?;
    // Cargo removes from the lock file what this program does not need.
    let words = ["metadata", "--format-version=1", "--filter-platform", triple];
    run::capture(cargo(&words).current_dir(to))?;
    let locked = |checkout: &Path| {
        let path = checkout.join("Cargo.lock");
        files::read(&path)
    };
    match added(&locked(workspace::root())?, &locked(to)?) {
        Some(package) => Err(Error::Failed(format!("Cargo.lock has not {package}: it is not up to date"))),
        None => Ok(()),
    }
}

/// The manifest of a workspace with one program. Its path dependencies are members without being named.
fn alone(manifest: &str, program: Program) -> String {
    let lines = manifest.lines().filter(|line| !line.starts_with("default-members = "));
    let members = format!("members = [\"{}\"]", program.package);
    lines.map(|line| if line.starts_with("members = ") { &members } else { line }.to_owned() + "\n").collect()
}

/// A package of a lock file that another one does not have: its name, version, source and checksum.
fn added(before: &str, after: &str) -> Option<String> {
    let packages = |lock: &str| -> Vec<String> {
        let sections = lock.split("\n[[package]]\n").skip(1);
        sections
            .map(|section| section.lines().take_while(|line| !line.starts_with("dependencies")).collect())
            .collect()
    };
    let before = packages(before);
    packages(after).into_iter().find(|package| !before.contains(package))
}

fn same(one: &Path, other: &Path) -> Result<()> {
    run::capture(Command::new("cmp").args([one, other])).map(drop)
}

/// Runs the tests of the shipped binary with a plugin directory that its own `install` made.
fn test(own: &Path, binary: &Path, log: &Log) -> Result<String> {
    let plugins = own.join("bin");
    workspace::remove(&plugins)?;
    run::log(Command::new(binary).args(["install", "--to"]).arg(&plugins), &log.file)?;
    let skips = own.join("skips.txt");
    fs::write(&skips, "").map_err(|e| Error::file("empty", &skips, e))?;
    let mut command = cargo(&["test", "--package", "slipway-tests", "--test", "dist"]);
    command.env("SLIPWAY_BIN_DIR", &plugins).env("SLIPWAY_SKIPS", &skips);
    run::log(&mut command, &log.file)?;
    let skipped = files::read(&skips)?;
    if !skipped.is_empty() {
        return Err(Error::Failed(format!("tests of the binary were skipped:\n{skipped}")));
    }
    let mut command = Command::new(binary);
    run::log(command.args(["uninstall", "--keep-state", "--to"]).arg(&plugins), &log.file)?;
    let left = files::list(&plugins)?;
    if !left.is_empty() {
        return Err(Error::Failed(format!("uninstall left {left:?}")));
    }
    Ok("in an empty file system: ADD, CHECK, DEL; installed and removed by itself".to_owned())
}

/// Unit tests that fail under QEMU's user emulation, with the files that have them: it does not translate ioctl_ns(2), does not
/// emulate programs that the emulated one starts, and does not report that a program cannot be started.
const NOT_EMULATED: [(&str, &str); 3] = [
    ("netns::tests::another_kind_of_namespace_is_refused", "cni/kernel/src/netns.rs"),
    ("skel::delegate::tests::a_busy_file_is_tried_again", "cni/plugins/src/skel/delegate_tests.rs"),
    ("skel::panic::tests::a_panic_is_printed_as_an_error", "cni/plugins/src/skel/panic.rs"),
];

/// Runs a binary of another architecture: every plugin's VERSION, and the unit tests.
fn test_emulated(cross: &Cross, binary: &Path, agent: &Path, log: &Log) -> Result<String> {
    let listed = run::capture(Command::new(cross.emulator()).arg(agent).args(["pod", "list", "--help"]))?;
    if !listed.starts_with("slipwayd pod list: ") {
        return Err(Error::Failed(format!("`slipwayd pod list --help` prints {listed}")));
    }
    let table = run::capture(Command::new(cross.emulator()).arg(binary).arg("plugins"))?;
    // A line per plugin: its name, and what it does.
    let names: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    if names.is_empty() {
        return Err(Error::Failed("`slipway plugins` lists none".to_owned()));
    }
    for name in names.iter().copied() {
        let mut command = Command::new(cross.emulator());
        // The binary acts by the name that it is called by.
        command.args(["-0", name]).arg(binary).env("CNI_COMMAND", "VERSION");
        let answer = run::feed(&mut command, "{\"cniVersion\":\"1.0.0\"}")?;
        if !answer.contains("\"supportedVersions\"") {
            return Err(Error::Failed(format!("{name} answers VERSION with {answer}")));
        }
    }
    let packages = [
        "cni-spec",
        "cni-netlink",
        "cni-kernel",
        "cni-nftables",
        "cni-dataplane",
        "cni-plugins",
        "slipway",
        "slipway-cli",
    ];
    let mut words = vec!["test", "--lib", "--bins"];
    words.extend(packages.iter().flat_map(|package| ["--package", package]));
    let mut command = cross.cargo(&words)?;
    command.arg("--").args(NOT_EMULATED.iter().flat_map(|(test, _)| ["--skip", test]));
    // Emulation is ten times slower; the whole of the random input is tried on the machine itself.
    run::log(command.env("PROPTEST_CASES", "16"), &log.file)?;
    let printed = files::read(&log.path)?;
    let passed = xtask_base::test_programs::passed(&printed);
    if passed == 0 {
        return Err(Error::Failed("no unit test was run".to_owned()));
    }
    let plugins = names.len();
    Ok(format!(
        "emulated: VERSION of {plugins} plugins, {passed} unit tests, {} left out",
        NOT_EMULATED.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_are_left_out_exist() {
        for (test, file) in NOT_EMULATED {
            let name = test.rsplit("::").next().unwrap();
            let text = fs::read_to_string(workspace::root().join(file)).unwrap();
            assert!(text.contains(&format!("fn {name}()")), "{test}");
        }
    }

    #[test]
    fn a_workspace_of_one_program_has_no_other_member() {
        let manifest =
            "[workspace]\nmembers = [\"a\", \"cni/node\"]\nexclude = [\"b\"]\ndefault-members = [\"a\"]\n";
        let want = "[workspace]\nmembers = [\"cni/node\"]\nexclude = [\"b\"]\n";
        assert_eq!(alone(manifest, PROGRAMS[1]), want);
        let own = fs::read_to_string(workspace::root().join("Cargo.toml")).unwrap();
        assert_eq!(alone(&own, PROGRAMS[0]).matches("members = [\"cni/slipway\"]").count(), 1);
    }

    #[test]
    fn a_lock_file_may_only_lose_packages() {
        let package = |name: &str, version: &str| {
            format!(
                "\n[[package]]\nname = \"{name}\"\nversion = \"{version}\"\ndependencies = [\n \"x\",\n]\n"
            )
        };
        let before = format!("version = 4\n{}{}", package("a", "1.0.0"), package("b", "1.0.0"));
        assert_eq!(
            added(&before, &format!("version = 4\n{}", package("b", "1.0.0").replace('x', "y"))),
            None
        );
        let other = added(&before, &format!("version = 4\n{}", package("b", "1.0.1"))).unwrap();
        assert!(other.contains("\"1.0.1\""), "{other}");
    }
}
