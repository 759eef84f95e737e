// SPDX-License-Identifier: GPL-2.0-or-later

//! The interface to the BPF programs, which serve packets ahead of the ruleset and must be notified of deletions.

use std::fmt;
use std::net::IpAddr;

use crate::{Error, PortRange, PublishedPort, Withdrawal};

/// An element of the ruleset, as far as an observer knows such things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A mapping.
    Port(PublishedPort),
    /// The address of a container with published ports.
    Container(IpAddr),
    /// A masqueraded address.
    Masqueraded(IpAddr),
}

/// Follows the deletions of the nftables backend. A failure is logged: it stops no deletion.
pub(crate) trait RulesetObserver: fmt::Debug + Sync {
    /// Forgets entries that are about to be deleted: until then no other attachment can have what they hold.
    ///
    /// `is_unchanged` is true while the ruleset is the one that the entries were read in. The observer asks
    /// after it has read what it knows of them, which then belongs to them and not to a successor. Where the
    /// ruleset has changed, it forgets nothing: the deletion is refused, and the call comes again.
    fn before_delete(
        &self,
        entries: &mut dyn Iterator<Item = Entry>,
        is_unchanged: &dyn Fn() -> Result<bool, Error>,
    );

    /// Follows a deletion that was committed, after its flows were removed from conntrack.
    fn deleted(&self);

    /// Forgets what an attachment has without an element, as after a flush of the ruleset.
    fn nothing_held(&self, withdrawal: &Withdrawal<'_>);

    /// Forgets containers whose link is gone.
    fn collect(&self);

    /// Source ports that the ruleset's masquerade must not choose.
    fn reserved_ports(&self) -> Option<PortRange>;
}

/// Observes nothing: for a ruleset that is only read.
#[derive(Debug)]
pub(crate) struct NoObserver;

impl RulesetObserver for NoObserver {
    fn before_delete(&self, _: &mut dyn Iterator<Item = Entry>, _: &dyn Fn() -> Result<bool, Error>) {}

    fn deleted(&self) {}

    fn nothing_held(&self, _: &Withdrawal<'_>) {}

    fn collect(&self) {}

    fn reserved_ports(&self) -> Option<PortRange> {
        None
    }
}
