// SPDX-License-Identifier: GPL-2.0-or-later

//! The table's definition: its maps, chains and rules, and their names.
//!
//! ```text
//! map  hostports4       { inet_proto . inet_service             : ipv4_addr . inet_service }  any address
//! map  hostips4         { ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }  one address
//! map  ranges4          { inet_proto . inet_service             : ipv4_addr }  intervals
//! map  hostip-ranges4   { ipv4_addr . inet_proto . inet_service : ipv4_addr }
//! map  conditions4      { inet_proto . inet_service             : verdict }    own chains
//! map  hostip-conditions4 { ipv4_addr . inet_proto . inet_service : verdict }
//! set  published4       { ipv4_addr }             containers with published ports
//! map  hairpin-networks4 { ipv4_addr : verdict }  network → which sources to masquerade on the way to its containers
//! map  hairpin-own4     { ipv4_addr : verdict }   the same for a container that needs another chain
//! set  masqueraded4     { ipv4_addr }             containers whose packets are masqueraded
//! map  masquerade-networks4 { ipv4_addr : verdict } network → how to masquerade what comes from its containers
//! map  masquerade-own4  { ipv4_addr : verdict }   the same for a container that needs another chain
//!      … and the same with 6
//! map  owners           { attachment's hash . kind : number of elements }
//! ```
//!
//! `hostips` is looked up before `hostports`. `ranges` contains runs that keep the port, and `conditions` the keys of
//! containers that have a chain of their own.
//!
//! Every key of a published port is in one of the first four maps, even if the container has a chain of its own,
//! because attachments compete for ports there by creating elements exclusively.
//!
//! A container's address is in `published` or `masqueraded`, where attachments compete for it, and usually nowhere
//! else, because its network leads to the chain. For each new element that leads to a chain, the kernel validates all
//! rules and elements of the table (`nft_table_validate`), which takes 3 ms with 5,000 containers. Only a container
//! that needs another chain than its network has an element of its own.
//!
//! A bit of the packet mark tells postrouting that one of these maps translated the destination, so that packets
//! which another engine sends to the same container keep their source. The bit is set before the lookup, because
//! `dnat` ends the chain, and cleared if nothing was found. Postrouting clears it again in a chain just before the
//! usual priority of source NAT, so that no other rules for the same bit see it.

pub(crate) mod addresses;
mod base;
pub(crate) mod exempt;
pub(crate) mod flowtable;
mod guard;
mod layout;
mod shared_chain;
pub(crate) mod udp_flows;

use cni_nftables::{
    BaseChain, Chain, ChainKind, DataType, Field, Hook, MapData, Operand, Policy, Rule, Set, Stmt, Table,
    Transaction, Value, Verdict,
};

use crate::owned_table::marker;
use crate::owner::AttachmentHash;
use crate::{AddressFamily, HostAddress, HostPorts};

pub(crate) use base::{
    DEFAULT_MARK_BIT, DEFINITION, Fixed, SCHEMA, TABLE, address_fields, family_of, hostports_chain, loopback,
    mark_bits, masqueraded_chain, one_of, published_chain, table, translate_chain,
};
pub(crate) use exempt::ExemptId;
pub(crate) use layout::{Kernel, Layout, Protocols};
pub(crate) use shared_chain::{SharedChain, other_networks};

/// Kind of an entry in `owners`: published ports.
pub(crate) const KIND_PORTS: u32 = 1;
/// Kind of an entry in `owners`: masqueraded addresses.
pub(crate) const KIND_MASQUERADE: u32 = 2;

const OWN_CHAIN: &str = "container-";

/// The name of an attachment's own chain.
pub(crate) fn own_chain(hash: &AttachmentHash, family: AddressFamily) -> String {
    format!("{OWN_CHAIN}{}-{}", cni_spec::text::hex(&hash.0), family.version())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Map {
    /// Single ports on any host address.
    HostPorts(AddressFamily),
    /// Single ports on one host address.
    HostIps(AddressFamily),
    /// Runs that keep the port, on any host address.
    Ranges(AddressFamily),
    /// Runs that keep the port, on one host address.
    HostIpRanges(AddressFamily),
    /// Ports on any host address → the container's own chain.
    Conditions(AddressFamily),
    /// Ports on one host address → the container's own chain.
    HostIpConditions(AddressFamily),
    /// The container addresses with published ports.
    Published(AddressFamily),
    /// Container address → which sources to masquerade on the way to it, if its network does not lead to the right
    /// chain.
    Hairpin(AddressFamily),
    /// Network → which sources to masquerade on the way to its containers. Belongs to no attachment.
    HairpinNetworks(AddressFamily),
    /// The container addresses whose packets are masqueraded.
    Masqueraded(AddressFamily),
    /// Container address → how to masquerade its packets, if its network does not lead to the right chain.
    Masquerade(AddressFamily),
    /// Network → how to masquerade packets from its containers. Belongs to no attachment.
    MasqueradeNetworks(AddressFamily),
    /// Attachment and kind → number of elements.
    Owners,
}

impl Map {
    /// All maps and sets whose elements belong to attachments.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let of = |f| {
            [
                Self::HostPorts(f),
                Self::HostIps(f),
                Self::Ranges(f),
                Self::HostIpRanges(f),
                Self::Conditions(f),
                Self::HostIpConditions(f),
                Self::Published(f),
                Self::Hairpin(f),
                Self::Masqueraded(f),
                Self::Masquerade(f),
            ]
        };
        AddressFamily::BOTH.into_iter().flat_map(of).chain([Self::Owners])
    }

    /// The maps that lead networks to chains.
    pub(crate) fn of_networks() -> impl Iterator<Item = Self> {
        AddressFamily::BOTH.into_iter().flat_map(|f| [Self::HairpinNetworks(f), Self::MasqueradeNetworks(f)])
    }

    /// The map that leads networks to chains, for a map that leads single addresses there.
    pub(crate) fn networks(self) -> Option<Self> {
        match self {
            Self::Hairpin(f) => Some(Self::HairpinNetworks(f)),
            Self::Masquerade(f) => Some(Self::MasqueradeNetworks(f)),
            _ => None,
        }
    }

    /// The set of the addresses that lead to chains, for a map that leads single addresses there.
    pub(crate) fn addresses(self) -> Option<Self> {
        match self {
            Self::Hairpin(f) => Some(Self::Published(f)),
            Self::Masquerade(f) => Some(Self::Masqueraded(f)),
            _ => None,
        }
    }

    /// The name in schemas 1 and 2 of a map that leads single addresses to chains.
    pub(crate) fn former_name(self) -> Option<&'static str> {
        match self {
            Self::Hairpin(AddressFamily::V4) => Some("hairpin4"),
            Self::Hairpin(AddressFamily::V6) => Some("hairpin6"),
            Self::Masquerade(AddressFamily::V4) => Some("masquerade4"),
            Self::Masquerade(AddressFamily::V6) => Some("masquerade6"),
            _ => None,
        }
    }

    /// False if an element only adds to what a set says about an address, so that the owner's entry does not count
    /// it.
    pub(crate) fn is_counted(self) -> bool {
        self.addresses().is_none()
    }

    /// The maps that contain mappings.
    pub(crate) fn with_ports() -> impl Iterator<Item = Self> {
        Self::all().filter(|map| {
            matches!(map, Self::HostPorts(_) | Self::HostIps(_) | Self::Ranges(_) | Self::HostIpRanges(_))
        })
    }

    /// The map to which a mapping belongs.
    pub(crate) fn for_ports(host: &HostPorts) -> Self {
        let family = host.address.family();
        match (host.address, host.len() > 1) {
            (HostAddress::Any(_), false) => Self::HostPorts(family),
            (HostAddress::Any(_), true) => Self::Ranges(family),
            (HostAddress::One(_), false) => Self::HostIps(family),
            (HostAddress::One(_), true) => Self::HostIpRanges(family),
        }
    }

    /// The map whose mappings can overlap with those of this map: ranges for single ports, and single ports for
    /// ranges.
    pub(crate) fn counterpart(self) -> Option<Self> {
        match self {
            Self::HostPorts(f) => Some(Self::Ranges(f)),
            Self::Ranges(f) => Some(Self::HostPorts(f)),
            Self::HostIps(f) => Some(Self::HostIpRanges(f)),
            Self::HostIpRanges(f) => Some(Self::HostIps(f)),
            _ => None,
        }
    }

    /// The map that leads to the own chain of a mapping's container.
    pub(crate) fn for_own_chain(host: &HostPorts) -> Self {
        match host.address {
            HostAddress::Any(family) => Self::Conditions(family),
            HostAddress::One(_) => Self::HostIpConditions(host.address.family()),
        }
    }

    /// The map's address family. None for the map of owners.
    pub(crate) fn family(self) -> Option<AddressFamily> {
        match self {
            Self::HostPorts(f) | Self::HostIps(f) | Self::Ranges(f) | Self::HostIpRanges(f) => Some(f),
            Self::Conditions(f) | Self::HostIpConditions(f) => Some(f),
            Self::Published(f) | Self::Hairpin(f) | Self::HairpinNetworks(f) => Some(f),
            Self::Masqueraded(f) | Self::Masquerade(f) | Self::MasqueradeNetworks(f) => Some(f),
            Self::Owners => None,
        }
    }

    /// True if its elements translate destinations, or lead to chains that do.
    pub(crate) fn translates(self) -> bool {
        let conditions = matches!(self, Self::Conditions(_) | Self::HostIpConditions(_));
        conditions || Self::with_ports().any(|map| map == self)
    }

    pub(crate) fn kind(self) -> u32 {
        match self {
            Self::Masqueraded(_) | Self::Masquerade(_) | Self::MasqueradeNetworks(_) => KIND_MASQUERADE,
            _ => KIND_PORTS,
        }
    }

    /// True if its keys are intervals.
    pub(crate) fn intervals(self) -> bool {
        matches!(
            self,
            Self::Ranges(_)
                | Self::HostIpRanges(_)
                | Self::Conditions(_)
                | Self::HostIpConditions(_)
                | Self::HairpinNetworks(_)
                | Self::MasqueradeNetworks(_)
        )
    }

    pub(crate) fn name(self) -> &'static str {
        use AddressFamily::{V4, V6};
        match self {
            Self::HostPorts(V4) => "hostports4",
            Self::HostPorts(V6) => "hostports6",
            Self::HostIps(V4) => "hostips4",
            Self::HostIps(V6) => "hostips6",
            Self::Ranges(V4) => "ranges4",
            Self::Ranges(V6) => "ranges6",
            Self::HostIpRanges(V4) => "hostip-ranges4",
            Self::HostIpRanges(V6) => "hostip-ranges6",
            Self::Conditions(V4) => "conditions4",
            Self::Conditions(V6) => "conditions6",
            Self::HostIpConditions(V4) => "hostip-conditions4",
            Self::HostIpConditions(V6) => "hostip-conditions6",
            Self::Published(family) => published_chain(family),
            Self::Hairpin(V4) => "hairpin-own4",
            Self::Hairpin(V6) => "hairpin-own6",
            Self::HairpinNetworks(V4) => "hairpin-networks4",
            Self::HairpinNetworks(V6) => "hairpin-networks6",
            Self::Masqueraded(family) => masqueraded_chain(family),
            Self::Masquerade(V4) => "masquerade-own4",
            Self::Masquerade(V6) => "masquerade-own6",
            Self::MasqueradeNetworks(V4) => "masquerade-networks4",
            Self::MasqueradeNetworks(V6) => "masquerade-networks6",
            Self::Owners => "owners",
        }
    }

    fn definition(self) -> Set {
        let address = match self.family() {
            Some(AddressFamily::V4) => DataType::Ipv4Addr,
            Some(AddressFamily::V6) | None => DataType::Ipv6Addr,
        };
        let port = [DataType::InetProto, DataType::InetService];
        let host_port = [address, DataType::InetProto, DataType::InetService];
        let key: &[DataType] = match self {
            Self::HostPorts(_) | Self::Ranges(_) | Self::Conditions(_) => &port,
            Self::HostIps(_) | Self::HostIpRanges(_) | Self::HostIpConditions(_) => &host_port,
            Self::Published(_) | Self::Hairpin(_) | Self::HairpinNetworks(_) => &[address],
            Self::Masqueraded(_) | Self::Masquerade(_) | Self::MasqueradeNetworks(_) => &[address],
            Self::Owners => &[address, DataType::Mark],
        };
        let data = match self {
            Self::HostPorts(_) | Self::HostIps(_) => MapData::Values(vec![address, DataType::InetService]),
            Self::Ranges(_) | Self::HostIpRanges(_) => MapData::Values(vec![address]),
            Self::Owners => MapData::Values(vec![DataType::Mark]),
            Self::Published(_) | Self::Masqueraded(_) => MapData::None,
            _ => MapData::Verdict,
        };
        let mut set = Set::new(&table(), self.name(), key);
        set.data = data;
        if self.intervals() { set.intervals() } else { set }
    }
}

/// The chains that only some layouts have.
pub(crate) const OPTIONAL_CHAINS: [&str; 3] =
    [addresses::name(AddressFamily::V4), addresses::name(AddressFamily::V6), flowtable::CHAIN];

/// The chains of all layouts together.
pub(crate) const CHAINS: [&str; 17] = {
    let [addresses4, addresses6, flowtable] = OPTIONAL_CHAINS;
    [
        translate_chain(AddressFamily::V4),
        translate_chain(AddressFamily::V6),
        hostports_chain(AddressFamily::V4),
        hostports_chain(AddressFamily::V6),
        published_chain(AddressFamily::V4),
        published_chain(AddressFamily::V6),
        masqueraded_chain(AddressFamily::V4),
        masqueraded_chain(AddressFamily::V6),
        PREROUTING,
        OUTPUT,
        POSTROUTING,
        GUARD,
        GUARD_INPUT,
        GUARD_TRANSLATED,
        addresses4,
        addresses6,
        flowtable,
    ]
};

const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
const POSTROUTING: &str = "postrouting";
const GUARD: &str = "guard";
const GUARD_INPUT: &str = "guard-input";
const GUARD_TRANSLATED: &str = "guard-translated";

/// The priority of the chains that translate destinations.
///
/// The kernel calls chains that translate in the order of their priorities (the newest first if these are equal)
/// until one has translated the packet (`nf_nat_inet_fn`). So a Service of kube-proxy, whose chains are at -100,
/// takes precedence regardless of which chain was registered first. With the reference plugin a Service takes
/// precedence as well, because the plugin's rules come after those of kube-proxy in the same chain.
pub(crate) const BEHIND_DSTNAT: i32 = -99;

/// The lowest priority of a chain of type nat: one more than `NF_IP_PRI_CONNTRACK` (`nft_chain_parse_hook`).
const FIRST_NAT: i32 = -199;

/// The chains of a layout. Each chain comes before the chains that jump to it.
pub(crate) fn fixed_chains(layout: Layout) -> Vec<Fixed> {
    // `NF_IP_PRI_RAW`, `NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC` (`linux/netfilter_ipv4.h`).
    const RAW: i32 = -300;
    const BEFORE_SRCNAT: i32 = 99;
    let local = || AddressFamily::BOTH.map(|family| local_rule(family, layout)).to_vec();
    let nat = |hook, priority| BaseChain { kind: ChainKind::Nat, hook, priority, policy: Policy::Accept };
    let mut chains = Vec::new();
    for family in AddressFamily::BOTH {
        chains.push(Fixed::regular(translate_chain(family), translate_rules(family)));
        chains.push(Fixed::regular(hostports_chain(family), hostports_rules(family)));
        chains.extend(layout.addresses.then(|| addresses::chain(family)));
        let (source, destination) = address_fields(family);
        for (name, field, maps) in [
            (published_chain(family), destination, [Map::Hairpin(family), Map::HairpinNetworks(family)]),
            (masqueraded_chain(family), source, [Map::Masquerade(family), Map::MasqueradeNetworks(family)]),
        ] {
            let rules = maps.map(|map| vec![Stmt::vmap(&[field], map.name())]);
            chains.push(Fixed::regular(name, rules.to_vec()));
        }
    }
    chains.push(Fixed::base(PREROUTING, nat(Hook::Prerouting, BEHIND_DSTNAT), local()));
    chains.push(Fixed::base(OUTPUT, nat(Hook::Output, BEHIND_DSTNAT), local()));
    // A packet to a container may also come from a masqueraded container, so the lookup for packets to containers
    // comes first and returns here.
    let to_containers = AddressFamily::BOTH.map(|f| {
        vec![Stmt::in_set(&[address_fields(f).1], Map::Published(f).name()), Stmt::jump(published_chain(f))]
    });
    let from_containers = AddressFamily::BOTH.map(|f| {
        vec![
            Stmt::in_set(&[address_fields(f).0], Map::Masqueraded(f).name()),
            Stmt::goto(masqueraded_chain(f)),
        ]
    });
    let postrouting = to_containers.into_iter().chain(from_containers).collect();
    chains.push(Fixed::base(POSTROUTING, nat(Hook::Postrouting, BEFORE_SRCNAT), postrouting));
    chains.push(Fixed::base(GUARD, nat(Hook::Prerouting, FIRST_NAT), guard::arriving()));
    let input = BaseChain { kind: ChainKind::Filter, ..nat(Hook::Input, RAW) };
    chains.push(Fixed::base(GUARD_INPUT, input, guard::to_the_node()));
    chains.push(Fixed::base(GUARD_TRANSLATED, nat(Hook::Input, BEHIND_DSTNAT), guard::translated()));
    chains.extend(layout.offloading.map(flowtable::chain));
    chains
}

fn nfproto(family: AddressFamily) -> Stmt {
    let number = match family {
        AddressFamily::V4 => Value::NFPROTO_IPV4,
        AddressFamily::V6 => Value::NFPROTO_IPV6,
    };
    Stmt::eq(Field::NfProto, Value::NfProto(number))
}

/// Looks up packets that are addressed to the node, but no forwarded ones.
fn local_rule(family: AddressFamily, layout: Layout) -> Vec<Stmt> {
    let next = if layout.addresses { addresses::name(family) } else { hostports_chain(family) };
    vec![nfproto(family), Stmt::fib_daddr_local(), Stmt::goto(next)]
}

fn port_fields() -> [Field; 2] {
    [Field::L4Proto, Field::ThDport]
}

fn host_port_fields(family: AddressFamily) -> [Field; 3] {
    [address_fields(family).1, Field::L4Proto, Field::ThDport]
}

fn translate_rules(family: AddressFamily) -> Vec<Vec<Stmt>> {
    translate_host_ip(family).into_iter().chain(translate_wildcard(family)).collect()
}

fn translate_host_ip(family: AddressFamily) -> [Vec<Stmt>; 2] {
    let fields = host_port_fields(family);
    [
        vec![Stmt::dnat_map(family, &fields, Map::HostIps(family).name())],
        vec![Stmt::dnat_map_address(family, &fields, Map::HostIpRanges(family).name())],
    ]
}

fn translate_wildcard(family: AddressFamily) -> [Vec<Stmt>; 2] {
    let fields = port_fields();
    [
        vec![nfproto(family), Stmt::dnat_map(family, &fields, Map::HostPorts(family).name())],
        vec![nfproto(family), Stmt::dnat_map_address(family, &fields, Map::Ranges(family).name())],
    ]
}

/// Looks up, in this order, single host addresses with a container's own chain, all single host addresses, wildcards
/// with an own chain, and all wildcards. An own chain is entered by `goto`, so a packet that does not meet its
/// conditions ends there instead of continuing with the next lookups.
fn hostports_rules(family: AddressFamily) -> Vec<Vec<Stmt>> {
    let bits = mark_bits(DEFAULT_MARK_BIT);
    let mut rules = vec![vec![Stmt::vmap(&host_port_fields(family), Map::HostIpConditions(family).name())]];
    rules.push(vec![Stmt::set_mark_bits(bits)]);
    rules.extend(translate_host_ip(family));
    rules.push(vec![Stmt::vmap(&port_fields(), Map::Conditions(family).name())]);
    rules.extend(translate_wildcard(family));
    rules.push(vec![Stmt::clear_mark_bits(bits)]);
    rules
}

/// The rules of a container's own chain. The default bit of the mark may already be set.
///
/// With `spared`, packets to the node's loopback addresses are left alone, except for those to these ports.
pub(crate) fn own_chain_rules(
    conditions: &[Stmt],
    spared: Option<&[HostPorts]>,
    bit: u8,
    family: AddressFamily,
) -> Vec<Vec<Stmt>> {
    let (default, bits) = (mark_bits(DEFAULT_MARK_BIT), mark_bits(bit));
    let translate = |mut matching: Vec<Stmt>| {
        matching.extend_from_slice(conditions);
        matching.push(Stmt::SetMark { and: !(default | bits), xor: bits });
        matching.push(Stmt::goto(translate_chain(family)));
        matching
    };
    let mut rules: Vec<_> = spared.into_iter().flatten().map(|port| translate(addressed_to(port))).collect();
    let elsewhere = || Stmt::Match {
        fields: vec![address_fields(family).1],
        cmp: cni_nftables::Cmp::Ne,
        to: loopback(family),
    };
    rules.push(translate(spared.map(|_| elsewhere()).into_iter().collect()));
    rules.push(vec![Stmt::clear_mark_bits(default)]);
    rules
}

fn addressed_to(host: &HostPorts) -> Vec<Stmt> {
    let (first, last) = (Value::Port(host.first), Value::Port(host.last));
    let ports = if host.len() > 1 { Operand::Range(first, last) } else { Operand::Value(first) };
    let address = match host.address {
        HostAddress::One(address) => {
            Some(Stmt::eq(address_fields(host.address.family()).1, Value::address(address)))
        }
        HostAddress::Any(_) => None,
    };
    let protocol = Stmt::eq(Field::L4Proto, Value::Proto(host.protocol.number()));
    address.into_iter().chain([protocol, one_of(Field::ThDport, ports)]).collect()
}

/// The maps and sets of a layout.
fn sets(layout: Layout) -> impl Iterator<Item = Set> {
    let addresses = AddressFamily::BOTH.into_iter().filter(move |_| layout.addresses).map(addresses::set);
    Map::all().chain(Map::of_networks()).map(Map::definition).chain(addresses)
}

/// Builds the whole table in one batch.
pub(crate) fn bootstrap(layout: Layout) -> Transaction {
    let id = table();
    let mut batch = Transaction::new();
    let comment =
        "published ports and masquerade of containers; made by slipway, elements carry their owners";
    batch.add_table(Table::new(&id).comment(comment).exclusive());
    batch.add_chain(Chain::new(&id, &marker(SCHEMA)).comment("the layout of this table").exclusive());
    for set in sets(layout) {
        batch.add_set(set);
    }
    let fixed = fixed_chains(layout);
    for Fixed { chain, .. } in &fixed {
        batch.add_chain(chain.clone());
    }
    for Fixed { chain, rules } in fixed {
        add_rules(&mut batch, &chain.name, rules);
    }
    batch
}

/// Rebuilds the fixed chains and these shared chains. The maps keep their elements. If the layout has a flowtable, it
/// must exist.
pub(crate) fn repair(shared: &[SharedChain], layout: Layout) -> Transaction {
    let id = table();
    let mut batch = Transaction::new();
    // Clears the flag dormant. If the table was deleted concurrently, this batch makes a complete one.
    batch.add_table(Table::new(&id));
    batch.add_chain(Chain::new(&id, &marker(SCHEMA)));
    let fixed = fixed_chains(layout);
    for set in sets(layout) {
        batch.add_set(set);
    }
    for Fixed { chain, .. } in &fixed {
        batch.add_chain(chain.clone());
    }
    for Fixed { chain, rules } in fixed {
        batch.flush_chain(&id, &chain.name);
        add_rules(&mut batch, &chain.name, rules);
    }
    for chain in shared {
        if let Some(id) = chain.exempt() {
            batch.add_set(id.set());
        }
        batch.flush_chain(&id, &chain.name());
        add_rules(&mut batch, &chain.name(), chain.rules(layout));
    }
    batch
}

/// Makes a shared chain. The batch fails if the chain exists.
pub(crate) fn add_shared(batch: &mut Transaction, chain: &SharedChain, layout: Layout) {
    batch.add_chain(Chain::new(&table(), &chain.name()).exclusive());
    add_rules(batch, &chain.name(), chain.rules(layout));
}

pub(crate) fn add_rules(batch: &mut Transaction, chain: &str, rules: Vec<Vec<Stmt>>) {
    for stmts in rules {
        batch.add_rule(Rule::new(&table(), chain, stmts));
    }
}

/// The number of rules and references that an undamaged fixed chain has at least.
pub(crate) fn expected_use(name: &str, fixed: &[Fixed]) -> u32 {
    let rules = fixed.iter().filter(|f| f.chain.name == name).map(|f| f.rules.len()).sum::<usize>();
    let leads =
        |stmt: &Stmt| matches!(stmt, Stmt::Verdict(Verdict::Goto(to) | Verdict::Jump(to)) if to == name);
    let refs = fixed.iter().flat_map(|f| f.rules.iter().flatten()).filter(|stmt| leads(stmt)).count();
    u32::try_from(rules + refs).unwrap_or(u32::MAX)
}

/// Replaces the marker of an older schema with ours. The batch fails if that marker is missing.
pub(crate) fn upgrade(found: u32) -> Transaction {
    let mut batch = Transaction::new();
    if found != SCHEMA {
        batch.delete_chain(&table(), &marker(found));
        batch
            .add_chain(Chain::new(&table(), &marker(SCHEMA)).comment("the layout of this table").exclusive());
    }
    batch
}
