// SPDX-License-Identifier: GPL-3.0-or-later

//! Pods and their attachments as tables and JSON.

use std::io;
use std::net::IpAddr;

use cni_runtime::pods::{Attached, Planned, Pod, parse_args};
use cni_runtime::{Cached, Container};
use cni_spec::AddResult;
use serde_json::{Value, json};

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

fn attached_document(pod: &Pod, all: &[Attached]) -> Value {
    let attachment = |one: &Attached| {
        // A result that the version cannot express was refused by the ADD.
        let result = one.result.to_object(one.version).unwrap_or_default();
        json!({ "network": one.network, "interface": one.ifname, "result": result })
    };
    let Pod { namespace, name, uid, sandbox, netns, .. } = pod;
    let (uid, netns) = (known(uid), known(netns));
    json!({
        "pod": { "namespace": namespace, "name": name, "uid": uid, "sandbox": sandbox, "netns": netns },
        "attachments": all.iter().map(attachment).collect::<Vec<_>>(),
    })
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

fn addresses_document(pod: &Pod, addresses: &[IpAddr]) -> Value {
    let Pod { namespace, name, sandbox, .. } = pod;
    json!({ "pod": { "namespace": namespace, "name": name, "sandbox": sandbox }, "addresses": addresses })
}

/// An attachment of `pod list`. A text is empty where it is unknown.
struct AttachmentRow {
    /// `NAMESPACE/NAME`.
    pod: String,
    sandbox: String,
    network: String,
    interface: String,
    addresses: Vec<String>,
    netns: String,
    state: &'static str,
}

impl From<&Cached> for AttachmentRow {
    fn from(cached: &Cached) -> Self {
        Self {
            pod: pod_of(&parse_args(&cached.args)),
            sandbox: cached.attachment.container_id().to_owned(),
            network: cached.attachment.network().to_owned(),
            interface: cached.attachment.ifname().to_owned(),
            addresses: addresses(&cached.result),
            netns: cached.netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
            state: "attached",
        }
    }
}

impl From<&Planned> for AttachmentRow {
    fn from(Planned { network, container }: &Planned) -> Self {
        let Container { id, ifname, netns, args, .. } = container;
        Self {
            pod: pod_of(args),
            sandbox: id.clone(),
            network: network.name().to_owned(),
            interface: ifname.clone(),
            addresses: Vec::new(),
            netns: netns.clone(),
            state: "pending",
        }
    }
}

/// Prints cached attachments, and those of set-ups that run or were killed.
pub(super) fn listed(cached: &[Cached], pending: &[Planned], is_json: bool) -> io::Result<()> {
    let all = cached.iter().map(AttachmentRow::from).chain(pending.iter().map(AttachmentRow::from));
    if is_json {
        return print(listed_document(all));
    }
    let rows = all.map(|one| {
        let AttachmentRow { pod, sandbox, network, interface, addresses, netns, state } = one;
        [pod, sandbox, network, interface, addresses.join(","), netns, state.to_owned()]
    });
    table(["POD", "SANDBOX", "NETWORK", "INTERFACE", "ADDRESSES", "NETNS", "STATE"], rows)
}

fn listed_document(all: impl Iterator<Item = AttachmentRow>) -> Value {
    let attachments = all.map(|one| {
        json!({
            "pod": known(&one.pod),
            "sandbox": one.sandbox,
            "network": one.network,
            "interface": one.interface,
            "addresses": one.addresses,
            "netns": known(&one.netns),
            "state": one.state,
        })
    });
    json!({ "attachments": attachments.collect::<Vec<_>>() })
}

/// `NAMESPACE/NAME` of a pod, from `CNI_ARGS`; empty for an attachment of another runtime.
fn pod_of(args: &[(String, String)]) -> String {
    let arg = |wanted: &str| args.iter().find(|(key, _)| key == wanted).map_or("", |(_, value)| value);
    match (arg("K8S_POD_NAMESPACE"), arg("K8S_POD_NAME")) {
        (namespace, "") => namespace.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
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
fn known(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
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
        assert_eq!(documents[0]["attachments"][0]["result"]["cniVersion"], "1.0.0");
        assert_documented("slipwayd pod up, slipwayd pod status", &documents);
        let addresses = ["10.22.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let document = addresses_document(&pod(), &addresses);
        assert_eq!(document["addresses"], json!(["10.22.0.2", "fd00::2"]));
        assert_documented("slipwayd pod up, slipwayd pod status with a network plugin", &[document]);
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
        let cached = [ours, of("", None)];
        let all = cached.iter().map(AttachmentRow::from).chain([AttachmentRow::from(&pending)]);
        let document = listed_document(all);
        assert_eq!(document["attachments"][2]["state"], "pending");
        assert_eq!(document["attachments"][0]["pod"], "shop/web-0");
        assert_eq!(document["attachments"][0]["addresses"], json!(["10.22.0.2/24", "fd00::2/64"]));
        assert_documented("slipwayd pod list", &[document]);
    }
}
