// SPDX-License-Identifier: GPL-3.0-or-later

//! The metrics that the agent counts itself. `docs/metrics.md` has each name, and a test compares that page with what is
//! exposed.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use cni_state::report::{InvalidReport, Report as Call};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

use super::request_values::RequestValues;
use crate::cluster::desired::Via;
use crate::cluster::reconcile::Report;
use crate::cluster::source::Snapshot;
use crate::garbage::Sweep;

/// The beginning of all names.
pub(super) const PREFIX: &str = "slipway";

/// The most combinations of plugin, verb and code: reports name them.
const CALLS: usize = 1000;
/// The label of calls beyond these, and of codes that no CNI plugin has.
const OTHER: &str = "other";
/// The largest code that has its own label. The specification's codes are below 100, and those of plugins may follow.
const LARGEST_CODE: u32 = 999;

type Seconds = Gauge<f64, AtomicU64>;
type One = [(&'static str, &'static str); 1];
type Two = [(&'static str, &'static str); 2];
/// Plugin and verb.
type Verbs = [(&'static str, String); 2];
/// Plugin, verb and code.
type Codes = [(&'static str, String); 3];

/// The outcome of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The object was made again.
    Done,
    /// The object could not be made again.
    Failed,
}

/// The agent's counters and gauges.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    list_complete: Gauge,
    ready: Gauge,
    nodes: Gauge,
    node_problems: Family<One, Gauge>,
    routes: Family<One, Gauge>,
    tunnel_peers: Gauge,
    route_conflicts: Gauge,
    mtu: Gauge,
    comparisons: Family<One, Counter>,
    comparison_seconds: Histogram,
    last_comparison: Seconds,
    changes: Counter,
    failed_changes: Counter,
    calls: Family<Codes, Counter>,
    call_seconds: Family<Verbs, Histogram, fn() -> Histogram>,
    known_calls: Mutex<HashSet<Codes>>,
    invalid_reports: Counter,
    repairs: Family<Two, Counter>,
    cri_lists: Family<One, Counter>,
    garbage_suspected: Gauge,
    garbage: Family<One, Counter>,
}

/// Registers metrics below [`PREFIX`].
struct Names(Registry);

impl Names {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    fn make<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.add(name, help, M::default())
    }
}

/// From 0.1 ms to 10 s: plugins take milliseconds, those that wait for a lock or a DHCP server seconds.
fn histogram() -> Histogram {
    Histogram::new([
        0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    ])
}

impl Metrics {
    /// Registers all metrics. `started` is the time of the agent's start, in seconds since 1970.
    #[must_use]
    pub fn new(started: f64) -> Self {
        let mut names = Names(Registry::with_prefix(PREFIX));
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        names.0.register("build", "Version of slipwayd", version);
        let start: Seconds = names.make("start_time_seconds", "Start of slipwayd, in seconds since 1970");
        start.set(started);
        Self {
            list_complete: names.make("node_list_complete", "1 if a list of Nodes was complete"),
            ready: names.make("ready", "1 if routes, tunnel and configuration are in place"),
            nodes: names.make("nodes", "Nodes of the cluster, this one included"),
            node_problems: names.make("node_problems", "Parts of Nodes that are left out, by reason"),
            routes: names.make("routes", "Desired routes to other nodes' pods, by path"),
            tunnel_peers: names.make("tunnel_peers", "Nodes at the other ends of VXLAN or WireGuard"),
            route_conflicts: names.make("route_conflicts", "Routes of other programs to pods of nodes"),
            mtu: names.make("mtu_bytes", "MTU of pods; 0 without an uplink"),
            comparisons: names
                .make("comparisons", "Comparisons of the node with its desired state, by result"),
            comparison_seconds: names.add(
                "comparison_seconds",
                "Time of a comparison with its changes",
                histogram(),
            ),
            last_comparison: names.make(
                "last_comparison_timestamp_seconds",
                "End of the last comparison, in seconds since 1970; 0 before the first",
            ),
            changes: names.make("changes", "Changes of the node"),
            failed_changes: names.make("failed_changes", "Changes of the node that failed"),
            calls: names
                .make("plugin_calls", "Calls of plugins, by plugin, verb and error code; 0 for a success"),
            call_seconds: names.add(
                "plugin_call_seconds",
                "Time of a plugin's call, without the start of its process",
                Family::new_with_constructor(histogram as fn() -> Histogram),
            ),
            known_calls: Mutex::default(),
            invalid_reports: names.make("invalid_plugin_reports", "Datagrams that are no report of a plugin"),
            repairs: names
                .make("repairs", "Objects of the node's ruleset that were missing, by kind and result"),
            cri_lists: names.make("cri_lists", "Lists of pod sandboxes by the container runtimes, by result"),
            garbage_suspected: names.make(
                "garbage_suspected",
                "Attachments whose pod sandboxes the container runtimes do not list",
            ),
            garbage: names.make("garbage_attachments", "Attachments that were garbage, by result"),
            registry: names.0,
        }
    }

    /// Takes over a comparison. No report means that the comparison failed.
    pub fn compared(&self, snapshot: &Snapshot, report: Option<&Report>, now: f64) {
        self.list_complete.set(snapshot.synced().into());
        self.nodes.set(number(snapshot.nodes().len()));
        self.last_comparison.set(now);
        let Some(report) = report else {
            self.comparisons.get_or_create(&[("result", "failed")]).inc();
            self.ready.set(0);
            return;
        };
        self.comparisons.get_or_create(&[("result", "done")]).inc();
        self.comparison_seconds.observe(report.took.as_secs_f64());
        self.ready.set((snapshot.synced() && report.is_ready).into());
        self.changes.inc_by(report.changes.len() as u64);
        self.failed_changes.inc_by(report.errors.len() as u64);
        self.route_conflicts.set(number(report.conflicts.len()));
        let desired = &report.desired;
        self.node_problems.clear();
        for problem in &desired.problems {
            self.node_problems.get_or_create(&[("reason", problem.kind.reason())]).inc();
        }
        let count =
            |is: fn(&Via) -> bool| number(desired.routes.iter().filter(|route| is(&route.via)).count());
        let by_path = [
            ("link", count(|via| matches!(via, Via::Link { .. }))),
            ("tunnel", count(|via| matches!(via, Via::Tunnel { .. }))),
            ("wireguard", count(|via| matches!(via, Via::WireGuard))),
        ];
        for (path, routes) in by_path {
            self.routes.get_or_create(&[("via", path)]).set(routes);
        }
        let vxlan = desired.tunnel.as_ref().map_or(0, |tunnel| tunnel.peers.len());
        let wireguard = desired.wireguard.as_ref().map_or(0, |device| device.peers.len());
        self.tunnel_peers.set(number(vxlan + wireguard));
        self.mtu.set(desired.mtu.unwrap_or(0).into());
    }

    /// Counts the call of a plugin.
    pub fn called(&self, call: &Result<Call, InvalidReport>) {
        let Ok(call) = call else {
            self.invalid_reports.inc();
            return;
        };
        let code = match call.code {
            None => "0".to_owned(),
            Some(code) if code <= LARGEST_CODE => code.to_string(),
            Some(_) => OTHER.to_owned(),
        };
        let verb = call.verb.as_str();
        let labels = |plugin: &str, code: String| {
            [("plugin", plugin.to_owned()), ("verb", verb.to_owned()), ("code", code)]
        };
        let labels = self.bounded(labels(&call.plugin, code), labels(OTHER, OTHER.to_owned()));
        let [plugin, verb, _] = labels.clone();
        self.calls.get_or_create(&labels).inc();
        self.call_seconds.get_or_create(&[plugin, verb]).observe(call.took.as_secs_f64());
    }

    /// The labels, or `others` if [`CALLS`] different labels exist already.
    fn bounded(&self, labels: Codes, others: Codes) -> Codes {
        let mut known = self.known_calls.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&labels) {
            return labels;
        }
        if known.len() >= CALLS {
            return others;
        }
        known.insert(labels.clone());
        labels
    }

    /// Counts the repair of an object that another program had deleted. `kind` is a label, the kind of the object.
    pub fn repaired(&self, kind: &'static str, outcome: Outcome) {
        let result = match outcome {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
        };
        self.repairs.get_or_create(&[("what", kind), ("result", result)]).inc();
    }

    /// Takes over a sweep for garbage.
    pub fn swept(&self, sweep: &Sweep) {
        self.garbage_suspected.set(number(sweep.suspected));
        let count = |family: &Family<One, Counter>, result, number| {
            // A counter without any event gets no time series.
            if number > 0 {
                family.get_or_create(&[("result", result)]).inc_by(number);
            }
        };
        count(&self.cri_lists, "done", sweep.lists);
        count(&self.cri_lists, "failed", sweep.failed_lists);
        count(&self.garbage, "deleted", sweep.deleted.len() as u64);
        count(&self.garbage, "kept", sweep.kept);
        count(&self.garbage, "failed", sweep.failed);
    }

    /// Prints all metrics in the text format of OpenMetrics 1.0.
    ///
    /// # Errors
    /// None: a text can always be written.
    pub(super) fn print(&self, scraped: RequestValues) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(scraped));
        let mut text = String::new();
        text::encode_registry(&mut text, &self.registry)?;
        text::encode_registry(&mut text, &registry)?;
        text::encode_eof(&mut text)?;
        Ok(text)
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
