// SPDX-License-Identifier: GPL-2.0-or-later

//! A request to move: the published ports or the masquerade of an attachment.

use cni_spec::Attachment;

use super::{Place, Row, State};
use crate::iptables::chain_reader::{ContainerChains, Content, MasqueradeContent, PortContent};
use crate::nftables::migration::Key;
use crate::nftables::owner_entry::{KIND_IPTABLES_MASQUERADE, KIND_IPTABLES_PORTS};
use crate::nftables::schema::{KIND_MASQUERADE, KIND_PORTS};
use crate::owner::AttachmentHash;
use crate::reference::ReferenceRules;
use crate::{
    AddressFamily, BackendName, Conditions, ContainerNetns, EntryPort, IptablesOptions, MasqueradeRequest,
    NftablesOptions, PortRequest, Request,
};

/// The objects that serve a request before the move, and that the move will remove.
#[derive(Debug, Clone)]
pub(super) enum OldObjects {
    /// Elements of our table, which are found by the owner's entry.
    Elements,
    Chains(Box<ContainerChains>),
    Rules(Vec<ReferenceRules>),
}

#[derive(Debug, Clone)]
pub(super) struct Transfer {
    pub(super) request: Request,
    pub(super) old: OldObjects,
    pub(super) place: Place,
}

/// The request for a backend that corresponds to the content of another place, with conditions in that backend's
/// syntax.
pub(super) fn request_to(
    backend: BackendName,
    attachment: &Attachment,
    netns: ContainerNetns,
    content: Content,
) -> Request {
    let attachment = attachment.clone();
    let all = match content {
        Content::Masquerade(MasqueradeContent { addresses, exempt }) => {
            return Request::Masquerade(MasqueradeRequest { attachment, netns, addresses, exempt });
        }
        Content::Ports(all) => all,
    };
    let of = |family| all.conditions.get(&family).cloned().unwrap_or_default();
    let conditions = Conditions { v4: of(AddressFamily::V4), v6: of(AddressFamily::V6) };
    let (mut nftables, mut iptables) = (NftablesOptions::default(), IptablesOptions::default());
    match backend {
        BackendName::Iptables => iptables.conditions = conditions,
        BackendName::Nftables | BackendName::Ebpf => nftables.conditions = conditions,
    }
    let entry = |(protocol, port)| EntryPort { protocol, port };
    iptables.entry_ports = all.mapped.into_iter().map(entry).collect();
    Request::Ports(PortRequest {
        attachment,
        netns,
        ports: all.ports,
        networks: all.networks,
        elsewhere: all.elsewhere,
        snat: all.snat,
        loopback: all.loopback,
        mark_bit: all.bit,
        nftables,
        iptables,
    })
}

/// The kind of the owner's entry in our table.
pub(super) fn kind(request: &Request) -> u32 {
    match request {
        Request::Ports(_) => KIND_PORTS,
        Request::Masquerade(_) => KIND_MASQUERADE,
    }
}

impl From<&Request> for Content {
    fn from(request: &Request) -> Self {
        match request {
            Request::Masquerade(request) => {
                let (addresses, exempt) = (request.addresses.clone(), request.exempt.clone());
                Self::Masquerade(MasqueradeContent { addresses, exempt })
            }
            Request::Ports(request) => {
                Self::Ports(PortContent { ports: request.ports.clone(), ..PortContent::default() })
            }
        }
    }
}

impl Transfer {
    pub(super) fn attachment(&self) -> &Attachment {
        self.request.attachment()
    }

    /// The key of the owner's entry in Slipway's table.
    pub(super) fn key(&self) -> Key {
        Key { hash: AttachmentHash::of(self.attachment()), kind: kind(&self.request) }
    }

    /// The key of the iptables backend's entry for the request.
    pub(super) fn record(&self) -> Key {
        Key { kind: record_kind(kind(&self.request)), ..self.key() }
    }

    /// True for rules without ports.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.request, Request::Ports(request) if request.ports.is_empty())
    }

    pub(super) fn is_in_table(&self) -> bool {
        matches!(self.old, OldObjects::Elements)
    }

    /// True if both are the same request in the same place.
    pub(super) fn same(&self, other: &Self) -> bool {
        let place = |transfer: &Self| std::mem::discriminant(&transfer.old);
        place(self) == place(other) && self.request == other.request
    }

    pub(super) fn row(&self, state: State, reason: impl Into<String>) -> Row {
        let ports = match &self.request {
            Request::Ports(request) => Some(request.clone()),
            Request::Masquerade(_) => None,
        };
        let (item, from) = (self.request.to_string(), self.place);
        Row { owner: Some(self.attachment().clone()), item, from, state, reason: reason.into(), ports }
    }

    /// Adds rules of the same attachment and kind.
    pub(super) fn join(&mut self, other: Self) {
        match (&mut self.request, other.request) {
            (Request::Ports(all), Request::Ports(more)) => {
                all.ports.extend(more.ports);
                all.networks.extend(more.networks);
                all.elsewhere.extend(more.elsewhere);
                for entry in more.iptables.entry_ports {
                    if !all.iptables.entry_ports.contains(&entry) {
                        all.iptables.entry_ports.push(entry);
                    }
                }
            }
            (Request::Masquerade(all), Request::Masquerade(more)) => all.addresses.extend(more.addresses),
            _ => {}
        }
        if let (OldObjects::Rules(all), OldObjects::Rules(more)) = (&mut self.old, other.old) {
            all.extend(more);
        }
    }
}

/// The kind of the entry that the iptables backend writes for what has an entry of `kind` in our table.
pub(super) fn record_kind(kind: u32) -> u32 {
    if kind == KIND_PORTS { KIND_IPTABLES_PORTS } else { KIND_IPTABLES_MASQUERADE }
}
