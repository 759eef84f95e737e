//! Making what containers have in chains of iptables.

use cni_kernel::grace::wait_for_packets;
use cni_spec::Attachment;

use super::{Mover, NOTHING, Row, Source, State, Wanted, Work, record_kind};
use crate::Error;
use crate::iptables::Iptables;
use crate::nftables::migration::{self as transit, Key, Transit};
use crate::nftables::owner_entry as record;

impl Mover<'_> {
    pub(super) fn take_chains_back(&self, owner: &crate::Owner, kind: u32) -> Result<(), Error> {
        if let Ok(attachment) = Attachment::new(&owner.network, &owner.container_id, &owner.ifname) {
            Iptables::unmake(&attachment, kind)?;
        }
        record::remove(&self.session, owner.attachment_hash, &[kind])
    }

    pub(super) fn to_chains(&self, group: Vec<Work>) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        let mut made = Vec::new();
        for work in group {
            match self.make_in_chains(&work) {
                Ok(None) => made.push(work),
                Ok(Some(why)) => rows.push(work.row(State::LeftAlone, why)),
                Err(error) => {
                    self.unmake(&work)?;
                    rows.push(work.row(State::Failed, error.to_string()));
                }
            }
        }
        wait_for_packets();
        let verified = self.verify(made, &mut rows, |works| works.iter().try_for_each(|w| self.unmake(w)))?;
        let (from_table, from_rules): (Vec<Work>, Vec<Work>) =
            verified.into_iter().partition(|work| matches!(work.source, Source::Table));
        let records: Vec<Key> = from_rules.iter().map(Work::record).collect();
        transit::mark(&self.session, &records, (&[Transit::Made], Transit::Verified), &|_| Vec::new())?;
        self.empty_old_places(&from_rules)?;
        transit::mark(&self.session, &records, (&[Transit::Verified], Transit::Settled), &|_| Vec::new())?;
        rows.extend(from_rules.iter().map(|work| work.row(State::Moved, "")));
        // An ADD or DEL of the same attachment has changed the entry, or will find it.
        let on_its_way = |entry: &crate::nftables::session::Held| match (&entry.owner, entry.key.as_slice()) {
            (Some(owner), [_, cni_nftables::Value::Mark(kind)]) => {
                let record = self.session.entry(owner.attachment_hash, record_kind(*kind))?;
                Ok(record.is_some_and(|record| record.transit() != Transit::Settled))
            }
            _ => Ok(false),
        };
        let records: Vec<Key> = from_table.iter().map(Work::record).collect();
        transit::mark(&self.session, &records, (&[Transit::Made], Transit::Verified), &|_| Vec::new())?;
        let keys: Vec<Key> = from_table.iter().map(Work::key).collect();
        let settle = |kind| Some(record_kind(kind));
        transit::take_away(&self.session, &keys, transit::Part::Translation, (&on_its_way, &settle))?;
        wait_for_packets();
        let gone = transit::take_away(&self.session, &keys, transit::Part::All, (&on_its_way, &settle))?;
        for work in &from_table {
            if gone.contains(&work.key()) {
                rows.push(work.row(State::Moved, ""));
            } else {
                self.unmake(work)?;
                rows.push(work.row(State::LeftAlone, "it was taken away meanwhile"));
            }
        }
        Ok(rows)
    }

    /// Makes it in chains of iptables. Says why it is better left alone.
    fn make_in_chains(&self, work: &Work) -> Result<Option<String>, Error> {
        let (hash, kind) = work.record();
        let of_table = matches!(work.source, Source::Table);
        if Iptables::shares_chains(&self.session, &work.attachment, kind)? {
            return Ok(Some("another interface of the container has things in the same chains".to_owned()));
        }
        let before = self.session.entry(hash, kind)?.map(|entry| entry.transit());
        // The old place may be emptied in part: the chains are whole.
        if before == Some(Transit::Verified) {
            return Ok(None);
        }
        if work.is_empty() {
            return Ok(Some(NOTHING.to_owned()));
        }
        if before == Some(Transit::Settled) && !of_table {
            return Ok(Some("iptables has something of the same attachment".to_owned()));
        }
        let there = || Ok(!of_table || self.session.entry(work.key().0, work.key().1)?.is_some());
        if !record::put_if(&self.session, (kind, Transit::Made), work.wanted.who(), &there)? {
            return Ok(Some("it was taken away meanwhile".to_owned()));
        }
        match &work.wanted {
            Wanted::Ports(request) => Iptables::make_ports(request)?,
            Wanted::Masquerade(request) => Iptables::make_masquerade(request)?,
        }
        Ok(None)
    }

    /// Takes chains back, unless an ADD has made them its own.
    fn unmake(&self, work: &Work) -> Result<(), Error> {
        let (hash, kind) = work.record();
        if self.session.entry(hash, kind)?.is_some_and(|entry| entry.transit() == Transit::Settled) {
            return Ok(());
        }
        Iptables::unmake(&work.attachment, kind)?;
        record::remove(&self.session, hash, &[kind])
    }
}
