// SPDX-License-Identifier: GPL-2.0-or-later

//! Loads the programs, once per node and version.

use std::io::ErrorKind;

use aya::maps::MapError;
use aya::pin::PinError;
use aya::programs::{Program, ProgramError, SchedClassifier};
use aya::{EbpfError, EbpfLoader, VerifierLogLevel};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use slipway_ebpf_abi::maps;

use super::error;
use crate::{BpfError, Error};

const ATTEMPTS: usize = 8;
/// How many of the verifier's last lines an error shows.
const LINES: usize = 12;

/// Lifts the limit on locked memory, against which the memory of BPF counts before Linux 5.11. If this fails,
/// creating the maps fails as well.
fn lift_memory_limit() {
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
}

/// A loader that keeps the verifier's log.
pub(super) fn loader() -> EbpfLoader<'static> {
    lift_memory_limit();
    let mut loader = EbpfLoader::new();
    loader.verifier_log_level(VerifierLogLevel::DEBUG | VerifierLogLevel::STATS);
    loader
}

/// Checks that this kernel accepts an object's programs, using small maps of their own. Nothing stays loaded.
pub fn try_object(object: &[u8]) -> Result<(), Error> {
    const SMALL: u32 = 64;
    let mut loader = loader();
    for name in [maps::CARRIED4, maps::CARRIED6] {
        loader.map_max_entries(name, SMALL);
    }
    let mut ebpf = loader.load(object).map_err(|e| Error::kernel("load the BPF programs", refused(&e)))?;
    for (name, program) in ebpf.programs_mut() {
        load_one(program).map_err(|e| Error::kernel(format!("load the BPF program {name}"), explain(&e)))?;
    }
    Ok(())
}

pub(super) fn load_one(program: &mut Program) -> Result<(), ProgramError> {
    let program: &mut SchedClassifier = program.try_into()?;
    for _ in 1..ATTEMPTS {
        match program.load() {
            // The verifier gives up if a signal is pending.
            Err(ProgramError::LoadError { io_error, .. }) if io_error.kind() == ErrorKind::WouldBlock => {}
            otherwise => return otherwise,
        }
    }
    program.load()
}

/// True if another process pinned the same map or program concurrently.
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

/// The reason why an object was not loaded.
pub(super) fn refused(error: &EbpfError) -> BpfError {
    match error {
        EbpfError::ProgramError(e) => explain(e),
        _ => error::bpf(error),
    }
}

/// The kernel's error, with the verifier's last lines.
pub(super) fn explain(error: &ProgramError) -> BpfError {
    let ProgramError::LoadError { io_error, verifier_log } = error else {
        return error::bpf(error);
    };
    let log = verifier_log.to_string();
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        // The kernel refused before the verifier ran.
        return error::bpf(io_error);
    }
    let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n  ");
    BpfError(format!("{io_error}; the verifier's last lines:\n  {last}"), None)
}
