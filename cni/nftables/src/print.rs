// SPDX-License-Identifier: GPL-2.0-or-later

//! Formats objects as commands in nft's syntax.

use std::fmt;

use crate::flowtable::{Flowtable, Links};
use crate::object::{
    BaseChain, Chain, Element, ElementData, ElementId, Keys, MapData, Rule, Set, Table, Tlv,
};
use crate::value::{DataType, join, quoted};

fn fmt_comment(f: &mut fmt::Formatter<'_>, comment: Option<&String>) -> fmt::Result {
    comment.map_or(Ok(()), |comment| write!(f, " comment {}", quoted(comment)))
}

fn fmt_comment_block(f: &mut fmt::Formatter<'_>, comment: Option<&String>) -> fmt::Result {
    comment.map_or(Ok(()), |comment| write!(f, " {{ comment {} ; }}", quoted(comment)))
}

fn join_types(types: &[DataType]) -> String {
    types.iter().map(|part| part.name()).collect::<Vec<_>>().join(" . ")
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} table {}", self.create.verb(), self.id)?;
        match &self.comment {
            Some(comment) if self.owned => write!(f, " {{ flags owner ; comment {} ; }}", quoted(comment)),
            None if self.owned => f.write_str(" { flags owner ; }"),
            comment => fmt_comment_block(f, comment.as_ref()),
        }
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} chain {} {}", self.create.verb(), self.table, self.name)?;
        let Some(base) = self.base else {
            return fmt_comment_block(f, self.comment.as_ref());
        };
        let BaseChain { kind, hook, priority, policy } = base;
        let (kind, hook, policy) = (kind.name(), hook.name(), policy.name());
        write!(f, " {{ type {kind} hook {hook} priority {priority} ; policy {policy} ;")?;
        if let Some(comment) = &self.comment {
            write!(f, " comment {} ;", quoted(comment))?;
        }
        f.write_str(" }")
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "add rule {} {}", self.table, self.chain)?;
        for stmt in &self.stmts {
            write!(f, " {stmt}")?;
        }
        fmt_comment(f, self.comment.as_ref())
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Beginning(prefix) => write!(f, "{prefix}*"),
        }
    }
}

impl fmt::Display for Flowtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "add flowtable {} {} {{ hook ingress priority 0 ;", self.table, self.name)?;
        if !self.devices.is_empty() {
            let devices: Vec<String> = self.devices.iter().map(ToString::to_string).collect();
            write!(f, " devices = {{ {} }} ;", devices.join(", "))?;
        }
        if self.counter {
            f.write_str(" counter ;")?;
        }
        f.write_str(" }")
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = join_types(&self.key);
        write!(f, "{} {} {} {} {{ type {key}", self.create.verb(), self.word(), self.table, self.name)?;
        match &self.data {
            MapData::None => {}
            MapData::Verdict => f.write_str(" : verdict")?,
            MapData::Values(types) => write!(f, " : {}", join_types(types))?,
        }
        f.write_str(" ;")?;
        if self.keys == Keys::Intervals {
            f.write_str(" flags interval ;")?;
        }
        if self.is_updated {
            f.write_str(" flags dynamic ;")?;
        }
        if self.timeouts {
            f.write_str(" flags timeout ;")?;
        }
        if let Some(size) = self.size {
            write!(f, " size {size} ;")?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " comment {} ;", quoted(comment))?;
        }
        f.write_str(" }")
    }
}

impl ElementId {
    /// The key, or the range of keys, in nft's syntax.
    #[must_use]
    pub(crate) fn key_text(&self) -> String {
        let Some(end) = &self.key_end else {
            return join(&self.key);
        };
        let parts = self.key.iter().zip(end);
        let parts =
            parts.map(|(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") });
        parts.collect::<Vec<_>>().join(" . ")
    }
}

impl fmt::Display for ElementId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {{ {} }}", self.table, self.set, self.key_text())
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ElementId { table, set, .. } = &self.id;
        write!(f, "{} element {table} {set} {{ {}", self.create.verb(), self.id.key_text())?;
        if let Some(time) = self.timeout {
            write!(f, " timeout {}ms", time.as_millis())?;
        }
        fmt_comment(f, self.comment.as_ref())?;
        match &self.data {
            ElementData::None => {}
            ElementData::Verdict(verdict) => write!(f, " : {verdict}")?,
            ElementData::Values(values) => write!(f, " : {}", join(values))?,
        }
        f.write_str(" }")?;
        if let Some(Tlv { kind, bytes }) = &self.tlv {
            write!(f, " # userdata {kind}: {}", bytes.escape_ascii())?;
        }
        Ok(())
    }
}
