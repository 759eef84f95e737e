// SPDX-License-Identifier: GPL-3.0-or-later

//! Ports and flows, from the commands of the installed `slipway`, whose JSON is an interface. The agent itself does not
//! read the plugins' tables: the two may be of different versions.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// The usual path of the program.
pub const SLIPWAY: &str = "/opt/cni/bin/slipway";

/// The least time between two calls of the program.
const INTERVAL: Duration = Duration::from_secs(15);
/// The time limit of its commands.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest output that is read, in bytes: that of some 100,000 ports.
const LONGEST: u64 = 64 << 20;

/// The output of both commands.
#[derive(Debug, Default, PartialEq)]
pub(super) struct View {
    pub(super) node: Node,
    pub(super) ports: Vec<Port>,
}

/// The fields of `slipway node` that become metrics.
#[derive(Debug, Default, PartialEq, Deserialize)]
pub(super) struct Node {
    pub(super) loaded: bool,
    pub(super) containers: u64,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) dropped: BTreeMap<String, u64>,
    /// Missing in the output of earlier versions.
    #[serde(default)]
    pub(super) maps: Vec<Map>,
}

/// A BPF map.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Map {
    pub(super) name: String,
    pub(super) elements: u64,
    pub(super) max_elements: u64,
}

/// The fields of a port of `slipway ports` that become metrics.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Port {
    pub(super) backend: String,
    pub(super) protocol: String,
    pub(super) connections: Option<u64>,
}

#[derive(Deserialize)]
struct Ports {
    ports: Vec<Port>,
}

/// The program does not report.
#[derive(Debug, thiserror::Error)]
pub(super) enum DataplaneError {
    #[error("start {0:?}: {1}")]
    Start(PathBuf, io::Error),
    #[error("read the output of {0}: {1}")]
    Read(String, io::Error),
    #[error("{0} failed: {1}")]
    Failed(String, std::process::ExitStatus),
    #[error("{0} printed more than {LONGEST} bytes")]
    TooLong(String),
    #[error("the output of {0}: {1}")]
    Output(String, serde_json::Error),
    #[error("{0:?} did not end within {limit} s", limit = LIMIT.as_secs())]
    TimedOut(PathBuf),
}

/// The installed program, with its last output.
#[derive(Debug)]
pub(super) struct Dataplane {
    program: PathBuf,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    at: Option<Instant>,
    view: Option<Arc<View>>,
    /// The error that was logged; empty after a success.
    error: String,
}

impl Dataplane {
    pub(super) fn new(program: &Path) -> Self {
        Self { program: program.to_owned(), last: Mutex::default() }
    }

    /// The output of the last [`INTERVAL`]; none if the program is missing or fails.
    pub(super) async fn view(&self) -> Option<Arc<View>> {
        // Held during the call, so that concurrent requests lead to one.
        let mut last = self.last.lock().await;
        if last.at.is_none_or(|at| at.elapsed() >= INTERVAL) {
            let read = timeout(LIMIT, self.read()).await;
            let read = read.unwrap_or_else(|_| Err(DataplaneError::TimedOut(self.program.clone())));
            last.at = Some(Instant::now());
            let error = read.as_ref().err().map(ToString::to_string).unwrap_or_default();
            if error != last.error {
                if error.is_empty() {
                    log::info!("metrics of the dataplane: {:?} reports again", self.program);
                } else {
                    log::warn!("metrics of the dataplane are missing: {error}");
                }
                last.error = error;
            }
            last.view = read.ok().map(Arc::new);
        }
        last.view.clone()
    }

    async fn read(&self) -> Result<View, DataplaneError> {
        let node = self.run(&["node", "status", "--output", "json"]).await?;
        let Ports { ports } = self.run(&["ports", "--output", "json"]).await?;
        Ok(View { node, ports })
    }

    async fn run<T: DeserializeOwned>(&self, args: &[&str]) -> Result<T, DataplaneError> {
        let line = format!("{} {}", self.program.display(), args.join(" "));
        let start = |error| DataplaneError::Start(self.program.clone(), error);
        let mut command = Command::new(&self.program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().map_err(start)?;
        let mut text = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            let read = stdout.take(LONGEST + 1).read_to_end(&mut text).await;
            read.map_err(|error| DataplaneError::Read(line.clone(), error))?;
        }
        if text.len() as u64 > LONGEST {
            return Err(DataplaneError::TooLong(line));
        }
        let status = child.wait().await.map_err(|error| DataplaneError::Read(line.clone(), error))?;
        if !status.success() {
            return Err(DataplaneError::Failed(line, status));
        }
        serde_json::from_slice(&text).map_err(|error| DataplaneError::Output(line, error))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn program(dir: &Path, script: &str) -> PathBuf {
        let path = dir.join("slipway");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test(flavor = "current_thread")]
    async fn both_commands_are_read_once_within_the_interval() {
        let temp = tempfile::tempdir().unwrap();
        let script = r#"echo "$*" >> "$0.calls"
            case $1 in
            node) echo '{"schema": 1, "loaded": true, "containers": 2, "counters": {"carried_packets": 7},
                "dropped": {},
                "maps": [{"name": "carried4", "elements": 5, "max_elements": 10}]}' ;;
            ports) echo '{"schema": 1, "ports": [{"backend": "ebpf", "protocol": "tcp", "connections": null}]}' ;;
            esac"#;
        let path = program(temp.path(), script);
        let dataplane = Dataplane::new(&path);
        let view = dataplane.view().await.unwrap();
        let one = |name: &str, count| [(name.to_owned(), count)].into();
        let map = Map { name: "carried4".to_owned(), elements: 5, max_elements: 10 };
        let expected = View {
            node: Node {
                loaded: true,
                containers: 2,
                counters: one("carried_packets", 7),
                dropped: BTreeMap::new(),
                maps: vec![map],
            },
            ports: vec![Port { backend: "ebpf".to_owned(), protocol: "tcp".to_owned(), connections: None }],
        };
        assert_eq!(*view, expected);
        assert_eq!(dataplane.view().await.unwrap(), view);
        let calls = std::fs::read_to_string(temp.path().join("slipway.calls")).unwrap();
        assert_eq!(calls, "node status --output json\nports --output json\n");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_program_that_fails_or_is_missing_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let error = async |path: &Path| Dataplane::new(path).read().await.unwrap_err().to_string();
        let path = temp.path().join("slipway");
        assert!(error(&path).await.starts_with(&format!("start {path:?}: No such file")));
        let path = program(temp.path(), "exit 3");
        let line = format!("{} node status --output json", path.display());
        assert_eq!(error(&path).await, format!("{line} failed: exit status: 3"));
        let path = program(temp.path(), "echo '{'");
        assert!(error(&path).await.starts_with(&format!("the output of {line}: EOF while parsing")));
        assert_eq!(Dataplane::new(&path).view().await, None);
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_program_that_hangs_is_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let path = program(temp.path(), "exec sleep 600");
        // With a paused clock, the limit passes as soon as the runtime waits for the program alone.
        assert_eq!(Dataplane::new(&path).view().await, None);
    }
}
