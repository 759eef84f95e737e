// SPDX-License-Identifier: GPL-2.0-or-later

//! A rule, as the words that `iptables-save` prints for it, in that order. Rules are compared with listed rules word
//! by word.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::names::CommentOwner;
use super::quote;
use crate::{AddressFamily, HostAddress, HostPorts, Protocol, PublishedPort};

/// A rule, from its first match to the last word of its target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    words: Vec<String>,
    /// True if the rule contains conditions from a configuration, which the tools may print in other words. Such a
    /// rule equals no listed rule.
    has_conditions: bool,
}

/// A published port that two containers cannot both have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortKey {
    pub(crate) protocol: Protocol,
    /// None for all addresses of the node.
    pub(crate) address: Option<IpAddr>,
    pub(crate) port: u16,
}

/// Methods that make a rule.
impl Rule {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The rule of a listing with these words.
    pub(super) fn listed(words: Vec<String>) -> Self {
        Self { words, has_conditions: false }
    }

    pub(crate) fn with<const N: usize>(mut self, words: [&str; N]) -> Self {
        self.words.extend(words.map(str::to_owned));
        self
    }

    pub(crate) fn with_source(self, network: IpNet) -> Self {
        self.with(["-s", &network.trunc().to_string()])
    }

    /// The rule with its source replaced.
    pub(super) fn with_source_instead(mut self, network: IpNet) -> Self {
        let at = self.words.iter().position(|word| word == "-s").map(|option| option + 1);
        if let Some(source) = at.and_then(|at| self.words.get_mut(at)) {
            *source = network.trunc().to_string();
        }
        self
    }

    pub(crate) fn with_destination(self, network: IpNet) -> Self {
        self.with(["-d", &network.trunc().to_string()])
    }

    pub(crate) fn without_destination(self, network: IpNet) -> Self {
        self.with(["!"]).with_destination(network)
    }

    pub(crate) fn with_protocol(self, protocol: Protocol) -> Self {
        self.with(["-p", protocol.as_str()])
    }

    pub(crate) fn with_port(self, protocol: Protocol, port: u16) -> Self {
        self.with_protocol(protocol).with(["-m", protocol.as_str(), "--dport", &port.to_string()])
    }

    /// Matches any of the ports. Call this after [`Self::with_protocol`].
    pub(crate) fn with_ports(self, ports: &[u16]) -> Self {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        self.with(["-m", "multiport", "--dports", &ports.join(",")])
    }

    pub(crate) fn with_comment(self, text: &str) -> Self {
        self.with(["-m", "comment", "--comment", text])
    }

    pub(crate) fn with_mark_bit(self, bit: u8) -> Self {
        self.with(["-m", "mark", "--mark", &mark(bit)])
    }

    pub(crate) fn with_conditions(mut self, words: &[String]) -> Self {
        self.words.extend_from_slice(words);
        self.has_conditions |= !words.is_empty();
        self
    }

    pub(crate) fn jump(self, target: &str) -> Self {
        self.with(["-j", target])
    }

    pub(crate) fn translate_to(self, address: SocketAddr) -> Self {
        self.jump("DNAT").with(["--to-destination", &address.to_string()])
    }

    pub(crate) fn set_mark_bit(self, bit: u8) -> Self {
        self.jump("MARK").with(["--set-xmark", &mark(bit)])
    }
}

fn mark(bit: u8) -> String {
    let value = 1u32.checked_shl(u32::from(bit)).unwrap_or_default();
    format!("{value:#x}/{value:#x}")
}

/// Methods that read a rule.
impl Rule {
    pub(crate) fn words(&self) -> &[String] {
        &self.words
    }

    pub(crate) fn has_conditions(&self) -> bool {
        self.has_conditions
    }

    /// The word after an option, unless the option is negated.
    pub(super) fn value(&self, option: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == option)?;
        let negated = at.checked_sub(1).and_then(|i| self.words.get(i)).is_some_and(|word| word == "!");
        self.words.get(at + 1).map(String::as_str).filter(|_| !negated)
    }

    /// The chain or target that the rule jumps or goes to.
    pub(crate) fn target(&self) -> Option<&str> {
        self.value("-j").or_else(|| self.value("-g"))
    }

    /// The container that the comment names.
    pub(crate) fn owner(&self) -> Option<CommentOwner> {
        CommentOwner::parse(self.value("--comment")?)
    }

    /// The protocol, if ports can be published for it.
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        let name = self.value("-p")?;
        Protocol::ALL.into_iter().find(|p| p.as_str() == name)
    }

    /// The ranges of destination ports.
    pub(crate) fn ports(&self) -> Vec<(u16, u16)> {
        let list = self.value("--dports").or_else(|| self.value("--dport")).unwrap_or_default();
        let run = |part: &str| match part.split_once(':') {
            Some((first, last)) => Some((first.parse().ok()?, last.parse().ok()?)),
            None => part.parse().ok().map(|port| (port, port)),
        };
        list.split(',').filter_map(run).collect()
    }

    /// True if the rule matches the protocol and destination port of the key. Addresses are not compared.
    pub(crate) fn has_port_of(&self, key: &PortKey) -> bool {
        self.protocol() == Some(key.protocol)
            && self.ports().iter().any(|(first, last)| (*first..=*last).contains(&key.port))
    }

    pub(crate) fn destination(&self) -> Option<IpNet> {
        network(self.value("-d")?)
    }

    pub(crate) fn source(&self) -> Option<IpNet> {
        network(self.value("-s")?)
    }

    /// The port that the rule translates or marks. None if the rule matches several ports.
    pub(crate) fn key(&self) -> Option<PortKey> {
        let (port, last) = self.ports().first().copied()?;
        let address = self.destination().map(|net| net.addr());
        (port == last).then_some(PortKey { protocol: self.protocol()?, address, port })
    }

    /// The address that the rule translates the destination to.
    pub(crate) fn translation(&self) -> Option<SocketAddr> {
        self.value("--to-destination")?.parse().ok()
    }

    /// The mapping that this rule of a container's chain makes.
    pub(crate) fn published(&self) -> Option<PublishedPort> {
        let to = self.translation()?;
        let (first, last) = self.ports().first().copied()?;
        let address = match self.destination() {
            Some(net) => HostAddress::One(net.addr()),
            None => HostAddress::Any(AddressFamily::of(to.ip())),
        };
        let host = HostPorts { protocol: self.protocol()?, address, first, last };
        Some(PublishedPort { host, container: to.ip(), container_port: to.port() })
    }
}

/// Prints the words as the tools read them.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote::line(self.words.iter().map(String::as_str)))
    }
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}
