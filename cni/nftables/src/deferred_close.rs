// SPDX-License-Identifier: GPL-2.0-or-later

//! Deferred close: sockets that stay open when they are dropped, so that another process can close them.
//!
//! After a commit, the kernel frees deleted objects at the end of an RCU grace period, some ten milliseconds later.
//! Closing any netfilter socket waits for this while holding the lock that every commit needs (`nft_rcv_nl_event` in
//! net/netfilter/nf_tables_api.c), so if many processes delete objects concurrently, only one of them can end in each
//! grace period. A process that ends may therefore leave its sockets to one that can wait.

use std::cell::RefCell;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::open_socket::OpenSocket;

/// The sockets that a process has dropped and that are still open.
#[derive(Debug, Default)]
pub struct Deferred {
    pub sockets: Vec<OwnedFd>,
    /// True if the process has committed a change of a ruleset.
    pub has_committed: bool,
}

/// None if dropped sockets are closed immediately.
static DEFERRED: Mutex<Option<Deferred>> = Mutex::new(None);

fn deferred() -> MutexGuard<'static, Option<Deferred>> {
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on, sockets of this process stay open when they are dropped, until the process ends or [takes](take)
/// them.
pub fn enable() {
    deferred().get_or_insert_default();
}

/// Returns the sockets whose close was deferred, and stops deferring. Sockets of other threads that are still running
/// are not included.
#[must_use]
pub fn take() -> Deferred {
    OWN.with(Own::give_up);
    deferred().take().unwrap_or_default()
}

/// The sockets of a thread that later channels of the same thread may reuse.
///
/// A thread of a process that defers closing enters another network namespace at its start or not at all, so all its
/// sockets belong to the same namespace.
#[derive(Default)]
struct Own(RefCell<Vec<Rc<OpenSocket>>>);

thread_local! {
    static OWN: Own = const { Own(RefCell::new(Vec::new())) };
}

impl Own {
    /// Hands the sockets that are not in use over to the process.
    fn give_up(&self) {
        self.0.borrow_mut().retain(|socket| {
            let is_used = Rc::strong_count(socket) > 1;
            if !is_used && let Some(deferred) = deferred().as_mut() {
                // If there is no other descriptor, the socket is closed now.
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

/// Keeps a new socket open, if closing is deferred.
pub(crate) fn keep(socket: &Rc<OpenSocket>) {
    if deferred().is_some() {
        OWN.with(|own| own.0.borrow_mut().push(Rc::clone(socket)));
    }
}

/// Returns a socket of this thread that is not in use. None if there is no such socket.
pub(crate) fn idle() -> Option<Rc<OpenSocket>> {
    OWN.with(|own| own.0.borrow().iter().find(|socket| Rc::strong_count(socket) == 1).cloned())
}

/// Makes sure that a socket is not used again.
pub(crate) fn retire(socket: &Rc<OpenSocket>) {
    // The list may already be gone when a thread ends.
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

/// Remembers that the process has committed a change.
pub(crate) fn committed() {
    if let Some(deferred) = deferred().as_mut() {
        deferred.has_committed = true;
    }
}
