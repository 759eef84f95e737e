// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks dependencies against `deny.toml`, with cargo-deny.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::progress::Log;
use crate::run::{self, cargo, tool};
use crate::tools::CARGO_DENY;
use crate::workspace;

/// The workspaces that a released binary is made of, and what is checked of each. The bans are about programs
/// that run on a node: the BPF programs' dependencies on them run in the compiler.
const WORKSPACES: [(&str, &[&str]); 2] =
    [("Cargo.toml", &["licenses", "bans", "sources"]), ("ebpf/Cargo.toml", &["licenses", "sources"])];

/// The processors that are released for. Dependencies of other systems are neither fetched nor looked at.
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Checks licences, bans and sources of all dependencies. Returns a summary, which begins with `SKIP` if
/// cargo-deny is missing.
///
/// # Errors
/// A dependency that `deny.toml` forbids; with `require`, also if cargo-deny cannot be built.
pub(crate) fn check(log: &Log, require: bool) -> Result<String> {
    let program = match CARGO_DENY.ensure(&log.file) {
        Ok(program) => program,
        Err(e) if require => return Err(e),
        Err(e) => return Ok(format!("SKIP: cargo-deny cannot be built: {e}")),
    };
    let mut crates = 0;
    for (manifest, checks) in WORKSPACES {
        let metadata = metadata(manifest)?;
        crates += metadata.matches("\"manifest_path\":").count();
        let file = workspace::scratch("deny")?.join("metadata.json");
        fs::write(&file, metadata).map_err(|e| Error::file("write", &file, e))?;
        let mut command = tool(
            &program.to_string_lossy(),
            &["--offline", "--config", "deny.toml", "--manifest-path", manifest],
        );
        command.arg("--metadata-path").arg(&file).current_dir(workspace::root());
        command.arg("check").args(checks);
        run::log(&mut command, &log.file)?;
    }
    Ok(format!("{crates} crates: licences, bans, sources"))
}

/// The graph of a workspace's dependencies, as cargo prints it.
fn metadata(manifest: &str) -> Result<String> {
    let mut command = cargo(&["metadata", "--format-version=1", "--locked", "--all-features"]);
    command.args(PLATFORMS.iter().flat_map(|platform| ["--filter-platform", platform]));
    run::capture(command.arg("--manifest-path").arg(Path::new(manifest)))
}
