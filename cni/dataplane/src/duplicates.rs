// SPDX-License-Identifier: GPL-2.0-or-later

//! kubenet's guard against duplicates from a promiscuous bridge.
//!
//! A promiscuous bridge also passes every frame between two pods to the node's stack. With br_netfilter, older
//! kernels mistake this copy for a packet to the node and route it, so it leaves with the bridge's MAC address and
//! the pod's IP address, and the other pod gets the packet twice. Since Linux 6.18, the kernel drops the copy itself.
//!
//! ```text
//! table bridge slipway-kubenet {
//!     chain output {
//!         ether saddr <bridge> ip saddr <pod CIDR> ip saddr != <gateway> drop
//!     }
//! }
//! ```
//!
//! The gateway's own packets pass. So do packets that a pod sends to itself through a Service, because kube-proxy
//! masquerades them. kubelet has the same rules in the chain `KUBE-DEDUP` of ebtables.

use std::net::IpAddr;

use cni_kernel::mac::Mac;
use cni_nftables::{
    BaseChain, Chain, ChainKind, Family, Field, Hook, Policy, Rule, Stmt, Table, TableId, Transaction, Value,
    Verdict,
};
use ipnet::IpNet;

use crate::Error;
use crate::owned_table::{Definition, OwnedTable, marker, unless_no_nf_tables};

/// Family and name, for messages.
pub(crate) const TABLE: &str = "bridge slipway-kubenet";
const DEFINITION: Definition =
    Definition { family: Family::Bridge, name: "slipway-kubenet", label: TABLE, schema: 1 };
const OUTPUT: &str = "output";

/// The hook and the priority of ebtables' filter rules (`NF_BR_PRI_FILTER_OTHER`).
const BASE: BaseChain =
    BaseChain { kind: ChainKind::Filter, hook: Hook::Output, priority: 200, policy: Policy::Accept };

/// A pod CIDR and its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    pub net: IpNet,
    pub gateway: IpAddr,
}

pub(crate) fn table() -> TableId {
    DEFINITION.id()
}

fn rule(bridge: Mac, subnet: &Subnet) -> Vec<Stmt> {
    let source = if subnet.net.addr().is_ipv4() { Field::IpSaddr } else { Field::Ip6Saddr };
    vec![
        Stmt::eq(Field::EtherSaddr, Value::Ether(bridge.0)),
        Stmt::in_net(source, subnet.net),
        Stmt::ne(source, Value::address(subnet.gateway)),
        Stmt::Verdict(Verdict::Drop),
    ]
}

/// The MAC address and the subnet of a rule, as the comment by which the rule is recognised.
fn comment(bridge: Mac, subnet: &Subnet) -> String {
    format!("{bridge} {} {}", subnet.net, subnet.gateway)
}

/// Makes the whole table. The chain is flushed first, which removes the rules for another bridge or subnet.
fn bootstrap(bridge: Mac, subnets: &[Subnet]) -> Transaction {
    let t = table();
    let mut batch = Transaction::new();
    batch
        .add_table(Table::new(&t).comment("slipway: kubenet's guard against duplicate packets"))
        .add_chain(Chain::new(&t, &marker(DEFINITION.schema)))
        .add_chain(Chain::new(&t, OUTPUT).base(BASE))
        .flush_chain(&t, OUTPUT);
    for subnet in subnets {
        batch.add_rule(Rule::new(&t, OUTPUT, rule(bridge, subnet)).comment(&comment(bridge, subnet)));
    }
    batch
}

/// Drops the duplicates of a bridge with this MAC address and these subnets, and no others. Changes nothing if the
/// rules are already in place.
pub fn guard(bridge: Mac, subnets: &[Subnet]) -> Result<(), Error> {
    let table = OwnedTable::open(DEFINITION)?;
    table.transact("guard against duplicates", |_| {
        let batch =
            if is_ready(&table, bridge, subnets)? { Transaction::new() } else { bootstrap(bridge, subnets) };
        Ok((batch, ()))
    })
}

/// Removes the guard.
///
/// # Errors
/// [`Error::ForeignTable`] or [`Error::NewerSchema`] if another program or a later version made the table;
/// [`Error::Busy`] if other processes change the ruleset at every attempt.
pub fn release() -> Result<(), Error> {
    unless_no_nf_tables(OwnedTable::open(DEFINITION).and_then(|table| {
        table.transact("remove the guard against duplicates", |_| {
            let mut batch = Transaction::new();
            if exists(&table)? {
                batch.delete_table(&table.table);
            }
            Ok((batch, ()))
        })
    }))
}

/// True if the guard is in place.
pub(crate) fn is_present() -> Result<bool, Error> {
    unless_no_nf_tables(OwnedTable::open(DEFINITION).and_then(|table| exists(&table)))
}

fn exists(table: &OwnedTable) -> Result<bool, Error> {
    // A kernel may have nf_tables without support for bridges.
    Ok(table.info()?.is_some() && table.schema()?.is_some())
}

fn is_ready(table: &OwnedTable, bridge: Mac, subnets: &[Subnet]) -> Result<bool, Error> {
    if !exists(table)? || table.chain(OUTPUT)?.is_none_or(|chain| chain.base != Some(BASE)) {
        return Ok(false);
    }
    let rules = table.socket.rules(&table.table, OUTPUT);
    let rules = rules.map_err(|e| Error::kernel(format!("read chain {OUTPUT} of table {TABLE}"), e))?;
    let wanted = subnets.iter().map(|subnet| Some(comment(bridge, subnet)));
    Ok(wanted.eq(rules.into_iter().map(|rule| rule.comment)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table() {
        let subnets = [
            Subnet { net: "10.180.1.0/24".parse().unwrap(), gateway: "10.180.1.1".parse().unwrap() },
            Subnet { net: "fd00:180::/64".parse().unwrap(), gateway: "fd00:180::1".parse().unwrap() },
        ];
        expect_test::expect![[r#"
            add table bridge slipway-kubenet { comment "slipway: kubenet's guard against duplicate packets" ; }
            add chain bridge slipway-kubenet schema-1
            add chain bridge slipway-kubenet output { type filter hook output priority 200 ; policy accept ; }
            flush chain bridge slipway-kubenet output
            add rule bridge slipway-kubenet output ether saddr 0a:58:0a:b4:01:01 ip saddr 10.180.1.0/24 ip saddr != 10.180.1.1 drop comment "0a:58:0a:b4:01:01 10.180.1.0/24 10.180.1.1"
            add rule bridge slipway-kubenet output ether saddr 0a:58:0a:b4:01:01 ip6 saddr fd00:180::/64 ip6 saddr != fd00:180::1 drop comment "0a:58:0a:b4:01:01 fd00:180::/64 fd00:180::1"
        "#]]
            .assert_eq(&bootstrap(Mac([0x0a, 0x58, 10, 180, 1, 1]), &subnets).to_string());
    }
}
