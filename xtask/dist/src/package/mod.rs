// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packages for Debian and for rpm, of the binaries that `dist` has built.
//!
//! Both formats are written by the libraries of cargo-deb (`ar`, `tar`) and cargo-generate-rpm (`rpm`), in the versions of
//! the lock file: the bytes depend on no tool of the machine. Both programs make several packages of a workspace, for
//! several processors; their sources show what they lack:
//!
//! - cargo-deb 3.8.0 makes most of ours: links, triggers, configuration files, all times from `SOURCE_DATE_EPOCH`. It has
//!   no folder without a file (`/usr/lib/slipway/reference`), leaves `md5sums` to dpkg, which computes them as it unpacks,
//!   and takes maintainer scripts from files as they are, while ours contain the plugins' names.
//! - cargo-generate-rpm 0.21.1 follows symbolic links: each of the plugins' names would be a copy of the binary. For a
//!   folder (`dir`) it passes an empty path to a function of `rpm` that opens it and fails, so that rpm would leave our
//!   folders behind. It sets neither description, packager, changelog nor the mark for licences. Files that are older
//!   than `SOURCE_DATE_EPOCH` keep their times, so that the bytes depend on when the checkout was made.

mod content;
mod copyright;
mod deb;
pub(crate) mod fixture;
pub(crate) mod lint;
mod rpm_file;
mod scripts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::sys::stat::{Mode, umask};

use crate::built::Built;
use content::Source;
use xtask_base::checkout;
use xtask_base::error::{Error, Result};
use xtask_base::files;

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The version of the packaging itself.
const REVISION: &str = "1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// deb(5).
    Deb,
    /// RPM, version 4.
    Rpm,
}

impl Format {
    /// The formats that a task is asked for.
    pub(crate) fn chosen(deb: bool, rpm: bool) -> Vec<Self> {
        let all = [(deb, Self::Deb), (rpm, Self::Rpm)];
        all.into_iter().filter_map(|(chosen, format)| chosen.then_some(format)).collect()
    }
}

/// A package before it has a format.
#[derive(Debug)]
struct Package {
    /// The name of its program, too.
    name: &'static str,
    version: String,
    processor: Processor,
    summary: &'static str,
    /// Paragraphs.
    description: &'static [&'static str],
    /// As an SPDX expression.
    licence: &'static str,
    /// The name of another package, of the same version.
    depends: Option<&'static str>,
    /// The systemd units; the service is the first.
    units: &'static [&'static str],
    /// By their paths, without the first slash. Folders of entries need none of their own.
    entries: BTreeMap<String, Entry>,
    plugins: Vec<String>,
    /// The time of all entries, in seconds since 1970.
    time: u64,
    /// `NAME <ADDRESS>`
    maintainer: String,
}

/// A processor, as the formats name it.
#[derive(Debug, Clone, Copy)]
struct Processor {
    deb: &'static str,
    rpm: &'static str,
}

impl Processor {
    fn of(triple: &str) -> Result<Self> {
        match triple.split('-').next() {
            Some("x86_64") => Ok(Self { deb: "amd64", rpm: "x86_64" }),
            Some("aarch64") => Ok(Self { deb: "arm64", rpm: "aarch64" }),
            Some("riscv64gc") => Ok(Self { deb: "riscv64", rpm: "riscv64" }),
            _ => Err(Error::Failed(format!("no package has a name for the processor of {triple}"))),
        }
    }
}

#[derive(Debug)]
enum Entry {
    /// An empty folder.
    Folder,
    File(Vec<u8>, Role),
    /// A symbolic link to this path.
    Link(String),
}

/// The use of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Program,
    /// A file that an upgrade leaves as the administrator has changed it.
    Configuration,
    Documentation,
    Licence,
    Other,
}

impl Role {
    fn mode(self) -> u32 {
        if self == Self::Program { 0o755 } else { 0o644 }
    }
}

/// A build, whose packages differ by program and format.
#[derive(Debug, Clone)]
pub(crate) struct Build<'a> {
    /// The binaries.
    pub(crate) built: &'a Built,
    pub(crate) version: &'a str,
    /// The folder with the documentation.
    pub(crate) checkout: &'a Path,
}

impl Build<'_> {
    /// Writes the packages into a folder; returns their names.
    pub(crate) fn write(&self, formats: &[Format], folder: &Path) -> Result<Vec<String>> {
        files::create_dir(folder)?;
        let packages = self.packages(formats)?;
        for (name, bytes) in &packages {
            let path = folder.join(name);
            files::write(&path, bytes)?;
        }
        Ok(packages.into_iter().map(|(name, _)| name).collect())
    }

    /// The packages, with the names of their files.
    fn packages(&self, formats: &[Format]) -> Result<Vec<(String, Vec<u8>)>> {
        let source = Source::read(self)?;
        let mut packages = Vec::new();
        for (program, binary) in &self.built.programs {
            let copyright = copyright::of(*program, self.built)?;
            for format in formats {
                let package = content::package(*program, binary, *format, &source, &copyright)?;
                packages.push(match format {
                    Format::Deb => deb::write(&package)?,
                    Format::Rpm => rpm_file::write(&package)?,
                });
            }
        }
        Ok(packages)
    }

    /// Makes the packages again with the documentation of another folder, at another time and with another umask, and
    /// compares the bytes.
    pub(crate) fn verify(&self, formats: &[Format], folder: &Path, elsewhere: &Path) -> Result<()> {
        // Times in packages are whole seconds; gzip's, too.
        thread::sleep(Duration::from_secs(2));
        let mask = umask(Mode::from_bits_truncate(0o077));
        let again = Build { checkout: elsewhere, ..self.clone() }.packages(formats);
        umask(mask);
        for (name, bytes) in again? {
            let path = folder.join(&name);
            if files::read_bytes(&path)? != bytes {
                return Err(Error::Failed(format!("{name} has other bytes when it is built again")));
            }
        }
        Ok(())
    }
}

/// The folder of a processor's packages.
pub(crate) fn folder(out: &Path) -> PathBuf {
    out.join("packages")
}

/// The time of all entries: `SOURCE_DATE_EPOCH`, or that of the commit.
fn time() -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => checkout::commit_time("%ct")?,
    };
    text.parse().map_err(|e| Error::Failed(format!("the time of the packages, {text:?}: {e}")))
}

/// The person to write to, from the variables of Debian's tools.
fn maintainer() -> String {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let name = variable("DEBFULLNAME", "The Slipway developers");
    format!("{name} <{}>", variable("DEBEMAIL", "slipway@localhost.localdomain"))
}

#[cfg(test)]
fn sample(name: &'static str) -> Package {
    let entries = [
        ("usr/bin/try".to_owned(), Entry::File(vec![7; 2000], Role::Program)),
        ("etc/default/try".to_owned(), Entry::File(b"A=1\n".to_vec(), Role::Configuration)),
        ("usr/lib/try/empty".to_owned(), Entry::Folder),
        ("usr/lib/try/link".to_owned(), Entry::Link("../../bin/try".to_owned())),
    ];
    Package {
        name,
        version: "1.2.3".to_owned(),
        processor: Processor { deb: "amd64", rpm: "x86_64" },
        summary: "Summary",
        description: &["One.", "Two,\nlonger."],
        licence: "MIT",
        depends: Some("other"),
        units: &["try.service", "try.socket"],
        entries: entries.into(),
        plugins: ["bridge", "portmap"].map(str::to_owned).into(),
        time: 1_700_000_000,
        maintainer: "A <a@example.org>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cross::PROCESSORS;

    #[test]
    fn packages_have_a_name_for_each_processor() {
        for processor in PROCESSORS {
            let named = Processor::of(processor.triple).unwrap();
            assert_eq!((named.deb, named.rpm), (processor.debian, processor.name));
        }
        assert!(Processor::of("mips64el-unknown-linux-gnu").is_err());
    }
}
