// SPDX-License-Identifier: GPL-3.0-or-later

//! The networks of `slipwayd pod up` with their parameters, which depend on the order of the command line.

use std::convert::Infallible;
use std::net::IpAddr;

use clap::{ArgMatches, Args, FromArgMatches};
use cni_kernel::mac::Mac;
use cni_runtime::pods::{Attach, BURST, Parameters, quantity};
use cni_spec::{Bandwidth, PortMapping};

use crate::commands::values::{ValueError, in_places};

/// An option that is a network or a parameter of one.
#[derive(Debug, Clone)]
enum Parameter {
    Network(Attach),
    Ip(IpAddr),
    Mac(Mac),
    Port(PortMapping),
    Bandwidth(Bandwidth),
    Annotation(String, String),
    Alias(String),
    CgroupPath(String),
}

/// The declaration of the options. Each value becomes a [`Parameter`].
#[derive(Debug, Args)]
struct ParameterOptions {
    /// A network, and the interface's name; without it the default network; any number of times
    #[arg(long, value_name = "NAME[=IFNAME]", value_parser = |text: &str| network(text).map(Parameter::Network))]
    network: Vec<Parameter>,
    /// The address to request
    #[arg(long, value_name = "ADDRESS", value_parser = ip, conflicts_with = "network_plugin")]
    ip: Vec<Parameter>,
    /// The Ethernet address to request
    #[arg(long, value_name = "ADDRESS", value_parser = mac, conflicts_with = "network_plugin")]
    mac: Vec<Parameter>,
    /// A port to publish, with tcp (default), udp or sctp; any number of times
    #[arg(long, value_name = "[IP:]HOST:POD[/PROTOCOL]", value_parser = port)]
    port: Vec<Parameter>,
    /// The limit in bits per second, such as 10M, into the pod and out of it
    #[arg(long, value_name = "RATE[:RATE]", value_parser = bandwidth)]
    bandwidth: Vec<Parameter>,
    /// An annotation of the pod; kubernetes.io/ingress-bandwidth and egress-bandwidth limit it; any number of times
    #[arg(long, value_name = "KEY=VALUE", value_parser = annotation)]
    annotation: Vec<Parameter>,
    /// A further name of the pod; any number of times
    #[arg(long, value_name = "NAME", value_parser = |text: &str| text.parse().map(Parameter::Alias), conflicts_with = "network_plugin")]
    alias: Vec<Parameter>,
    /// The pod's cgroup below its mount point
    #[arg(long, value_name = "PATH", value_parser = |text: &str| text.parse().map(Parameter::CgroupPath), conflicts_with = "network_plugin")]
    cgroup_path: Vec<Parameter>,
}

/// The options in the order of the command line.
#[derive(Debug, Clone, Default)]
pub(super) struct Attachments(Vec<Parameter>);

impl Args for Attachments {
    fn augment_args(command: clap::Command) -> clap::Command {
        ParameterOptions::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        ParameterOptions::augment_args_for_update(command)
    }
}

impl FromArgMatches for Attachments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let command = ParameterOptions::augment_args(clap::Command::default());
        let ids = command.get_arguments().map(clap::Arg::get_id);
        let mut all: Vec<(usize, &Parameter)> =
            ids.flat_map(|id| in_places(matches, id, |id| matches.get_many(id))).collect();
        all.sort_by_key(|(place, _)| *place);
        Ok(Self(all.into_iter().map(|(_, parameter)| parameter.clone()).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Attachments {
    /// The networks. A parameter is for the network before it; those before all networks are for the first one, and without
    /// a network for the default one.
    pub(super) fn networks(&self) -> Vec<Attach> {
        let mut networks: Vec<Attach> = Vec::new();
        let mut first = Parameters::default();
        for parameter in &self.0 {
            let parameters = networks.last_mut().map_or(&mut first, |attach| &mut attach.parameters);
            match parameter.clone() {
                Parameter::Network(attach) => networks.push(attach),
                Parameter::Ip(ip) => parameters.ip = Some(ip),
                Parameter::Mac(mac) => parameters.mac = Some(mac),
                Parameter::Port(port) => parameters.port_mappings.push(port),
                Parameter::Bandwidth(bandwidth) => parameters.bandwidth = Some(bandwidth),
                Parameter::Annotation(key, value) => drop(parameters.annotations.insert(key, value)),
                Parameter::Alias(alias) => parameters.aliases.push(alias),
                Parameter::CgroupPath(path) => parameters.cgroup_path = path,
            }
        }
        match networks.first_mut() {
            Some(attach) => prepend(&mut attach.parameters, first),
            None => networks.push(Attach { parameters: first, ..Attach::default() }),
        }
        networks
    }
}

/// Adds the parameters that were given before the first network.
fn prepend(parameters: &mut Parameters, first: Parameters) {
    let Parameters { ip, mac, port_mappings, bandwidth, ip_ranges, aliases, cgroup_path, annotations } =
        first;
    parameters.ip = parameters.ip.or(ip);
    parameters.mac = parameters.mac.or(mac);
    parameters.bandwidth = parameters.bandwidth.or(bandwidth);
    parameters.port_mappings.splice(0..0, port_mappings);
    parameters.ip_ranges.splice(0..0, ip_ranges);
    parameters.aliases.splice(0..0, aliases);
    parameters.annotations.extend(annotations);
    if parameters.cgroup_path.is_empty() {
        parameters.cgroup_path = cgroup_path;
    }
}

/// `NAME`, or `NAME=IFNAME`.
pub(super) fn network(text: &str) -> Result<Attach, Infallible> {
    Ok(match text.split_once('=') {
        Some((network, ifname)) => Attach { ifname: Some(ifname.to_owned()), ..Attach::to(network) },
        None => Attach::to(text),
    })
}

fn ip(text: &str) -> Result<Parameter, ValueError> {
    text.parse().map(Parameter::Ip).map_err(|_| ValueError::Address)
}

fn mac(text: &str) -> Result<Parameter, ValueError> {
    text.parse().map(Parameter::Mac).map_err(|_| ValueError::Mac)
}

fn annotation(text: &str) -> Result<Parameter, ValueError> {
    let (key, value) = text.split_once('=').ok_or(ValueError::Annotation)?;
    Ok(Parameter::Annotation(key.to_owned(), value.to_owned()))
}

fn port(text: &str) -> Result<Parameter, ValueError> {
    port_mapping(text).map(Parameter::Port).ok_or(ValueError::Port)
}

/// `[IP:]HOST:POD[/PROTOCOL]`; an IPv6 address is in brackets.
fn port_mapping(text: &str) -> Option<PortMapping> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let (rest, container_port) = ports.rsplit_once(':')?;
    let (host_ip, host_port) = rest.rsplit_once(':').unwrap_or(("", rest));
    let host_ip = host_ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(host_ip);
    if !host_ip.is_empty() && host_ip.parse::<IpAddr>().is_err()
        || !["tcp", "udp", "sctp"].contains(&protocol)
    {
        return None;
    }
    Some(PortMapping {
        host_port: host_port.parse().ok()?,
        container_port: container_port.parse().ok()?,
        protocol: protocol.to_owned(),
        host_ip: host_ip.to_owned(),
    })
}

/// `RATE` for both directions, or `RATE:RATE`.
fn bandwidth(text: &str) -> Result<Parameter, ValueError> {
    let rate = |text: &str| {
        let rate = quantity(text).map_err(|_| ValueError::Bandwidth)?;
        u64::try_from(rate).map_err(|_| ValueError::Bandwidth)
    };
    let (ingress, egress) = text.split_once(':').unwrap_or((text, text));
    let (ingress_rate, egress_rate) = (rate(ingress)?, rate(egress)?);
    let burst = |rate: u64| if rate == 0 { 0 } else { BURST };
    let (ingress_burst, egress_burst) = (burst(ingress_rate), burst(egress_rate));
    Ok(Parameter::Bandwidth(Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }))
}
