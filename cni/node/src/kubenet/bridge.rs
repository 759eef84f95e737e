// SPDX-License-Identifier: GPL-3.0-or-later

//! The bridge of the pods: made with the gateways' addresses, unless running pods need other ones.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use cni_kernel::mac::Mac;
use cni_kernel::route::{Link, RouteSocket};
use cni_runtime::{Cache, Cached};
use ipnet::IpNet;

use super::config::{self, BRIDGE, NETWORK, PodNetwork};
use super::{KubenetError, blocking};
use crate::host::bridge::{self, BridgeError, BridgeSpec, OtherAddresses};

/// Makes the bridge and returns its MAC address. Changes nothing if running pods use other addresses of it.
pub(super) async fn ensure(network: &Arc<PodNetwork>, cache: &Path) -> Result<Mac, KubenetError> {
    let (network, cache) = (Arc::clone(network), cache.to_owned());
    blocking(move || {
        let route = RouteSocket::open().map_err(BridgeError::Route)?;
        refuse_if_used(&route, &network, &cache)?;
        let mac = config::bridge_mac(&network.subnets).ok_or(KubenetError::NoPodCidr)?;
        let wanted = BridgeSpec {
            name: BRIDGE,
            mac,
            mtu: network.mtu,
            gateways: &gateways(&network),
            others: OtherAddresses::Remove,
            // kubelet's own kubenet made the bridge, and makes it again on a node that goes back to that.
            takes_foreign: true,
        };
        bridge::ensure(&route, &wanted)?;
        Ok(mac)
    })
    .await?
}

/// Fails if running pods use other addresses of the bridge. Changes nothing.
pub(super) async fn check(network: &Arc<PodNetwork>, cache: &Path) -> Result<(), KubenetError> {
    let (network, cache) = (Arc::clone(network), cache.to_owned());
    blocking(move || {
        let route = RouteSocket::open().map_err(BridgeError::Route)?;
        refuse_if_used(&route, &network, &cache)
    })
    .await?
}

/// The gateways' addresses with the lengths of the subnets' prefixes.
fn gateways(network: &PodNetwork) -> Vec<IpNet> {
    let nets = network.subnets.iter().map(|subnet| IpNet::new(subnet.gateway, subnet.net.prefix_len()));
    nets.filter_map(Result::ok).collect()
}

/// A port of the bridge: the addresses of its pod, or none if the cache does not have it.
type PortAddresses = Option<Vec<IpAddr>>;

fn refuse_if_used(route: &RouteSocket, network: &PodNetwork, cache: &Path) -> Result<(), KubenetError> {
    let Some(link) = route.find_link(BRIDGE).map_err(BridgeError::Route)? else { return Ok(()) };
    let wanted = gateways(network);
    let present = route.addresses(&link).map_err(BridgeError::Route)?;
    let others = present.iter().filter(|address| address.global && !wanted.contains(&address.net));
    let others: Vec<IpNet> = others.map(|address| address.net.trunc()).collect();
    if others.is_empty() {
        return Ok(());
    }
    let links = route.links().map_err(BridgeError::Route)?;
    let ports: Vec<&Link> = links.iter().filter(|port| port.master == Some(link.index)).collect();
    if ports.is_empty() {
        return Ok(());
    }
    let cached = cached(cache)?;
    let ports: Vec<PortAddresses> = ports.iter().map(|port| addresses_behind(port, &cached)).collect();
    let used: Vec<IpNet> =
        others.into_iter().filter(|net| ports.iter().any(|port| uses(port, *net))).collect();
    if used.is_empty() {
        return Ok(());
    }
    let pods = ports.iter().filter(|port| used.iter().any(|net| uses(port, *net))).count();
    let wanted = network.subnets.iter().map(|subnet| subnet.net);
    Err(KubenetError::CidrInUse { wanted: join(wanted), used: join(used.iter().copied()), pods })
}

fn join(nets: impl Iterator<Item = IpNet>) -> String {
    nets.map(|net| net.to_string()).collect::<Vec<_>>().join(",")
}

/// The attachments to the pods' network.
fn cached(directory: &Path) -> Result<Vec<Cached>, KubenetError> {
    let Some(cache) = Cache::open(directory).map_err(|error| KubenetError::Cache(error.into()))? else {
        return Ok(Vec::new());
    };
    let (all, _) = cache.read().map_err(|error| KubenetError::Cache(error.into()))?;
    Ok(all.into_iter().filter(|one| one.attachment.network() == NETWORK).collect())
}

/// The addresses of the pod at the other end of a port.
fn addresses_behind(port: &Link, cached: &[Cached]) -> PortAddresses {
    let is_its = |one: &&Cached| {
        let mut links = one.result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
        links.any(|interface| interface.name == port.name)
    };
    let owner = cached.iter().find(is_its)?;
    Some(owner.result.ips.iter().map(|ip| ip.address.addr()).collect())
}

/// A pod that the cache does not have, such as one of kubelet's own kubenet, may use any subnet.
fn uses(port: &PortAddresses, net: IpNet) -> bool {
    port.as_ref().is_none_or(|addresses| addresses.iter().any(|address| net.contains(address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_uses_the_subnets_of_its_addresses_and_an_unknown_one_all() {
        let net: IpNet = "10.180.1.0/24".parse().unwrap();
        let behind = |addresses: &[&str]| Some(addresses.iter().map(|text| text.parse().unwrap()).collect());
        assert!(uses(&behind(&["fd00::2", "10.180.1.2"]), net) && uses(&None, net));
        assert!(!uses(&behind(&["10.180.2.2"]), net) && !uses(&behind(&[]), net));
    }
}
