// SPDX-License-Identifier: MIT OR Apache-2.0

use std::ops::Range;
use std::path::PathBuf;

use cni_spec::{AddResult, Version};
use serde_json::Map;

use super::{Caller, Command, Outcome, Step, Verb};
use crate::container::Container;
use crate::error::{CallError, NetworkError, several};
use crate::network::Network;

/// Calls DEL of every plugin in reverse order, each with the result of the ADD.
///
/// The first failure ends the operation, as in libcni, unless [`Del::keep_going`] is set.
#[derive(Debug)]
pub struct Del<'a> {
    caller: Caller<'a>,
    keep_going: bool,
    /// The plugins that are still to be called, beginning with the last one.
    left: Range<usize>,
    /// The plugin that is being called.
    current: usize,
    result: Option<AddResult>,
    errors: Vec<NetworkError>,
}

impl<'a> Del<'a> {
    /// DEL of a container. `path` are the plugin directories, `result` is that of the ADD, if it is known and
    /// [`Del::takes_result`].
    #[must_use]
    pub fn new(
        network: &'a Network,
        container: &Container,
        path: &[PathBuf],
        result: Option<AddResult>,
    ) -> Self {
        let caller = Caller::new(network, container, path);
        let left = 0..caller.plugins().len();
        let result = result.filter(|_| Self::takes_result(network));
        Self { caller, keep_going: false, left, current: 0, result, errors: Vec::new() }
    }

    /// DEL for some of a network's plugins, to undo an ADD.
    pub(super) fn of_part(caller: Caller<'a>, left: Range<usize>, result: Option<AddResult>) -> Self {
        let result = result.filter(|_| Self::takes_result(caller.network));
        Self { caller, keep_going: true, left, current: 0, result, errors: Vec::new() }
    }

    /// Continues after a plugin that fails or is missing. All errors are reported.
    #[must_use]
    pub fn keep_going(self, keep_going: bool) -> Self {
        Self { keep_going, ..self }
    }

    /// True if plugins get the result of the ADD, which they do from version 0.4.0 on.
    #[must_use]
    pub fn takes_result(network: &Network) -> bool {
        !network.is_older(Version::V0_4_0)
    }

    /// True if the operation must end after an error.
    fn failed(&mut self, error: CallError) -> bool {
        let ends = !self.keep_going || error == CallError::Cancelled;
        if let Some(plugin) = self.caller.plugins().get(self.current) {
            self.errors.push(self.caller.network.failed(plugin, "delete", error));
        }
        ends
    }

    fn done(&mut self) -> Step<()> {
        Step::Done(several(std::mem::take(&mut self.errors)))
    }
}

impl Verb for Del<'_> {
    type Output = ();

    fn next(&mut self, last: Option<Outcome>) -> Step<()> {
        match last {
            None => {
                if let Err(error) = self.caller.network.attachment(&self.caller.container) {
                    return Step::Done(Err(error.into()));
                }
            }
            Some(Err(error)) => {
                if self.failed(error) {
                    return self.done();
                }
            }
            Some(Ok(_)) => {}
        }
        while let Some(index) = self.left.next_back() {
            self.current = index;
            let plugin = &self.caller.plugins()[index];
            match self.caller.call(plugin, Command::Del, self.result.as_ref(), &Map::new()) {
                Ok(call) => return Step::Call(call),
                Err(error) => {
                    if self.failed(error) {
                        break;
                    }
                }
            }
        }
        self.done()
    }
}
