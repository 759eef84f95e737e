// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway node`: the BPF programs of the eBPF backend on this node.

use std::io::{self, Write};

use cni_dataplane::ebpf::{self, Fill, FlowSource, Sockets, Status};
use cni_spec::CniError;
use serde_json::{Map, Value, json};

use slipway_cli::json;
use slipway_cli::{Failure, Given};

use super::names;
use crate::node_defaults::NodeDefaults;

/// Loads the BPF programs or removes them if asked to, and prints the status.
pub(super) fn run(given: &Given, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let task = given.argument(0);
    let status = status_after(task).map_err(Failure::failed)?;
    if task == "setup" {
        for uplink in &status.uplinks_without {
            writeln!(err, "slipway node: uplink {} is left to nftables: {}", uplink.name, uplink.why)?;
        }
    }
    if given.json() {
        json::print(document(&status), out)?;
    } else {
        print_text(&status, out)?;
    }
    Ok(0)
}

fn status_after(task: &str) -> Result<Status, CniError> {
    let settings = NodeDefaults::read().map(|defaults| defaults.ebpf);
    Ok(match task {
        "setup" => ebpf::setup_node(&settings?)?,
        // A mistake in the settings does not keep the programs on the node.
        "teardown" => {
            ebpf::teardown_node()?;
            ebpf::status(&settings.unwrap_or_default())?
        }
        _ => ebpf::status(&settings?)?,
    })
}

fn print_text(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let state = match (status.is_set_up, status.is_current) {
        _ if ebpf::object().is_none() => "absent: this binary was built without them",
        (true, true) => "loaded",
        (true, false) => "loaded, of another version: `slipway node setup` replaces them",
        (false, _) if !status.served_elsewhere.is_empty() => {
            "not visible here: their maps are pinned in another mount namespace"
        }
        (false, _) => "not loaded: nftables serves everything",
    };
    writeln!(out, "programs    {state}")?;
    if status.is_set_up {
        writeln!(out, "decision    by {}", decision(status.flows))?;
        writeln!(out, "uplinks     {}", status.uplinks.join(", "))?;
        for left in &status.uplinks_without {
            writeln!(out, "without     {}: {}", left.name, left.why)?;
        }
    }
    if status.is_set_up && status.flows == FlowSource::Netfilter {
        writeln!(out, "containers  {}", status.containers)?;
    } else if status.is_set_up {
        match &status.sockets {
            Some(Sockets::At(group)) => writeln!(out, "sockets     {}", group.display())?,
            Some(Sockets::Not(why)) => writeln!(out, "sockets     none: {why}")?,
            None => {}
        }
        let why_not = status.masquerade_clash.as_ref().or(status.services.as_ref());
        match (&status.masquerade_ports, why_not) {
            (Some(ports), None) => writeln!(out, "masquerade  with ports {ports}")?,
            (Some(ports), Some(why)) => writeln!(out, "masquerade  with ports {ports}, but {why}")?,
            (None, why) => {
                let why = why.map_or("`slipway node setup` changes that", String::as_str);
                writeln!(out, "masquerade  by nftables: {why}")?;
            }
        }
        match status.containers_left {
            0 => writeln!(out, "containers  {}", status.containers)?,
            left => writeln!(out, "containers  {}, {left} of them left to nftables", status.containers)?,
        }
        let server = if status.ports_left { ", served by nftables" } else { "" };
        writeln!(out, "ports       {}{server}", status.ports)?;
    }
    for Fill { map, elements, max_elements } in status.maps.iter().filter(|fill| fill.elements > 0) {
        writeln!(out, "map         {map}: {elements} of {max_elements} elements")?;
    }
    for (counter, count) in &status.counters {
        writeln!(out, "counter     {}: {count}", names::of_counter(*counter))?;
    }
    for (counter, count) in &status.carried {
        let (name, about) = (names::of_carried(*counter), names::about_carried(*counter));
        match counter.is_drop() {
            true => writeln!(out, "dropped     {name}: {count} ({about})")?,
            false => writeln!(out, "counter     {name}: {count}")?,
        }
    }
    for (counter, count) in &status.dropped {
        let why = names::about_counter(*counter);
        writeln!(out, "dropped     {}: {count} ({why})", names::of_counter(*counter))?;
    }
    for (reason, count) in &status.left {
        writeln!(out, "netfilter   {}: {count} ({})", names::of_reason(*reason), names::why_left(*reason))?;
    }
    Ok(())
}

/// The engine that decides about flows, in text and JSON.
const fn decision(flows: FlowSource) -> &'static str {
    match flows {
        FlowSource::Programs => "programs",
        FlowSource::Netfilter => "netfilter",
    }
}

/// The document of `slipway node`.
fn document(status: &Status) -> Value {
    let by_counter = |counts: &[(ebpf::Counter, u64)], are_drops: bool| -> Map<String, Value> {
        let deciding = counts.iter().map(|(counter, count)| (names::of_counter(*counter), *count));
        let carried = status.carried.iter().filter(|(counter, _)| counter.is_drop() == are_drops);
        let carried = carried.map(|(counter, count)| (names::of_carried(*counter), *count));
        deciding.chain(carried).map(|(name, count)| (name.to_owned(), json!(count))).collect()
    };
    let left: Map<String, Value> = status
        .left
        .iter()
        .map(|(reason, count)| (names::of_reason(*reason).to_owned(), json!(count)))
        .collect();
    let (cgroup, cgroup_reason) = match &status.sockets {
        Some(Sockets::At(group)) => (Some(group.display().to_string()), None),
        Some(Sockets::Not(why)) => (None, Some(why)),
        None => (None, None),
    };
    let uplinks_left: Vec<Value> =
        status.uplinks_without.iter().map(|left| json!({ "name": left.name, "reason": left.why })).collect();
    let maps: Vec<Value> = status
        .maps
        .iter()
        .map(|fill| json!({ "name": fill.map, "elements": fill.elements, "max_elements": fill.max_elements }))
        .collect();
    json!({
        "built_in": ebpf::object().is_some(),
        "loaded": status.is_set_up,
        "current": status.is_current,
        "decision": decision(status.flows),
        "uplinks": status.uplinks,
        "uplinks_left_to_nftables": uplinks_left,
        "interfaces_without_maps": status.served_elsewhere,
        "cgroup": cgroup,
        "cgroup_reason": cgroup_reason,
        "masquerade_ports": status.masquerade_ports.map(|ports| ports.to_string()),
        "masquerade_conflict": status.masquerade_clash,
        "service_proxy": status.services,
        "containers": status.containers,
        "containers_left_to_nftables": status.containers_left,
        "ports": status.ports,
        "ports_left_to_nftables": status.ports_left,
        "counters": by_counter(&status.counters, false),
        "dropped": by_counter(&status.dropped, true),
        "left_to_netfilter": left,
        "maps": maps,
    })
}

#[cfg(test)]
mod tests {
    use cni_dataplane::ebpf::{Counter, PortRange, Reason, Without};

    use super::*;

    #[test]
    fn the_status_is_printed() {
        let status = Status {
            is_set_up: true,
            is_current: true,
            uplinks: vec!["eth0".to_owned(), "eth1".to_owned()],
            served_elsewhere: Vec::new(),
            uplinks_without: vec![Without { name: "eth2".to_owned(), why: "no such interface".to_owned() }],
            sockets: Some(Sockets::At("/sys/fs/cgroup".into())),
            masquerade_ports: Some(PortRange::default()),
            masquerade_clash: None,
            services: None,
            ports_left: true,
            containers: 2,
            containers_left: 1,
            ports: 3,
            counters: vec![(Counter::Published, 7)],
            dropped: vec![(Counter::DropWrite, 1)],
            left: vec![(Reason::Ttl, 2)],
            maps: [("pods", 2), ("flows4", 0)]
                .map(|(map, elements)| Fill { map, elements, max_elements: 64 })
                .into(),
            flows: FlowSource::Programs,
            carried: Vec::new(),
        };
        let mut text = Vec::new();
        print_text(&status, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.ends_with(
                "uplinks     eth0, eth1\nwithout     eth2: no such interface\nsockets     /sys/fs/cgroup\nmasquerade  with ports 61000-65535\ncontainers  2, 1 of them left to nftables\nports       3, served by nftables\n\
                 map         pods: 2 of 64 elements\n\
                 counter     published_flows: 7\n\
                 dropped     write_failed: 1 (the kernel refused to change the packet)\n\
                 netfilter   ttl: 2 (the time to live ends here: the kernel answers with an ICMP error)\n"
            ),
            "{text}"
        );
        let left = Status {
            sockets: Some(Sockets::Not("no cgroup v2".to_owned())),
            masquerade_ports: None,
            masquerade_clash: Some("a conflict".to_owned()),
            services: Some("kube-proxy".to_owned()),
            served_elsewhere: vec!["eth3".to_owned()],
            ..status.clone()
        };
        let document = document(&status);
        slipway_cli::checks::assert_documented("slipway node", &[document.clone(), super::document(&left)]);
        assert_eq!((&document["ports"], &document["counters"]["published_flows"]), (&json!(3), &json!(7)));
    }
}
