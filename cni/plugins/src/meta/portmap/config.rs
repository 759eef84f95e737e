//! portmap's keys, and what they ask for.

use std::net::{IpAddr, Ipv6Addr};

use cni_dataplane::{AddressFamily, HostAddress, HostPorts, Protocol, PublishedPort, Snat};
use cni_spec::{AddResult, CniError, NetConf};
use ipnet::IpNet;
use serde::Deserialize;

/// The bit of the packet mark when the configuration names none: the reference plugin's own.
const DEFAULT_MARK_BIT: u8 = 13;

/// The plugin's keys as they come.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    backend: Option<String>,
    snat: Option<bool>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    conditions_v4: Option<Vec<String>>,
    conditions_v6: Option<Vec<String>>,
    runtime_config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    port_mappings: Vec<Mapping>,
}

/// One entry of `runtimeConfig.portMappings`.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Mapping {
    host_port: i64,
    container_port: i64,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

/// The configuration, checked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) snat: Snat,
    pub(crate) mark_bit: u8,
    pub(crate) conditions_v4: Vec<String>,
    pub(crate) conditions_v6: Vec<String>,
    pub(crate) mappings: Vec<PortMapping>,
}

/// One mapping, checked; the container's address comes from the previous result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortMapping {
    pub(crate) protocol: Protocol,
    pub(crate) host_port: u16,
    pub(crate) container_port: u16,
    /// None: each family that the container has.
    pub(crate) host: Option<HostAddress>,
}

impl Config {
    /// Reads and checks all keys.
    ///
    /// # Errors
    /// Code 7, naming key and value.
    pub(crate) fn read(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        check_backend(&keys)?;
        let mark_bit = match keys.mark_masq_bit {
            None => DEFAULT_MARK_BIT,
            Some(bit) => {
                let bit = u8::try_from(bit).ok().filter(|bit| *bit < 32);
                bit.ok_or_else(|| CniError::config("MasqMarkBit must be between 0 and 31"))?
            }
        };
        let snat = match (keys.snat, keys.masq_all) {
            (Some(false), _) => Snat::Never,
            (_, true) => Snat::Always,
            (_, false) => Snat::Needed,
        };
        let mappings = keys.runtime_config.port_mappings.iter().map(Mapping::check);
        Ok(Self {
            snat,
            mark_bit,
            conditions_v4: keys.conditions_v4.unwrap_or_default(),
            conditions_v6: keys.conditions_v6.unwrap_or_default(),
            mappings: mappings.collect::<Result<_, _>>()?,
        })
    }

    /// The mappings of a configuration that may be wrong elsewhere: a DEL looks for what it can
    /// understand, and nothing stands in its way.
    pub(crate) fn mappings_for_removal(config: &NetConf) -> Vec<PortMapping> {
        match config.decode::<Keys>() {
            Ok(keys) => keys.runtime_config.port_mappings.iter().filter_map(|m| m.check().ok()).collect(),
            Err(error) => {
                log::warn!("{error}; removing what the attachment owns all the same");
                Vec::new()
            }
        }
    }
}

impl Mapping {
    fn check(&self) -> Result<PortMapping, CniError> {
        let port = |number: i64| u16::try_from(number).ok().filter(|port| *port != 0);
        let container_port = port(self.container_port).ok_or_else(|| {
            CniError::config(format!("Invalid container port number: {}", self.container_port))
        })?;
        let host_port = port(self.host_port)
            .ok_or_else(|| CniError::config(format!("Invalid host port number: {}", self.host_port)))?;
        let wanted = self.protocol.to_ascii_lowercase();
        let protocol = match wanted.as_str() {
            // The specification of the capability has no default; Kubernetes' and Docker's is TCP.
            "" => Protocol::Tcp,
            _ => Protocol::ALL.into_iter().find(|p| p.as_str() == wanted).ok_or_else(|| {
                CniError::config(format!(
                    "portMappings: protocol {:?} is not tcp, udp or sctp",
                    self.protocol
                ))
            })?,
        };
        Ok(PortMapping { protocol, host_port, container_port, host: host_address(&self.host_ip)? })
    }
}

/// An empty string is every family, the unspecified address of a family every address of it. An
/// IPv4 address written as IPv6 (RFC 4291, section 2.5.5.2) is that IPv4 address.
fn host_address(text: &str) -> Result<Option<HostAddress>, CniError> {
    if text.is_empty() {
        return Ok(None);
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let address: IpAddr = bare.parse().map_err(|_| {
        let why = if bare.contains('%') { ": an address with a zone cannot be published" } else { "" };
        CniError::config(format!("portMappings: invalid hostIP {text:?}{why}"))
    })?;
    let address = address.to_canonical();
    Ok(Some(match address {
        _ if !address.is_unspecified() => HostAddress::One(address),
        _ => HostAddress::Any(AddressFamily::of(address)),
    }))
}

fn check_backend(keys: &Keys) -> Result<(), CniError> {
    if keys.mark_masq_bit.is_some() && keys.external_set_mark_chain.is_some() {
        return Err(CniError::config("Cannot specify externalSetMarkChain and markMasqBit"));
    }
    let iptables = iptables_options(keys);
    match keys.backend.as_deref() {
        Some("nftables") if !iptables.is_empty() => Err(CniError::config(format!(
            "nftables backend was requested but configuration contains iptables-specific options [{}]",
            iptables.join(" ")
        ))),
        Some("iptables") => Err(CniError::config(
            "backend \"iptables\" is not in this version of slipway, which has \"nftables\" alone",
        )),
        None | Some("") if !iptables.is_empty() => Err(CniError::config(format!(
            "[{}] need the iptables backend, which is not in this version of slipway",
            iptables.join(" ")
        ))),
        None | Some("" | "nftables") => Ok(()),
        Some(other) => Err(CniError::config(format!("unrecognized backend {other:?}"))),
    }
}

/// The keys whose values only the iptables backend understands.
fn iptables_options(keys: &Keys) -> Vec<&'static str> {
    let syntax = |conditions: &Option<Vec<String>>| {
        let first = conditions.as_ref().and_then(|all| all.first());
        first.is_some_and(|word| word.starts_with(['-', '!']))
    };
    let mut found = Vec::new();
    if syntax(&keys.conditions_v4) {
        found.push("conditionsV4");
    }
    if syntax(&keys.conditions_v6) {
        found.push("conditionsV6");
    }
    if keys.external_set_mark_chain.is_some() {
        found.push("externalSetMarkChain");
    }
    found
}

/// The container's addresses: the first of each family whose interface is not told, or is the one
/// of the attachment, inside the container.
pub(crate) fn container_networks(result: &AddResult, ifname: &str) -> Vec<IpNet> {
    let ours = |interface: Option<usize>| match interface.and_then(|index| result.interfaces.get(index)) {
        None => true,
        Some(interface) => interface.name == ifname && !interface.sandbox.is_empty(),
    };
    let mut networks = Vec::new();
    for family in AddressFamily::BOTH {
        let first =
            result.ips.iter().find(|ip| ours(ip.interface) && AddressFamily::of(ip.address.addr()) == family);
        networks.extend(first.map(|ip| ip.address));
    }
    networks
}

/// The mappings with the container's addresses put in. A mapping of a family that the container
/// does not have comes to nothing, as in the reference.
pub(crate) fn published(mappings: &[PortMapping], networks: &[IpNet]) -> Vec<PublishedPort> {
    let mut ports = Vec::new();
    for mapping in mappings {
        for network in networks {
            let container = network.addr();
            let host = mapping.host.unwrap_or(HostAddress::Any(AddressFamily::of(container)));
            if host.family() == AddressFamily::of(container) {
                let host = host_ports(mapping, host);
                ports.push(PublishedPort { host, container, container_port: mapping.container_port });
            }
        }
    }
    ports
}

/// Where the mappings may be found, the container's families unknown.
pub(crate) fn possible_host_ports(mappings: &[PortMapping]) -> Vec<HostPorts> {
    let of = |mapping: &PortMapping| match mapping.host {
        Some(host) => vec![host_ports(mapping, host)],
        None => AddressFamily::BOTH.map(|family| host_ports(mapping, HostAddress::Any(family))).to_vec(),
    };
    mappings.iter().flat_map(of).collect()
}

fn host_ports(mapping: &PortMapping, address: HostAddress) -> HostPorts {
    HostPorts { protocol: mapping.protocol, address, first: mapping.host_port, last: mapping.host_port }
}

/// Whether the node's own loopback leads to one of these ports.
pub(crate) fn loopback_families(ports: &[PublishedPort]) -> Vec<AddressFamily> {
    let reaches = |host: HostAddress| match host {
        HostAddress::Any(_) => true,
        HostAddress::One(IpAddr::V4(address)) => address.is_loopback(),
        HostAddress::One(IpAddr::V6(address)) => address == Ipv6Addr::LOCALHOST,
    };
    let has = |family: &AddressFamily| {
        ports.iter().any(|port| port.host.address.family() == *family && reaches(port.host.address))
    };
    AddressFamily::BOTH.into_iter().filter(has).collect()
}

#[cfg(test)]
mod tests {
    use cni_spec::{Interface, IpConfig};

    use super::*;

    fn read(keys: &str) -> Result<Config, String> {
        let text = format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"portmap",{keys}}}"#);
        Config::read(&NetConf::parse(text).unwrap()).map_err(|e| e.to_string())
    }

    fn mapping(keys: &str) -> Result<Vec<PortMapping>, String> {
        read(&format!(r#""runtimeConfig":{{"portMappings":[{{{keys}}}]}}"#)).map(|config| config.mappings)
    }

    #[test]
    fn defaults() {
        let config = read(r#""runtimeConfig":{}"#).unwrap();
        assert_eq!((config.snat, config.mark_bit), (Snat::Needed, 13));
        assert!(config.mappings.is_empty() && config.conditions_v4.is_empty());
        assert_eq!(read(r#""snat":false,"masqAll":true"#).unwrap().snat, Snat::Never);
        assert_eq!(read(r#""masqAll":true"#).unwrap().snat, Snat::Always);
    }

    #[test]
    fn capitalised_keys_and_empty_host_ip() {
        let got = mapping(r#""HostPort":8080,"ContainerPort":80,"Protocol":"TCP","HostIP":"""#).unwrap();
        assert_eq!(
            got,
            [PortMapping { protocol: Protocol::Tcp, host_port: 8080, container_port: 80, host: None }]
        );
    }

    #[test]
    fn host_addresses() {
        let host = |ip: &str| {
            mapping(&format!(r#""hostPort":1,"containerPort":1,"protocol":"udp","hostIP":"{ip}""#))
                .map(|m| m[0].host)
        };
        assert_eq!(host("0.0.0.0"), Ok(Some(HostAddress::Any(AddressFamily::V4))));
        assert_eq!(host("::"), Ok(Some(HostAddress::Any(AddressFamily::V6))));
        assert_eq!(host("::ffff:192.0.2.1"), Ok(Some(HostAddress::One([192, 0, 2, 1].into()))));
        assert_eq!(host("[::1]"), Ok(Some(HostAddress::One(Ipv6Addr::LOCALHOST.into()))));
        assert_eq!(
            host("fe80::1%eth0").unwrap_err(),
            "portMappings: invalid hostIP \"fe80::1%eth0\": an address with a zone cannot be published"
        );
        assert_eq!(host("here").unwrap_err(), "portMappings: invalid hostIP \"here\"");
    }

    #[test]
    fn wrong_values_are_named() {
        let cases = [
            (r#""backend":"ebtables""#, "unrecognized backend \"ebtables\""),
            (r#""markMasqBit":32"#, "MasqMarkBit must be between 0 and 31"),
            (r#""markMasqBit":-1"#, "MasqMarkBit must be between 0 and 31"),
            (
                r#""markMasqBit":5,"externalSetMarkChain":"X""#,
                "Cannot specify externalSetMarkChain and markMasqBit",
            ),
            (
                r#""backend":"nftables","conditionsV4":["!","-d","10.0.0.0/8"]"#,
                "nftables backend was requested but configuration contains iptables-specific options [conditionsV4]",
            ),
            (
                r#""backend":"nftables","externalSetMarkChain":"X""#,
                "nftables backend was requested but configuration contains iptables-specific options [externalSetMarkChain]",
            ),
        ];
        for (keys, error) in cases {
            assert_eq!(read(keys).unwrap_err(), error);
        }
        assert_eq!(mapping(r#""hostPort":0,"containerPort":1"#).unwrap_err(), "Invalid host port number: 0");
        assert_eq!(
            mapping(r#""hostPort":1,"containerPort":0"#).unwrap_err(),
            "Invalid container port number: 0"
        );
        assert_eq!(
            mapping(r#""hostPort":65536,"containerPort":1"#).unwrap_err(),
            "Invalid host port number: 65536"
        );
        let icmp = mapping(r#""hostPort":1,"containerPort":1,"protocol":"icmp""#).unwrap_err();
        assert_eq!(icmp, "portMappings: protocol \"icmp\" is not tcp, udp or sctp");
    }

    #[test]
    fn a_removal_takes_what_it_understands() {
        let text = r#"{"cniVersion":"1.1.0","name":"n","type":"portmap","markMasqBit":99,"backend":"iptables",
            "runtimeConfig":{"portMappings":[{"hostPort":0},{"hostPort":5,"containerPort":6}]}}"#;
        assert_eq!(Config::mappings_for_removal(&NetConf::parse(text).unwrap()).len(), 1);
    }

    #[test]
    fn the_containers_addresses() {
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            ..Interface::default()
        };
        let ip = |interface, address: &str| IpConfig {
            interface,
            address: address.parse().unwrap(),
            gateway: None,
        };
        let result = AddResult {
            interfaces: vec![interface("cni0", ""), interface("eth0", "/ns"), interface("eth1", "/ns")],
            ips: vec![
                ip(Some(0), "10.0.0.1/24"),
                ip(Some(2), "10.0.0.2/24"),
                ip(Some(1), "10.0.0.3/24"),
                ip(Some(9), "10.0.0.4/24"),
                ip(None, "fd00::5/64"),
            ],
            ..AddResult::default()
        };
        let text: Vec<String> = container_networks(&result, "eth0").iter().map(ToString::to_string).collect();
        assert_eq!(text, ["10.0.0.3/24", "fd00::5/64"]);
    }

    #[test]
    fn families_meet() {
        let networks: Vec<IpNet> = vec!["10.0.0.3/24".parse().unwrap(), "fd00::5/64".parse().unwrap()];
        let mapping =
            PortMapping { protocol: Protocol::Tcp, host_port: 8080, container_port: 80, host: None };
        let both: Vec<String> = published(&[mapping], &networks).iter().map(ToString::to_string).collect();
        assert_eq!(both, ["tcp/0.0.0.0:8080 -> 10.0.0.3:80", "tcp/[::]:8080 -> [fd00::5]:80"]);
        let v6 = PortMapping { host: Some(HostAddress::Any(AddressFamily::V6)), ..mapping };
        assert_eq!(published(&[v6], &networks[..1]), []);
        assert_eq!(possible_host_ports(&[mapping]).len(), 2);
    }
}
