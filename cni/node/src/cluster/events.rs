// SPDX-License-Identifier: GPL-3.0-or-later

//! Events of Kubernetes about troubles, for `kubectl describe node`.
//!
//! A cluster has many agents, and all see what is wrong with a Node: the agent of the oldest Node reports it, and each
//! agent what is wrong with its own Node, or with one that claims something of its own Node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::access::{Access, BoxError};
use super::node_name::NodeName;
use super::nodes::Nodes;
use super::problem::{Problem, ProblemKind};
use super::reconcile::Report;
use crate::excerpt::bounded;

/// The namespace of Events about Nodes, which are in none.
const NAMESPACE: &str = "default";
/// The name of the reporter.
const CONTROLLER: &str = "slipwayd";
/// The limit of all Events.
const ALL: Rate = Rate { burst: 10, every: Duration::from_secs(30) };
/// The limit of Events about one Node: one that changes all the time must not keep back those about others.
const OF_ONE_NODE: Rate = Rate { burst: 5, every: Duration::from_secs(600) };
/// The most bytes of an Event's text. The API allows 1,024.
const TEXT: usize = 1000;
/// The wait after a failed request.
const WAIT: Duration = Duration::from_secs(5);

/// A trouble with a Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The Node.
    pub node: NodeName,
    /// The Event's reason, one word with capitals.
    pub reason: String,
    /// The trouble.
    pub text: String,
}

/// The troubles of a comparison that the agent of `own` reports.
#[must_use]
pub fn notices(report: &Report, nodes: &Nodes, own: &NodeName) -> BTreeSet<Notice> {
    let oldest = nodes.values().min_by(|a, b| a.seniority().cmp(&b.seniority()));
    let is_oldest = oldest.is_some_and(|node| node.name == *own);
    let notice = |node: &NodeName, reason: &str, text: String| Notice {
        node: node.clone(),
        reason: reason.to_owned(),
        text,
    };
    let problems = report.desired.problems.iter();
    let concerns_own = |problem: &&Problem| problem.node == *own || problem.kind.holder() == Some(own);
    let problems = problems.filter(|problem| is_oldest || concerns_own(problem));
    // Each new Node lacks these things for a moment.
    let lasting = problems.filter(|problem| {
        !matches!(problem.kind, ProblemKind::NoPodCidr | ProblemKind::NoTunnel | ProblemKind::NoKey)
    });
    let of_nodes =
        lasting.map(|problem| notice(&problem.node, &capitals(problem.kind.reason()), problem.to_string()));
    let routes = report.conflicts.iter().map(|conflict| notice(own, "ForeignRoute", conflict.to_string()));
    let changes = report.errors.iter().map(|error| notice(own, "ChangeFailed", error.to_string()));
    of_nodes.chain(routes).chain(changes).collect()
}

/// `own_address` as `OwnAddress`.
fn capitals(word: &str) -> String {
    let part = |part: &str| part[..1].to_ascii_uppercase() + &part[1..];
    word.split('_').filter(|part| !part.is_empty()).map(part).collect()
}

/// Sends Events until the sender is gone. Those beyond the limit are dropped: logs and metrics have all.
pub async fn follow(access: Access, own: NodeName, mut notices: mpsc::Receiver<Notice>) {
    let mut limits = Limits::new(Instant::now());
    while let Some(notice) = notices.recv().await {
        if !limits.take(&notice.node, Instant::now()) {
            log::debug!("no Event, as there were many: {}", notice.text);
            continue;
        }
        let event = event(&notice, &own, Timestamp::now());
        if let Err(error) = access.in_time(send(&access, &event)).await {
            log::warn!("send an Event: {}", bounded(&error.to_string(), TEXT));
            sleep(WAIT).await;
        }
    }
}

async fn send(access: &Access, event: &Event) -> Result<(), BoxError> {
    let api = Api::namespaced(access.client().await?, NAMESPACE);
    api.create(&PostParams::default(), event).await?;
    Ok(())
}

fn event(notice: &Notice, own: &NodeName, now: Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            // The name is unique, as in client-go, because the second of two Events with one name would be refused.
            name: Some(format!("{}.{:x}", notice.node, now.as_nanosecond())),
            namespace: Some(NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        type_: Some("Warning".to_owned()),
        reason: Some(notice.reason.clone()),
        message: Some(notice.text[..notice.text.floor_char_boundary(TEXT)].to_owned()),
        involved_object: reference(&notice.node),
        source: Some(EventSource { component: Some(CONTROLLER.to_owned()), host: Some(own.to_string()) }),
        ..Event::default()
    }
}

/// As kubelets refer to their Nodes: kubectl looks for Events with the name as UID.
fn reference(node: &NodeName) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        api_version: Some("v1".to_owned()),
        name: Some(node.to_string()),
        uid: Some(node.to_string()),
        ..ObjectReference::default()
    }
}

/// The number of Events that may be sent at once, and the time after which one more may be sent.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    every: Duration,
}

/// The limits of all Events together, and of each Node's.
#[derive(Debug)]
struct Limits {
    all: Limit,
    /// The limits of Nodes that are not at rest.
    of_nodes: BTreeMap<NodeName, Limit>,
}

impl Limits {
    fn new(now: Instant) -> Self {
        Self { all: Limit::new(ALL, now), of_nodes: BTreeMap::new() }
    }

    /// True if an Event about a Node may be sent now.
    fn take(&mut self, node: &NodeName, now: Instant) -> bool {
        self.of_nodes.retain(|_, limit| !limit.is_at_rest(now));
        let of_node = self.of_nodes.entry(node.clone()).or_insert_with(|| Limit::new(OF_ONE_NODE, now));
        of_node.take(now) && self.all.take(now)
    }
}

/// A limit of Events per time.
#[derive(Debug)]
struct Limit {
    rate: Rate,
    left: u32,
    since: Instant,
}

impl Limit {
    fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, left: rate.burst, since: now }
    }

    /// True if one more may be sent now.
    fn take(&mut self, now: Instant) -> bool {
        if self.is_at_rest(now) {
            self.since = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }

    /// True if the whole burst may be sent.
    fn is_at_rest(&mut self, now: Instant) -> bool {
        let Rate { burst, every } = self.rate;
        while self.left < burst && now.duration_since(self.since) >= every {
            self.left += 1;
            self.since += every;
        }
        self.left == burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::desired::Desired;

    #[test]
    fn events_are_limited_and_the_limit_recovers() {
        let begin = Instant::now();
        let Rate { burst, every } = ALL;
        let mut limit = Limit::new(ALL, begin);
        assert!((0..burst).all(|_| limit.take(begin)) && !limit.take(begin));
        assert!(!limit.take(begin + every / 2));
        assert!(limit.take(begin + every) && !limit.take(begin + every));
        let later = begin + 100 * every;
        assert!((0..burst).all(|_| limit.take(later)) && !limit.take(later), "no more than a burst");
    }

    #[test]
    fn one_node_keeps_back_no_event_about_another() {
        let begin = Instant::now();
        let mut limits = Limits::new(begin);
        let name = |text: &str| -> NodeName { text.parse().unwrap() };
        let sent = (0..1000).filter(|_| limits.take(&name("hostile"), begin)).count();
        assert_eq!(sent, 5);
        assert!(limits.take(&name("other"), begin));
        let later = begin + OF_ONE_NODE.every;
        assert!(limits.take(&name("hostile"), later) && !limits.take(&name("hostile"), later));
        assert!(limits.take(&name("other"), begin + 100 * OF_ONE_NODE.every));
        assert_eq!(limits.of_nodes.len(), 1, "Nodes at rest are forgotten");
    }

    #[test]
    fn refusals_are_reported_by_the_node_whose_claim_holds() {
        let name = |text: &str| -> NodeName { text.parse().unwrap() };
        let address = "10.244.1.7".parse().unwrap();
        let kind =
            ProblemKind::AddressOfPods { address, prefix: "10.244.1.0/24".parse().unwrap(), of: name("b") };
        let desired = Desired { problems: vec![Problem { node: name("a"), kind }], ..Desired::default() };
        let report = Report { desired, ..Report::default() };
        let of = |own: &str| notices(&report, &Nodes::new(), &name(own)).len();
        assert_eq!((of("a"), of("b"), of("c")), (1, 1, 0));
    }

    #[test]
    fn an_event_is_within_the_limits_of_the_api() {
        let node: NodeName = "node-1".parse().unwrap();
        let notice =
            Notice { node: node.clone(), reason: capitals("own_node_missing"), text: "é\n".repeat(2000) };
        let event = event(&notice, &node, Timestamp::UNIX_EPOCH);
        assert_eq!(event.reason.as_deref(), Some("OwnNodeMissing"));
        assert_eq!(event.metadata.name.as_deref(), Some("node-1.0"));
        assert!((TEXT - 1..=TEXT).contains(&event.message.unwrap().len()));
    }
}
