// SPDX-License-Identifier: GPL-3.0-or-later

//! The options that are parameters of a network.

use std::net::IpAddr;

use cni_runtime::pods::{BURST, Parameters, quantity};
use cni_spec::{Bandwidth, PortMapping};

/// Sets a parameter of a network. False if the option is no parameter.
pub(super) fn set(parameters: &mut Parameters, name: &str, value: &str) -> Result<bool, String> {
    match name {
        "--ip" => parameters.ip = Some(value.parse::<IpAddr>().map_err(|e| e.to_string())?),
        "--mac" => parameters.mac = Some(value.parse().map_err(|e| format!("{e}"))?),
        "--port" => parameters.port_mappings.push(port(value).ok_or("not [IP:]HOST:POD[/PROTOCOL]")?),
        "--bandwidth" => parameters.bandwidth = Some(bandwidth(value)?),
        "--annotation" => {
            let (key, value) = value.split_once('=').ok_or("not KEY=VALUE")?;
            parameters.annotations.insert(key.to_owned(), value.to_owned());
        }
        "--alias" => parameters.aliases.push(value.to_owned()),
        "--cgroup-path" => value.clone_into(&mut parameters.cgroup_path),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Adds the parameters that were given before the first network.
pub(super) fn merge(parameters: &mut Parameters, first: Parameters) {
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

/// `[IP:]HOST:POD[/PROTOCOL]`; an IPv6 address is in brackets.
fn port(text: &str) -> Option<PortMapping> {
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
fn bandwidth(text: &str) -> Result<Bandwidth, String> {
    let rate = |text: &str| {
        let rate = quantity(text).map_err(|e| e.to_string())?;
        u64::try_from(rate).map_err(|_| format!("{text} is negative"))
    };
    let (ingress, egress) = text.split_once(':').unwrap_or((text, text));
    let (ingress_rate, egress_rate) = (rate(ingress)?, rate(egress)?);
    let burst = |rate: u64| if rate == 0 { 0 } else { BURST };
    let (ingress_burst, egress_burst) = (burst(ingress_rate), burst(egress_rate));
    Ok(Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst })
}
