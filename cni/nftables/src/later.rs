// SPDX-License-Identifier: GPL-2.0-or-later

//! Sockets that another process closes.
//!
//! The kernel frees what a commit has deleted after a grace period of RCU, some ten milliseconds later. Closing any
//! netfilter socket waits for that, and holds the lock that every commit needs (`nft_rcv_nl_event` in
//! net/netfilter/nf_tables_api.c): of many processes that delete at once, one ends in each grace period. So a process
//! that ends may leave its sockets to one that can wait.

use std::cell::RefCell;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::open_socket::OpenSocket;

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

/// Returns the sockets that were kept open, and keeps no more. Those of other threads that run are not among them.
#[must_use]
pub fn take() -> Kept {
    OWN.with(Own::give_up);
    kept().take().unwrap_or_default()
}

/// The sockets of a thread, which other sockets of it may be opened over.
///
/// A thread of a process that keeps its sockets enters another network namespace at its start or not at all: all its
/// sockets are of one namespace.
#[derive(Default)]
struct Own(RefCell<Vec<Rc<OpenSocket>>>);

thread_local! {
    static OWN: Own = const { Own(RefCell::new(Vec::new())) };
}

impl Own {
    /// Leaves the sockets that are not in use to the process.
    fn give_up(&self) {
        self.0.borrow_mut().retain(|socket| {
            let is_used = Rc::strong_count(socket) > 1;
            if !is_used && let Some(kept) = kept().as_mut() {
                // Without another descriptor, it is closed now.
                kept.sockets.extend(socket.as_fd().try_clone_to_owned());
            }
            is_used
        });
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Keeps a new socket open, if that is wanted.
pub(crate) fn keep(socket: &Rc<OpenSocket>) {
    if kept().is_some() {
        OWN.with(|own| own.0.borrow_mut().push(Rc::clone(socket)));
    }
}

/// Returns a socket of this thread that is not in use.
pub(crate) fn idle() -> Option<Rc<OpenSocket>> {
    OWN.with(|own| own.0.borrow().iter().find(|socket| Rc::strong_count(socket) == 1).cloned())
}

/// Has a socket not be used again.
pub(crate) fn retire(socket: &Rc<OpenSocket>) {
    // At the end of a thread the list may be gone.
    let _ = OWN.try_with(|own| {
        let mut own = own.0.borrow_mut();
        if let Some(found) = own.iter().position(|one| Rc::ptr_eq(one, socket)) {
            own.swap_remove(found);
            if let Some(kept) = kept().as_mut() {
                kept.sockets.extend(socket.as_fd().try_clone_to_owned());
            }
        }
    });
}

/// Notes a commit.
pub(crate) fn committed() {
    if let Some(kept) = kept().as_mut() {
        kept.has_committed = true;
    }
}
