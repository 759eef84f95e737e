// SPDX-License-Identifier: GPL-2.0-or-later

//! Notifications of nf_tables: the tables that each commit touched, and the process that made it.
//!
//! The kernel sends a message for each changed object and, at the end of the commit, one with the new generation
//! (`nf_tables_commit`). In all of them, the first attribute is the table's name. Nothing else of an object is
//! decoded, so even a commit of thousands of elements costs little.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use cni_netlink::message::{be32, find, text};

use crate::error::Error;
use crate::object::{Family, TableId};
use crate::subscription::{Incoming, Subscription};
use crate::uapi;

/// What one commit changed in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableChange {
    /// Only elements were added.
    ElementsAdded,
    /// Elements were deleted, and perhaps also added.
    ElementsDeleted,
    /// The table is new, or its chains, rules, sets, objects or flowtables changed.
    Contents,
    Deleted,
}

impl TableChange {
    /// The combined effect of both changes, in this order.
    fn then(self, next: Self) -> Self {
        match (self, next) {
            (_, Self::Deleted) => Self::Deleted,
            // The commit created the table again.
            (Self::Deleted, _) => Self::Contents,
            _ => self.max(next),
        }
    }
}

/// The process that made a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The number of the process's thread in the initial PID namespace (`NFTA_GEN_PROC_PID`).
    pub pid: u32,
    /// The thread's name, of at most 15 bytes (`NFTA_GEN_PROC_NAME`).
    pub name: String,
}

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The ruleset's generation after the commit, as returned by [`Socket::generation`](crate::Socket::generation).
    pub number: u32,
    /// The process that made the commit. None before Linux 4.14.
    pub process: Option<Process>,
    /// The tables that the commit changed.
    pub tables: BTreeMap<TableId, TableChange>,
}

/// A report of nf_tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// A commit.
    Generation(Generation),
    /// Changes were not reported, because the reader was too slow for the socket's buffer or a commit changed more
    /// than 1,024 tables. Read the ruleset again. Later notifications are about later commits, and the first one may
    /// lack tables.
    Lost,
}

/// `NFNLGRP_NFTABLES` (`linux/netfilter/nfnetlink.h`, counted from 1), as a bit of `nl_groups`.
const GROUP: u32 = 1 << 6;

// enum nf_tables_msg_types
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;
const NEW_GENERATION: u16 = 15;
const DELETE_TABLE: u16 = 2;
/// Like the previous one, but deleting a missing table is not an error (since Linux 6.3).
const DESTROY_TABLE: u16 = 26;
const DESTROY_ELEMENT: u16 = 30;
const TRACE: u16 = 17;
/// `NFT_MSG_DESTROYFLOWTABLE`. In messages of later types, the first attribute may be something else.
const LAST: u16 = 32;

// enum nft_gen_attributes
const GENERATION_ID: u16 = 1;
const GENERATION_PROCESS: u16 = 2;
const GENERATION_NAME: u16 = 3;

/// How many tables of one commit are recorded.
const MOST_TABLES: usize = 1024;

/// A socket that receives the commits of all processes in one network namespace, including those of this process.
///
/// Subscribe first, and then read the ruleset, so that no change is missed. Memory use is bounded: in this process, a
/// buffer for one datagram and the tables of one commit; in the kernel, the socket's buffer.
#[derive(Debug)]
pub struct Notifications {
    subscription: Subscription,
    commit: Commit,
}

/// The tables of the commit that is being reported.
#[derive(Debug, Default)]
struct Commit {
    tables: BTreeMap<TableId, TableChange>,
    /// Family, name and change of the last message, because most messages are like the previous one.
    last: Option<(u8, Vec<u8>, TableChange)>,
    overflowed: bool,
}

impl Commit {
    /// Processes one message. Returns the notification that the message completes, if any.
    fn message(&mut self, kind: u16, family: u8, body: &[u8]) -> Option<Notification> {
        let change = match kind {
            NEW_GENERATION => return Some(std::mem::take(self).complete(body)),
            DELETE_TABLE | DESTROY_TABLE => TableChange::Deleted,
            NEW_ELEMENT => TableChange::ElementsAdded,
            DELETE_ELEMENT | DESTROY_ELEMENT => TableChange::ElementsDeleted,
            TRACE => return None,
            _ if kind > LAST => return None,
            _ => TableChange::Contents,
        };
        let name = find(body, uapi::TABLE_NAME)?;
        if self.last.as_ref().is_some_and(|last| (last.0, &last.1[..], last.2) == (family, name, change)) {
            return None;
        }
        let table = TableId::new(Family::from_number(family)?, &text(name));
        self.last = Some((family, name.to_vec(), change));
        if let Some(before) = self.tables.get_mut(&table) {
            *before = before.then(change);
        } else if self.tables.len() < MOST_TABLES {
            self.tables.insert(table, change);
        } else {
            self.overflowed = true;
        }
        None
    }

    fn complete(self, body: &[u8]) -> Notification {
        let Some(number) = find(body, GENERATION_ID).and_then(be32) else {
            return Notification::Lost;
        };
        if self.overflowed {
            return Notification::Lost;
        }
        let process = find(body, GENERATION_PROCESS)
            .and_then(be32)
            .map(|pid| Process { pid, name: find(body, GENERATION_NAME).map(text).unwrap_or_default() });
        Notification::Generation(Generation { number, process, tables: self.tables })
    }
}

impl Notifications {
    /// Subscribes to the commits in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no netfilter netlink; [`Error::Open`] without `CAP_NET_ADMIN`
    /// in the namespace.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { subscription: Subscription::open(GROUP)?, commit: Commit::default() })
    }

    /// Sets the size of the socket's buffer in bytes. Without `CAP_NET_ADMIN` in the initial user namespace,
    /// `net.core.rmem_max` is the limit.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        self.subscription.set_receive_buffer(bytes)
    }

    /// Returns the next commit, or none if there is none yet. Does not block.
    pub fn read(&mut self) -> Result<Option<Notification>, Error> {
        loop {
            match self.subscription.read()? {
                None => return Ok(None),
                Some(Incoming::Lost) => {
                    self.commit = Commit::default();
                    return Ok(Some(Notification::Lost));
                }
                Some(Incoming::Message { kind, family, body }) => {
                    let completed = self.commit.message(kind, family, body);
                    if completed.is_some() {
                        return Ok(completed);
                    }
                }
            }
        }
    }

    /// Returns the next commit, waiting for it for at most `timeout`.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Notification>, Error> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(next) = self.read()? {
                return Ok(Some(next));
            }
            if !self.subscription.wait(end)? {
                return Ok(None);
            }
        }
    }
}

/// Lets callers wait for commits like on any socket. After an overflow, the socket has an error (`POLLERR`), which
/// [`Notifications::read`] clears.
impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}

impl AsRawFd for Notifications {
    fn as_raw_fd(&self) -> RawFd {
        self.subscription.as_fd().as_raw_fd()
    }
}

/// The notifications that these messages complete, for fuzzing. Each message has its type and its family.
#[cfg(feature = "fuzzing")]
pub(crate) fn read<'a>(messages: impl IntoIterator<Item = (u16, u8, &'a [u8])>) -> Vec<Notification> {
    let mut commit = Commit::default();
    let all = messages.into_iter().filter_map(|(kind, family, body)| commit.message(kind, family, body));
    let all = all.collect();
    assert!(commit.tables.len() <= MOST_TABLES);
    all
}

#[cfg(test)]
mod tests {
    use cni_netlink::Attributes;

    use super::*;

    const NEW_TABLE: u16 = 0;
    const NEW_RULE: u16 = 6;
    const INET: u8 = 1;

    fn body(table: &str) -> Vec<u8> {
        Attributes::encode(|message| {
            message.text(1, table).text(2, "set").attr(3, &[0xff; 64]);
        })
    }

    fn generation() -> Vec<u8> {
        Attributes::encode(|message| {
            message.be32(GENERATION_ID, 7).be32(GENERATION_PROCESS, 42).text(GENERATION_NAME, "nft");
        })
    }

    /// The changes of one commit with these messages about table `t`.
    fn commit(kinds: &[u16]) -> Option<TableChange> {
        let mut commit = Commit::default();
        for kind in kinds {
            assert_eq!(commit.message(*kind, INET, &body("t")), None);
        }
        let done = commit.message(NEW_GENERATION, 0, &generation());
        let Some(Notification::Generation(generation)) = done else { panic!("{done:?}") };
        assert_eq!(generation.number, 7);
        assert_eq!(generation.process, Some(Process { pid: 42, name: "nft".to_owned() }));
        assert!(commit.tables.is_empty() && commit.last.is_none(), "the next commit begins empty");
        generation.tables.get(&TableId::new(Family::Inet, "t")).copied()
    }

    #[test]
    fn the_largest_change_of_a_table_is_reported() {
        use TableChange::{Contents, Deleted, ElementsAdded, ElementsDeleted};
        for (kinds, expected) in [
            (&[][..], None),
            (&[TRACE, LAST + 1], None),
            (&[NEW_ELEMENT, NEW_ELEMENT], Some(ElementsAdded)),
            (&[DELETE_ELEMENT, NEW_ELEMENT], Some(ElementsDeleted)),
            (&[NEW_ELEMENT, NEW_RULE, NEW_ELEMENT], Some(Contents)),
            (&[NEW_RULE, DELETE_TABLE], Some(Deleted)),
            (&[DESTROY_TABLE], Some(Deleted)),
            (&[DELETE_TABLE, NEW_TABLE, NEW_ELEMENT], Some(Contents)),
            (&[DELETE_TABLE, NEW_TABLE, DELETE_TABLE], Some(Deleted)),
        ] {
            assert_eq!(commit(kinds), expected, "{kinds:?}");
        }
    }

    #[test]
    fn tables_of_one_name_in_two_families_are_two() {
        let mut commit = Commit::default();
        for family in [INET, 2, INET, 99] {
            commit.message(NEW_ELEMENT, family, &body("t"));
        }
        let families: Vec<_> = commit.tables.keys().map(|table| table.family).collect();
        assert_eq!(families, [Family::Inet, Family::Ip], "99 is no family");
    }

    #[test]
    fn a_commit_of_too_many_tables_is_lost() {
        let mut commit = Commit::default();
        for number in 0..=MOST_TABLES {
            commit.message(NEW_TABLE, INET, &body(&format!("t{number}")));
        }
        assert_eq!(commit.tables.len(), MOST_TABLES);
        assert_eq!(commit.message(NEW_GENERATION, 0, &generation()), Some(Notification::Lost));
        assert!(!commit.overflowed);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(kind in 0..40_u16, family: u8, bytes: Vec<u8>) {
            let _ = Commit::default().message(kind, family, &bytes);
        }
    }
}
