// SPDX-License-Identifier: GPL-2.0-or-later

//! Compares the table with the one that this version makes, and builds the changes that repair or upgrade it.

use cni_nftables::Transaction;

use super::network_chains;
use super::schema::{self, flowtable, udp_flows};
use super::session::{Session, layout_of};
use crate::Error;

/// `NFT_TABLE_F_DORMANT` (`linux/netfilter/nf_tables.h`): the table's chains are not hooked.
const DORMANT: u32 = 1;

/// The table's state, which decides how a batch has to begin.
#[derive(Debug)]
pub(crate) enum State {
    Ready,
    /// The table is missing: a batch has to begin with the bootstrap.
    Missing,
    /// Chains were flushed, changed or unhooked, or belong to an older schema: a batch has to begin with these
    /// changes.
    Damaged(Transaction),
}

impl Session {
    /// Compares the table with the one that this version makes: whether it exists, has this schema, is hooked and has
    /// its rules.
    pub(crate) fn state(&self) -> Result<State, Error> {
        let Some(table) = self.info()? else { return Ok(State::Missing) };
        match self.schema()? {
            None => return Ok(State::Missing),
            Some(schema::SCHEMA) => {}
            Some(older) => return self.upgrade(older).map(State::Damaged),
        }
        let (damaged, wrong) = self.differences()?;
        let damaged = damaged || table.flags & DORMANT != 0;
        if !damaged && wrong.is_empty() { Ok(State::Ready) } else { self.repair(&wrong).map(State::Damaged) }
    }

    /// Compares the fixed chains. Returns whether one is missing or has lost rules, and the names of chains that are
    /// at another hook or priority.
    fn differences(&self) -> Result<(bool, Vec<String>), Error> {
        let present = self.chains_named(&schema::CHAINS)?;
        let fixed = schema::fixed_chains(layout_of(&present));
        let (mut wrong, mut damaged) = (Vec::new(), false);
        for wanted in &fixed {
            let chain = &wanted.chain;
            let expected = schema::expected_use(&chain.name, &fixed);
            match present.iter().find(|present| present.name == chain.name) {
                None => damaged = true,
                Some(found) if found.base != chain.base => wrong.push(chain.name.clone()),
                // The kernel counts rules and references together. Elements may refer only to chains that are not
                // base chains.
                Some(found) if chain.base.is_some() => damaged |= found.uses != expected,
                Some(found) => damaged |= found.uses < expected,
            }
        }
        Ok((damaged, wrong))
    }

    fn repair(&self, wrong: &[String]) -> Result<Transaction, Error> {
        let (shared, layout) = (self.shared_chains()?, self.layout()?);
        let mut batch = Transaction::new();
        for name in wrong {
            batch.flush_chain(&self.table, name).delete_chain(&self.table, name);
        }
        // Another process may have deleted the flowtable but not the chain.
        if layout.offloading.is_some() && self.flowtable()?.is_none() {
            batch.add_flowtable(flowtable::flowtable(&self.table, &[]));
        }
        batch.append(schema::repair(&shared, layout));
        // While the table was dormant, these rules recorded no flows. The repair does not replace them, so the set
        // would still count as complete if its mark stayed.
        if self.element(&udp_flows::element(0))?.is_some() {
            batch.delete_element(udp_flows::element(0));
        }
        log::warn!("table {}: another program changed chains: repairing them", schema::TABLE);
        Ok(batch)
    }

    /// Builds the upgrade from an older schema, which replaces the marker and all rules, and keeps what attachments
    /// have.
    fn upgrade(&self, found: u32) -> Result<Transaction, Error> {
        let mut batch = schema::upgrade(found);
        // The kernel changes neither hook nor priority of an existing chain.
        let (_, moved) = self.differences()?;
        batch.append(self.repair(&moved)?);
        network_chains::upgrade(self, &mut batch)?;
        Ok(batch)
    }
}
