// SPDX-License-Identifier: GPL-2.0-or-later

//! Probes of the kernel's features in a temporary network namespace.

use cni_kernel::route::{RouteError, RouteSocket};
use cni_spec::{CniError, ErrorCode};
use nix::sched::{CloneFlags, unshare};

/// Runs `attempt` on a thread in a new network namespace, which disappears when the thread ends.
///
/// # Errors
/// Code 50 with the kernel's error.
pub(crate) fn in_new_namespace(
    attempt: impl FnOnce(&RouteSocket) -> Result<(), RouteError> + Send,
) -> Result<(), CniError> {
    let unavailable = |reason: String| CniError::new(ErrorCode::NotAvailable, reason);
    let tried = std::thread::scope(|scope| {
        let probe = || {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|errno| format!("make a network namespace: {errno}"))?;
            RouteSocket::open().and_then(|route| attempt(&route)).map_err(|error| error.to_string())
        };
        let thread = std::thread::Builder::new().spawn_scoped(scope, probe);
        let thread = thread.map_err(|error| format!("start a thread for a network namespace: {error}"))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    tried.map_err(unavailable)
}
