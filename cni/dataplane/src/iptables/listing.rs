//! What `iptables-save` and `iptables -S` print, taken apart.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::names::CommentOwner;
use super::plan::Key;
use super::quote;
use super::rule::TableName;
use crate::Protocol;

/// A rule as it is printed, from its first match to its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedRule(pub(crate) Vec<String>);

/// Chains of one family's table with their rules, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    chains: BTreeMap<String, Vec<ListedRule>>,
}

impl Listing {
    /// Reads the nat table's part of the text. Lines that say nothing of chains and rules are passed
    /// over.
    #[cfg(test)]
    pub(crate) fn parse(text: &str) -> Self {
        Self::parse_table(text, TableName::Nat)
    }

    /// The same of another table.
    pub(crate) fn parse_table(text: &str, table: TableName) -> Self {
        Self::parse_if(text, table, |_| true)
    }

    /// Reads these chains alone, of a table that may have many rules.
    pub(crate) fn parse_chains(text: &str, table: TableName, chains: &[&str]) -> Self {
        Self::parse_if(text, table, |chain| chains.contains(&chain))
    }

    fn parse_if(text: &str, table: TableName, wanted: impl Fn(&str) -> bool) -> Self {
        let mut listing = Self::default();
        let mut in_table = true;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                in_table = name.trim() == table.as_str();
            }
            if !in_table {
                continue;
            }
            if let Some(chain) = line.strip_prefix(':') {
                let chain = chain.split(' ').next().unwrap_or_default();
                if wanted(chain) {
                    listing.chain(chain);
                }
                continue;
            }
            // Names of chains have no spaces and no quotes.
            if !line.split(' ').nth(1).is_some_and(&wanted) {
                continue;
            }
            let mut words = quote::split(line).into_iter();
            match (words.next().as_deref(), words.next()) {
                (Some("-N" | "-P"), Some(chain)) => {
                    listing.chain(&chain);
                }
                (Some("-A"), Some(chain)) => listing.chain(&chain).push(ListedRule(words.collect())),
                _ => {}
            }
        }
        listing
    }

    fn chain(&mut self, name: &str) -> &mut Vec<ListedRule> {
        self.chains.entry(name.to_owned()).or_default()
    }

    /// Whether there is such a chain.
    pub(crate) fn has(&self, chain: &str) -> bool {
        self.chains.contains_key(chain)
    }

    /// A chain's rules; none if there is no such chain.
    pub(crate) fn rules(&self, chain: &str) -> &[ListedRule] {
        self.chains.get(chain).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the chain has a rule of exactly these words.
    pub(crate) fn contains(&self, chain: &str, words: &[String]) -> bool {
        self.rules(chain).iter().any(|rule| rule.0 == words)
    }

    /// Takes in what another listing has.
    pub(crate) fn merge(&mut self, other: Self) {
        self.chains.extend(other.chains);
    }
}

impl ListedRule {
    /// The word after an option that is not negated.
    fn value(&self, option: &str) -> Option<&str> {
        let at = self.0.iter().position(|word| word == option)?;
        let negated = at.checked_sub(1).and_then(|i| self.0.get(i)).is_some_and(|word| word == "!");
        self.0.get(at + 1).map(String::as_str).filter(|_| !negated)
    }

    /// Where it leads to.
    pub(crate) fn target(&self) -> Option<&str> {
        self.value("-j").or_else(|| self.value("-g"))
    }

    /// The interface that it wants packets to come in by.
    pub(crate) fn incoming(&self) -> Option<&str> {
        self.value("-i")
    }

    /// The interface that it wants packets to leave by.
    pub(crate) fn outgoing(&self) -> Option<&str> {
        self.value("-o")
    }

    /// Who its comment names.
    pub(crate) fn owner(&self) -> Option<CommentOwner> {
        CommentOwner::parse(self.value("--comment")?)
    }

    /// Its protocol, if it is one that ports can be published for.
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        let name = self.value("-p")?;
        Protocol::ALL.into_iter().find(|p| p.as_str() == name)
    }

    /// The destination ports that it matches, as runs.
    pub(crate) fn ports(&self) -> Vec<(u16, u16)> {
        let list = self.value("--dports").or_else(|| self.value("--dport")).unwrap_or_default();
        let run = |part: &str| match part.split_once(':') {
            Some((first, last)) => Some((first.parse().ok()?, last.parse().ok()?)),
            None => part.parse().ok().map(|port| (port, port)),
        };
        list.split(',').filter_map(run).collect()
    }

    /// Whether it matches that destination port.
    pub(crate) fn has_port(&self, protocol: Protocol, port: u16) -> bool {
        self.protocol() == Some(protocol) && self.ports().iter().any(|(a, b)| (*a..=*b).contains(&port))
    }

    /// The destination network that it matches.
    pub(crate) fn destination(&self) -> Option<IpNet> {
        network(self.value("-d")?)
    }

    /// The source network that it matches.
    pub(crate) fn source(&self) -> Option<IpNet> {
        network(self.value("-s")?)
    }

    /// What it publishes or marks, if it is about a single port.
    pub(crate) fn key(&self) -> Option<Key> {
        let (port, last) = self.ports().first().copied()?;
        let address = self.destination().map(|net| net.addr());
        (port == last).then_some(Key { protocol: self.protocol()?, address, port })
    }

    /// Where it translates the destination to.
    pub(crate) fn dnat(&self) -> Option<SocketAddr> {
        self.value("--to-destination")?.parse().ok()
    }
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = r#"# Generated by iptables-save v1.8.9
*filter
:INPUT ACCEPT [0:0]
-A INPUT -j CNI-DN-x
COMMIT
*nat
:PREROUTING ACCEPT [12:700]
:CNI-DN-x - [0:0]
[1:60] is nothing
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-DN-x -s 10.22.0.0/24 -d 192.0.2.2/32 -p udp -m udp --dport 5353 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-x -d 192.0.2.2/32 -p udp -m udp --dport 5353 -j DNAT --to-destination 10.22.0.2:53
-A CNI-HOSTPORT-DNAT ! -d 10.0.0.0/8 -p tcp -m comment --comment "dnat name: \"testnet\" id: \"c1\"" -m multiport --dports 80,90:95 -j CNI-DN-x
COMMIT
"#;

    #[test]
    fn a_saved_table_is_taken_apart() {
        let listing = Listing::parse(SAVED);
        let names: Vec<&str> = listing.chains.keys().map(String::as_str).collect();
        assert_eq!(names, ["CNI-DN-x", "CNI-HOSTPORT-DNAT", "PREROUTING"]);
        let [mark, dnat] = listing.rules("CNI-DN-x") else { panic!("{listing:?}") };
        assert_eq!(mark.target(), Some("CNI-HOSTPORT-SETMARK"));
        assert_eq!(mark.source(), Some("10.22.0.0/24".parse().unwrap()));
        assert_eq!(dnat.dnat(), Some("10.22.0.2:53".parse().unwrap()));
        assert_eq!(dnat.destination(), Some("192.0.2.2/32".parse().unwrap()));
        assert!(dnat.has_port(Protocol::Udp, 5353) && !dnat.has_port(Protocol::Tcp, 5353));
        let entry = &listing.rules("CNI-HOSTPORT-DNAT")[0];
        assert_eq!(entry.destination(), None);
        assert_eq!(entry.owner().unwrap().container_id, "c1");
        assert_eq!(entry.ports(), [(80, 80), (90, 95)]);
        assert!(entry.has_port(Protocol::Tcp, 93));
    }

    #[test]
    fn what_is_listed_chain_by_chain_is_read_too() {
        let listing = Listing::parse("-P OUTPUT ACCEPT\n-N CNI-x\n-A CNI-x -j RETURN\n");
        assert!(listing.has("OUTPUT") && listing.rules("OUTPUT").is_empty());
        assert!(listing.contains("CNI-x", &["-j".to_owned(), "RETURN".to_owned()]));
        assert!(!listing.has("PREROUTING"));
    }
}
