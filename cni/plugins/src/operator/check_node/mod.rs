//! `slipway check-node`: what this kernel and this host can do, what is missing, and what of others
//! would stop the traffic of published ports.

mod engines;
mod host;
mod kernel;

use std::io::{self, Write};

pub(super) use host::dropping_forward_chains;
use serde_json::{Value, json};

/// Arguments of `slipway check-node`.
pub const USAGE: &str = "[--output text|json]";

/// What a finding means for the plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing to do.
    Note,
    /// Something optional is missing, or something of others may be in the way.
    Warning,
    /// Something required is missing.
    Missing,
}

impl State {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Missing => "missing",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    /// What was looked at.
    what: String,
    state: State,
    /// What was found.
    found: String,
    /// What it is for, or what follows.
    why: String,
    /// How to mend it; empty if there is nothing to mend.
    mend: String,
}

impl Finding {
    fn new(what: impl Into<String>, state: State, found: impl Into<String>) -> Self {
        let (what, found) = (what.into(), found.into());
        Self { what, state, found, why: String::new(), mend: String::new() }
    }

    fn ok(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(what, State::Ok, found)
    }

    fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = mend.into();
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    Text,
    Json,
}

/// Looks at the node and prints what it found: exit code 0 if nothing required is missing, 1 if
/// something is, 2 for wrong arguments.
pub fn check_node_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let output = match parse(args) {
        Ok(output) => output,
        Err(reason) => return writeln!(err, "slipway check-node: {reason}").map_or(1, |()| 2),
    };
    let mut findings = kernel::findings();
    findings.extend(host::findings());
    findings.extend(engines::findings());
    let worst = findings.iter().map(|finding| finding.state).max().unwrap_or(State::Ok);
    let printed = match output {
        Output::Text => print_text(&findings, out),
        Output::Json => print_json(&findings, out),
    };
    u8::from(printed.is_err() || worst == State::Missing)
}

fn parse(args: &[String]) -> Result<Output, String> {
    let value = match args {
        [] => return Ok(Output::Text),
        [one] => one.strip_prefix("--output=").ok_or_else(|| format!("unknown argument {one:?}"))?,
        [name, value] if name == "--output" || name == "-o" => value.as_str(),
        [other, ..] => return Err(format!("unknown argument {other:?}")),
    };
    match value {
        "text" => Ok(Output::Text),
        "json" => Ok(Output::Json),
        other => Err(format!("--output is text or json, not {other:?}")),
    }
}

fn print_text(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or(0);
    for Finding { what, state, found, why, mend } in findings {
        writeln!(out, "{:8} {what:width$}  {found}", state.word())?;
        if *state >= State::Note {
            for (word, text) in [("why", why), ("mend", mend)] {
                if !text.is_empty() {
                    writeln!(out, "{:8}   {word}: {text}", "")?;
                }
            }
        }
    }
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    writeln!(out, "\n{} missing, {} warnings", count(State::Missing), count(State::Warning))
}

fn print_json(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    let rows: Vec<Value> = findings
        .iter()
        .map(|Finding { what, state, found, why, mend }| {
            json!({ "what": what, "state": state.word(), "found": found, "why": why, "mend": mend })
        })
        .collect();
    let ok = findings.iter().all(|finding| finding.state != State::Missing);
    serde_json::to_writer_pretty(&mut *out, &json!({ "ok": ok, "findings": rows }))?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn arguments() {
        assert_eq!(parse(&args(&[])), Ok(Output::Text));
        assert_eq!(parse(&args(&["--output", "json"])), Ok(Output::Json));
        assert_eq!(parse(&args(&["--output=text"])), Ok(Output::Text));
        assert!(parse(&args(&["--output", "xml"])).is_err());
        assert!(parse(&args(&["--json"])).is_err());
        assert!(parse(&args(&["--output"])).is_err());
    }

    #[test]
    fn reasons_are_printed_where_something_is_to_be_done() {
        let findings = [
            Finding::ok("a", "fine").why("unseen"),
            Finding::new("bcd", State::Missing, "gone").why("needed").mend("put it back"),
        ];
        let mut text = Vec::new();
        print_text(&findings, &mut text).unwrap();
        let expected = "ok       a    fine\nmissing  bcd  gone\n           why: needed\n           \
                        mend: put it back\n\n1 missing, 0 warnings\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        let mut text = Vec::new();
        print_json(&findings, &mut text).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["ok"], false);
        assert_eq!(value["findings"][1]["mend"], "put it back");
    }
}
