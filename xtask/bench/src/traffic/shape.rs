// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rules of the reference plugins in bulk.
//!
//! An ADD of the reference takes at least a tenth of a second, and longer the more rules there are. Most of the sixty
//! thousand ports are therefore loaded as text: as what a real ADD adds to the output of `iptables-save` or `nft list
//! ruleset`, with other addresses, ports and chains.

use std::collections::HashMap;
use std::fmt::Write;
use std::net::Ipv4Addr;

use super::plan::Ports;

/// The lines that one ADD adds.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    tool: Tool,
    lines: Vec<Line>,
    pod: Identity,
}

/// The values in which the rules of pods differ.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) id: String,
    pub(super) address: Ipv4Addr,
    pub(super) ports: Ports,
}

/// The tools that print and load them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    /// `iptables-save -t nat`, `iptables-restore --noflush`.
    Iptables,
    /// `nft list ruleset`, `nft -f -`.
    Nft,
}

/// A line of the output and its chain: `ip cni_hostport hostports` for nft.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Line {
    chain: String,
    text: String,
}

/// The place of a pod's rules among those of other pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Before all others.
    Front,
    /// After all others, where the plugin itself would add them.
    End,
}

impl Shape {
    /// The difference between the rules before and after an ADD.
    pub(super) fn new(tool: Tool, before: &str, after: &str, pod: Identity) -> Self {
        let mut known: HashMap<Line, u32> = HashMap::new();
        for line in parse(tool, before) {
            *known.entry(line).or_default() += 1;
        }
        let is_new = |line: &Line| match known.get_mut(line) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        };
        Self { tool, lines: parse(tool, after).into_iter().filter(is_new).collect(), pod }
    }

    /// The number of lines that translate a destination. It must be that of the ports.
    pub(super) fn translations(&self) -> usize {
        let word = match self.tool {
            Tool::Iptables => "-j DNAT ",
            Tool::Nft => " dnat to ",
        };
        self.lines.iter().filter(|line| line.text.contains(word)).count()
    }

    /// An input of the tool with the same rules for other pods.
    pub(super) fn script(&self, pods: &[(Identity, Place)]) -> String {
        let mut text = String::new();
        for (number, (pod, place)) in pods.iter().enumerate() {
            for line in &self.lines {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{}", self.command(line, *place, &self.words(line, pod, number)));
            }
        }
        match self.tool {
            Tool::Iptables => {
                // iptables-restore needs the chains before the rules.
                let (chains, rules): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with(':'));
                format!("*nat\n{}\n{}\nCOMMIT\n", chains.join("\n"), rules.join("\n"))
            }
            Tool::Nft => text,
        }
    }

    fn command(&self, line: &Line, place: Place, words: &str) -> String {
        match (self.tool, place) {
            (Tool::Nft, Place::Front) => format!("insert rule {} {words}", line.chain),
            (Tool::Nft, Place::End) => format!("add rule {} {words}", line.chain),
            (Tool::Iptables, Place::End) => words.to_owned(),
            (Tool::Iptables, Place::Front) => {
                // The first rule of POSTROUTING is the one that all pods share.
                let places = [("-A POSTROUTING ", "-I POSTROUTING 2 "), (SHARED, "-I CNI-HOSTPORT-DNAT 1 ")];
                let found = places
                    .iter()
                    .find_map(|(end, front)| words.strip_prefix(end).map(|rest| format!("{front}{rest}")));
                found.unwrap_or_else(|| words.to_owned())
            }
        }
    }

    /// The line for another pod. It is split at characters that are not part of an address, an ID, a number
    /// or a chain's name.
    fn words(&self, line: &Line, pod: &Identity, number: usize) -> String {
        let mut text = String::with_capacity(line.text.len());
        let mut rest = line.text.as_str();
        while !rest.is_empty() {
            let length = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            if length > 0 {
                text.push_str(&self.word(&rest[..length], pod, number));
                rest = &rest[length..];
            }
            if let Some(other) = rest.chars().next() {
                text.push(other);
                rest = &rest[other.len_utf8()..];
            }
        }
        text
    }

    fn word(&self, word: &str, pod: &Identity, number: usize) -> String {
        let own = self.pod.ports.first;
        if word == self.pod.id {
            return pod.id.clone();
        }
        if word.parse() == Ok(self.pod.address) {
            return pod.address.to_string();
        }
        if let Some(offset) = word.parse::<u16>().ok().and_then(|port| port.checked_sub(own))
            && offset < self.pod.ports.count
        {
            return (pod.ports.first + offset).to_string();
        }
        if self.tool == Tool::Iptables && self.is_own_chain(word) {
            // The new word has the same length, at most 28 characters, and differs in the last eight.
            let (kept, _) = word.split_at(word.len().saturating_sub(8));
            return format!("{kept}{:04x}{:04x}", pod.ports.first, number & 0xffff);
        }
        word.to_owned()
    }

    fn is_own_chain(&self, word: &str) -> bool {
        word.starts_with("CNI-") && self.lines.iter().any(|line| line.text.starts_with(&format!(":{word} ")))
    }
}

/// The prefix of a rule in a chain that all pods share.
const SHARED: &str = "-A CNI-HOSTPORT-DNAT ";

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._".contains(c)
}

fn parse(tool: Tool, text: &str) -> Vec<Line> {
    match tool {
        Tool::Iptables => {
            let lines = text.lines().filter(|line| line.starts_with("-A ") || line.starts_with(':'));
            lines.map(|line| Line { chain: String::new(), text: without_counters(line) }).collect()
        }
        Tool::Nft => parse_nft(text),
    }
}

/// Removes the counters of `:PREROUTING ACCEPT [7:420]`.
fn without_counters(line: &str) -> String {
    match line.split_once(" [") {
        Some((chain, _)) if line.starts_with(':') => format!("{chain} [0:0]"),
        _ => line.to_owned(),
    }
}

fn parse_nft(text: &str) -> Vec<Line> {
    let (mut table, mut chain, mut lines) = (String::new(), None, Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("table ").and_then(|rest| rest.strip_suffix(" {")) {
            name.clone_into(&mut table);
        } else if let Some(name) = line.strip_prefix("chain ").and_then(|rest| rest.strip_suffix(" {")) {
            chain = Some(format!("{table} {name}"));
        } else if line == "}" {
            chain = None;
        } else if let Some(chain) = &chain
            && !line.is_empty()
            && !line.starts_with("type ")
            && !line.starts_with("comment ")
        {
            lines.push(Line { chain: chain.clone(), text: line.to_owned() });
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(id: &str, last: u8, first: u16) -> Identity {
        let ports = Ports { first, count: 2 };
        Identity { id: id.to_owned(), address: Ipv4Addr::new(10, 100, 0, last), ports }
    }

    #[test]
    fn another_pods_chains_addresses_and_ports() {
        let before = "*nat\n:PREROUTING ACCEPT [7:9]\n-A PREROUTING -j X\nCOMMIT\n";
        let after = "*nat\n:PREROUTING ACCEPT [8:9]\n:CNI-DN-0123456789abcdef - [0:0]\n-A PREROUTING -j X\n\
             -A POSTROUTING -s 10.100.0.3/32 -m comment --comment \"id: \\\"pod1\\\"\" -j CNI-0123\n\
             -A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 2000,2001 -j CNI-DN-0123456789abcdef\n\
             -A CNI-DN-0123456789abcdef -p tcp -m tcp --dport 2001 -j DNAT --to-destination 10.100.0.3:81\n\
             COMMIT\n";
        let shape = Shape::new(Tool::Iptables, before, after, identity("pod1", 3, 2000));
        assert_eq!(shape.translations(), 1);
        let text =
            shape.script(&[(identity("a", 7, 3000), Place::Front), (identity("b", 8, 3002), Place::End)]);
        let expected = "*nat\n:CNI-DN-012345670bb80000 - [0:0]\n:CNI-DN-012345670bba0001 - [0:0]\n\
            -I POSTROUTING 2 -s 10.100.0.7/32 -m comment --comment \"id: \\\"a\\\"\" -j CNI-0123\n\
            -I CNI-HOSTPORT-DNAT 1 -p tcp -m multiport --dports 3000,3001 -j CNI-DN-012345670bb80000\n\
            -A CNI-DN-012345670bb80000 -p tcp -m tcp --dport 3001 -j DNAT --to-destination 10.100.0.7:81\n\
            -A POSTROUTING -s 10.100.0.8/32 -m comment --comment \"id: \\\"b\\\"\" -j CNI-0123\n\
            -A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 3002,3003 -j CNI-DN-012345670bba0001\n\
            -A CNI-DN-012345670bba0001 -p tcp -m tcp --dport 3003 -j DNAT --to-destination 10.100.0.8:81\n\
            COMMIT\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn rules_of_nft_go_to_their_chains() {
        let before =
            "table ip cni_hostport {\n\tcomment \"x\"\n\tchain hostports {\n\t\ttcp dport 1 accept\n\t}\n}\n";
        let after = "table ip cni_hostport {\n\tcomment \"x\"\n\tchain hostports {\n\t\ttcp dport 1 accept\n\
            \t\ttcp dport 2000 dnat to 10.100.0.3:80 comment \"pod1\"\n\t}\n\n\tchain masquerading {\n\
            \t\ttype nat hook postrouting priority srcnat; policy accept;\n\
            \t\tip saddr 127.0.0.1 ip daddr 10.100.0.3 masquerade comment \"pod1\"\n\t}\n}\n";
        let shape = Shape::new(Tool::Nft, before, after, identity("pod1", 3, 2000));
        assert_eq!(shape.translations(), 1);
        assert_eq!(
            shape.script(&[(identity("a", 7, 3000), Place::Front)]),
            "insert rule ip cni_hostport hostports tcp dport 3000 dnat to 10.100.0.7:80 comment \"a\"\n\
             insert rule ip cni_hostport masquerading ip saddr 127.0.0.1 ip daddr 10.100.0.7 masquerade comment \"a\"\n"
        );
    }
}
