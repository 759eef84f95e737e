// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks dependencies against `deny.toml`, with cargo-deny.

use std::path::Path;

use xtask_base::error::Result;
use xtask_base::files;
use xtask_base::progress::Log;
use xtask_base::run::{self, cargo, tool};
use xtask_base::tools::CARGO_DENY;
use xtask_base::workspace;

/// The workspaces that a released binary is made of, and what is checked of each. The bans concern programs that run on
/// a node. They do not apply to what the BPF programs depend on, because that runs in the compiler only.
const WORKSPACES: [(&str, &[&str]); 2] =
    [("Cargo.toml", &["licenses", "bans", "sources"]), ("ebpf/Cargo.toml", &["licenses", "sources"])];

/// The processors that are released for. Dependencies of other systems are neither fetched nor looked at.
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Check licences, bans and sources of all dependencies.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fail if cargo-deny cannot be built, instead of skipping the check
    #[arg(long)]
    require: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let path = workspace::scratch("deny")?.join("log");
    let file = files::create(&path)?;
    println!("{}", check(&Log { file, path }, args.require)?);
    Ok(())
}

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
        files::write(&file, metadata)?;
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

#[cfg(test)]
mod tests {
    use std::fs;

    use std::env;
    use std::process::Command;

    use super::*;

    /// Names the folder of the process that has an empty target folder, an empty cargo home and no network.
    const ALONE: &str = "DENY_TEST_WITHOUT_NETWORK";

    #[test]
    fn without_network_cargo_deny_is_skipped_unless_required() {
        if let Some(dir) = env::var_os(ALONE) {
            return check_both(Path::new(&dir));
        }
        let dir = env::temp_dir().join(format!("slipway-deny-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let this = "deny::tests::without_network_cargo_deny_is_skipped_unless_required";
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", this, "--nocapture"]).env(ALONE, &dir).env("CARGO_NET_OFFLINE", "true");
        child.env("CARGO_HOME", dir.join("home")).env("CARGO_TARGET_DIR", dir.join("target"));
        child.env("XDG_CACHE_HOME", dir.join("cache"));
        let output = child.output().unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let printed =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    }

    fn check_both(dir: &Path) {
        let path = dir.join("log");
        let log = Log { file: fs::File::create(&path).unwrap(), path };
        let summary = check(&log, false).unwrap();
        println!("{summary}");
        assert!(summary.starts_with("SKIP: cargo-deny cannot be built: "), "{summary}");
        let error = check(&log, true).unwrap_err().to_string();
        assert!(summary.ends_with(&error), "{error}");
        let printed = fs::read_to_string(&log.path).unwrap();
        assert!(printed.contains("could not find `cargo-deny`"), "{printed}");
    }
}
