// SPDX-License-Identifier: GPL-3.0-or-later

//! Writing into this node's own Node: the annotations of its tunnels, and the condition NetworkUnavailable, which
//! keeps pods away until the network is in place. Startup taints are removed then.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::access::{Access, BoxError};
use super::annotations::Annotations;
use super::node_name::NodeName;
use super::nodes::Node;
use super::reconcile::Report;
use super::taint::{self, StartupTaint};

/// The wait after a failed patch; doubled up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest wait after a failed patch.
const LONGEST: Duration = Duration::from_secs(30);

/// The content for this node's own Node. Empty if there is no such Node to write into.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The Node's UID, which changes if the Node is deleted and created again under the same name.
    pub uid: Option<Box<str>>,
    /// The annotations as they should be.
    pub wanted: Annotations,
    /// The annotations that the Node has, as far as is known.
    pub seen: Annotations,
    /// The state of the network; none before the first comparison.
    pub unavailable: Option<Unavailable>,
}

impl Announcement {
    /// The content after a comparison.
    #[must_use]
    pub fn new(own: Option<&Node>, report: &Report) -> Self {
        let Some(own) = own else { return Self::default() };
        Self {
            uid: Some(own.uid.clone()),
            wanted: report.announce.clone(),
            seen: own.annotations.clone(),
            unavailable: Some(report.reason().map_or(Unavailable::No, Unavailable::Because)),
        }
    }
}

/// The state of the node's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// Routes and configuration are in place.
    No,
    /// The network is not ready, for this reason.
    Because(String),
}

/// The content that was written into a Node.
#[derive(Debug, Default)]
struct NodeState {
    uid: Option<Box<str>>,
    unavailable: Option<Unavailable>,
    /// True if the startup taints were removed.
    is_untainted: bool,
}

/// Writes each announcement into the Node, until the sender is gone. A request that fails is repeated. The taints are
/// removed once from each Node, when the network is in place for the first time.
pub async fn follow(
    access: Access,
    node: NodeName,
    mut wanted: watch::Receiver<Announcement>,
    taints: Vec<StartupTaint>,
) {
    let mut written = NodeState::default();
    let mut wait = SHORTEST;
    loop {
        let now = wanted.borrow_and_update().clone();
        if written.uid != now.uid {
            written = NodeState { uid: now.uid.clone(), ..NodeState::default() };
        }
        match access.in_time(publish(&access, &node, &now, &mut written, &taints)).await {
            Ok(()) => {
                wait = SHORTEST;
                if wanted.changed().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                log::warn!("write node {node}: {error}; again in {} s", wait.as_secs());
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    changed = wanted.changed() => if changed.is_err() { return },
                }
                wait = (2 * wait).min(LONGEST);
            }
        }
    }
}

/// Writes what differs from what was written, and removes the taints if the network is in place.
async fn publish(
    access: &Access,
    node: &NodeName,
    now: &Announcement,
    written: &mut NodeState,
    taints: &[StartupTaint],
) -> Result<(), BoxError> {
    write(access, node, now, written.unavailable.as_ref()).await?;
    written.unavailable.clone_from(&now.unavailable);
    if now.unavailable == Some(Unavailable::No) && !taints.is_empty() && !written.is_untainted {
        taint::remove(&access.whole_nodes().await?, node, &parameters(), taints).await?;
        written.is_untainted = true;
    }
    Ok(())
}

async fn write(
    access: &Access,
    node: &NodeName,
    now: &Announcement,
    written: Option<&Unavailable>,
) -> Result<(), BoxError> {
    let annotations = (now.wanted != now.seen).then(|| annotations(&now.wanted));
    let condition = now.unavailable.as_ref().filter(|state| Some(*state) != written).map(condition);
    if annotations.is_none() && condition.is_none() {
        return Ok(());
    }
    let api = access.nodes().await?;
    let parameters = parameters();
    if let Some(patch) = annotations {
        api.patch(node.as_str(), &parameters, &Patch::Merge(patch)).await?;
        log::info!("node {node}: announced the tunnel");
    }
    if let Some(patch) = condition {
        // Conditions are merged by type, so those of other programs stay.
        api.patch_status(node.as_str(), &parameters, &Patch::Strategic(patch)).await?;
        log::info!("node {node}: wrote the condition NetworkUnavailable");
    }
    Ok(())
}

fn parameters() -> PatchParams {
    PatchParams { field_manager: Some("slipwayd".to_owned()), ..PatchParams::default() }
}

/// A merge patch: null deletes an annotation (RFC 7396).
fn annotations(wanted: &Annotations) -> Value {
    let values: serde_json::Map<String, Value> =
        wanted.values().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    json!({ "metadata": { "annotations": values } })
}

fn condition(state: &Unavailable) -> Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let (status, reason, message) = match state {
        Unavailable::No => ("False", "SlipwayIsReady", "routes and configuration are in place"),
        Unavailable::Because(why) => ("True", "SlipwayIsNotReady", why.as_str()),
    };
    json!({ "status": { "conditions": [{
        "type": "NetworkUnavailable",
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }] } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tunnel_deletes_its_annotations() {
        let patch = annotations(&Annotations::default());
        let values = patch["metadata"]["annotations"].as_object().unwrap();
        assert!(values.len() == 4 && values.values().all(Value::is_null), "{patch}");
    }

    #[test]
    fn the_condition_has_all_fields_that_the_api_demands() {
        let patch = condition(&Unavailable::Because("no pod CIDR".to_owned()));
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(
            (condition["status"].as_str(), condition["message"].as_str()),
            (Some("True"), Some("no pod CIDR"))
        );
        let time = condition["lastTransitionTime"].as_str().unwrap();
        assert!(time.parse::<Timestamp>().is_ok(), "{time}");
    }
}
