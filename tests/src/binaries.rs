// SPDX-License-Identifier: GPL-2.0-or-later

//! The programs under test: our own, built now if they are not up to date, or another implementation's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The plugin directory under test: `SLIPWAY_PEER_DIR`, else `SLIPWAY_BIN_DIR`, else a folder in the
/// target directory with links to the workspace's binary, built now if it is not up to date.
pub fn plugin_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        for key in ["SLIPWAY_PEER_DIR", "SLIPWAY_BIN_DIR"] {
            if let Some(dir) = std::env::var_os(key) {
                return std::path::absolute(dir).expect("a current directory");
            }
        }
        link_plugins(&build("slipway"))
    })
}

/// [`plugin_dir`] as a path that stays valid in a node, where /run and /var/lib are private.
pub(crate) fn bin_dir() -> PathBuf {
    plugin_dir().canonicalize().unwrap_or_else(|e| panic!("{}: {e}", plugin_dir().display()))
}

/// The `slipway` executable itself, for the operator's commands.
pub fn slipway() -> PathBuf {
    bin_dir().join("slipway")
}

/// The `slipwayd` executable: next to the plugins, else built now.
pub fn slipwayd() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let find =
        || Some(bin_dir().join("slipwayd")).filter(|path| path.exists()).unwrap_or_else(|| build("slipwayd"));
    PATH.get_or_init(find).clone()
}

/// True if the plugins under test are those of another implementation (`SLIPWAY_PEER_DIR` is set).
pub fn is_peer() -> bool {
    std::env::var_os("SLIPWAY_PEER_DIR").is_some()
}

/// The newest version of the specification that the plugins under test speak: 1.1.0 for ours, 1.0.0 for
/// the reference plugins of Debian 12.
pub fn newest_version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let mut command = Command::new(bin_dir().join("loopback"));
        let output = command.env("CNI_COMMAND", "VERSION").stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|e| panic!("run loopback: {e}"));
        let answer: Value = serde_json::from_slice(&output.stdout).expect("VERSION prints JSON");
        answer["cniVersion"].as_str().expect("VERSION prints a version").to_owned()
    })
}

/// Runs the body of a test that the reference plugins are known to fail, for the reason given. With
/// our own plugins it must pass. With `SLIPWAY_PEER_DIR` it must fail: a test that the reference
/// passes after all either tests nothing or needs another reason.
pub fn peer_fails(reason: &str, body: impl FnOnce()) {
    if !is_peer() {
        return body();
    }
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(()) => panic!("the reference passes, though it should not: {reason}"),
        Err(_) => eprintln!("the reference fails as expected: {reason}"),
    }
}

/// Builds a binary with the cargo that runs the tests, which does nothing if it is up to date.
fn build(name: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.toml");
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", name, "--bin", name, "--manifest-path"]);
    command.arg(manifest);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let status = command.status().unwrap_or_else(|e| panic!("build {name}: {e}"));
    assert!(status.success(), "{name} does not build");
    // The test runs from target/<profile>/deps/<test>-<hash>.
    let test = std::env::current_exe().expect("the test's own path");
    let profile = test.ancestors().nth(2).expect("a target directory");
    profile.join(name)
}

/// Makes a folder next to the binary with one link per plugin. Several test processes may do this at the same time.
fn link_plugins(binary: &Path) -> PathBuf {
    let folder = binary.with_file_name("slipway-plugins");
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("make {}: {e}", folder.display()));
    for name in own_names(binary).iter().map(String::as_str).chain(["slipway"]) {
        match std::os::unix::fs::symlink("../slipway", folder.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                panic!("link {name} in {}: {error}", folder.display());
            }
            _ => {}
        }
    }
    folder
}

/// The names of all plugins of a `slipway`.
fn own_names(binary: &Path) -> Vec<String> {
    let output = Command::new(binary).args(["plugins", "--names"]).output();
    let output = output.unwrap_or_else(|e| panic!("run {}: {e}", binary.display()));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// The names of all plugins under test: those of our binary, or those in the peer's folder that speak every version
/// from 0.1.0 on.
pub fn plugin_names() -> Vec<String> {
    if !is_peer() {
        return own_names(&slipway());
    }
    let known = ["bridge", "host-local", "loopback", "portmap", "ptp", "sbr", "static", "tuning"];
    known.into_iter().filter(|name| plugin_dir().join(name).exists()).map(str::to_owned).collect()
}
