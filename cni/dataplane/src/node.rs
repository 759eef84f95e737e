// SPDX-License-Identifier: GPL-2.0-or-later

//! The dataplane's view of a node, for `slipway check-node`: the features of its kernel, and the chains and
//! tables of other programs.

use cni_nftables::conntrack::{Conntrack, Filter};
use cni_nftables::{
    BaseChain, Chain, ChainKind, DataType, Element, ElementId, Error as NftError, Family, Field, Hook,
    Policy, PortChoice, Rule, Set, Socket, Stmt, Table, TableId, Transaction, Value,
};

use cni_spec::Attachment;

use crate::nftables::session::Session;
use crate::nftables::state::State;
use crate::nftables::{addresses, owner_entry as record, schema};
use crate::owned_table::Patience;
use crate::{AddressFamily, ContainerNetns, Error, tunnel_guard};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Published ports and masquerade need the feature.
    Required,
    /// Only the purpose in [`Feature::why`] needs the feature.
    Optional,
}

/// A feature that a kernel may lack.
#[derive(Debug)]
pub struct Feature {
    pub name: &'static str,
    pub why: &'static str,
    pub need: Need,
    /// The kernel's build options that provide the feature.
    pub options: &'static str,
    /// The kernel's error, or none if the feature works.
    pub failure: Option<String>,
}

struct Probe {
    name: &'static str,
    why: &'static str,
    need: Need,
    options: &'static str,
    build: fn(&TableId, &mut Transaction),
}

const PORT: [DataType; 2] = [DataType::InetProto, DataType::InetService];
const PORT_FIELDS: [Field; 2] = [Field::L4Proto, Field::ThDport];

/// Adds a chain with one rule.
fn rule(table: &TableId, batch: &mut Transaction, stmts: Vec<Stmt>) {
    batch.add_chain(Chain::new(table, "c")).add_rule(Rule::new(table, "c", stmts));
}

fn hooked(table: &TableId, batch: &mut Transaction, kind: ChainKind, hook: Hook) {
    let base = BaseChain { kind, hook, priority: 0, policy: Policy::Accept };
    batch.add_chain(Chain::new(table, "b").base(base));
}

fn dnat_map(table: &TableId, batch: &mut Transaction) {
    let set = Set::new(table, "m", &PORT).data(&[DataType::Ipv4Addr, DataType::InetService]);
    let key = vec![Value::Proto(6), Value::Port(80)];
    let target = vec![Value::Ipv4([10, 0, 0, 1].into()), Value::Port(80)];
    batch.add_set(set).add_element(Element::new(ElementId::new(table, "m", key)).values(target));
    hooked(table, batch, ChainKind::Nat, Hook::Prerouting);
    batch.add_rule(Rule::new(table, "b", vec![Stmt::dnat_map(AddressFamily::V4, &PORT_FIELDS, "m")]));
}

fn ranges(table: &TableId, batch: &mut Transaction) {
    let from = vec![Value::Proto(6), Value::Port(1000)];
    let id = ElementId::new(table, "r", from).to(vec![Value::Proto(6), Value::Port(2000)]);
    batch
        .add_set(Set::new(table, "r", &PORT).data(&[DataType::Ipv4Addr]).intervals())
        .add_element(Element::new(id).values(vec![Value::Ipv4([10, 0, 0, 1].into())]));
}

fn masquerade(table: &TableId, batch: &mut Transaction) {
    hooked(table, batch, ChainKind::Nat, Hook::Postrouting);
    batch.add_rule(Rule::new(table, "b", vec![Stmt::Masquerade(PortChoice::Keep)]));
}

fn verdict_map(table: &TableId, batch: &mut Transaction) {
    batch.add_set(Set::new(table, "v", &[DataType::Ipv4Addr]).verdicts());
    rule(table, batch, vec![Stmt::vmap(&[Field::IpDaddr], "v")]);
}

fn spoofing(_: &TableId, batch: &mut Transaction) {
    let table = TableId::new(Family::Bridge, "probe");
    batch.add_table(Table::new(&table));
    batch.add_set(Set::new(&table, "s", &[DataType::Ifname, DataType::EtherAddr]));
    hooked(&table, batch, ChainKind::Filter, Hook::Prerouting);
    let fields = [Field::Iifname, Field::EtherSaddr];
    batch.add_rule(Rule::new(&table, "b", vec![Stmt::not_in_set(&fields, "s")]));
}

const PROBES: &[Probe] = &[
    Probe {
        name: "nf_tables, inet family",
        why: "published ports and masquerade are elements of one inet table",
        need: Need::Required,
        options: "NF_TABLES, NF_TABLES_INET",
        build: |_, _| {},
    },
    Probe {
        name: "nf_tables, destination NAT from a map",
        why: "a published port is one element of a map, whatever their number",
        need: Need::Required,
        options: "NFT_NAT, NF_TABLES_INET; Linux 5.7 or later",
        build: dnat_map,
    },
    Probe {
        name: "nf_tables, masquerade",
        why: "ipMasq, and containers that reach themselves through a published port",
        need: Need::Required,
        options: "NFT_MASQ",
        build: masquerade,
    },
    Probe {
        name: "nf_tables, fib expression",
        why: "published ports take only traffic to the node's own addresses",
        need: Need::Required,
        options: "NFT_FIB, NFT_FIB_INET, NFT_FIB_IPV4, NFT_FIB_IPV6",
        build: |table, batch| rule(table, batch, vec![Stmt::fib_daddr_local()]),
    },
    Probe {
        name: "nf_tables, verdict maps",
        why: "one lookup finds a container's masquerade, whatever their number",
        need: Need::Required,
        options: "NF_TABLES",
        build: verdict_map,
    },
    Probe {
        name: "nf_tables, maps of ranges",
        why: "a run of ports is one element",
        need: Need::Required,
        options: "NF_TABLES; Linux 5.6 or later",
        build: ranges,
    },
    Probe {
        name: "nf_tables, ct expression",
        why: "conditionsV4 and conditionsV6 that ask for a connection's state",
        need: Need::Optional,
        options: "NFT_CT",
        build: |table, batch| {
            let established = Value::CtState(Value::CT_ESTABLISHED);
            rule(table, batch, vec![Stmt::AnyBit { field: Field::CtState, bits: established }]);
        },
    },
    Probe {
        name: "nf_tables, bridge family",
        why: "macspoofchk",
        need: Need::Optional,
        options: "NF_TABLES_BRIDGE",
        build: spoofing,
    },
];

/// Probes the features that the dataplane uses. This creates real objects, so call it on a thread in a network
/// namespace of its own.
pub fn features() -> Result<Vec<Feature>, Error> {
    let socket = match Socket::open() {
        Err(error) if error.unsupported().is_none() => return Err(Error::kernel("reach nf_tables", error)),
        other => other,
    };
    let try_out = |probe: &Probe| -> Result<(), NftError> {
        let socket = socket.as_ref().map_err(|_| NftError::Unsupported {
            feature: "netfilter netlink".to_owned(),
            op: probe.name.to_owned(),
        })?;
        let table = TableId::new(Family::Inet, "probe");
        let mut batch = Transaction::new();
        batch.add_table(Table::new(&table));
        (probe.build)(&table, &mut batch);
        socket.commit(&batch, None)?;
        for table in socket.tables()? {
            let mut batch = Transaction::new();
            batch.delete_table(&table.id);
            socket.commit(&batch, None)?;
        }
        Ok(())
    };
    let mut found = Vec::with_capacity(PROBES.len() + 1);
    for probe in PROBES {
        let result = try_out(probe);
        if result.as_ref().is_err_and(NftError::is_not_permitted) {
            return result.map(|()| found).map_err(|e| Error::kernel("probe nf_tables", e));
        }
        let Probe { name, why, need, options, .. } = *probe;
        found.push(Feature { name, why, need, options, failure: result.err().map(|e| e.to_string()) });
    }
    found.push(Feature {
        name: "conntrack netlink",
        why: "UDP clients follow a published port to its next container; `ports` counts connections",
        need: Need::Required,
        options: "NF_CT_NETLINK",
        failure: list_no_flows().err().map(|e| e.to_string()),
    });
    Ok(found)
}

fn list_no_flows() -> Result<usize, NftError> {
    Conntrack::open()?.count(&Filter::all(Some(AddressFamily::V4)))
}

/// A chain of another program at the forward hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardChain {
    /// Family, table and chain, as nft prints them.
    pub name: String,
    pub table: TableId,
    pub chain: String,
    /// True if the chain drops packets that none of its rules accepts.
    pub drops: bool,
    pub rules: u32,
}

/// Lists the base chains at the forward hook, except for ours. Those of `iptables-nft` are included, but not those of
/// `iptables-legacy`.
pub fn forward_chains() -> Result<Vec<ForwardChain>, Error> {
    let socket = Socket::open().map_err(|e| Error::kernel("reach nf_tables", e))?;
    let chains = socket.all_chains().map_err(|e| Error::kernel("list all chains", e))?;
    let ours = [schema::table(), tunnel_guard::table()];
    let foreign = chains.into_iter().filter(|chain| !ours.contains(&chain.table));
    let forward = foreign.filter_map(|chain| {
        let base = chain.base.filter(|base| base.hook == Hook::Forward)?;
        Some(ForwardChain {
            name: format!("{} {}", chain.table, chain.name),
            table: chain.table,
            chain: chain.name,
            drops: base.policy == Policy::Drop,
            rules: chain.uses,
        })
    });
    Ok(forward.collect())
}

/// Lists all tables, by family and name.
pub fn foreign_tables() -> Result<Vec<String>, Error> {
    let socket = Socket::open().map_err(|e| Error::kernel("reach nf_tables", e))?;
    let tables = socket.tables().map_err(|e| Error::kernel("list tables", e))?;
    Ok(tables.into_iter().map(|table| table.id.to_string()).collect())
}

/// The chain of published ports in iptables, which ours and the reference plugin's have in common.
const HOSTPORTS: &str = "CNI-HOSTPORT-DNAT";

/// The families in which kube-proxy has a table of its own while published ports are in tables of iptables. The nat
/// chains of both then have the same priority.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses to list its tables.
pub fn ports_of_iptables_beside_kube_proxy() -> Result<Vec<Family>, Error> {
    let socket = Socket::open().map_err(|e| Error::kernel("reach nf_tables", e))?;
    let chains = socket.all_chains().map_err(|e| Error::kernel("list all chains", e))?;
    let has = |family: Family, table: &str, name: &str| {
        let is_in = |id: &TableId| id.family == family && id.name == table;
        chains.iter().any(|chain| is_in(&chain.table) && chain.name == name)
    };
    let has_both =
        |family: &Family| has(*family, "kube-proxy", "nat-prerouting") && has(*family, "nat", HOSTPORTS);
    Ok([Family::Ip, Family::Ip6].into_iter().filter(has_both).collect())
}

/// The state of our own table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnTable {
    /// The table does not exist yet: the first container creates it.
    Absent,
    /// The table is of this version and undamaged.
    Ready,
    /// The table's chains were changed, or an older version made the table: the next container repairs it.
    Damaged,
}

/// Family and name of our own table, and the schema that this version makes.
#[must_use]
pub const fn own_table_name() -> (&'static str, u32) {
    (schema::TABLE, schema::SCHEMA)
}

/// Reads the state of our own table.
///
/// # Errors
/// [`Error::ForeignTable`] or [`Error::NewerSchema`] if the table is not ours or is newer, or nf_tables cannot be
/// read.
pub fn own_table() -> Result<OwnTable, Error> {
    Ok(match Session::open()?.state()? {
        State::Ready => OwnTable::Ready,
        State::Missing => OwnTable::Absent,
        State::Damaged(_) => OwnTable::Damaged,
    })
}

/// Creates our own table if it is missing, and repairs its chains if they were changed. Elements stay as they
/// are. The table includes the guard of the node's loopback.
///
/// # Errors
/// [`Error::ForeignTable`] or [`Error::NewerSchema`] if the table is not ours or is newer, or nf_tables cannot be
/// read or written.
pub fn repair_own_table() -> Result<(), Error> {
    let session = Session::open()?;
    let mut patience = Patience::new();
    loop {
        let generation = session.generation()?;
        let batch = match session.state()? {
            State::Ready => {
                return addresses::settle(&session);
            }
            State::Missing => addresses::bootstrap()?,
            State::Damaged(repair) => repair,
        };
        match session.socket.commit(&batch, Some(generation)) {
            // If the table is complete now, the next pass does what is left to do.
            Ok(()) => {}
            Err(e) => patience.wait("repair the table", e)?,
        }
    }
}

/// True if a record of the attachment, in any backend, names another namespace than this one, because a later ADD with
/// the same ID has made it.
///
/// Every ADD makes its record before or together with its rules, so rules without a record are not a later ADD's: a
/// concurrent DEL has removed their record. A kernel without nf_tables has no records. There the rules may be a later
/// ADD's, and the answer is true as well.
pub fn is_recorded_elsewhere(attachment: &Attachment, netns: &ContainerNetns) -> Result<bool, Error> {
    match Session::open().and_then(|session| record::is_of_another(&session, attachment, netns)) {
        Err(Error::NoNfTables(_)) => Ok(true),
        other => other,
    }
}
