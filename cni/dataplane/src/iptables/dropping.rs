// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds out whether the chain FORWARD accepts connections to published ports, and those of containers, if its policy
//! is to drop packets.

use std::net::IpAddr;

use ipnet::IpNet;

use super::filter;
use super::listing::Listing;
use super::names::TableName;
use super::rule::Rule;
use super::tools::{Place, Tools, Variant, default_variant};
use crate::AddressFamily;

pub(crate) const FORWARD: &str = filter::FORWARD;
/// Docker's chain for rules of administrators, which Docker never changes.
pub(crate) const DOCKER_USER: &str = "DOCKER-USER";
/// Chains to which FORWARD jumps and that may accept such connections.
const CHAINS: [&str; 4] = [FORWARD, DOCKER_USER, filter::CONTAINERS, filter::ADMIN];

/// The connections that a chain accepts, as far as its rules show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// True if the chain accepts connections to all published ports.
    pub(crate) all: bool,
    /// The containers whose published ports can be reached: their addresses, or networks that contain them.
    pub(crate) networks: Vec<IpNet>,
    /// The networks from which the chain accepts every packet.
    pub(crate) sources: Vec<IpNet>,
}

impl Admitted {
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.all || self.networks.iter().any(|network| network.contains(&address))
    }

    pub(crate) fn has_source(&self, address: IpAddr) -> bool {
        self.sources.iter().any(|network| network.contains(&address))
    }
}

/// The chain FORWARD as it was read.
pub(crate) struct Found {
    pub(crate) admitted: Admitted,
    /// True if FORWARD leads to Docker's chain.
    pub(crate) has_docker_user: bool,
    /// The program that changes the chain.
    pub(crate) program: String,
}

/// Reads the chain. Without the programs of iptables, nothing is known about its rules.
pub(crate) fn read(variant: Variant, family: AddressFamily) -> Found {
    let tools = Tools::new(Place { variant, family }, TableName::Filter);
    let listing = tools.read(&CHAINS).unwrap_or_default();
    let mut admitted = Admitted::default();
    collect(&listing, FORWARD, &mut admitted);
    let name = match family {
        AddressFamily::V4 => "iptables",
        AddressFamily::V6 => "ip6tables",
    };
    let is_legacy = default_variant().is_ok_and(|plain| plain == Some(Variant::Legacy));
    let is_plain = variant == Variant::Nft && !is_legacy;
    let program = if is_plain { name.to_owned() } else { format!("{name}-{variant}") };
    Found { admitted, has_docker_user: listing.jumps(FORWARD, DOCKER_USER).next().is_some(), program }
}

fn collect(listing: &Listing, chain: &str, admitted: &mut Admitted) {
    for rule in listing.rules(chain) {
        let words = without_comment(rule);
        match words.as_slice() {
            // FORWARD itself cannot be the target of a jump.
            ["-j", target] if listing.has(target) && *target != chain => collect(listing, target, admitted),
            ["-j", "DROP" | "REJECT", ..] => return,
            ["-m", "conntrack", "--ctstate", states, "-j", "ACCEPT"] => admitted.all |= is_translated(states),
            ["-d", _, "-m", "conntrack", "--ctstate", states, "-j", "ACCEPT"] if is_translated(states) => {
                admitted.networks.extend(rule.destination());
            }
            ["-d", _, "-j", "ACCEPT"] => admitted.networks.extend(rule.destination()),
            ["-s", _, "-j", "ACCEPT"] => admitted.sources.extend(rule.source()),
            _ => {}
        }
    }
}

fn is_translated(states: &str) -> bool {
    states.split(',').any(|state| state == "DNAT")
}

/// The words of a rule without its comment.
fn without_comment(rule: &Rule) -> Vec<&str> {
    let mut words: Vec<&str> = rule.words().iter().map(String::as_str).collect();
    if let Some(at) = words.windows(3).position(|three| matches!(three, ["-m", "comment", "--comment"])) {
        words.drain(at..(at + 4).min(words.len()));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_accept_published_ports_are_found_where_forward_leads_to() {
        let of = |rules: &str| {
            let text = format!(":FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n:CNI-FORWARD - [0:0]\n{rules}");
            let mut admitted = Admitted::default();
            collect(&Listing::parse(&text, TableName::Filter), FORWARD, &mut admitted);
            admitted
        };
        let jump = "-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n";
        let own = "-A CNI-FORWARD -d 10.1.2.3/32 -m conntrack --ctstate DNAT -j ACCEPT\n";
        assert_eq!(of(&[jump, own].concat()).networks, ["10.1.2.3/32".parse().unwrap()]);
        assert_eq!(of(own), Admitted::default(), "nothing leads to it");
        assert_eq!(of(&["-A FORWARD -j DROP\n", jump, own].concat()), Admitted::default());
        let user = "-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -m conntrack --ctstate DNAT -j ACCEPT\n";
        assert!(of(user).all);
        assert!(!of(&user.replace("DNAT", "RELATED,ESTABLISHED")).all);
        let from = of("-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -s 10.22.0.0/16 -j ACCEPT\n");
        assert!(
            from.has_source("10.22.0.2".parse().unwrap()) && !from.has_source("10.23.0.2".parse().unwrap())
        );
        assert!(!from.has("10.22.0.2".parse().unwrap()));
    }
}
