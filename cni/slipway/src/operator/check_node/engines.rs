// SPDX-License-Identifier: GPL-2.0-or-later

//! Other engines that translate or filter the traffic of published ports and masquerade.

use std::fs;

use cni_dataplane::ebpf::Merging;
use cni_dataplane::nftables::addresses::{self, AnsweringAddresses};
use cni_dataplane::{ebpf, node};
use cni_kernel::ethtool::Switch;

use super::{Finding, State};
use cni_plugins::node_defaults::NodeDefaults;

/// The file of firewalld's settings.
const FIREWALLD: &str = "/etc/firewalld/firewalld.conf";

fn has_table(name: &str) -> bool {
    node::foreign_tables().unwrap_or_default().iter().any(|table| table == name)
}

/// All findings about these engines.
pub(super) fn findings() -> Vec<Finding> {
    [services(), order_of_kube_proxy(), strict_forward_ports(), earlier_filters(), holding_rules(), merging()]
        .into_iter()
        .flatten()
        .collect()
}

/// Reports kube-proxy in mode nftables next to ports that iptables publishes, because neither of the two comes first
/// for certain.
fn order_of_kube_proxy() -> Option<Finding> {
    const WHAT: &str = "published ports of iptables beside kube-proxy's table";
    let families = match node::ports_of_iptables_beside_kube_proxy() {
        Ok(families) => families,
        Err(error) => return Some(Finding::new(WHAT, State::Warning, error.to_string())),
    };
    let names: Vec<String> = families.iter().map(ToString::to_string).collect();
    (!names.is_empty()).then(|| {
        Finding::new(WHAT, State::Warning, format!("in both: {}", names.join(", ")))
            .reason(
                "their chains have one priority: where a Service and a container have one port, the one that was \
                 started last gets its packets",
            )
            .fix("\"backend\": \"nftables\" in the configuration of portmap: then the Service always gets them")
    })
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
        Ok(AnsweringAddresses::Outdated) => Some(outdated()),
        Ok(AnsweringAddresses::Everywhere) => None,
        Ok(AnsweringAddresses::At(count)) => Some(
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

/// Filters that may take packets from the BPF programs.
fn earlier_filters() -> Option<Finding> {
    let settings = NodeDefaults::read().unwrap_or_default().ebpf;
    let filters = ebpf::status(&settings).ok()?.foreign_filters;
    let found: Vec<String> =
        filters.iter().filter(|one| !one.is_rate_limit()).map(ToString::to_string).collect();
    (!found.is_empty()).then(|| {
        Finding::new("tc filters before the BPF programs", State::Note, found.join("; "))
            .reason("packets to which one gives a final verdict are not carried: nftables serves them")
            .fix(format!(
                "give them a preference above {}, or the verdict `continue` (TC_ACT_UNSPEC)",
                ebpf::PREFERENCE
            ))
    })
}

/// Rules that keep flows from the BPF programs.
fn holding_rules() -> Option<Finding> {
    let settings = NodeDefaults::read().unwrap_or_default().ebpf;
    let rules = ebpf::status(&settings).ok()?.holding_rules;
    let words = |one: &ebpf::HoldingRule| format!("{}: {}: {}", one.flows, one.rule, one.what);
    let found: Vec<String> = rules.iter().map(words).collect();
    (!found.is_empty()).then(|| {
        Finding::new("rules about single packets", State::Note, found.join("; ")).reason(
            "a sample says nothing about the packets between, so the BPF programs carry none of these flows: \
             nftables serves them, at its own cost",
        )
    })
}

/// Uplinks without the UDP GRO forwarding that the settings ask for, for instance since the node booted.
fn merging() -> Option<Finding> {
    const WHAT: &str = "UDP GRO forwarding";
    let settings = NodeDefaults::read().unwrap_or_default();
    settings.udp_gro_forwarding.filter(|wanted| *wanted == Switch::On)?;
    let devices = match ebpf::merging(&settings.ebpf.uplinks) {
        Ok(devices) => devices,
        Err(error) => return Some(Finding::new(WHAT, State::Warning, error.to_string())),
    };
    let (on, without): (Vec<_>, Vec<_>) = devices.iter().partition(|one| one.state == Ok(Switch::On));
    let names = |of: &[&Merging]| of.iter().map(|one| one.link.as_str()).collect::<Vec<_>>().join(", ");
    Some(match without[..] {
        [] => Finding::ok(WHAT, format!("at {}", names(&on))),
        _ => Finding::new(WHAT, State::Warning, format!("missing at {}", names(&without)))
            .reason("slipway.json asks for it; without it each datagram passes the rules by itself")
            .fix("`slipway node setup`, which prints the reason where a device cannot do it"),
    })
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
