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
mod sysctls;
mod translations;

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use cni_dataplane::ebpf;
use cni_runtime::config;
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
    /// Something optional is missing, another program may be in the way, or nobody knows.
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

    /// Something that could not be read, so nobody knows whether there is something to do. The finding stands for all
    /// that would have been found.
    fn unread(subject: impl Into<String>, error: &impl Display) -> Self {
        Self::new(subject, State::Warning, format!("could not be read: {error}"))
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

/// Judges what was read, or says that it could not be read.
fn judged<T, F: IntoIterator<Item = Finding>>(
    subject: &str,
    read: Result<T, impl Display>,
    judge: impl FnOnce(T) -> F,
) -> Vec<Finding> {
    match read {
        Ok(found) => judge(found).into_iter().collect(),
        Err(error) => vec![Finding::unread(subject, &error)],
    }
}

/// None for something that does not exist.
fn existing<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the path leads to something.
fn exists(path: &Path) -> io::Result<bool> {
    existing(path.metadata()).map(|found| found.is_some())
}

/// Checks the node and prints the findings. The exit code is 1 if something required is missing.
pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    // Several checks need the settings, the networks and the state of the programs. They are read once, so a failure is
    // one finding.
    let (settings, about_settings) = configuration::settings();
    let (networks, about_networks) = configuration::networks(Path::new(config::DIRECTORY));
    let programs = ebpf::status(&settings.ebpf);
    let mut findings = kernel::findings(&settings, &programs);
    findings.extend(about_settings);
    findings.extend(about_networks);
    findings.extend(networks::findings(&networks));
    findings.extend(host::findings(&settings, &networks));
    findings.extend(routers::findings());
    findings.extend(engines::findings(&settings, programs.as_ref().ok()));
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

    /// Asserts that these findings are about what could not be read.
    #[track_caller]
    pub(super) fn is_unread(found: &[Finding]) {
        let all = || found.iter().all(|one| one.found.starts_with("could not be read: "));
        assert!(!found.is_empty() && all(), "{found:?}");
        assert!(found.iter().all(|one| one.state == State::Warning), "{found:?}");
    }

    #[test]
    fn what_could_not_be_read_is_a_warning() {
        let found =
            |read: io::Result<u32>| judged("a", read, |number| (number > 1).then(|| Finding::ok("a", "b")));
        assert_eq!(found(Ok(1)), []);
        assert_eq!(found(Ok(2)), [Finding::ok("a", "b")]);
        let unread = found(Err(io::Error::other("no more descriptors")));
        is_unread(&unread);
        assert!(unread[0].found.ends_with(": no more descriptors"), "{unread:?}");
        assert!(is_ok(&unread), "a warning is not a failure");
    }

    #[test]
    fn only_what_does_not_exist_counts_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let circle = folder.path().join("circle");
        std::os::unix::fs::symlink("circle", &circle).unwrap();
        assert!(exists(&file).unwrap());
        assert!(!exists(&folder.path().join("none")).unwrap());
        assert!(!exists(&file.join("below")).unwrap());
        exists(&circle).unwrap_err();
    }

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
