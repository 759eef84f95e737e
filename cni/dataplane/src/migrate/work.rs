// SPDX-License-Identifier: GPL-2.0-or-later

//! One thing to move: the published ports or the masquerade of one attachment.

use std::fmt;

use cni_spec::Attachment;

use super::{Place, Row, State};
use crate::iptables::read_back::{Found, Masquerade, Ports, What};
use crate::nftables::migration::Key;
use crate::nftables::owner_entry::{KIND_IPTABLES_MASQUERADE, KIND_IPTABLES_PORTS};
use crate::nftables::schema::{KIND_MASQUERADE, KIND_PORTS};
use crate::owner::AttachmentHash;
use crate::reference::Piece;
use crate::{
    AddressFamily, BackendName, Conditions, ContainerNetns, EntryPort, IptablesOptions, MasqueradeRequest,
    NftablesOptions, PortRequest,
};

/// A thing of an attachment, as a request for another backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Ports(PortRequest),
    Masquerade(MasqueradeRequest),
}

/// The old place of a thing.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Table,
    Chains(Found),
    Rules(Vec<Piece>),
}

#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) attachment: Attachment,
    pub(super) wanted: Wanted,
    pub(super) source: Source,
    /// The place before the move.
    pub(super) place: Place,
}

impl Wanted {
    /// The request to a backend, with the conditions in its grammar.
    pub(super) fn new(to: BackendName, attachment: &Attachment, netns: ContainerNetns, what: What) -> Self {
        let attachment = attachment.clone();
        let all = match what {
            What::Masquerade(Masquerade { addresses, exempt }) => {
                return Self::Masquerade(MasqueradeRequest { attachment, netns, addresses, exempt });
            }
            What::Ports(all) => all,
        };
        let of = |family| all.conditions.get(&family).cloned().unwrap_or_default();
        let conditions = Conditions { v4: of(AddressFamily::V4), v6: of(AddressFamily::V6) };
        let (mut nftables, mut iptables) = (NftablesOptions::default(), IptablesOptions::default());
        match to {
            BackendName::Iptables => iptables.conditions = conditions,
            BackendName::Nftables | BackendName::Ebpf => nftables.conditions = conditions,
        }
        let entry = |(protocol, port)| EntryPort { protocol, port };
        iptables.entry_ports = all.mapped.into_iter().map(entry).collect();
        Self::Ports(PortRequest {
            attachment,
            netns,
            ports: all.ports,
            networks: all.networks,
            snat: all.snat,
            loopback: all.loopback,
            mark_bit: all.bit,
            nftables,
            iptables,
        })
    }

    /// The kind of its owner's entry in our table.
    pub(super) fn kind(&self) -> u32 {
        match self {
            Self::Ports(_) => KIND_PORTS,
            Self::Masquerade(_) => KIND_MASQUERADE,
        }
    }

    pub(super) fn netns(&self) -> &ContainerNetns {
        match self {
            Self::Ports(request) => &request.netns,
            Self::Masquerade(request) => &request.netns,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, all): (_, Vec<String>) = match self {
            Self::Ports(request) => {
                ("published ports", request.ports.iter().map(ToString::to_string).collect())
            }
            Self::Masquerade(request) => {
                ("masquerade of", request.addresses.iter().map(|net| net.addr().to_string()).collect())
            }
        };
        let shown: Vec<&str> = all.iter().take(4).map(String::as_str).collect();
        write!(f, "{what} {}", shown.join(", "))?;
        if all.len() > 4 { write!(f, " and {} more", all.len() - 4) } else { Ok(()) }
    }
}

impl From<&Wanted> for What {
    fn from(wanted: &Wanted) -> Self {
        match wanted {
            Wanted::Masquerade(request) => {
                let (addresses, exempt) = (request.addresses.clone(), request.exempt.clone());
                Self::Masquerade(Masquerade { addresses, exempt })
            }
            Wanted::Ports(request) => Self::Ports(Ports { ports: request.ports.clone(), ..Ports::default() }),
        }
    }
}

impl Work {
    /// Its owner's entry in our table.
    pub(super) fn key(&self) -> Key {
        Key { hash: AttachmentHash::of(&self.attachment), kind: self.wanted.kind() }
    }

    /// The entry of the iptables backend for it.
    pub(super) fn record(&self) -> Key {
        Key { kind: record_kind(self.wanted.kind()), ..self.key() }
    }

    /// True for rules without ports.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.wanted, Wanted::Ports(request) if request.ports.is_empty())
    }

    pub(super) fn is_in_table(&self) -> bool {
        matches!(self.source, Source::Table)
    }

    /// True if both are the same thing in the same place.
    pub(super) fn same(&self, other: &Self) -> bool {
        let source = |work: &Self| std::mem::discriminant(&work.source);
        self.key() == other.key() && source(self) == source(other) && self.wanted == other.wanted
    }

    pub(super) fn row(&self, state: State, why: impl Into<String>) -> Row {
        let ports = match &self.wanted {
            Wanted::Ports(request) => Some(request.clone()),
            Wanted::Masquerade(_) => None,
        };
        let (what, from) = (self.wanted.to_string(), self.place);
        Row { owner: Some(self.attachment.clone()), what, from, state, why: why.into(), ports }
    }

    /// Adds rules of the same kind of the same attachment.
    pub(super) fn join(&mut self, other: Self) {
        match (&mut self.wanted, other.wanted) {
            (Wanted::Ports(all), Wanted::Ports(more)) => {
                all.ports.extend(more.ports);
                all.networks.extend(more.networks);
                for entry in more.iptables.entry_ports {
                    if !all.iptables.entry_ports.contains(&entry) {
                        all.iptables.entry_ports.push(entry);
                    }
                }
            }
            (Wanted::Masquerade(all), Wanted::Masquerade(more)) => all.addresses.extend(more.addresses),
            _ => {}
        }
        if let (Source::Rules(all), Source::Rules(more)) = (&mut self.source, other.source) {
            all.extend(more);
        }
    }
}

/// The kind of the iptables backend's entry for this kind of our table's.
pub(super) fn record_kind(kind: u32) -> u32 {
    if kind == KIND_PORTS { KIND_IPTABLES_PORTS } else { KIND_IPTABLES_MASQUERADE }
}
