// SPDX-License-Identifier: MIT OR Apache-2.0

//! Builds Kubernetes' programs from Debian 12's source package, with the tools of Debian 12. The tools are unpacked
//! into a separate root file system, in which `make` runs without a network, and nothing is installed. apt verifies its
//! downloads by the checksums in the lists that Debian signs.
//!
//! An interrupted build can be continued: root file system and source get their names only when they are complete, the
//! source is marked when its generated files are complete, and Go keeps the packages that it has compiled.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use nix::unistd::Uid;

use super::Program;
use xtask_base::apt_root::{self, AptRoot};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::Log;
use xtask_base::run::{self, tool};
use xtask_base::workspace;

/// The suite with the source of Kubernetes' programs, and its Go, which newer suites lack.
const SUITE: &str = "bookworm";
const SOURCE: &str = "kubernetes";

/// The packages of the build. bash, the text tools and rsync run the source's scripts.
const PACKAGES: [&str; 13] = [
    "bash",
    "coreutils",
    "debianutils",
    "diffutils",
    "findutils",
    "gawk",
    "golang-1.19-go",
    "golang-github-modern-go-reflect2-dev",
    "grep",
    "make",
    "rsync",
    "sed",
    "tar",
];

/// The links that the installation of packages makes: their names in `/usr/bin`, and their targets.
const LINKS: [(&str, &str); 3] = [("awk", "gawk"), ("sh", "bash"), ("which", "which.debianutils")];

/// The library whose copy in the source is too old for Go 1.18 and newer; below `vendor` in the source and below Go's
/// path in Debian's package.
const REFLECT2: &str = "github.com/modern-go/reflect2";
const GO_PATH: &str = "usr/share/gocode/src";

/// The version of the source, as the programs print it.
const VERSION: &str = "Kubernetes v1.20.2";

/// The space that tools, source and compiled packages need, and that of one program.
const SPACE: u64 = 2_700_000_000;
const SPACE_FOR_PROGRAM: u64 = 250_000_000;

/// The operation that fails without a network.
const FETCH: &str = "fetch Debian 12's Go and source of Kubernetes";

/// The longest time in which a build may print nothing: it prints each package, then links.
const SILENCE: Duration = Duration::from_secs(1800);

/// The environment of `make`, besides the platform. The time, of the day of the release, replaces that of the build in
/// the programs.
const ENVIRONMENT: [&str; 7] = [
    "PATH=/usr/lib/go-1.19/bin:/usr/bin",
    "HOME=/tmp",
    "LC_ALL=C",
    "CGO_ENABLED=0",
    "GOFLAGS=-v",
    "GOLDFLAGS=-s -w",
    "SOURCE_DATE_EPOCH=1610544000",
];

/// Binds the devices into the root file system, mounts `/proc` there, and runs a command inside.
const INSIDE: &str =
    "mount --rbind /dev \"$0/dev\" && mount -t proc proc \"$0/proc\" && exec chroot \"$0\" \"$@\"";

/// The folder of a build.
#[derive(Debug)]
pub(super) struct Build {
    dir: PathBuf,
}

impl Build {
    /// Fetches the tools and the source, where an earlier build has not; before, checks the space for the programs.
    pub(super) fn prepare(programs: &[Program]) -> Result<Self> {
        architecture()?;
        let build = Self { dir: workspace::scratch("kube/build")? };
        build.check_space(programs)?;
        build.fetch_tools().and_then(|()| build.fetch_source()).map_err(|e| short(&e))?;
        Ok(build)
    }

    fn check_space(&self, programs: &[Program]) -> Result<()> {
        let disk = statvfs(&self.dir).map_err(|e| Error::file("read the free space of", &self.dir, e))?;
        let free = disk.blocks_available() * disk.fragment_size();
        let used = run::capture(tool("du", &["--summarize", "--block-size=1"]).arg(&self.dir))?;
        let used = used.split_whitespace().next().and_then(|size| size.parse().ok()).unwrap_or_default();
        enough(free, used, programs).map_err(|problem| {
            Error::Failed(format!(
                "{problem} in {}; make space, or let CARGO_TARGET_DIR name a folder on another disk",
                self.dir.display()
            ))
        })
    }

    /// The root file system with the tools.
    fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The source, inside the root file system.
    fn source(&self) -> PathBuf {
        self.root().join("src")
    }

    /// The file that exists when the source has its generated files.
    fn generated(&self) -> PathBuf {
        self.source().join("_output/generated")
    }

    fn fetch_tools(&self) -> Result<()> {
        let (root, new) = (self.root(), self.dir.join("root.new"));
        if root.is_dir() {
            // A killed compiler leaves its files.
            let temporary = root.join("tmp");
            workspace::remove(&temporary)?;
            return fs::create_dir(&temporary)
                .map_err(|e| Error::file("create the directory", &temporary, e));
        }
        workspace::remove(&new)?;
        apt_root::merged_usr(&new)?;
        AptRoot::open(SUITE)?.fetch_all(&PACKAGES, &new)?;
        for (name, target) in LINKS {
            let link = new.join("usr/bin").join(name);
            workspace::remove(&link)?;
            symlink(target, &link).map_err(|e| Error::file("link", &link, e))?;
        }
        for name in ["dev", "proc", "tmp"] {
            let dir = new.join(name);
            files::create_dir(&dir)?;
        }
        files::rename(&new, &root)
    }

    fn fetch_source(&self) -> Result<()> {
        let (source, new) = (self.source(), self.root().join("src.new"));
        // An interrupted generator leaves a part of a file, which `make` takes for a whole one.
        if self.generated().is_file() {
            return Ok(());
        }
        let archive = AptRoot::open(SUITE)?.fetch_source(SOURCE)?;
        workspace::remove(&source)?;
        workspace::remove(&new)?;
        files::create_dir(&new)?;
        let mut tar = tool("tar", &["--extract", "--strip-components=1", "--file"]);
        run::capture(tar.arg(archive).arg("--directory").arg(&new))?;
        replace_sources(&new.join("vendor").join(REFLECT2), &self.root().join(GO_PATH).join(REFLECT2))?;
        files::rename(&new, &source)
    }

    /// Generates source files, where a build before this one has not.
    pub(super) fn generate(&self, log: &Log) -> Result<()> {
        let generated = self.generated();
        if generated.is_file() {
            return Ok(());
        }
        self.make("generated_files", log)?;
        files::write(&generated, "")
    }

    /// Builds a program and puts it next to the others. Returns its size, for people.
    pub(super) fn program(&self, program: Program, log: &Log) -> Result<String> {
        self.make(&format!("WHAT=cmd/{}", program.name), log)?;
        let bin = format!("_output/local/bin/linux/{}", architecture()?);
        let built = self.source().join(bin).join(program.name);
        let version = run::capture(&mut tool(&built.to_string_lossy(), &["--version"]))?;
        if version.trim() != VERSION {
            return Err(Error::Failed(format!(
                "{} prints `{}` as its version, not `{VERSION}`",
                built.display(),
                version.trim()
            )));
        }
        let size = fs::metadata(&built).map_err(|e| Error::file("read the size of", &built, e))?.len();
        super::copy(&built, &super::directory()?.join(program.name))?;
        Ok(format!("{} MB", size / 1_000_000))
    }

    fn make(&self, target: &str, log: &Log) -> Result<()> {
        let words = inside(&self.root(), Uid::effective().is_root(), architecture()?, target);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        run::log_while_it_prints(&mut tool("setpriv", &words), &log.file, SILENCE)
    }

    /// Removes tools, source and compiled packages.
    pub(super) fn finish(self) -> Result<()> {
        workspace::remove(&self.dir)
    }
}

/// Describes a failed download or unpacking by the first error: apt prints a line for each of forty packages.
fn short(e: &Error) -> Error {
    let (how, output) = match e {
        Error::Command { how, output, .. } => (how, output),
        other => return Error::Failed(format!("{FETCH}: {other}")),
    };
    let mut lines: Vec<&str> = output.lines().map(str::trim).filter(|line| line.starts_with("E: ")).collect();
    if lines.is_empty() {
        lines = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    }
    let Some(first) = lines.first() else { return Error::Failed(format!("{FETCH}: {e}")) };
    let more = match lines.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Error::Failed(format!("{FETCH}: a command {how}: {}{more}", first.trim_start_matches("E: ")))
}

/// The arguments of setpriv(1) that run `make` in the root file system, in namespaces of its own: without a network,
/// and so that all of its processes end when this one does.
fn inside(root: &Path, is_root: bool, architecture: &str, target: &str) -> Vec<String> {
    // A user is root in a user namespace.
    let user: &[&str] = if is_root { &[] } else { &["--user", "--map-root-user"] };
    let root = root.to_string_lossy();
    let platform = format!("KUBE_BUILD_PLATFORMS=linux/{architecture}");
    let all = [
        &["--pdeathsig=KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"],
        user,
        &["sh", "-c", INSIDE, &root, "/usr/bin/env", "--ignore-environment"],
        &ENVIRONMENT,
        &[&platform, "/usr/bin/make", "--directory=/src", target],
    ]
    .concat();
    all.into_iter().map(str::to_owned).collect()
}

/// Go's and Debian's name for the machine's architecture.
fn architecture() -> Result<&'static str> {
    match apt_root::debian_architecture() {
        known @ ("amd64" | "arm64") => Ok(known),
        other => {
            Err(Error::Failed(format!("Kubernetes' programs are built for amd64 and arm64, not for {other}")))
        }
    }
}

/// Space that a build needs, and the disk does not have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the build of {programs} needs {} MB of disk space, and {} MB are free", needed.div_ceil(1_000_000), free / 1_000_000)]
struct LackOfSpace {
    programs: String,
    needed: u64,
    free: u64,
}

/// Checks the free space, of which an earlier build may have used some.
fn enough(free: u64, used: u64, programs: &[Program]) -> Result<(), LackOfSpace> {
    let needed = programs.iter().fold(SPACE, |sum, _| sum + SPACE_FOR_PROGRAM).saturating_sub(used);
    if free >= needed {
        return Ok(());
    }
    let names: Vec<&str> = programs.iter().map(|program| program.name).collect();
    Err(LackOfSpace { programs: names.join(", "), needed, free })
}

/// Replaces the Go and assembly files of a library by another version's, without its tests.
fn replace_sources(old: &Path, new: &Path) -> Result<()> {
    for file in sources(old)? {
        workspace::remove(&file)?;
    }
    for file in sources(new)? {
        let name = file.file_name().unwrap_or_default();
        if !name.to_string_lossy().ends_with("_test.go") {
            files::copy(&file, old.join(name))?;
        }
    }
    Ok(())
}

fn sources(dir: &Path) -> Result<Vec<PathBuf>> {
    let is_source = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "go" || kind == "s");
    let found: Vec<_> = files::list(dir)?.into_iter().filter(is_source).collect();
    if found.is_empty() {
        return Err(Error::Failed(format!("{} has no source files of Go", dir.display())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: [Program; 2] =
        [Program { name: "kube-proxy", of_kubelets: false }, Program { name: "kubelet", of_kubelets: true }];

    #[test]
    fn the_space_that_is_missing_is_named() {
        assert_eq!(enough(3_200_000_000, 0, &TWO), Ok(()));
        assert_eq!(
            enough(1_000_000_000, 0, &TWO).unwrap_err().to_string(),
            "the build of kube-proxy, kubelet needs 3200 MB of disk space, and 1000 MB are free"
        );
        // An interrupted build has used some of it.
        assert_eq!(enough(1_000_000_000, 2_200_000_000, &TWO), Ok(()));
        assert_eq!(enough(0, 4_000_000_000, &TWO), Ok(()));
    }

    #[test]
    fn make_runs_inside_the_root_and_a_user_is_root_there() {
        let line = |is_root| inside(Path::new("/a b/root"), is_root, "amd64", "WHAT=cmd/kubelet").join("|");
        let root = line(true);
        assert!(root.contains("|--kill-child|sh|-c|"), "{root}");
        assert!(
            root.contains(&format!("|{INSIDE}|/a b/root|/usr/bin/env|--ignore-environment|PATH=")),
            "{root}"
        );
        assert!(
            root.ends_with(
                "|KUBE_BUILD_PLATFORMS=linux/amd64|/usr/bin/make|--directory=/src|WHAT=cmd/kubelet"
            ),
            "{root}"
        );
        assert!(line(false).contains("|--kill-child|--user|--map-root-user|sh|"));
    }

    #[test]
    fn a_failed_download_is_described_by_its_first_error() {
        let failed = |output: &str| {
            let (command, how) = ("apt-get -q install".to_owned(), "ended with exit status: 100".to_owned());
            short(&Error::Command { command, how, output: output.to_owned() }).to_string()
        };
        let beginning =
            "fetch Debian 12's Go and source of Kubernetes: a command ended with exit status: 100: ";
        assert_eq!(
            failed("\n    Reading lists...\n    E: Failed to fetch a\n    E: Failed to fetch b"),
            format!("{beginning}Failed to fetch a (and 1 more)")
        );
        assert_eq!(failed("\n    tar: no space left"), format!("{beginning}tar: no space left"));
        assert!(failed("").ends_with("Kubernetes: `apt-get -q install` ended with exit status: 100"));
        let other = short(&Error::Failed("packages need apt-get".to_owned())).to_string();
        assert_eq!(other, "fetch Debian 12's Go and source of Kubernetes: packages need apt-get");
    }

    #[test]
    fn a_library_is_replaced_without_its_tests() {
        let dir = std::env::temp_dir().join(format!("slipway-kube-build-{}", std::process::id()));
        let (old, new) = (dir.join("old"), dir.join("new"));
        for (folder, names) in [
            (&old, &["a.go", "old_386.s", "LICENSE"][..]),
            (&new, &["a.go", "b.go", "b_test.go", "b_arm64.s", "README"]),
        ] {
            fs::create_dir_all(folder).unwrap();
            for name in names {
                fs::write(folder.join(name), folder.to_string_lossy().as_bytes()).unwrap();
            }
        }
        replace_sources(&old, &new).unwrap();
        let mut names: Vec<_> = fs::read_dir(&old).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["LICENSE", "a.go", "b.go", "b_arm64.s"]);
        assert_eq!(fs::read_to_string(old.join("a.go")).unwrap(), new.to_string_lossy());
        let empty = dir.join("empty");
        fs::create_dir(&empty).unwrap();
        let error = replace_sources(&old, &empty).unwrap_err().to_string();
        assert!(error.ends_with("/empty has no source files of Go"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
