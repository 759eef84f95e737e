// SPDX-License-Identifier: MIT OR Apache-2.0

use std::path::PathBuf;

use cni_spec::AddResult;
use serde_json::Map;

use super::{Caller, Command, Outcome, Step, Verb};
use crate::container::Container;
use crate::network::Network;

/// Calls CHECK of every plugin in order, each with the result of the ADD. The first failure ends the operation.
#[derive(Debug)]
pub struct Check<'a> {
    caller: Caller<'a>,
    called: usize,
    result: Option<AddResult>,
}

impl<'a> Check<'a> {
    /// CHECK of a container. `path` are the plugin directories, `result` is that of the ADD.
    #[must_use]
    pub fn new(
        network: &'a Network,
        container: &Container,
        path: &[PathBuf],
        result: Option<AddResult>,
    ) -> Self {
        Self { caller: Caller::new(network, container, path), called: 0, result }
    }
}

impl Verb for Check<'_> {
    type Output = ();

    fn next(&mut self, last: Option<Outcome>) -> Step<()> {
        let network = self.caller.network;
        match last {
            None => match network.wants_check() {
                Err(error) => return Step::Done(Err(error)),
                Ok(false) => return Step::Done(Ok(())),
                Ok(true) => {
                    if let Err(error) = network.attachment(&self.caller.container) {
                        return Step::Done(Err(error.into()));
                    }
                }
            },
            Some(Err(error)) => return Step::Done(Err(error.into())),
            Some(Ok(_)) => self.called += 1,
        }
        let Some(plugin) = self.caller.plugins().get(self.called) else { return Step::Done(Ok(())) };
        match self.caller.call(plugin, Command::Check, self.result.as_ref(), &Map::new()) {
            Ok(call) => Step::Call(call),
            Err(error) => Step::Done(Err(error.into())),
        }
    }
}
