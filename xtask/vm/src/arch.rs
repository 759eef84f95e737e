// SPDX-License-Identifier: MIT OR Apache-2.0

//! The processors that VMs have, and all that differs between them.

use std::env::consts;
use std::path::PathBuf;

use serde::Deserialize;

use xtask_base::apt_root::AptRoot;
use xtask_base::error::Result;
use xtask_base::workspace;

/// The processor of a VM, by Debian's name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arch {
    #[default]
    Amd64,
    Arm64,
}

/// An emulated computer.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Debian's package with the emulator, and its program.
    pub(crate) package: &'static str,
    pub(crate) program: &'static str,
    /// The emulator's name of the computer.
    pub(crate) board: &'static str,
    /// The processor when it is emulated.
    pub(crate) cpu: &'static str,
    /// The device of the kernel's console, which is the first serial port.
    pub(crate) console: &'static str,
    /// The emulator's options for the serial port of the reports, and its device.
    pub(crate) port: &'static [&'static str],
    pub(crate) reports: &'static str,
}

/// Five-level page tables cost the emulator a level on every access.
const AMD64: Machine = Machine {
    package: "qemu-system-x86",
    program: "qemu-system-x86_64",
    board: "q35",
    cpu: "max,la57=off",
    console: "ttyS0",
    port: &["-serial", "file:reports.txt"],
    reports: "/dev/ttyS1",
};

/// The processor is that of many cloud nodes. Newer ones sign pointers, which costs an emulator much.
const ARM64: Machine = Machine {
    package: "qemu-system-arm",
    program: "qemu-system-aarch64",
    board: "virt",
    cpu: "neoverse-n1",
    console: "ttyAMA0",
    // The board has one port of its own.
    port: &["-chardev", "file,id=reports,path=reports.txt", "-device", "pci-serial,chardev=reports"],
    reports: "/dev/ttyS0",
};

impl Arch {
    /// Debian's name.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The compiler's name, as in [`consts::ARCH`].
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    pub(crate) fn machine(self) -> &'static Machine {
        match self {
            Self::Amd64 => &AMD64,
            Self::Arm64 => &ARM64,
        }
    }

    /// True if this machine has such a processor.
    pub(crate) fn is_own(self) -> bool {
        self.target() == consts::ARCH
    }

    /// A suite of Debian's packages for this processor.
    pub(crate) fn packages(self, suites: &[&str]) -> Result<AptRoot> {
        AptRoot::open_of(suites, self.debian())
    }

    /// The folder of the emulator and of the programs in its VMs.
    pub(crate) fn cache(self) -> Result<PathBuf> {
        match self.is_own() {
            true => workspace::scratch("vm"),
            false => workspace::scratch(&format!("vm-{}", self.debian())),
        }
    }
}
