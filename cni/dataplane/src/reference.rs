// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds, checks and removes the rules of the reference plugins' nftables backend. The comments of these rules name
//! their owners.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_nftables::{
    Cmp, DnatTarget, Family, Field, Operand, RuleInfo, Socket, Stmt, TableId, Transaction, Value,
};
use cni_spec::Attachment;
use ipnet::IpNet;
use sha2::{Digest, Sha512};

use crate::iptables::chain_reader::{Content, MasqueradeContent, PortContent};
use crate::nftables::plan::as_address;
use crate::owned_table::transact;
use crate::owner::COMMENT_MAX;
use crate::{
    AddressFamily, Difference, Error, HostAddress, HostPorts, Kinds, PortRequest, Protocol, PublishedPort,
    Snat,
};
use cni_spec::text::hex;

/// The tables of published ports, by family. The comment of a rule is the container's ID.
const PORT_TABLES: [(AddressFamily, Family); 2] =
    [(AddressFamily::V4, Family::Ip), (AddressFamily::V6, Family::Ip6)];
pub(crate) const PORT_TABLE: &str = "cni_hostport";
/// The chain of the mappings.
const HOSTPORTS: &str = "hostports";
/// The chains of these tables that contain containers' rules. Older versions of the reference plugins use the second
/// one.
const PORT_CHAINS: [&str; 3] = [HOSTPORTS, "hostip_hostports", "masquerading"];
/// The table of the masquerade. The comment of a rule contains a hash and the names.
pub(crate) const MASQUERADE_TABLE: &str = "cni_plugins_masquerade";
const MASQUERADE_CHAIN: &str = "masq_checks";
/// How many digits each half of a masquerade rule's hash has.
const HASH_DIGITS: usize = 16;

/// The reference's tables in this network namespace.
#[derive(Debug)]
pub(crate) struct Reference {
    socket: Socket,
    ports: Vec<(AddressFamily, TableId)>,
    masquerade: Option<TableId>,
}

impl Reference {
    /// Looks up the three tables by name. None if none of them exists, or the kernel has no nf_tables.
    pub(crate) fn find() -> Result<Option<Self>, Error> {
        let socket = match Socket::open() {
            Ok(socket) => socket,
            Err(error) if error.unsupported().is_some() => return Ok(None),
            Err(error) => return Err(Error::kernel("reach nf_tables", error)),
        };
        let there = |table: &TableId| match socket.table(table) {
            Ok(found) => Ok(found.is_some()),
            // The kernel has no nf_tables: the socket could be opened because it is one to netfilter as a
            // whole.
            Err(error) if error.unsupported().is_some() => Ok(false),
            Err(error) => match socket.generation() {
                Err(lacking) if lacking.unsupported().is_some() => Ok(false),
                _ => Err(Error::kernel(format!("read table {table}"), error)),
            },
        };
        let mut ports = Vec::new();
        for (family, nft) in PORT_TABLES {
            let table = TableId::new(nft, PORT_TABLE);
            if there(&table)? {
                ports.push((family, table));
            }
        }
        let masquerade = TableId::new(Family::Inet, MASQUERADE_TABLE);
        let masquerade = there(&masquerade)?.then_some(masquerade);
        let any = !ports.is_empty() || masquerade.is_some();
        Ok(any.then_some(Self { socket, ports, masquerade }))
    }

    fn rules(&self, table: &TableId, chain: &str) -> Result<Vec<RuleInfo>, Error> {
        self.socket
            .rules(table, chain)
            .map_err(|e| Error::kernel(format!("list the rules of chain {table} {chain}"), e))
    }

    /// The tables and chains that contain rules of containers.
    fn places(&self, kinds: Kinds) -> Vec<(&TableId, &'static str)> {
        let mut places = Vec::new();
        if kinds.ports() {
            for (_, table) in &self.ports {
                places.extend(PORT_CHAINS.map(|chain| (table, chain)));
            }
        }
        if kinds.masquerade() {
            places.extend(self.masquerade.iter().map(|table| (table, MASQUERADE_CHAIN)));
        }
        places
    }

    pub(crate) fn withdraw(&self, attachment: &Attachment, kinds: Kinds) -> Result<(), Error> {
        let operation = format!("remove the reference plugins' rules of {attachment}");
        self.remove(&operation, kinds, |rule| is_of(rule, attachment))
    }

    /// Removes the rules of invalid attachments of a network. Rules of published ports do not name the network. They
    /// are removed, whatever `kinds` is, together with a masquerade rule of the same container and address that names
    /// the network, because without that rule it would be unknown to which network they belong.
    pub(crate) fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        let Some(table) = &self.masquerade else { return Ok(()) };
        let rules = self.rules(table, MASQUERADE_CHAIN)?;
        let of_network = rules.iter().filter(|rule| is_of_network(rule, network));
        let dead: Vec<&RuleInfo> = of_network.filter(|rule| !valid.iter().any(|a| is_of(rule, a))).collect();
        let comments: BTreeSet<&str> = dead.iter().filter_map(|rule| rule.comment.as_deref()).collect();
        let is_port_of_the_dead = |rule: &RuleInfo, id: &str| {
            let address = container_address(rule);
            let same = |other: &RuleInfo| address.is_some() && container_address(other) == address;
            dead.iter().any(|other| same(other) && names_container(other, id))
        };
        let operation =
            format!("remove the reference plugins' rules of dead attachments of network {network}");
        self.remove(&operation, Kinds::All, |rule| match rule.comment.as_deref() {
            Some(comment) if rule.table.name == MASQUERADE_TABLE => {
                kinds.masquerade() && comments.contains(comment)
            }
            Some(id) => is_port_of_the_dead(rule, id),
            None => false,
        })
    }

    fn remove(
        &self,
        operation: &str,
        kinds: Kinds,
        condemned: impl Fn(&RuleInfo) -> bool,
    ) -> Result<(), Error> {
        transact(&self.socket, operation, |_| {
            let mut batch = Transaction::new();
            for (table, chain) in self.places(kinds) {
                for rule in self.rules(table, chain)?.iter().filter(|rule| condemned(rule)) {
                    batch.delete_rule(table, chain, rule.handle);
                }
            }
            Ok((batch, ()))
        })
    }

    /// True if the attachment has rules in these tables.
    pub(crate) fn holds(&self, attachment: &Attachment, kinds: Kinds) -> Result<bool, Error> {
        for (table, chain) in self.places(kinds) {
            if self.rules(table, chain)?.iter().any(|rule| is_of(rule, attachment)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks only what the reference plugin checks: there must be as many rules as mappings.
    pub(crate) fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        for (family, table) in &self.ports {
            let of_family = request.ports.iter().filter(|port| port.host.address.family() == *family);
            let expected: usize = of_family.map(|port| port.host.len()).sum();
            let rules = self.rules(table, HOSTPORTS)?;
            let found = rules.iter().filter(|rule| is_of(rule, &request.attachment)).count();
            if found < expected {
                let chain = format!("{table} {HOSTPORTS}");
                let container_id = request.attachment.container_id().to_owned();
                return Err(Difference::ReferenceRules { chain, container_id, found, expected }.into());
            }
        }
        Ok(())
    }
}

/// A hash in the form in which comments contain it.
fn short_hash(text: &str) -> String {
    let mut hash = hex(&Sha512::digest(text));
    hash.truncate(HASH_DIGITS);
    hash
}

fn is_of_network(rule: &RuleInfo, network: &str) -> bool {
    let comment = rule.comment.as_deref().unwrap_or_default();
    comment.split_once('-').is_some_and(|(hash, _)| hash == short_hash(network))
}

/// True if a rule belongs to this attachment, according to the form that comments have in its table.
fn is_of(rule: &RuleInfo, attachment: &Attachment) -> bool {
    let Some(comment) = rule.comment.as_deref() else { return false };
    let id = attachment.container_id();
    if rule.table.name != MASQUERADE_TABLE {
        return is_container(comment, id);
    }
    is_masquerade_of(comment, attachment)
}

/// True if this is the comment of a masquerade rule of the attachment.
fn is_masquerade_of(comment: &str, attachment: &Attachment) -> bool {
    let id = attachment.container_id();
    let instance = short_hash(&format!("{}:{id}", attachment.ifname()));
    let hash = format!("{}-{instance}", short_hash(attachment.network()));
    comment.strip_prefix(&hash).is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
}

/// True if this is the comment of a port rule of the container with this ID.
fn is_container(comment: &str, id: &str) -> bool {
    comment == id.get(..COMMENT_MAX).unwrap_or(id)
}

/// True if a masquerade rule's comment names the container that a port rule's comment names. Either may be cut.
fn names_container(rule: &RuleInfo, id: &str) -> bool {
    let comment = rule.comment.as_deref().unwrap_or_default();
    let Some((_, named)) = comment.split_once(", id: ") else { return false };
    if comment.len() < COMMENT_MAX { named == id } else { id.starts_with(named) }
}

/// The container's address in a rule: the target of a port, or the source that is masqueraded.
fn container_address(rule: &RuleInfo) -> Option<IpAddr> {
    let one = |field: &Field, to: &Operand| match (field, to) {
        (Field::IpSaddr | Field::IpDaddr | Field::Ip6Saddr | Field::Ip6Daddr, Operand::Value(value)) => {
            as_address(value)
        }
        _ => None,
    };
    let wanted = match (rule.table.name.as_str(), rule.chain.as_str()) {
        (MASQUERADE_TABLE, _) => [Field::IpSaddr, Field::Ip6Saddr],
        (_, "masquerading") => [Field::IpDaddr, Field::Ip6Daddr],
        _ => [Field::NfProto; 2],
    };
    rule.stmts.iter().flatten().find_map(|stmt| match stmt {
        Stmt::Dnat { target: DnatTarget::To(address, _), .. } => Some(*address),
        Stmt::Match { fields, cmp: Cmp::Eq, to } => {
            let field = fields.first().filter(|field| wanted.contains(field))?;
            one(field, to)
        }
        _ => None,
    })
}

/// Why rules cannot be translated into a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("the conditions of table {0} hold for all containers")]
    SharedConditions(TableId),
    #[error("a rule of chain {table} {chain} cannot be read")]
    Rule { table: TableId, chain: &'static str },
}

/// The rules of one kind that the reference plugin made for one address of a container.
#[derive(Debug, Clone)]
pub(crate) struct ReferenceRules {
    pub(crate) comment: String,
    pub(crate) address: IpAddr,
    pub(crate) content: Result<Content, Unreadable>,
    /// True for masquerade, false for published ports.
    pub(crate) masquerade: bool,
}

impl ReferenceRules {
    /// True if the rules may belong to this attachment. The comment of a published port contains only the container's
    /// ID.
    pub(crate) fn may_be_of(&self, attachment: &Attachment) -> bool {
        if !self.masquerade {
            return is_container(&self.comment, attachment.container_id());
        }
        is_masquerade_of(&self.comment, attachment)
    }

    /// The attachment that a masquerade rule's comment names, unless the comment is cut.
    pub(crate) fn named(&self) -> Option<Attachment> {
        let (_, rest) = self.comment.split_once(", net: ")?;
        let (network, rest) = rest.split_once(", if: ")?;
        let (ifname, id) = rest.split_once(", id: ")?;
        let attachment = Attachment::new(network, id, ifname).ok()?;
        self.may_be_of(&attachment).then_some(attachment)
    }
}

/// Which of a container's rules are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The rules that translate destinations.
    Translation,
    All,
}

impl Reference {
    /// Reads all rules. The rules for a container's ports on one address form one item.
    pub(crate) fn survey(&self) -> Result<Vec<ReferenceRules>, Error> {
        let mut all_rules: Vec<ReferenceRules> = Vec::new();
        for (family, table) in &self.ports {
            let has_conditions = self.has_conditions(table)?;
            let masquerading = self.rules(table, PORT_CHAINS[2])?;
            for chain in [PORT_CHAINS[0], PORT_CHAINS[1]] {
                for rule in self.rules(table, chain)? {
                    let (Some(comment), Some(address)) = (&rule.comment, container_address(&rule)) else {
                        continue;
                    };
                    let port = port_of(&rule, *family).filter(|_| !has_conditions);
                    let at = all_rules
                        .iter_mut()
                        .find(|one| !one.masquerade && one.comment == *comment && one.address == address);
                    let why = || match has_conditions {
                        true => Unreadable::SharedConditions(table.clone()),
                        false => Unreadable::Rule { table: table.clone(), chain },
                    };
                    match (at, port) {
                        (Some(ReferenceRules { content: Ok(Content::Ports(all)), .. }), Some(port)) => {
                            all.mapped.push((port.host.protocol, port.host.first));
                            all.ports.push(port);
                        }
                        (Some(rules), None) => rules.content = Err(why()),
                        (Some(_), Some(_)) => {}
                        (None, port) => {
                            let content = port.map(|port| {
                                Content::Ports(PortContent {
                                    ports: vec![port],
                                    mapped: vec![(port.host.protocol, port.host.first)],
                                    networks: vec![address.into()],
                                    snat: snat(&masquerading, comment, address),
                                    bit: crate::nftables::schema::DEFAULT_MARK_BIT,
                                    ..PortContent::default()
                                })
                            });
                            let (comment, content) = (comment.clone(), content.ok_or_else(why));
                            all_rules.push(ReferenceRules { comment, address, content, masquerade: false });
                        }
                    }
                }
            }
        }
        self.survey_rest(&mut all_rules)?;
        if let Some(table) = &self.masquerade {
            for rule in self.rules(table, MASQUERADE_CHAIN)? {
                let (Some(comment), Some(address)) = (rule.comment.clone(), container_address(&rule)) else {
                    continue;
                };
                let content = network_of(&rule, address).map(|net| {
                    Content::Masquerade(MasqueradeContent { addresses: vec![net], exempt: Vec::new() })
                });
                let content =
                    content.ok_or_else(|| Unreadable::Rule { table: table.clone(), chain: MASQUERADE_CHAIN });
                all_rules.push(ReferenceRules { comment, address, content, masquerade: true });
            }
        }
        Ok(all_rules)
    }

    /// Adds rules for packets to ports whose translation rules have already been removed.
    fn survey_rest(&self, all_rules: &mut Vec<ReferenceRules>) -> Result<(), Error> {
        for (_, table) in &self.ports {
            for rule in self.rules(table, PORT_CHAINS[2])? {
                let (Some(comment), Some(address)) = (rule.comment.clone(), container_address(&rule)) else {
                    continue;
                };
                let same = |one: &ReferenceRules| {
                    !one.masquerade && one.comment == comment && one.address == address
                };
                if !all_rules.iter().any(same) {
                    let content = Ok(Content::Ports(PortContent::default()));
                    all_rules.push(ReferenceRules { comment, address, content, masquerade: false });
                }
            }
        }
        Ok(())
    }

    /// True if a rule that jumps to the ports has any condition other than that the packet is for the node.
    fn has_conditions(&self, table: &TableId) -> Result<bool, Error> {
        let plain = |rule: &RuleInfo| {
            let stmts = rule.stmts.as_deref().unwrap_or_default();
            matches!(stmts, [local, Stmt::Verdict(_)] if *local == Stmt::fib_daddr_local())
        };
        Ok(self.rules(table, "prerouting")?.iter().any(|rule| !plain(rule)))
    }

    /// Removes these rules, and leaves conntrack alone.
    pub(crate) fn take_away(&self, migrated: &[&ReferenceRules], part: Part) -> Result<(), Error> {
        self.remove("remove the reference plugins' rules that were migrated", Kinds::All, |rule| {
            let of_ports = rule.table.name == PORT_TABLE;
            let meant = part == Part::All || (of_ports && rule.chain != PORT_CHAINS[2]);
            meant
                && migrated.iter().any(|rules| {
                    rules.masquerade != of_ports
                        && rule.comment.as_deref() == Some(rules.comment.as_str())
                        && container_address(rule) == Some(rules.address)
                })
        })
    }

    /// Removes the tables that contain no rules of containers. Returns their names.
    pub(crate) fn remove_empty(&self) -> Result<Vec<String>, Error> {
        let operation = "remove the reference plugins' empty tables";
        transact(&self.socket, operation, |_| {
            let (mut batch, mut names) = (Transaction::new(), Vec::new());
            let ports = self.ports.iter().map(|(_, table)| (table, PORT_CHAINS.to_vec()));
            for (table, chains) in
                ports.chain(self.masquerade.iter().map(|table| (table, vec![MASQUERADE_CHAIN])))
            {
                let there = self.socket.table(table).map_err(|e| Error::kernel(operation, e))?.is_some();
                let mut used = false;
                for chain in chains {
                    used |= !self.rules(table, chain)?.is_empty();
                }
                if there && !used {
                    batch.delete_table(table);
                    names.push(table.to_string());
                }
            }
            Ok((batch, names))
        })
    }
}

/// The mapping that a rule makes.
fn port_of(rule: &RuleInfo, family: AddressFamily) -> Option<PublishedPort> {
    let (mut address, mut protocol, mut port, mut to) = (HostAddress::Any(family), None, None, None);
    for stmt in rule.stmts.as_deref()? {
        match stmt {
            Stmt::Match { fields, cmp: Cmp::Eq, to: Operand::Value(value) } => {
                match (fields.as_slice(), value) {
                    ([Field::IpDaddr | Field::Ip6Daddr], value) => {
                        address = HostAddress::One(as_address(value)?);
                    }
                    ([Field::L4Proto], Value::Proto(number)) => protocol = Protocol::from_number(*number),
                    ([Field::ThDport], Value::Port(number)) => port = Some(*number),
                    ([Field::NfProto], _) => {}
                    _ => return None,
                }
            }
            Stmt::Dnat { target: DnatTarget::To(address, Some(port)), .. } => to = Some((*address, *port)),
            Stmt::Counter => {}
            _ => return None,
        }
    }
    let (first, (container, container_port)) = (port?, to?);
    let host = HostPorts { protocol: protocol?, address, first, last: first };
    Some(PublishedPort { host, container, container_port })
}

/// Which sources are masqueraded on the way to a container, according to the rules that name it.
fn snat(masquerading: &[RuleInfo], comment: &str, address: IpAddr) -> Snat {
    let of_it = masquerading
        .iter()
        .filter(|rule| rule.comment.as_deref() == Some(comment) && container_address(rule) == Some(address));
    let mut found = Snat::Never;
    for rule in of_it {
        let from_some = rule.stmts.iter().flatten().any(|stmt| match stmt {
            Stmt::Match { fields, to, .. } => {
                matches!(fields.as_slice(), [Field::IpSaddr | Field::Ip6Saddr])
                    && !matches!(to, Operand::Prefix(_, 0))
            }
            _ => false,
        });
        if !from_some {
            return Snat::Always;
        }
        found = Snat::Needed;
    }
    found
}

/// The masqueraded address, with the prefix of the network to which its packets keep their source.
fn network_of(rule: &RuleInfo, address: IpAddr) -> Option<IpNet> {
    let own = rule.stmts.as_deref()?.iter().find_map(|stmt| match stmt {
        Stmt::Match { fields, cmp: Cmp::Ne, to }
            if matches!(fields.as_slice(), [Field::IpDaddr | Field::Ip6Daddr]) =>
        {
            match to {
                Operand::Prefix(_, bits) => Some(*bits),
                Operand::Value(_) => Some(IpNet::from(address).max_prefix_len()),
                _ => None,
            }
        }
        _ => None,
    });
    IpNet::new(address, own?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(table: TableId, comment: &str) -> RuleInfo {
        let comment = Some(comment.to_owned());
        RuleInfo {
            table,
            chain: String::new(),
            handle: 1,
            comment,
            target: None,
            map: None,
            stmts: None,
            packets: None,
        }
    }

    #[test]
    fn the_references_comments_are_understood() {
        // The comment as version 1.9.1 of the reference plugin wrote it.
        let comment =
            "c5964c6794a1152e-9b4b084fd5e54b3c, net: testnet, if: eth0, id: cnitool-20b4ff582526573bbe7d";
        let masquerade = rule(TableId::new(Family::Inet, MASQUERADE_TABLE), comment);
        let of = |ifname, id| Attachment::new("testnet", id, ifname).unwrap();
        let id = "cnitool-20b4ff582526573bbe7d";
        assert!(is_of(&masquerade, &of("eth0", id)));
        assert!(!is_of(&masquerade, &of("eth1", id)) && !is_of(&masquerade, &of("eth0", "other")));
        assert!(is_of_network(&masquerade, "testnet") && !is_of_network(&masquerade, "test"));
        assert!(names_container(&masquerade, id) && !names_container(&masquerade, "cnitool"));
        let port = rule(TableId::new(Family::Ip, PORT_TABLE), id);
        assert!(is_of(&port, &of("eth1", id)) && !is_of(&port, &of("eth0", "cnitool")));
    }
}
