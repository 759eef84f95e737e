// SPDX-License-Identifier: MIT OR Apache-2.0

//! The demo's claims: each is a request and its expected answer.

use serde_json::Value;

use super::screen::Screen;
use super::world::{HOST_PORT, NODE_V4, NODE_V6, OUTSIDE, OUTSIDE_V4, OUTSIDE_V6, inside};
use crate::cni::{Family, address};
use xtask_base::run;

/// The addresses in expected answers.
#[derive(Debug)]
pub(super) struct Addresses {
    web: [String; 2],
    client: [String; 2],
    bridge: [String; 2],
}

impl Addresses {
    /// Reads them from the results of the two ADDs. The pods' gateway is the bridge's address.
    pub(super) fn of(results: &[Value; 2]) -> Option<Self> {
        let both = |result: &Value| Some([address(result, Family::V4)?, address(result, Family::V6)?]);
        let gateway = |v6: bool| {
            let ips = results[0]["ips"].as_array()?;
            let mut gateways = ips.iter().filter_map(|ip| ip["gateway"].as_str());
            gateways.find(|gateway| gateway.contains(':') == v6).map(str::to_owned)
        };
        Some(Self {
            web: both(&results[0])?,
            client: both(&results[1])?,
            bridge: [gateway(false)?, gateway(true)?],
        })
    }
}

/// One request.
#[derive(Debug)]
pub(super) struct Probe {
    /// The client's namespace; none is the node's.
    from: Option<&'static str>,
    url: String,
    /// The exact answer; `None` if there must be none.
    answer: Option<String>,
    /// The claim that the answer proves.
    claim: &'static str,
}

impl Probe {
    fn new(from: Option<&'static str>, host: &str, port: u16, answer: String, claim: &'static str) -> Self {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let url = if port == 80 { format!("http://{host}/") } else { format!("http://{host}:{port}/") };
        Self { from, url, answer: Some(answer), claim }
    }

    /// The published port after its pod is gone.
    pub(super) fn closed_port() -> Self {
        let url = format!("http://{NODE_V4}:{HOST_PORT}/");
        Self { from: Some(OUTSIDE), url, answer: None, claim: "the port is closed again" }
    }

    /// Sends the request and prints it with its answer. Returns the number of failed claims, 0 or 1.
    pub(super) fn run(&self, screen: &Screen) -> u32 {
        let args = ["--silent", "--show-error", "--globoff", "--max-time", "5", &self.url];
        let outcome = run::capture(&mut inside(self.from, "curl", &args));
        let (answer, holds) = match (&outcome, &self.answer) {
            (Ok(text), Some(expected)) => (text.trim().to_owned(), text.trim() == expected),
            (Ok(text), None) => (text.trim().to_owned(), false),
            (Err(e), expected) => (last_line(&e.to_string()), expected.is_none()),
        };
        screen.request(self.from.unwrap_or("node"), &self.url, &answer);
        let failed = screen.verdict(self.claim, holds);
        if let (1, Some(expected)) = (failed, &self.answer) {
            screen.expected(expected);
        }
        failed
    }
}

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim().to_owned()
}

fn web(client: &str) -> String {
    format!("this is web; you are {client}")
}

/// All claims, in order, with headings.
pub(super) fn all(a: &Addresses) -> Vec<(&'static str, Vec<Probe>)> {
    let outside = |client: &str| format!("this is outside; you are {client}");
    let published = |from, host: &str, seen: &str, claim| Probe::new(from, host, HOST_PORT, web(seen), claim);
    vec![
        (
            "Another host asks the node, and the pod answers",
            vec![
                published(Some(OUTSIDE), NODE_V4, OUTSIDE_V4, "the pod sees the client's own address"),
                published(Some(OUTSIDE), NODE_V6, OUTSIDE_V6, "the same over IPv6"),
            ],
        ),
        (
            "The node asks itself",
            vec![
                published(None, NODE_V4, NODE_V4, "by the node's address"),
                published(None, "127.0.0.1", &a.bridge[0], "by the loopback address"),
                published(None, "::1", &a.bridge[1], "by the loopback address of IPv6"),
            ],
        ),
        (
            "Pods ask the node",
            vec![
                published(Some("client"), NODE_V4, &a.bridge[0], "a pod on the same bridge"),
                published(Some("client"), NODE_V6, &a.bridge[1], "the same over IPv6"),
                published(Some("web"), NODE_V4, &a.bridge[0], "the pod reaches itself (hairpin)"),
                published(Some("web"), NODE_V6, &a.bridge[1], "the same over IPv6"),
            ],
        ),
        (
            "A pod talks to others",
            vec![
                Probe::new(
                    Some("client"),
                    OUTSIDE_V4,
                    80,
                    outside(NODE_V4),
                    "outside sees the node (masquerade)",
                ),
                Probe::new(Some("client"), OUTSIDE_V6, 80, outside(NODE_V6), "the same over IPv6"),
                Probe::new(Some("client"), &a.web[0], 80, web(&a.client[0]), "a pod sees the pod itself"),
                Probe::new(Some("client"), &a.web[1], 80, web(&a.client[1]), "the same over IPv6"),
            ],
        ),
    ]
}
