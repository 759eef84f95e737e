// SPDX-License-Identifier: GPL-3.0-or-later

//! The networks of `slipwayd pod up` with their parameters, which depend on the order of the command line.

use std::convert::Infallible;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, FromArgMatches};
use cni_kernel::mac::Mac;
use cni_runtime::pods::{Attach, quantity};
use cni_runtime::rates::burst;
use cni_spec::{Bandwidth, PortMapping};

use crate::commands::values::{ValueError, in_places};

/// The bursts that the plugin bandwidth takes, in bits: from one byte on.
const BURSTS: RangeInclusive<u64> = 8..=34_359_738_352;

/// An option that is a network or a parameter of one.
#[derive(Debug, Clone)]
enum Parameter {
    Network(Attach),
    Ip(IpAddr),
    Mac(Mac),
    Port(PortMapping),
    Bandwidth(Directions),
    Burst(Directions),
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
    /// How many bits may pass at once before the limit holds [default: the limit's eighth, for 1M at least]
    #[arg(long, value_name = "BITS[:BITS]", value_parser = bursts, requires = "bandwidth", conflicts_with = "network_plugin")]
    burst: Vec<Parameter>,
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
        let all = Self(all.into_iter().map(|(_, parameter)| parameter.clone()).collect());
        let has_burst_alone =
            |one: &Assigned| one.burst.is_some() && one.attach.parameters.bandwidth.is_none();
        if all.assigned().iter().any(has_burst_alone) {
            let message = "--burst is for the --bandwidth of the same network";
            return Err(clap::Error::raw(ErrorKind::TooFewValues, message));
        }
        Ok(all)
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
        self.assigned().into_iter().map(|Assigned { attach, .. }| attach).collect()
    }

    /// The networks with their parameters, as far as they go together.
    fn assigned(&self) -> Vec<Assigned> {
        let is_network = |parameter: &&Parameter| matches!(parameter, Parameter::Network(_));
        let count = self.0.iter().filter(is_network).count().max(1);
        let mut all = vec![Assigned::default(); count];
        let mut seen = 0_usize;
        for parameter in &self.0 {
            seen += usize::from(is_network(&parameter));
            if let Some(one) = all.get_mut(seen.saturating_sub(1)) {
                one.assign(parameter.clone());
            }
        }
        all
    }
}

/// A network with its parameters.
#[derive(Debug, Clone, Default)]
struct Assigned {
    attach: Attach,
    /// The bursts of `--burst`, which may precede the rates that they are for.
    burst: Option<Directions>,
}

impl Assigned {
    fn assign(&mut self, parameter: Parameter) {
        let parameters = &mut self.attach.parameters;
        match parameter {
            Parameter::Network(Attach { network, ifname, .. }) => {
                (self.attach.network, self.attach.ifname) = (network, ifname);
            }
            Parameter::Ip(ip) => parameters.ip = Some(ip),
            Parameter::Mac(mac) => parameters.mac = Some(mac),
            Parameter::Port(port) => parameters.port_mappings.push(port),
            Parameter::Bandwidth(rates) => parameters.bandwidth = Some(limits(rates)),
            Parameter::Burst(bursts) => self.burst = Some(bursts),
            Parameter::Annotation(key, value) => drop(parameters.annotations.insert(key, value)),
            Parameter::Alias(alias) => parameters.aliases.push(alias),
            Parameter::CgroupPath(path) => parameters.cgroup_path = path,
        }
        if let (Some(limits), Some(bursts)) = (&mut parameters.bandwidth, self.burst) {
            let of = |rate, burst| if rate == 0 { 0 } else { burst };
            limits.ingress_burst = of(limits.ingress_rate, bursts.ingress);
            limits.egress_burst = of(limits.egress_rate, bursts.egress);
        }
    }
}

/// A value for traffic into the pod, and one for traffic out of it.
#[derive(Debug, Clone, Copy)]
struct Directions {
    ingress: u64,
    egress: u64,
}

/// Rates with the bursts that go with them.
fn limits(Directions { ingress, egress }: Directions) -> Bandwidth {
    let of = |rate| if rate == 0 { 0 } else { burst(rate) };
    Bandwidth {
        ingress_rate: ingress,
        ingress_burst: of(ingress),
        egress_rate: egress,
        egress_burst: of(egress),
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

fn bandwidth(text: &str) -> Result<Parameter, ValueError> {
    directions(text).map(Parameter::Bandwidth).ok_or(ValueError::Bandwidth)
}

fn bursts(text: &str) -> Result<Parameter, ValueError> {
    let is_burst = |bits: u64| BURSTS.contains(&bits);
    let bursts = directions(text).filter(|bursts| is_burst(bursts.ingress) && is_burst(bursts.egress));
    bursts.map(Parameter::Burst).ok_or(ValueError::Burst)
}

/// A quantity for both directions, or two with a colon between them.
fn directions(text: &str) -> Option<Directions> {
    let bits = |text: &str| u64::try_from(quantity(text).ok()?).ok();
    let (ingress, egress) = text.split_once(':').unwrap_or((text, text));
    Some(Directions { ingress: bits(ingress)?, egress: bits(egress)? })
}
