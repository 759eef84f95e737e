//! Rules as values, and one input of `iptables-restore` as a value.
//!
//! A rule's words are those that `iptables-save` prints for it, in that order, so that what was asked
//! for and what is there can be compared word by word.

use std::fmt;
use std::net::SocketAddr;

use ipnet::IpNet;

use super::listing::ListedRule;
use super::names::ChainName;
use super::quote;
use crate::{AddressFamily, Protocol};

/// A table of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TableName {
    /// Where addresses are translated.
    Nat,
    /// Where packets are let through or dropped.
    Filter,
}

impl TableName {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Filter => "filter",
        }
    }
}

/// What a packet must be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Match {
    /// From this network.
    Source(IpNet),
    /// To this network.
    Destination(IpNet),
    /// Not to this network.
    NotDestination(IpNet),
    /// Of this protocol.
    Protocol(Protocol),
    /// To this port; after [`Match::Protocol`].
    Port(Protocol, u16),
    /// To one of these ports, fifteen at most; after [`Match::Protocol`].
    Ports(Vec<u16>),
    /// To an address of the node.
    Local,
    /// Coming in by this interface.
    In(String),
    /// Leaving by this interface.
    Out(String),
    /// Not leaving by this interface.
    NotOut(String),
    /// Of a connection that is known, or about one.
    Established,
    /// With this bit of the mark set.
    MarkBit(u8),
    /// Always: says whose the rule is.
    Comment(String),
    /// What a configuration's conditions ask for, in their own words.
    Conditions(Vec<String>),
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// It passes.
    Accept,
    /// It does not.
    Drop,
    /// The calling chain decides.
    Return,
    /// It gets the address of the link that it leaves by.
    Masquerade,
    /// It goes to this address.
    Dnat(SocketAddr),
    /// This bit of its mark is set.
    SetMarkBit(u8),
    /// Another chain decides.
    Chain(ChainName),
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) matches: Vec<Match>,
    pub(crate) target: Target,
}

impl Rule {
    pub(crate) fn new(matches: Vec<Match>, target: Target) -> Self {
        Self { matches, target }
    }

    /// Its words, from the first match to the target's last.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for part in &self.matches {
            part.append_to(&mut words);
        }
        self.target.append_to(&mut words);
        words
    }

    /// As it would be listed.
    pub(crate) fn listed(&self) -> ListedRule {
        ListedRule(self.words())
    }

    /// Whether the words are the whole of it. Conditions are in the configuration's words, which the
    /// tools print in their own.
    pub(crate) fn is_canonical(&self) -> bool {
        !self.matches.iter().any(|part| matches!(part, Match::Conditions(_)))
    }
}

fn extend<const N: usize>(words: &mut Vec<String>, more: [&str; N]) {
    words.extend(more.map(str::to_owned));
}

impl Match {
    fn append_to(&self, words: &mut Vec<String>) {
        match self {
            Self::Source(net) => extend(words, ["-s", &net.trunc().to_string()]),
            Self::Destination(net) => extend(words, ["-d", &net.trunc().to_string()]),
            Self::NotDestination(net) => extend(words, ["!", "-d", &net.trunc().to_string()]),
            Self::Protocol(protocol) => extend(words, ["-p", protocol.as_str()]),
            Self::Port(protocol, port) => {
                extend(words, ["-m", protocol.as_str(), "--dport", &port.to_string()]);
            }
            Self::Ports(ports) => {
                let list: Vec<String> = ports.iter().map(u16::to_string).collect();
                extend(words, ["-m", "multiport", "--dports", &list.join(",")]);
            }
            Self::In(name) => extend(words, ["-i", name]),
            Self::Out(name) => extend(words, ["-o", name]),
            Self::NotOut(name) => extend(words, ["!", "-o", name]),
            Self::Established => {
                extend(words, ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"]);
            }
            Self::Local => extend(words, ["-m", "addrtype", "--dst-type", "LOCAL"]),
            Self::MarkBit(bit) => extend(words, ["-m", "mark", "--mark", &mark(*bit)]),
            Self::Comment(text) => extend(words, ["-m", "comment", "--comment", text]),
            Self::Conditions(all) => words.extend(all.iter().cloned()),
        }
    }
}

impl Target {
    fn append_to(&self, words: &mut Vec<String>) {
        words.push("-j".to_owned());
        match self {
            Self::Accept => extend(words, ["ACCEPT"]),
            Self::Drop => extend(words, ["DROP"]),
            Self::Return => extend(words, ["RETURN"]),
            Self::Masquerade => extend(words, ["MASQUERADE"]),
            Self::Dnat(to) => extend(words, ["DNAT", "--to-destination", &to.to_string()]),
            Self::SetMarkBit(bit) => extend(words, ["MARK", "--set-xmark", &mark(*bit)]),
            Self::Chain(chain) => extend(words, [chain.as_str()]),
        }
    }
}

fn mark(bit: u8) -> String {
    let value = 1u32.checked_shl(u32::from(bit)).unwrap_or_default();
    format!("{value:#x}/{value:#x}")
}

/// One change of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    /// Makes a chain; refused if it is there.
    NewChain(String),
    /// Empties a chain.
    Flush(String),
    /// Removes an empty chain that nothing leads to.
    DeleteChain(String),
    /// Puts a rule at a chain's end.
    Append(String, Vec<String>),
    /// Puts a rule at a chain's beginning.
    Insert(String, Vec<String>),
    /// Removes the first rule of these words.
    Delete(String, Vec<String>),
    /// Refused unless there is a rule of these words.
    Check(String, Vec<String>),
    /// Prints a chain.
    Print(String),
}

impl Op {
    fn words(&self) -> Vec<&str> {
        let (head, rule): (Vec<&str>, &[String]) = match self {
            Self::NewChain(chain) => (vec!["-N", chain], &[]),
            Self::Flush(chain) => (vec!["-F", chain], &[]),
            Self::DeleteChain(chain) => (vec!["-X", chain], &[]),
            Self::Append(chain, rule) => (vec!["-A", chain], rule),
            Self::Insert(chain, rule) => (vec!["-I", chain, "1"], rule),
            Self::Delete(chain, rule) => (vec!["-D", chain], rule),
            Self::Check(chain, rule) => (vec!["-C", chain], rule),
            Self::Print(chain) => (vec!["-S", chain], &[]),
        };
        head.into_iter().chain(rule.iter().map(String::as_str)).collect()
    }
}

/// Changes of one family's table that take effect together; `Display` is the tool's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) family: AddressFamily,
    table: TableName,
    ops: Vec<Op>,
}

impl Batch {
    /// Of the nat table.
    pub(crate) fn new(family: AddressFamily) -> Self {
        Self::of(family, TableName::Nat)
    }

    pub(crate) fn of(family: AddressFamily, table: TableName) -> Self {
        Self { family, table, ops: Vec::new() }
    }

    pub(crate) fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    pub(crate) fn append(&mut self, chain: &str, rule: &Rule) {
        self.push(Op::Append(chain.to_owned(), rule.words()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Whether this very change is in it already.
    pub(crate) fn has(&self, op: &Op) -> bool {
        self.ops.contains(op)
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "*{}", self.table.as_str())?;
        for op in &self.ops {
            writeln!(f, "{}", quote::line(op.words()))?;
        }
        f.write_str("COMMIT\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_what_the_tool_reads() {
        let mut batch = Batch::new(AddressFamily::V4);
        batch.push(Op::NewChain("CNI-x".to_owned()));
        let net: IpNet = "10.1.2.3/24".parse().unwrap();
        let matches = vec![
            Match::Source(net),
            Match::Protocol(Protocol::Tcp),
            Match::Port(Protocol::Tcp, 80),
            Match::Comment("name: \"n\"\nCOMMIT".to_owned()),
        ];
        batch.append("CNI-x", &Rule::new(matches, Target::SetMarkBit(31)));
        let to = Target::Dnat("[fd00::1]:80".parse().unwrap());
        batch.push(Op::Insert("CNI-x".to_owned(), Rule::new(vec![Match::Local], to).words()));
        assert_eq!(
            batch.to_string(),
            "*nat\n-N CNI-x\n-A CNI-x -s 10.1.2.0/24 -p tcp -m tcp --dport 80 -m comment --comment \
             \"name: \\\"n\\\" COMMIT\" -j MARK --set-xmark 0x80000000/0x80000000\n\
             -I CNI-x 1 -m addrtype --dst-type LOCAL -j DNAT --to-destination [fd00::1]:80\nCOMMIT\n"
        );
    }
}
