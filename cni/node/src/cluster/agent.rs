// SPDX-License-Identifier: GPL-3.0-or-later

//! The agent's loop: it compares the node with its desired state when a Node changes, when the kernel reports a change of
//! what it keeps, and every half minute besides.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cni_dataplane::tunnel_guard;
use cni_kernel::route::{Notification, NotificationGroup, Notifications, RouteError};
use cni_nftables::notify::{self, TableChange};
use cni_nftables::{Family, TableId};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::desired::Claims;
use super::reconcile::{Failure, Report, Settings, reconcile};
use super::routes::PROTOCOL;
use super::source::Snapshot;
use super::{tunnel, wireguard};
use crate::host::address_reports::AddressReports;

/// How often the node is compared even if nothing was reported, because the kernel's notifications may be lost and
/// changes of files are not reported.
const RESYNC: Duration = Duration::from_secs(30);
/// The time from a change in the kernel to the comparison, because changes often come in groups.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The least time between two comparisons that the kernel's changes cause: pods that come and go must not keep a
/// processor busy.
const PAUSE: Duration = Duration::from_millis(250);
/// A comparison that changed Nodes cause waits for this many times the duration of the last one, so that Nodes that
/// change all the time keep at most a fifth of a processor busy. After a longer rest it starts at once.
const SHARE: u32 = 4;
/// The longest wait for such a comparison.
const LONGEST_REST: Duration = Duration::from_secs(2);
/// The thread that waits for the kernel notices within this time that the agent has ended.
const ALIVE: Duration = Duration::from_millis(500);

/// Why the agent ended early.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The kernel's changes cannot be followed.
    #[error(transparent)]
    Notifications(#[from] RouteError),
    /// The thread that waits for the kernel's changes cannot be started.
    #[error("start a thread for changes of the kernel: {0}")]
    Start(io::Error),
    /// The thread of a comparison panicked.
    #[error("compare the node with its desired state: {0}")]
    Thread(tokio::task::JoinError),
}

/// Keeps the node in its desired state until `stop` is ready. `done` gets the report of each comparison.
///
/// # Errors
/// [`AgentError`]. Changes that fail are not errors: they are in the reports, and tried again.
pub async fn run(
    settings: Arc<Settings>,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    stop: impl Future<Output = ()>,
    mut done: impl FnMut(&Arc<Snapshot>, Result<Report, Failure>),
) -> Result<(), AgentError> {
    let groups = [NotificationGroup::Links, NotificationGroup::Addresses, NotificationGroup::Routes];
    let kept = Arc::<Mutex<OwnObjects>>::default();
    // A single report represents all changes until it is received.
    let (sender, mut kernel) = mpsc::channel(1);
    follow_rules(settings.accepts_forwarded, sender.clone()).map_err(AgentError::Start)?;
    follow(Notifications::open(&groups)?, Arc::clone(&kept), sender).map_err(AgentError::Start)?;
    let mut resync = interval(RESYNC);
    resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The next comparison, if one is due.
    let mut due: Option<Instant> = None;
    let mut last = Instant::now() - PAUSE;
    let mut rest = Duration::ZERO;
    // The claims of the last comparison with a complete list of Nodes.
    let mut claims: Option<Arc<Claims>> = None;
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            changed = snapshots.changed() => match changed {
                Ok(()) => {
                    let then = Instant::now().max(last + rest);
                    due = Some(due.map_or(then, |due| due.min(then)));
                }
                // The source has ended, because the process is about to end.
                Err(_) => return Ok(()),
            },
            _ = resync.tick() => due = Some(Instant::now()),
            changed = kernel.recv() => {
                // The thread ends only after an error, or with the receiver.
                changed.unwrap_or(Ok(()))?;
                let then = (Instant::now() + DEBOUNCE).max(last + PAUSE);
                due = Some(due.map_or(then, |due| due.min(then)));
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                due = None;
                let begun = Instant::now();
                let snapshot = Arc::clone(&snapshots.borrow_and_update());
                let report = compare(&settings, &snapshot, claims.clone()).await?;
                if let Ok(report) = &report {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).follow(&settings, report);
                    // If an API server has lost its Nodes, they come back in any order. Those that held something
                    // before must keep it.
                    if snapshot.synced() && report.desired.prune {
                        claims = Some(Arc::new(report.desired.claims.clone()));
                    }
                }
                done(&snapshot, report);
                last = Instant::now();
                rest = (SHARE * last.duration_since(begun)).min(LONGEST_REST);
            }
        }
    }
}

async fn compare(
    settings: &Arc<Settings>,
    snapshot: &Arc<Snapshot>,
    claims: Option<Arc<Claims>>,
) -> Result<Result<Report, Failure>, AgentError> {
    let (settings, snapshot) = (Arc::clone(settings), Arc::clone(snapshot));
    let work = move || reconcile(snapshot.nodes(), snapshot.synced(), &settings, claims.as_deref());
    let compared = tokio::task::spawn_blocking(work);
    compared.await.map_err(AgentError::Thread)
}

/// Waits in a separate thread for changes in the kernel, and reports when objects of the agent have changed.
fn follow(
    mut kernel: Notifications,
    kept: Arc<Mutex<OwnObjects>>,
    sender: mpsc::Sender<Result<(), RouteError>>,
) -> io::Result<()> {
    let work = move || {
        while !sender.is_closed() {
            let concerns_us = match kernel.next(ALIVE) {
                Ok(None) => continue,
                Ok(Some(notification)) => {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).concerns(&notification)
                }
                Err(error) => {
                    let _ = sender.blocking_send(Err(error));
                    return;
                }
            };
            if concerns_us {
                let _ = sender.try_send(Ok(()));
            }
        }
    };
    thread::Builder::new().name("kernel".to_owned()).spawn(work).map(drop)
}

/// Waits in a separate thread for changes of the tunnel's guard and, if the agent accepts forwarded packets, of
/// iptables' tables, after which the chain FORWARD may drop packets. Legacy iptables and kernels without nf_tables
/// report no changes, so the next comparison finds these.
fn follow_rules(accepts_forwarded: bool, sender: mpsc::Sender<Result<(), RouteError>>) -> io::Result<()> {
    let mut rules = match notify::Notifications::open() {
        Ok(rules) => rules,
        Err(error) => {
            log::info!("changes of the chain FORWARD are seen after {} s only: {error}", RESYNC.as_secs());
            return Ok(());
        }
    };
    let work = move || {
        while !sender.is_closed() {
            let concerns_us = match rules.next(ALIVE) {
                Ok(None) => continue,
                Ok(Some(notify::Notification::Lost)) => true,
                Ok(Some(notify::Notification::Generation(generation))) => {
                    generation.tables.iter().any(|(table, change)| {
                        accepts_forwarded && may_drop(table, *change) || may_open(table, *change)
                    })
                }
                Err(error) => {
                    log::warn!(
                        "changes of the chain FORWARD are seen after {} s only: {error}",
                        RESYNC.as_secs()
                    );
                    return;
                }
            };
            if concerns_us {
                let _ = sender.try_send(Ok(()));
            }
        }
    };
    thread::Builder::new().name("rules".to_owned()).spawn(work).map(drop)
}

/// True if a chain FORWARD of iptables may have changed.
fn may_drop(table: &TableId, change: TableChange) -> bool {
    let is_iptables = matches!(table.family, Family::Ip | Family::Ip6) && table.name == "filter";
    is_iptables && matches!(change, TableChange::Contents | TableChange::Deleted)
}

/// True if the tunnel's guard may be incomplete.
fn may_open(table: &TableId, change: TableChange) -> bool {
    tunnel_guard::is_table(table) && change != TableChange::ElementsAdded
}

/// The agent's objects in the kernel: changes of anything else cause no comparison.
#[derive(Debug, Default)]
struct OwnObjects {
    names: BTreeSet<String>,
    /// Indexes of the links that have such a name, and of the uplinks.
    links: BTreeSet<u32>,
    addresses: AddressReports,
}

impl OwnObjects {
    fn follow(&mut self, settings: &Settings, report: &Report) {
        let devices = [tunnel::DEVICE, wireguard::DEVICE].map(str::to_owned);
        self.names = devices.into_iter().chain([settings.bridge.clone()]).collect();
        self.links.clone_from(&report.links);
    }

    fn concerns(&mut self, notification: &Notification) -> bool {
        match notification {
            Notification::Link { link, deleted } => {
                self.names.contains(&link.name)
                    || self.links.contains(&link.index)
                    // A link that comes up may become an uplink, unless it is a port of a bridge, such as the links of
                    // pods.
                    || !deleted && link.up && link.master.is_none()
            }
            Notification::Address { address, deleted } => {
                let is_ours = self.links.contains(&address.link)
                    || address.net.prefix_len() < address.net.max_prefix_len();
                self.addresses.is_change(address, *deleted) && is_ours
            }
            Notification::Route { route, .. } => route.protocol == PROTOCOL,
            // These notifications belong to groups that this observer has not joined.
            Notification::TrafficControl { .. } | Notification::Forwarding { .. } => false,
            Notification::Lost => {
                // Some addresses may have changed unseen.
                self.addresses = AddressReports::default();
                true
            }
        }
    }
}
