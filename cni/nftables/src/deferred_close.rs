// SPDX-License-Identifier: GPL-2.0-or-later

//! Deferred close: sockets that stay open when they are dropped, for another process to close.
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

/// The sockets that a process has dropped, and that are still open.
#[derive(Debug, Default)]
pub struct Deferred {
    pub sockets: Vec<OwnedFd>,
    /// True if the process has committed a change of a ruleset.
    pub has_committed: bool,
}

/// None if dropped sockets are closed at once.
static DEFERRED: Mutex<Option<Deferred>> = Mutex::new(None);

fn deferred() -> MutexGuard<'static, Option<Deferred>> {
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Defers closing the sockets of this process from now on, until it ends or has [taken](take) them.
pub fn enable() {
    deferred().get_or_insert_default();
}

/// Returns the sockets whose close was deferred, and defers no more. Those of other threads that run are not among
/// them.
#[must_use]
pub fn take() -> Deferred {
    OWN.with(Own::give_up);
    deferred().take().unwrap_or_default()
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
            if !is_used && let Some(deferred) = deferred().as_mut() {
                // Without another descriptor, it is closed now.
                deferred.sockets.extend(socket.as_fd().try_clone_to_owned());
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
    if deferred().is_some() {
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
            if let Some(deferred) = deferred().as_mut() {
                deferred.sockets.extend(socket.as_fd().try_clone_to_owned());
            }
        }
    });
}

/// Notes a commit.
pub(crate) fn committed() {
    if let Some(deferred) = deferred().as_mut() {
        deferred.has_committed = true;
    }
}
