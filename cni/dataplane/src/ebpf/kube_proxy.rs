//! Engines that translate destinations on their way through netfilter: kube-proxy's Services.
//!
//! A BPF program sees a packet before they do. At a container's link it cannot know that the destination is a Service's,
//! and would masquerade the packet and send it past them; at an uplink, and at a socket of the node, it cannot know that
//! an address of the node is a Service's, too, at a published port. So on a node with such an engine both are left to
//! nftables, which has its place behind these engines: all that the programs translate there is what the node's own
//! sockets send to the loopback.

use cni_nftables::{ChainInfo, ChainKind, Family, Hook, TableId};

use cni_kernel::route::RouteSocket;

use crate::iptables::{TableName, any_chain_in};
use crate::{nftables, service_links};

/// kube-proxy's chain of iptables, in the modes `iptables` and `ipvs`.
const CHAIN: &str = "KUBE-SERVICES";
/// Its table in the mode `nftables`.
const TABLE: &str = "kube-proxy";
/// Tables whose rules at this hook are about addresses of the node, which no program takes from a container: ours, those
/// of the iptables tools (but for kube-proxy's chain), of podman and of the reference plugins.
const LOCAL: [&str; 4] = ["slipway", "nat", "netavark", "cni_hostport"];

/// kube-proxy or kube-router, if it is here: some reads by name. Of the legacy tables, the one for NAT is read as a whole.
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
    let found = any_chain_in(TableName::Nat, &[CHAIN]).is_ok_and(|places| !places.is_empty());
    found.then(|| format!("kube-proxy has chain {CHAIN}"))
}

/// Any such engine: all chains of nf_tables are read.
pub(super) fn engine() -> Option<String> {
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
