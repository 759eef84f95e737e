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
    /// Number of chains, sets and objects in the table.
    pub uses: u32,
    /// `NFT_TABLE_F_*`. The flag 1 means dormant: none of the table's chains is active.
    pub flags: u32,
    pub comment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainInfo {
    pub table: TableId,
    pub name: String,
    pub handle: u64,
    /// How the chain is attached to a hook. None for other chains, and for hooks and types that [`BaseChain`] lacks.
    pub base: Option<BaseChain>,
    /// The number of the chain's rules, plus the number of rules and map elements that lead to the chain. Nothing
    /// leads to a base chain, so for a base chain this is the number of rules.
    pub uses: u32,
    pub comment: Option<String>,
}

/// A set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetInfo {
    pub table: TableId,
    pub name: String,
    pub handle: u64,
    /// Types of the key. None if [`DataType`] lacks one of them.
    pub key: Option<Vec<DataType>>,
    /// Data of the elements. None if [`DataType`] lacks a type.
    pub data: Option<MapData>,
    /// Single keys or ranges.
    pub keys: Keys,
    /// Maximum number of elements.
    pub size: Option<u32>,
    /// Length of the key in bytes.
    pub key_len: u32,
    /// Length of the data in bytes, or 0 for a plain set.
    pub data_len: u32,
    /// `NFT_SET_*`.
    pub flags: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowtableInfo {
    pub table: TableId,
    pub name: String,
    pub handle: u64,
    /// Number of rules that use the flowtable.
    pub uses: u32,
    /// The links to which the flowtable is attached.
    pub devices: Vec<Links>,
    /// True if the flowtable counts packets.
    pub counter: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementInfo {
    pub key: Vec<Value>,
    /// The last key of a range.
    pub key_end: Option<Vec<Value>>,
    pub data: ElementData,
    pub comment: Option<String>,
    /// The owner's entries in the userdata: all entries except for the comment and nft's flags.
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
    /// The chain of the rule's last `jump` or `goto` verdict.
    pub target: Option<String>,
    /// The map in which the rule looks up a verdict or an address; the last one if there are several.
    pub map: Option<String>,
    /// The statements. None if this crate has no statement for one of the expressions. Ports are those of `th`, and
    /// an anonymous set has the name that the kernel assigned.
    pub stmts: Option<Vec<Stmt>>,
    /// Packets that the rule's first counter has counted. None if the rule has no counter.
    pub packets: Option<u64>,
}
