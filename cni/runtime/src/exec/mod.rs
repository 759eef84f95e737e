// SPDX-License-Identifier: MIT OR Apache-2.0

//! Running plugins: the trait [`Exec`], processes, and a scripted fake for unit tests.

mod cancel;
mod fake;
mod options;
mod processes;

use std::path::{Path, PathBuf};

use crate::error::CallError;
use crate::invoke;
use crate::verbs::PluginCall;

pub use cancel::Cancel;
pub use fake::{Expected, Fake};
pub use options::{CallOptions, DEFAULT_LIMIT, StderrSink, Trace};
pub use processes::Processes;
pub(crate) use processes::{Group, run};

#[cfg(feature = "tokio")]
pub(crate) use processes::{ATTEMPTS, GRACE, Lines, command, kill, outcome, status_text};

/// Finds and runs plugins.
pub trait Exec: Send + Sync {
    /// The file of a plugin in the plugin directories.
    ///
    /// # Errors
    /// [`CallError::NotFound`] if there is none, or the name is invalid.
    fn find(&self, plugin: &str, directories: &[PathBuf]) -> Result<PathBuf, CallError> {
        invoke::find(plugin, directories).map_err(CallError::NotFound)
    }

    /// Runs the plugin's file and returns its output.
    ///
    /// # Errors
    /// [`CallError::Failed`] with the plugin's own error; [`CallError::TimedOut`], [`CallError::Cancelled`].
    fn exec(&self, path: &Path, call: &PluginCall, options: &CallOptions) -> Result<Vec<u8>, CallError>;
}
