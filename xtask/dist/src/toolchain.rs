// SPDX-License-Identifier: MIT OR Apache-2.0

//! Compilers for the processors that binaries are built for.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cross::{Cross, PROCESSORS, Processor};
use xtask::build::{self, Profile};
use xtask::setup::{static_libmnl, static_libnftnl};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{cargo, tool};

/// The copyright holders of the C libraries, as their packages' copyright files name them.
const GLIBC: [&str; 1] = ["1991-2025 Free Software Foundation, Inc."];
const LIBMNL: [&str; 1] = ["2008-2012 Pablo Neira Ayuso <pablo@netfilter.org>"];
const LIBNFTNL: [&str; 2] = ["2012-2025 Pablo Neira Ayuso <pablo@netfilter.org>", "2013 Intra2net AG"];

/// The processors that binaries are built for, as `--target` calls them; this machine's is the first.
pub(crate) fn targets() -> impl Iterator<Item = &'static str> {
    let others = PROCESSORS.iter().map(|processor| processor.name).filter(|name| *name != ARCH);
    std::iter::once(ARCH).chain(others)
}

/// A compiler with linker and libraries.
#[derive(Debug)]
pub enum Toolchain {
    /// This machine's own compiler, for its own processor.
    Own,
    /// A compiler that was fetched for another processor.
    Cross(Cross),
}

impl Toolchain {
    /// The compiler for a processor.
    pub fn find(target: &str) -> Result<Self> {
        if target == ARCH {
            return Ok(Self::Own);
        }
        match Processor::named(target) {
            Some(processor) => Cross::fetch(processor).map(Self::Cross),
            None => Err(Error::Failed(format!("cannot build for {target} on {ARCH}"))),
        }
    }

    /// The target, as the compiler calls it.
    pub fn triple(&self) -> String {
        match self {
            Self::Own => build::static_target(),
            Self::Cross(cross) => cross.triple().to_owned(),
        }
    }

    /// The cargo command that builds packages without shared libraries.
    pub fn static_build(&self, packages: &[&str], profile: Profile) -> Result<Command> {
        match self {
            Self::Own => build::static_build(packages, profile),
            Self::Cross(cross) => {
                let mut command = cross.cargo(&["build", "--profile", profile.name()])?;
                command.args(packages.iter().flat_map(|package| ["--package", package]));
                Ok(command)
            }
        }
    }

    /// The cargo command for programs that run here or in VMs.
    pub fn cargo(&self, words: &[&str]) -> Result<Command> {
        match self {
            Self::Own => Ok(cargo(words)),
            Self::Cross(cross) => cross.cargo(words),
        }
    }

    /// strip(1) for what it builds.
    pub fn strip(&self) -> Command {
        match self {
            Self::Own => tool("strip", &[]),
            Self::Cross(cross) => cross.strip(),
        }
    }

    /// The emulator of what it builds, if this processor cannot run that.
    pub fn emulator(&self) -> Option<PathBuf> {
        match self {
            Self::Own => None,
            Self::Cross(cross) => Some(cross.emulator()),
        }
    }

    /// The call of a program that was built with it.
    pub fn call(&self, command: Command) -> Command {
        let Some(emulator) = self.emulator() else { return command };
        let mut emulated = Command::new(emulator);
        emulated.arg(command.get_program()).args(command.get_args());
        emulated
    }

    /// The C libraries that it links, with their versions.
    pub(crate) fn libraries(&self) -> Result<Vec<Library>> {
        let (libmnl, libnftnl, features) = match self {
            Self::Own => (static_libmnl()?, static_libnftnl()?, PathBuf::from("/usr/include/features.h")),
            Self::Cross(cross) => (cross.libraries(), cross.libraries(), cross.features()),
        };
        let packaged = |dir: &Path, name: &'static str, licence, copyright| {
            let version = word_after(&dir.join("pkgconfig").join(format!("{name}.pc")), "Version:")?;
            Ok(Library { name, version, licence, copyright })
        };
        let minor = word_after(&features, "__GLIBC_MINOR__\t")?;
        let version = format!("{}.{minor}", word_after(&features, "__GLIBC__\t")?);
        Ok(vec![
            Library { name: "glibc", version, licence: "LGPL-2.1-or-later", copyright: &GLIBC },
            packaged(&libmnl, "libmnl", "LGPL-2.1-or-later", &LIBMNL)?,
            packaged(&libnftnl, "libnftnl", "GPL-2.0-or-later", &LIBNFTNL)?,
        ])
    }
}

/// A C library that is linked into the binary.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    /// As an SPDX expression.
    pub(crate) licence: &'static str,
    /// Years and names.
    pub(crate) copyright: &'static [&'static str],
}

/// The first word after a text in a file.
fn word_after(path: &Path, text: &str) -> Result<String> {
    let content = files::read(path)?;
    let word = content.split_once(text).and_then(|(_, rest)| rest.split_whitespace().next());
    word.map(str::to_owned).ok_or_else(|| Error::Failed(format!("{}: no {text:?}", path.display())))
}
