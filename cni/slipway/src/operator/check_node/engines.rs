// SPDX-License-Identifier: GPL-2.0-or-later

//! Other engines that translate or filter the traffic of published ports and masquerade.

use std::fs;
use std::path::Path;

use cni_dataplane::ebpf::{Merging, Status};
use cni_dataplane::nftables::addresses::{self, AnsweringAddresses};
use cni_dataplane::{ebpf, node};
use cni_kernel::ethtool::Switch;

use super::{Finding, State, existing, judged};
use cni_plugins::node_defaults::NodeDefaults;

/// The file of firewalld's settings.
const FIREWALLD: &str = "/etc/firewalld/firewalld.conf";

/// All findings about these engines. There is no status if the state of the BPF programs cannot be read, which is a
/// finding of its own.
pub(super) fn findings(settings: &NodeDefaults, programs: Option<&Status>) -> Vec<Finding> {
    let mut found = services();
    found.extend(order_of_kube_proxy());
    found.extend(strict_forward_ports(Path::new(FIREWALLD)));
    found.extend(programs.and_then(earlier_filters));
    found.extend(programs.and_then(holding_rules));
    found.extend(merging(settings));
    found
}

/// Reports kube-proxy in mode nftables next to ports that iptables publishes, because neither of the two comes first
/// for certain.
fn order_of_kube_proxy() -> Vec<Finding> {
    const WHAT: &str = "published ports of iptables beside kube-proxy's table";
    judged(WHAT, node::ports_of_iptables_beside_kube_proxy(), |families| {
        let names: Vec<String> = families.iter().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| {
            Finding::new(WHAT, State::Warning, format!("in both: {}", names.join(", ")))
                .reason(
                    "their chains have one priority: where a Service and a container have one port, the one that was \
                     started last gets its packets",
                )
                .fix("\"backend\": \"nftables\" in the configuration of portmap: then the Service always gets them")
        })
    })
}

/// A link with the addresses of Services.
fn services() -> Vec<Finding> {
    judged("links of Services", addresses::links_of_services(), |links| {
        judged("addresses of published ports", addresses::answering(), |answering| {
            of_services(&links, &answering)
        })
    })
}

fn of_services(links: &[String], answering: &AnsweringAddresses) -> Option<Finding> {
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
    match answering {
        AnsweringAddresses::Outdated => Some(outdated()),
        AnsweringAddresses::Everywhere => None,
        AnsweringAddresses::At(count) => Some(
            Finding::new(what, State::Note, "exists, with the addresses of Services (kube-proxy's IPVS, kube-router)")
                .reason(format!(
                    "published ports answer at {count} other addresses and the loopback only; an address that the \
                     node gets later is added by the next container with ports, or by STATUS of portmap"
                )),
        ),
    }
}

/// firewalld, if it is set to drop packets that other programs have translated.
fn strict_forward_ports(settings: &Path) -> Vec<Finding> {
    const WHAT: &str = "firewalld, StrictForwardPorts";
    judged(WHAT, existing(fs::read(settings)), |text| {
        let text = text.filter(|text| is_strict(&String::from_utf8_lossy(text)));
        text.map(|_| {
            // A table that cannot be looked for may be there.
            let runs = node::foreign_tables()
                .map_or(true, |tables| tables.iter().any(|table| table == "inet firewalld"));
            let state = if runs { State::Warning } else { State::Note };
            Finding::new(WHAT, state, format!("yes, in {}", settings.display()))
                .reason("firewalld drops packets that other programs have translated: published ports answer to the node only")
                .fix("StrictForwardPorts=no and `firewall-cmd --reload`, or publish ports with `firewall-cmd --add-forward-port`")
        })
    })
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
fn earlier_filters(programs: &Status) -> Option<Finding> {
    let filters = programs.foreign_filters.iter();
    let found: Vec<String> = filters.filter(|one| !one.is_rate_limit()).map(ToString::to_string).collect();
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
fn holding_rules(programs: &Status) -> Option<Finding> {
    let words = |one: &ebpf::HoldingRule| format!("{}: {}: {}", one.flows, one.rule, one.what);
    let found: Vec<String> = programs.holding_rules.iter().map(words).collect();
    (!found.is_empty()).then(|| {
        Finding::new("rules about single packets", State::Note, found.join("; ")).reason(
            "a sample says nothing about the packets between, so the BPF programs carry none of these flows: \
             nftables serves them, at its own cost",
        )
    })
}

/// Uplinks without the UDP GRO forwarding that the settings ask for, for instance since the node booted.
fn merging(settings: &NodeDefaults) -> Vec<Finding> {
    const WHAT: &str = "UDP GRO forwarding";
    if settings.udp_gro_forwarding != Some(Switch::On) {
        return Vec::new();
    }
    judged(WHAT, ebpf::merging(&settings.ebpf.uplinks), |devices| [of_devices(WHAT, &devices)])
}

fn of_devices(what: &str, devices: &[Merging]) -> Finding {
    let (on, without): (Vec<_>, Vec<_>) = devices.iter().partition(|one| one.state == Ok(Switch::On));
    let names = |of: &[&Merging]| of.iter().map(|one| one.link.as_str()).collect::<Vec<_>>().join(", ");
    match without[..] {
        [] => Finding::ok(what, format!("at {}", names(&on))),
        _ => Finding::new(what, State::Warning, format!("missing at {}", names(&without)))
            .reason("slipway.json asks for it; without it each datagram passes the rules by itself")
            .fix("`slipway node setup`, which prints the reason where a device cannot do it"),
    }
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

    #[test]
    fn settings_of_firewalld_that_cannot_be_read_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(strict_forward_ports(&folder.path().join("none")), []);
        let found = strict_forward_ports(folder.path());
        assert_eq!((found.len(), found[0].state), (1, State::Warning), "{found:?}");
        assert!(found[0].found.starts_with("could not be read: "), "{found:?}");
    }
}
