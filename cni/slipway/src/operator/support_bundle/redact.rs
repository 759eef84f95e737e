// SPDX-License-Identifier: GPL-2.0-or-later

//! Removes private parts from texts and configurations. The values of known keys in the form that the key
//! asks for are kept; of everything else the type and the length.

use std::net::IpAddr;

use cni_dataplane::Owner;
use ipnet::IpNet;
use serde_json::{Map, Value};

use cni_plugins::keys::{Kind, Level};
use cni_plugins::registry;

/// The values of all keys of [`Kind::Word`].
const WORDS: [&str; 26] = [
    "nftables",
    "iptables",
    "ebpf",
    "firewalld",
    "bridge",
    "private",
    "vepa",
    "passthru",
    "source",
    "l2",
    "l3",
    "l3s",
    "open",
    "same-bridge",
    "isolated",
    "tcp",
    "udp",
    "sctp",
    "off",
    "error",
    "warn",
    "info",
    "debug",
    "trace",
    "auto",
    "",
];

/// The rule for a file of the bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Our own text, with harmless quoted values only.
    Text,
    /// The same without the reasons of failures, which may quote configurations.
    Outcomes,
    /// The configuration of a network.
    Network,
    /// The node's own settings.
    Node,
}

impl Rule {
    /// Applies the rule to a content.
    pub(super) fn apply(self, content: &str) -> String {
        match self {
            Self::Text => text(content),
            Self::Outcomes => text(&without_reasons(content)),
            Self::Network => configuration(content, Level::network),
            Self::Node => configuration(content, |_| Level::node()),
        }
    }
}

fn configuration(content: &str, level: impl Fn(&Map<String, Value>) -> Level) -> String {
    match serde_json::from_str(content) {
        Ok(Value::Object(object)) => format!("{:#}\n", of_object(level(&object), &object)),
        Ok(other) => format!("not an object: {}\n", reduced(&other)),
        // The parser's message may quote the text.
        Err(error) => format!(
            "not JSON, {} bytes: {:?} error at line {}, column {}\n",
            content.len(),
            error.classify(),
            error.line(),
            error.column()
        ),
    }
}

fn of_object(level: Level, object: &Map<String, Value>) -> Value {
    let mut shown = Map::new();
    for (at, (name, value)) in object.iter().enumerate() {
        let (name, value) = match level.find(name) {
            Some(key) => (name.clone(), of_value(key.kind, value)),
            None => {
                let near = level.nearest(name).map(|near| format!(", like {near:?}")).unwrap_or_default();
                (format!("(unknown key {at}, {} characters{near})", name.chars().count()), reduced(value))
            }
        };
        shown.insert(name, value);
    }
    shown.into()
}

fn of_value(kind: Kind, value: &Value) -> Value {
    let shown = match value {
        Value::Null => true,
        Value::Bool(_) => !matches!(kind, Kind::Open),
        Value::Number(_) => matches!(kind, Kind::Number),
        Value::String(text) => fits(kind, text),
        Value::Array(items) => match kind {
            Kind::Open => false,
            _ => return items.iter().map(|item| of_value(kind, item)).collect(),
        },
        Value::Object(object) => match (kind, kind.level(object)) {
            (Kind::Settings, _) => return settings(object),
            (_, Some(level)) => return of_object(level, object),
            (_, None) => false,
        },
    };
    if shown { value.clone() } else { reduced(value) }
}

/// Kernel settings with numbers for values.
fn settings(object: &Map<String, Value>) -> Value {
    let plain = |name: &str| {
        name.starts_with("net")
            && name.len() <= 80
            && made_of(name, |c| c.is_ascii_alphanumeric() || "._/-".contains(c))
    };
    let number = |value: &&Value| {
        value
            .as_str()
            .is_some_and(|text| text.len() <= 40 && made_of(text, |c| c.is_ascii_digit() || c == ' '))
    };
    let entry = |(at, (name, value)): (usize, (&String, &Value))| {
        let shown = Some(value).filter(number).cloned().unwrap_or_else(|| reduced(value));
        let name =
            if plain(name) { name.clone() } else { format!("(setting {at}, {} characters)", name.len()) };
        (name, shown)
    };
    Value::Object(object.iter().enumerate().map(entry).collect())
}

/// The type and the length of a value.
fn reduced(value: &Value) -> Value {
    match value {
        Value::Null => "(null)".into(),
        Value::Bool(_) => "(bool)".into(),
        Value::Number(_) => "(number)".into(),
        Value::String(text) => length(text).into(),
        Value::Array(items) => format!("(list of {})", items.len()).into(),
        Value::Object(object) => format!("(object of {} keys)", object.len()).into(),
    }
}

/// The placeholder for a text that is not shown.
pub(super) fn length(text: &str) -> String {
    format!("(text of {} characters)", text.chars().count())
}

fn made_of(text: &str, allowed: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(allowed)
}

/// True if a text has the form that the key asks for.
fn fits(kind: Kind, text: &str) -> bool {
    match kind {
        Kind::Bool => matches!(text, "true" | "false"),
        Kind::Address => is_address(text),
        Kind::Hardware => {
            let parts: Vec<&str> = text.split([':', '.', '-']).collect();
            let hex = |part: &&str| part.len() <= 4 && made_of(part, |c| c.is_ascii_hexdigit());
            (4..=20).contains(&parts.len()) && parts.iter().all(hex)
        }
        Kind::Name => is_name(text),
        Kind::Word => WORDS.contains(&text.to_ascii_lowercase().as_str()),
        Kind::Path => is_path(text),
        _ => false,
    }
}

pub(super) fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || text.parse::<IpNet>().is_ok()
}

/// True for a name as people choose them. It must be short, so that no token is taken for a name.
pub(super) fn is_name(text: &str) -> bool {
    text.len() <= 32
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && made_of(text, |c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// True for an absolute path of ordinary names.
pub(super) fn is_path(text: &str) -> bool {
    let ordinary = |part: &str| {
        part.len() <= 40 && part.chars().all(|c| c.is_ascii_alphanumeric() || "_.:-".contains(c))
    };
    text.len() <= 200 && text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(ordinary))
}

/// Redacts our own text. A quoted value is kept if it is an address, a path, an owner in our form, a plugin
/// or a known key; other words if they are neither URLs nor e-mail addresses.
fn text(content: &str) -> String {
    content.split_inclusive('\n').map(line).collect()
}

fn line(line: &str) -> String {
    // An error about the settings quotes them.
    if let Some((place, why)) = line.split_once("slipway.json: ") {
        return format!("{}slipway.json: {}\n", self::line(place), length(why.trim_end()));
    }
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['"', '`']) {
        let (before, from) = rest.split_at(at);
        shown.push_str(&words(before));
        let (mark, inner) = from.split_at(1);
        let end = closing(inner, mark);
        let (quoted, after) = inner.split_at(end.unwrap_or_else(|| inner.trim_end_matches('\n').len()));
        if end.is_some() && harmless(quoted) {
            shown.push_str(&format!("{mark}{quoted}{mark}"));
        } else {
            shown.push_str(&length(quoted));
        }
        rest = after.strip_prefix(mark).unwrap_or(after);
    }
    shown.push_str(&words(rest));
    shown
}

/// The end of a quoted text.
fn closing(text: &str, mark: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if mark == "\"" => escaped = true,
            _ if mark.starts_with(c) => return Some(at),
            _ => {}
        }
    }
    None
}

fn words(text: &str) -> String {
    let word = |word: &str| {
        let plain = word.trim_end();
        match plain.contains("://") || plain.contains('@') {
            true => format!("{}{}", length(plain), word.strip_prefix(plain).unwrap_or_default()),
            false => word.to_owned(),
        }
    };
    text.split_inclusive(char::is_whitespace).map(word).collect()
}

fn harmless(quoted: &str) -> bool {
    is_address(quoted)
        || is_path(quoted)
        || Owner::from_comment(quoted).is_some()
        || registry::find(quoted).is_some()
        || Level::node().find(quoted).is_some()
}

/// Removes the reasons below lines of failures.
fn without_reasons(content: &str) -> String {
    let mut failed = false;
    let mut kept = String::new();
    for line in content.split_inclusive('\n') {
        let reason = line.starts_with("         ");
        if !reason {
            failed = ["failed", "skipped"].iter().any(|state| line.starts_with(state));
        }
        if reason && failed {
            kept.push_str(&format!("            {}\n", length(line.trim())));
        } else {
            kept.push_str(line);
        }
    }
    kept
}

#[cfg(test)]
#[path = "redact_tests.rs"]
mod tests;
