// SPDX-License-Identifier: GPL-2.0-or-later

//! Loads and pins the programs: once per node and version.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use aya::maps::MapError;
use aya::pin::PinError;
use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfError, EbpfLoader, VerifierLogLevel};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use slipway_ebpf_abi::{carried, maps};

use super::error;
use super::pins::{self, Pins};
use crate::Error;

/// Attempts to load: concurrent first ADDs pin the same maps.
const ATTEMPTS: usize = 8;
/// Sizes of the maps in elements; each kind is one map for IPv4 and one for IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Established flows, two elements each.
    pub flows: u32,
    /// Half-open flows, two elements each.
    pub half_open: u32,
    /// Published ports.
    pub ports: u32,
    /// Fragmented packets in transit.
    pub fragments: u32,
    /// Sockets of the node that are connected to a container.
    pub sockets: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            flows: maps::FLOWS_SIZE,
            half_open: maps::HALF_OPEN_SIZE,
            ports: maps::PORTS_SIZE,
            fragments: maps::FRAGMENTS_SIZE,
            sockets: maps::SOCKETS_SIZE,
        }
    }
}

impl Sizes {
    fn of_maps(&self) -> [([&'static str; 2], u32); 5] {
        [
            ([maps::FLOWS4, maps::FLOWS6], self.flows),
            ([maps::HALF_OPEN4, maps::HALF_OPEN6], self.half_open),
            ([maps::PORTS4, maps::PORTS6], self.ports),
            ([maps::FRAGMENTS4, maps::FRAGMENTS6], self.fragments),
            ([maps::SOCKETS4, maps::SOCKETS6], self.sockets),
        ]
    }
}

/// Number of the verifier's last lines in an error.
const LINES: usize = 12;

/// The programs that a node needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All except [`maps::programs::UPLINK_L3`], a third of the verifier's work, for interfaces that few
    /// nodes have.
    Usual,
    /// All.
    All,
}

/// Pins all maps and the wanted programs, except existing ones, and returns the folder of the programs.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses a program, with the verifier's last lines.
pub(super) fn ensure(pins: &Pins, object: &[u8], sizes: &Sizes, wanted: Wanted) -> Result<PathBuf, Error> {
    let folder = pins.programs();
    let (is_whole, for_l3) = (is_whole(&folder), folder.join(maps::programs::UPLINK_L3));
    let is_missing = |name: &str| match name {
        name if carried::PROGRAMS.contains(&name) => false,
        maps::programs::UPLINK_L3 => wanted == Wanted::All && !for_l3.exists(),
        _ => !is_whole,
    };
    if is_whole && !is_missing(maps::programs::UPLINK_L3) {
        return Ok(folder);
    }
    lift_memory_limit();
    let mut attempt = 0;
    let mut ebpf = loop {
        attempt += 1;
        match load(pins, object, sizes) {
            Ok(ebpf) => break ebpf,
            Err(e) if attempt < ATTEMPTS && is_in_the_way(&e) => {}
            Err(e) => return Err(Error::kernel("load the BPF programs", refused(&e))),
        }
    };
    pins::make(&folder)?;
    let mut programs: Vec<_> = ebpf.programs_mut().filter(|(name, _)| is_missing(name)).collect();
    // The last pin marks the folder as complete.
    programs.sort_by_key(|(name, _)| *name == LAST);
    for (name, program) in programs {
        let loaded =
            load_one(program).map_err(|e| Error::kernel(format!("load the BPF program {name}"), explain(&e)));
        if let (Program::CgroupSockAddr(_), Err(error)) = (&*program, &loaded) {
            // The other programs work without it: nftables serves the node's own sockets.
            log::warn!("{error}");
            continue;
        }
        loaded?;
        match program.pin(folder.join(name)) {
            Ok(()) => {}
            Err(e) if pin_exists(&e) => {}
            Err(e) => return Err(Error::kernel(format!("pin the BPF program {name}"), e)),
        }
    }
    Ok(folder)
}

/// Lifts the limit against which memory of BPF counts before Linux 5.11. If this fails, making the maps fails.
pub(super) fn lift_memory_limit() {
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// Checks that this kernel takes an object's programs, with small maps of their own. Nothing stays loaded.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses a program, with the verifier's last lines.
pub fn try_object(object: &[u8]) -> Result<(), Error> {
    const SMALL: u32 = 64;
    lift_memory_limit();
    let mut loader = EbpfLoader::new();
    loader.verifier_log_level(VerifierLogLevel::DEBUG | VerifierLogLevel::STATS);
    let kinds = Sizes { flows: SMALL, half_open: SMALL, ports: SMALL, fragments: SMALL, sockets: SMALL };
    for (name, size) in kinds.of_maps().into_iter().flat_map(|(names, size)| names.map(|name| (name, size))) {
        loader.map_max_entries(name, size);
    }
    let mut ebpf = loader.load(object).map_err(|e| Error::kernel("load the BPF programs", refused(&e)))?;
    // The program for uplinks without Ethernet is the one for Ethernet with another offset.
    let is_tried = |name: &str, program: &Program| {
        matches!(program, Program::SchedClassifier(_)) && name != maps::programs::UPLINK_L3
    };
    for (name, program) in ebpf.programs_mut().filter(|(name, program)| is_tried(name, program)) {
        load_one(program).map_err(|e| Error::kernel(format!("load the BPF program {name}"), explain(&e)))?;
    }
    Ok(())
}

/// The program that is pinned last: its pin marks the folder as complete.
const LAST: &str = maps::programs::UPLINK_INGRESS;

/// True if all programs that every node needs are pinned in the folder.
fn is_whole(folder: &Path) -> bool {
    folder.join(LAST).exists()
}

fn load(pins: &Pins, object: &[u8], sizes: &Sizes) -> Result<Ebpf, EbpfError> {
    let mut loader = EbpfLoader::new();
    for (names, size) in sizes.of_maps() {
        for name in names {
            loader.map_max_entries(name, size);
        }
    }
    // The maps of other programs.
    loader.map_max_entries(carried::CARRIED4, 1).map_max_entries(carried::CARRIED6, 1);
    loader.verifier_log_level(VerifierLogLevel::DEBUG | VerifierLogLevel::STATS);
    for name in maps::ALL {
        loader.map_pin_path(name, pins.map(name));
    }
    loader.load(object)
}

pub(super) fn load_one(program: &mut Program) -> Result<(), ProgramError> {
    for _ in 1..ATTEMPTS {
        match try_load(program) {
            // The verifier stops if a signal is pending.
            Err(ProgramError::LoadError { io_error, .. }) if io_error.kind() == ErrorKind::WouldBlock => {}
            otherwise => return otherwise,
        }
    }
    try_load(program)
}

fn try_load(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::SchedClassifier(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// Removes the folders of other versions' programs. Attached programs stay loaded until they are replaced.
pub(super) fn forget_others(pins: &Pins, own: &Path) {
    for folder in pins.other_programs(own) {
        if let Err(e) = fs::remove_dir_all(&folder) {
            log::warn!("remove {}: {e}", folder.display());
        }
    }
}

/// True if another process made the same pin concurrently.
pub(super) fn is_in_the_way(error: &EbpfError) -> bool {
    match error {
        EbpfError::MapError(MapError::PinError { error, .. }) => pin_exists(error),
        EbpfError::MapError(MapError::SyscallError(e)) => e.io_error.kind() == ErrorKind::AlreadyExists,
        _ => false,
    }
}

pub(super) fn pin_exists(error: &PinError) -> bool {
    matches!(error, PinError::SyscallError(e) if e.io_error.kind() == ErrorKind::AlreadyExists)
}

/// An error as text for people.
pub(super) fn refused(error: &EbpfError) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        EbpfError::ProgramError(e) => explain(e).into(),
        _ => error::text(error).into(),
    }
}

/// The kernel's error, with the verifier's last lines.
pub(super) fn explain(error: &ProgramError) -> String {
    let ProgramError::LoadError { io_error, verifier_log } = error else {
        return error::text(error);
    };
    let log = verifier_log.to_string();
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        // The kernel refused before the verifier ran.
        return error::text(io_error);
    }
    let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n  ");
    format!("{io_error}; the verifier's last lines:\n  {last}")
}
