// SPDX-License-Identifier: GPL-3.0-or-later

//! Deletes what a container runtime has left: attachments of pod sandboxes that it no longer knows. containerd and CRI-O
//! call no GC.
//!
//! [`inventory`] reads the attachments of the agent's network from libcni's cache and host-local's reservations, [`cri`] lists
//! the sandboxes, [`tracker`] decides. The installed `slipway detach` compares the namespace with the kernel and calls DEL:
//! one for each attachment. GC with a list of valid attachments would delete all that the list lacks.
//!
//! Facts that the decision rests on, from the code of containerd 1.6 to 2.x and CRI-O:
//!
//! - A sandbox is listed when `RunPodSandbox` is about to return: after its ADD, and after its first container was started.
//!   kubelet gives that call twice its `runtimeRequestTimeout`, 4 minutes; CRI-O keeps a sandbox that came too late for
//!   up to 2 minutes more, for the next call. [`GRACE`] is longer.
//! - A sandbox that is stopped is listed (NOTREADY) until it is removed, and owns its network until a DEL succeeded: all states
//!   count as live.
//! - containerd refuses calls until it has recovered its sandboxes; CRI-O restores them before it listens. A sandbox that
//!   cannot be recovered is not listed, although its containers may run: processes in its namespace keep it.
//! - Newer interfaces have pages. A list with a token for a next page is not complete.

pub mod cri;
pub mod inventory;
pub mod tracker;
pub mod wire;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cni_spec::Attachment;
use tokio::time::{MissedTickBehavior, interval};

use crate::repair::program::{DetachCondition, DetachOutcome, Program};
use cri::Runtimes;
use inventory::{Directories, Inventory};
use tracker::Tracker;

/// The usual time for which an attachment must be missing.
pub const GRACE: Duration = Duration::from_secs(600);

/// The longest time between two sweeps.
const LONGEST: Duration = Duration::from_secs(60);
/// The shortest time between two sweeps.
const SHORTEST: Duration = Duration::from_secs(1);
/// The most attachments that are deleted in one sweep.
const MOST: usize = 20;

/// The settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The files that name attachments.
    pub directories: Directories,
    /// The network's configuration, for attachments that no cache has.
    pub conflist: PathBuf,
    /// The container runtimes.
    pub runtimes: Runtimes,
    /// The time for which an attachment must be missing.
    pub grace: Duration,
}

/// The outcome of a sweep.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Complete lists of sandboxes.
    pub lists: u64,
    /// Lists that failed.
    pub failed_lists: u64,
    /// Attachments that were missing in the last complete list and still exist.
    pub suspected: usize,
    /// Attachments that were deleted now.
    pub deleted: Vec<Attachment>,
    /// The number of those that were left alone now: in use, or not a pod's.
    pub kept: u64,
    /// The number of those whose deletion failed now.
    pub failed: u64,
    /// The reasons why garbage is not looked for, or was not deleted, also earlier.
    pub troubles: BTreeSet<String>,
}

/// Looks for garbage, without end. `done` gets each outcome.
pub async fn run(settings: Settings, program: Program, mut done: impl FnMut(Sweep)) {
    let mut sweeps = interval((settings.grace / 4).clamp(SHORTEST, LONGEST));
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut collector = Collector { tracker: Tracker::new(settings.grace), settings, program };
    loop {
        sweeps.tick().await;
        done(collector.sweep().await);
    }
}

struct Collector {
    settings: Settings,
    program: Program,
    tracker: Tracker,
}

/// The state of files and runtimes at one moment, the files first.
struct Observation {
    known: Inventory,
    listed: BTreeSet<String>,
}

impl Observation {
    /// The condition for a deletion. If the runtimes list none of the attachments, they may be the wrong ones, or have lost
    /// their state: a namespace that exists is then believed more than they are.
    fn condition(&self) -> DetachCondition {
        let knows_some = self.known.keys().any(|one| self.listed.contains(one.container_id()));
        if knows_some { DetachCondition::Unused } else { DetachCondition::Gone }
    }
}

impl Collector {
    async fn sweep(&mut self) -> Sweep {
        let mut sweep = Sweep::default();
        if let Some(view) = self.view(&mut sweep).await {
            let due = self.tracker.observe(Instant::now(), &view.known, &view.listed);
            for attachment in due.iter().take(MOST) {
                // A deletion takes a while, and pods come and go, so each deletion needs a fresh view.
                let Some(view) = self.view(&mut sweep).await else { break };
                let due = self.tracker.observe(Instant::now(), &view.known, &view.listed);
                if due.contains(attachment) {
                    self.delete(attachment, view.condition(), &mut sweep).await;
                }
            }
        }
        sweep.suspected = self.tracker.missing();
        sweep.troubles.extend(self.tracker.troubles().map(|(one, reason)| {
            format!("garbage: {} {} is not deleted: {reason}", one.container_id(), one.ifname())
        }));
        sweep
    }

    /// None if there is nothing to compare, or a part cannot be read.
    async fn view(&mut self, sweep: &mut Sweep) -> Option<Observation> {
        let directories = self.settings.directories.clone();
        let known = match tokio::task::spawn_blocking(move || directories.read()).await {
            Ok(Ok(known)) => known,
            Ok(Err(error)) => {
                sweep.troubles.insert(format!("garbage is not looked for: {error}"));
                return None;
            }
            // The runtime is ending.
            Err(_) => return None,
        };
        if known.is_empty() {
            self.tracker.clear();
            return None;
        }
        match self.settings.runtimes.sandboxes().await {
            Ok(Some(listed)) => {
                sweep.lists += 1;
                Some(Observation { known, listed })
            }
            Ok(None) => {
                self.tracker.clear();
                None
            }
            Err(error) => {
                sweep.failed_lists += 1;
                sweep.troubles.insert(format!("garbage is not looked for: {error}"));
                None
            }
        }
    }

    async fn delete(&mut self, attachment: &Attachment, condition: DetachCondition, sweep: &mut Sweep) {
        let reason = match self.program.detach(attachment, condition, &self.settings.conflist).await {
            Ok(DetachOutcome::Done) => {
                self.tracker.forget(attachment);
                sweep.deleted.push(attachment.clone());
                return;
            }
            Ok(DetachOutcome::Kept(reason)) => {
                sweep.kept += 1;
                reason
            }
            Err(error) => {
                sweep.failed += 1;
                error.to_string()
            }
        };
        self.tracker.keep(attachment, Instant::now(), reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(known: &[&str], listed: &[&str]) -> Observation {
        let attachment = |id: &&str| Attachment::new("pods", id, "eth0").unwrap();
        Observation {
            known: known.iter().map(|id| (attachment(id), None)).collect(),
            listed: listed.iter().map(|id| (*id).to_owned()).collect(),
        }
    }

    /// An empty list, or that of another runtime, deletes nothing whose namespace exists.
    #[test]
    fn a_runtime_that_knows_no_attachment_is_not_believed() {
        assert_eq!(view(&["a", "b"], &["a", "c"]).condition(), DetachCondition::Unused);
        assert_eq!(view(&["a", "b"], &["c"]).condition(), DetachCondition::Gone);
        assert_eq!(view(&["a", "b"], &[]).condition(), DetachCondition::Gone);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn nothing_is_looked_for_without_attachments_or_a_runtime() {
        let temp = tempfile::tempdir().unwrap();
        let directories = Directories {
            caches: vec![temp.path().to_owned()],
            reservations: temp.path().join("networks"),
            network: "pods".to_owned(),
        };
        let settings = Settings {
            directories,
            conflist: "/nonexistent/pods.conflist".into(),
            runtimes: Runtimes::at(vec![temp.path().join("cri.sock")]),
            grace: GRACE,
        };
        let program = Program::new("/nonexistent/slipway");
        let mut collector = Collector { tracker: Tracker::new(GRACE), settings, program };
        assert_eq!(collector.sweep().await, Sweep::default());
        let results = temp.path().join("results");
        std::fs::create_dir(&results).unwrap();
        std::fs::write(results.join(format!("pods-{}-eth0", "a".repeat(64))), "").unwrap();
        let sweep = collector.sweep().await;
        assert_eq!((sweep.failed_lists, sweep.suspected, sweep.troubles.len()), (1, 0, 1), "{sweep:?}");
        collector.settings.runtimes = Runtimes::usual().below(temp.path());
        assert_eq!(collector.sweep().await, Sweep::default());
    }
}
