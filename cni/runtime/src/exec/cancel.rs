// SPDX-License-Identifier: MIT OR Apache-2.0

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A token that cancels all operations that have a clone of it.
///
/// ```
/// let cancel = cni_runtime::Cancel::new()?;
/// let other = cancel.clone();
/// std::thread::spawn(move || other.cancel());
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug, Clone)]
pub struct Cancel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cancelled: AtomicBool,
    /// Wakes poll(2), because the pipe hangs up when the writer is closed.
    reader: PipeReader,
    writer: Mutex<Option<PipeWriter>>,
    notify: tokio::sync::Notify,
}

impl Cancel {
    /// Makes a token that is not cancelled.
    ///
    /// # Errors
    /// The system has no descriptor for a pipe.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self(Arc::new(Inner {
            cancelled: AtomicBool::new(false),
            reader,
            writer: Mutex::new(Some(writer)),
            notify: tokio::sync::Notify::new(),
        })))
    }

    /// Cancels the operations. Running plugins are killed.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
        drop(self.0.writer.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.0.notify.notify_waiters();
    }

    /// True after [`Cancel::cancel`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    /// A descriptor that hangs up when the token is cancelled, for poll(2).
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.reader.as_fd()
    }

    /// Waits until the token is cancelled.
    pub async fn cancelled(&self) {
        let mut notified = std::pin::pin!(self.0.notify.notified());
        // The waiter is registered before the flag is read, so that a cancellation in between is not lost.
        notified.as_mut().enable();
        if !self.is_cancelled() {
            notified.await;
        }
    }
}
