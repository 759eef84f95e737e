// SPDX-License-Identifier: GPL-3.0-or-later

//! The document of `slipwayd status`. `docs/json.md` has each field, and a test compares it with what is printed.

use cni_spec::Attachment;
use cni_state::documents::{
    AgentStatus, Comparison, FormerAddress, Garbage, NodeNetwork, VxlanDevice, WireGuardDevice,
};
use k8s_openapi::jiff::Timestamp;

use super::State;
use super::addresses::{self, AddressUsage};
use crate::cluster::reconcile::{Report, Settings};
use crate::cluster::{key, tunnel, wireguard};
use crate::garbage::Sweep;

/// The most troubles in a document, and the most addresses of former subnets.
const TROUBLES: usize = 100;

/// Adds a sweep to those before it.
pub(super) fn add_sweep(garbage: &mut Garbage, sweep: &Sweep) {
    garbage.suspected = sweep.suspected;
    garbage.deleted += sweep.deleted.len() as u64;
    garbage.failed += sweep.failed;
    garbage.troubles = sweep.troubles.iter().take(TROUBLES).cloned().collect();
}

/// The network as a comparison that ended at this time has left it.
pub(super) fn network(report: &Report, end: Timestamp) -> NodeNetwork {
    let desired = &report.desired;
    NodeNetwork {
        subnets: desired.own.as_ref().map(|own| own.prefixes.clone()).unwrap_or_default(),
        mtu: desired.mtu,
        routes: desired.routes.len(),
        refused: desired.refused.clone(),
        tunnel: desired.tunnel.as_ref().map(|tunnel| VxlanDevice {
            device: tunnel::DEVICE.to_owned(),
            vni: tunnel.vni,
            port: tunnel.port.get(),
            local: tunnel.local,
            peers: tunnel.peers.len(),
        }),
        wireguard: desired.wireguard.as_ref().map(|device| WireGuardDevice {
            device: wireguard::DEVICE.to_owned(),
            port: device.port.get(),
            public_key: report.announce.wireguard_key.as_ref().map(key::text),
            peers: device.peers.len(),
        }),
        trouble_count: report.troubles().count(),
        troubles: report.troubles().take(TROUBLES).collect(),
        last_comparison: Some(Comparison {
            time: text(end),
            seconds: report.took.as_secs_f64(),
            changes: report.changes.len(),
        }),
    }
}

pub(super) fn document(
    settings: &Settings,
    since: Timestamp,
    state: &State,
    addresses: AddressUsage,
    garbage: Option<Garbage>,
) -> AgentStatus {
    let reason = state.ready().err().map(|reason| reason.to_string());
    let former = addresses.former.iter().take(TROUBLES);
    AgentStatus {
        node: settings.node.as_str().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        since: text(since),
        node_list_complete: state.list_complete,
        ready: reason.is_none(),
        reason,
        nodes: state.nodes,
        network: match &state.compared {
            None => NodeNetwork::default(),
            Some(Ok(compared)) => compared.network.clone(),
            Some(Err(error)) => {
                NodeNetwork { trouble_count: 1, troubles: vec![error.to_string()], ..NodeNetwork::default() }
            }
        },
        former_addresses: former.map(former_address).collect(),
        former_address_count: addresses.former.len(),
        addresses: addresses.ranges,
        garbage,
    }
}

fn former_address(former: &addresses::FormerAddress) -> FormerAddress {
    let owner = former.owner.as_ref();
    FormerAddress {
        address: former.address,
        container: owner.map(Attachment::container_id).map(str::to_owned),
        interface: owner.map(Attachment::ifname).map(str::to_owned),
    }
}

/// The time by RFC 3339, to the second.
fn text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
