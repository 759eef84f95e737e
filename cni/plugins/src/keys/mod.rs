//! The keys that configurations may have, for those who must know them without decoding: the warning
//! about unknown keys, and `slipway support-bundle`, which shows the values of known keys alone.
//!
//! The decoder ignores unknown keys, as the specification wants. The tests compare the table with the
//! structs that plugins decode and with their pages.

#[cfg(test)]
pub(crate) mod probe;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;

use cni_spec::fold;
use serde_json::{Map, Value};

/// A key and the kind of its value. The kind holds for the elements of a list, too.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

/// Kinds of values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// True or false.
    Bool,
    /// A number.
    Number,
    /// An IP address or network.
    Address,
    /// The address of a link or of a device on a bus.
    Hardware,
    /// The name of a network, a link, a chain.
    Name,
    /// One word of a few: a backend, a mode, a protocol.
    Word,
    /// The path of a file.
    Path,
    /// Kernel settings below `net`, and their values.
    Settings,
    /// Text or data in which anything may be.
    Open,
    /// An object with these keys.
    Object(&'static [Key]),
    /// The `ipam` of a configuration; with the type that counts when none is given.
    Ipam(&'static str),
    /// The configuration of another plugin; with the type that counts when none is given.
    Plugin(&'static str),
}

/// The keys of one plugin besides those that every plugin may have.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) plugin: &'static str,
    pub(crate) keys: &'static [Key],
    /// The keys below `ipam` if it is this plugin that is called for addresses.
    pub(crate) ipam: &'static [Key],
}

/// The keys that an object may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    common: &'static [Key],
    own: &'static [Key],
    /// True if other keys may be known to a plugin that is not of this binary.
    foreign: bool,
}

impl Level {
    const fn of(own: &'static [Key]) -> Self {
        Self { common: &[], own, foreign: false }
    }

    /// A list of plugins, or the one plugin of a file without a list.
    pub(crate) fn network(object: &Map<String, Value>) -> Self {
        match fold::get(object, "plugins") {
            Some(_) => Self::of(table::LIST),
            None => Self::plugin(named(object, "")),
        }
    }

    /// The node's own settings.
    pub(crate) const fn node() -> Self {
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
    pub(crate) fn find(self, name: &str) -> Option<&'static Key> {
        self.all().find(|key| key.name.eq_ignore_ascii_case(name))
    }

    /// The key that may be meant by a name that is none.
    pub(crate) fn nearest(self, name: &str) -> Option<&'static str> {
        // A secret of megabytes is no misspelt key.
        if name.len() > 40 {
            return None;
        }
        let most = name.len() / 3;
        let near = self.all().map(|key| (distance(&key.name.to_ascii_lowercase(), name), key.name));
        near.filter(|(distance, _)| *distance <= most.min(3)).min().map(|(_, name)| name)
    }
}

impl Kind {
    /// The keys of an object that is such a value; none if they are not to be looked at.
    pub(crate) fn level(self, object: &Map<String, Value>) -> Option<Level> {
        match self {
            Self::Object(keys) => Some(Level::of(keys)),
            Self::Ipam(usual) => Some(Level::ipam(named(object, usual))),
            Self::Plugin(usual) => Some(Level::plugin(named(object, usual))),
            _ => None,
        }
    }
}

fn named<'a>(object: &'a Map<String, Value>, usual: &'a str) -> &'a str {
    fold::get(object, "type").and_then(Value::as_str).unwrap_or(usual)
}

/// A key that no plugin knows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    path: String,
    near: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown key {:?}", self.path)?;
        self.near.map_or(Ok(()), |near| write!(f, ": did you mean {near:?}?"))
    }
}

/// The unknown keys of a configuration that `plugin` is called with, in their order. Where it is called
/// for the addresses of another one's container, only `ipam` is its own.
pub(crate) fn unknown(plugin: &str, config: &Map<String, Value>) -> Vec<Unknown> {
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

/// How many letters must be added, removed or replaced to get from `known` to `name`, in any case
/// (Levenshtein).
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
