// SPDX-License-Identifier: GPL-2.0-or-later

//! Tables, chains, rules, sets and elements to add, as plain values.

use std::fmt;
use std::time::Duration;

use crate::stmt::{Stmt, Verdict};
use crate::value::{DataType, Value};

/// A table's address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 and IPv6 (`NFPROTO_INET`).
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    Arp,
    /// Packets at the ingress or egress of one device.
    Netdev,
    /// Frames that a bridge forwards.
    Bridge,
}

impl Family {
    /// The family's number (`NFPROTO_*` in `linux/netfilter.h`).
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Arp => 3,
            Self::Netdev => 5,
            Self::Bridge => 7,
            Self::Ip6 => 10,
        }
    }

    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Inet, Self::Ip, Self::Arp, Self::Netdev, Self::Bridge, Self::Ip6]
            .into_iter()
            .find(|family| family.number() == number)
    }

    /// The family's name in nft's syntax.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Arp => "arp",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Identifies a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId {
    pub family: Family,
    pub name: String,
}

impl TableId {
    #[must_use]
    pub fn new(family: Family, name: &str) -> Self {
        Self { family, name: name.to_owned() }
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// What happens if an object with the same name or key exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Create {
    /// The change fails (`NLM_F_EXCL`; `create` in nft's syntax).
    Exclusive,
    /// The existing object stays as it is, with its comment (`add` in nft's syntax).
    OrKeep,
}

impl Create {
    pub(crate) const fn verb(self) -> &'static str {
        match self {
            Self::Exclusive => "create",
            Self::OrKeep => "add",
        }
    }
}

/// A table to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Family and name.
    pub id: TableId,
    /// A comment of at most 128 bytes. The kernel stores it since Linux 5.10.
    pub comment: Option<String>,
    /// True if only the socket that adds the table may change it, and the kernel deletes the table when that socket
    /// is closed (`NFT_TABLE_F_OWNER`, Linux 5.12).
    pub owned: bool,
    /// What happens if the table exists.
    pub create: Create,
}

impl Table {
    /// A table that may already exist.
    #[must_use]
    pub fn new(id: &TableId) -> Self {
        Self { id: id.clone(), comment: None, owned: false, create: Create::OrKeep }
    }

    /// Makes the table end with the socket that adds it.
    #[must_use]
    pub const fn owned(mut self) -> Self {
        self.owned = true;
        self
    }

    /// Sets the comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.to_owned());
        self
    }

    /// Makes it an error if the table exists.
    #[must_use]
    pub const fn exclusive(mut self) -> Self {
        self.create = Create::Exclusive;
        self
    }
}

/// Type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// `type filter`.
    Filter,
    /// `type nat`, which sees only the first packet of each flow.
    Nat,
    /// `type route`, which routes locally generated packets again if their mark has changed.
    Route,
}

impl ChainKind {
    /// The kind's name in the kernel and in nft's syntax.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

/// Hook of a base chain. The numbers are the same for inet, ip, ip6 and bridge (`NF_INET_*` in
/// `linux/netfilter.h`, `NF_BR_*` in `linux/netfilter_bridge.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Packets received, before routing.
    Prerouting,
    /// Packets for this host.
    Input,
    /// Forwarded packets.
    Forward,
    /// Locally generated packets.
    Output,
    /// Packets that are about to leave.
    Postrouting,
}

impl Hook {
    /// The kernel's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }

    /// The hook with this number. None for hooks that only ARP and netdev tables have.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting]
            .into_iter()
            .find(|hook| hook.number() == number)
    }

    /// The hook's name in nft's syntax.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        }
    }
}

/// The verdict for packets that reach the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The packet continues with the next chain of the hook.
    Accept,
    /// The packet is dropped.
    Drop,
}

impl Policy {
    /// The policy's name in nft's syntax.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Drop => "drop",
        }
    }
}

/// How a base chain is attached to a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BaseChain {
    pub kind: ChainKind,
    pub hook: Hook,
    /// The chain's priority at the hook. Lower numbers come first (`enum nf_ip_hook_priorities` in
    /// `linux/netfilter_ipv4.h`: raw −300, dstnat −100, filter 0, srcnat 100).
    pub priority: i32,
    pub policy: Policy,
}

/// A chain to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    pub table: TableId,
    pub name: String,
    /// How the chain is attached to a hook. None for a chain that rules and maps lead to.
    pub base: Option<BaseChain>,
    /// A comment of at most 128 bytes. The kernel stores it since Linux 5.10.
    pub comment: Option<String>,
    /// What happens if the chain exists.
    pub create: Create,
}

impl Chain {
    /// A chain without a hook, which may already exist.
    #[must_use]
    pub fn new(table: &TableId, name: &str) -> Self {
        Self {
            table: table.clone(),
            name: name.to_owned(),
            base: None,
            comment: None,
            create: Create::OrKeep,
        }
    }

    /// Attaches the chain to a hook.
    #[must_use]
    pub const fn base(mut self, base: BaseChain) -> Self {
        self.base = Some(base);
        self
    }

    /// Sets the comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.to_owned());
        self
    }

    /// Makes it an error if the chain exists.
    #[must_use]
    pub const fn exclusive(mut self) -> Self {
        self.create = Create::Exclusive;
        self
    }
}

/// A rule to append to a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub table: TableId,
    pub chain: String,
    /// Statements.
    pub stmts: Vec<Stmt>,
    /// A comment of at most 128 bytes.
    pub comment: Option<String>,
}

impl Rule {
    /// A rule without a comment.
    #[must_use]
    pub fn new(table: &TableId, chain: &str, stmts: Vec<Stmt>) -> Self {
        Self { table: table.clone(), chain: chain.to_owned(), stmts, comment: None }
    }

    /// Sets the comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.to_owned());
        self
    }
}

/// What data the elements of a set have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MapData {
    /// No data, as in a plain set.
    None,
    Verdict,
    /// A value, or a concatenation of values.
    Values(Vec<DataType>),
}

/// What kind of keys a set has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keys {
    /// Single keys, in a hash table.
    Exact,
    /// Ranges of keys (`flags interval`). For concatenated keys, the kernel uses pipapo, which copies the set on each
    /// commit.
    Intervals,
}

/// A set or map to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub table: TableId,
    pub name: String,
    /// Types of the key. Several types form a concatenation.
    pub key: Vec<DataType>,
    pub data: MapData,
    pub keys: Keys,
    /// Maximum number of elements. None for no limit.
    pub size: Option<u32>,
    /// True if rules add elements to the set, with [`Stmt::Update`] (`flags dynamic`).
    pub is_updated: bool,
    /// True if elements of the set may have a time limit (`flags timeout`).
    pub timeouts: bool,
    /// A comment of at most 128 bytes.
    pub comment: Option<String>,
    /// What happens if the set exists.
    pub create: Create,
}

impl Set {
    /// A plain set with exact keys, which may already exist.
    #[must_use]
    pub fn new(table: &TableId, name: &str, key: &[DataType]) -> Self {
        Self {
            table: table.clone(),
            name: name.to_owned(),
            key: key.to_vec(),
            data: MapData::None,
            keys: Keys::Exact,
            size: None,
            is_updated: false,
            timeouts: false,
            comment: None,
            create: Create::OrKeep,
        }
    }

    /// Makes the set a map to values of these types.
    #[must_use]
    pub fn data(mut self, types: &[DataType]) -> Self {
        self.data = MapData::Values(types.to_vec());
        self
    }

    /// Makes the set a verdict map.
    #[must_use]
    pub fn verdicts(mut self) -> Self {
        self.data = MapData::Verdict;
        self
    }

    /// Makes the keys ranges.
    #[must_use]
    pub const fn intervals(mut self) -> Self {
        self.keys = Keys::Intervals;
        self
    }

    /// Lets rules add elements to the set, which must then have a size.
    #[must_use]
    pub const fn updated(mut self) -> Self {
        self.is_updated = true;
        self
    }

    /// Lets elements of the set have a time limit.
    #[must_use]
    pub const fn timeouts(mut self) -> Self {
        self.timeouts = true;
        self
    }

    /// Limits the number of elements.
    #[must_use]
    pub const fn size(mut self, elements: u32) -> Self {
        self.size = Some(elements);
        self
    }

    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.to_owned());
        self
    }

    /// Makes it an error if the set exists.
    #[must_use]
    pub const fn exclusive(mut self) -> Self {
        self.create = Create::Exclusive;
        self
    }

    /// `set` or `map`, as in nft's syntax.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self.data {
            MapData::None => "set",
            MapData::Verdict | MapData::Values(_) => "map",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ElementData {
    /// Nothing.
    None,
    Verdict(Verdict),
    Values(Vec<Value>),
}

/// An entry of an element's userdata that is neither the comment nor used by nft.
///
/// The kernel stores it, but `nft` neither prints nor restores it. All entries and the comment together must fit into
/// 256 bytes (`NFT_USERDATA_MAXLEN`), including two bytes per entry for type and length.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tlv {
    /// The type. For elements, `nft` itself uses 0 (comment) and 1 (flags).
    pub kind: u8,
    /// At most 255 bytes.
    pub bytes: Vec<u8>,
}

/// Identifies an element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ElementId {
    pub table: TableId,
    /// Name of the set or map.
    pub set: String,
    pub key: Vec<Value>,
    /// The last key of a range, in a set with [`Keys::Intervals`] and a concatenated key.
    pub key_end: Option<Vec<Value>>,
}

impl ElementId {
    /// An element with a single key.
    #[must_use]
    pub fn new(table: &TableId, set: &str, key: Vec<Value>) -> Self {
        Self { table: table.clone(), set: set.to_owned(), key, key_end: None }
    }

    /// Makes the key the range up to `key_end`, inclusive, in each part of the key. A set with [`Keys::Intervals`]
    /// needs this even for single keys, with both ends being the same.
    #[must_use]
    pub fn to(mut self, key_end: Vec<Value>) -> Self {
        self.key_end = Some(key_end);
        self
    }
}

/// An element to add. By default, it is an error if the element exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    pub id: ElementId,
    pub data: ElementData,
    /// A comment of at most 128 bytes.
    pub comment: Option<String>,
    /// The owner's entry in the userdata.
    pub tlv: Option<Tlv>,
    /// The time after which the kernel deletes the element, in a set with [`Set::timeouts`].
    pub timeout: Option<Duration>,
    /// What happens if the element exists.
    pub create: Create,
}

impl Element {
    /// An element without data.
    #[must_use]
    pub const fn new(id: ElementId) -> Self {
        Self {
            id,
            data: ElementData::None,
            comment: None,
            tlv: None,
            timeout: None,
            create: Create::Exclusive,
        }
    }

    /// Sets the data to values.
    #[must_use]
    pub fn values(mut self, values: Vec<Value>) -> Self {
        self.data = ElementData::Values(values);
        self
    }

    /// Sets the data to a verdict.
    #[must_use]
    pub fn verdict(mut self, verdict: Verdict) -> Self {
        self.data = ElementData::Verdict(verdict);
        self
    }

    /// Sets the comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.to_owned());
        self
    }

    /// Sets the owner's entry in the userdata.
    #[must_use]
    pub fn tlv(mut self, kind: u8, bytes: Vec<u8>) -> Self {
        self.tlv = Some(Tlv { kind, bytes });
        self
    }

    /// Makes the kernel delete the element after a time.
    #[must_use]
    pub const fn timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }

    /// Keeps an existing element with its comment.
    #[must_use]
    pub const fn or_keep(mut self) -> Self {
        self.create = Create::OrKeep;
        self
    }
}
