// SPDX-License-Identifier: GPL-2.0-or-later

//! The results. Each is a line of the table and an object of the document.

use std::fmt::Write as _;
use std::net::SocketAddr;

use cni_dataplane::Protocol;
use cni_state::documents::{ConnectivityCheck, ConnectivityTest};
use slipway_cli::columns;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Passed,
    Failed,
    /// The check could not be made.
    Skipped,
}

impl State {
    const fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// A check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) from: &'static str,
    pub(super) what: String,
    pub(super) protocol: Option<Protocol>,
    pub(super) to: Option<SocketAddr>,
    pub(super) state: State,
    /// The reply.
    pub(super) saw: String,
    /// The difference from the promise.
    pub(super) why: Option<String>,
    /// The reason of the difference, in the words of `slipway explain`.
    pub(super) cause: Option<String>,
    /// The page with the promise.
    pub(super) page: &'static str,
}

impl Row {
    /// A check that has passed.
    pub(super) fn new(
        from: &'static str,
        what: &str,
        protocol: Protocol,
        to: Option<SocketAddr>,
        page: &'static str,
    ) -> Self {
        Self { protocol: Some(protocol), ..Self::about(from, what, to, page) }
    }

    /// A check that sends no packets.
    pub(super) fn about(from: &'static str, what: &str, to: Option<SocketAddr>, page: &'static str) -> Self {
        let what = what.to_owned();
        let (state, saw) = (State::Passed, String::new());
        Self { from, what, protocol: None, to, state, saw, why: None, cause: None, page }
    }

    /// Turns the check into one that could not be made.
    pub(super) fn skipped(self, why: impl Into<String>) -> Self {
        Self { state: State::Skipped, why: Some(why.into()), ..self }
    }

    /// Turns the check into one whose promise is broken.
    pub(super) fn failed(self, why: impl Into<String>) -> Self {
        Self { state: State::Failed, why: Some(why.into()), ..self }
    }

    fn target(&self) -> String {
        self.to.map_or_else(|| "-".to_owned(), |to| to.to_string())
    }

    fn protocol_name(&self) -> &'static str {
        self.protocol.map_or("-", Protocol::as_str)
    }

    /// The line of progress.
    pub(super) fn line(&self) -> String {
        let Self { from, what, state, .. } = self;
        format!("{}: {from} to {what}, {} {}", state.word(), self.protocol_name(), self.target())
    }

    fn document(&self) -> ConnectivityCheck {
        ConnectivityCheck {
            from: self.from.to_owned(),
            to: self.what.clone(),
            protocol: self.protocol.map(|protocol| protocol.as_str().to_owned()),
            destination: self.to.map(|to| to.to_string()),
            state: self.state.word().to_owned(),
            saw: self.saw.clone(),
            why: self.why.clone(),
            cause: self.cause.clone(),
            page: self.page.to_owned(),
        }
    }
}

/// The whole result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Results {
    pub(super) network: String,
    /// The backend that served the published ports; none if it is not one of Slipway's.
    pub(super) backend: Option<&'static str>,
    pub(super) rows: Vec<Row>,
}

/// Limits of the test.
pub(super) const LIMITS: [&str; 4] = [
    "\"outside\" is a namespace behind a veth of the node: the path over the uplink, its driver and what filters \
     before the node are not tried",
    "rules that name an uplink or an address of a client do not see the test's packets as theirs",
    "BPF programs at uplinks carry no packet of \"outside\"; those of containers do",
    "of the contract: SCTP, mappings with a host address, a container of another bridge or with several networks, \
     Services, networks that are not masqueraded, the take-over of a dead container's port, services of the node",
];

impl Results {
    /// The number of checks with this result.
    pub(super) fn count(&self, state: State) -> usize {
        self.rows.iter().filter(|row| row.state == state).count()
    }

    /// The table, the failures with their causes, and the limits.
    pub(super) fn text(&self) -> std::io::Result<String> {
        let mut out = Vec::new();
        let lines: Vec<[String; 6]> = self
            .rows
            .iter()
            .map(|row| {
                let Row { from, what, state, saw, .. } = row;
                [state.word(), from, what, row.protocol_name(), &row.target(), saw].map(str::to_owned)
            })
            .collect();
        columns::print(["RESULT", "FROM", "TO", "PROTOCOL", "DESTINATION", "SEEN"], &lines, &mut out)?;
        let mut text = String::from_utf8_lossy(&out).into_owned();
        // Writing to a String cannot fail.
        for row in self.rows.iter().filter(|row| row.state != State::Passed) {
            let _written = write!(text, "\n{}\n  {}\n", row.line(), row.why.as_deref().unwrap_or_default());
            if let Some(cause) = &row.cause {
                let _written = writeln!(text, "  cause: {}", cause.replace('\n', "\n  "));
            }
            let _written = writeln!(text, "  see {}", row.page);
        }
        let backend = self.backend.unwrap_or("another plugin set's");
        let _written = writeln!(
            text,
            "\nnetwork {}, backend {backend}: {} passed, {} failed, {} skipped",
            self.network,
            self.count(State::Passed),
            self.count(State::Failed),
            self.count(State::Skipped)
        );
        for limit in LIMITS {
            let _written = writeln!(text, "not shown: {limit}");
        }
        Ok(text)
    }

    /// The document of `slipway connectivity-test`.
    pub(super) fn document(&self) -> ConnectivityTest {
        ConnectivityTest {
            network: self.network.clone(),
            backend: self.backend.map(str::to_owned),
            ok: self.count(State::Failed) == 0,
            checks: self.rows.iter().map(Row::document).collect(),
            not_shown: LIMITS.map(str::to_owned).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn results() -> Results {
        let to = Some("203.0.113.253:20000".parse().unwrap());
        let page = "docs/dataplane.md#the-contract";
        let passed = Row {
            saw: "pod saw 203.0.113.254".to_owned(),
            ..Row::new("outside", "the node's address", Protocol::Tcp, to, page)
        };
        let failed = Row {
            state: State::Failed,
            saw: "no reply".to_owned(),
            why: Some("no reply: timed out".to_owned()),
            cause: Some("It is dropped by chain FORWARD of table ip filter.".to_owned()),
            ..Row::new("the node", "the node's loopback", Protocol::Udp, to, page)
        };
        let last = Row::about("DEL", "nothing is left", None, page);
        Results { network: "pods".to_owned(), backend: Some("nftables"), rows: vec![passed, failed, last] }
    }

    #[test]
    fn failures_are_explained_below_the_table() {
        expect![[r#"
            RESULT  FROM      TO                   PROTOCOL  DESTINATION          SEEN
            passed  outside   the node's address   tcp       203.0.113.253:20000  pod saw 203.0.113.254
            failed  the node  the node's loopback  udp       203.0.113.253:20000  no reply
            passed  DEL       nothing is left      -         -

            failed: the node to the node's loopback, udp 203.0.113.253:20000
              no reply: timed out
              cause: It is dropped by chain FORWARD of table ip filter.
              see docs/dataplane.md#the-contract

            network pods, backend nftables: 2 passed, 1 failed, 0 skipped
            not shown: "outside" is a namespace behind a veth of the node: the path over the uplink, its driver and what filters before the node are not tried
            not shown: rules that name an uplink or an address of a client do not see the test's packets as theirs
            not shown: BPF programs at uplinks carry no packet of "outside"; those of containers do
            not shown: of the contract: SCTP, mappings with a host address, a container of another bridge or with several networks, Services, networks that are not masqueraded, the take-over of a dead container's port, services of the node
        "#]].assert_eq(&results().text().unwrap());
    }

    #[test]
    fn json_has_each_check() {
        let foreign = Results { backend: None, ..results() };
        slipway_cli::checks::assert_documented(
            "slipway connectivity-test",
            &[results().document(), foreign.document()],
        );
        assert!(!results().document().ok);
    }
}
