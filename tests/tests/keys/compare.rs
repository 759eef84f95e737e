// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the differences between two records of the same case.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cases::Case;
use crate::stage::{Answer, Record};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    /// A short description of the difference. `add 999/7` means two exit codes of ADD, the reference plugin's first.
    /// `made - LINE` means a line that only the reference plugin has, and `made + LINE` one that only ours has.
    pub(crate) aspect: String,
    /// The messages of both sides.
    pub(crate) detail: String,
}

pub(crate) fn differences(case: &Case, theirs: &Record, ours: &Record) -> Vec<Difference> {
    let mut found = Vec::new();
    let both = matches!((&theirs.calls[0].1, &ours.calls[0].1), (Answer::Done(_), Answer::Done(_)));
    let one = !both && [theirs, ours].iter().any(|record| matches!(record.calls[0].1, Answer::Done(_)));
    for (verb, our) in &ours.calls {
        let Some((_, their)) = theirs.calls.iter().find(|(name, _)| name == verb) else { continue };
        let (a, b) = (their.code(), our.code());
        if a != b && (both || *verb != "check") {
            let detail = format!("{} | {}", text(their), text(our));
            found.push(Difference { aspect: format!("{verb} {a}/{b}"), detail });
        }
    }
    // A message that equals the reference plugin's is accepted even if it does not name the key.
    if let (Answer::Refused(7, message), Some(key)) = (&ours.calls[0].1, &case.key)
        && !message.to_lowercase().contains(&key.to_lowercase())
        && *message != text(&theirs.calls[0].1)
    {
        found.push(Difference { aspect: "key not named".to_owned(), detail: message.clone() });
    }
    let mut lines = |what: &str, theirs: BTreeSet<String>, ours: BTreeSet<String>| {
        for (sign, lines) in [("-", theirs.difference(&ours)), ("+", ours.difference(&theirs))] {
            let line = |line| Difference { aspect: format!("{what} {sign} {line}"), detail: String::new() };
            found.extend(lines.map(line));
        }
    };
    if both {
        lines("result", result(&theirs.calls[0].1), result(&ours.calls[0].1));
        lines("made", plain(&theirs.made), plain(&ours.made));
    }
    // If only one side refuses, the rest of the state cannot be compared. If both refuse, what the reference plugin
    // leaves behind is not a model.
    let left = plain(&ours.left);
    match (both, one) {
        (true, _) => lines("left", plain(&theirs.left), left),
        (false, true) => {}
        (false, false) => lines("left", plain(&theirs.left).intersection(&left).cloned().collect(), left),
    }
    found
}

fn text(answer: &Answer) -> String {
    match answer {
        Answer::Done(_) => "success".to_owned(),
        Answer::Refused(_, text) | Answer::Broken(text) => text.clone(),
    }
}

/// Converts a result to lines of paths and values.
fn result(answer: &Answer) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    if let Answer::Done(value) = answer {
        flatten("", value, &mut lines);
    }
    lines
}

fn flatten(path: &str, value: &Value, lines: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            object.iter().for_each(|(key, value)| flatten(&format!("{path}/{key}"), value, lines));
        }
        Value::Array(list) if !list.is_empty() => {
            list.iter().enumerate().for_each(|(at, value)| flatten(&format!("{path}/{at}"), value, lines));
        }
        _ => drop(lines.insert(normal(&format!("{path} {value}")))),
    }
}

fn plain(lines: &BTreeSet<String>) -> BTreeSet<String> {
    lines.iter().map(|line| normal(line)).collect()
}

/// Replaces random names and addresses by fixed ones.
fn normal(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let length = random(rest, text.chars().last());
        if length > 0 {
            text.push_str(if rest.starts_with("veth") { "veth*" } else { "MAC" });
        } else {
            text.push(first);
        }
        rest = &rest[length.max(first.len_utf8())..];
    }
    text
}

/// The length of the random word at the beginning of a text.
fn random(text: &str, before: Option<char>) -> usize {
    if before.is_some_and(|c| c.is_ascii_alphanumeric() || c == ':') {
        return 0;
    }
    if let Some(rest) = text.strip_prefix("veth") {
        let digits = rest.chars().take_while(char::is_ascii_hexdigit).count();
        return if digits >= 8 { 4 + digits } else { 0 };
    }
    let Some(mac) = text.get(..17) else { return 0 };
    let shaped = mac.split(':').count() == 6
        && mac.split(':').all(|byte| byte.len() == 2 && byte.chars().all(|c| c.is_ascii_hexdigit()));
    let fixed = ["02:11:22:33:", "00:00:00:00:00:00"].iter().any(|known| mac.starts_with(known));
    if shaped && !fixed && !text[17..].starts_with(':') { 17 } else { 0 }
}

#[test]
fn random_names_and_addresses_are_replaced() {
    let line =
        "link veth1234abcd mac \"ae:12:34:56:78:9a\" master \"02:11:22:33:00:04\" vethx 00:00:00:00:00:00";
    assert_eq!(normal(line), "link veth* mac \"MAC\" master \"02:11:22:33:00:04\" vethx 00:00:00:00:00:00");
}
