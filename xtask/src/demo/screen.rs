// SPDX-License-Identifier: MIT OR Apache-2.0

//! The demo's output: a picture, and a line per request and claim. Colours only on a terminal.

use std::env;
use std::io::{self, IsTerminal};
use std::time::Duration;

use serde_json::Value;

use super::world::{HOST_PORT, NODE_V4, NODE_V6, OUTSIDE_V4, OUTSIDE_V6};
use crate::cni::{Family, address};

/// Standard output, with colours on a terminal.
#[derive(Debug)]
pub(super) struct Screen {
    colours: bool,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { colours: io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none() }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// An act's heading.
    pub(super) fn act(&self, text: &str) {
        println!("\n{}", self.paint("1;7", &format!(" {text} ")));
    }

    /// A heading.
    pub(super) fn title(&self, text: &str) {
        println!("\n{}", self.paint("1", text));
    }

    /// An operation, its time and its result.
    pub(super) fn step(&self, what: &str, took: Duration, result: &str) {
        let took = format!("{:.1} ms", took.as_secs_f64() * 1000.0);
        println!("  {what:<12} {took:>9}   {result}");
    }

    pub(super) fn request(&self, from: &str, url: &str, answer: &str) {
        println!("  {from:>7} $ curl {url:<32} {}", self.paint("36", answer));
    }

    /// A request between hosts, nodes and pods, and its answer.
    pub(super) fn asked(&self, from: &str, to: &str, answer: &str) {
        println!("  {from:>22} -> {to:<32} {}", self.paint("36", answer));
    }

    /// A claim and its verdict. Returns 1 if it failed, else 0.
    pub(super) fn verdict(&self, claim: &str, holds: bool) -> u32 {
        let mark = if holds { self.paint("32", "ok  ") } else { self.paint("1;31", "FAIL") };
        println!("          {mark}  {claim}");
        u32::from(!holds)
    }

    /// The expected answer of a failed claim.
    pub(super) fn expected(&self, answer: &str) {
        println!("                expected: {answer}");
    }

    /// A command on the node and its output.
    pub(super) fn shown(&self, command: &str, output: &str) {
        println!("     node $ {command}");
        for line in output.lines() {
            println!("            {}", self.paint("36", line));
        }
    }

    /// Plain lines, indented as output is.
    pub(super) fn note(&self, text: &str) {
        println!("            {text}");
    }

    /// The hosts and their addresses.
    pub(super) fn picture(&self, results: &[Value; 2]) {
        println!();
        for line in picture(results) {
            println!("  {}", self.paint("2", &line));
        }
    }
}

fn picture(results: &[Value; 2]) -> Vec<String> {
    let of = |pod: usize, family| address(&results[pod], family).unwrap_or_default();
    let (v4, v6) = (Family::V4, Family::V6);
    let rule = "─";
    let mut lines = vec![
        format!("┌─ outside, another host {}┐", rule.repeat(35)),
        wide(&format!("eth0  {OUTSIDE_V4}  {OUTSIDE_V6}")),
        format!("└{}┬{}┘", rule.repeat(28), rule.repeat(30)),
        format!("┌─ node {}┴{}┐", rule.repeat(21), rule.repeat(30)),
        wide(&format!("eth0  {NODE_V4}  {NODE_V6}")),
        wide(&format!("      port {HOST_PORT} → web:80")),
        wide("cni0  the pods' bridge and gateway"),
        wide("        │                           │"),
        wide(&format!("┌─ web ─┴{}┐    ┌─ client ┴{}┐", rule.repeat(15), rule.repeat(13))),
    ];
    for family in [v4, v6] {
        lines.push(wide(&format!("│ {:<21} │    │ {:<21} │", of(0, family), of(1, family))));
    }
    lines.push(wide(&format!("└{}┘    └{}┘", rule.repeat(23), rule.repeat(23))));
    lines.push(format!("└{}┘", rule.repeat(59)));
    lines
}

/// A line inside the outer frame.
fn wide(text: &str) -> String {
    format!("│  {text:<57}│")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_line_of_the_picture_is_as_wide_as_the_first() {
        let result = json!({"ips": [{"address": "10.88.0.2/24"}, {"address": "fd00:88::2/64"}]});
        let lines = picture(&[result.clone(), result]);
        for line in &lines {
            assert_eq!(line.chars().count(), lines[0].chars().count(), "{line}\n{}", lines.join("\n"));
        }
    }
}
