// SPDX-License-Identifier: GPL-2.0-or-later

//! The path of a packet in the words of `slipway explain`: a pure function of its events.

use std::fmt::Write as _;

use cni_dataplane::Protocol;
use cni_dataplane::trace::{Policy, TracedPacket};
use cni_state::documents::{PacketTrace, Step};

use super::journey::{ByRule, End, Exit, Journey, Run};

/// Facts that the events do not have.
pub(super) trait Facts {
    /// The name of a link.
    fn link(&self, index: u32) -> String;
    /// The owner of the mapping for the destination.
    fn owner(&self) -> Option<String>;
    /// `, where something listens on the port`, or nothing.
    fn listener(&self) -> String;
    /// The reason why the packet is not seen again, as far as the node's settings show it.
    fn reason(&self, seen: &TracedPacket) -> Option<String>;
    /// Advice about the rule that has translated the packet at the end of a run: why the rule exists, and what to do
    /// about it.
    fn translator(&self, seen: &TracedPacket, run: &Run) -> Option<String>;
}

/// A packet's path in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Description {
    headline: String,
    seen: TracedPacket,
    link: Option<String>,
    pub(super) steps: Vec<(&'static str, String)>,
    pub(super) outcome: String,
    pub(super) dropped: bool,
    /// True if the last step has the destination's translation already.
    is_translated: bool,
}

impl Description {
    /// Describes a path.
    pub(super) fn of(journey: &Journey, protocol: Protocol, facts: &dyn Facts) -> Self {
        let first = &journey.first;
        let link = first.link_in.map(|index| facts.link(index));
        let mut all = Self {
            headline: headline(first, link.as_deref()),
            seen: first.clone(),
            link,
            steps: Vec::new(),
            outcome: String::new(),
            dropped: matches!(journey.exit, Exit::Dropped | Exit::Lost),
            is_translated: false,
        };
        let mut before: (&TracedPacket, Option<&Run>) = (first, None);
        for run in &journey.runs {
            all.translator(before, &run.seen, facts);
            all.changes(before.0, &run.seen);
            all.run(run, protocol, facts);
            before = (&run.seen, Some(run));
        }
        if let Exit::Input(seen) | Exit::Postrouting(seen) = &journey.exit {
            all.translator(before, seen, facts);
            all.changes(before.0, seen);
        }
        all.outcome = outcome(journey, facts);
        all
    }

    /// The whole text; packets are counted from 1.
    pub(super) fn text(&self, number: usize) -> String {
        let mut text = format!("packet {number}: {}\n", self.headline);
        let width = self.steps.iter().map(|(stage, _)| stage.len()).max().unwrap_or(0);
        for (number, (stage, what)) in self.steps.iter().enumerate() {
            let indented = what.replace('\n', &format!("\n{:indent$}", "", indent = width + 6));
            // Writing to a String cannot fail.
            let _written = writeln!(text, "{:2}. {stage:width$}  {indented}", number + 1);
        }
        let _written = writeln!(text, "{}\n", self.outcome);
        text
    }

    /// The packet's object in the document of `slipway trace`.
    pub(super) fn document(&self) -> PacketTrace {
        PacketTrace {
            source: self.seen.from.to_string(),
            destination: self.seen.to.to_string(),
            link: self.link.clone(),
            steps: self.steps.iter().map(Step::from).collect(),
            outcome: self.outcome.clone(),
            dropped: self.dropped,
        }
    }

    fn step(&mut self, stage: &'static str, what: impl Into<String>) {
        self.steps.push((stage, what.into()));
    }

    /// Names the rule of another program that has translated the destination, which is the rule that ended the previous
    /// run.
    fn translator(&mut self, before: (&TracedPacket, Option<&Run>), after: &TracedPacket, facts: &dyn Facts) {
        let (seen, Some(run)) = before else { return };
        let End::Accepted(rule) = &run.end else { return };
        if seen.to == after.to || !is_translator(run) {
            return;
        }
        let table = &run.place.table;
        let text = rule.text.as_ref().map(|text| format!(" `{text}`")).unwrap_or_default();
        let mut what = format!(
            "chain {} of table {table}: the rule with handle {}{text} translates it before the table of published ports sees it",
            rule.chain, rule.handle
        );
        if let Some(more) = facts.translator(seen, run) {
            let _written = write!(what, "\n{more}");
        }
        // The new step replaces the line that says that the chain was passed.
        self.steps.pop();
        let _written = write!(what, "\nthe destination becomes {}", after.to);
        self.step(stage(run), what);
        self.is_translated = true;
    }

    /// Reports the translations between two points of the path.
    fn changes(&mut self, before: &TracedPacket, after: &TracedPacket) {
        if before.to != after.to && !std::mem::take(&mut self.is_translated) {
            self.translated("lookup", &format!("the destination becomes {}", after.to));
        }
        if before.from != after.from {
            self.translated("postrouting", &format!("the source becomes {}", after.from));
        }
    }

    /// Adds a translation to the step that found it. Chains of type nat only see the first packet of a flow.
    fn translated(&mut self, stage: &'static str, what: &str) {
        match self.steps.last_mut() {
            Some((last, text))
                if *last == stage || text.contains("table ip nat") || text.contains("table ip6 nat") =>
            {
                let _written = write!(text, "\n{what}");
            }
            _ => self.step("conntrack", format!("a packet of a known flow: {what}")),
        }
    }

    fn run(&mut self, run: &Run, protocol: Protocol, facts: &dyn Facts) {
        if run.place.is_own() { self.own(run, protocol, facts) } else { self.foreign(run) }
    }

    /// Describes the chains of the table of published ports.
    fn own(&mut self, run: &Run, protocol: Protocol, facts: &dyn Facts) {
        let (to, from) = (run.seen.to, run.seen.from);
        match (run.place.chain.as_str(), &run.end) {
            (chain @ ("guard" | "guard-input"), End::Dropped(_)) => self.step(
                "guard",
                format!("chain {chain} of table inet slipway drops packets to or from 127.0.0.0/8 on all links but lo"),
            ),
            ("guard-input", _) => {}
            ("guard", _) if to.is_ipv4() && run.seen.link_in.is_some() => {
                self.step("guard", "neither to nor from 127.0.0.0/8: passes");
            }
            ("guard-translated", End::Dropped(_)) => self.step(
                "guard",
                "chain guard-translated of table inet slipway drops it: the port leads to the node's own loopback",
            ),
            (hook @ ("prerouting" | "output"), end) => {
                let stage = if hook == "output" { "output" } else { "prerouting" };
                let ip = to.ip();
                if run.path.is_empty() {
                    self.step(stage, format!("{ip} is no address of this node: published ports are for the node's own addresses alone"));
                    return;
                }
                self.step(stage, format!("{ip} is an address of this node: published ports are looked up in table inet slipway"));
                let own_chain = run.path.iter().find(|chain| chain.starts_with("container-"));
                let mut what = match end {
                    End::Accepted(ByRule { map: Some(map), .. }) => {
                        let whose = facts.owner().map_or_else(String::new, |owner| format!(": {owner}"));
                        format!("map {map} has {protocol} port {}{whose}", to.port())
                    }
                    End::Dropped(rule) => format!("chain {} of table inet slipway drops it", rule.chain),
                    _ => format!("no container has {protocol} port {} of {ip}", to.port()),
                };
                if let Some(chain) = own_chain {
                    let _written = write!(what, "\nchain {chain} is the container's own");
                }
                self.step("lookup", what);
            }
            ("postrouting", _) if run.path.is_empty() => {
                self.step("postrouting", format!("{} keeps its address: no element for it", from.ip()));
            }
            ("postrouting", End::Accepted(rule)) => {
                self.step("postrouting", format!("chain {} masquerades the source {}", rule.chain, from.ip()));
            }
            ("postrouting", _) => {
                // The chains that lead to the deciding ones are the same for all containers.
                let leads = |chain: &&str| chain.starts_with("published") || chain.starts_with("masqueraded");
                let path: Vec<&str> = run.path.iter().map(String::as_str).filter(|chain| !leads(chain)).collect();
                self.step("postrouting", format!("{} keeps its address: chain {}", from.ip(), path.join(", ")));
            }
            (chain, End::Dropped(_)) => {
                self.step(stage(run), format!("chain {chain} of table inet slipway drops it"));
            }
            _ => {}
        }
    }

    /// Describes the chains of other programs.
    fn foreign(&mut self, run: &Run) {
        let table = &run.place.table;
        let base = format!("chain {} of table {table}", run.place.chain);
        let by = |rule: &ByRule| match &rule.text {
            Some(text) => format!("chain {} of table {table}, rule `{text}`", rule.chain),
            None => format!("chain {} of table {table}, rule with handle {}", rule.chain, rule.handle),
        };
        let what = match &run.end {
            End::Dropped(rule) => format!("{}: drops it", by(rule)),
            End::Queued(rule) => format!("{}: hands it to a program", by(rule)),
            End::Policy(Policy::Drop) => format!("{base} drops what none of its rules accepts"),
            _ if run.path.is_empty() => format!("{base}: passes"),
            _ => format!("{base}: passes, through {}", run.path.join(", ")),
        };
        self.step(stage(run), what);
    }
}

/// True if a rule of another program ended an early chain. Chains of the iptables backend and of the reference do not
/// count.
fn is_translator(run: &Run) -> bool {
    let is_early = matches!(run.place.hook, Some("prerouting" | "output"));
    let is_foreign = |rule: &ByRule| !run.place.is_own() && !rule.chain.starts_with("CNI-");
    is_early && matches!(&run.end, End::Accepted(rule) if is_foreign(rule))
}

fn stage(run: &Run) -> &'static str {
    run.place.hook.unwrap_or("netfilter")
}

fn headline(seen: &TracedPacket, link: Option<&str>) -> String {
    let flags = seen.flags.map(|flags| format!(", {}", flag_names(flags))).unwrap_or_default();
    match link {
        Some(link) => format!("from {}, arriving on {link}{flags}", seen.from),
        None => format!("from {}, the node itself{flags}", seen.from),
    }
}

/// RFC 9293, section 3.1.
fn flag_names(flags: u8) -> String {
    let names = [(2, "SYN"), (16, "ACK"), (8, "PSH"), (1, "FIN"), (4, "RST")];
    let set: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    set.join(" ")
}

fn outcome(journey: &Journey, facts: &dyn Facts) -> String {
    let last = journey.runs.last();
    match &journey.exit {
        Exit::Dropped => match last {
            Some(run) if run.place.is_own() && run.place.chain.starts_with("guard") => {
                "It is dropped: the node's loopback is not reachable from outside.".to_owned()
            }
            Some(run) => {
                let chain = match &run.end {
                    End::Dropped(rule) => &rule.chain,
                    _ => &run.place.chain,
                };
                format!("It is dropped by chain {chain} of table {}.", run.place.table)
            }
            None => "It is dropped.".to_owned(),
        },
        Exit::Input(_) => format!("It goes to the node itself{}.", facts.listener()),
        Exit::Postrouting(seen) => {
            let by = seen.link_out.map(|index| format!(" by {}", facts.link(index))).unwrap_or_default();
            let is_ours = journey.runs.iter().any(|run| {
                run.place.is_own()
                    && matches!(run.place.hook, Some("prerouting" | "output"))
                    && !run.path.is_empty()
            });
            let is_foreign = !is_ours && journey.runs.iter().any(is_translator);
            let of = if seen.to == journey.first.to || is_foreign { None } else { facts.owner() };
            format!("It leaves for {}{by}{}.", seen.to, of.map(|of| format!(": {of}")).unwrap_or_default())
        }
        Exit::Lost => {
            let seen = last.map_or(&journey.first, |run| &run.seen);
            let after = last.map_or("the trace's own chain", stage);
            let reason = facts.reason(seen).map(|reason| format!("\n`slipway explain`: {reason}"));
            format!(
                "It is not seen after {after}: the kernel drops it there, or a program holds it.{}",
                reason.unwrap_or_default()
            )
        }
    }
}
