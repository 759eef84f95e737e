// SPDX-License-Identifier: MIT OR Apache-2.0

//! A pod, and what plugins learn about it: `CNI_ARGS` and capability arguments.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_kernel::mac::Mac;
use cni_spec::{Bandwidth, IpRange, PortMapping, text};
use serde_json::{Map, Value, json};

use crate::container::Container;
use crate::quantity::{QuantityError, quantity};
use crate::rates::KUBELET_BURST;

/// The annotation with the rate of traffic into the pod, in bits per second.
pub const INGRESS_ANNOTATION: &str = "kubernetes.io/ingress-bandwidth";
/// The annotation with the rate of traffic out of the pod, in bits per second.
pub const EGRESS_ANNOTATION: &str = "kubernetes.io/egress-bandwidth";
/// The capability by which plugins get a pod's annotations.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// The limits that Kubernetes sets for these annotations, in bits per second.
const RATES: std::ops::RangeInclusive<i64> = 1_000..=1_000_000_000_000_000;

/// A pod: the container that holds its network namespace, and the networks to which it will be attached.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pod {
    /// Namespace in Kubernetes.
    pub namespace: String,
    /// Name in that namespace.
    pub name: String,
    /// UID in Kubernetes; may be empty.
    pub uid: String,
    /// ID of the sandbox, `CNI_CONTAINERID`.
    pub sandbox: String,
    /// Path of the network namespace, or empty if the namespace is gone.
    pub netns: String,
    /// The networks. An empty list means [`Attach::default`], except that [`Manager::tear_down`] and
    /// [`Manager::status`] then use all cached attachments of the sandbox.
    ///
    /// [`Manager::tear_down`]: super::Manager::tear_down
    /// [`Manager::status`]: super::Manager::status
    pub networks: Vec<Attach>,
}

/// A network of a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attach {
    /// The network's name, or none for the default network.
    pub network: Option<String>,
    /// The interface's name, or none for the first free one.
    pub ifname: Option<String>,
    /// The parameters for the plugins of this network.
    pub parameters: Parameters,
}

/// Parameters of an attachment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parameters {
    /// Requested address, `IP` in `CNI_ARGS`.
    pub ip: Option<IpAddr>,
    /// Requested Ethernet address, `MAC` in `CNI_ARGS`.
    pub mac: Option<Mac>,
    /// Ports to publish on the host.
    pub port_mappings: Vec<PortMapping>,
    /// Limits of the traffic. If none, those of the annotations apply.
    pub bandwidth: Option<Bandwidth>,
    /// Ranges from which to allocate, one set per address.
    pub ip_ranges: Vec<Vec<IpRange>>,
    /// Further names of the pod.
    pub aliases: Vec<String>,
    /// The pod's cgroup below its mount point. Empty if unknown.
    pub cgroup_path: String,
    /// The pod's annotations.
    pub annotations: BTreeMap<String, String>,
}

/// An invalid parameter of a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A value contains characters that would change other pairs of `CNI_ARGS`.
    #[error("{key} cannot be passed in CNI_ARGS: {} contains ; or =", text::quote(value))]
    Arg {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// The value of a bandwidth annotation is not a quantity.
    #[error("annotation {annotation}: {error}")]
    Quantity {
        /// The annotation.
        annotation: &'static str,
        /// The reason.
        error: QuantityError,
    },
    /// A bandwidth annotation is below 1 kbit/s.
    #[error("annotation {annotation}: resource is unreasonably small (< 1kbit)")]
    TooSlow {
        /// The annotation.
        annotation: &'static str,
    },
    /// A bandwidth annotation is above 1 Pbit/s.
    #[error("annotation {annotation}: resource is unreasonably large (> 1Pbit)")]
    TooFast {
        /// The annotation.
        annotation: &'static str,
    },
}

impl Pod {
    /// The pod in messages: `namespace_name`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}_{}", self.namespace, self.name)
    }

    /// The container for an attachment. `extra` are additional pairs for `CNI_ARGS`, see [`parse_args`].
    ///
    /// # Errors
    /// [`RequestError`] for the first invalid parameter.
    pub fn container(
        &self,
        parameters: &Parameters,
        ifname: &str,
        extra: &[(String, String)],
    ) -> Result<Container, RequestError> {
        let own = [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", &self.namespace),
            ("K8S_POD_NAME", &self.name),
            ("K8S_POD_INFRA_CONTAINER_ID", &self.sandbox),
            ("K8S_POD_UID", &self.uid),
        ];
        let mut container = Container::new(&self.sandbox, ifname).netns(&self.netns);
        for (key, value) in own {
            if value.contains([';', '=']) {
                return Err(RequestError::Arg { key, value: value.to_owned() });
            }
            container = container.arg(key, value);
        }
        container.args.extend(extra.iter().cloned());
        let Parameters { ip, mac, .. } = parameters;
        container.args.extend(ip.map(|ip| ("IP".to_owned(), ip.to_string())));
        container.args.extend(mac.map(|mac| ("MAC".to_owned(), mac.to_string())));
        container.capabilities = parameters.capabilities()?;
        Ok(container)
    }
}

impl Attach {
    /// An attachment to a network, without parameters.
    #[must_use]
    pub fn to(network: impl Into<String>) -> Self {
        Self { network: Some(network.into()), ..Self::default() }
    }
}

impl Parameters {
    /// The arguments of each capability. Empty parameters are left out.
    ///
    /// # Errors
    /// [`RequestError`] if a bandwidth annotation is invalid.
    pub fn capabilities(&self) -> Result<Map<String, Value>, RequestError> {
        let Self { port_mappings, ip_ranges, aliases, cgroup_path, annotations, .. } = self;
        let mut all = Map::new();
        let mut set = |name: &str, value: Value| drop(all.insert(name.to_owned(), value));
        if !port_mappings.is_empty() {
            set("portMappings", port_mappings.iter().map(port_mapping).collect());
        }
        if let Some(bandwidth) = self.effective_bandwidth()? {
            let Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst } = bandwidth;
            let value = json!({
                "ingressRate": ingress_rate, "ingressBurst": ingress_burst,
                "egressRate": egress_rate, "egressBurst": egress_burst,
            });
            set("bandwidth", value);
        }
        if !ip_ranges.is_empty() {
            set(
                "ipRanges",
                ip_ranges.iter().map(|set| set.iter().map(ip_range).collect::<Value>()).collect(),
            );
        }
        if !aliases.is_empty() {
            set("aliases", json!(aliases));
        }
        if !cgroup_path.is_empty() {
            set("cgroupPath", json!(cgroup_path));
        }
        if !annotations.is_empty() {
            set(ANNOTATIONS, json!(annotations));
        }
        Ok(all)
    }

    /// The limits of the traffic: those in `bandwidth`, or else those of the annotations, with kubelet's burst.
    ///
    /// # Errors
    /// [`RequestError`] if an annotation is not a quantity from 1k to 1P.
    pub fn effective_bandwidth(&self) -> Result<Option<Bandwidth>, RequestError> {
        if self.bandwidth.is_some() {
            return Ok(self.bandwidth);
        }
        let (ingress, egress) = (self.rate(INGRESS_ANNOTATION)?, self.rate(EGRESS_ANNOTATION)?);
        if ingress.is_none() && egress.is_none() {
            return Ok(None);
        }
        let burst = |rate: Option<u64>| if rate.is_some() { KUBELET_BURST } else { 0 };
        Ok(Some(Bandwidth {
            ingress_rate: ingress.unwrap_or(0),
            ingress_burst: burst(ingress),
            egress_rate: egress.unwrap_or(0),
            egress_burst: burst(egress),
        }))
    }

    fn rate(&self, annotation: &'static str) -> Result<Option<u64>, RequestError> {
        let Some(text) = self.annotations.get(annotation) else { return Ok(None) };
        let rate = match quantity(text) {
            Err(QuantityError::TooLarge(_)) => return Err(RequestError::TooFast { annotation }),
            other => other.map_err(|error| RequestError::Quantity { annotation, error })?,
        };
        match u64::try_from(rate) {
            Ok(rate_of) if RATES.contains(&rate) => Ok(Some(rate_of)),
            Ok(_) if rate > *RATES.end() => Err(RequestError::TooFast { annotation }),
            _ => Err(RequestError::TooSlow { annotation }),
        }
    }
}

fn port_mapping(mapping: &PortMapping) -> Value {
    let PortMapping { host_port, container_port, protocol, host_ip } = mapping;
    let mut value = json!({"hostPort": host_port, "containerPort": container_port, "protocol": protocol});
    if !host_ip.is_empty() {
        value["hostIP"] = json!(host_ip);
    }
    value
}

fn ip_range(range: &IpRange) -> Value {
    let mut value = json!({"subnet": range.subnet.to_string()});
    let ends = [("rangeStart", range.range_start), ("rangeEnd", range.range_end), ("gateway", range.gateway)];
    for (key, address) in ends {
        if let Some(address) = address {
            value[key] = json!(address.to_string());
        }
    }
    value
}

/// Parses the pairs of a `CNI_ARGS`, such as that in the caller's environment. Parts without `=` are left out.
#[must_use]
pub fn parse_args(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(';').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod() -> Pod {
        Pod {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "u1".to_owned(),
            sandbox: "s1".to_owned(),
            netns: "/run/netns/web".to_owned(),
            networks: Vec::new(),
        }
    }

    fn annotated(pairs: &[(&str, &str)]) -> Parameters {
        let annotations = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Parameters { annotations, ..Parameters::default() }
    }

    #[test]
    fn arguments_have_the_order_of_the_reference() {
        let parameters = Parameters {
            ip: Some("10.1.2.3".parse().unwrap()),
            mac: Some("02:00:00:00:00:01".parse().unwrap()),
            ..Parameters::default()
        };
        let extra = parse_args("A=b;broken;C=d=e;;IgnoreUnknown=0");
        let container = pod().container(&parameters, "eth3", &extra).unwrap();
        let pairs: Vec<String> = container.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            pairs.join(";"),
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=s1;K8S_POD_UID=u1;\
             A=b;C=d=e;IgnoreUnknown=0;IP=10.1.2.3;MAC=02:00:00:00:00:01"
        );
        assert_eq!((container.id.as_str(), container.ifname.as_str()), ("s1", "eth3"));
        assert!(container.capabilities.is_empty());
    }

    #[test]
    fn capability_arguments_have_the_keys_of_the_conventions() {
        let range = r#"{"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.9", "gateway": "10.1.0.1"}"#;
        let parameters = Parameters {
            port_mappings: vec![PortMapping {
                host_port: 8080,
                container_port: 80,
                protocol: "tcp".to_owned(),
                host_ip: "192.0.2.1".to_owned(),
            }],
            bandwidth: Some(Bandwidth { ingress_rate: 1, ingress_burst: 2, egress_rate: 3, egress_burst: 4 }),
            ip_ranges: vec![vec![serde_json::from_str(range).unwrap()]],
            aliases: vec!["www".to_owned()],
            cgroup_path: "/kubepods/x".to_owned(),
            ..annotated(&[("a", "b"), (INGRESS_ANNOTATION, "1M")])
        };
        let want = json!({
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}],
            "bandwidth": {"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4},
            "ipRanges": [[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.9", "gateway": "10.1.0.1"}]],
            "aliases": ["www"], "cgroupPath": "/kubepods/x",
            "io.kubernetes.cri.pod-annotations": {"a": "b", INGRESS_ANNOTATION: "1M"},
        });
        assert_eq!(Value::Object(parameters.capabilities().unwrap()), want);
    }

    #[test]
    fn bandwidth_comes_from_the_annotations_of_kubernetes() {
        let bandwidth = |pairs: &[(&str, &str)]| annotated(pairs).effective_bandwidth();
        assert_eq!(bandwidth(&[("a", "1M")]), Ok(None));
        let want =
            Bandwidth { ingress_rate: 10_000_000, ingress_burst: KUBELET_BURST, ..Bandwidth::default() };
        assert_eq!(bandwidth(&[(INGRESS_ANNOTATION, "10M")]), Ok(Some(want)));
        let both = bandwidth(&[(INGRESS_ANNOTATION, "1k"), (EGRESS_ANNOTATION, "1P")]).unwrap().unwrap();
        assert_eq!((both.ingress_rate, both.egress_rate), (1000, 1_000_000_000_000_000));
        let message = |text: &str| bandwidth(&[(EGRESS_ANNOTATION, text)]).unwrap_err().to_string();
        assert_eq!(
            message("999"),
            "annotation kubernetes.io/egress-bandwidth: resource is unreasonably small (< 1kbit)"
        );
        assert!(message("-1M").ends_with("unreasonably small (< 1kbit)"));
        assert!(message("2P").ends_with("unreasonably large (> 1Pbit)"));
        assert!(message("99E").ends_with("unreasonably large (> 1Pbit)"));
        assert!(message("fast").contains("\"fast\" is not a quantity"));
    }

    proptest! {
        /// Either the request is refused, or plugins can decode the arguments.
        #[test]
        fn plugins_can_decode_any_request(
            names in prop::array::uniform4("\\PC{0,12}|[a-z0-9-]{1,20}"),
            ip in prop::option::of(any::<std::net::Ipv6Addr>()),
            ports in prop::collection::vec((any::<u16>(), any::<u16>(), "\\PC{0,5}"), 0..4),
            rate in prop::option::of("[0-9]{1,8}[kMG]?|\\PC{0,6}"),
            aliases in prop::collection::vec("\\PC{0,8}", 0..3),
        ) {
            let [namespace, name, uid, sandbox] = names;
            let pod = Pod { namespace, name, uid, sandbox, ..pod() };
            let mut parameters = Parameters { ip: ip.map(IpAddr::V6), aliases: aliases.clone(), ..Parameters::default() };
            parameters.port_mappings = ports
                .iter()
                .map(|(host_port, container_port, protocol)| PortMapping {
                    host_port: *host_port,
                    container_port: *container_port,
                    protocol: protocol.clone(),
                    host_ip: String::new(),
                })
                .collect();
            parameters.annotations.extend(rate.map(|rate| (EGRESS_ANNOTATION.to_owned(), rate)));
            let Ok(container) = pod.container(&parameters, "eth0", &[]) else { return Ok(()) };
            let pairs: Vec<String> = container.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let known = ["IP", "K8S_POD_NAME", "K8S_POD_UID"];
            let args = cni_spec::Args::parse(&pairs.join(";"), &known).unwrap();
            prop_assert_eq!(args.get("K8S_POD_NAME"), Some(pod.name.as_str()));
            prop_assert_eq!(args.value::<std::net::Ipv6Addr>("IP").unwrap(), ip);
            let config = json!({"name": "n", "type": "t", "cniVersion": "1.0.0", "runtimeConfig": container.capabilities});
            let decoded = cni_spec::NetConf::parse(config.to_string()).unwrap().runtime_config().unwrap();
            prop_assert_eq!(decoded.port_mappings, parameters.port_mappings);
            prop_assert_eq!(decoded.aliases, aliases);
            prop_assert_eq!(decoded.bandwidth.is_some(), parameters.annotations.contains_key(EGRESS_ANNOTATION));
        }
    }
}
