// SPDX-License-Identifier: GPL-2.0-or-later

//! The ruleset as the kernel describes it.

use crate::flowtable::Links;
use crate::object::{BaseChain, ElementData, Keys, MapData, TableId, Tlv};
use crate::stmt::Stmt;
use crate::value::{DataType, Value};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Family and name.
    pub id: TableId,
    pub handle: u64,
    /// Number of chains, sets and objects in it.
    pub uses: u32,
    /// `NFT_TABLE_F_*`: 1 is dormant, in which no chain of a table is active.
    pub flags: u32,
    pub comment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInfo {
    pub table: TableId,
    pub name: String,
    pub handle: u64,
    /// Attachment to a hook; none for other chains, and for hooks and kinds unknown to [`BaseChain`].
    pub base: Option<BaseChain>,
    /// Number of its rules plus number of rules and map elements that lead to it. Nothing leads to a base
    /// chain, so for such this is the number of rules.
    pub uses: u32,
    pub comment: Option<String>,
}

/// A set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInfo {
    pub table: TableId,
    pub name: String,
    pub handle: u64,
    /// Types of the key; none if [`DataType`] lacks one.
    pub key: Option<Vec<DataType>>,
    /// Data of the elements; none if [`DataType`] lacks a type.
    pub data: Option<MapData>,
    /// Single keys or ranges.
    pub keys: Keys,
    /// Maximum number of elements.
    pub size: Option<u32>,
    /// Length of the key in bytes.
    pub key_len: u32,
    /// Length of the data in bytes; 0 for a plain set.
    pub data_len: u32,
    /// `NFT_SET_*`.
    pub flags: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowtableInfo {
    pub table: TableId,
    pub name: String,
    pub handle: u64,
    /// Number of rules that use it.
    pub uses: u32,
    /// The links to which it is attached.
    pub devices: Vec<Links>,
    /// True if it counts.
    pub counter: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementInfo {
    pub key: Vec<Value>,
    /// The last key of a range.
    pub key_end: Option<Vec<Value>>,
    pub data: ElementData,
    pub comment: Option<String>,
    /// The owner's entries in the userdata: all but the comment and nft's flags.
    pub tlvs: Vec<Tlv>,
}

impl ElementInfo {
    /// The owner's entry of this type.
    #[must_use]
    pub fn tlv(&self, kind: u8) -> Option<&[u8]> {
        self.tlvs.iter().find(|tlv| tlv.kind == kind).map(|tlv| tlv.bytes.as_slice())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleInfo {
    pub table: TableId,
    pub chain: String,
    /// Handle, unique in the table.
    pub handle: u64,
    pub comment: Option<String>,
    /// The chain to which its last verdict jumps or goes.
    pub target: Option<String>,
    /// The map in which it looks a verdict or an address up; the last one if there are more.
    pub map: Option<String>,
    /// Statements; none if an expression has no statement in this crate. Ports are those of `th`; an
    /// anonymous set has the name that the kernel gave it.
    pub stmts: Option<Vec<Stmt>>,
    /// Packets that its first counter has counted; none without a counter.
    pub packets: Option<u64>,
}
