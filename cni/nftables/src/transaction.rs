//! A transaction as a value: build it, print it, commit it.

use std::fmt;

use crate::object::{Chain, Element, ElementId, Flowtable, Rule, Set, Table, TableId};

/// One change. Its [`fmt::Display`] is one command of nft's syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Makes a table.
    AddTable(Table),
    /// Removes a table with all it holds. Its absence is an error.
    DeleteTable(TableId),
    /// Makes a chain.
    AddChain(Chain),
    /// Removes a chain's rules.
    FlushChain {
        /// The table.
        table: TableId,
        /// The chain.
        chain: String,
    },
    /// Removes a chain, which must be empty and unused.
    DeleteChain {
        /// The table.
        table: TableId,
        /// The chain.
        chain: String,
    },
    /// Appends a rule.
    AddRule(Rule),
    /// Removes a rule.
    DeleteRule {
        /// The table.
        table: TableId,
        /// The chain.
        chain: String,
        /// The rule's number in its table.
        handle: u64,
    },
    /// Makes a set or map.
    AddSet(Set),
    /// Removes all elements of a set or map.
    FlushSet {
        /// The table.
        table: TableId,
        /// The set or map.
        set: String,
    },
    /// Removes a set or map, which no rule may use.
    DeleteSet {
        /// The table.
        table: TableId,
        /// The set or map.
        set: String,
    },
    /// Makes a flowtable, or adds devices to one.
    AddFlowtable(Flowtable),
    /// Removes a flowtable, which no rule may use. Its flows are ordinary ones again.
    DeleteFlowtable {
        /// The table.
        table: TableId,
        /// The flowtable.
        flowtable: String,
    },
    /// Makes an element.
    AddElement(Element),
    /// Removes an element, whatever it leads to: the kernel compares the key alone. Its absence is
    /// an error.
    DeleteElement(ElementId),
}

/// Changes that the kernel makes all at once, or not at all.
///
/// Its [`fmt::Display`] prints one nft command per line, in order, so that it can be reviewed and
/// compared as text. Objects may refer to what earlier changes of the same transaction make.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    ops: Vec<Op>,
}

impl Transaction {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self { ops: Vec::new() }
    }

    /// The changes in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Adds any change.
    pub fn push(&mut self, op: Op) -> &mut Self {
        self.ops.push(op);
        self
    }

    /// Adds another transaction's changes.
    pub fn append(&mut self, mut other: Self) -> &mut Self {
        self.ops.append(&mut other.ops);
        self
    }

    /// Makes a table.
    pub fn add_table(&mut self, table: Table) -> &mut Self {
        self.push(Op::AddTable(table))
    }

    /// Removes a table with all it holds.
    pub fn delete_table(&mut self, table: &TableId) -> &mut Self {
        self.push(Op::DeleteTable(table.clone()))
    }

    /// Makes a chain.
    pub fn add_chain(&mut self, chain: Chain) -> &mut Self {
        self.push(Op::AddChain(chain))
    }

    /// Removes a chain's rules.
    pub fn flush_chain(&mut self, table: &TableId, chain: &str) -> &mut Self {
        self.push(Op::FlushChain { table: table.clone(), chain: chain.to_owned() })
    }

    /// Removes an empty, unused chain.
    pub fn delete_chain(&mut self, table: &TableId, chain: &str) -> &mut Self {
        self.push(Op::DeleteChain { table: table.clone(), chain: chain.to_owned() })
    }

    /// Appends a rule.
    pub fn add_rule(&mut self, rule: Rule) -> &mut Self {
        self.push(Op::AddRule(rule))
    }

    /// Removes a rule.
    pub fn delete_rule(&mut self, table: &TableId, chain: &str, handle: u64) -> &mut Self {
        self.push(Op::DeleteRule { table: table.clone(), chain: chain.to_owned(), handle })
    }

    /// Makes a set or map.
    pub fn add_set(&mut self, set: Set) -> &mut Self {
        self.push(Op::AddSet(set))
    }

    /// Removes all elements of a set or map.
    pub fn flush_set(&mut self, table: &TableId, set: &str) -> &mut Self {
        self.push(Op::FlushSet { table: table.clone(), set: set.to_owned() })
    }

    /// Removes an unused set or map.
    pub fn delete_set(&mut self, table: &TableId, set: &str) -> &mut Self {
        self.push(Op::DeleteSet { table: table.clone(), set: set.to_owned() })
    }

    /// Makes a flowtable, or adds devices to one.
    pub fn add_flowtable(&mut self, flowtable: Flowtable) -> &mut Self {
        self.push(Op::AddFlowtable(flowtable))
    }

    /// Removes an unused flowtable.
    pub fn delete_flowtable(&mut self, table: &TableId, flowtable: &str) -> &mut Self {
        self.push(Op::DeleteFlowtable { table: table.clone(), flowtable: flowtable.to_owned() })
    }

    /// Makes an element.
    pub fn add_element(&mut self, element: Element) -> &mut Self {
        self.push(Op::AddElement(element))
    }

    /// Removes an element.
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
