// SPDX-License-Identifier: GPL-2.0-or-later

//! Decides whether conntrack can contain flows to UDP ports, without a pass through its table.
//!
//! Rules of the table record the destination port of each UDP flow when its first packet arrives (see
//! [`super::schema::udp_flows`]). If this set is complete, conntrack has no flow to a port that is not in it. A set
//! is made complete in these steps:
//!
//! 1. The [first batch](super::schema::udp_flows::begin) empties the set, makes the rules, and marks the set as begun.
//! 2. Packets that passed the hooks earlier are waited for. Their flows are in conntrack by then.
//! 3. A pass through conntrack lists the ports of all flows.
//! 4. The [second batch](super::schema::udp_flows::complete) adds them, and marks the set as complete, if the mark is
//!    still that of step 1. Otherwise, another process has begun again, or another program has emptied the set.
//!
//! A process that is killed between these steps leaves a set that is not complete. The mark contains the handles of
//! the rules, which the kernel assigns only once during a table's life. If the rules were flushed and made again,
//! they have other handles, so it is known that flows which began in between were not recorded. The mark is in a
//! field that nft neither prints nor restores, so a table that was saved and loaded again has no mark. Elements are
//! never deleted one by one, because a flow that begins concurrently would find its port recorded just before that
//! record is deleted.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};

use cni_kernel::grace;
use nix::time::{ClockId, clock_gettime};

use super::conntrack::{self, Size, Target};
use super::schema::udp_flows::{CHAINS, RULES, TLV_KIND, begin, complete, element};
use super::session::Session;
use crate::owned_table::unchanged;
use crate::{Error, Protocol};

/// `NFT_TABLE_F_DORMANT` (`linux/netfilter/nf_tables.h`): the table's chains are not hooked.
const DORMANT: u32 = 1;
/// The most ports that are looked up one by one, at some 10 µs each.
const MANY: usize = 256;
/// After this many seconds, a pass that is made anyway starts the set anew, without the ports of flows that have
/// ended.
const OLD: u64 = 3600;
/// After this many seconds, a set that is not complete must have been left by a process that was killed.
const ABANDONED: u64 = 5;
const VERSION: u8 = 1;

/// When conntrack is searched for the flows of published ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FlowSearch {
    /// Only if the table has seen a flow to one of the ports.
    #[default]
    Seen,
    /// Always, because another program adds flows to conntrack.
    Always,
}

/// What the table knows about the flows to some ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlowKnowledge {
    /// There are no flows.
    NoFlows,
    Flows,
    /// There may be flows, and the set still contains the ports of many flows that have ended.
    Old,
    /// There may be flows, because the set is not complete.
    Incomplete,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    /// Distinguishes this mark from earlier and later ones.
    token: u64,
    /// Seconds since boot.
    since: u64,
    /// The handles of the rules. Empty until the set is complete.
    rules: Vec<u64>,
}

impl Mark {
    fn new() -> Self {
        Self { token: RandomState::new().build_hasher().finish(), since: uptime(), rules: Vec::new() }
    }

    fn encode(&self) -> Vec<u8> {
        let numbers = [self.token, self.since].into_iter().chain(self.rules.iter().copied());
        [VERSION].into_iter().chain(numbers.flat_map(u64::to_be_bytes)).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (numbers, rest) = rest.as_chunks::<8>();
        let [token, since, rules @ ..] = numbers else { return None };
        let number = |bytes: &[u8; 8]| u64::from_be_bytes(*bytes);
        (*version == VERSION && rest.is_empty()).then(|| Self {
            token: number(token),
            since: number(since),
            rules: rules.iter().map(number).collect(),
        })
    }

    fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.since)
    }
}

/// Decodes a mark, for fuzzing. If the mark is encoded again, the bytes are the same.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_mark(bytes: &[u8]) -> Option<impl std::fmt::Debug> {
    let mark = Mark::decode(bytes)?;
    assert_eq!(mark.encode(), bytes);
    Some(mark)
}

/// Seconds since boot.
fn uptime() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .ok()
        .and_then(|time| u64::try_from(time.tv_sec()).ok())
        .unwrap_or(0)
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Recording {
    handles: Vec<u64>,
    is_lossy: bool,
}

/// The state of the set. The fields are in the order in which they are read.
#[derive(Debug)]
struct Reading {
    before: Option<Mark>,
    is_seen: bool,
    rules: Recording,
    /// The mark, read once more: if it has not changed, the set was not emptied in between.
    after: Option<Mark>,
}

impl Reading {
    fn known(&self, now: u64) -> FlowKnowledge {
        let same = self.after.as_ref().filter(|after| self.before.as_ref() == Some(*after));
        let is_complete =
            |mark: &&Mark| !mark.rules.is_empty() && mark.rules == self.rules.handles && !self.rules.is_lossy;
        match same.filter(is_complete) {
            Some(_) if !self.is_seen => FlowKnowledge::NoFlows,
            Some(mark) if mark.age(now) < OLD => FlowKnowledge::Flows,
            Some(_) => FlowKnowledge::Old,
            None => match &self.after {
                Some(mark) if mark.rules.is_empty() && mark.age(now) < ABANDONED => FlowKnowledge::Flows,
                _ => FlowKnowledge::Incomplete,
            },
        }
    }
}

fn read_mark(session: &Session) -> Result<Option<Mark>, Error> {
    let found = session.element(&element(0))?;
    Ok(found.and_then(|found| found.tlv(TLV_KIND).and_then(Mark::decode)))
}

fn read_rules(session: &Session) -> Result<Recording, Error> {
    let mut recording = Recording { handles: Vec::new(), is_lossy: false };
    for chain in CHAINS {
        let rules = session.socket.rules(&session.table, chain);
        for rule in rules.map_err(|e| Error::kernel(format!("list the rules of chain {chain}"), e))? {
            recording.handles.push(rule.handle);
            recording.is_lossy |= rule.packets.is_some_and(|packets| packets > 0);
        }
    }
    Ok(recording)
}

fn look(session: &Session, ports: &BTreeSet<u16>) -> Result<FlowKnowledge, Error> {
    if session.info()?.is_none_or(|table| table.flags & DORMANT != 0) {
        return Ok(FlowKnowledge::Flows);
    }
    let before = read_mark(session)?;
    if before.is_none() {
        return Ok(FlowKnowledge::Incomplete);
    }
    let mut is_seen = ports.len() > MANY;
    for port in ports.iter().take(MANY) {
        is_seen = is_seen || session.element(&element(*port))?.is_some();
    }
    let reading = Reading { before, is_seen, rules: read_rules(session)?, after: read_mark(session)? };
    Ok(reading.known(uptime()))
}

/// The UDP ports to look for. Empty if there are no flows at all.
fn ports(targets: &[Target]) -> BTreeSet<u16> {
    let ports =
        conntrack::of(Protocol::Udp, targets).flat_map(|(host, _)| host.ports()).collect::<BTreeSet<_>>();
    if ports.is_empty() || conntrack::flow_count() == Some(0) { BTreeSet::new() } else { ports }
}

/// Removes UDP flows after ports were published. If the set is not complete, the pass through conntrack completes it.
pub(super) fn flush(session: &Session, search: FlowSearch, targets: &[Target]) -> Result<(), Error> {
    let ports = ports(targets);
    if ports.is_empty() {
        return Ok(());
    }
    let known = match search {
        FlowSearch::Seen => look(session, &ports),
        // A DEL does not read the settings, but searches conntrack if there is no mark.
        FlowSearch::Always => distrust(session).map(|()| FlowKnowledge::Flows),
    };
    let started = match known {
        Ok(FlowKnowledge::NoFlows) => return Ok(()),
        // Listing many flows would cost much more than searching them for one port.
        Ok(FlowKnowledge::Old) if Size::read() == Size::Large => Ok(None),
        Ok(FlowKnowledge::Old | FlowKnowledge::Incomplete) => start(session),
        Ok(FlowKnowledge::Flows) => Ok(None),
        Err(error) => Err(error),
    };
    match started {
        Ok(Some(started)) => return fill(session, &started, targets),
        Ok(None) => {}
        Err(error) => log::debug!("record the ports of UDP flows: {error}"),
    }
    conntrack::flush(conntrack::of(Protocol::Udp, targets)).map(drop)
}

/// True if conntrack may contain flows to ports that were withdrawn.
pub(super) fn may_be_there(session: &Session, targets: &[Target]) -> bool {
    let ports = ports(targets);
    if ports.is_empty() {
        return false;
    }
    let known = look(session, &ports).inspect_err(|error| log::debug!("look for UDP flows: {error}"));
    known.unwrap_or(FlowKnowledge::Flows) != FlowKnowledge::NoFlows
}

struct NewSet {
    mark: Mark,
    rules: Recording,
}

/// Starts a new set, and waits until the flows that the set will not see are in conntrack. None if another program
/// changed the rules in the meantime.
fn start(session: &Session) -> Result<Option<NewSet>, Error> {
    let mark = Mark::new();
    let begun = session.socket.commit(&begin(mark.encode()), None);
    begun.map_err(|e| Error::kernel("begin to record the ports of UDP flows", e))?;
    // The rules are read before the pass, which finds the flows that began before the rules existed.
    let rules = read_rules(session)?;
    if rules.handles.len() != RULES {
        return Ok(None);
    }
    grace::wait_for_packets();
    Ok(Some(NewSet { mark, rules }))
}

/// Makes the pass through conntrack, and completes the set with the ports of the flows that it finds.
fn fill(session: &Session, started: &NewSet, targets: &[Target]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    conntrack::flush_udp_and_list(targets, &mut seen)?;
    let complete = session.transact("record the ports of UDP flows", |_| {
        let unchanged_since = read_mark(session)?.as_ref() == Some(&started.mark)
            && read_rules(session)?.handles == started.rules.handles;
        if !unchanged_since {
            return unchanged(());
        }
        let mark = Mark { rules: started.rules.handles.clone(), ..started.mark.clone() };
        Ok((complete(seen.iter().copied(), mark.encode()), ()))
    });
    if let Err(error) = complete {
        log::debug!("{error}");
    }
    Ok(())
}

/// Removes the mark. Every withdrawal then searches conntrack, and so does every call that publishes ports, until one
/// of them has completed the set again.
fn distrust(session: &Session) -> Result<(), Error> {
    session.transact("record the ports of UDP flows", |_| {
        let mut batch = cni_nftables::Transaction::new();
        if session.element(&element(0))?.is_some() {
            batch.delete_element(element(0));
        }
        Ok((batch, ()))
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;

    const NOW: u64 = 10_000;

    fn mark(token: u64, rules: &[u64]) -> Mark {
        Mark { token, since: NOW, rules: rules.to_vec() }
    }

    fn reading(mark: &Mark) -> Reading {
        let rules = Recording { handles: vec![4, 5, 6], is_lossy: false };
        Reading { before: Some(mark.clone()), is_seen: false, rules, after: Some(mark.clone()) }
    }

    #[test]
    fn only_a_complete_set_without_the_port_proves_that_there_are_no_flows() {
        let complete = mark(1, &[4, 5, 6]);
        assert_eq!(reading(&complete).known(NOW), FlowKnowledge::NoFlows);
        assert_eq!(Reading { is_seen: true, ..reading(&complete) }.known(NOW), FlowKnowledge::Flows);
        let others = |handles: &[u64]| Recording { handles: handles.to_vec(), is_lossy: false };
        for rules in [others(&[]), others(&[4, 5]), others(&[7, 4, 5, 6]), others(&[7, 8, 9])] {
            assert_eq!(
                Reading { rules, ..reading(&complete) }.known(NOW),
                FlowKnowledge::Incomplete,
                "other rules"
            );
        }
        let lossy = Recording { is_lossy: true, ..reading(&complete).rules };
        assert_eq!(
            Reading { rules: lossy, ..reading(&complete) }.known(NOW),
            FlowKnowledge::Incomplete,
            "a flow was lost"
        );
        assert_eq!(
            Reading { after: None, ..reading(&complete) }.known(NOW),
            FlowKnowledge::Incomplete,
            "emptied"
        );
        let again = mark(2, &[4, 5, 6]);
        assert_eq!(
            Reading { after: Some(again), ..reading(&complete) }.known(NOW),
            FlowKnowledge::Incomplete,
            "refilled"
        );
        assert_eq!(
            Reading { before: None, ..reading(&complete) }.known(NOW),
            FlowKnowledge::Incomplete,
            "filled just now"
        );
    }

    #[test]
    fn a_set_that_another_process_fills_is_left_to_it_for_a_while() {
        let begun = mark(1, &[]);
        assert_eq!(reading(&begun).known(NOW), FlowKnowledge::Flows);
        assert_eq!(Reading { before: None, ..reading(&begun) }.known(NOW), FlowKnowledge::Flows);
        let nothing = Recording { handles: Vec::new(), is_lossy: false };
        assert_eq!(
            Reading { rules: nothing, ..reading(&begun) }.known(NOW),
            FlowKnowledge::Flows,
            "no rules prove nothing"
        );
        let abandoned = Mark { since: NOW - ABANDONED, ..begun };
        assert_eq!(reading(&abandoned).known(NOW), FlowKnowledge::Incomplete);
    }

    #[test]
    fn an_old_set_is_begun_again_only_where_there_may_be_flows() {
        let old = Mark { since: NOW - OLD, ..mark(1, &[4, 5, 6]) };
        assert_eq!(reading(&old).known(NOW), FlowKnowledge::NoFlows);
        assert_eq!(Reading { is_seen: true, ..reading(&old) }.known(NOW), FlowKnowledge::Old);
    }

    #[test]
    fn a_mark_survives_its_bytes() {
        for mark in [mark(u64::MAX, &[1, 2, 3, 4, 5, 6]), mark(0, &[])] {
            let bytes = mark.encode();
            assert_eq!(Mark::decode(&bytes), Some(mark));
            assert_eq!(Mark::decode(&bytes[1..]), None);
            assert_eq!(Mark::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Mark::decode(&[VERSION; 9]), None);
        assert_eq!(Mark::decode(&[]), None);
    }

    #[test]
    fn the_batches() {
        let text = [begin(b"begun".to_vec()), complete([53, 0, 123], b"complete".to_vec())];
        let text = text.map(|batch| batch.to_string()).join("\n");
        expect_file!["../../golden/udp-seen.nft"].assert_eq(&text);
    }
}
