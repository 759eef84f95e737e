// SPDX-License-Identifier: MIT OR Apache-2.0

//! Running plugins: the trait [`Exec`], processes, and a scripted fake for unit tests.

mod cancel;
mod fake;
mod options;
pub(crate) mod output;
mod processes;

use std::path::PathBuf;
use std::pin::Pin;

use crate::verbs::{Outcome, PluginCall};

pub use cancel::Cancel;
pub use fake::{Expected, Fake};
pub use options::{CallOptions, DEFAULT_LIMIT, StderrSink, Trace};
pub(crate) use output::shown;
#[cfg(feature = "kubelet")]
pub(crate) use output::{Excerpt, STDERR_KEPT};
pub use processes::Processes;
pub(crate) use processes::{Group, run};
#[cfg(feature = "kubelet")]
pub(crate) use processes::{Running, status_text};

/// The future of a plugin's call.
pub type CallFuture<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// Finds and runs plugins.
pub trait Exec: Send + Sync {
    /// Finds the plugin's file in the directories, runs it and returns its output. Dropping the future ends the
    /// call.
    fn exec<'a>(
        &'a self,
        directories: &'a [PathBuf],
        call: &'a PluginCall,
        options: &'a CallOptions,
    ) -> CallFuture<'a>;
}
