//! The socket to nf_tables: commit and read.

use crate::error::Error;
use crate::object::{ElementId, TableId};
use crate::read::{ChainInfo, ElementInfo, RuleInfo, SetInfo, TableInfo};
use crate::transaction::Transaction;

/// A socket to nf_tables of the network namespace that the thread was in when it was opened.
#[derive(Debug)]
pub struct Socket {}

impl Socket {
    /// Opens it.
    ///
    /// # Errors
    /// No netfilter netlink in this kernel, or no permission.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {})
    }

    /// The ruleset's generation: it changes with every commit in this namespace, anyone's.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn generation(&self) -> Result<u32, Error> {
        Ok(0)
    }

    /// Makes all changes at once, or none. With a generation, only if it is still the current one:
    /// see [`Error::is_stale_generation`].
    ///
    /// # Errors
    /// Which change was refused and why; see the predicates of [`Error`].
    pub fn commit(&self, _transaction: &Transaction, _generation: Option<u32>) -> Result<(), Error> {
        Ok(())
    }

    /// Lets the kernel check all changes without making them.
    ///
    /// # Errors
    /// As [`Socket::commit`].
    pub fn dry_run(&self, _transaction: &Transaction) -> Result<(), Error> {
        Ok(())
    }

    /// All tables.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        Ok(Vec::new())
    }

    /// One table; none if there is none of that name.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn table(&self, _table: &TableId) -> Result<Option<TableInfo>, Error> {
        Ok(None)
    }

    /// All chains of all tables.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn all_chains(&self) -> Result<Vec<ChainInfo>, Error> {
        Ok(Vec::new())
    }

    /// The chains of one table; empty if there is no such table.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn chains(&self, _table: &TableId) -> Result<Vec<ChainInfo>, Error> {
        Ok(Vec::new())
    }

    /// One chain; none if it or its table is missing.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn chain(&self, _table: &TableId, _name: &str) -> Result<Option<ChainInfo>, Error> {
        Ok(None)
    }

    /// The rules of one chain; empty if there is no such chain.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn rules(&self, _table: &TableId, _chain: &str) -> Result<Vec<RuleInfo>, Error> {
        Ok(Vec::new())
    }

    /// The sets and maps of one table; empty if there is no such table.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn sets(&self, _table: &TableId) -> Result<Vec<SetInfo>, Error> {
        Ok(Vec::new())
    }

    /// One element by its key; none if it, its set or its table is missing.
    ///
    /// # Errors
    /// The kernel's, or an answer that makes no sense.
    pub fn element(&self, _id: &ElementId) -> Result<Option<ElementInfo>, Error> {
        Ok(None)
    }

    /// All elements of a set. See [`Socket::fold_elements`].
    ///
    /// # Errors
    /// The set or table is missing, the kernel's, or an answer that makes no sense.
    pub fn elements(&self, table: &TableId, set: &str) -> Result<Vec<ElementInfo>, Error> {
        self.fold_elements(table, set, Vec::new, Vec::push)
    }

    /// Goes through all elements of a set without keeping them. When someone changes the ruleset
    /// meanwhile, what was gathered is thrown away and it begins again with a new `start()`.
    ///
    /// # Errors
    /// The set or table is missing, the kernel's, or an answer that makes no sense; it kept changing
    /// (see [`Error::is_busy`]).
    pub fn fold_elements<T>(
        &self,
        _table: &TableId,
        _set: &str,
        start: impl Fn() -> T,
        _each: impl FnMut(&mut T, ElementInfo),
    ) -> Result<T, Error> {
        Ok(start())
    }
}
