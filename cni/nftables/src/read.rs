//! What the kernel tells about the ruleset.

use crate::object::{BaseChain, ElementData, Keys, Links, MapData, TableId, Tlv};
use crate::stmt::Stmt;
use crate::value::{DataType, Value};

/// A table as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Family and name.
    pub id: TableId,
    /// Its number.
    pub handle: u64,
    /// How many chains, sets and objects it holds.
    pub uses: u32,
    /// `NFT_TABLE_F_*`: 1 is dormant, which no chain of ours survives.
    pub flags: u32,
    /// Its comment.
    pub comment: Option<String>,
}

/// A chain as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInfo {
    /// The table.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// Its number.
    pub handle: u64,
    /// How it is attached; none for other chains, and for hooks and kinds unknown to [`BaseChain`].
    pub base: Option<BaseChain>,
    /// How many rules it has plus how many rules and map elements lead to it. Nothing leads to a
    /// base chain, so that there it is the number of rules.
    pub uses: u32,
    /// Its comment.
    pub comment: Option<String>,
}

/// A set or map as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInfo {
    /// The table.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// Its number.
    pub handle: u64,
    /// The key's types; none if they are unknown to [`DataType`].
    pub key: Option<Vec<DataType>>,
    /// What it holds; none if that is unknown to [`DataType`].
    pub data: Option<MapData>,
    /// Single keys or ranges.
    pub keys: Keys,
    /// The most elements it may hold.
    pub size: Option<u32>,
    /// The key's length in bytes.
    pub key_len: u32,
    /// The datum's length in bytes; 0 for a plain set.
    pub data_len: u32,
    /// `NFT_SET_*`.
    pub flags: u32,
}

/// A flowtable as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowtableInfo {
    /// The table.
    pub table: TableId,
    /// Its name.
    pub name: String,
    /// Its number.
    pub handle: u64,
    /// How many rules use it.
    pub uses: u32,
    /// The links it is hooked to.
    pub devices: Vec<Links>,
    /// True if it counts.
    pub counter: bool,
}

/// An element as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementInfo {
    /// The key.
    pub key: Vec<Value>,
    /// The last key of a range.
    pub key_end: Option<Vec<Value>>,
    /// What it leads to.
    pub data: ElementData,
    /// Its comment.
    pub comment: Option<String>,
    /// Bytes for the owner: all that is neither the comment nor nft's flags.
    pub tlvs: Vec<Tlv>,
}

impl ElementInfo {
    /// The owner's bytes of this kind.
    #[must_use]
    pub fn tlv(&self, kind: u8) -> Option<&[u8]> {
        self.tlvs.iter().find(|tlv| tlv.kind == kind).map(|tlv| tlv.bytes.as_slice())
    }
}

/// A rule as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleInfo {
    /// The table.
    pub table: TableId,
    /// The chain.
    pub chain: String,
    /// Its number in the table.
    pub handle: u64,
    /// Its comment.
    pub comment: Option<String>,
    /// The chain that its closing verdict leads to, if it jumps or goes to one.
    pub target: Option<String>,
    /// What it says; none if it has an expression that this crate has no statement for. Ports are those of
    /// `th`; a set of alternatives has the name that the kernel gave it.
    pub stmts: Option<Vec<Stmt>>,
}
