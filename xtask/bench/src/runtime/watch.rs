// SPDX-License-Identifier: MIT OR Apache-2.0

//! `slipwayd networks --watch`: its memory, and the time from a changed file to the printed network.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::node::{self, Node};
use crate::memory::{self, Memory};
use crate::process::Lines;
use xtask_base::error::{Error, Result};

/// The directory whose changes are followed.
const DIRECTORY: &str = "/var/lib/net.d/watched";
/// The time after which a process that does nothing is at rest.
const REST: Duration = Duration::from_secs(1);
/// The pause between two changes, so that one change has been read before the next.
const PAUSE: Duration = Duration::from_millis(25);
/// The longest wait for a line. The manager reads the directory every ten seconds, also without an event.
const LIMIT: Duration = Duration::from_secs(15);

/// The figures of the process.
#[derive(Debug)]
pub(super) struct Watch {
    /// After its start.
    pub(super) rest: Memory,
    /// After all changes.
    pub(super) after: Memory,
    /// From the rename of the file to the line with the new network.
    pub(super) reactions: Vec<Duration>,
}

/// Starts the command, changes the file so many times, and measures.
pub(super) fn measure(agent: &Path, node: &Node, changes: u32) -> Result<Watch> {
    let directory = Path::new(DIRECTORY);
    let change = |number: u32| {
        let network = format!("{}-{number}", node.name);
        node::write(directory, node.name, &network)?;
        Ok::<_, Error>(network)
    };
    node.enter()?;
    let first = change(0)?;
    let mut command = Command::new(agent);
    command.args(["networks", "--watch", "--output", "json", "--cni-conf-dir", DIRECTORY]);
    command.arg("--cni-bin-dir").arg(&node.plugins).env_clear().env("PATH", &node.path);
    let running = Lines::of(&mut command)?;
    wait_for(&running, &first)?;
    thread::sleep(REST);
    let rest = memory(&running)?;
    let mut reactions = Vec::new();
    for number in 1..=changes {
        thread::sleep(PAUSE);
        let begun = Instant::now();
        let network = change(number)?;
        reactions.push(wait_for(&running, &network)?.duration_since(begun));
    }
    thread::sleep(REST);
    Ok(Watch { rest, after: memory(&running)?, reactions })
}

/// Waits until the network is the default one; returns the time of the line.
fn wait_for(running: &Lines, network: &str) -> Result<Instant> {
    let wanted = format!("\"default_network\": \"{network}\"");
    let failed = |e| Error::Failed(format!("slipwayd networks --watch did not print network {network}: {e}"));
    running.wait_for(LIMIT, |line| line.contains(&wanted)).map_err(failed)
}

fn memory(running: &Lines) -> Result<Memory> {
    memory::of_process(running.process.id())
        .ok_or_else(|| Error::Failed("slipwayd networks --watch has ended".to_owned()))
}
