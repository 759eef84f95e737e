// SPDX-License-Identifier: MIT OR Apache-2.0

//! Steps of the manager's operations: DEL, the sandbox's lock, changes of files, and work on threads.

use std::path::Path;
use std::sync::Arc;

use cni_kernel::dir::DirError;
use tokio::task::spawn_blocking;

use super::error::{PodError, PodVerb, SandboxError};
use super::journal::{Journal, Planned};
use super::request::Pod;
use crate::asynchronous;
use crate::error::NetworkError;
use crate::lock::Held;
use crate::network::Network;

pub(super) fn of_network(verb: PodVerb, pod: &Pod, network: &Network, error: NetworkError) -> PodError {
    PodError::Network {
        verb,
        pod: pod.full_name(),
        network: network.name().to_owned(),
        error: Box::new(error),
    }
}

/// Calls DEL for attachments, beginning with the last one. Returns the errors.
pub(super) async fn remove(runtime: &asynchronous::Runtime, pod: &Pod, planned: &[Planned]) -> Vec<PodError> {
    let mut errors = Vec::new();
    for Planned { network, container } in planned.iter().rev() {
        if let Err(error) = runtime.del(network, container).await {
            errors.push(of_network(PodVerb::Removing, pod, network, error));
        }
    }
    errors
}

/// Deletes the journal's entries for attachments that are cached or removed. A failure is only logged, because an
/// attachment that is also cached counts as cached, and another DEL changes nothing.
pub(super) async fn settled(
    runtime: &asynchronous::Runtime,
    held: &Arc<Held>,
    sandbox: &str,
    done: Vec<Planned>,
) {
    let sandbox = sandbox.to_owned();
    let removed = on_files(runtime, held, move |cache| match Journal::open(cache)? {
        Some(journal) => journal.remove(&sandbox, &done),
        None => Ok(()),
    });
    if let Err(error) = removed.await {
        log::warn!("{error}");
    }
}

/// Changes files in the cache's directory on a thread. The thread outlives the future if that is dropped, and holds
/// the lock until it ends.
pub(super) async fn on_files(
    runtime: &asynchronous::Runtime,
    held: &Arc<Held>,
    work: impl FnOnce(&Path) -> Result<(), DirError> + Send + 'static,
) -> Result<(), PodError> {
    let held = Arc::clone(held);
    let changed = runtime.blocking(move |store| {
        let _held = held;
        Ok(work(&store.cache)?)
    });
    Ok(changed.await?)
}

pub(super) async fn lock_pod(runtime: &asynchronous::Runtime, pod: &Pod) -> Result<Held, PodError> {
    let sandbox = pod.sandbox.clone();
    let lock = runtime.locked(move |store, options| match store.locks()? {
        Some(locks) => locks.pod(&sandbox, options),
        None => Ok(Held::nothing()),
    });
    Ok(lock.await?)
}

pub(super) async fn in_sandbox<T: Send + 'static>(
    pod: &Pod,
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, PodError> {
    let done = on_thread(work).await?;
    done.map_err(|error| PodError::Sandbox { pod: pod.full_name(), error })
}

/// Runs blocking work on a thread.
pub(super) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, PodError> {
    match spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => Err(NetworkError::Cancelled.into()),
        },
    }
}
