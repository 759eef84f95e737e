// SPDX-License-Identifier: GPL-2.0-or-later

//! Notifications of nf_tables: the tables that each commit touched, and the process that made it.
//!
//! The kernel sends a message for each changed object, and at the end of the commit one with the new
//! generation (`nf_tables_commit`). In all of them the first attribute is the table's name; nothing else of
//! an object is decoded, so that a commit of thousands of elements costs little.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvmsg, setsockopt,
    socket, sockopt,
};

use crate::error::Error;
use crate::object::{Family, TableId};
use crate::uapi;
use crate::wire;

/// The change of a table in one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableChange {
    /// Elements were added, nothing else.
    ElementsAdded,
    /// Elements were deleted, and maybe added.
    ElementsDeleted,
    /// The table is new, or its chains, rules, sets, objects or flowtables changed.
    Contents,
    /// The table was deleted.
    Deleted,
}

impl TableChange {
    /// The effect of both, in this order.
    fn then(self, next: Self) -> Self {
        match (self, next) {
            (_, Self::Deleted) => Self::Deleted,
            // The commit created it again.
            (Self::Deleted, _) => Self::Contents,
            _ => self.max(next),
        }
    }
}

/// The process that made a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its thread's number in the initial PID namespace (`NFTA_GEN_PROC_PID`).
    pub pid: u32,
    /// Its thread's name, of at most 15 bytes (`NFTA_GEN_PROC_NAME`).
    pub name: String,
}

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The ruleset's generation after it, as of [`Socket::generation`](crate::Socket::generation).
    pub number: u32,
    /// The process that made it; none before Linux 4.14.
    pub process: Option<Process>,
    /// The tables that it touched.
    pub tables: BTreeMap<TableId, TableChange>,
}

/// A report of nf_tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// A commit.
    Generation(Generation),
    /// Changes were not reported, as the reader was too slow for the socket's buffer, or a commit touched
    /// more than 1,024 tables. Read the ruleset again; later notifications are of later commits, and the
    /// first may lack tables.
    Lost,
}

/// `NFNLGRP_NFTABLES` (`linux/netfilter/nfnetlink.h`, counted from 1), as a bit of `nl_groups`.
const GROUP: u32 = 1 << 6;
/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message's type.
const SUBSYSTEM: u16 = 10;

// enum nf_tables_msg_types
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;
const NEW_GENERATION: u16 = 15;
const DELETE_TABLE: u16 = 2;
/// As the previous one, but deleting a missing table is no error (since Linux 6.3).
const DESTROY_TABLE: u16 = 26;
const DESTROY_ELEMENT: u16 = 30;
const TRACE: u16 = 17;
/// `NFT_MSG_DESTROYFLOWTABLE`. Types after it may have another first attribute.
const LAST: u16 = 32;

// enum nft_gen_attributes
const GENERATION_ID: u16 = 1;
const GENERATION_PROCESS: u16 = 2;
const GENERATION_NAME: u16 = 3;

/// Size of the socket's buffer in bytes, of which the kernel counts each datagram with its overhead. A proxy
/// that writes the rules of a cluster's services sends megabytes at once.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// Size of the buffer for one datagram: several messages of up to a page together (`NLMSG_GOODSIZE`,
/// `nft_commit_notify`), or a larger one alone.
const DATAGRAM: usize = 64 * 1024;
/// The number of tables that one commit may touch.
const MOST_TABLES: usize = 1024;

/// A socket that receives the commits of all processes in one network namespace, also those of this one.
///
/// Subscribe first and then read the ruleset: no change is missed that way. The memory is bounded: a buffer
/// for one datagram and the tables of one commit here, the socket's buffer in the kernel.
#[derive(Debug)]
pub struct Notifications {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    /// The bytes of the last datagram that are not read yet.
    unread: std::ops::Range<usize>,
    commit: Commit,
}

/// The tables of the commit that is being reported.
#[derive(Debug, Default)]
struct Commit {
    tables: BTreeMap<TableId, TableChange>,
    /// Family, name and change of the last message: most messages are as the one before.
    last: Option<(u8, Vec<u8>, TableChange)>,
    overflowed: bool,
}

impl Commit {
    /// Takes one message: the notification that it completes, if it does.
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
        let name = wire::find(body, uapi::TABLE_NAME)?;
        if self.last.as_ref().is_some_and(|last| (last.0, &last.1[..], last.2) == (family, name, change)) {
            return None;
        }
        let table = TableId::new(Family::from_number(family)?, &wire::text(name));
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
        let Some(number) = wire::find(body, GENERATION_ID).and_then(wire::be32) else {
            return Notification::Lost;
        };
        if self.overflowed {
            return Notification::Lost;
        }
        let process = wire::find(body, GENERATION_PROCESS).and_then(wire::be32).map(|pid| Process {
            pid,
            name: wire::find(body, GENERATION_NAME).map(wire::text).unwrap_or_default(),
        });
        Notification::Generation(Generation { number, process, tables: self.tables })
    }
}

/// A received datagram.
enum Received {
    /// Its length; 0 if it is not the kernel's.
    Whole(usize),
    /// It is longer than the buffer.
    Cut,
}

impl Notifications {
    /// Subscribes to the commits in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no netfilter netlink; [`Error::Open`] without `CAP_NET_ADMIN`
    /// in the namespace.
    pub fn open() -> Result<Self, Error> {
        let open = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let protocol = SockProtocol::NetlinkNetFilter;
            let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
            enlarge(&socket, RECEIVE_BUFFER)?;
            bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUP))?;
            Ok(socket)
        };
        let socket = open().map_err(|errno| match errno {
            Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT => Error::Unsupported {
                feature: "netfilter netlink".to_owned(),
                op: "subscribe to nf_tables".to_owned(),
            },
            errno => Error::Open { errno },
        })?;
        Ok(Self { socket, buffer: vec![0; DATAGRAM].into(), unread: 0..0, commit: Commit::default() })
    }

    /// Sets the size of the socket's buffer in bytes. Without `CAP_NET_ADMIN` in the initial user namespace,
    /// `net.core.rmem_max` is the limit.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel refuses.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        enlarge(&self.socket, bytes).map_err(|errno| failed("set receive buffer", errno))
    }

    /// The next commit; none if there is none now. Does not block.
    ///
    /// # Errors
    /// [`Error::Io`] if the socket fails.
    pub fn read(&mut self) -> Result<Option<Notification>, Error> {
        loop {
            if let Some(next) = self.next_in_datagram() {
                return Ok(Some(next));
            }
            match self.receive() {
                Ok(Received::Whole(length)) => self.unread = 0..length,
                Ok(Received::Cut) | Err(Errno::ENOBUFS) => {
                    self.drain().map_err(|errno| failed("read notifications", errno))?;
                    self.commit = Commit::default();
                    return Ok(Some(Notification::Lost));
                }
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed("read notifications", errno)),
            }
        }
    }

    /// The next commit, waited for for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Io`] if the socket fails.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Notification>, Error> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(next) = self.read()? {
                return Ok(Some(next));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], left) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(failed("wait for notifications", errno)),
            }
        }
    }

    /// Reads the rest of the datagram, up to the message that completes a notification.
    fn next_in_datagram(&mut self) -> Option<Notification> {
        while let Some((length, message)) = first_message(self.buffer.get(self.unread.clone())?) {
            self.unread.start += length;
            let header = wire::Header::read(message)?;
            if header.kind >> 8 != SUBSYSTEM {
                continue;
            }
            let family = message.get(wire::HEADER_LEN).copied().unwrap_or_default();
            let body = message.get(wire::NF_HEADER_LEN..).unwrap_or_default();
            let completed = self.commit.message(header.kind & 0xff, family, body);
            if completed.is_some() {
                return completed;
            }
        }
        self.unread = 0..0;
        None
    }

    /// Discards what the socket has. After an overflow the kernel adds nothing, and reports no second one,
    /// until the queue is empty (`NETLINK_S_CONGESTED`): a caller that read the ruleset before that would
    /// miss later changes.
    fn drain(&mut self) -> Result<(), Errno> {
        loop {
            match self.receive() {
                Ok(_) | Err(Errno::ENOBUFS | Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn receive(&mut self) -> Result<Received, Errno> {
        let fd = self.socket.as_raw_fd();
        let mut parts = [IoSliceMut::new(&mut self.buffer)];
        let got = recvmsg::<NetlinkAddr>(fd, &mut parts, None, MsgFlags::MSG_DONTWAIT)?;
        if got.flags.contains(MsgFlags::MSG_TRUNC) {
            return Ok(Received::Cut);
        }
        // Privileged processes can send to the group, too. The kernel's port is 0.
        let is_kernel = got.address.is_some_and(|from| from.pid() == 0);
        Ok(Received::Whole(if is_kernel { got.bytes } else { 0 }))
    }
}

/// Waits as every socket does. After an overflow the socket has an error (`POLLERR`), which
/// [`Notifications::read`] takes.
impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Notifications {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The first message and its length with padding; none at the end and before a malformed one.
fn first_message(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let message = bytes.get(..length).filter(|message| message.len() >= wire::HEADER_LEN)?;
    Some((length.next_multiple_of(4).min(bytes.len()), message))
}

fn failed(operation: &str, errno: Errno) -> Error {
    Error::Io { operation: format!("nf_tables: {operation}"), errno }
}

fn enlarge(socket: &OwnedFd, bytes: usize) -> Result<(), Errno> {
    setsockopt(socket, sockopt::RcvBufForce, &bytes).or_else(|_| setsockopt(socket, sockopt::RcvBuf, &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_TABLE: u16 = 0;
    const NEW_RULE: u16 = 6;
    const INET: u8 = 1;

    fn body(table: &str) -> Vec<u8> {
        wire::attributes(|message| {
            message.text(1, table).text(2, "set").attr(3, &[0xff; 64]);
        })
    }

    fn generation() -> Vec<u8> {
        wire::attributes(|message| {
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
            let mut rest = &bytes[..];
            while let Some((length, message)) = first_message(rest) {
                proptest::prop_assert!(message.len() <= length && length > 0);
                rest = &rest[length..];
            }
        }
    }
}
