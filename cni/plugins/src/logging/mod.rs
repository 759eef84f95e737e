// SPDX-License-Identifier: GPL-2.0-or-later

//! Log lines: to standard error as `SLIPWAY_LOG` asks, and to a file or the journal as the node's settings
//! ask, because libcni drops the standard error of a plugin that fails with an error in JSON.
//!
//! A log never fails or delays a call: a line that cannot be written at once is lost.

mod file;
mod journal;
mod line;
mod settings;

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use cni_spec::fold;
use env_logger::{Builder, Env, Logger};
use log::{LevelFilter, Log, Metadata, Record};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::plugin;
use crate::settings_file;
use file::LogFile;
use journal::Journal;
use line::{Context, escaped, line};
pub(crate) use settings::{LogError, LogKeys, LogSettings};

/// The running call. Calls nest, because a plugin may call another one in its own process.
static CONTEXT: Mutex<Context> = Mutex::new(Context::EMPTY);

/// Names the running call in all lines until it is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    outer: Context,
}

impl Call {
    pub(crate) fn begin(plugin: &str, env: &plugin::Env) -> Self {
        let context = Context {
            plugin: plugin.to_owned(),
            command: env.command.clone(),
            network: String::new(),
            container: env.container_id.clone(),
            ifname: env.ifname.clone(),
        };
        Self { outer: replace(context) }
    }

    /// True if another plugin of this process made the call.
    pub(crate) fn is_delegated(&self) -> bool {
        !self.outer.plugin.is_empty()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        drop(replace(std::mem::take(&mut self.outer)));
    }
}

fn replace(context: Context) -> Context {
    std::mem::replace(&mut CONTEXT.lock().unwrap_or_else(PoisonError::into_inner), context)
}

/// Adds the network to the lines of the running call.
pub(crate) fn set_network(network: &str) {
    network.clone_into(&mut CONTEXT.lock().unwrap_or_else(PoisonError::into_inner).network);
}

/// The network of the running call; empty until [`set_network`].
pub(crate) fn network() -> String {
    CONTEXT.lock().unwrap_or_else(PoisonError::into_inner).network.clone()
}

/// Starts logging. Lines of the level `default` go to standard error unless `SLIPWAY_LOG` names others
/// (`debug`, or `cni_dataplane=trace,info`).
pub fn start(default: &str) {
    let wanted = Env::new().filter_or("SLIPWAY_LOG", default);
    let stderr = Builder::from_env(wanted).format_timestamp(None).build();
    // A plugin that needs the node's settings reports the error itself.
    let settings = read_settings();
    let lines = Lines { stderr, node: settings.map(Node::new) };
    let max_level =
        lines.stderr.filter().max(lines.node.as_ref().map_or(LevelFilter::Off, |node| node.level));
    // `set_boxed_logger` fails if there is a logger already, as in a test.
    if log::set_boxed_logger(Box::new(lines)).is_ok() {
        log::set_max_level(max_level);
    }
}

/// The key `log` of the node's settings. None if the file is missing or malformed, because a call must not fail because
/// of its log. Other keys are ignored.
fn read_settings() -> Option<LogSettings> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct OnlyLog {
        log: LogKeys,
    }
    let object: Map<String, Value> = serde_json::from_slice(&settings_file::read().ok()??).ok()?;
    let keys: OnlyLog = fold::from_map(&object).ok()?;
    keys.log.check().ok()?
}

struct Lines {
    stderr: Logger,
    node: Option<Node>,
}

impl Lines {
    /// True if a line goes to standard error. Lines of libraries, one for each netlink message, need the
    /// level `trace`.
    fn on_stderr(&self, metadata: &Metadata<'_>) -> bool {
        let wanted = is_ours(metadata) || self.stderr.filter() == LevelFilter::Trace;
        wanted && self.stderr.enabled(metadata)
    }
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    ["slipway", "cni_"].iter().any(|name| metadata.target().starts_with(name))
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.on_stderr(metadata) || self.node.as_ref().is_some_and(|node| node.accepts(metadata))
    }

    fn log(&self, record: &Record<'_>) {
        if self.on_stderr(record.metadata()) {
            self.stderr.log(record);
        }
        if let Some(node) = self.node.as_ref().filter(|node| node.accepts(record.metadata())) {
            node.write(record);
        }
    }

    fn flush(&self) {}
}

/// The outputs that the node's settings name.
struct Node {
    level: LevelFilter,
    file: Option<LogFile>,
    journal: Option<Journal>,
}

impl Node {
    fn new(settings: LogSettings) -> Self {
        Self {
            level: settings.level,
            file: settings.file.map(|path| LogFile::new(&path, settings.max_size)),
            journal: settings.journal.then(Journal::new).flatten(),
        }
    }

    fn accepts(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.level && is_ours(metadata)
    }

    fn write(&self, record: &Record<'_>) {
        let context = CONTEXT.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let message = escaped(&record.args().to_string());
        if let Some(file) = &self.file {
            file.write(&line(SystemTime::now(), record.level(), &context, &message));
        }
        if let Some(journal) = &self.journal {
            journal.write(record.level(), &context, &message);
        }
    }
}

#[cfg(test)]
mod tests;
