// SPDX-License-Identifier: MIT OR Apache-2.0

//! Interprets a pod's request: its networks, the names of its interfaces, and attachments that already exist.

use std::path::PathBuf;

use cni_spec::Attachment;

use super::directory::Networks;
use super::error::PodError;
use super::journal::Planned;
use super::names::{Wanted, interface_names};
use super::request::{Attach, Pod};
use crate::cache::Cached;
use crate::container::Container;
use crate::error::NetworkError;
use crate::network::Network;

/// The name in messages for the default network while there is none.
const DEFAULT: &str = "default";

/// The networks of a pod, or the default network if the pod names none.
pub(super) fn attachments_of(pod: &Pod) -> Vec<Attach> {
    if pod.networks.is_empty() { vec![Attach::default()] } else { pod.networks.clone() }
}

pub(super) fn lookup<'a>(networks: &'a Networks, attach: &Attach) -> Option<&'a Network> {
    match &attach.network {
        Some(name) => networks.get(name),
        None => networks.default_network(),
    }
}

pub(super) fn names(attachments: &[Attach], networks: &Networks) -> Result<Vec<String>, PodError> {
    let default = networks.default_network().map_or(DEFAULT, Network::name);
    let wanted: Vec<_> = attachments
        .iter()
        .map(|attach| Wanted {
            network: attach.network.as_deref().unwrap_or(default),
            ifname: attach.ifname.as_deref(),
        })
        .collect();
    Ok(interface_names(&wanted)?)
}

/// The attachments that a pod requests. All their networks must exist.
pub(super) fn requested(pod: &Pod, networks: &Networks) -> Result<Vec<Attachment>, PodError> {
    let attachments = attachments_of(pod);
    let ifnames = names(&attachments, networks)?;
    let mut all = Vec::new();
    for (attach, ifname) in attachments.iter().zip(ifnames) {
        if let Some(network) = lookup(networks, attach) {
            let container = Container::new(&pod.sandbox, ifname);
            all.push(network.attachment(&container).map_err(NetworkError::from)?);
        }
    }
    Ok(all)
}

/// The attachments of a sandbox to these networks that files of the cache are about by their names,
/// `NETWORK-SANDBOX-IFNAME`.
pub(super) fn named<'a>(
    files: &[PathBuf],
    networks: impl Iterator<Item = &'a String>,
    sandbox: &str,
) -> Vec<Attachment> {
    let attachment = |file: &PathBuf, network: &str| {
        let ifname = file.file_name()?.to_str()?.strip_prefix(&format!("{network}-{sandbox}-"))?;
        Attachment::new(network, sandbox, ifname).ok()
    };
    networks.flat_map(|network| files.iter().filter_map(move |file| attachment(file, network))).collect()
}

/// True if this known attachment is the one that the pod requests: it has the same network and, if the request names
/// an interface, the same interface. `ifname` is the interface that a set-up would use.
pub(super) fn is_requested(known: &Planned, attach: &Attach, ifname: &str) -> bool {
    let has_ifname = known.container.ifname == ifname;
    match &attach.network {
        Some(network) => network == known.network.name() && (attach.ifname.is_none() || has_ifname),
        // The default network may have been a different one at the time of the ADD.
        None => has_ifname,
    }
}

pub(super) fn is_attachment(cached: &Cached, network: &str, ifname: &str) -> bool {
    cached.attachment.network() == network && cached.attachment.ifname() == ifname
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_attachment_is_meant_by_its_network_alone_or_with_its_interface() {
        let network = Network::builder("storage").plugin(json!({"type": "bridge"})).build().unwrap();
        let known = Planned { network, container: Container::new("s1", "net1") };
        let is_meant = |network: Option<&str>, ifname: Option<&str>| {
            let (network, ifname) = (network.map(str::to_owned), ifname.map(str::to_owned));
            let chosen = ifname.clone().unwrap_or_else(|| "eth0".to_owned());
            is_requested(&known, &Attach { network, ifname, ..Attach::default() }, &chosen)
        };
        assert!(is_meant(Some("storage"), None) && is_meant(Some("storage"), Some("net1")));
        assert!(!is_meant(Some("storage"), Some("eth0")) && !is_meant(Some("pods"), None));
        assert!(!is_meant(None, None) && is_meant(None, Some("net1")));
    }

    #[test]
    fn a_file_of_the_cache_names_its_attachment() {
        let files =
            ["/results/a-b-s-1-eth0", "/results/a-b-s-1-net-1", "/results/c-s-1-eth0"].map(PathBuf::from);
        let of = |network: &str, sandbox| named(&files, [network.to_owned()].iter(), sandbox);
        let attachment = |ifname| Attachment::new("a-b", "s-1", ifname).unwrap();
        assert_eq!(of("a-b", "s-1"), [attachment("eth0"), attachment("net-1")]);
        for (network, sandbox) in [("a", "s-1"), ("a-b", "s-1-eth0"), ("a-b-s-1-eth0", ""), ("d", "s-1")] {
            assert_eq!(of(network, sandbox), [], "{network} {sandbox}");
        }
    }
}
