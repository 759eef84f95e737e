// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports that plugins send to the node's agent: one datagram per call of a plugin, to the Unix socket [`SOCKET`].
//!
//! ```json
//! {
//!   "schema": 1,
//!   "plugin": "bridge",
//!   "verb": "ADD",
//!   "network": "pods",
//!   "microseconds": 2150,
//!   "code": 11
//! }
//! ```
//!
//! `code` is the error code of the specification, and is missing after a success. Unknown keys are ignored.
//!
//! A report is lost if no agent listens or the queue is full. Reporting therefore never fails or delays a call.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The socket of the node's agent.
pub const SOCKET: &str = "/run/slipway/reports.sock";

/// The maximum length of a datagram that is read, in bytes.
pub const LIMIT: usize = 1024;

/// The version of the format.
const SCHEMA: u64 = 1;
/// The maximum length of a plugin's or network's name, in bytes.
const NAME: usize = 128;
/// The maximum duration of a call that is accepted: a day, in microseconds.
const LONGEST: u64 = 86_400_000_000;

/// A verb of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verb {
    /// Attaches a container.
    Add,
    /// Detaches a container.
    Del,
    /// Compares an attachment with the current state.
    Check,
    /// Removes everything that does not belong to a valid attachment.
    Gc,
    /// Reports whether the next ADD can succeed.
    Status,
}

impl Verb {
    pub const ALL: [Self; 5] = [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status];

    /// The text of `CNI_COMMAND`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
        }
    }

    /// The verb of a `CNI_COMMAND`, or none for VERSION and unknown commands.
    #[must_use]
    pub fn of(command: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == command)
    }
}

/// A report about the end of a plugin's call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The plugin's `type`.
    pub plugin: String,
    pub verb: Verb,
    /// The network's name, empty if the configuration could not be read.
    pub network: String,
    /// How long the call took, without the start of the process. The datagram has it in microseconds.
    pub took: Duration,
    /// The error's code, or none after a success.
    pub code: Option<u32>,
}

/// A datagram that is not a report.
#[derive(Debug, thiserror::Error)]
pub enum InvalidReport {
    /// The datagram is longer than [`LIMIT`].
    #[error("longer than {LIMIT} bytes")]
    TooLong,
    /// The datagram is not JSON, or a key is missing or has a value of another type.
    #[error("not a report: {0}")]
    Form(#[from] serde_json::Error),
    /// The report is from a later version.
    #[error("unknown schema {0}, this version reads {SCHEMA}")]
    Schema(u64),
    /// A value is outside its range.
    #[error("key {0:?}: invalid value")]
    Value(&'static str),
}

/// The content of the datagram.
#[derive(Serialize, Deserialize)]
struct Content<'a> {
    schema: u64,
    #[serde(borrow)]
    plugin: std::borrow::Cow<'a, str>,
    verb: Verb,
    #[serde(borrow)]
    network: std::borrow::Cow<'a, str>,
    microseconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<u32>,
}

impl Report {
    /// Sends the report to [`SOCKET`] without waiting.
    pub fn send(&self) {
        self.send_to(Path::new(SOCKET));
    }

    /// Sends the report to a socket without waiting. If that is not possible, the report is lost.
    pub fn send_to(&self, socket: &Path) {
        let Ok(own) = UnixDatagram::unbound() else { return };
        // ENOENT and ECONNREFUSED mean that there is no agent, EAGAIN that the agent's queue is full.
        let _lost = own.set_nonblocking(true).and_then(|()| own.send_to(&self.to_json(), socket));
    }

    /// The content of the datagram. Long names are truncated.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let cut = |name: &str| name[..name.floor_char_boundary(NAME)].to_owned();
        let content = Content {
            schema: SCHEMA,
            plugin: cut(&self.plugin).into(),
            verb: self.verb,
            network: cut(&self.network).into(),
            microseconds: u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX).min(LONGEST),
            code: self.code,
        };
        // Numbers and texts can always be encoded.
        serde_json::to_vec(&content).unwrap_or_default()
    }

    /// Parses the content of a datagram, which any process with access to the socket may have sent.
    ///
    /// # Errors
    /// [`InvalidReport`] if the datagram is too long, is not a report, or has a value out of its range.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidReport> {
        if bytes.len() > LIMIT {
            return Err(InvalidReport::TooLong);
        }
        let content: Content<'_> = serde_json::from_slice(bytes)?;
        if content.schema != SCHEMA {
            return Err(InvalidReport::Schema(content.schema));
        }
        let invalid = |key| Err(InvalidReport::Value(key));
        if content.plugin.is_empty() || !is_name(&content.plugin) {
            return invalid("plugin");
        }
        if !is_name(&content.network) {
            return invalid("network");
        }
        if content.microseconds > LONGEST {
            return invalid("microseconds");
        }
        if content.code == Some(0) {
            return invalid("code");
        }
        Ok(Self {
            plugin: content.plugin.into_owned(),
            verb: content.verb,
            network: content.network.into_owned(),
            took: Duration::from_micros(content.microseconds),
            code: content.code,
        })
    }
}

/// True if an agent receives reports at a socket. The socket of an agent that was killed refuses connections.
#[must_use]
pub fn has_receiver(socket: &Path) -> bool {
    UnixDatagram::unbound().and_then(|own| own.connect(socket)).is_ok()
}

/// True for an empty text, and for a name that the specification allows: letters, digits, `_`, `.` and `-`.
fn is_name(text: &str) -> bool {
    text.len() <= NAME && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::damaged::damaged;

    fn report() -> Report {
        let (plugin, network) = ("host-local".to_owned(), "pods".to_owned());
        Report { plugin, verb: Verb::Add, network, took: Duration::from_micros(2150), code: Some(11) }
    }

    fn parse(document: &Value) -> Result<Report, String> {
        Report::parse(document.to_string().as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_format_is_this() {
        let document: Value = serde_json::from_slice(&report().to_json()).unwrap();
        let expected = json!({
            "schema": 1, "plugin": "host-local", "verb": "ADD", "network": "pods", "microseconds": 2150, "code": 11,
        });
        assert_eq!(document, expected);
        let least = json!({
            "schema": 1, "plugin": "p", "verb": "GC", "network": "", "microseconds": 0, "later": {"key": [1]},
        });
        let (verb, took) = (Verb::Gc, Duration::ZERO);
        let expected = Report { plugin: "p".to_owned(), verb, network: String::new(), took, code: None };
        assert_eq!(parse(&least).unwrap(), expected);
        for verb in Verb::ALL {
            assert_eq!(Verb::of(verb.as_str()), Some(verb));
            assert_eq!(Report::parse(&Report { verb, ..report() }.to_json()).unwrap().verb, verb);
        }
        assert_eq!(Verb::of("VERSION"), None);
    }

    #[test]
    fn invalid_reports_are_refused_by_name() {
        let with = |key: &str, value: Value| {
            let mut document: Value = serde_json::from_slice(&report().to_json()).unwrap();
            document[key] = value;
            document
        };
        for (document, expected) in [
            (with("schema", json!(2)), "unknown schema 2, this version reads 1"),
            (with("plugin", json!("")), "key \"plugin\": invalid value"),
            (with("plugin", json!("a\nb")), "key \"plugin\": invalid value"),
            (with("plugin", json!("p".repeat(129))), "key \"plugin\": invalid value"),
            (with("network", json!("ä")), "key \"network\": invalid value"),
            (with("microseconds", json!(86_400_000_001_u64)), "key \"microseconds\": invalid value"),
            (with("code", json!(0)), "key \"code\": invalid value"),
            (with("later", json!("x".repeat(LIMIT))), "longer than 1024 bytes"),
        ] {
            assert_eq!(parse(&document).unwrap_err(), expected, "{document}");
        }
        for document in [with("verb", json!("VERSION")), with("code", json!(-1)), json!([]), json!({})] {
            assert!(parse(&document).unwrap_err().starts_with("not a report: "), "{document}");
        }
    }

    #[test]
    fn a_report_arrives_or_is_lost_at_once() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("reports.sock");
        report().send_to(&path);
        assert!(!has_receiver(&path) && !path.exists(), "nothing is created");
        let agent = UnixDatagram::bind(&path).unwrap();
        agent.set_nonblocking(true).unwrap();
        let mut buffer = [0; LIMIT];
        report().send_to(&path);
        let length = agent.recv(&mut buffer).unwrap();
        assert_eq!(Report::parse(&buffer[..length]).unwrap(), report());
        // The test sends more reports than the socket's queue holds, and nothing empties the queue. No call may wait.
        let queue: usize =
            std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap().trim().parse().unwrap();
        (0..queue + 100).for_each(|_| report().send_to(&path));
        let received = std::iter::from_fn(|| agent.recv(&mut buffer).ok()).count();
        assert!((1..queue + 100).contains(&received), "{received} of {queue}");
        assert_eq!(agent.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(has_receiver(&path));
        // The socket file remains, as after an agent has been killed.
        drop(agent);
        report().send_to(&path);
        assert!(!has_receiver(&path) && path.exists());
    }

    /// The variable with the number of mutated reports.
    const CASES: &str = "SLIPWAY_MUTATED_REPORTS";

    /// A changed report that is accepted must have names that a metric may have, and must stay the same when it is
    /// written again.
    #[test]
    fn mutated_reports_never_panic() {
        let cases = std::env::var(CASES).map_or(20_000, |text| text.parse().unwrap());
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let words = ["18446744073709551616", "\"DEL\"", "\"code\":", "\"schema\":1,"];
        let outcome = runner.run(&damaged(report().to_json(), &words), |bytes| {
            if let Ok(report) = Report::parse(&bytes) {
                prop_assert!(is_name(&report.plugin) && is_name(&report.network));
                prop_assert_eq!(Report::parse(&report.to_json()).unwrap(), report);
            }
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }
}
