// SPDX-License-Identifier: MIT OR Apache-2.0

//! The demo's second act: netfilter decides, and the BPF programs carry what it has decided. Its connections are short, so
//! that few packets are carried.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use nix::mount::{MsFlags, mount};

use super::screen::Screen;
use super::world::{HOST_PORT, OUTSIDE_V4, OUTSIDE_V6};
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};

/// Gives the node a BPF file system of its own, and tries to load the programs. Returns why the act is left out, if it
/// is.
pub(super) fn prepare(plugins: &Path) -> Option<String> {
    let tried = || -> Result<()> {
        let (path, none) = (Path::new("/sys/fs/bpf"), None::<&str>);
        mount(Some("bpf"), path, Some("bpf"), MsFlags::MS_NOSUID, none)
            .map_err(|e| Error::file("mount over", path, e))?;
        let slipway = plugins.join("slipway");
        for verb in ["setup", "teardown"] {
            run::capture(Command::new(&slipway).args(["node", verb]))?;
        }
        Ok(())
    };
    tried().err().map(|e| format!("LEFT OUT: the eBPF backend: {e}"))
}

/// Loads and attaches the programs.
pub(super) fn set_up(screen: &Screen, plugins: &Path) -> Result<()> {
    screen.title("The node gets the BPF programs");
    node(screen, plugins, "setup")?;
    // The connections of the first act are still listed, though they are closed.
    run::capture(&mut tool("conntrack", &["--flush"])).map(|_| ())
}

/// Detaches and unloads them.
pub(super) fn tear_down(screen: &Screen, plugins: &Path) -> Result<()> {
    node(screen, plugins, "teardown")
}

fn node(screen: &Screen, plugins: &Path, verb: &str) -> Result<()> {
    let begun = Instant::now();
    run::capture(Command::new(plugins.join("slipway")).args(["node", verb]))?;
    screen.step(&format!("node {verb}"), begun.elapsed(), "");
    Ok(())
}

/// Prints the state of the BPF programs, and checks that they are attached and that conntrack has the other host's
/// connections: netfilter has decided about them. Returns the number of failed claims.
pub(super) fn prove(screen: &Screen, plugins: &Path) -> Result<u32> {
    screen.title("The BPF programs carry what netfilter has decided");
    let status = run::capture(Command::new(plugins.join("slipway")).args(["node", "status"]))?;
    screen.shown("slipway node status", &status);
    let attached = status.lines().any(|line| line == "containers  2");
    let mut failed = screen.verdict("they are at the uplink and at the links of both pods", attached);
    let port = HOST_PORT.to_string();
    for (family, client) in [("ipv4", OUTSIDE_V4), ("ipv6", OUTSIDE_V6)] {
        let words = ["--dump", "--family", family, "--orig-src", client, "--proto", "tcp", "--dport", &port];
        let tracked = run::capture(&mut tool("conntrack", &words))?;
        screen.shown(&format!("conntrack {}", words.join(" ")), &tracked);
        failed += screen.verdict("conntrack has the other host's connections", !tracked.trim().is_empty());
    }
    Ok(failed)
}
