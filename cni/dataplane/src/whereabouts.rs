// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds out where the address is to which another program's rule translates. A rule whose target is gone was left
//! behind.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cni_kernel::netns::Netns;
use cni_kernel::route::{LinkKind, RouteKind, RouteSocket};

/// Where an address is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    /// On the node, or in one of its network namespaces.
    Here(String),
    /// Perhaps on another host.
    Elsewhere,
    /// Nowhere, for this reason.
    Nowhere(String),
}

impl Whereabouts {
    /// Looks for an address without sending a packet.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        let Ok(socket) = RouteSocket::open() else { return Self::Elsewhere };
        let Ok(route) = socket.route_to(address) else {
            return Self::Nowhere(format!("the node has no route to {address}"));
        };
        match route.kind {
            RouteKind::Local => return Self::Here("the node".to_owned()),
            RouteKind::Unicast => {}
            RouteKind::Other(_) => return Self::Nowhere(format!("the node has no route to {address}")),
        }
        if let Some(name) = namespace_with(address) {
            return Self::Here(name);
        }
        let link = route.link.and_then(|index| socket.link_by_index(index).ok());
        let Some(link) = link.filter(|_| route.gateway.is_none()) else { return Self::Elsewhere };
        let leads_to_containers = match link.kind {
            LinkKind::Veth => true,
            LinkKind::Bridge => {
                let links = socket.links().unwrap_or_default();
                let mut ports = links.iter().filter(|port| port.master == Some(link.index));
                ports.all(|port| port.kind == LinkKind::Veth)
            }
            _ => false,
        };
        if leads_to_containers {
            return Self::Nowhere(format!("no container behind {} has {address}", link.name));
        }
        Self::Elsewhere
    }
}

/// A network namespace of the node that has the address, described by its name or by a process in it.
fn namespace_with(address: IpAddr) -> Option<String> {
    let mut seen = BTreeSet::new();
    if let Ok(own) = fs::metadata("/proc/self/ns/net") {
        seen.insert(own.ino());
    }
    let named = entries("/run/netns").into_iter().chain(entries("/run/docker/netns"));
    for path in named {
        let is_new = fs::metadata(&path).is_ok_and(|file| seen.insert(file.ino()));
        let Some(netns) = is_new.then(|| Netns::open(&path).ok()).flatten() else { continue };
        if netns.run(|| has(Path::new("/proc/thread-self/net"), address)).unwrap_or(false) {
            return Some(path.display().to_string());
        }
    }
    for process in entries("/proc") {
        let is_process = process.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit());
        let is_new =
            is_process && fs::metadata(process.join("ns/net")).is_ok_and(|file| seen.insert(file.ino()));
        if is_new && has(&process.join("net"), address) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let pid = process.file_name().unwrap_or_default().display().to_string();
            return Some(format!("the namespace of process {pid} ({})", name.trim()));
        }
    }
    None
}

fn entries(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.path()).collect()
}

/// True if the directory `net` of a process, below /proc, lists the address as one of its namespace
/// (proc_pid_net(5)).
fn has(folder: &Path, address: IpAddr) -> bool {
    let file = if address.is_ipv4() { "fib_trie" } else { "if_inet6" };
    fs::read_to_string(folder.join(file)).is_ok_and(|text| match address {
        IpAddr::V4(_) => is_in_trie(&text, address),
        IpAddr::V6(address) => {
            let digits: String = address.octets().iter().map(|byte| format!("{byte:02x}")).collect();
            text.lines().any(|line| line.starts_with(&digits))
        }
    })
}

fn is_in_trie(text: &str, address: IpAddr) -> bool {
    let leaf = format!("|-- {address}");
    let mut is_leaf = false;
    for line in text.lines() {
        if line.trim_start().starts_with("|--") {
            is_leaf = line.trim() == leaf;
        } else if is_leaf && line.trim() == "/32 host LOCAL" {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_namespace_are_read() {
        let text = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.88.0.2\n        /32 link UNICAST\nLocal:\n     |-- 10.88.0.99\n        /32 host LOCAL\n";
        assert!(is_in_trie(text, "10.88.0.99".parse().unwrap()));
        assert!(!is_in_trie(text, "10.88.0.2".parse().unwrap()));
        assert!(!is_in_trie(text, "10.88.0.9".parse().unwrap()));
    }
}
