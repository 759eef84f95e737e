// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packages of any Debian suite, fetched by the machine's apt and unpacked below the target folder: static
//! libraries, kernels, peers to measure against.
//!
//! apt works in a private root with its own lists, cache and empty package status, and with the machine's
//! mirror, proxy settings and Debian's keyring. Nothing is installed. See apt.conf(5) for the `Dir::` names.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::files;
use crate::run::{self, tool};
use crate::workspace::{self, Lock};

/// Names a Debian archive if the machine's sources have none, `http://HOST/debian`. The security archive has
/// the same address with `-security`.
const MIRROR: &str = "SLIPWAY_DEBIAN_MIRROR";

/// The suite whose packages apt takes only if it is told to.
const EXPERIMENTAL: &str = "experimental";

/// The file with the sources of the downloaded lists; its time is their age.
const UPDATED: &str = "updated";

/// Debian's archive keys; package debian-archive-keyring, which Ubuntu has too.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A private apt root for one or more suites.
#[derive(Debug)]
pub struct AptRoot {
    suites: Vec<String>,
    /// The architecture of the packages, if it is not this machine's.
    foreign: Option<&'static str>,
    dir: PathBuf,
}

impl AptRoot {
    /// Prepares the root for a suite (`trixie`, `unstable`, `bookworm-security`) and downloads its lists of
    /// packages if they are older than a day.
    pub fn open(suite: &str) -> Result<Self> {
        Self::prepare(&[suite], None)
    }

    /// Like [`AptRoot::open`] for several suites and one architecture, which need not be this machine's.
    pub fn open_of(suites: &[&str], architecture: &'static str) -> Result<Self> {
        Self::prepare(suites, Some(architecture).filter(|other| *other != debian_architecture()))
    }

    /// Like [`AptRoot::open`] for `experimental`, whose packages depend on those of unstable.
    pub fn open_experimental() -> Result<Self> {
        Self::prepare(&["unstable", EXPERIMENTAL], None)
    }

    fn prepare(suites: &[&str], foreign: Option<&'static str>) -> Result<Self> {
        let name = suites.join("+") + &foreign.map(|only| format!("={only}")).unwrap_or_default();
        if run::which("apt-get").is_none() {
            return Err(Error::Failed(format!("packages of Debian {name} need apt-get")));
        }
        let suites = suites.iter().map(|suite| (*suite).to_owned()).collect();
        let root = Self { suites, foreign, dir: workspace::scratch("apt")?.join(name) };
        for part in ["lists/partial", "cache/archives/partial", "debs", "unpacked"] {
            let dir = root.dir.join(part);
            files::create_dir(&dir)?;
        }
        let _lock = root.lock()?;
        root.write("status", "")?;
        let sources = root.source_lines()?;
        root.write("sources.list", &sources)?;
        root.write("apt.conf", &root.configuration())?;
        if !root.lists_are_fresh(&sources) {
            root.update()?;
        }
        Ok(root)
    }

    fn lock(&self) -> Result<Lock> {
        Lock::take(&self.dir.join("lock"))
    }

    /// Downloads all lists of packages. apt-get itself only warns if the download of a list fails. If one fails here,
    /// older lists of the same sources remain in use.
    fn update(&self) -> Result<()> {
        let sources = self.source_lines()?;
        match run::capture(self.apt("apt-get").args(["--error-on=any", "update"])) {
            Ok(_) => self.write(UPDATED, &sources),
            Err(e) if self.listed().as_ref() != Some(&sources) => Err(e),
            Err(_) => Ok(()),
        }
    }

    /// The sources of the downloaded lists.
    fn listed(&self) -> Option<String> {
        fs::read_to_string(self.dir.join(UPDATED)).ok()
    }

    /// Calls `work`, and calls it again with new lists if it fails, because the archive removes old files.
    fn with_new_lists<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        work().or_else(|first| {
            let again = self.update().and_then(|()| work());
            again.map_err(|_| first)
        })
    }

    /// Downloads a package, unpacks it into its own folder and returns that. Nothing is fetched if the
    /// suite's version is there.
    pub fn fetch(&self, package: &str) -> Result<PathBuf> {
        let _lock = self.lock()?;
        let unpacked = self.dir.join("unpacked").join(package);
        let deb = self.with_new_lists(|| self.download(package))?;
        let stamp = self.dir.join("unpacked").join(format!("{package}.from"));
        let name = deb.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if fs::read_to_string(&stamp).is_ok_and(|from| from == name) {
            return Ok(unpacked);
        }
        crate::workspace::remove(&unpacked)?;
        run::capture(tool("dpkg-deb", &["-x"]).arg(&deb).arg(&unpacked))?;
        files::write(&stamp, name)?;
        Ok(unpacked)
    }

    /// Downloads a package and returns the path of its file.
    pub fn fetch_file(&self, package: &str) -> Result<PathBuf> {
        let _lock = self.lock()?;
        self.with_new_lists(|| self.download(package))
    }

    /// The names of the suite's packages that begin like this.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let printed = run::capture(self.apt("apt-cache").args(["pkgnames", prefix]))?;
        Ok(printed.split_whitespace().map(str::to_owned).collect())
    }

    /// Downloads packages with all that they depend on (not what they merely recommend) and unpacks
    /// them into one new folder, which can then serve as the root of their programs.
    pub fn fetch_all(&self, packages: &[&str], into: &Path) -> Result<()> {
        // The package status is empty, so that "install" means all of them.
        let words = ["install", "--download-only", "--yes", "--no-install-recommends"];
        let _lock = self.lock()?;
        run::capture(self.apt("apt-get").arg("clean"))?;
        self.with_new_lists(|| run::capture(self.apt("apt-get").args(words).args(packages)))?;
        let archives = self.dir.join("cache/archives");
        for entry in files::list(&archives)? {
            if entry.extension().is_some_and(|extension| extension == "deb") {
                unpack(&entry, into)?;
            }
        }
        run::capture(self.apt("apt-get").arg("clean")).map(|_| ())
    }

    /// The names and versions of what [`AptRoot::fetch_all`] would fetch, in the order of the names.
    pub fn plan(&self, packages: &[&str]) -> Result<Vec<(String, String)>> {
        let words = ["install", "--simulate", "--no-install-recommends"];
        let printed = run::capture(self.apt("apt-get").args(words).args(packages))?;
        let mut planned: Vec<_> = printed.lines().filter_map(planned).collect();
        planned.sort();
        Ok(planned)
    }

    /// Downloads the archive with the original source of a source package, and returns its path.
    pub fn fetch_source(&self, package: &str) -> Result<PathBuf> {
        let _lock = self.lock()?;
        let dir = self.dir.join("sources");
        for part in ["lists/partial", "archives"] {
            let dir = dir.join(part);
            files::create_dir(&dir)?;
        }
        let into = dir.join("archives");
        let list = dir.join("sources.list");
        let lines = self.source_lines()?.replace("deb [", "deb-src [");
        files::write(&list, lines)?;
        let apt = || {
            let mut apt = self.apt("apt-get");
            apt.arg(format!("-oDir::State::lists={}", dir.join("lists").display()));
            apt.arg(format!("-oDir::Etc::SourceList={}", list.display())).current_dir(&into);
            apt
        };
        run::capture(apt().arg("update"))?;
        run::capture(apt().args(["source", "--download-only", "--tar-only", package]))?;
        newest(&into, &format!("{package}_")).ok_or_else(|| {
            Error::Failed(format!("apt-get source {package} left nothing in {}", into.display()))
        })
    }

    /// Downloads packages and unpacks them into one new folder, without what they depend on.
    pub fn fetch_only(&self, packages: &[&str], into: &Path) -> Result<()> {
        let _lock = self.lock()?;
        packages.iter().try_for_each(|package| unpack(&self.with_new_lists(|| self.download(package))?, into))
    }

    fn download(&self, package: &str) -> Result<PathBuf> {
        let debs = self.dir.join("debs");
        run::capture(self.apt("apt-get").args(["download", package]).current_dir(&debs))?;
        // `<package>_<version>_<architecture>.deb`; older versions may lie next to it.
        newest(&debs, &format!("{package}_")).ok_or_else(|| {
            Error::Failed(format!("apt-get download {package} left nothing in {}", debs.display()))
        })
    }

    /// A program of apt, in the private root.
    fn apt(&self, program: &str) -> Command {
        let mut command = tool(program, &["-q"]);
        command.env("APT_CONFIG", self.dir.join("apt.conf"));
        command
    }

    fn configuration(&self) -> String {
        let dir = self.dir.display();
        let architectures = self.foreign.map_or_else(String::new, |only| {
            format!("APT::Architecture \"{only}\";\nAPT::Architectures {{ \"{only}\"; }};\n")
        });
        let is_experimental = self.suites.iter().any(|suite| suite == EXPERIMENTAL);
        let release = if is_experimental {
            format!("APT::Default-Release \"{EXPERIMENTAL}\";\n")
        } else {
            String::new()
        };
        format!(
            "Dir::State \"{dir}\";\nDir::State::lists \"{dir}/lists\";\nDir::State::status \"{dir}/status\";\n\
             Dir::Cache \"{dir}/cache\";\nDir::Etc::SourceList \"{dir}/sources.list\";\n\
             Dir::Etc::SourceParts \"/dev/null\";\nDir::Etc::Preferences \"/dev/null\";\n\
             Dir::Etc::PreferencesParts \"/dev/null\";\nAcquire::Languages \"none\";\n\
             Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
             APT::Sandbox::User \"root\";\nAPT::Update::Post-Invoke {{}};\nAPT::Update::Post-Invoke-Success {{}};\n\
             {architectures}{release}"
        )
    }

    fn source_lines(&self) -> Result<String> {
        let mut missing = Vec::new();
        if !Path::new(KEYRING).is_file() {
            missing.push(format!("{KEYRING}: install the package debian-archive-keyring"));
        }
        let mut lines = String::new();
        for suite in &self.suites {
            match debian_mirror(suite)? {
                Some(mirror) => lines.push_str(&format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n")),
                None => {
                    missing.push(format!(
                        "the address of a Debian archive, of which this machine's apt knows none: set {MIRROR} to \
                         it, as in http://HOST/debian (or run `apt-get update`, if its lists were removed)"
                    ));
                    break;
                }
            }
        }
        if missing.is_empty() {
            return Ok(lines);
        }
        Err(Error::Failed(format!(
            "packages of Debian {} need {}",
            self.suites.join(", "),
            missing.join("; and ")
        )))
    }

    fn lists_are_fresh(&self, sources: &str) -> bool {
        let age = fs::metadata(self.dir.join(UPDATED)).and_then(|m| m.modified()).map(|t| t.elapsed());
        self.listed().as_deref() == Some(sources) && matches!(age, Ok(Ok(age)) if age.as_secs() < 24 * 3600)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        files::write(&path, text)
    }
}

/// The newest file with a prefix.
fn newest(dir: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(std::result::Result::ok);
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .max_by_key(|entry| entry.metadata().map(|m| (m.ctime(), m.ctime_nsec())).unwrap_or_default())
        .map(|entry| entry.path())
}

/// Unpacks a package over existing files. Symbolic links to folders stay: if `lib` links to `usr/lib`, files
/// of `/lib` go there.
fn unpack(deb: &Path, into: &Path) -> Result<()> {
    files::create_dir(into)?;
    let mut reader = tool("dpkg-deb", &["--fsys-tarfile"]);
    let mut reader =
        reader.arg(deb).stdout(Stdio::piped()).spawn().map_err(|e| Error::file("unpack", deb, e))?;
    let archive = reader.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let mut tar = tool("tar", &["--extract", "--preserve-permissions", "--keep-directory-symlink"]);
    let written = run::capture_from(tar.arg("--directory").arg(into), archive);
    let read = reader.wait().map_err(|e| Error::file("unpack", deb, e))?;
    written?;
    if read.success() {
        return Ok(());
    }
    Err(Error::Failed(format!("dpkg-deb --fsys-tarfile {} ended with {read}", deb.display())))
}

/// The links that an installed system has, and that packages of Debian 12 do not bring.
pub fn merged_usr(root: &Path) -> Result<()> {
    for name in ["bin", "lib", "lib64", "sbin"] {
        let target = root.join("usr").join(name);
        files::create_dir(&target)?;
        let link = root.join(name);
        symlink(Path::new("usr").join(name), &link).map_err(|e| Error::file("link", &link, e))?;
    }
    Ok(())
}

/// Parses `Inst name (version suite [architecture])`; an installed version stands in brackets before the
/// parenthesis.
fn planned(line: &str) -> Option<(String, String)> {
    let name = line.strip_prefix("Inst ")?.split(' ').next()?;
    let version = line.split_once(" (")?.1.split(' ').next()?;
    Some((name.to_owned(), version.to_owned()))
}

/// Debian's name for the machine's architecture.
pub fn debian_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The Debian mirror of the environment or of the machine's apt; for a security suite, the security archive.
pub fn debian_mirror(suite: &str) -> Result<Option<String>> {
    if let Ok(named) = std::env::var(MIRROR) {
        return Ok(Some(mirror_named(&named, suite)));
    }
    let format = ["indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Created-By: Packages"];
    let targets = run::capture(&mut tool("apt-get", &format))?;
    Ok(mirror_among(&targets, suite))
}

fn mirror_named(named: &str, suite: &str) -> String {
    let named = named.trim_end_matches('/');
    if suite.ends_with("-security") { format!("{named}-security/") } else { format!("{named}/") }
}

fn mirror_among(targets: &str, suite: &str) -> Option<String> {
    let label = if suite.ends_with("-security") { "Debian-Security" } else { "Debian" };
    targets.lines().find_map(|line| line.strip_prefix(&format!("Debian|{label}|")).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_installation_names_packages_and_versions() {
        let line = "Inst runc (1.1.5+ds1-1+deb12u1 Debian:12.12/oldstable [amd64])";
        assert_eq!(planned(line), Some(("runc".to_owned(), "1.1.5+ds1-1+deb12u1".to_owned())));
        let line = "Inst libc6 [2.36-9] (2.36-9+deb12u13 Debian:12.12/oldstable [amd64]) []";
        assert_eq!(planned(line), Some(("libc6".to_owned(), "2.36-9+deb12u13".to_owned())));
        assert_eq!(planned("Conf runc (1.1.5+ds1-1 Debian:12/oldstable [amd64])"), None);
    }

    #[test]
    fn the_mirror_is_the_machines_own() {
        let targets = "Other|tools|https://tools.example/\n\
                       Debian|Debian|http://mirror.example/debian/\n\
                       Debian|Debian-Security|http://mirror.example/debian-security/\n";
        let mirror = |suite| mirror_among(targets, suite);
        assert_eq!(mirror("unstable").as_deref(), Some("http://mirror.example/debian/"));
        assert_eq!(mirror("bookworm-security").as_deref(), Some("http://mirror.example/debian-security/"));
        assert_eq!(mirror_named("http://mirror.example/debian/", "trixie"), "http://mirror.example/debian/");
        let security = "http://mirror.example/debian-security/";
        assert_eq!(mirror_named("http://mirror.example/debian", "bookworm-security"), security);
        assert_eq!(mirror_among("Ubuntu|Ubuntu|http://mirror.example/ubuntu/\n", "trixie"), None);
    }
}
