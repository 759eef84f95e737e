// SPDX-License-Identifier: GPL-2.0-or-later

//! portmap's keys, decoded and checked.

use std::net::{IpAddr, Ipv6Addr};

use cni_dataplane::iptables::{self, ChainName};
use cni_dataplane::{
    AddressFamily, BackendName, Dataplane, HostAddress, HostPorts, Loopback, Protocol, PublishedPort, Snat,
};
use cni_spec::{AddResult, CniError, NetConf};
use ipnet::IpNet;
use serde::Deserialize;

use crate::node_defaults::NodeDefaults;

/// The bit of the packet mark if the configuration names none, the same as in the reference plugin.
const DEFAULT_MARK_BIT: u8 = 13;

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    backend: Option<String>,
    snat: Option<bool>,
    masq_all: bool,
    exclude_loopback: bool,
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
    /// The backend that the configuration names, or that alone supports its keys.
    pub(crate) backend: Option<BackendName>,
    pub(crate) set_mark_chain: Option<ChainName>,
    pub(crate) snat: Snat,
    pub(crate) loopback: Loopback,
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
    /// None publishes the port for every family that the container has.
    pub(crate) host: Option<HostAddress>,
}

impl Config {
    /// Reads and checks all keys.
    ///
    /// # Errors
    /// Code 7, naming key and value.
    pub(crate) fn read(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let backend = backend(&keys)?;
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
        let set_mark_chain = keys.external_set_mark_chain.as_deref().map(chain).transpose()?;
        let conditions_v4 = keys.conditions_v4.unwrap_or_default();
        let conditions_v6 = keys.conditions_v6.unwrap_or_default();
        if backend == Some(BackendName::Iptables) {
            iptables::check_conditions("conditionsV4", &conditions_v4)?;
            iptables::check_conditions("conditionsV6", &conditions_v6)?;
        }
        Ok(Self {
            backend,
            set_mark_chain,
            snat,
            loopback: if keys.exclude_loopback { Loopback::Spared } else { Loopback::Served },
            mark_bit,
            conditions_v4,
            conditions_v6,
            mappings: mappings.collect::<Result<_, _>>()?,
        })
    }

    /// The dataplane with the backend of this configuration, or the node's default.
    ///
    /// # Errors
    /// Node settings that cannot be read (code 5) or used (code 7).
    pub(crate) fn dataplane(&self) -> Result<Dataplane, CniError> {
        let defaults = NodeDefaults::read()?;
        Ok(defaults.dataplane(self.backend.or(defaults.backend)))
    }

    /// The valid mappings of a configuration. A DEL must not fail because of invalid ones, or of other keys.
    pub(crate) fn mappings_for_removal(config: &NetConf) -> Vec<PortMapping> {
        match config.decode::<Keys>() {
            Ok(keys) => keys.runtime_config.port_mappings.iter().filter_map(|m| m.check().ok()).collect(),
            Err(error) => {
                log::warn!("{error}; ports are removed by their owner only");
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
            // The capability's specification has no default; Kubernetes and Docker use TCP.
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

/// Parses `hostIP`. An empty text means every family, the unspecified address of a family every
/// address of it. An IPv4-mapped IPv6 address (RFC 4291, section 2.5.5.2) is that IPv4 address.
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

/// The backend that the configuration names, or that alone supports its keys.
fn backend(keys: &Keys) -> Result<Option<BackendName>, CniError> {
    if keys.mark_masq_bit.is_some() && keys.external_set_mark_chain.is_some() {
        return Err(CniError::config("Cannot specify externalSetMarkChain and markMasqBit"));
    }
    let named = match keys.backend.as_deref() {
        None | Some("") => None,
        Some(name) => {
            let unknown = || CniError::config(format!("unrecognized backend {name:?}"));
            Some(BackendName::from_name(name).ok_or_else(unknown)?)
        }
    };
    let [of_nftables, of_iptables] = [nftables_options(keys), iptables_options(keys)];
    let wrong = |backend: BackendName, others: BackendName, options: &[&str]| {
        let (backend, others, options) = (backend.as_str(), others.as_str(), options.join(" "));
        Err(CniError::config(format!(
            "{backend} backend was requested but configuration contains {others}-specific options [{options}]"
        )))
    };
    match named.or_else(|| (!of_iptables.is_empty()).then_some(BackendName::Iptables)) {
        Some(backend @ (BackendName::Nftables | BackendName::Ebpf)) if !of_iptables.is_empty() => {
            wrong(backend, BackendName::Iptables, &of_iptables)
        }
        Some(BackendName::Iptables) if !of_nftables.is_empty() => {
            wrong(BackendName::Iptables, BackendName::Nftables, &of_nftables)
        }
        None if !of_nftables.is_empty() => Ok(Some(BackendName::Nftables)),
        chosen => Ok(chosen),
    }
}

/// True for conditions in the syntax of iptables, which begin with an option or a negation.
fn is_iptables_syntax(conditions: &[String]) -> bool {
    conditions.first().is_some_and(|word| word.starts_with(['-', '!']))
}

/// The keys whose values only the iptables backend supports, in the reference's order.
fn iptables_options(keys: &Keys) -> Vec<&'static str> {
    let external = keys.external_set_mark_chain.as_ref().map(|_| "externalSetMarkChain");
    external.into_iter().chain(conditions_that(keys, is_iptables_syntax)).collect()
}

/// The keys whose values only the nftables backend supports.
fn nftables_options(keys: &Keys) -> Vec<&'static str> {
    conditions_that(keys, |words| !words.is_empty() && !is_iptables_syntax(words))
}

fn conditions_that(keys: &Keys, match_syntax: impl Fn(&[String]) -> bool) -> Vec<&'static str> {
    [("conditionsV4", &keys.conditions_v4), ("conditionsV6", &keys.conditions_v6)]
        .into_iter()
        .filter(|(_, words)| words.as_deref().is_some_and(&match_syntax))
        .map(|(key, _)| key)
        .collect()
}

fn chain(name: &str) -> Result<ChainName, CniError> {
    ChainName::new(name).map_err(|why| CniError::config(format!("externalSetMarkChain {name:?}: {why}")))
}

/// The container's addresses: the first of each family that the result gives no interface, or the
/// attachment's interface in the container.
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

/// The mappings with the container's addresses. Like the reference, this leaves out mappings for a family that the
/// container lacks.
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

/// The host ports that the mappings may have, for a container whose address families are unknown.
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

/// The families in which the node's loopback leads to one of these ports.
pub(crate) fn loopback_families(ports: &[PublishedPort], loopback: Loopback) -> Vec<AddressFamily> {
    let reaches = |host: HostAddress| match host {
        HostAddress::Any(_) => loopback == Loopback::Served,
        HostAddress::One(IpAddr::V4(address)) => address.is_loopback(),
        HostAddress::One(IpAddr::V6(address)) => address == Ipv6Addr::LOCALHOST,
    };
    let has = |family: &AddressFamily| {
        ports.iter().any(|port| port.host.address.family() == *family && reaches(port.host.address))
    };
    AddressFamily::BOTH.into_iter().filter(has).collect()
}

/// The keys that are decoded here.
#[cfg(test)]
pub(super) fn decodes() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<Keys>()
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
        assert_eq!(config.loopback, Loopback::Served);
        assert_eq!(read(r#""excludeLoopback":true"#).unwrap().loopback, Loopback::Spared);
        assert!(read(r#""excludeLoopback":"yes""#).unwrap_err().contains("excludeLoopback"));
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
                r#""conditionsV4":["-d","192.0.2.1"],"conditionsV6":["ip6 saddr ::1"]"#,
                "iptables backend was requested but configuration contains nftables-specific options [conditionsV6]",
            ),
            (
                r#""backend":"nftables","externalSetMarkChain":"X","conditionsV6":["-d","::1"]"#,
                "nftables backend was requested but configuration contains iptables-specific options [externalSetMarkChain conditionsV6]",
            ),
            (r#""conditionsV4":["-d","192.0.2.1","-j","DROP"]"#, "conditionsV4: \"-j\" is not a condition"),
            (r#""externalSetMarkChain":"-j""#, "externalSetMarkChain \"-j\": it begins like an option"),
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
    fn the_backend_is_named_or_follows_from_the_keys() {
        let backend = |keys: &str| read(keys).unwrap().backend.map(BackendName::as_str);
        assert_eq!(backend(r#""x":1"#), None);
        assert_eq!(backend(r#""backend":"""#), None);
        assert_eq!(backend(r#""backend":"iptables""#), Some("iptables"));
        assert_eq!(backend(r#""backend":"nftables""#), Some("nftables"));
        assert_eq!(backend(r#""externalSetMarkChain":"KUBE-MARK-MASQ""#), Some("iptables"));
        assert_eq!(backend(r#""conditionsV6":["!","-d","::1"]"#), Some("iptables"));
        assert_eq!(backend(r#""conditionsV4":["ip saddr 192.0.2.1"]"#), Some("nftables"));
        assert_eq!(backend(r#""conditionsV4":[],"conditionsV6":[]"#), None);
    }

    #[test]
    fn a_removal_takes_the_valid_mappings() {
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
    fn a_mapping_is_published_in_the_containers_families() {
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
