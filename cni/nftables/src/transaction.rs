// SPDX-License-Identifier: GPL-2.0-or-later

//! A transaction as a value: build it, print it, commit it.

use std::fmt;

use crate::flowtable::Flowtable;
use crate::object::{Chain, Element, ElementId, Rule, Set, Table, TableId};

/// One change. [`fmt::Display`] prints it as a command in nft's syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    AddTable(Table),
    /// Deletes a table with everything in it. It is an error if the table does not exist.
    DeleteTable(TableId),
    /// Adds a chain.
    AddChain(Chain),
    /// Deletes a chain's rules.
    FlushChain {
        table: TableId,
        chain: String,
    },
    /// Deletes a chain, which must be empty and unused.
    DeleteChain {
        table: TableId,
        chain: String,
    },
    /// Appends a rule.
    AddRule(Rule),
    DeleteRule {
        table: TableId,
        chain: String,
        /// The rule's handle.
        handle: u64,
    },
    /// Adds a set or map.
    AddSet(Set),
    /// Deletes all elements of a set or map.
    FlushSet {
        table: TableId,
        /// The set or map.
        set: String,
    },
    /// Deletes a set or map that no rule uses.
    DeleteSet {
        table: TableId,
        /// The name of the set or map.
        set: String,
    },
    /// Adds a flowtable, or devices to an existing one.
    AddFlowtable(Flowtable),
    /// Deletes a flowtable that no rule uses. Its flows go through the chains again.
    DeleteFlowtable {
        table: TableId,
        flowtable: String,
    },
    AddElement(Element),
    /// Deletes an element. The kernel compares only the key, not the data. It is an error if the element does not
    /// exist.
    DeleteElement(ElementId),
}

/// Changes that the kernel makes atomically.
///
/// [`fmt::Display`] prints one nft command per line, in order. Later changes can refer to objects that earlier
/// changes add.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    ops: Vec<Op>,
}

impl Transaction {
    /// An empty transaction.
    #[must_use]
    pub const fn new() -> Self {
        Self { ops: Vec::new() }
    }

    /// The changes in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// True if it has no changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Appends a change.
    pub fn push(&mut self, op: Op) -> &mut Self {
        self.ops.push(op);
        self
    }

    /// Appends another transaction's changes.
    pub fn append(&mut self, mut other: Self) -> &mut Self {
        self.ops.append(&mut other.ops);
        self
    }

    pub fn add_table(&mut self, table: Table) -> &mut Self {
        self.push(Op::AddTable(table))
    }

    /// Deletes a table with everything in it.
    pub fn delete_table(&mut self, table: &TableId) -> &mut Self {
        self.push(Op::DeleteTable(table.clone()))
    }

    pub fn add_chain(&mut self, chain: Chain) -> &mut Self {
        self.push(Op::AddChain(chain))
    }

    /// Deletes a chain's rules.
    pub fn flush_chain(&mut self, table: &TableId, chain: &str) -> &mut Self {
        self.push(Op::FlushChain { table: table.clone(), chain: chain.to_owned() })
    }

    /// Deletes an empty, unused chain.
    pub fn delete_chain(&mut self, table: &TableId, chain: &str) -> &mut Self {
        self.push(Op::DeleteChain { table: table.clone(), chain: chain.to_owned() })
    }

    /// Appends a rule.
    pub fn add_rule(&mut self, rule: Rule) -> &mut Self {
        self.push(Op::AddRule(rule))
    }

    pub fn delete_rule(&mut self, table: &TableId, chain: &str, handle: u64) -> &mut Self {
        self.push(Op::DeleteRule { table: table.clone(), chain: chain.to_owned(), handle })
    }

    /// Adds a set or map.
    pub fn add_set(&mut self, set: Set) -> &mut Self {
        self.push(Op::AddSet(set))
    }

    /// Deletes all elements of a set or map.
    pub fn flush_set(&mut self, table: &TableId, set: &str) -> &mut Self {
        self.push(Op::FlushSet { table: table.clone(), set: set.to_owned() })
    }

    /// Deletes an unused set or map.
    pub fn delete_set(&mut self, table: &TableId, set: &str) -> &mut Self {
        self.push(Op::DeleteSet { table: table.clone(), set: set.to_owned() })
    }

    /// Adds a flowtable, or devices to an existing one.
    pub fn add_flowtable(&mut self, flowtable: Flowtable) -> &mut Self {
        self.push(Op::AddFlowtable(flowtable))
    }

    /// Deletes an unused flowtable.
    pub fn delete_flowtable(&mut self, table: &TableId, flowtable: &str) -> &mut Self {
        self.push(Op::DeleteFlowtable { table: table.clone(), flowtable: flowtable.to_owned() })
    }

    pub fn add_element(&mut self, element: Element) -> &mut Self {
        self.push(Op::AddElement(element))
    }

    pub fn delete_element(&mut self, element: ElementId) -> &mut Self {
        self.push(Op::DeleteElement(element))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddTable(table) => table.fmt(f),
            Self::DeleteTable(table) => write!(f, "delete table {table}"),
            Self::AddChain(chain) => chain.fmt(f),
            Self::FlushChain { table, chain } => write!(f, "flush chain {table} {chain}"),
            Self::DeleteChain { table, chain } => write!(f, "delete chain {table} {chain}"),
            Self::AddRule(rule) => rule.fmt(f),
            Self::DeleteRule { table, chain, handle } => {
                write!(f, "delete rule {table} {chain} handle {handle}")
            }
            Self::AddSet(set) => set.fmt(f),
            Self::FlushSet { table, set } => write!(f, "flush set {table} {set}"),
            Self::DeleteSet { table, set } => write!(f, "delete set {table} {set}"),
            Self::AddFlowtable(flowtable) => flowtable.fmt(f),
            Self::DeleteFlowtable { table, flowtable } => write!(f, "delete flowtable {table} {flowtable}"),
            Self::AddElement(element) => element.fmt(f),
            Self::DeleteElement(id) => write!(f, "delete element {id}"),
        }
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops.iter().try_for_each(|op| writeln!(f, "{op}"))
    }
}
