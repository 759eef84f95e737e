// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the requests to move, and their owners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni_spec::Attachment;
use ipnet::IpNet;

use super::transfer::{OldObjects, Transfer, request_to};
use super::{KnownAttachment, Mover, Place, Row, State, table_reader};
use crate::ebpf::migrate::Programs;
use crate::iptables::chain_reader::{self, Content};
use crate::nftables::migration::Key;
use crate::nftables::owner_entry::{self, OwnerRecord};
use crate::nftables::schema::KIND_PORTS;
use crate::owner::AttachmentHash;
use crate::reference::{self, Reference, ReferenceRules};
use crate::{BackendName, ContainerNetns, Error, Request};

/// The requests that were found, and rows about objects that cannot be moved.
#[derive(Default)]
struct Findings {
    transfers: Vec<Transfer>,
    rows: Vec<Row>,
}

/// Objects that were read from one place.
struct Finding {
    place: Place,
    /// Describes the objects for people.
    item: String,
    owner: Result<KnownAttachment, OwnerError>,
    content: Result<Content, ContentError>,
    objects: OldObjects,
}

/// Why the owner of objects is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum OwnerError {
    #[error(
        "its names are cut in the table, and neither the runtime's cache nor a reservation has the full names"
    )]
    Cut,
    #[error("its network or interface is neither in the runtime's cache nor in a reservation")]
    Unknown,
    #[error("it may belong to several interfaces of the container")]
    Ambiguous,
}

/// Why objects do not correspond to any request.
#[derive(Debug, thiserror::Error)]
enum ContentError {
    #[error(transparent)]
    Elements(#[from] table_reader::Unreadable),
    #[error(transparent)]
    Chains(#[from] chain_reader::Unreadable),
    #[error(transparent)]
    Rules(#[from] reference::Unreadable),
}

impl Mover<'_> {
    /// The requests to move, and rows about objects that cannot be moved.
    pub(super) fn survey(&self) -> Result<(Vec<Transfer>, Vec<Row>), Error> {
        let (mut transfers, mut rows) = self.everything()?;
        if self.order.to == BackendName::Ebpf {
            transfers = self.for_programs(transfers, &mut rows)?;
        }
        transfers.retain(|transfer| self.moves_from(transfer.place));
        rows.retain(|row| self.moves_from(row.from));
        Ok((transfers, rows))
    }

    /// The requests that are served in any of the places from which or to which requests are moved.
    pub(super) fn everything(&self) -> Result<(Vec<Transfer>, Vec<Row>), Error> {
        let mut findings = Findings::default();
        let programs = Programs::find()?;
        let to = self.order.to;
        if to != BackendName::Nftables || programs.is_some() {
            self.survey_table(programs.as_ref(), &mut findings)?;
        }
        if to == BackendName::Ebpf || self.moves_from(Place::Iptables) {
            self.survey_chains(&mut findings)?;
        }
        if (to == BackendName::Ebpf || self.moves_from(Place::Reference))
            && let Some(reference) = Reference::find()?
        {
            self.survey_rules(reference.survey()?, &mut findings);
        }
        Ok((findings.transfers, findings.rows))
    }

    /// The transfer of a finding. If its owner or its content is unknown, returns none and adds a row with the
    /// reason.
    fn resolve(&self, finding: Finding, rows: &mut Vec<Row>) -> Option<Transfer> {
        let Finding { place, item, owner, content, objects } = finding;
        let (owner, reason) = match (owner, content) {
            (Ok(owner), Ok(content)) => {
                let content = with_prefixes(content, &owner.addresses);
                let netns = self.netns(&owner.attachment, owner.netns);
                let request = request_to(self.order.to, &owner.attachment, netns, content);
                return Some(Transfer { request, old: objects, place });
            }
            (Err(error), Ok(_)) => (None, error.to_string()),
            (owner, Err(error)) => (owner.ok().map(|owner| owner.attachment), error.to_string()),
        };
        rows.push(Row { owner, item, from: place, state: State::LeftAlone, reason, ports: None });
        None
    }

    /// The place that serves a request from our table: the table itself or the programs.
    fn place(programs: Option<&Programs>, request: &Request) -> Result<Place, Error> {
        let serve = programs.map_or(Ok(false), |programs| programs.serve(request))?;
        Ok(if serve { Place::Ebpf } else { Place::Nftables })
    }

    fn survey_table(&self, programs: Option<&Programs>, findings: &mut Findings) -> Result<(), Error> {
        for (key, elements) in table_reader::all(&self.session)? {
            let owner = &elements.owner;
            if !self.moves_network(&owner.network) {
                continue;
            }
            let named = Attachment::new(&owner.network, &owner.container_id, &owner.ifname).ok();
            let known = self.order.known.iter().map(|known| known.attachment.clone());
            let mut candidates = named.iter().cloned().chain(known);
            let attachment = candidates.find(|attachment| AttachmentHash::of(attachment) == key.hash);
            let place = match (attachment.as_ref().or(named.as_ref()), &elements.content) {
                (Some(name), Ok(content)) => {
                    let netns = elements.netns.clone();
                    Self::place(programs, &request_to(self.order.to, name, netns, content.clone()))?
                }
                _ => Place::Nftables,
            };
            let kind = if key.kind == KIND_PORTS { "published ports" } else { "masquerade" };
            let netns = Some(elements.netns);
            let finding = Finding {
                place,
                item: format!("{kind} of {owner}"),
                owner: attachment
                    .map(|attachment| KnownAttachment { attachment, addresses: Vec::new(), netns })
                    .ok_or(OwnerError::Cut),
                content: elements.content.map_err(ContentError::from),
                objects: OldObjects::Elements,
            };
            findings.transfers.extend(self.resolve(finding, &mut findings.rows));
        }
        Ok(())
    }

    /// The recorded namespace, or else the one in the runtime's cache.
    fn netns(&self, attachment: &Attachment, recorded: Option<ContainerNetns>) -> ContainerNetns {
        let cached = || self.order.known.iter().find(|known| known.attachment == *attachment)?.netns.clone();
        let recorded = recorded.filter(|netns| *netns != ContainerNetns::unknown());
        recorded.or_else(cached).unwrap_or_else(ContainerNetns::unknown)
    }

    fn survey_chains(&self, findings: &mut Findings) -> Result<(), Error> {
        let recorded = owner_entry::list(&self.session, |_| true)?;
        for chains in chain_reader::all()? {
            let owner = &chains.owner;
            if !self.moves_network(&owner.network) {
                continue;
            }
            let names: Vec<&str> = chains.chains.iter().map(String::as_str).collect();
            let (names, network, id) = (names.join(" "), &owner.network, &owner.container_id);
            let of_records = recorded.iter().filter(|record| owner.may_be(&record.owner));
            let candidates: Vec<KnownAttachment> = of_records
                .filter_map(KnownAttachment::of_record)
                .chain(self.order.known.iter().cloned())
                .filter(|known| owner.is(&known.attachment))
                .collect();
            let finding = Finding {
                place: Place::Iptables,
                item: format!("chains {names} of network {network}, container {id}"),
                owner: match &chains.content {
                    Ok(content) => choose(&candidates, &addresses(content)).cloned(),
                    Err(_) => candidates.first().cloned().ok_or(OwnerError::Unknown),
                },
                content: chains.content.clone().map_err(ContentError::from),
                objects: OldObjects::Chains(Box::new(chains)),
            };
            findings.transfers.extend(self.resolve(finding, &mut findings.rows));
        }
        Ok(())
    }

    fn survey_rules(&self, all: Vec<ReferenceRules>, findings: &mut Findings) {
        let named: Vec<KnownAttachment> = all.iter().filter_map(KnownAttachment::of_masquerade).collect();
        let mut transfers: BTreeMap<Key, Transfer> = BTreeMap::new();
        for rules in all {
            let known = named.iter().chain(&self.order.known);
            let candidates: Vec<KnownAttachment> =
                known.filter(|known| rules.may_be_of(&known.attachment)).cloned().collect();
            let owner = choose(&candidates, &[rules.address]).cloned();
            let is_meant = match &owner {
                Ok(owner) => self.moves_network(owner.attachment.network()),
                Err(_) => self.order.networks.is_empty(),
            };
            if !is_meant {
                continue;
            }
            let finding = Finding {
                place: Place::Reference,
                item: format!(
                    "rules of the reference about {} of container {}",
                    rules.address, rules.comment
                ),
                owner,
                content: rules.content.clone().map_err(ContentError::from),
                objects: OldObjects::Rules(vec![rules]),
            };
            let Some(transfer) = self.resolve(finding, &mut findings.rows) else { continue };
            match transfers.get_mut(&transfer.key()) {
                Some(before) => before.join(transfer),
                None => drop(transfers.insert(transfer.key(), transfer)),
            }
        }
        findings.transfers.extend(transfers.into_values());
    }
}

impl KnownAttachment {
    /// The owner in a record, unless its names are cut.
    fn of_record(record: &OwnerRecord) -> Option<Self> {
        let owner = &record.owner;
        let attachment = Attachment::new(&owner.network, &owner.container_id, &owner.ifname).ok()?;
        let is_whole = AttachmentHash::of(&attachment) == owner.attachment_hash;
        is_whole.then(|| Self { attachment, addresses: Vec::new(), netns: record.netns.clone() })
    }

    /// The attachment that the comment of a masquerade names.
    fn of_masquerade(rules: &ReferenceRules) -> Option<Self> {
        let Ok(Content::Masquerade(found)) = &rules.content else { return None };
        let addresses = vec![found.addresses.first().copied()?];
        Some(Self { attachment: rules.named()?, addresses, netns: None })
    }
}

fn addresses(content: &Content) -> Vec<IpAddr> {
    match content {
        Content::Masquerade(found) => found.addresses.iter().map(IpNet::addr).collect(),
        Content::Ports(ports) => ports.ports.iter().map(|port| port.container).collect(),
    }
}

/// The only candidate that has one of the addresses, or else the only one whose addresses are unknown.
fn choose<'a>(all: &'a [KnownAttachment], addresses: &[IpAddr]) -> Result<&'a KnownAttachment, OwnerError> {
    let has =
        |one: &KnownAttachment| addresses.iter().any(|a| one.addresses.iter().any(|net| net.addr() == *a));
    let attachments = |some: &[&KnownAttachment]| {
        some.iter().map(|one| one.attachment.clone()).collect::<BTreeSet<_>>().len()
    };
    let with: Vec<&KnownAttachment> = all.iter().filter(|one| has(one)).collect();
    // Candidates with the prefixes of their networks are preferred.
    let best = |some: &[&'a KnownAttachment]| {
        some.iter()
            .copied()
            .max_by_key(|one| one.addresses.iter().any(|n| n.prefix_len() < n.max_prefix_len()))
    };
    if let (1, Some(one)) = (attachments(&with), best(&with)) {
        return Ok(one);
    }
    let without: Vec<&KnownAttachment> = all.iter().filter(|one| one.addresses.is_empty()).collect();
    match (attachments(&with), attachments(&without), best(&without)) {
        (0, 1, Some(one)) => Ok(one),
        (0, 0, _) => Err(OwnerError::Unknown),
        _ => Err(OwnerError::Ambiguous),
    }
}

/// Replaces networks that are single addresses by the known networks with the same address.
fn with_prefixes(content: Content, known: &[IpNet]) -> Content {
    let better = |net: IpNet| {
        let is_single = net.prefix_len() == net.max_prefix_len();
        let other = known.iter().find(|other| other.addr() == net.addr());
        other.copied().filter(|_| is_single).unwrap_or(net)
    };
    match content {
        Content::Ports(mut ports) => {
            ports.networks = ports.networks.into_iter().map(better).collect();
            Content::Ports(ports)
        }
        other => other,
    }
}
