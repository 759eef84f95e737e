// SPDX-License-Identifier: GPL-2.0-or-later

//! Detects engines that translate destinations in netfilter, such as kube-proxy's Services.
//!
//! A BPF program handles a packet before they do. At a container's link it cannot know that the destination
//! is a Service's: it would masquerade the packet and bypass them. At an uplink, and at a socket of the node,
//! it cannot know that an address of the node is a Service's, too, at a published port. So on a node with
//! such an engine both are left to nftables, whose chains run after these engines'. The programs translate
//! only packets of the node's own sockets to the loopback there.

use cni_nftables::{ChainInfo, ChainKind, Family, Hook, TableId};

use cni_kernel::route::RouteSocket;

use crate::iptables::{TableName, places_with_chain};
use crate::{nftables, service_links};

/// kube-proxy's chain of iptables, in the modes `iptables` and `ipvs`.
const CHAIN: &str = "KUBE-SERVICES";
/// Its table in the mode `nftables`.
const TABLE: &str = "kube-proxy";
/// Tables whose rules at this hook are about addresses of the node, to which no program sends a container's
/// packets: ours, those of the iptables tools (except kube-proxy's chain), of podman and of the reference
/// plugins.
const LOCAL: [&str; 4] = ["slipway", "nat", "netavark", "cni_hostport"];

/// Looks for kube-proxy or kube-router by some reads by name. Of the legacy tables, `nat` is read as a whole.
pub(super) fn kube_proxy() -> Option<String> {
    let links = RouteSocket::open().and_then(|socket| service_links::present(&socket)).unwrap_or_default();
    if let Some(link) = links.first() {
        return Some(format!("link {} holds the addresses of Services", link.name));
    }
    let socket = nftables::socket().ok().flatten();
    for family in [Family::Ip, Family::Ip6] {
        let table = TableId::new(family, TABLE);
        if socket.as_ref().is_some_and(|socket| matches!(socket.table(&table), Ok(Some(_)))) {
            return Some(format!("kube-proxy has table {table}"));
        }
    }
    let found = places_with_chain(TableName::Nat, &[CHAIN]).is_ok_and(|places| !places.is_empty());
    found.then(|| format!("kube-proxy has chain {CHAIN}"))
}

/// Looks for any such engine: reads all chains of nf_tables.
pub(crate) fn engine() -> Option<String> {
    kube_proxy().or_else(|| {
        let chains = nftables::socket().ok().flatten()?.all_chains().ok()?;
        let chain = chains.into_iter().find(translates)?;
        Some(format!("chain {} of table {} translates destinations", chain.name, chain.table))
    })
}

fn translates(chain: &ChainInfo) -> bool {
    let at_hook =
        chain.base.as_ref().is_some_and(|base| base.kind == ChainKind::Nat && base.hook == Hook::Prerouting);
    at_hook && chain.uses > 0 && !LOCAL.contains(&chain.table.name.as_str())
}
