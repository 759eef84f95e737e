// SPDX-License-Identifier: GPL-2.0-or-later

//! The known keys of configurations, for the warning about unknown keys and for `slipway support-bundle`,
//! which shows values of known keys only.
//!
//! The decoder ignores unknown keys, as the specification demands. The tests compare the table with the
//! structs that plugins decode and with their pages.

pub(crate) mod non_masquerade;
#[cfg(test)]
pub(crate) mod probe;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;

use cni_spec::fold;
use serde_json::{Map, Value};

/// A key and the kind of its value, or of the elements of its list.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
}

/// Kinds of values.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// True or false.
    Bool,
    Number,
    /// An IP address or network.
    Address,
    /// The address of a link or of a device on a bus.
    Hardware,
    /// The name of a network, a link, a chain.
    Name,
    /// A word of a fixed set: a backend, a mode, a protocol.
    Word,
    /// The path of a file.
    Path,
    /// Kernel settings below `net`, and their values.
    Settings,
    /// Any text or data.
    Open,
    /// An object with these keys.
    Object(&'static [Key]),
    /// The `ipam` of a configuration, with its default type.
    Ipam(&'static str),
    /// The configuration of another plugin, with its default type.
    Plugin(&'static str),
}

/// The keys of one plugin, without the common ones.
#[derive(Debug)]
pub struct Known {
    pub plugin: &'static str,
    pub keys: &'static [Key],
    /// The keys below `ipam` of an IPAM plugin.
    pub ipam: &'static [Key],
}

/// The keys that an object may have.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    common: &'static [Key],
    own: &'static [Key],
    /// True if a plugin that is not in this binary may know more keys.
    foreign: bool,
}

impl Level {
    const fn of(own: &'static [Key]) -> Self {
        Self { common: &[], own, foreign: false }
    }

    /// The keys of a list of plugins, or of a file's single plugin.
    pub fn network(object: &Map<String, Value>) -> Self {
        match fold::get(object, "plugins") {
            Some(_) => Self::of(table::LIST),
            None => Self::plugin(named(object, "")),
        }
    }

    /// The keys of the node's settings.
    pub const fn node() -> Self {
        Self::of(table::NODE)
    }

    fn plugin(plugin: &str) -> Self {
        let known = table::of(plugin);
        let own = known.map_or(&[][..], |known| known.keys);
        Self { common: table::COMMON, own, foreign: known.is_none() }
    }

    fn ipam(plugin: &str) -> Self {
        let known = table::of(plugin);
        let own = known.map_or(&[][..], |known| known.ipam);
        Self { common: table::IPAM, own, foreign: known.is_none() }
    }

    fn all(self) -> impl Iterator<Item = &'static Key> {
        self.own.iter().chain(self.common)
    }

    /// The key of that name, in any case.
    pub fn find(self, name: &str) -> Option<&'static Key> {
        self.all().find(|key| key.name.eq_ignore_ascii_case(name))
    }

    /// The key most similar to an unknown name, if any is similar.
    pub fn nearest(self, name: &str) -> Option<&'static str> {
        // The comparison takes time proportional to the length, and keys are short.
        if name.len() > 40 {
            return None;
        }
        let most = name.len() / 3;
        let near = self.all().map(|key| (distance(&key.name.to_ascii_lowercase(), name), key.name));
        near.filter(|(distance, _)| *distance <= most.min(3)).min().map(|(_, name)| name)
    }
}

impl Kind {
    /// The keys of an object of this kind; none if any are allowed.
    pub fn level(self, object: &Map<String, Value>) -> Option<Level> {
        match self {
            Self::Object(keys) => Some(Level::of(keys)),
            Self::Ipam(default) => Some(Level::ipam(named(object, default))),
            Self::Plugin(default) => Some(Level::plugin(named(object, default))),
            _ => None,
        }
    }
}

/// The object's `type`.
fn named<'a>(object: &'a Map<String, Value>, default: &'a str) -> &'a str {
    fold::get(object, "type").and_then(Value::as_str).unwrap_or(default)
}

/// A key that no plugin knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    path: String,
    near: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown key {:?}", self.path)?;
        self.near.map_or(Ok(()), |near| write!(f, ": did you mean {near:?}?"))
    }
}

/// The unknown keys of a configuration that `plugin` is called with, in their order. For an IPAM plugin, only
/// those below `ipam`.
pub fn unknown(plugin: &str, config: &Map<String, Value>) -> Vec<Unknown> {
    let mut found = Vec::new();
    if named(config, plugin) == plugin {
        in_object(Level::plugin(plugin), config, "", &mut found);
    } else if let Some(Value::Object(ipam)) = fold::get(config, "ipam")
        && named(ipam, "") == plugin
    {
        in_object(Level::ipam(plugin), ipam, "ipam.", &mut found);
    }
    found
}

/// The unknown keys of a file of a network: of the list, and of each of its plugins that is one of ours.
#[must_use]
pub fn unknown_in_network(file: &Map<String, Value>) -> Vec<Unknown> {
    let mut found = Vec::new();
    in_object(Level::network(file), file, "", &mut found);
    found
}

/// The unknown keys of the node's settings.
pub(crate) fn unknown_in_settings(settings: &Map<String, Value>) -> Vec<Unknown> {
    let mut found = Vec::new();
    in_object(Level::node(), settings, "", &mut found);
    found
}

fn in_object(level: Level, object: &Map<String, Value>, above: &str, found: &mut Vec<Unknown>) {
    for (name, value) in object {
        match level.find(name) {
            Some(key) => in_value(key.kind, value, &format!("{above}{name}"), found),
            None if level.foreign || name.starts_with(table::LIBCNI) => {}
            None => found.push(Unknown { path: format!("{above}{name}"), near: level.nearest(name) }),
        }
    }
}

fn in_value(kind: Kind, value: &Value, path: &str, found: &mut Vec<Unknown>) {
    match value {
        Value::Object(object) => {
            if let Some(level) = kind.level(object) {
                in_object(level, object, &format!("{path}."), found);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                in_value(kind, item, &format!("{path}[{at}]"), found);
            }
        }
        _ => {}
    }
}

/// The Levenshtein distance of two names, in any case.
fn distance(known: &str, name: &str) -> usize {
    let name: Vec<u8> = name.bytes().map(|byte| byte.to_ascii_lowercase()).collect();
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (above, letter) in known.bytes().enumerate() {
        let mut diagonal = above;
        let mut left = above + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, other) in row.iter_mut().skip(1).zip(&name) {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = *cell;
            left = replaced.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or_default()
}
