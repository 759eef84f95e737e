//! What the nftables backend of the reference plugins leaves on a node: tables of its own, whose rules
//! say in their comments whose they are. They are found, checked and removed; nothing here makes them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_nftables::{Cmp, DnatTarget, Family, Field, Operand, RuleInfo, Socket, Stmt, TableId, Transaction};
use cni_spec::Attachment;
use sha2::{Digest, Sha512};

use crate::nftables::plan::as_address;
use crate::nftables::session::Patience;
use crate::owner::{COMMENT_MAX, hex};
use crate::{AddressFamily, Error, Kinds, PortRequest};

/// The tables of published ports, by family; a rule's comment is the container's ID.
const PORT_TABLES: [(AddressFamily, Family); 2] =
    [(AddressFamily::V4, Family::Ip), (AddressFamily::V6, Family::Ip6)];
pub(crate) const PORT_TABLE: &str = "cni_hostport";
/// The chain of the mappings.
const HOSTPORTS: &str = "hostports";
/// The chains of that table that hold containers' rules. The second one is of earlier versions.
const PORT_CHAINS: [&str; 3] = [HOSTPORTS, "hostip_hostports", "masquerading"];
/// The table of the masquerade; a rule's comment begins with a hash and goes on with the names.
pub(crate) const MASQUERADE_TABLE: &str = "cni_plugins_masquerade";
const MASQUERADE_CHAIN: &str = "masq_checks";
/// Digits of each half of a masquerade rule's hash.
const HASH_DIGITS: usize = 16;

/// The reference's tables in this network namespace.
#[derive(Debug)]
pub(crate) struct Reference {
    socket: Socket,
    ports: Vec<(AddressFamily, TableId)>,
    masquerade: Option<TableId>,
}

/// A rule of a container, with the place that it is in.
type Place<'a> = (&'a TableId, &'static str);

impl Reference {
    /// Looks whether there is any of the tables: three questions by name.
    pub(crate) fn find() -> Result<Option<Self>, Error> {
        let socket = match Socket::open() {
            Ok(socket) => socket,
            Err(error) if error.unsupported().is_some() => return Ok(None),
            Err(error) => return Err(Error::kernel("reach nf_tables", error)),
        };
        let there = |table: &TableId| match socket.table(table) {
            Ok(found) => Ok(found.is_some()),
            // A kernel without nf_tables, as the socket is to netfilter as a whole.
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

    fn rules(&self, (table, chain): Place<'_>) -> Result<Vec<RuleInfo>, Error> {
        self.socket
            .rules(table, chain)
            .map_err(|e| Error::kernel(format!("list the rules of chain {table} {chain}"), e))
    }

    fn places(&self, kinds: Kinds) -> Vec<Place<'_>> {
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

    /// Removes the attachment's rules.
    pub(crate) fn withdraw(&self, attachment: &Attachment, kinds: Kinds) -> Result<(), Error> {
        let operation = format!("remove the reference plugins' rules of {attachment}");
        self.remove(&operation, kinds, |rule| is_of(rule, attachment))
    }

    /// Removes the rules of attachments of a network that are not valid, as far as the rules tell:
    /// those of published ports name no network, so that they go where a masquerade rule of the same
    /// container and the same address names it. They go with that rule, whichever kind is meant: without
    /// it nobody could tell any more whose they are.
    pub(crate) fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        let Some(table) = &self.masquerade else { return Ok(()) };
        let rules = self.rules((table, MASQUERADE_CHAIN))?;
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
        let mut patience = Patience::new();
        loop {
            let generation = self.socket.generation().map_err(|e| Error::kernel(operation, e))?;
            let mut batch = Transaction::new();
            for place in self.places(kinds) {
                for rule in self.rules(place)?.iter().filter(|rule| condemned(rule)) {
                    batch.delete_rule(place.0, place.1, rule.handle);
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            match self.socket.commit(&batch, Some(generation)) {
                Ok(()) => return Ok(()),
                Err(e) => patience.wait(operation, e)?,
            }
        }
    }

    /// Whether the attachment has rules here.
    pub(crate) fn holds(&self, attachment: &Attachment, kinds: Kinds) -> Result<bool, Error> {
        for place in self.places(kinds) {
            if self.rules(place)?.iter().any(|rule| is_of(rule, attachment)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// As the reference checks them: whether there are as many rules as mappings.
    pub(crate) fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        for (family, table) in &self.ports {
            let of_family = request.ports.iter().filter(|port| port.host.address.family() == *family);
            let wanted: usize = of_family.map(|port| port.host.len()).sum();
            let rules = self.rules((table, HOSTPORTS))?;
            let found = rules.iter().filter(|rule| is_of(rule, &request.attachment)).count();
            if found < wanted {
                let text = format!(
                    "chain {table} {HOSTPORTS} has {found} rules of container {} instead of {wanted}",
                    request.attachment.container_id()
                );
                return Err(Error::Missing(text));
            }
        }
        Ok(())
    }
}

/// The comment's first half of a hash.
fn short_hash(text: &str) -> String {
    let mut hash = hex(&Sha512::digest(text));
    hash.truncate(HASH_DIGITS);
    hash
}

fn is_of_network(rule: &RuleInfo, network: &str) -> bool {
    let comment = rule.comment.as_deref().unwrap_or_default();
    comment.split_once('-').is_some_and(|(hash, _)| hash == short_hash(network))
}

/// Whether a rule is this attachment's, by the comment's form in its table.
fn is_of(rule: &RuleInfo, attachment: &Attachment) -> bool {
    let Some(comment) = rule.comment.as_deref() else { return false };
    let id = attachment.container_id();
    if rule.table.name != MASQUERADE_TABLE {
        return is_container(comment, id);
    }
    let instance = short_hash(&format!("{}:{id}", attachment.ifname()));
    let hash = format!("{}-{instance}", short_hash(attachment.network()));
    comment.strip_prefix(&hash).is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
}

/// Whether a port rule's comment is that container's ID.
fn is_container(comment: &str, id: &str) -> bool {
    comment == id.get(..COMMENT_MAX).unwrap_or(id)
}

/// Whether a masquerade rule's comment names the container that a port rule's comment is the ID of, each
/// of them as far as it was not cut.
fn names_container(rule: &RuleInfo, id: &str) -> bool {
    let comment = rule.comment.as_deref().unwrap_or_default();
    let Some((_, named)) = comment.split_once(", id: ") else { return false };
    if comment.len() < COMMENT_MAX { named == id } else { id.starts_with(named) }
}

/// The container's address that a rule is about: where a port leads to, who is masqueraded.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(table: TableId, comment: &str) -> RuleInfo {
        let comment = Some(comment.to_owned());
        RuleInfo { table, chain: String::new(), handle: 1, comment, target: None, stmts: None }
    }

    #[test]
    fn the_references_comments_are_understood() {
        // As its version 1.9.1 wrote it.
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
