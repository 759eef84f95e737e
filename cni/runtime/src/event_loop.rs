// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs asynchronous code from blocking code.

use std::io;

use tokio::runtime::{Builder, Handle};

/// Runs a future to its end on an event loop of its own, whose threads are in the same namespaces as this thread.
pub(crate) fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> io::Result<T> {
    let run = || Ok(Builder::new_current_thread().enable_all().build()?.block_on(future));
    // tokio refuses a second event loop on a thread. That happens if a program calls this inside a future, or if a
    // plugin that runs in this process calls a delegate.
    if Handle::try_current().is_err() {
        return run();
    }
    std::thread::scope(|scope| {
        let ended = std::thread::Builder::new().spawn_scoped(scope, run)?.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocking_call_inside_a_future_ends() {
        let ready = block_on(async { block_on(async { 7 }).unwrap() });
        assert_eq!(ready.unwrap(), 7);
    }
}
