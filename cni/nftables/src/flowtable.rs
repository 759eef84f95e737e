// SPDX-License-Identifier: GPL-2.0-or-later

//! Flowtables to add, as plain values.

use crate::object::TableId;

/// A flowtable to add, or devices to add to an existing one (Linux 5.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flowtable {
    pub table: TableId,
    pub name: String,
    /// The links at whose ingress the flowtable is looked up. Each named link must exist. When a link is deleted, the
    /// kernel removes it from the flowtable.
    pub devices: Vec<Links>,
    /// True if the packets of the flowtable's flows are counted in conntrack's accounting, provided that accounting
    /// is on (Linux 5.7).
    pub counter: bool,
}

/// Links to which a flowtable is attached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Links {
    Named(String),
    /// All links whose names have this prefix, including later ones (Linux 6.17: `NFTA_DEVICE_PREFIX`).
    Beginning(String),
}

impl Flowtable {
    /// A flowtable at the ingress hook of these links, with priority 0 and without a counter.
    #[must_use]
    pub fn new(table: &TableId, name: &str, devices: &[Links]) -> Self {
        Self { table: table.clone(), name: name.to_owned(), devices: devices.to_vec(), counter: false }
    }

    /// Makes the flowtable count packets. False does not change the setting of an existing flowtable.
    #[must_use]
    pub fn counter(mut self, counter: bool) -> Self {
        self.counter = counter;
        self
    }
}
