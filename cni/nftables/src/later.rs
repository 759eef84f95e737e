// SPDX-License-Identifier: GPL-2.0-or-later

//! Sockets that another process closes.
//!
//! The kernel frees what a commit has deleted after a grace period of RCU, some ten milliseconds later. Closing any
//! netfilter socket waits for that, and holds the lock that every commit needs (`nft_rcv_nl_event` in
//! net/netfilter/nf_tables_api.c): of many processes that delete at once, one ends in each grace period. So a process
//! that ends may leave its sockets to one that can wait.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sockets of a process that were dropped.
#[derive(Debug, Default)]
pub struct Kept {
    /// The sockets, still open.
    pub sockets: Vec<OwnedFd>,
    /// True if the process has committed a change of a ruleset.
    pub has_committed: bool,
}

/// None if dropped sockets are closed at once.
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

fn kept() -> MutexGuard<'static, Option<Kept>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the sockets of this process open from now on, until it ends or has [taken](take) them.
pub fn keep_open() {
    kept().get_or_insert_default();
}

/// Returns the sockets that were kept open, and keeps no more.
#[must_use]
pub fn take() -> Kept {
    kept().take().unwrap_or_default()
}

/// Keeps a socket open that is about to be closed, if that is wanted.
pub(crate) fn keep(socket: BorrowedFd<'_>) {
    if let Some(kept) = kept().as_mut() {
        // Without another descriptor, it is closed now.
        kept.sockets.extend(socket.try_clone_to_owned());
    }
}

/// Notes a commit.
pub(crate) fn committed() {
    if let Some(kept) = kept().as_mut() {
        kept.has_committed = true;
    }
}
