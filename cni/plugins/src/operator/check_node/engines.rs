// SPDX-License-Identifier: GPL-2.0-or-later

//! Other engines that translate or filter the traffic of published ports and masquerade.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use cni_dataplane::nftables::addresses::{self, Answering};
use cni_dataplane::{ebpf, node};

use super::{Finding, State};
use crate::node_defaults::NodeDefaults;

/// The file of firewalld's settings.
const FIREWALLD: &str = "/etc/firewalld/firewalld.conf";
/// A program that prints the rules that masquerade.
#[derive(Debug, Clone, Copy)]
struct Printer {
    command: &'static [&'static str],
    /// The option for a random source port.
    word: &'static str,
    /// True if the table exists: the tools of iptables may create the tables that they print.
    is_there: fn() -> bool,
}

const PRINTERS: [Printer; 5] = [
    Printer { command: &["nft", "list", "ruleset"], word: "fully-random", is_there: || true },
    of_iptables(&["iptables-nft-save", "-t", "nat"], || has_table("ip nat")),
    of_iptables(&["ip6tables-nft-save", "-t", "nat"], || has_table("ip6 nat")),
    of_iptables(&["iptables-legacy-save", "-t", "nat"], || has_legacy_nat("ip_tables_names")),
    of_iptables(&["ip6tables-legacy-save", "-t", "nat"], || has_legacy_nat("ip6_tables_names")),
];

const fn of_iptables(command: &'static [&'static str], is_there: fn() -> bool) -> Printer {
    Printer { command, word: "--random-fully", is_there }
}

fn has_table(name: &str) -> bool {
    node::foreign_tables().unwrap_or_default().iter().any(|table| table == name)
}

fn has_legacy_nat(names: &str) -> bool {
    let tables = fs::read_to_string(Path::new("/proc/self/net").join(names)).unwrap_or_default();
    tables.split_whitespace().any(|table| table == "nat")
}

/// All findings about them.
pub(super) fn findings() -> Vec<Finding> {
    [services(), strict_forward_ports(), random_ports()].into_iter().flatten().collect()
}

/// A link with the addresses of Services.
fn services() -> Option<Finding> {
    let links = match addresses::links_of_services() {
        Ok(links) => links,
        Err(error) => return Some(Finding::new("links of Services", State::Warning, error.to_string())),
    };
    let outdated = || {
        Finding::new("addresses of published ports", State::Warning, "not the node's present ones")
            .reason(
                "on a node with IPVS the table has a list of the addresses that published ports answer at",
            )
            .fix(
                "the next container with ports, STATUS of portmap, or `slipway restore` brings it up to date",
            )
    };
    let what = format!("link {}", links.join(", "));
    match addresses::answering() {
        Err(error) => Some(Finding::new(what, State::Warning, error.to_string())),
        Ok(Answering::Outdated) => Some(outdated()),
        Ok(Answering::Everywhere) => None,
        Ok(Answering::At(count)) => Some(
            Finding::new(what, State::Note, "exists, with the addresses of Services (kube-proxy's IPVS, kube-router)")
                .reason(format!(
                    "published ports answer at {count} other addresses and the loopback only; an address that the \
                     node gets later is added by the next container with ports, or by STATUS of portmap"
                )),
        ),
    }
}

/// firewalld, if it is set to drop packets that other programs have translated.
fn strict_forward_ports() -> Option<Finding> {
    let text = fs::read_to_string(FIREWALLD).ok()?;
    if !is_strict(&text) {
        return None;
    }
    let state = if has_table("inet firewalld") { State::Warning } else { State::Note };
    let finding = Finding::new("firewalld, StrictForwardPorts", state, format!("yes, in {FIREWALLD}"));
    Some(
        finding
            .reason("firewalld drops packets that other programs have translated: published ports answer to the node only")
            .fix("StrictForwardPorts=no and `firewall-cmd --reload`, or publish ports with `firewall-cmd --add-forward-port`"),
    )
}

/// True if the settings switch it on. firewalld reads `yes` and `true`, in any case.
fn is_strict(settings: &str) -> bool {
    let values = settings.lines().filter_map(|line| line.trim().split_once('='));
    let mut of_key = values.filter(|(key, _)| key.trim() == "StrictForwardPorts");
    of_key
        .next_back()
        .is_some_and(|(_, value)| matches!(value.trim().to_lowercase().as_str(), "yes" | "true"))
}

/// Masquerade of another engine that may choose one of the BPF programs' ports.
fn random_ports() -> Option<Finding> {
    let settings = NodeDefaults::read().unwrap_or_default().ebpf;
    let ports = ebpf::status(&settings).ok().filter(|status| status.is_set_up)?.masquerade_ports?;
    let Printer { command, .. } = PRINTERS.into_iter().find(finds)?;
    let found = format!(
        "a rule in `{}` chooses among all ports, including those of the BPF programs ({ports})",
        command.join(" ")
    );
    Some(
        Finding::new("ports of other masquerade rules", State::Warning, found)
            .reason("a reply to a port that both have chosen reaches the container only: the other connection breaks")
            .fix("give that rule ports outside of the range (--to-ports), or \"ipMasqBackend\": \"nftables\" to the networks"),
    )
}

/// True if the command exists and prints the option.
fn finds(printer: &Printer) -> bool {
    let Some((program, args)) = printer.command.split_first() else { return false };
    if !(printer.is_there)() {
        return false;
    }
    let output = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(printer.word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_setting_counts() {
        assert!(is_strict("# StrictForwardPorts=no\nStrictForwardPorts=yes\n"));
        assert!(is_strict("StrictForwardPorts = True"));
        assert!(!is_strict("StrictForwardPorts=yes\nStrictForwardPorts=no"));
        assert!(!is_strict("# StrictForwardPorts=yes\nIPv6_rpfilter=yes"));
        assert!(!is_strict(""));
    }
}
