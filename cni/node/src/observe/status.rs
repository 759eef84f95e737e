// SPDX-License-Identifier: GPL-3.0-or-later

//! The document of `slipwayd status`. `docs/json.md` has each field, and a test compares it with what is printed.

use std::time::Duration;

use cni_spec::Attachment;
use ipnet::IpNet;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::State;
use super::addresses::{AddressUsage, FormerAddress, Range};
use crate::cluster::desired::Tunnel;
use crate::cluster::key;
use crate::cluster::reconcile::{Report, Settings};
use crate::cluster::{tunnel, wireguard};
use crate::garbage::Sweep;

/// The most troubles in a document, and the most addresses of former subnets.
const TROUBLES: usize = 100;

/// The sweeps for garbage so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Garbage {
    suspected: usize,
    deleted: u64,
    failed: u64,
    troubles: Vec<String>,
}

impl Garbage {
    pub(super) fn add(&mut self, sweep: &Sweep) {
        self.suspected = sweep.suspected;
        self.deleted += sweep.deleted.len() as u64;
        self.failed += sweep.failed;
        self.troubles = sweep.troubles.iter().take(TROUBLES).cloned().collect();
    }

    fn document(&self) -> Value {
        let Self { suspected, deleted, failed, troubles } = self;
        json!({ "suspected": suspected, "deleted": deleted, "failed": failed, "troubles": troubles })
    }
}

/// A comparison, as it is shown.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) subnets: Vec<IpNet>,
    /// The reason why the network is not ready; none if it is.
    pub(super) reason: Option<String>,
    at: Timestamp,
    took: Duration,
    changes: usize,
    mtu: Option<u32>,
    routes: usize,
    tunnel: Option<Tunnel>,
    wireguard: Option<Value>,
    refused: Vec<IpNet>,
    /// The first [`TROUBLES`].
    troubles: Vec<String>,
    trouble_count: usize,
}

impl Comparison {
    pub(super) fn new(report: &Report, at: Timestamp) -> Self {
        let desired = &report.desired;
        Self {
            subnets: desired.own.as_ref().map(|own| own.prefixes.clone()).unwrap_or_default(),
            reason: report.reason(),
            at,
            took: report.took,
            changes: report.changes.len(),
            mtu: desired.mtu,
            routes: desired.routes.len(),
            tunnel: desired.tunnel.clone(),
            wireguard: desired.wireguard.as_ref().map(|device| {
                json!({
                    "device": wireguard::DEVICE,
                    "port": device.port,
                    "public_key": report.announce.wireguard_key.as_ref().map(key::text),
                    "peers": device.peers.len(),
                })
            }),
            refused: desired.refused.clone(),
            troubles: report.troubles().take(TROUBLES).collect(),
            trouble_count: report.troubles().count(),
        }
    }

    fn document(&self) -> Value {
        json!({ "time": text(self.at), "seconds": self.took.as_secs_f64(), "changes": self.changes })
    }
}

/// The document, without the number of its form.
pub(super) fn document(
    settings: &Settings,
    since: Timestamp,
    state: &State,
    addresses: &AddressUsage,
    garbage: Option<&Garbage>,
) -> Value {
    let compared = state.compared.as_ref().and_then(|compared| compared.as_ref().ok());
    let error = state.compared.as_ref().and_then(|compared| compared.as_ref().err());
    let ready = state.ready();
    let AddressUsage { ranges, former } = addresses;
    let addresses = ranges.iter().map(|range| {
        let Range { subnet, used, free } = range;
        json!({ "range": subnet, "used": used, "free": free })
    });
    let named = former.iter().take(TROUBLES).map(|FormerAddress { address, owner }| {
        let (container, interface) =
            (owner.as_ref().map(Attachment::container_id), owner.as_ref().map(Attachment::ifname));
        json!({ "address": address, "container": container, "interface": interface })
    });
    // A comparison that failed has one trouble: its error.
    let troubles = compared.map(|one| one.troubles.clone()).or_else(|| Some(vec![error?.clone()]));
    let troubles = troubles.unwrap_or_default();
    json!({
        "node": settings.node.as_str(),
        "version": env!("CARGO_PKG_VERSION"),
        "since": text(since),
        "node_list_complete": state.list_complete,
        "ready": ready.is_ok(),
        "reason": ready.err().map(|reason| reason.to_string()),
        "subnets": compared.map(|one| one.subnets.clone()).unwrap_or_default(),
        "mtu": compared.and_then(|one| one.mtu),
        "nodes": state.nodes,
        "routes": compared.map_or(0, |one| one.routes),
        "refused": compared.map(|one| one.refused.clone()).unwrap_or_default(),
        "tunnel": compared.and_then(|one| one.tunnel.as_ref()).map(vxlan),
        "wireguard": compared.and_then(|one| one.wireguard.clone()),
        "trouble_count": compared.map_or(troubles.len(), |one| one.trouble_count),
        "troubles": troubles,
        "addresses": addresses.collect::<Vec<_>>(),
        "former_addresses": named.collect::<Vec<_>>(),
        "former_address_count": former.len(),
        "garbage": garbage.map(Garbage::document),
        "last_comparison": compared.map(Comparison::document),
    })
}

fn vxlan(tunnel: &Tunnel) -> Value {
    json!({
        "device": tunnel::DEVICE,
        "vni": tunnel.vni,
        "port": tunnel.port,
        "local": tunnel.local,
        "peers": tunnel.peers.len(),
    })
}

/// The time by RFC 3339, to the second.
fn text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
