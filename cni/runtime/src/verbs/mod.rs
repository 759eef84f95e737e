// SPDX-License-Identifier: MIT OR Apache-2.0

//! The operations on a network, as state machines without input and output.
//!
//! A machine gets the outcome of the last call, and returns the next call or the operation's result. Finding the
//! plugin's file, running it, time limits, locks and the cache are left to the driver: [`Runtime`](crate::Runtime),
//! the asynchronous one, or the caller's own.
//!
//! ```
//! use cni_runtime::verbs::{Status, Step, Verb};
//! use cni_runtime::Network;
//!
//! let network = Network::builder("pods").plugin(serde_json::json!({"type": "bridge"})).build()?;
//! let mut status = Status::new(&network, &["/opt/cni/bin".into()]);
//! let Step::Call(call) = status.next(None) else { panic!("no call") };
//! assert_eq!(call.plugin, "bridge");
//! // STATUS of a healthy plugin prints nothing.
//! let Step::Done(done) = status.next(Some(Ok(Vec::new()))) else { panic!("another call") };
//! assert!(done.is_ok());
//! # Ok::<(), cni_spec::ListError>(())
//! ```

mod add;
mod check;
mod del;
mod gc;
mod status;
#[cfg(test)]
mod tests;
pub(crate) mod versions;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use cni_spec::{AddResult, CniError};
use serde_json::{Map, Value};

use crate::container::Container;
use crate::error::{CallError, NetworkError};
use crate::network::{Network, kind};

pub use add::Add;
pub use check::Check;
pub use del::Del;
pub use gc::{Gc, GcScope};
pub use status::Status;
pub use versions::{Validate, Versions};

/// A CNI command, `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Attaches a container.
    Add,
    /// Detaches a container.
    Del,
    /// Compares an attachment with its ADD.
    Check,
    /// Removes everything that does not belong to a valid attachment.
    Gc,
    /// Reports whether an ADD can succeed.
    Status,
    /// Lists the supported versions.
    Version,
}

impl Command {
    /// All commands.
    pub const ALL: [Self; 6] = [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status, Self::Version];

    /// Parses the value of `CNI_COMMAND`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.as_str() == text)
    }

    /// The command as in `CNI_COMMAND`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A call of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginCall {
    /// The plugin's type: the name of its file.
    pub plugin: String,
    /// The command, which is also in the environment.
    pub command: Command,
    /// Variables to add to the environment: all six of the specification, even those that are empty.
    pub env: Vec<(String, OsString)>,
    /// The configuration for standard input.
    pub stdin: Vec<u8>,
    /// True if the call undoes a failed ADD. Such a call is made even if the operation has been cancelled.
    pub undo: bool,
}

impl PluginCall {
    /// The value of a variable of the environment.
    #[must_use]
    pub fn var(&self, name: &str) -> Option<&OsString> {
        self.env.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

/// The outcome of a call: the plugin's output.
pub type Outcome = Result<Vec<u8>, CallError>;

/// The next step of an operation.
#[derive(Debug)]
pub enum Step<T> {
    /// The plugin must be called, and the outcome passed to [`Verb::next`].
    Call(PluginCall),
    /// The operation has ended.
    Done(Result<T, NetworkError>),
}

/// An operation on a network.
pub trait Verb {
    /// The result of the operation.
    type Output;

    /// Returns the next step. `last` is the outcome of the last call, or none at the start. After [`Step::Done`], the
    /// machine must not be used again.
    fn next(&mut self, last: Option<Outcome>) -> Step<Self::Output>;
}

/// The parts of calls that are the same for all plugins of an operation.
#[derive(Debug, Clone)]
pub(crate) struct Caller<'a> {
    network: &'a Network,
    container: Container,
    path: OsString,
}

impl<'a> Caller<'a> {
    fn new(network: &'a Network, container: &Container, path: &[PathBuf]) -> Self {
        Self { network, container: container.clone(), path: joined(path) }
    }

    /// For commands without a container.
    fn of_node(network: &'a Network, path: &[PathBuf]) -> Self {
        Self::new(network, &Container::default(), path)
    }

    fn plugins(&self) -> &'a [Map<String, Value>] {
        &self.network.list().plugins
    }

    /// The call of a plugin of the network. `extra` adds keys to the configuration.
    fn call(
        &self,
        plugin: &Map<String, Value>,
        command: Command,
        prev: Option<&AddResult>,
        extra: &Map<String, Value>,
    ) -> Result<PluginCall, CallError> {
        let input = self.network.list().input(plugin, prev, &self.container.capabilities);
        let mut input = input.map_err(|e| CallError::Failed(CniError::internal(e.to_string())))?;
        input.extend(extra.iter().map(|(key, value)| (key.clone(), value.clone())));
        Ok(PluginCall {
            plugin: kind(plugin).to_owned(),
            command,
            env: environment(command, &self.container, &self.path),
            stdin: Value::Object(input).to_string().into_bytes(),
            undo: false,
        })
    }
}

fn joined(path: &[PathBuf]) -> OsString {
    std::env::join_paths(path).unwrap_or_default()
}

/// All six variables, even empty ones, because this process's environment may have other values.
fn environment(command: Command, container: &Container, path: &OsString) -> Vec<(String, OsString)> {
    let Container { id, netns, ifname, args, .. } = container;
    let args: Vec<String> = args.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let all: [(&str, OsString); 6] = [
        ("CNI_COMMAND", command.as_str().into()),
        ("CNI_CONTAINERID", id.into()),
        ("CNI_NETNS", netns.into()),
        ("CNI_ARGS", args.join(";").into()),
        ("CNI_IFNAME", ifname.into()),
        ("CNI_PATH", path.clone()),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
