// SPDX-License-Identifier: GPL-3.0-or-later

//! Ports and flows, from the commands of the installed `slipway`, whose JSON is an interface. The agent itself does not
//! read the plugins' tables: the two may be of different versions.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use cni_state::documents::{BpfNode, Port, Ports};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::repair::program::{Program, ProgramError};

/// The usual path of the program.
pub const SLIPWAY: &str = "/opt/cni/bin/slipway";

/// The least time between two calls of the program.
const INTERVAL: Duration = Duration::from_secs(15);
/// The time limit of its commands, which run concurrently.
const LIMIT: Duration = Duration::from_secs(5);

/// The output of both commands.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DataplaneView {
    pub(super) node: BpfNode,
    pub(super) ports: Vec<Port>,
}

/// The installed program, with its last output.
#[derive(Debug)]
pub(super) struct Dataplane {
    program: Program,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    at: Option<Instant>,
    view: Option<Arc<DataplaneView>>,
    /// The error that was logged; empty after a success.
    error: String,
}

impl Dataplane {
    pub(super) fn new(program: Program) -> Self {
        Self { program, last: Mutex::default() }
    }

    /// The output of the last [`INTERVAL`]; none if the program is missing or fails.
    pub(super) async fn view(&self) -> Option<Arc<DataplaneView>> {
        // The lock is held during the call, so that concurrent requests lead to a single call.
        let mut last = self.last.lock().await;
        if last.at.is_none_or(|at| at.elapsed() >= INTERVAL) {
            let read = self.read().await;
            last.at = Some(Instant::now());
            let error = read.as_ref().err().map(ToString::to_string).unwrap_or_default();
            if error != last.error {
                if error.is_empty() {
                    log::info!("metrics of the dataplane: {:?} reports again", self.program.path);
                } else {
                    log::warn!("metrics of the dataplane are missing: {error}");
                }
                last.error = error;
            }
            last.view = read.ok().map(Arc::new);
        }
        last.view.clone()
    }

    async fn read(&self) -> Result<DataplaneView, ProgramError> {
        let node = ["node", "status", "--output", "json"].map(OsString::from);
        let ports = ["ports", "--output", "json"].map(OsString::from);
        let (node, Ports { ports, .. }) =
            tokio::try_join!(self.program.read(&node, LIMIT), self.program.read(&ports, LIMIT))?;
        Ok(DataplaneView { node, ports })
    }
}

#[cfg(test)]
mod tests {
    use cni_state::documents::BpfMap;

    use super::super::tests::port;
    use super::*;
    use crate::repair::program::tests::{echo, script};

    #[tokio::test(flavor = "current_thread")]
    async fn both_commands_are_read_once_within_the_interval() {
        let temp = tempfile::tempdir().unwrap();
        let one = |name: &str, count| [(name.to_owned(), count)].into();
        let map = BpfMap { name: "carried4".to_owned(), elements: 5, max_elements: 10 };
        let node = BpfNode {
            loaded: true,
            containers: 2,
            counters: one("carried_packets", 7),
            maps: vec![map],
            ..BpfNode::default()
        };
        let expected = DataplaneView { node, ports: vec![port()] };
        let text = format!(
            "echo \"$*\" >> \"$0.calls\"\ncase $1 in\nnode) {} ;;\nports) {} ;;\nesac",
            echo(&expected.node),
            echo(Ports { attachments: Vec::new(), ports: expected.ports.clone() })
        );
        let dataplane = Dataplane::new(script(temp.path(), &text));
        let view = dataplane.view().await.unwrap();
        assert_eq!(*view, expected);
        assert_eq!(dataplane.view().await.unwrap(), view);
        let calls = std::fs::read_to_string(temp.path().join("slipway.calls")).unwrap();
        let mut calls: Vec<&str> = calls.lines().collect();
        calls.sort_unstable();
        assert_eq!(calls, ["node status --output json", "ports --output json"]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_program_that_fails_or_is_missing_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let error = async |program| Dataplane::new(program).read().await.unwrap_err().to_string();
        let path = temp.path().join("slipway");
        let name = path.display();
        let missing = error(Program::new(&path)).await;
        assert!(
            missing.starts_with(&format!("run {name} ")) && missing.contains("No such file"),
            "{missing}"
        );
        let ports = r#"[ $1 = ports ] && exec echo '{"schema": 2, "attachments": [], "ports": []}'"#;
        let failed = error(script(temp.path(), &format!("{ports}\nexit 3"))).await;
        assert_eq!(failed, format!("{name} node status --output json: exit status: 3"));
        let invalid = script(temp.path(), &format!("{ports}\necho '{{'"));
        let text = error(invalid.clone()).await;
        assert!(
            text.starts_with(&format!("{name} node status --output json: unexpected output: EOF")),
            "{text}"
        );
        assert_eq!(Dataplane::new(invalid).view().await, None);
    }
}
