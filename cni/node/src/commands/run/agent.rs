// SPDX-License-Identifier: GPL-3.0-or-later

//! The running agent. Its parts run concurrently and report [`Event`]s; [`Agent`] handles one after the other, with a
//! method for each kind.
//!
//! ```text
//! comparisons of the node   ─┐                       ┌─> log, metrics and `slipwayd status` (Observer)
//! repairs of the dataplane  ─┼─> Event ──> Agent ────┼─> Events of Kubernetes (Notice)
//! sweeps for garbage        ─┤                       └─> this node's own Node (Announcement)
//! changes of addresses      ─┘
//! ```

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use cni_dataplane::iptables::forward;
use cni_kernel::unix::bind;
use cni_spec::Attachment;
use cni_state::report;
use slipwayd::cluster::agent::{self, AgentError};
use slipwayd::cluster::announce::{self, Announcement};
use slipwayd::cluster::conflist;
use slipwayd::cluster::events::{self, Notice};
use slipwayd::cluster::reconcile::{Failure, Report, Settings};
use slipwayd::cluster::source::{self, Snapshot};
use slipwayd::garbage::{self, Sweep};
use slipwayd::host::run_dir::RunDir;
use slipwayd::observe::{Change, Observer, server};
use slipwayd::repair::program::Program;
use slipwayd::repair::{self, Repair, RepairError};
use tokio::net::UnixDatagram;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::watch;

use super::Start;

/// The length of the queue of notices that are to be sent as Events. A notice that finds it full is dropped, because more
/// are waiting than may be sent; one Node alone does not fill it.
const NOTICES: usize = 256;

/// The changes of a comparison that are logged one by one: a start makes one for each Node.
const LOGGED_CHANGES: usize = 100;

/// The reason why the agent ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    /// The node cannot be compared.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The dataplane cannot be watched.
    #[error(transparent)]
    Repair(#[from] RepairError),
}

/// The work that a part of the agent has done, or a change that it has noticed.
enum Event {
    Compared(Arc<Snapshot>, Result<Box<Report>, Arc<Failure>>),
    Repaired(Repair),
    Swept(Sweep),
    AddressesChanged(Change),
}

/// Takes over events: into the log, for monitoring, and for the API server.
struct Agent {
    settings: Arc<Settings>,
    observer: Arc<Observer>,
    notices: mpsc::Sender<Notice>,
    announcement: watch::Sender<Announcement>,
    /// The notices of the last comparison.
    last_notices: BTreeSet<Notice>,
    /// True if the list of Nodes was complete at the last comparison.
    is_synced: bool,
    comparison_troubles: Troubles,
    repair_troubles: Troubles,
    garbage_troubles: Troubles,
}

/// Runs the agent in its directory until `stop` is ready.
///
/// # Errors
/// [`RunError`].
pub(super) async fn run(
    start: Start,
    run_dir: &RunDir,
    stop: impl Future<Output = ()>,
) -> Result<(), RunError> {
    let Start { settings, access, program, removes_conflist, startup_taints, listen, probe_listen, garbage } =
        start;
    let settings = Arc::new(settings);
    log::info!("node {}: watching the Nodes of the cluster", settings.node);
    withdraw_forward_rules(&settings);
    let (snapshots, counters, follow_nodes) = source::follow(access.clone());
    let observer = Arc::new(Observer::new(Arc::clone(&settings), counters, program.clone()));
    let (announcement, announced) = watch::channel(Announcement::default());
    let (notices, noticed) = mpsc::channel(NOTICES);
    let (events, mut reported) = mpsc::unbounded_channel();
    let mut agent = Agent::new(Arc::clone(&settings), Arc::clone(&observer), notices, announcement);
    let node = settings.node.clone();
    let ended = tokio::select! {
        ended = compare(Arc::clone(&settings), snapshots, stop, &events) => ended,
        ended = repair(program.clone(), &events) => ended,
        () = collect(garbage, program, &events) => Ok(()),
        () = observer.follow_addresses(|change| send(&events, Event::AddressesChanged(change))) => Ok(()),
        () = agent.handle_all(&mut reported) => Ok(()),
        () = follow_nodes => Ok(()),
        () = async { tokio::join!(
            events::follow(access.clone(), node.clone(), noticed),
            announce::follow(access, node, announced, startup_taints),
            serve(&observer, run_dir, listen, probe_listen),
        ); } => Ok(()),
    };
    // Handles the last events before the end.
    while let Ok(event) = reported.try_recv() {
        agent.handle(event);
    }
    if removes_conflist {
        match conflist::remove(&settings.conflist) {
            Ok(true) => log::info!("removed {}", settings.conflist.display()),
            Ok(false) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
    ended
}

/// Deletes the rules of an agent that had accepted forwarded packets, if this one does not.
fn withdraw_forward_rules(settings: &Settings) {
    if settings.accepts_forwarded {
        return;
    }
    match settings.with_iptables(|| forward::withdraw(&settings.bridge)) {
        Ok(places) if places.is_empty() => {}
        Ok(_) => log::info!("deleted the rules for {} in FORWARD", settings.bridge),
        Err(error) => log::warn!("delete the rules for {} in FORWARD: {error}", settings.bridge),
    }
}

/// Reports an event. The receiver lives as long as the agent.
fn send(events: &UnboundedSender<Event>, event: Event) {
    let _ended = events.send(event);
}

/// Compares the node with its desired state, until `stop` is ready.
async fn compare(
    settings: Arc<Settings>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stop: impl Future<Output = ()>,
    events: &UnboundedSender<Event>,
) -> Result<(), RunError> {
    let done = |snapshot: &Arc<Snapshot>, report: Result<Report, Failure>| {
        let report = report.map(Box::new).map_err(Arc::new);
        send(events, Event::Compared(Arc::clone(snapshot), report));
    };
    Ok(agent::run(settings, snapshots, stop, done).await?)
}

/// Repairs the dataplane, without end.
async fn repair(program: Program, events: &UnboundedSender<Event>) -> Result<(), RunError> {
    let done = |repair| send(events, Event::Repaired(repair));
    Ok(repair::run(program, std::future::pending(), done).await?)
}

/// Sweeps for garbage, without end.
async fn collect(settings: Option<garbage::Settings>, program: Program, events: &UnboundedSender<Event>) {
    match settings {
        Some(settings) => garbage::run(settings, program, |sweep| send(events, Event::Swept(sweep))).await,
        None => std::future::pending().await,
    }
}

/// Receives reports of plugins and replies to requests, without end.
async fn serve(
    observer: &Arc<Observer>,
    run_dir: &RunDir,
    listen: Option<SocketAddr>,
    probe_listen: Option<SocketAddr>,
) {
    let receive = async {
        match bind(Path::new(report::SOCKET), |path| UnixDatagram::bind(path)) {
            Ok(socket) => observer.receive(socket).await,
            Err(error) => log::warn!("calls of plugins are not counted: bind {}: {error}", report::SOCKET),
        }
    };
    let socket = run_dir.socket();
    let address = async {
        if let Some(address) = listen {
            server::serve_address(Arc::clone(observer), address).await;
        }
    };
    let probes = async {
        if let Some(address) = probe_listen {
            server::serve_probes(Arc::clone(observer), address).await;
        }
    };
    tokio::join!(receive, address, probes, server::serve_socket(Arc::clone(observer), &socket));
}

impl Agent {
    fn new(
        settings: Arc<Settings>,
        observer: Arc<Observer>,
        notices: mpsc::Sender<Notice>,
        announcement: watch::Sender<Announcement>,
    ) -> Self {
        Self {
            settings,
            observer,
            notices,
            announcement,
            last_notices: BTreeSet::new(),
            is_synced: false,
            comparison_troubles: Troubles::default(),
            repair_troubles: Troubles::default(),
            garbage_troubles: Troubles::default(),
        }
    }

    /// Handles events until all parts have ended.
    async fn handle_all(&mut self, events: &mut mpsc::UnboundedReceiver<Event>) {
        while let Some(event) = events.recv().await {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Compared(snapshot, report) => self.compared(&snapshot, report.as_deref()),
            Event::Repaired(repair) => self.repaired(&repair),
            Event::Swept(sweep) => self.swept(&sweep),
            Event::AddressesChanged(change) => self.addresses_changed(&change),
        }
    }

    fn compared(&mut self, snapshot: &Snapshot, report: Result<&Report, &Arc<Failure>>) {
        self.observer.compared(snapshot, report);
        if snapshot.synced() && !self.is_synced {
            log::info!("the list of Nodes is complete");
        }
        self.is_synced = snapshot.synced();
        let report = match report {
            Ok(report) => report,
            Err(failure) => {
                self.comparison_troubles.report([failure.to_string()].into());
                return;
            }
        };
        report.changes.iter().take(LOGGED_CHANGES).for_each(|change| log::info!("{change}"));
        if let Some(more @ 1..) = report.changes.len().checked_sub(LOGGED_CHANGES) {
            log::info!("made {more} more changes in the same comparison");
        }
        // An incomplete list does not justify a message.
        self.comparison_troubles.report(report.troubles().filter(|_| self.is_synced).collect());
        if self.is_synced {
            self.tell_api_server(snapshot, report);
        }
    }

    /// Sends new notices of a comparison as Events, and announces what it made in this node's own Node.
    fn tell_api_server(&mut self, snapshot: &Snapshot, report: &Report) {
        let now = events::notices(report, snapshot.nodes(), &self.settings.node);
        for notice in now.difference(&self.last_notices) {
            let _dropped = self.notices.try_send(notice.clone());
        }
        self.last_notices = now;
        let own = snapshot.nodes().get(&self.settings.node);
        let new = Announcement::new(own.map(AsRef::as_ref), report);
        self.announcement.send_if_modified(|old| {
            let differs = *old != new;
            *old = new;
            differs
        });
    }

    fn repaired(&mut self, repair: &Repair) {
        // A change of iptables may be kube-proxy's, or that of our own plugin.
        let level = if repair.was_needed() { log::Level::Warn } else { log::Level::Debug };
        repair.damages.iter().for_each(|damage| log::log!(level, "{damage}"));
        self.observer.repaired(repair);
        let restored = repair.restored.iter().flat_map(|done| &done.restored);
        restored.for_each(|line| log::info!("restored {line}"));
        let failures = repair.failures().map(|failure| format!("repair: {failure}")).collect();
        for text in self.repair_troubles.report(failures) {
            self.notice("RepairFailed", text);
        }
    }

    fn swept(&mut self, sweep: &Sweep) {
        self.observer.swept(sweep);
        for text in sweep.deleted.iter().map(deleted) {
            log::warn!("{text}");
            self.notice("GarbageDeleted", text);
        }
        self.garbage_troubles.report(sweep.troubles.clone());
    }

    fn addresses_changed(&self, change: &Change) {
        match change {
            Change::Exhausted(_) => {
                log::warn!("{change}");
                self.notice("AddressesExhausted", change.to_string());
            }
            Change::Free(_) | Change::Former(_) => log::info!("{change}"),
        }
    }

    /// Sends an Event about this node.
    fn notice(&self, reason: &str, text: String) {
        let (node, reason) = (self.settings.node.clone(), reason.to_owned());
        let _dropped = self.notices.try_send(Notice { node, reason, text });
    }
}

/// The message about an attachment that was deleted.
fn deleted(attachment: &Attachment) -> String {
    let (network, id, interface) = (attachment.network(), attachment.container_id(), attachment.ifname());
    format!(
        "deleted what pod sandbox {id} had in network {network} ({interface}): its runtime no longer lists it"
    )
}

/// Logs each trouble once until it is gone.
#[derive(Debug, Default)]
struct Troubles(BTreeSet<String>);

impl Troubles {
    /// Takes the present troubles, and returns the new ones.
    fn report(&mut self, now: BTreeSet<String>) -> Vec<String> {
        let new: Vec<String> = now.difference(&self.0).cloned().collect();
        new.iter().for_each(|trouble| log::warn!("{trouble}"));
        self.0.difference(&now).for_each(|trouble| log::info!("no longer: {trouble}"));
        self.0 = now;
        new
    }
}
