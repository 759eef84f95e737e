// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway check-node`: the features of the kernel and the state of the host that the plugins need, and what
//! other programs have set up in the way of published ports.

mod configuration;
mod engines;
mod forward;
mod host;
mod kernel;
mod networks;
mod owners;
mod routers;
mod translations;

use std::io::{self, Write};

use cni_state::documents::{self, CheckNode};
pub(super) use forward::dropping_chains;
pub(super) use translations::advice;

use slipway_cli::json;
use slipway_cli::{Failure, Output};

/// Check the kernel and the host for missing features and conflicts
///
/// Probes the kernel in a network namespace of its own and changes nothing on the node. Each finding that needs attention
/// has a reason and a fix.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Exit codes:
  1  something required is missing

Examples:
  slipway check-node
  slipway check-node --output json")]
pub(super) struct Args {
    #[command(flatten)]
    output: Output,
}

/// The meaning of a finding for the plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing to do.
    Note,
    /// Something optional is missing, or another program may be in the way.
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
    /// The thing that was checked.
    subject: String,
    state: State,
    /// The result of the check.
    found: String,
    /// The purpose of the thing, or the consequence of the state.
    reason: String,
    /// The remedy; empty if there is nothing to do.
    fix: String,
}

impl Finding {
    fn new(subject: impl Into<String>, state: State, found: impl Into<String>) -> Self {
        let (subject, found) = (subject.into(), found.into());
        Self { subject, state, found, reason: String::new(), fix: String::new() }
    }

    fn ok(subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(subject, State::Ok, found)
    }

    fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }
}

/// Checks the node and prints the findings. The exit code is 1 if something required is missing.
pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let mut findings = kernel::findings();
    findings.extend(configuration::findings());
    findings.extend(networks::findings());
    findings.extend(host::findings());
    findings.extend(routers::findings());
    findings.extend(engines::findings());
    findings.extend(translations::findings());
    if args.output.json() {
        json::print(document(&findings), out)?;
    } else {
        print_text(&findings, out)?;
    }
    Ok(u8::from(!is_ok(&findings)))
}

/// True if nothing required is missing.
fn is_ok(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.state != State::Missing)
}

fn print_text(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    let width = findings.iter().map(|finding| finding.subject.chars().count()).max().unwrap_or(0);
    for Finding { subject, state, found, reason, fix } in findings {
        writeln!(out, "{:8} {subject:width$}  {found}", state.word())?;
        if *state >= State::Note {
            for (word, text) in [("reason", reason), ("fix", fix)] {
                if !text.is_empty() {
                    writeln!(out, "{:8}   {word}: {text}", "")?;
                }
            }
        }
    }
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    writeln!(out, "\n{} missing, {} warnings", count(State::Missing), count(State::Warning))
}

/// The document of `slipway check-node`.
fn document(findings: &[Finding]) -> CheckNode {
    let row = |finding: &Finding| documents::Finding {
        subject: finding.subject.clone(),
        state: finding.state.word().to_owned(),
        found: finding.found.clone(),
        reason: finding.reason.clone(),
        fix: finding.fix.clone(),
    };
    CheckNode { ok: is_ok(findings), findings: findings.iter().map(row).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_printed_where_something_is_to_be_done() {
        let findings = [
            Finding::ok("a", "fine").reason("not printed"),
            Finding::new("bcd", State::Missing, "gone").reason("needed").fix("put it back"),
        ];
        let mut text = Vec::new();
        print_text(&findings, &mut text).unwrap();
        let expected = "ok       a    fine\nmissing  bcd  gone\n           reason: needed\n           \
                        fix: put it back\n\n1 missing, 0 warnings\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        let document = document(&findings);
        slipway_cli::checks::assert_documented("slipway check-node", std::slice::from_ref(&document));
        assert!(!document.ok);
        assert_eq!(document.findings[1].fix, "put it back");
    }
}
