//! Whether the kernel can do something, tried in a network namespace that is thrown away.

use cni_kernel::route::{RouteError, RouteSocket};
use cni_spec::{CniError, ErrorCode};
use nix::sched::{CloneFlags, unshare};

/// Tries it, on a thread of its own that enters the namespace and ends with it.
///
/// # Errors
/// Code 50 with what the kernel said.
pub(crate) fn in_new_namespace(
    attempt: impl FnOnce(&RouteSocket) -> Result<(), RouteError> + Send,
) -> Result<(), CniError> {
    let unavailable = |reason: String| CniError::new(ErrorCode::NotAvailable, reason);
    let tried = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|errno| format!("make a network namespace: {errno}"))?;
            RouteSocket::open().and_then(|route| attempt(&route)).map_err(|error| error.to_string())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    tried.map_err(unavailable)
}
