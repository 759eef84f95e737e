//! Log lines: on standard error as `SLIPWAY_LOG` asks for, and in a file or the journal as the node's
//! settings ask for, because runtimes throw the standard error of a successful plugin away.
//!
//! A log never fails or delays a call: what cannot be written at once is lost.

mod file;
mod journal;
mod settings;

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use env_logger::{Builder, Env, Logger};
use log::{LevelFilter, Log, Metadata, Record};

use crate::node_defaults::NodeDefaults;
use crate::plugin;
use file::LogFile;
use journal::Journal;
pub(crate) use settings::{LogKeys, LogSettings};

/// The longest line, in bytes.
const LONGEST: usize = 8 << 10;

/// The call that a line is about.
#[derive(Debug, Clone, Default)]
struct Context {
    plugin: String,
    command: String,
    network: String,
    container: String,
    ifname: String,
}

impl Context {
    const EMPTY: Self = Self {
        plugin: String::new(),
        command: String::new(),
        network: String::new(),
        container: String::new(),
        ifname: String::new(),
    };

    /// The parts that are known, by their names in a line.
    fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let parts: [(_, &str); 5] = [
            ("plugin", &self.plugin),
            ("command", &self.command),
            ("network", &self.network),
            ("container", &self.container),
            ("interface", &self.ifname),
        ];
        parts.into_iter().filter(|(_, value)| !value.is_empty())
    }
}

/// Of the call that is running, which may be one inside another's.
static CONTEXT: Mutex<Context> = Mutex::new(Context::EMPTY);

/// The call that lines are about until this value is dropped.
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

/// Starts logging. Lines of the level `usual` go to standard error unless `SLIPWAY_LOG` asks for others
/// (`debug`, or `cni_dataplane=trace,info`).
pub fn start(usual: &str) {
    let wanted = Env::new().filter_or("SLIPWAY_LOG", usual);
    let stderr = Builder::from_env(wanted).format_timestamp(None).build();
    // A plugin whose settings cannot be read fails by itself, where it needs them.
    let settings = NodeDefaults::read_log();
    let lines = Lines { stderr, node: settings.map(Node::new) };
    let most = lines.stderr.filter().max(lines.node.as_ref().map_or(LevelFilter::Off, |node| node.level));
    // It fails where a logger is set already, as in a test.
    if log::set_boxed_logger(Box::new(lines)).is_ok() {
        log::set_max_level(most);
    }
}

struct Lines {
    stderr: Logger,
    node: Option<Node>,
}

impl Lines {
    /// Libraries have lines of their own, about each message: they are shown with all others alone.
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
        self.on_stderr(metadata) || self.node.as_ref().is_some_and(|node| node.wants(metadata))
    }

    fn log(&self, record: &Record<'_>) {
        if self.on_stderr(record.metadata()) {
            self.stderr.log(record);
        }
        if let Some(node) = self.node.as_ref().filter(|node| node.wants(record.metadata())) {
            node.write(record);
        }
    }

    fn flush(&self) {}
}

/// The outputs that the node's settings ask for.
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

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
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

/// One line, with its end.
fn line(now: SystemTime, level: log::Level, context: &Context, message: &str) -> String {
    let mut line = format!("{} {level} pid={}", timestamp(now), std::process::id());
    for (name, value) in context.parts() {
        line.push_str(&format!(" {name}={}", escaped(value)));
    }
    line.push_str(": ");
    line.push_str(message);
    line.truncate(line.floor_char_boundary(LONGEST));
    line.push('\n');
    line
}

/// A text in which nothing ends a line, moves a cursor or turns the direction of writing.
fn escaped(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// The time in UTC by RFC 3339, to the millisecond.
fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years begin in March here, so that a leap day is a year's last; 146097 days are 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

#[cfg(test)]
mod tests;
