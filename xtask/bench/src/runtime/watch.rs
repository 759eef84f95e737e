// SPDX-License-Identifier: MIT OR Apache-2.0

//! `slipwayd networks --watch`: its memory, and the time from a changed file to the printed network.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::node::{self, Node};
use crate::memory::{self, Memory};
use xtask_base::error::{Error, Result};

/// The directory whose changes are followed.
const DIRECTORY: &str = "/var/lib/net.d/watched";
/// The time after which a process that does nothing is at rest.
const REST: Duration = Duration::from_secs(1);
/// The pause between two changes: the reading of one has ended before the next.
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

/// A running command, and its lines with the time at which they were read. It is killed when dropped.
struct Running {
    child: Child,
    lines: Receiver<(Instant, String)>,
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
    let running = Running::start(agent, node)?;
    running.wait_for(&first)?;
    thread::sleep(REST);
    let rest = running.memory()?;
    let mut reactions = Vec::new();
    for number in 1..=changes {
        thread::sleep(PAUSE);
        let begun = Instant::now();
        let network = change(number)?;
        reactions.push(running.wait_for(&network)?.duration_since(begun));
    }
    thread::sleep(REST);
    Ok(Watch { rest, after: running.memory()?, reactions })
}

impl Running {
    fn start(agent: &Path, node: &Node) -> Result<Self> {
        let mut command = Command::new(agent);
        command.args(["networks", "--watch", "--output", "json", "--cni-conf-dir", DIRECTORY]);
        command.arg("--cni-bin-dir").arg(&node.plugins).env_clear().env("PATH", &node.path);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Error::file("start", agent, e))?;
        let output = child.stdout.take();
        let (send, lines) = mpsc::channel();
        // It ends with the command's output.
        thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let Ok(line) = line else { return };
                if send.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }

    /// Waits until the network is the default one; returns the time of the line.
    fn wait_for(&self, network: &str) -> Result<Instant> {
        let wanted = format!("\"default_network\": \"{network}\"");
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok((time, line)) if line.contains(&wanted) => return Ok(time),
                Ok(_) => {}
                Err(e) => {
                    return Err(Error::Failed(format!(
                        "slipwayd networks --watch did not print network {network}: {e}"
                    )));
                }
            }
        }
    }

    fn memory(&self) -> Result<Memory> {
        memory::of_process(self.child.id())
            .ok_or_else(|| Error::Failed("slipwayd networks --watch has ended".to_owned()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for result in [self.child.kill(), self.child.wait().map(drop)] {
            if let Err(e) = result {
                eprintln!("end slipwayd networks --watch: {e}");
            }
        }
    }
}
