// SPDX-License-Identifier: GPL-2.0-or-later

//! The state of the kernel and the distribution, as text.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use cni_dataplane::Owner;
use cni_dataplane::owner::MADE;
use cni_kernel::AddressFamily;
use cni_kernel::route::{LOCAL_TABLE, MAIN_TABLE, RouteError, RouteSocket};
use cni_kernel::{sysctl, xtables};
use cni_plugins::registry;
use nix::sys::utsname::uname;

use super::redact::length;

pub(super) fn about() -> String {
    let mut text =
        format!("slipway {}, plugins {}\n", env!("CARGO_PKG_VERSION"), registry::names().join(" "));
    if let Ok(names) = uname() {
        let word = |word: &OsStr| word.to_string_lossy().into_owned();
        let words = [names.sysname(), names.release(), names.version(), names.machine()].map(word);
        let _written = writeln!(text, "{}", words.join(" "));
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let _written = writeln!(text, "\n/etc/os-release:\n{}", distribution(&release));
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let _written = writeln!(text, "/proc/uptime:\n{uptime}");
    for kind in ["net", "mnt", "pid", "user"] {
        let link = fs::read_link(Path::new("/proc/self/ns").join(kind));
        let _written =
            writeln!(text, "namespace {}", link.map_or_else(|e| e.to_string(), |l| l.display().to_string()));
    }
    text
}

/// The distribution and its version. The file may have other keys, of an administrator.
fn distribution(release: &str) -> String {
    const KEYS: [&str; 6] = ["ID", "NAME", "VERSION", "VERSION_ID", "PRETTY_NAME", "VARIANT_ID"];
    let plain = |c: char| c.is_ascii_alphanumeric() || " ._-()/+,".contains(c);
    let line = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let value = value.trim_matches(['"', '\'']);
        let shown = value.len() <= 80 && value.chars().all(plain);
        KEYS.contains(&key).then(|| match shown {
            true => format!("{key}={value}\n"),
            false => format!("{key}={}\n", length(value)),
        })
    };
    release.lines().filter_map(line).collect()
}

/// Names, sizes and users. The addresses in the kernel's memory would help an attacker.
pub(super) fn modules(list: &str) -> String {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.starts_with("0x")).collect();
        words.join(" ") + "\n"
    };
    list.lines().map(line).collect()
}

pub(super) fn legacy_chains() -> String {
    let mut text = String::new();
    for (family, name) in [(AddressFamily::V4, "iptables-legacy"), (AddressFamily::V6, "ip6tables-legacy")] {
        for table in ["nat", "filter", "mangle", "raw"] {
            // Reading a missing table would load it.
            let chains = match xtables::has_table(family, table) {
                Ok(false) => continue,
                Ok(true) => xtables::chains(family, table),
                Err(error) => Err(error),
            };
            let chains = chains.map_or_else(|e| e.to_string(), |chains| chains.join(" "));
            let _written = writeln!(text, "{name} -t {table}: {chains}");
        }
    }
    if text.is_empty() { "no table\n".to_owned() } else { text }
}

pub(super) fn links() -> Result<String, RouteError> {
    let route = RouteSocket::open()?;
    let mut text = String::new();
    let all = route.links()?;
    for link in &all {
        let master = link.master.map(|index| format!(", part of {index}")).unwrap_or_default();
        let alias = match Owner::from_comment(&link.alias) {
            _ if link.alias.is_empty() => String::new(),
            Some(_) => format!(", alias {:?}", link.alias),
            None if link.alias == MADE => format!(", {MADE}"),
            None => format!(", alias {}", length(&link.alias)),
        };
        let localnet = if link.route_localnet { ", route_localnet" } else { "" };
        let (index, name, kind, mtu, state) = (link.index, &link.name, &link.kind, link.mtu, link.state);
        let _written =
            writeln!(text, "{index}: {name}: {kind:?}, mtu {mtu}, {state}{master}{localnet}{alias}");
        for address in route.addresses(link)? {
            let _written = writeln!(text, "    {}", address.net);
        }
    }
    for (family, table, title) in [
        (AddressFamily::V4, MAIN_TABLE, "routes, IPv4"),
        (AddressFamily::V6, MAIN_TABLE, "routes, IPv6"),
        (AddressFamily::V6, LOCAL_TABLE, "routes to this node, IPv6"),
    ] {
        let _written = writeln!(text, "\n{title}:");
        for one in route.routes(family, table)? {
            let link = one.link.and_then(|index| all.iter().find(|link| link.index == index));
            let link = link.map_or("-", |link| link.name.as_str());
            let _written = writeln!(text, "    {one} dev {link}");
        }
    }
    Ok(text)
}

pub(super) fn settings() -> String {
    const NAMES: [&str; 14] = [
        "net/ipv4/ip_forward",
        "net/ipv4/conf/all/forwarding",
        "net/ipv4/conf/all/route_localnet",
        "net/ipv4/conf/default/route_localnet",
        "net/ipv4/conf/all/rp_filter",
        "net/ipv4/ip_local_port_range",
        "net/ipv4/ip_local_reserved_ports",
        "net/ipv6/conf/all/forwarding",
        "net/ipv6/conf/all/disable_ipv6",
        "net/bridge/bridge-nf-call-iptables",
        "net/bridge/bridge-nf-call-ip6tables",
        "net/netfilter/nf_conntrack_count",
        "net/netfilter/nf_conntrack_max",
        "kernel/unprivileged_userns_clone",
    ];
    let line = |name: &&str| {
        let value = sysctl::get(name).unwrap_or_else(|error| format!("({error})"));
        format!("{name} = {value}\n")
    };
    NAMES.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_addresses_are_left_out() {
        let text = modules("nf_tables 1 2 - Live 0xffffffffc0a1b000 (E)\n");
        assert_eq!(text, "nf_tables 1 2 - Live (E)\n");
    }

    #[test]
    fn the_distribution_is_shown_without_an_administrators_keys() {
        let text = distribution(
            "ID=debian\nVERSION=\"12 (bookworm)\"\nTOKEN=hunter2\nNAME=\"https://u:hunter2@h\"\n",
        );
        assert_eq!(text, "ID=debian\nVERSION=12 (bookworm)\nNAME=(text of 19 characters)\n");
    }
}
