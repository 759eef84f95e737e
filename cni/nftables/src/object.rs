//! Tables, chains, rules, sets and elements as plain values.

use std::fmt;

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
    /// ARP.
    Arp,
    /// One device's ingress or egress.
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

    /// The family with this number.
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

/// Which table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
}

impl TableId {
    /// Names a table.
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

/// Whether something may be there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Create {
    /// An equal one that is there is an error (`NLM_F_EXCL`; `create` in nft's syntax).
    Exclusive,
    /// An equal one that is there is left as it is, its comment included (`add` in nft's syntax).
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

/// A table to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Family and name.
    pub id: TableId,
    /// A comment, at most 128 bytes. Linux keeps it since 5.10.
    pub comment: Option<String>,
    /// What if it exists.
    pub create: Create,
}

impl Table {
    /// A table that may exist already.
    #[must_use]
    pub fn new(id: &TableId) -> Self {
        Self { id: id.clone(), comment: None, create: Create::OrKeep }
    }

    /// Sets the comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.to_owned());
        self
    }

    /// Makes an existing one an error.
    #[must_use]
    pub const fn exclusive(mut self) -> Self {
        self.create = Create::Exclusive;
        self
    }
}

/// What a base chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// `type filter`.
    Filter,
    /// `type nat`: sees the first packet of each flow.
    Nat,
    /// `type route`: changes of the mark reroute locally made packets.
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

/// Where a base chain is attached. The numbers are the same for inet, ip, ip6 and bridge
/// (`NF_INET_*` in `linux/netfilter.h`, `NF_BR_*` in `linux/netfilter_bridge.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Packets that came in, before routing.
    Prerouting,
    /// Packets for this host.
    Input,
    /// Packets that pass through.
    Forward,
    /// Packets made here.
    Output,
    /// Packets about to leave.
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

    /// The hook with this number; none for those that only ARP and netdev tables have.
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

/// What happens at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// On to the next chain of the hook.
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

/// How a chain is attached to a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// Its kind.
    pub kind: ChainKind,
    /// Its hook.
    pub hook: Hook,
    /// Its place among the hook's chains; lower is earlier (`enum nf_ip_hook_priorities` in
    /// `linux/netfilter_ipv4.h`: raw −300, dstnat −100, filter 0, srcnat 100).
    pub priority: i32,
    /// Its policy.
    pub policy: Policy,
}

/// A chain to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The table it is in.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// How it is attached; none for a chain that rules and maps lead to.
    pub base: Option<BaseChain>,
    /// A comment, at most 128 bytes. Linux keeps it since 5.10.
    pub comment: Option<String>,
    /// What if it exists.
    pub create: Create,
}

impl Chain {
    /// A chain that rules and maps lead to; it may exist already.
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

    /// Attaches it to a hook.
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

    /// Makes an existing one an error.
    #[must_use]
    pub const fn exclusive(mut self) -> Self {
        self.create = Create::Exclusive;
        self
    }
}

/// A rule to append to a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The table.
    pub table: TableId,
    /// The chain.
    pub chain: String,
    /// What it says.
    pub stmts: Vec<Stmt>,
    /// A comment, at most 128 bytes.
    pub comment: Option<String>,
}

impl Rule {
    /// A rule without comment.
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

/// A flowtable to make, or devices to add to one that is there (Linux 5.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flowtable {
    /// The table.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// The links whose packets look for their flow in it as they come in. One that is named must be there;
    /// one that goes leaves it by itself.
    pub devices: Vec<Links>,
    /// True if packets of its flows are counted in conntrack's accounting, where that is on (Linux 5.7).
    pub counter: bool,
}

/// Links that a flowtable is hooked to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Links {
    /// One, by its name.
    Named(String),
    /// All whose names begin so, those that come later too (Linux 6.17: `NFTA_DEVICE_PREFIX`).
    Beginning(String),
}

impl Flowtable {
    /// A flowtable at the ingress hook of these links, priority 0, that counts nothing.
    #[must_use]
    pub fn new(table: &TableId, name: &str, devices: &[Links]) -> Self {
        Self { table: table.clone(), name: name.to_owned(), devices: devices.to_vec(), counter: false }
    }

    /// Counts packets, or leaves the setting of a flowtable that is there as it is.
    #[must_use]
    pub fn counter(mut self, counter: bool) -> Self {
        self.counter = counter;
        self
    }
}

/// What the elements of a set lead to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MapData {
    /// Nothing: a plain set.
    None,
    /// A verdict.
    Verdict,
    /// A value, or a concatenation of values.
    Values(Vec<DataType>),
}

/// How a set's keys are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keys {
    /// Each element is one key; a hash table.
    Exact,
    /// An element may be a range of keys (`flags interval`). For concatenated keys this is pipapo,
    /// which copies itself on each commit.
    Intervals,
}

/// A set or map to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// The table.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// The key's type; more than one is a concatenation.
    pub key: Vec<DataType>,
    /// What an element leads to.
    pub data: MapData,
    /// Single keys or ranges.
    pub keys: Keys,
    /// The most elements it may hold; none for no limit.
    pub size: Option<u32>,
    /// A comment, at most 128 bytes.
    pub comment: Option<String>,
    /// What if it exists.
    pub create: Create,
}

impl Set {
    /// A plain set with exact keys; it may exist already.
    #[must_use]
    pub fn new(table: &TableId, name: &str, key: &[DataType]) -> Self {
        Self {
            table: table.clone(),
            name: name.to_owned(),
            key: key.to_vec(),
            data: MapData::None,
            keys: Keys::Exact,
            size: None,
            comment: None,
            create: Create::OrKeep,
        }
    }

    /// Makes it a map.
    #[must_use]
    pub fn data(mut self, types: &[DataType]) -> Self {
        self.data = MapData::Values(types.to_vec());
        self
    }

    /// Makes it a verdict map.
    #[must_use]
    pub fn verdicts(mut self) -> Self {
        self.data = MapData::Verdict;
        self
    }

    /// Lets elements be ranges.
    #[must_use]
    pub const fn intervals(mut self) -> Self {
        self.keys = Keys::Intervals;
        self
    }

    /// Limits the number of elements.
    #[must_use]
    pub const fn size(mut self, elements: u32) -> Self {
        self.size = Some(elements);
        self
    }

    /// Sets the comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.comment = Some(comment.to_owned());
        self
    }

    /// Makes an existing one an error.
    #[must_use]
    pub const fn exclusive(mut self) -> Self {
        self.create = Create::Exclusive;
        self
    }

    /// `set` or `map`, as nft's syntax calls it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self.data {
            MapData::None => "set",
            MapData::Verdict | MapData::Values(_) => "map",
        }
    }
}

/// What an element leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ElementData {
    /// Nothing.
    None,
    /// A verdict.
    Verdict(Verdict),
    /// Values.
    Values(Vec<Value>),
}

/// Bytes that an element carries for its owner, beside the comment.
///
/// The kernel keeps them; `nft` neither shows nor reloads them. With the comment they must fit into
/// 256 bytes (`NFT_USERDATA_MAXLEN`), each taking two bytes more for its type and length.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tlv {
    /// Its type; `nft` itself uses 0 (comment) and 1 (flags) for elements.
    pub kind: u8,
    /// At most 255 bytes.
    pub bytes: Vec<u8>,
}

/// Which element of which set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ElementId {
    /// The table.
    pub table: TableId,
    /// The set's or map's name.
    pub set: String,
    /// The key.
    pub key: Vec<Value>,
    /// The last key of a range, in a set with [`Keys::Intervals`] and a concatenated key.
    pub key_end: Option<Vec<Value>>,
}

impl ElementId {
    /// One key.
    #[must_use]
    pub fn new(table: &TableId, set: &str, key: Vec<Value>) -> Self {
        Self { table: table.clone(), set: set.to_owned(), key, key_end: None }
    }

    /// From the key to this one, part by part, both included. A set with [`Keys::Intervals`] needs
    /// it for single keys, too: then both are the same.
    #[must_use]
    pub fn to(mut self, key_end: Vec<Value>) -> Self {
        self.key_end = Some(key_end);
        self
    }
}

/// An element to make. Unless asked otherwise, one that is there already is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Set and key.
    pub id: ElementId,
    /// What it leads to.
    pub data: ElementData,
    /// A comment, at most 128 bytes.
    pub comment: Option<String>,
    /// Bytes for the owner.
    pub tlv: Option<Tlv>,
    /// What if it exists.
    pub create: Create,
}

impl Element {
    /// An element without data.
    #[must_use]
    pub const fn new(id: ElementId) -> Self {
        Self { id, data: ElementData::None, comment: None, tlv: None, create: Create::Exclusive }
    }

    /// Leads to values.
    #[must_use]
    pub fn values(mut self, values: Vec<Value>) -> Self {
        self.data = ElementData::Values(values);
        self
    }

    /// Leads to a verdict.
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

    /// Sets the owner's bytes.
    #[must_use]
    pub fn tlv(mut self, kind: u8, bytes: Vec<u8>) -> Self {
        self.tlv = Some(Tlv { kind, bytes });
        self
    }

    /// Leaves one that is there as it is, its comment included.
    #[must_use]
    pub const fn or_keep(mut self) -> Self {
        self.create = Create::OrKeep;
        self
    }
}
