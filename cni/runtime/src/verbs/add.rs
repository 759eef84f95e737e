// SPDX-License-Identifier: MIT OR Apache-2.0

use std::path::PathBuf;

use cni_spec::{AddResult, CniError};
use serde_json::Map;

use super::{Caller, Command, Del, Outcome, Step, Verb};
use crate::container::Container;
use crate::error::{CallError, NetworkError};
use crate::network::Network;

/// Calls ADD of every plugin in order, each with the result of the previous one.
///
/// The first failure ends the operation. With [`Add::undo`], DEL of the plugins that were called follows, in reverse
/// order.
#[derive(Debug)]
pub struct Add<'a> {
    caller: Caller<'a>,
    undo: bool,
    /// True if the container already had an interface with this name.
    had_interface: bool,
    /// The number of plugins that were found and called.
    called: usize,
    result: Option<AddResult>,
    undoing: Option<Undoing<'a>>,
}

#[derive(Debug)]
struct Undoing<'a> {
    error: NetworkError,
    del: Del<'a>,
}

impl<'a> Add<'a> {
    /// ADD of a container. `path` are the plugin directories.
    #[must_use]
    pub fn new(network: &'a Network, container: &Container, path: &[PathBuf]) -> Self {
        let caller = Caller::new(network, container, path);
        Self { caller, undo: false, had_interface: false, called: 0, result: None, undoing: None }
    }

    /// Calls DEL after a failure. The error is then [`NetworkError::Undone`].
    #[must_use]
    pub fn undo(self, undo: bool) -> Self {
        Self { undo, ..self }
    }

    /// Says whether the container already has an interface with this name. If it has and the first plugin fails, the
    /// interface and everything that goes with it belong to an earlier ADD, and nothing is undone.
    #[must_use]
    pub fn had_interface(self, had_interface: bool) -> Self {
        Self { had_interface, ..self }
    }

    /// Ends the operation with an error of the driver after the plugins have succeeded, for instance because the
    /// result could not be cached. The ADD is undone like after the failure of a plugin.
    pub fn fail(&mut self, error: NetworkError) -> Step<AddResult> {
        let made_nothing = self.called == 0 || (self.had_interface && self.result.is_none());
        if !self.undo || made_nothing {
            return Step::Done(Err(error));
        }
        let plugins = 0..self.called;
        let mut del = Del::of_part(self.caller.clone(), plugins, self.result.take());
        let first = del.next(None);
        self.undoing = Some(Undoing { error, del });
        self.undo_step(first)
    }

    fn undo_step(&mut self, step: Step<()>) -> Step<AddResult> {
        match step {
            Step::Call(mut call) => {
                call.undo = true;
                Step::Call(call)
            }
            Step::Done(done) => Step::Done(Err(match self.undoing.take() {
                Some(Undoing { error, .. }) => {
                    NetworkError::Undone { error: Box::new(error), undo: done.err().map(Box::new) }
                }
                None => NetworkError::Cancelled,
            })),
        }
    }

    /// Stores the outcome of the last call.
    fn take(&mut self, outcome: Outcome) -> Result<(), NetworkError> {
        let network = self.caller.network;
        let Some(plugin) = self.caller.plugins().get(self.called) else { return Ok(()) };
        let failed = |error| network.failed(plugin, "add", error);
        // A plugin that was not found has not run, so it has nothing to undo.
        if !matches!(outcome, Err(CallError::NotFound(_))) {
            self.called += 1;
        }
        let result = AddResult::from_output(network.version(), &outcome.map_err(failed)?)
            .map_err(|e| failed(CallError::Failed(CniError::internal(e.to_string()))))?;
        self.result = Some(result);
        Ok(())
    }
}

impl Verb for Add<'_> {
    type Output = AddResult;

    fn next(&mut self, last: Option<Outcome>) -> Step<AddResult> {
        if let Some(undoing) = &mut self.undoing {
            let step = undoing.del.next(last);
            return self.undo_step(step);
        }
        match last {
            None => {
                if let Err(error) = self.caller.network.attachment(&self.caller.container) {
                    return Step::Done(Err(error.into()));
                }
            }
            Some(outcome) => {
                if let Err(error) = self.take(outcome) {
                    return self.fail(error);
                }
            }
        }
        let Some(plugin) = self.caller.plugins().get(self.called) else {
            // The result is kept for `fail`.
            return Step::Done(Ok(self.result.clone().unwrap_or_default()));
        };
        match self.caller.call(plugin, Command::Add, self.result.as_ref(), &Map::new()) {
            Ok(call) => Step::Call(call),
            Err(error) => {
                let error = self.caller.network.failed(plugin, "add", error);
                self.fail(error)
            }
        }
    }
}
