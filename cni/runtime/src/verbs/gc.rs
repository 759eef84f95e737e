// SPDX-License-Identifier: MIT OR Apache-2.0

use std::path::PathBuf;

use cni_spec::{Attachment, Version};
use serde_json::{Map, Value, json};

use super::{Caller, Command, Outcome, Step, Verb};
use crate::error::{CallError, NetworkError, several};
use crate::network::{Network, kind};

/// Which attachments GC considers stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcScope<'a> {
    /// All attachments of the network that are not in the list. If the list is empty, all attachments of the network.
    AllBut(&'a [Attachment]),
    /// No attachment, because there is no list. Plugins get no list either, and remove only what they know to be
    /// stale.
    NoList,
    /// All attachments in the cache. Plugins get no list. This is libcni's GC without arguments.
    Cached,
}

impl<'a> GcScope<'a> {
    /// The list for the plugins.
    #[must_use]
    pub fn list(self) -> Option<&'a [Attachment]> {
        match self {
            Self::AllBut(list) => Some(list),
            Self::NoList | Self::Cached => None,
        }
    }

    /// True if a cached attachment is stale.
    #[must_use]
    pub fn is_stale(self, cached: &Attachment) -> bool {
        match self {
            Self::AllBut(list) => !list.contains(cached),
            Self::NoList => false,
            Self::Cached => true,
        }
    }
}

/// Calls GC of every plugin in order, from version 1.1.0 on. A failure does not end the operation, and all errors are
/// reported. The driver must already have called DEL for stale attachments in the cache.
#[derive(Debug)]
pub struct Gc<'a> {
    caller: Caller<'a>,
    called: usize,
    extra: Map<String, Value>,
    errors: Vec<NetworkError>,
}

impl<'a> Gc<'a> {
    /// GC of a network. `path` are the plugin directories, and `errors` are those of the preceding DELs.
    #[must_use]
    pub fn new(
        network: &'a Network,
        path: &[PathBuf],
        scope: GcScope<'_>,
        errors: Vec<NetworkError>,
    ) -> Self {
        let mut extra = Map::new();
        if let Some(list) = scope.list() {
            let list: Value = list
                .iter()
                .map(|one| json!({"containerID": one.container_id(), "ifname": one.ifname()}))
                .collect();
            extra.insert("cni.dev/valid-attachments".to_owned(), list.clone());
            extra.insert("cni.dev/attachments".to_owned(), list);
        }
        Self { caller: Caller::of_node(network, path), called: 0, extra, errors }
    }

    /// True if the operation must end after an error.
    fn failed(&mut self, plugin: &Map<String, Value>, error: CallError) -> bool {
        let ends = error == CallError::Cancelled;
        self.errors.push(NetworkError::Gc { plugin: kind(plugin).to_owned(), error });
        ends
    }

    fn done(&mut self) -> Step<()> {
        Step::Done(several(std::mem::take(&mut self.errors)))
    }
}

impl Verb for Gc<'_> {
    type Output = ();

    fn next(&mut self, last: Option<Outcome>) -> Step<()> {
        let network = self.caller.network;
        if network.list().disable_gc {
            return Step::Done(Ok(()));
        }
        if network.is_older(Version::V1_1_0) {
            return self.done();
        }
        let plugins = self.caller.plugins();
        if let Some(outcome) = last
            && let Some(plugin) = plugins.get(self.called)
        {
            self.called += 1;
            if let Err(error) = outcome
                && self.failed(plugin, error)
            {
                return self.done();
            }
        }
        while let Some(plugin) = plugins.get(self.called) {
            match self.caller.call(plugin, Command::Gc, None, &self.extra) {
                Ok(call) => return Step::Call(call),
                Err(error) => {
                    if self.failed(plugin, error) {
                        break;
                    }
                    self.called += 1;
                }
            }
        }
        self.done()
    }
}
