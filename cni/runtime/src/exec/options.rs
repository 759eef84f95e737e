// SPDX-License-Identifier: MIT OR Apache-2.0

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Cancel;
use crate::verbs::PluginCall;

/// The time limit of a plugin's call if the caller sets none.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(120);

/// Receives a plugin's standard error line by line, without the line feed, as the plugin writes it.
pub type StderrSink = Arc<dyn Fn(&PluginCall, &str) + Send + Sync>;

/// Options of the calls of an operation.
#[derive(Clone)]
pub struct CallOptions {
    pub(crate) limit: Duration,
    pub(crate) cancel: Option<Cancel>,
    pub(crate) stderr: Option<StderrSink>,
    pub(crate) trace: Trace,
}

/// The W3C trace context, which plugins get in their environment. Empty values are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// `TRACEPARENT`.
    pub parent: String,
    /// `TRACESTATE`.
    pub state: String,
    /// `BAGGAGE`.
    pub baggage: String,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self { limit: DEFAULT_LIMIT, cancel: None, stderr: None, trace: Trace::default() }
    }
}

impl CallOptions {
    /// Options with the limit [`DEFAULT_LIMIT`] and without cancellation. The standard error of plugins that succeed
    /// is copied to that of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time limit of each plugin's call, and of the wait for the locks.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Sets the token that cancels the operation.
    #[must_use]
    pub fn cancel(self, cancel: Cancel) -> Self {
        Self { cancel: Some(cancel), ..self }
    }

    /// Passes the standard error of all plugins to `sink`.
    #[must_use]
    pub fn stderr(self, sink: impl Fn(&PluginCall, &str) + Send + Sync + 'static) -> Self {
        Self { stderr: Some(Arc::new(sink)), ..self }
    }

    /// Sets the trace context.
    #[must_use]
    pub fn trace(self, trace: Trace) -> Self {
        Self { trace, ..self }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Adds the trace context to the call's environment, and returns the options for the call. An undo cannot be
    /// cancelled, so its options have no token.
    pub(crate) fn apply(&self, call: &mut PluginCall) -> Self {
        let Trace { parent, state, baggage } = &self.trace;
        for (name, value) in [("TRACEPARENT", parent), ("TRACESTATE", state), ("BAGGAGE", baggage)] {
            if !value.is_empty() {
                call.env.push((name.to_owned(), OsString::from(value)));
            }
        }
        let cancel = self.cancel.clone().filter(|_| !call.undo);
        Self { cancel, ..self.clone() }
    }
}

impl fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, cancel, stderr, trace } = self;
        f.debug_struct("CallOptions")
            .field("limit", limit)
            .field("cancel", cancel)
            .field("stderr", &stderr.is_some())
            .field("trace", trace)
            .finish()
    }
}
