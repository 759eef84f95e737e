// SPDX-License-Identifier: MIT OR Apache-2.0
#![allow(clippy::panic, reason = "a deviation from the script fails the test of the caller")]

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CallFuture, CallOptions, Exec};
use crate::error::CallError;
use crate::verbs::{Command, Outcome, PluginCall};

/// A scripted [`Exec`] for unit tests: no files, no processes.
///
/// Calls must come in the order of the script. An unexpected call panics. So does dropping the last clone if some
/// calls of the script have not been made.
///
/// ```
/// use std::sync::Arc;
/// use cni_runtime::exec::{Expected, Fake};
/// use cni_runtime::verbs::Command;
/// use cni_runtime::{Container, Network, Runtime};
/// use serde_json::json;
///
/// let network = Network::builder("pods").plugin(json!({"type": "bridge"})).build()?;
/// let fake = Fake::new([
///     Expected::call("bridge", Command::Add).prints(json!({"ips": [{"address": "10.22.0.2/24"}]}).to_string()),
/// ]);
/// let directory = tempfile::tempdir()?;
/// let runtime = Runtime::builder().cache(directory.path()).exec(Arc::new(fake.clone())).build();
/// let result = runtime.add(&network, &Container::new("c1", "eth0").netns("/run/netns/c1"))?;
/// assert_eq!(result.ips[0].address.to_string(), "10.22.0.2/24");
/// assert_eq!(fake.calls()[0].var("CNI_NETNS").unwrap(), "/run/netns/c1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Fake(Arc<Script>);

#[derive(Debug, Default)]
struct Script {
    expected: Mutex<VecDeque<Expected>>,
    calls: Mutex<Vec<PluginCall>>,
}

/// A call of a script, with its outcome.
#[derive(Debug, Clone)]
pub struct Expected {
    plugin: String,
    command: Command,
    outcome: Outcome,
}

impl Expected {
    /// A call of a plugin that succeeds and prints nothing.
    #[must_use]
    pub fn call(plugin: impl Into<String>, command: Command) -> Self {
        Self { plugin: plugin.into(), command, outcome: Ok(Vec::new()) }
    }

    /// Sets the output of the plugin.
    #[must_use]
    pub fn prints(self, output: impl Into<Vec<u8>>) -> Self {
        Self { outcome: Ok(output.into()), ..self }
    }

    /// Makes the call fail.
    #[must_use]
    pub fn fails(self, error: CallError) -> Self {
        Self { outcome: Err(error), ..self }
    }
}

impl Fake {
    /// A fake that expects these calls in this order.
    #[must_use]
    pub fn new(script: impl IntoIterator<Item = Expected>) -> Self {
        let expected = Mutex::new(script.into_iter().collect());
        Self(Arc::new(Script { expected, calls: Mutex::default() }))
    }

    /// The calls that were made, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<PluginCall> {
        lock(&self.0.calls).clone()
    }

    fn answer(&self, call: &PluginCall) -> Outcome {
        lock(&self.0.calls).push(call.clone());
        let expected = lock(&self.0.expected).pop_front();
        match expected {
            Some(Expected { plugin, command, outcome })
                if (&plugin, command) == (&call.plugin, call.command) =>
            {
                outcome
            }
            Some(other) => panic!(
                "call of {} {}, expected {} {}",
                call.plugin, call.command, other.plugin, other.command
            ),
            None => panic!("call of {} {}, expected none", call.plugin, call.command),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exec for Fake {
    fn exec<'a>(
        &'a self,
        _directories: &'a [PathBuf],
        call: &'a PluginCall,
        _options: &'a CallOptions,
    ) -> CallFuture<'a> {
        Box::pin(async { self.answer(call) })
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let left = self.expected.get_mut().unwrap_or_else(PoisonError::into_inner);
        assert!(left.is_empty() || std::thread::panicking(), "calls that were not made: {left:?}");
    }
}
