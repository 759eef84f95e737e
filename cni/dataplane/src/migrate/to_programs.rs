// SPDX-License-Identifier: GPL-2.0-or-later

//! Moves requests to the BPF programs and away from them.
//!
//! The programs serve what is in our table in any case, so only the attachment of the programs to a container's link
//! changes. No flow has to be moved, because conntrack keeps every flow.

use std::collections::BTreeMap;

use cni_kernel::route::Link;

use super::transfer::{OldObjects, Transfer, kind};
use super::{CHANGED, Mover, NOTHING, Place, REMOVED, Row, State, by_attachment};
use crate::ebpf::migrate::{LinkError, LinkFinder, Programs};
use crate::nftables::migration::Key;
use crate::nftables::schema::KIND_PORTS;
use crate::{Error, Request};

/// A container's link with the programs, and the requests that are now served there.
struct ServedLink {
    transfers: Vec<Transfer>,
    link: Link,
}

fn requests(transfers: &[Transfer]) -> Vec<&Request> {
    transfers.iter().map(|transfer| &transfer.request).collect()
}

impl Mover<'_> {
    /// Returns the requests that the programs can serve but do not serve yet, and adds rows about the others. A
    /// container's masquerade moves only together with its ports, because the programs at its link carry the flows of
    /// both.
    pub(super) fn for_programs(
        &self,
        all: Vec<Transfer>,
        rows: &mut Vec<Row>,
    ) -> Result<Vec<Transfer>, Error> {
        let finder = LinkFinder::default();
        let mut eligible = Vec::new();
        for transfers in by_attachment(without_copies(all)).into_values() {
            let Some(attachment) = transfers.first().map(|transfer| transfer.attachment().clone()) else {
                continue;
            };
            let (selected, others): (Vec<Transfer>, Vec<Transfer>) = transfers
                .iter()
                .filter(|transfer| transfer.place != Place::Ebpf)
                .cloned()
                .partition(|transfer| self.moves_from(transfer.place));
            if selected.is_empty() {
                continue;
            }
            let behind = rows.iter().find(|row| row.owner.as_ref() == Some(&attachment));
            let other_ports = others.iter().find(|transfer| kind(&transfer.request) == KIND_PORTS);
            let why = match (behind, other_ports) {
                (Some(row), _) => Some(format!("{} stays in {}", row.item, row.from.as_str())),
                (None, Some(transfer)) => {
                    let place = transfer.place.as_str();
                    Some(format!("its published ports are in {place}, which --from does not name"))
                }
                (None, None) => match finder.link(&requests(&transfers)) {
                    Ok(_) => None,
                    Err(LinkError::Dataplane(error)) => return Err(error),
                    Err(error) => Some(error.to_string()),
                },
            };
            if let Some(why) = why {
                rows.extend(selected.iter().map(|transfer| transfer.row(State::LeftAlone, why.as_str())));
                continue;
            }
            let (empty, full): (Vec<Transfer>, Vec<Transfer>) =
                selected.into_iter().partition(Transfer::is_empty);
            rows.extend(empty.iter().map(|transfer| transfer.row(State::LeftAlone, NOTHING)));
            eligible.extend(full);
        }
        Ok(eligible)
    }

    /// Lets the programs serve a group of requests. Requests in other places are moved into our table first.
    pub(super) fn to_programs(&self, programs: &Programs, group: Vec<Transfer>) -> Result<Vec<Row>, Error> {
        let (mut here, others): (Vec<Transfer>, Vec<Transfer>) =
            group.into_iter().partition(Transfer::is_in_table);
        let mut rows = Vec::new();
        if !others.is_empty() {
            let (moved, left) = self.to_table(others)?;
            let stays = |transfer: &Transfer| {
                left.iter().any(|row| row.owner.as_ref() == Some(transfer.attachment()))
            };
            here.extend(self.as_in_table(moved)?);
            let (behind, on): (Vec<Transfer>, Vec<Transfer>) = here.into_iter().partition(stays);
            let why = "it is in nftables: something else of the container could not be moved";
            rows.extend(behind.iter().map(|transfer| transfer.row(State::LeftAlone, why)));
            rows.extend(left);
            here = on;
        }
        let mut attached = Vec::new();
        for transfers in by_attachment(here).into_values() {
            match self.attach(programs, transfers) {
                Ok(one) => attached.push(one),
                Err(whys) => rows.extend(whys),
            }
        }
        if attached.is_empty() {
            return Ok(rows);
        }
        let (now, _) = self.everything()?;
        for one in attached {
            let is_there = |transfer: &Transfer| now.iter().any(|other| other.same(transfer));
            let (state, why) = if one.transfers.iter().all(is_there) {
                (State::Moved, String::new())
            } else {
                match programs.detach(&one.link) {
                    Ok(()) => (State::LeftAlone, CHANGED.to_owned()),
                    Err(error) => (State::Failed, error.to_string()),
                }
            };
            rows.extend(one.transfers.iter().map(|transfer| transfer.row(state, why.as_str())));
        }
        Ok(rows)
    }

    /// Attaches the programs to a container's link. If that is not possible, returns rows with the reason.
    fn attach(&self, programs: &Programs, transfers: Vec<Transfer>) -> Result<ServedLink, Vec<Row>> {
        let all = |state: State, why: String| -> Vec<Row> {
            transfers.iter().map(|transfer| transfer.row(state, why.as_str())).collect()
        };
        let failed = |error: Error| all(State::Failed, error.to_string());
        let link = match programs.link(&requests(&transfers)) {
            Ok(link) => link,
            Err(LinkError::Dataplane(error)) => return Err(failed(error)),
            Err(error) => return Err(all(State::LeftAlone, error.to_string())),
        };
        for transfer in &transfers {
            let Key { hash, kind } = transfer.key();
            match self.session.entry(hash, kind) {
                Ok(Some(_)) => {}
                Ok(None) => return Err(all(State::LeftAlone, REMOVED.to_owned())),
                Err(error) => return Err(failed(error)),
            }
        }
        programs.attach(&link).map_err(failed)?;
        Ok(ServedLink { transfers, link })
    }

    /// The requests that were just moved into our table, as read from the table.
    fn as_in_table(&self, moved: Vec<Transfer>) -> Result<Vec<Transfer>, Error> {
        let (now, _) = self.everything()?;
        let here: BTreeMap<Key, Request> = now
            .into_iter()
            .filter(Transfer::is_in_table)
            .map(|transfer| (transfer.key(), transfer.request))
            .collect();
        let as_there = |transfer: Transfer| {
            let request = here.get(&transfer.key())?.clone();
            Some(Transfer { request, old: OldObjects::Elements, ..transfer })
        };
        Ok(moved.into_iter().filter_map(as_there).collect())
    }

    /// Lets netfilter alone serve a group of requests again. Returns the requests that the programs no longer serve,
    /// and adds rows about the others.
    pub(super) fn leave_programs(
        programs: &Programs,
        transfers: Vec<Transfer>,
        rows: &mut Vec<Row>,
    ) -> Vec<Transfer> {
        match programs.withdraw(&requests(&transfers)) {
            Ok(()) => transfers,
            Err(error) => {
                rows.extend(transfers.iter().map(|transfer| transfer.row(State::Failed, error.to_string())));
                Vec::new()
            }
        }
    }
}

/// Leaves out the copies of requests that are being moved into our table, because these are moved from their old
/// place.
fn without_copies(transfers: Vec<Transfer>) -> Vec<Transfer> {
    let originals: Vec<Key> =
        transfers.iter().filter(|transfer| !transfer.is_in_table()).map(Transfer::key).collect();
    transfers
        .into_iter()
        .filter(|transfer| !transfer.is_in_table() || !originals.contains(&transfer.key()))
        .collect()
}
