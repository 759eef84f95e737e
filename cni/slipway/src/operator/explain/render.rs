// SPDX-License-Identifier: GPL-2.0-or-later

//! The explanation of a packet's path: a pure function of the facts.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use cni_dataplane::ebpf::HoldingRule;
use cni_dataplane::explain::{Hit, Masquerade, Origin, Packet, Sources, Target, Truth};
use cni_dataplane::firewall::Separation;
use cni_dataplane::{HostAddress, Listed, Owner, Protocol};
use cni_kernel::route::Switch;
use cni_state::documents::{Explain, Step};
use ipnet::IpNet;

use super::super::check_node;
use super::facts::{Facts, Place, Table, Way, listed_target, listens};

/// The packet's path, step by step.
#[derive(Debug)]
pub(super) struct Explanation<'a> {
    packet: &'a Packet,
    /// Each step: the stage in the kernel, and what happens there.
    steps: Vec<(&'static str, String)>,
    /// Causes that may stop the packet although the steps do not.
    doubts: Vec<String>,
    outcome: String,
}

/// The packet's fate after a step.
enum Then {
    Continues,
    Ends(String),
}

impl<'a> Explanation<'a> {
    /// Explains the facts.
    pub(super) fn of(facts: &'a Facts) -> Self {
        let outcome = String::new();
        let mut all = Self { packet: &facts.packet, steps: Vec::new(), doubts: Vec::new(), outcome };
        all.outcome = match all.walk(facts) {
            Then::Ends(outcome) => outcome,
            Then::Continues => all.arrival(facts),
        };
        all
    }

    /// The whole text.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n\n", headline(self.packet));
        let width = self.steps.iter().map(|(stage, _)| stage.len()).max().unwrap_or(0);
        for (number, (stage, what)) in self.steps.iter().enumerate() {
            let number = number + 1;
            let indented = what.replace('\n', &format!("\n{:indent$}", "", indent = width + 6));
            // Writing to a String cannot fail.
            let _written = writeln!(text, "{number:2}. {stage:width$}  {indented}");
        }
        let _written = writeln!(text, "\n{}", self.outcome);
        text
    }

    pub(super) fn last_step(&self) -> Option<&str> {
        self.steps.last().map(|(_, what)| what.as_str())
    }

    /// What becomes of the packet.
    pub(super) fn outcome(&self) -> &str {
        &self.outcome
    }

    /// The document of `slipway explain`.
    pub(super) fn document(&self) -> Explain {
        let Packet { protocol, to, from, origin } = self.packet;
        let (is_of_node, link) = match origin {
            Origin::Node => (true, None),
            Origin::Elsewhere(link) => (false, link.as_ref()),
        };
        Explain {
            protocol: protocol.as_str().to_owned(),
            destination: to.to_string(),
            source: from.map(|from| from.to_string()),
            sent_by_node: is_of_node,
            link: link.cloned(),
            steps: self.steps.iter().map(Step::from).collect(),
            outcome: self.outcome.clone(),
        }
    }
}

fn headline(packet: &Packet) -> String {
    let from = match (&packet.origin, packet.from) {
        (Origin::Node, Some(from)) => format!("from {from}, the node itself"),
        (Origin::Node, None) => "from the node itself".to_owned(),
        (Origin::Elsewhere(Some(link)), Some(from)) => format!("from {from}, arriving on {link}"),
        (Origin::Elsewhere(Some(link)), None) => format!("arriving on {link}"),
        (Origin::Elsewhere(None), Some(from)) => format!("from {from}"),
        (Origin::Elsewhere(None), None) => "from another host".to_owned(),
    };
    format!("The first packet of a connection, {} to {}, {from}", packet.protocol, packet.to)
}

fn is_loopback4(address: IpAddr) -> bool {
    address.is_ipv4() && address.is_loopback()
}

impl Explanation<'_> {
    fn step(&mut self, stage: &'static str, what: impl Into<String>) {
        self.steps.push((stage, what.into()));
    }

    fn walk(&mut self, facts: &Facts) -> Then {
        if let Then::Ends(end) = self.guard(facts) {
            return Then::Ends(end);
        }
        if facts.place != Place::Here {
            return Then::Ends(self.not_here(facts));
        }
        if let Then::Ends(end) = self.foreign(facts) {
            return Then::Ends(end);
        }
        if let Then::Ends(end) = self.lookup(facts) {
            return Then::Ends(end);
        }
        let Some(target) = facts.target() else { return Then::Ends(self.unpublished(facts)) };
        if let Then::Ends(end) = self.towards(facts, target) {
            return Then::Ends(end);
        }
        self.sources(facts, target);
        for HoldingRule { rule, what, .. } in &facts.holding {
            self.step(
                "forward",
                format!("{rule} decides about each packet ({what}): the BPF programs do not carry it"),
            );
        }
        Then::Continues
    }

    /// Checks the guard of the node's loopback, which drops packets from and to loopback addresses on other links.
    fn guard(&mut self, facts: &Facts) -> Then {
        let Packet { to, from, origin, .. } = &facts.packet;
        if *origin == Origin::Node {
            return Then::Continues;
        }
        if to.ip().is_ipv6() && to.ip().is_loopback() {
            self.step("routing", "packets for ::1 that arrive on a link are dropped by the kernel itself");
            return Then::Ends("It is dropped.".to_owned());
        }
        let touches = is_loopback4(to.ip()) || from.is_some_and(is_loopback4);
        match (&facts.table, touches) {
            (Table::Ready, true) => {
                self.step("guard", "chain guard of table inet slipway drops packets to or from 127.0.0.0/8 on all links but lo");
                Then::Ends("It is dropped: the node's loopback is not reachable from outside.".to_owned())
            }
            (Table::Ready, false) => {
                if to.ip().is_ipv4() {
                    self.step("guard", "neither to nor from 127.0.0.0/8: passes");
                }
                Then::Continues
            }
            (_, true) => {
                self.step("guard", "table inet slipway is incomplete: only route_localnet=0 on the link keeps the packet from the node's loopback. `slipway restore` restores the guard");
                Then::Continues
            }
            (_, false) => Then::Continues,
        }
    }

    /// Reports a rule of another program that translates the packet first. A Service's rule is harmless if no container
    /// has published the port.
    fn foreign(&mut self, facts: &Facts) -> Then {
        let Some(first) = &facts.first else { return Then::Continues };
        let is_published = facts.hit.is_some() || facts.of_iptables.is_some();
        let (reason, fix) = check_node::advice(first);
        let hook = if facts.packet.origin == Origin::Node { "output" } else { "prerouting" };
        let perhaps = if first.is_certain { "" } else { " if its conditions hold" };
        self.step(hook, format!("{first}{perhaps}\n{reason}\n{fix}"));
        if !first.is_certain {
            self.doubts.push(format!("{} translates it to {}", first.rule(), first.target()));
            return Then::Continues;
        }
        let not = if is_published { ", not to the container that has published the port" } else { "" };
        Then::Ends(format!("It goes to {}{not}: {} comes first.", first.target(), first.rule()))
    }

    /// Describes a destination at which no port is published.
    fn not_here(&mut self, facts: &Facts) -> String {
        let to = facts.packet.to.ip();
        match &facts.place {
            Place::Nowhere(why) => {
                self.step("routing", format!("{to} is no address of this node, and there is no route to it: {why}"));
                return "It is dropped: there is no route.".to_owned();
            }
            Place::Behind(link) => self.step(
                "prerouting",
                format!("{to} is no address of this node (it is behind {link}): published ports are for the node's own addresses alone"),
            ),
            Place::OfServices => {
                let set = if to.is_ipv4() { "addresses4" } else { "addresses6" };
                self.step(
                    "prerouting",
                    format!("{to} is local, but not in set {set}, which has the addresses that published ports answer at: it is a Service's, or was added to the node after the last ADD and STATUS"),
                );
                return "Another program serves that address.".to_owned();
            }
            Place::Here => {}
        }
        if facts.packet.origin != Origin::Node {
            if !facts.forwards {
                self.step(
                    "routing",
                    "the node does not forward packets of this family (ip_forward, forwarding)",
                );
                return "It is dropped.".to_owned();
            }
            if let Then::Ends(end) = self.forward(facts) {
                return end;
            }
        }
        match &facts.masquerade {
            Some(Masquerade { network, .. }) if network.contains(&to) => {
                self.step("postrouting", format!("the source is masqueraded, but not towards its own network {network}"));
            }
            Some(Masquerade { exempt: Some(exempt), owner, .. }) => self.step(
                "postrouting",
                format!("not masqueraded: {to} is in nonMasqueradeCIDRs ({exempt}); map masquerade has the source, {}", whose(owner.as_ref())),
            ),
            Some(Masquerade { network, owner, chain, .. }) => self.step(
                "postrouting",
                format!(
                    "the source is masqueraded: set masqueraded has it, {}; chain {chain}: the destination is not in {network}",
                    whose(owner.as_ref())
                ),
            ),
            None => self.step("postrouting", "Slipway does not masquerade the source"),
        }
        self.with_doubts("It is forwarded to its destination")
    }

    fn lookup(&mut self, facts: &Facts) -> Then {
        let hook = if facts.packet.origin == Origin::Node { "output" } else { "prerouting" };
        let to = facts.packet.to.ip();
        match &facts.table {
            Table::Ready => {
                self.step(
                    hook,
                    format!(
                        "{to} is an address of this node: published ports are looked up in table inet slipway"
                    ),
                );
            }
            Table::Absent => {
                self.step(hook, format!("{to} is an address of this node; there is no table inet slipway, hence no port published in nftables"));
            }
            Table::Damaged => {
                self.step(hook, "chains of table inet slipway are emptied, changed or unhooked: elements may not be looked up. `slipway restore` repairs them");
                self.doubts.push("it meets one of the changed chains".to_owned());
            }
            Table::Unusable(why) => self.step(hook, format!("no lookup in nftables: {why}")),
        }
        match &facts.hit {
            Some(hit) => self.hit(facts, hit),
            None => {
                if let Some(listed) = &facts.of_iptables {
                    self.of_iptables(listed, facts.packet.to);
                }
                Then::Continues
            }
        }
    }

    fn hit(&mut self, facts: &Facts, hit: &Hit) -> Then {
        let mut what = format!("map {} has {}: {}", hit.map, hit.host, whose(hit.owner.as_ref()));
        if hit.dead {
            what.push_str(
                "\nits namespace is gone; the next container that publishes the port takes it over",
            );
        }
        let chain = match &hit.target {
            Target::Container(target) => {
                let _written = write!(what, "\nthe destination becomes {target}");
                self.step("lookup", what);
                return Then::Continues;
            }
            Target::Chain(chain) => chain,
        };
        self.step("lookup", what);
        let Some(conditions) = &facts.conditions else {
            self.step("conditions", format!("chain {chain} has conditions that are in no runtime's cache: `nft list chain inet slipway {chain}` shows them"));
            self.doubts.push(format!("chain {chain} does not let it pass"));
            return self.translated(facts);
        };
        let mut text = format!("chain {chain} is the container's own");
        for (condition, truth) in conditions {
            let word = match truth {
                Truth::Yes => "holds",
                Truth::No => "does not hold",
                Truth::Unknown => "unknown: depends on other fields of the packet",
            };
            let _written = write!(text, "\n{condition}: {word}");
        }
        self.step("conditions", text);
        if conditions.iter().any(|(_, truth)| *truth == Truth::No) {
            return Then::Ends(format!(
                "It is not translated: a condition of the container does not hold. It goes to the node itself{}.",
                listener(facts)
            ));
        }
        for (condition, _) in conditions.iter().filter(|(_, truth)| *truth == Truth::Unknown) {
            self.doubts.push(format!("`{condition}` does not hold"));
        }
        self.translated(facts)
    }

    fn translated(&mut self, facts: &Facts) -> Then {
        match facts.target() {
            Some(target) => {
                self.step("translate", format!("the destination becomes {target}"));
                Then::Continues
            }
            None => Then::Ends("It is not translated: the container has no element for the port.".to_owned()),
        }
    }

    fn of_iptables(&mut self, listed: &Listed, to: SocketAddr) {
        let target = listed_target(listed, to.port());
        self.step(
            "iptables",
            format!(
                "chain CNI-HOSTPORT-DNAT of table nat has {}: {}\nthe destination becomes {target}",
                listed.port.host,
                whose(listed.owner.as_ref())
            ),
        );
    }

    fn unpublished(&mut self, facts: &Facts) -> String {
        let Packet { protocol, to, .. } = facts.packet;
        let mut what = format!("no container has {protocol} port {} of {}", to.port(), to.ip());
        for near in &facts.near {
            let _written = write!(what, "\npublished: {} for {}", near.port.host, whose(near.owner.as_ref()));
            let host = near.port.host;
            if host.protocol != protocol && (host.first..=host.last).contains(&to.port()) {
                let _written = write!(what, ", another protocol");
            } else if (host.first..=host.last).contains(&to.port())
                && matches!(host.address, HostAddress::One(address) if address != to.ip())
            {
                let _written = write!(what, ", another address of the node");
            }
        }
        self.step("lookup", what);
        format!("It goes to the node itself{}.", listener(facts))
    }

    /// Lists the objects that the container needs and that are missing or different.
    fn obstacles(&mut self, facts: &Facts) -> Then {
        for obstacle in &facts.obstacles {
            self.step(
                "needed",
                format!("{}: {}\nremedy: {}", obstacle.item, obstacle.found, obstacle.remedy),
            );
        }
        match facts.obstacles.iter().find(|obstacle| !obstacle.passes) {
            Some(first) => Then::Ends(format!("It does not reach the container: {}.", first.found)),
            None => Then::Continues,
        }
    }

    /// Follows the packet from the translation to the container.
    fn towards(&mut self, facts: &Facts, target: SocketAddr) -> Then {
        let Some(way) = &facts.way else {
            self.step("routing", format!("there is no route to {target}"));
            self.obstacles(facts);
            return Then::Ends("It does not reach the container.".to_owned());
        };
        self.step("routing", format!("{} is behind {}", target.ip(), way.link));
        if let Then::Ends(end) = self.obstacles(facts) {
            return Then::Ends(end);
        }
        if facts.packet.origin == Origin::Node {
            return self.leave_loopback(facts, way);
        }
        if !facts.forwards {
            self.step("routing", "the node does not forward packets of this family (ip_forward, forwarding)");
            return Then::Ends("It is dropped: the node does not forward.".to_owned());
        }
        if let Then::Ends(end) = self.forward(facts) {
            return Then::Ends(end);
        }
        let itself = facts.packet.from == Some(target.ip());
        if itself && way.is_bridge && facts.bridge_netfilter && way.hairpin == Some(Switch::Off) {
            self.step("bridge", "bridge-nf-call is 1 and the port does not send packets back where they came from: hairpinMode is needed");
            return Then::Ends("It is dropped by the bridge.".to_owned());
        }
        Then::Continues
    }

    /// Checks packets from the node's loopback, which need two settings of the link.
    fn leave_loopback(&mut self, facts: &Facts, way: &Way) -> Then {
        let to = facts.packet.to.ip();
        let from = facts.packet.from.unwrap_or(to);
        if is_loopback4(from) && !way.route_localnet {
            self.step(
                "routing",
                format!("route_localnet of {} is off: 127.0.0.0/8 does not leave the loopback", way.link),
            );
            return Then::Ends("It is dropped. `slipway restore` switches it on if the container's configuration asks for it.".to_owned());
        }
        let is_loopback6 = from.is_ipv6() && from.is_loopback();
        if is_loopback6 && !way.accepts_loopback6 {
            self.step(
                "routing",
                format!("there is no local route for ::1 by {}: replies would be dropped", way.link),
            );
            return Then::Ends("It gets no reply. `slipway restore` adds the route if the container's configuration asks for it.".to_owned());
        }
        if is_loopback6 && way.is_bridge && facts.bridge_netfilter {
            self.step("bridge", "net.bridge.bridge-nf-call-ip6tables is 1: the bridge undoes the translation of replies too early");
            return Then::Ends(
                "It gets no reply. With net.bridge.bridge-nf-call-ip6tables=0 it does.".to_owned(),
            );
        }
        Then::Continues
    }

    fn forward(&mut self, facts: &Facts) -> Then {
        match &facts.separation {
            Some(Separation { by, passes_published: true }) if facts.target().is_some() => {
                self.step(
                    "forward",
                    format!("{by}, but what was translated passes: a published port is open to everybody"),
                );
            }
            Some(Separation { by, .. }) => {
                self.step("forward", format!("{by} (ingressPolicy of the plugin firewall)"));
                let end = if facts.target().is_some() {
                    "It is dropped: the bridges are isolated by chains of the reference. The next container that is added \
                     with that policy opens published ports."
                } else {
                    "It is dropped: the bridges are isolated. A published port is open to everybody."
                };
                return Then::Ends(end.to_owned());
            }
            None => {}
        }
        if facts.administrator {
            self.step("forward", "chain admin of table inet slipway-firewall has an administrator's rules");
            self.doubts.push("chain admin of table inet slipway-firewall drops it".to_owned());
        }
        for chain in &facts.admitting {
            self.step("forward", format!("chain {chain} drops by default, but accepts this connection"));
        }
        if facts.dropping.is_empty() && facts.admitting.is_empty() {
            self.step("forward", "no chain at the forward hook drops by default");
        }
        for chain in &facts.dropping {
            self.step("forward", format!("chain {chain} drops what none of its rules accepts"));
            self.doubts.push(format!("chain {chain} drops it"));
        }
        Then::Continues
    }

    fn sources(&mut self, facts: &Facts, target: SocketAddr) {
        let from = facts.packet.from;
        let loopback =
            from.unwrap_or(facts.packet.to.ip()).is_loopback() && facts.packet.origin == Origin::Node;
        let what = match &facts.sources {
            Some(Sources::All) => "every source gets the node's address (masqAll)".to_owned(),
            Some(Sources::None) => "every source keeps its address (snat: false)".to_owned(),
            Some(Sources::Of(networks)) => match from {
                _ if loopback => "a source on the node's loopback gets the node's address".to_owned(),
                Some(from) if from == target.ip() => {
                    "the container itself: its source becomes the node's address, so that the reply comes back".to_owned()
                }
                Some(from) if networks.iter().any(|network| network.contains(&from)) => {
                    let network = networks.iter().find(|network| network.contains(&from));
                    let network = network.map(ToString::to_string).unwrap_or_default();
                    format!("{from} is in the container's own network {network}: it becomes the node's address, so that the reply comes back through the node")
                }
                Some(from) => format!("{from} is neither in {} nor on the node's loopback: it keeps its address", listed(networks)),
                None => format!("a source that is neither in {} nor on the node's loopback keeps its address", listed(networks)),
            },
            None if facts.hit.is_some() => {
                self.doubts.push("map hairpin has no element for the container".to_owned());
                "map hairpin has no element for the container, which is an error: `slipway restore` repairs it".to_owned()
            }
            None => "as the chains of iptables specify".to_owned(),
        };
        self.step("postrouting", what);
    }

    fn arrival(&self, facts: &Facts) -> String {
        let Some(target) = facts.target() else { return self.with_doubts("It goes to the node itself") };
        let owner = facts.hit.as_ref().map_or_else(
            || facts.of_iptables.as_ref().and_then(|listed| listed.owner.as_ref()),
            |hit| hit.owner.as_ref(),
        );
        if facts.hit.as_ref().is_some_and(|hit| hit.dead) {
            return format!("It is sent to {target}, but the container is gone.");
        }
        let of = owner.map(|owner| format!(" of {owner}")).unwrap_or_default();
        self.with_doubts(&format!("It reaches {target}{of}"))
    }

    fn with_doubts(&self, end: &str) -> String {
        if self.doubts.is_empty() {
            return format!("{end}.");
        }
        format!("{end}, unless {}.", self.doubts.join(", or "))
    }
}

fn whose(owner: Option<&Owner>) -> String {
    owner.map_or_else(|| "an element without an owner".to_owned(), ToString::to_string)
}

fn listener(facts: &Facts) -> &'static str {
    listening(facts.listens)
}

/// The listener at a port of the node, as the end of a sentence.
pub(in super::super) fn listener_at(protocol: Protocol, to: SocketAddr) -> &'static str {
    listening(listens(protocol, to))
}

const fn listening(listens: bool) -> &'static str {
    if listens { ", where something listens on the port" } else { ", where nothing listens on the port" }
}

/// Networks, as an object in a sentence.
fn listed(networks: &[IpNet]) -> String {
    networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
}
