// SPDX-License-Identifier: GPL-2.0-or-later

//! Chains of other programs that drop forwarded packets unless one of their rules accepts them. This module finds out
//! which published ports these chains accept, and prints the commands that make them accept the packets of
//! containers.

use std::net::IpAddr;

use cni_kernel::route::RouteSocket;
use cni_nftables::{Cmp, Family, Field, Operand, RuleInfo, Socket, Stmt, TableId, Value, Verdict};
use ipnet::IpNet;

use crate::iptables::dropping::{self as listed, Admitted};
use crate::iptables::{Iptables, Variant};
use crate::nftables::plan;
use crate::nftables::schema::SharedChain;
use crate::nftables::session::Session;
use crate::node::ForwardChain;
use crate::{AddressFamily, Backend, Error};

/// Docker's table where it uses nftables without iptables.
const DOCKER: &str = "docker-bridges";

/// The kind of chain that drops packets. The commands that help depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// FORWARD of iptables, which jumps to DOCKER-USER, Docker's chain for administrators.
    DockerUser,
    /// FORWARD of iptables, without Docker's chain.
    Iptables,
    /// A chain of Docker's own table.
    DockerNftables,
    /// A chain of nftables in any other table.
    Nftables,
    /// A chain that sees frames forwarded by a bridge.
    Bridge,
}

/// A chain that drops by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppingChain {
    pub name: String,
    pub form: Form,
    admitted: Admitted,
    place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// The program to run, and the chain into which rules are inserted.
    Iptables {
        family: AddressFamily,
        program: String,
        chain: &'static str,
    },
    Nftables {
        table: TableId,
        chain: String,
    },
}

impl DroppingChain {
    /// Reads a chain of nftables.
    #[must_use]
    pub fn of_nftables(chain: &ForwardChain) -> Self {
        let (table, name) = (&chain.table, chain.chain.clone());
        let rules = Socket::open().and_then(|socket| socket.rules(table, &name)).unwrap_or_default();
        let admitted = admitted(&rules);
        let family = match table.family {
            Family::Ip => Some(AddressFamily::V4),
            Family::Ip6 => Some(AddressFamily::V6),
            _ => None,
        };
        if let Some(family) = family.filter(|_| table.name == "filter" && name == "FORWARD") {
            let mut of_iptables = Self::of_iptables(Variant::Nft, family, chain.name.clone());
            of_iptables.admitted.all |= admitted.all;
            of_iptables.admitted.networks.extend(admitted.networks);
            of_iptables.admitted.sources.extend(admitted.sources);
            return of_iptables;
        }
        let form = match table.family {
            Family::Bridge => Form::Bridge,
            _ if table.name == DOCKER => Form::DockerNftables,
            _ => Form::Nftables,
        };
        let place = Place::Nftables { table: table.clone(), chain: name };
        Self { name: chain.name.clone(), form, admitted, place }
    }

    /// Reads FORWARD of iptables.
    #[must_use]
    pub fn of_iptables(variant: Variant, family: AddressFamily, name: String) -> Self {
        let listed::Found { admitted, has_docker_user, program } = listed::read(variant, family);
        let (form, chain) = if has_docker_user {
            (Form::DockerUser, listed::DOCKER_USER)
        } else {
            (Form::Iptables, listed::FORWARD)
        };
        Self { name, form, admitted, place: Place::Iptables { family, program, chain } }
    }

    /// True if the chain's rules accept connections to published ports of the container with this address.
    #[must_use]
    pub fn admits(&self, address: IpAddr) -> bool {
        self.admitted.has(address)
    }

    /// True if the chain's rules accept every packet from this address.
    #[must_use]
    pub fn admits_source(&self, address: IpAddr) -> bool {
        self.admitted.has_source(address)
    }

    /// The commands that make the chain accept packets of containers in these networks, as one line for a shell. If
    /// no network is given, they let only connections to published ports pass.
    #[must_use]
    pub fn commands(&self, networks: &[IpNet]) -> String {
        let commands = match &self.place {
            Place::Iptables { family, program, chain } => {
                let insert = format!("{program} -I {chain}");
                let of_family = networks.iter().filter(|net| AddressFamily::of(net.addr()) == *family);
                let mut commands: Vec<String> = of_family
                    .flat_map(|net| {
                        let to = format!(
                            "{insert} -d {net} -m conntrack --ctstate DNAT,RELATED,ESTABLISHED -j ACCEPT"
                        );
                        [to, format!("{insert} -s {net} -j ACCEPT")]
                    })
                    .collect();
                if commands.is_empty() {
                    commands.push(format!("{insert} -m conntrack --ctstate DNAT -j ACCEPT"));
                }
                commands
            }
            Place::Nftables { table, chain } => nftables_commands(table, chain, networks),
        };
        commands.join("; ")
    }
}

fn nftables_commands(table: &TableId, chain: &str, networks: &[IpNet]) -> Vec<String> {
    let insert = format!("nft insert rule {table} {chain}");
    let sees = |net: &&IpNet| match table.family {
        Family::Ip => net.addr().is_ipv4(),
        Family::Ip6 => net.addr().is_ipv6(),
        _ => true,
    };
    let of_network = |net: &IpNet| {
        let ip = if net.addr().is_ipv4() { "ip" } else { "ip6" };
        [
            format!("{insert} {ip} daddr {net} ct status dnat accept"),
            format!("{insert} {ip} daddr {net} ct state established,related accept"),
            format!("{insert} {ip} saddr {net} accept"),
        ]
    };
    let commands: Vec<String> = networks.iter().filter(sees).flat_map(of_network).collect();
    if commands.is_empty() { vec![format!("{insert} ct status dnat accept")] } else { commands }
}

/// Which connections the rules of a chain accept.
fn admitted(rules: &[RuleInfo]) -> Admitted {
    let mut all = Admitted::default();
    for rule in rules {
        let Some((Stmt::Verdict(Verdict::Accept), conditions)) =
            rule.stmts.as_deref().and_then(<[Stmt]>::split_last)
        else {
            continue;
        };
        let (mut network, mut source, mut is_about_translated, mut others) = (None, None, false, false);
        for stmt in conditions {
            match stmt {
                Stmt::Counter => {}
                Stmt::Match { fields, cmp: Cmp::Eq, .. } if *fields == [Field::NfProto] => {}
                Stmt::AnyBit { field: Field::CtStatus, bits: Value::CtStatus(bits) } => {
                    is_about_translated |= bits & Value::CT_DNAT != 0;
                }
                Stmt::Match { fields, cmp: Cmp::Eq, to }
                    if matches!(fields.as_slice(), [Field::IpDaddr | Field::Ip6Daddr]) =>
                {
                    network = network_of(to);
                    others |= network.is_none();
                }
                Stmt::Match { fields, cmp: Cmp::Eq, to }
                    if matches!(fields.as_slice(), [Field::IpSaddr | Field::Ip6Saddr]) =>
                {
                    source = network_of(to);
                    others |= source.is_none();
                }
                _ => others = true,
            }
        }
        if others {
            continue;
        }
        match (network, source) {
            (Some(network), None) => all.networks.push(network),
            (None, Some(source)) if !is_about_translated => all.sources.push(source),
            (None, None) if is_about_translated => all.all = true,
            _ => {}
        }
    }
    all
}

fn network_of(to: &Operand) -> Option<IpNet> {
    match to {
        Operand::Value(value) => plan::as_address(value).map(IpNet::from),
        Operand::Prefix(value, bits) => IpNet::new(plan::as_address(value)?, *bits).ok(),
        _ => None,
    }
}

/// The networks of containers that publish ports or are masqueraded.
///
/// # Errors
/// nf_tables, the node's addresses or the chains of iptables cannot be read.
pub fn container_networks() -> Result<Vec<IpNet>, Error> {
    let shared = match Session::open().and_then(|session| session.shared_chains()) {
        Err(Error::NoNfTables(_)) => Vec::new(),
        other => other?,
    };
    let of_chain = |chain: &SharedChain| match chain {
        SharedChain::Masquerade { network, .. } | SharedChain::Hairpin { network, .. } => Some(*network),
        SharedChain::HairpinAll { .. } | SharedChain::HairpinNone { .. } => None,
    };
    let mut all: Vec<IpNet> = shared.iter().filter_map(of_chain).collect();
    let published = Iptables::new().list()?;
    if !published.is_empty() {
        let addresses = RouteSocket::open().and_then(|route| route.all_addresses());
        let addresses = addresses.map_err(|e| Error::kernel("list the node's addresses", e))?;
        for listed in published {
            let container = listed.port.container;
            let network = addresses.iter().find(|one| one.net.contains(&container));
            all.push(network.map_or_else(|| IpNet::from(container), |one| one.net.trunc()));
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(form: Form, place: Place) -> DroppingChain {
        DroppingChain { name: String::new(), form, admitted: Admitted::default(), place }
    }

    #[test]
    fn commands_name_the_networks_of_the_family() {
        let networks: Vec<IpNet> = ["10.22.0.0/16", "fd00:22::/64"].map(|net| net.parse().unwrap()).into();
        let (family, program) = (AddressFamily::V4, "iptables".to_owned());
        let docker = chain(Form::DockerUser, Place::Iptables { family, program, chain: "DOCKER-USER" });
        assert_eq!(
            docker.commands(&networks),
            "iptables -I DOCKER-USER -d 10.22.0.0/16 -m conntrack --ctstate DNAT,RELATED,ESTABLISHED -j ACCEPT; \
             iptables -I DOCKER-USER -s 10.22.0.0/16 -j ACCEPT"
        );
        assert_eq!(
            docker.commands(&networks[1..]),
            "iptables -I DOCKER-USER -m conntrack --ctstate DNAT -j ACCEPT"
        );
        let table = TableId::new(Family::Inet, "wall");
        let wall = chain(Form::Nftables, Place::Nftables { table, chain: "gate".to_owned() });
        assert_eq!(wall.commands(&networks).matches("nft insert rule inet wall gate ip").count(), 6);
        assert_eq!(wall.commands(&[]), "nft insert rule inet wall gate ct status dnat accept");
    }
}
