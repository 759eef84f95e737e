// SPDX-License-Identifier: MIT OR Apache-2.0

use std::path::PathBuf;

use cni_spec::Version;
use serde_json::Map;

use super::{Caller, Command, Outcome, Step, Verb};
use crate::network::Network;

/// Calls STATUS of every plugin in order. The first failure ends the operation. Before version 1.1.0, which
/// introduced STATUS, this succeeds without calls.
#[derive(Debug)]
pub struct Status<'a> {
    caller: Caller<'a>,
    called: usize,
}

impl<'a> Status<'a> {
    /// STATUS of a network. `path` are the plugin directories.
    #[must_use]
    pub fn new(network: &'a Network, path: &[PathBuf]) -> Self {
        Self { caller: Caller::of_node(network, path), called: 0 }
    }
}

impl Verb for Status<'_> {
    type Output = ();

    fn next(&mut self, last: Option<Outcome>) -> Step<()> {
        match last {
            None if self.caller.network.is_older(Version::V1_1_0) => return Step::Done(Ok(())),
            None => {}
            Some(Err(error)) => return Step::Done(Err(error.into())),
            Some(Ok(_)) => self.called += 1,
        }
        let Some(plugin) = self.caller.plugins().get(self.called) else { return Step::Done(Ok(())) };
        match self.caller.call(plugin, Command::Status, None, &Map::new()) {
            Ok(call) => Step::Call(call),
            Err(error) => Step::Done(Err(error.into())),
        }
    }
}
