// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask ebpf`: the BPF programs, which the binary carries.
//!
//! The repository has them as one object ([`committed`]), so that nobody needs their compiler who does not change them.
//! `cargo xtask test` and `dist` build them from the sources and compare the bytes. They are built by a compiler of their
//! own ([`toolchain`]) and linked by bpf-linker ([`linker`]) into `target/ebpf/slipway.o`, where the build script of
//! cni/dataplane looks first. What was built, and the linker, are cached in the user's cache folder: together they take a
//! minute and a half of CPU time.

mod committed;
mod linker;
mod slim;
#[path = "../../../ebpf/sources.rs"]
mod sources;
mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use committed::Committed;
use toolchain::Toolchain;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, cargo};
use xtask_base::workspace::{self, Lock};

/// The target of the BPF programs: little-endian, as x86-64 and ARM64.
const TARGET: &str = "bpfel-unknown-none";

/// Build the BPF programs that the binary carries, from their sources
///
/// The compiler is Debian's rustc-web with its core library for BPF, or a nightly toolchain with rust-src,
/// whichever is installed. If neither is, it is installed: by apt-get if that has it, else by rustup. After a change of the
/// sources, `--commit` renews the object in the repository, which all other builds take.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Put the object into ebpf/object, to be committed with the sources
    #[arg(long, conflicts_with = "lint")]
    commit: bool,
    /// Build twice, in different folders and without the cache, and compare the bytes
    #[arg(long)]
    verify: bool,
    /// Only the lints of the programs
    #[arg(long, conflicts_with = "verify")]
    lint: bool,
}

/// Runs the task.
pub fn run(args: &Args) -> Result<()> {
    if args.lint {
        return lint(run::show);
    }
    let show = run::show;
    if args.verify {
        println!("{}", verify(show)?);
    }
    let toolchain = Toolchain::require(&show)?;
    println!("{}", ensure_in(workspace::root(), &toolchain, &show)?);
    if args.commit {
        let sources = digest(workspace::root())?;
        Committed::write(
            workspace::root(),
            &object(workspace::root()),
            &sources,
            &toolchain.identity(linker::VERSION),
        )?;
    }
    Ok(())
}

/// The BPF programs of a binary that is to be built.
#[derive(Debug)]
pub enum Programs {
    /// The programs were built; the text says how, for people.
    Built(String),
    /// There is no compiler for the programs; the text says why, and how to get one.
    Missing(String),
}

impl Programs {
    /// A summary for the line of a stage.
    pub fn summary(&self) -> String {
        match self {
            Self::Built(how) => how.clone(),
            Self::Missing(_) => "left out: there is no compiler for BPF".to_owned(),
        }
    }

    /// The line about what a binary without them lacks, to be printed last, where it is read.
    pub fn left_out(&self) -> Option<String> {
        match self {
            Self::Built(_) => None,
            Self::Missing(why) => Some(format!("LEFT OUT: the eBPF backend: {}", why.trim_end())),
        }
    }
}

/// The path of a checkout's object, where the build script of cni/dataplane looks for it.
fn object(checkout: &Path) -> PathBuf {
    checkout.join("target/ebpf/slipway.o")
}

/// Takes the committed object. Only if the sources were changed after it, the object is built, unless the cache has it;
/// a toolchain is installed if there is none. Returns a summary. `execute` runs the commands that may take long.
pub fn ensure(execute: impl Fn(&mut Command) -> Result<()>) -> Result<String> {
    let checkout = workspace::root();
    if let Some(committed) = Committed::current(checkout, &digest(checkout)?) {
        put(checkout, &committed.object)?;
        return Ok(format!("{} bytes, as committed, by {}", size(&committed.object)?, committed.compiler));
    }
    ensure_in(checkout, &Toolchain::require(&execute)?, &execute)
}

/// Builds the object from the sources and compares it with the committed one.
///
/// # Errors
/// The committed one was built from other sources, or has other bytes although it was built by the same compiler.
pub fn rebuild(execute: impl Fn(&mut Command) -> Result<()>) -> Result<String> {
    let checkout = workspace::root();
    let renew = "`cargo xtask ebpf --commit` renews it";
    let Some(committed) = Committed::current(checkout, &digest(checkout)?) else {
        return Err(Error::Failed(format!("ebpf/object was built from other sources: {renew}")));
    };
    let toolchain = Toolchain::require(&execute)?;
    let summary = ensure_in(checkout, &toolchain, &execute)?;
    if committed.compiler != toolchain.identity(linker::VERSION) {
        return Ok(format!("{summary}; not compared with ebpf/object, which is by {}", committed.compiler));
    }
    let read = |path: &Path| fs::read(path).map_err(|e| Error::file("read", path, e));
    if read(&object(checkout))? != read(&committed.object)? {
        return Err(Error::Failed(format!("ebpf/object differs from what its sources give: {renew}")));
    }
    Ok(format!("{summary}: the same bytes as ebpf/object"))
}

/// Like [`ensure`], but a missing toolchain is not an error: the binary is then built without the BPF
/// programs.
pub(crate) fn if_possible(execute: impl Fn(&mut Command) -> Result<()>) -> Result<Programs> {
    match ensure(execute) {
        Ok(how) => Ok(Programs::Built(how)),
        Err(_) if is_current(workspace::root())? => {
            Ok(Programs::Built("as they were built before".to_owned()))
        }
        Err(e) => Ok(Programs::Missing(e.to_string())),
    }
}

/// Copies the built object of a checkout to another one with the same sources.
pub fn copy_built(from: &Path, to: &Path) -> Result<()> {
    let (from, to) = (object(from), object(to));
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|e| Error::file("create the directory", folder, e))?;
    }
    for (from, to) in [(from.with_extension("o.sources"), to.with_extension("o.sources")), (from, to)] {
        fs::copy(&from, &to).map_err(|e| Error::file("copy", &from, e))?;
    }
    Ok(())
}

/// True if a binary carries the object of this checkout.
pub fn is_in(binary: &[u8]) -> Result<bool> {
    let path = object(workspace::root());
    let object = fs::read(&path).map_err(|e| Error::file("read", &path, e))?;
    Ok(binary.windows(object.len()).any(|window| window == object))
}

/// True if a checkout has an object that was built from its sources.
fn is_current(checkout: &Path) -> Result<bool> {
    let object = object(checkout);
    let built_from = fs::read_to_string(object.with_extension("o.sources")).unwrap_or_default();
    Ok(object.is_file() && built_from.trim() == digest(checkout)?)
}

/// Builds the object of another checkout, a copy of the sources.
pub fn build_elsewhere(checkout: &Path, execute: impl Fn(&mut Command) -> Result<()>) -> Result<String> {
    let toolchain = Toolchain::require(&execute)?;
    let built = compile(checkout, &toolchain, &execute)?;
    put(checkout, &built)?;
    Ok(toolchain.to_string())
}

/// Builds in two folders and compares the bytes.
fn verify(execute: impl Fn(&mut Command) -> Result<()>) -> Result<String> {
    let toolchain = Toolchain::require(&execute)?;
    let copy = workspace::scratch("ebpf")?.join("elsewhere");
    if copy.exists() {
        fs::remove_dir_all(&copy).map_err(|e| Error::file("remove", &copy, e))?;
    }
    fs::create_dir_all(&copy).map_err(|e| Error::file("create the directory", &copy, e))?;
    for part in ["ebpf", "rust-toolchain.toml"] {
        run::capture(run::tool("cp", &["--recursive"]).arg(workspace::root().join(part)).arg(&copy))?;
    }
    let (here, there) =
        (compile(workspace::root(), &toolchain, &execute)?, compile(&copy, &toolchain, &execute)?);
    run::capture(Command::new("cmp").args([&here, &there]))?;
    Ok("two builds in different folders: the same bytes".to_owned())
}

/// Checks the format of the BPF programs and of `abi`, and runs clippy over them. Clippy runs for the
/// machine's own target: the compiler for BPF has no clippy.
pub fn lint(execute: impl Fn(&mut Command) -> Result<()>) -> Result<()> {
    let own = workspace::scratch("ebpf")?.join("lint");
    let manifest = workspace::root().join("ebpf/Cargo.toml");
    let mut format = cargo(&["fmt", "--all", "--check", "--manifest-path"]);
    execute(format.arg(&manifest))?;
    let mut clippy = cargo(&["clippy", "--quiet", "--workspace", "--locked", "--manifest-path"]);
    clippy.arg(&manifest).args(["--", "--deny", "warnings"]).env("CARGO_TARGET_DIR", own);
    execute(&mut clippy)
}

/// The command for the unit tests of `abi`.
pub(crate) fn unit_tests() -> Result<Command> {
    let own = workspace::scratch("ebpf")?.join("lint");
    let mut command = cargo(&["test", "--no-fail-fast", "--package", "slipway-ebpf-abi", "--manifest-path"]);
    command.arg(workspace::root().join("ebpf/Cargo.toml")).env("CARGO_TARGET_DIR", own);
    Ok(command)
}

fn ensure_in(
    checkout: &Path,
    toolchain: &Toolchain,
    execute: &impl Fn(&mut Command) -> Result<()>,
) -> Result<String> {
    let sources = digest(checkout)?;
    let cache = workspace::cache()?;
    // Of two concurrent tasks, the second waits and finds the object of the first.
    let _lock = Lock::take(&cache.join("lock"))?;
    let kept = cache.join(format!("slipway-{}.o", toolchain.key(&sources, [linker::VERSION, slim::VERSION])));
    let how = if kept.is_file() {
        "as it was built before"
    } else {
        let built = compile(checkout, toolchain, execute)?;
        let new = cache.join("slipway.o.new");
        fs::copy(&built, &new).map_err(|e| Error::file("copy", &built, e))?;
        fs::rename(&new, &kept).map_err(|e| Error::file("rename", &new, e))?;
        "built"
    };
    put(checkout, &kept)?;
    Ok(format!("{} bytes, {how}, by {toolchain}", size(&kept)?))
}

/// Compiles and links below the target folder, and returns the object's path.
fn compile(
    checkout: &Path,
    toolchain: &Toolchain,
    execute: &impl Fn(&mut Command) -> Result<()>,
) -> Result<PathBuf> {
    let linker = linker::ensure(toolchain, &workspace::cache()?, execute)?;
    let target = checkout.join("target/xtask/ebpf/build");
    let mut command = toolchain.cargo(&["build", "--release", "--locked", "--target", TARGET]);
    command.current_dir(checkout.join("ebpf")).env("CARGO_TARGET_DIR", &target);
    let mut flags = vec![
        // Selects aya-ebpf's declarations for a processor, which these programs do not use; the value is
        // fixed so that the object is the same everywhere.
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        // BTF: with it the verifier's log has source lines, and maps have named types.
        "-Clink-arg=--btf".to_owned(),
    ];
    // Line numbers would otherwise contain paths of the build machine.
    for (from, to) in [(checkout, "slipway"), (workspace::cargo_home()?.as_path(), "cargo")] {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    command.env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &linker);
    execute(&mut command)?;
    let built = target.join(TARGET).join("release/slipway");
    let kept = built.with_file_name("slipway.o");
    let object = fs::read(&built).map_err(|e| Error::file("read", &built, e))?;
    let object =
        slim::slim(&object).ok_or_else(|| Error::Failed(format!("{} is no ELF object", built.display())))?;
    fs::write(&kept, object).map_err(|e| Error::file("write", &kept, e))?;
    Ok(kept)
}

/// Copies the object to where cni/dataplane looks for it. An equal file is not touched, which would make
/// cargo rebuild all that contains it.
fn put(checkout: &Path, built: &Path) -> Result<()> {
    let (object, sources) = (object(checkout), digest(checkout)?);
    let folder = object.parent().unwrap_or(checkout);
    fs::create_dir_all(folder).map_err(|e| Error::file("create the directory", folder, e))?;
    let bytes = fs::read(built).map_err(|e| Error::file("read", built, e))?;
    for (path, content) in [(object.clone(), bytes), (folder.join("slipway.o.sources"), sources.into_bytes())]
    {
        if fs::read(&path).ok().as_ref() != Some(&content) {
            fs::write(&path, content).map_err(|e| Error::file("write", &path, e))?;
        }
    }
    Ok(())
}

fn digest(checkout: &Path) -> Result<String> {
    let ebpf = checkout.join("ebpf");
    sources::digest(&ebpf).map_err(|e| Error::file("read", &ebpf, e))
}

fn size(object: &Path) -> Result<u64> {
    Ok(fs::metadata(object).map_err(|e| Error::file("look at", object, e))?.len())
}
