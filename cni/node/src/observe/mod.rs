// SPDX-License-Identifier: GPL-3.0-or-later

//! The agent's state for people and monitoring: [`metrics`], `/healthz` and `/readyz`, and the document of
//! `slipwayd status`.
//!
//! [`Observer`] takes over each comparison and each plugin's report, and replies to the requests that [`server`] reads.
//! `request_values` has values that are read at a request: addresses (`addresses`), ports and flows (`dataplane`),
//! the kernel's tables.

mod activity;
mod addresses;
mod connections;
mod dataplane;
pub mod metrics;
mod request_values;
pub mod server;
mod status;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni_kernel::dir::DirError;
use cni_state::documents::{Activity, AgentStatus, Garbage, NodeNetwork};
use cni_state::report;
use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;
use tokio::net::UnixDatagram;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::cluster::reconcile::{Failure, Report, Settings};
use crate::cluster::source::{Counters, Snapshot};
use crate::garbage::Sweep;
use crate::host::reservations;
use crate::repair::Repair;
use crate::repair::program::Program;
use activity::ActivityLog;
use addresses::{AddressMonitor, AddressUsage};
use dataplane::Dataplane;
use metrics::{Metrics, Outcome};
use request_values::RequestValues;

pub use addresses::{Change, FormerAddress};
pub use dataplane::SLIPWAY;

/// The time without a comparison after which the agent counts as stuck: three of its regular ones.
const STUCK: Duration = Duration::from_secs(90);
/// The wait after the socket of reports failed.
const PAUSE: Duration = Duration::from_secs(1);
/// The time after which addresses are counted again, because plugins may not report.
const RESYNC: Duration = Duration::from_secs(30);
/// The time between a plugin's report and the count: one call often comes with others.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// The agent's state.
#[derive(Debug)]
pub struct Observer {
    settings: Arc<Settings>,
    source: Arc<Counters>,
    metrics: Metrics,
    dataplane: Dataplane,
    reservations: PathBuf,
    since: Timestamp,
    state: Mutex<State>,
    /// The sweeps for garbage; none before the first.
    garbage: Mutex<Option<Garbage>>,
    recent: Mutex<ActivityLog>,
    /// A plugin has reported a call.
    called: Notify,
}

#[derive(Debug)]
struct State {
    list_complete: bool,
    nodes: usize,
    /// The agent's start, or the end of its last comparison.
    progress: Instant,
    /// The last comparison.
    compared: Option<Result<Compared, Arc<Failure>>>,
}

/// A comparison that succeeded.
#[derive(Debug)]
struct Compared {
    /// The reason why the network is not ready; none if it is.
    reason: Option<String>,
    network: NodeNetwork,
}

/// Why the node's network is not ready.
#[derive(Debug, thiserror::Error)]
enum NotReady {
    #[error("the list of Nodes is not complete")]
    IncompleteList,
    #[error("no comparison yet")]
    NotCompared,
    #[error(transparent)]
    FailedComparison(Arc<Failure>),
    #[error("{0}")]
    Undesirable(String),
}

/// The agent's loop makes no progress.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no comparison for {} s", .0.as_secs())]
struct Stuck(Duration);

/// The addresses cannot be counted.
#[derive(Debug, thiserror::Error)]
#[error("count the reservations of addresses: {0}")]
struct CountError(#[from] DirError);

impl Observer {
    /// The state of an agent that starts now. `slipway` is the installed program.
    #[must_use]
    pub fn new(settings: Arc<Settings>, source: Arc<Counters>, slipway: Program) -> Self {
        let since = Timestamp::now();
        let state = State { list_complete: false, nodes: 0, progress: Instant::now(), compared: None };
        Self {
            settings,
            source,
            metrics: Metrics::new(seconds(since)),
            dataplane: Dataplane::new(slipway),
            reservations: reservations::DIRECTORY.into(),
            since,
            state: Mutex::new(state),
            garbage: Mutex::default(),
            recent: Mutex::default(),
            called: Notify::new(),
        }
    }

    /// The metrics, for parts of the agent that count.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Counts a repair's objects.
    pub fn repaired(&self, repair: &Repair) {
        let done = repair.restored.as_ref().map_or(0, |done| done.restored.len());
        (0..done).for_each(|_| self.metrics.repaired("rules", Outcome::Done));
        let failed = repair.restored.as_ref().map_or(1, |done| done.failed.len());
        (0..failed).for_each(|_| self.metrics.repaired("rules", Outcome::Failed));
        if repair.programs.is_err() {
            self.metrics.repaired("programs", Outcome::Failed);
        }
        self.recent().repaired(repair, Timestamp::now());
    }

    /// Takes over a sweep for garbage.
    pub fn swept(&self, sweep: &Sweep) {
        self.metrics.swept(sweep);
        let mut garbage = self.garbage.lock().unwrap_or_else(PoisonError::into_inner);
        status::add_sweep(garbage.get_or_insert_default(), sweep);
    }

    /// Takes over a comparison.
    pub fn compared(&self, snapshot: &Snapshot, report: Result<&Report, &Arc<Failure>>) {
        let now = Timestamp::now();
        self.metrics.compared(snapshot, report.ok(), seconds(now));
        let compared = report
            .map_err(Arc::clone)
            .map(|report| Compared { reason: report.reason(), network: status::network(report, now) });
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State {
            list_complete: snapshot.synced(),
            nodes: snapshot.nodes().len(),
            progress: Instant::now(),
            compared: Some(compared),
        };
    }

    /// Counts the reports of plugins that arrive at a socket, without end.
    pub async fn receive(&self, socket: UnixDatagram) {
        // A byte more than a report may have, so that a truncated one is noticed.
        let mut buffer = vec![0; report::LIMIT + 1];
        loop {
            match socket.recv(&mut buffer).await {
                Ok(length) => {
                    let call = report::Report::parse(&buffer[..length]);
                    self.metrics.called(&call);
                    if let Ok(call) = call {
                        self.recent().called(&call, Timestamp::now());
                    }
                    self.called.notify_one();
                }
                Err(error) => {
                    log::warn!("receive reports of plugins: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Checks that the agent's loop makes progress.
    ///
    /// # Errors
    /// [`Stuck`] if its last comparison is too long ago.
    fn healthy(&self) -> Result<(), Stuck> {
        self.with(|state| match state.progress.elapsed() {
            elapsed if elapsed < STUCK => Ok(()),
            elapsed => Err(Stuck(elapsed)),
        })
    }

    /// Checks that the node's network is in place.
    ///
    /// # Errors
    /// [`NotReady`] if it is not.
    fn ready(&self) -> Result<(), NotReady> {
        self.with(State::ready)
    }

    /// All metrics, in the text format of OpenMetrics.
    async fn print_metrics(&self) -> Result<String, std::fmt::Error> {
        let (addresses, dataplane) = tokio::join!(self.addresses_or_none(), self.dataplane.view());
        let (source, tables) = (Arc::clone(&self.source), request_values::kernel_tables());
        self.metrics.print(RequestValues { source, addresses, dataplane, tables })
    }

    /// The document of `slipwayd status`.
    async fn status(&self) -> AgentStatus {
        let addresses = self.addresses_or_none().await;
        let garbage = self.garbage.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.with(|state| status::document(&self.settings, self.since, state, addresses, garbage))
    }

    /// The last calls of plugins and the last repairs, for `slipwayd top`.
    fn activity(&self) -> Activity {
        self.recent().activity(self.settings.node.as_str())
    }

    fn recent(&self) -> MutexGuard<'_, ActivityLog> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports changes of the node's addresses, without end: subnets that have no free address, and addresses outside
    /// the node's subnets.
    pub async fn follow_addresses(&self, mut changed: impl FnMut(Change)) {
        let (mut reported, mut last_error) = (AddressMonitor::default(), String::new());
        loop {
            let error = match self.addresses().await {
                Ok(view) => {
                    view.iter().flat_map(|view| reported.compare(view)).for_each(&mut changed);
                    String::new()
                }
                Err(error) => error.to_string(),
            };
            if error != last_error && !error.is_empty() {
                log::warn!("{error}");
            }
            last_error = error;
            tokio::select! {
                () = sleep(RESYNC) => {}
                () = self.called.notified() => sleep(DEBOUNCE).await,
            }
        }
    }

    /// Does the same as [`Observer::addresses`], but returns nothing if the addresses cannot be counted.
    /// [`Observer::follow_addresses`] logs the error.
    async fn addresses_or_none(&self) -> AddressUsage {
        self.addresses().await.ok().flatten().unwrap_or_default()
    }

    /// The addresses of the node; none before the node's subnets are known.
    ///
    /// # Errors
    /// [`CountError`] if the reservations cannot be read.
    async fn addresses(&self) -> Result<Option<AddressUsage>, CountError> {
        let subnets: Vec<IpNet> = self.with(|state| match &state.compared {
            Some(Ok(compared)) => compared.network.subnets.clone(),
            _ => Vec::new(),
        });
        if subnets.is_empty() {
            return Ok(None);
        }
        let (reservations, network) = (self.reservations.clone(), self.settings.network.clone());
        let read = move || AddressUsage::read(&reservations, &network, &subnets);
        match tokio::task::spawn_blocking(read).await {
            Ok(Ok(view)) => Ok(Some(view)),
            Ok(Err(error)) => Err(error.into()),
            // The runtime is ending.
            Err(_) => Ok(None),
        }
    }

    fn with<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn ready(&self) -> Result<(), NotReady> {
        match &self.compared {
            _ if !self.list_complete => Err(NotReady::IncompleteList),
            None => Err(NotReady::NotCompared),
            Some(Err(error)) => Err(NotReady::FailedComparison(Arc::clone(error))),
            Some(Ok(compared)) => match &compared.reason {
                Some(reason) => Err(NotReady::Undesirable(reason.clone())),
                None => Ok(()),
            },
        }
    }
}

/// Seconds since 1970.
fn seconds(time: Timestamp) -> f64 {
    time.as_duration().as_secs_f64()
}
