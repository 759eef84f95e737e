// SPDX-License-Identifier: GPL-3.0-or-later

//! Pods and their attachments as tables and JSON.

use std::io;
use std::net::IpAddr;

use cni_runtime::pods::{Attached, Planned, Pod, parse_args};
use cni_runtime::{Cached, Container};
use cni_spec::AddResult;
use cni_state::documents::{
    self, AttachedPod, AttachmentState, Attachments, ListedAttachment, NodeReady, PodAddresses,
    PodAttachment, PodSandbox,
};

use crate::commands::output::{print, table};

/// Prints the attachments of a pod.
pub(super) fn attached(pod: &Pod, all: &[Attached], is_json: bool) -> io::Result<()> {
    if is_json {
        return print(attached_document(pod, all));
    }
    let rows = all.iter().map(|one| {
        let Attached { network, ifname, result, .. } = one;
        [network.clone(), ifname.clone(), addresses(result).join(","), mac(result, ifname)]
    });
    table(["NETWORK", "INTERFACE", "ADDRESSES", "MAC"], rows)
}

fn attached_document(pod: &Pod, all: &[Attached]) -> AttachedPod {
    let attachment = |one: &Attached| PodAttachment {
        network: one.network.clone(),
        interface: one.ifname.clone(),
        // The ADD has already refused results that the version cannot express.
        result: one.result.to_object(one.version).unwrap_or_default(),
    };
    let document = documents::Pod { sandbox: sandbox(pod), uid: known(&pod.uid), netns: known(&pod.netns) };
    AttachedPod { pod: document, attachments: all.iter().map(attachment).collect() }
}

fn sandbox(Pod { namespace, name, sandbox, .. }: &Pod) -> PodSandbox {
    PodSandbox { namespace: namespace.clone(), name: name.clone(), sandbox: sandbox.clone() }
}

/// Prints the addresses of a pod that a network plugin of kubelet has set up.
pub(super) fn addresses_of(pod: &Pod, addresses: &[IpAddr], is_json: bool) -> io::Result<()> {
    if is_json {
        return print(addresses_document(pod, addresses));
    }
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let Pod { namespace, name, sandbox, .. } = pod;
    let row = [format!("{namespace}/{name}"), sandbox.clone(), addresses.join(" ")];
    table(["POD", "SANDBOX", "ADDRESSES"], std::iter::once(row))
}

/// The part of the configuration that is ready for pods.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ready<'a> {
    /// The default network.
    Network(&'a str),
    /// A network plugin of kubelet.
    NetworkPlugin(&'a str),
}

/// Prints that the node can take a pod.
pub(super) fn ready(ready: Ready<'_>, is_json: bool) -> io::Result<()> {
    if is_json {
        return print(ready_document(ready));
    }
    let (heading, name) = match ready {
        Ready::Network(name) => ("NETWORK", name),
        Ready::NetworkPlugin(name) => ("NETWORK-PLUGIN", name),
    };
    table([heading, "STATE"], std::iter::once([name.to_owned(), "ready".to_owned()]))
}

fn ready_document(ready: Ready<'_>) -> NodeReady {
    let (network, network_plugin) = match ready {
        Ready::Network(name) => (Some(name.to_owned()), None),
        Ready::NetworkPlugin(name) => (None, Some(name.to_owned())),
    };
    NodeReady { network, network_plugin, ready: true }
}

fn addresses_document(pod: &Pod, addresses: &[IpAddr]) -> PodAddresses {
    PodAddresses { pod: sandbox(pod), addresses: addresses.to_vec() }
}

/// Prints cached attachments, and those of set-ups that run or were killed.
pub(super) fn listed(cached: &[Cached], pending: &[Planned], is_json: bool) -> io::Result<()> {
    let document = listed_document(cached, pending);
    if is_json {
        return print(document);
    }
    let rows = document.attachments.into_iter().map(|one| {
        let ListedAttachment { pod, sandbox, network, interface, addresses, netns, state } = one;
        let (pod, netns) = (pod.unwrap_or_default(), netns.unwrap_or_default());
        [pod, sandbox, network, interface, addresses.join(","), netns, state.as_str().to_owned()]
    });
    table(["POD", "SANDBOX", "NETWORK", "INTERFACE", "ADDRESSES", "NETNS", "STATE"], rows)
}

fn listed_document(cached: &[Cached], pending: &[Planned]) -> Attachments {
    Attachments {
        attachments: cached.iter().map(attached_row).chain(pending.iter().map(pending_row)).collect(),
    }
}

fn attached_row(cached: &Cached) -> ListedAttachment {
    ListedAttachment {
        pod: pod_of(&parse_args(&cached.args)),
        sandbox: cached.attachment.container_id().to_owned(),
        network: cached.attachment.network().to_owned(),
        interface: cached.attachment.ifname().to_owned(),
        addresses: addresses(&cached.result),
        netns: cached.netns.as_ref().and_then(|path| known(&path.display().to_string())),
        state: AttachmentState::Attached,
    }
}

fn pending_row(Planned { network, container }: &Planned) -> ListedAttachment {
    let Container { id, ifname, netns, args, .. } = container;
    ListedAttachment {
        pod: pod_of(args),
        sandbox: id.clone(),
        network: network.name().to_owned(),
        interface: ifname.clone(),
        addresses: Vec::new(),
        netns: known(netns),
        state: AttachmentState::Pending,
    }
}

/// `NAMESPACE/NAME` of a pod, from `CNI_ARGS`; none for an attachment of another runtime.
fn pod_of(args: &[(String, String)]) -> Option<String> {
    let arg = |wanted: &str| args.iter().find(|(key, _)| key == wanted).map_or("", |(_, value)| value);
    match (arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")) {
        (namespace, "") => known(namespace),
        (namespace, name) => Some(format!("{namespace}/{name}")),
    }
}

/// The addresses of a result, with the lengths of their prefixes.
fn addresses(result: &AddResult) -> Vec<String> {
    result.ips.iter().map(|ip| ip.address.to_string()).collect()
}

fn mac(result: &AddResult, ifname: &str) -> String {
    let own =
        result.interfaces.iter().find(|interface| interface.name == ifname && !interface.sandbox.is_empty());
    own.map(|interface| interface.mac.clone()).unwrap_or_default()
}

/// None for an empty text.
fn known(text: &str) -> Option<String> {
    Some(text).filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use cni_runtime::Network;
    use cni_spec::{Attachment, NetConfList, Version};
    use slipway_cli::checks::assert_documented;

    use super::*;

    fn result() -> AddResult {
        let output =
            br#"{"cniVersion": "1.0.0", "ips": [{"address": "10.22.0.2/24"}, {"address": "fd00::2/64"}]}"#;
        AddResult::from_output(Version::V1_0_0, output).unwrap()
    }

    fn pod() -> Pod {
        let [namespace, name, sandbox] = ["shop", "web-0", "8f3a"].map(str::to_owned);
        Pod { namespace, name, sandbox, ..Pod::default() }
    }

    #[test]
    fn pods_are_as_documented() {
        let attached = Attached {
            network: "pods".to_owned(),
            ifname: "eth0".to_owned(),
            version: Version::V1_0_0,
            result: result(),
        };
        let whole = Pod { uid: "5d1e".to_owned(), netns: "/run/netns/web".to_owned(), ..pod() };
        let documents = [attached_document(&whole, &[attached]), attached_document(&pod(), &[])];
        assert_eq!(documents[0].attachments[0].result["cniVersion"], "1.0.0");
        assert_documented("slipwayd pod up, slipwayd pod status", &documents);
        let addresses = ["10.22.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let document = addresses_document(&pod(), &addresses);
        assert_eq!(document.addresses, addresses);
        assert_documented("slipwayd pod up, slipwayd pod status with a network plugin", &[document]);
    }

    #[test]
    fn a_ready_node_is_as_documented() {
        let documents = [Ready::Network("pods"), Ready::NetworkPlugin("kubenet")].map(ready_document);
        assert_documented("slipwayd pod status without a pod", &documents);
    }

    #[test]
    fn attachments_are_as_documented() {
        let config = br#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;
        let of = |args: &str, netns: Option<&str>| Cached {
            attachment: Attachment::new("pods", "8f3a", "eth0").unwrap(),
            netns: netns.map(Into::into),
            args: args.to_owned(),
            capabilities: serde_json::Map::new(),
            list: NetConfList::parse(config).unwrap(),
            config: config.to_vec(),
            result: result(),
            written: None,
        };
        let ours = of("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0", Some("/run/netns/web"));
        let network = Network::from_bytes(config.as_slice()).unwrap();
        let pending = Planned { network, container: Container::new("8f3b", "eth0") };
        let document = listed_document(&[ours, of("", None)], &[pending]);
        let [first, _, last] = document.attachments.as_slice() else { panic!("{document:?}") };
        assert_eq!(last.state, AttachmentState::Pending);
        assert_eq!(first.pod.as_deref(), Some("shop/web-0"));
        assert_eq!(first.addresses, ["10.22.0.2/24", "fd00::2/64"]);
        assert_documented("slipwayd pod list", &[document]);
    }
}
