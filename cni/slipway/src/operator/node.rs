// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway node`: the BPF programs of the eBPF backend on this node, and UDP GRO forwarding at its uplinks.

use std::collections::BTreeMap;
use std::io::{self, Write};

use cni_dataplane::ebpf::{self, Fill, Merging, Status, UnservedLink};
use cni_kernel::ethtool::Switch;
use cni_spec::CniError;
use cni_state::documents::{BpfMap, BpfNode, EarlierFilter, LeftToNftables, UdpGroForwarding};

use slipway_cli::json;
use slipway_cli::{Failure, Output};

use super::names;
use cni_plugins::node_defaults::NodeDefaults;

/// Load, show or remove the BPF programs of the eBPF backend
///
/// All three print the status. The first container with the eBPF backend loads the programs, too. After `teardown`
/// nftables serves everything. With the key udpGroForwarding in /etc/cni/slipway.json, `setup` switches UDP GRO forwarding
/// at the uplinks.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway node setup
  slipway node status --output json")]
pub(super) struct Args {
    /// Load and attach the programs, remove them, or only print the status
    #[arg(value_enum)]
    task: Task,
    #[command(flatten)]
    output: Output,
}

/// The work of a call, before the status is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Task {
    Setup,
    Teardown,
    Status,
}

/// The state of the node.
struct State {
    status: Status,
    /// UDP GRO forwarding.
    merging: Vec<Merging>,
    /// True if the settings ask for it.
    is_asked: bool,
}

/// Sets the node up or removes what that made if asked to, and prints the status.
pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let state = state_after(args.task).map_err(Failure::failed)?;
    if args.task == Task::Setup {
        for uplink in &state.status.uplinks_without {
            writeln!(err, "slipway node: uplink {} is left to nftables: {}", uplink.name, uplink.why)?;
        }
        for link in &state.status.containers_without {
            writeln!(err, "slipway node: {} of a container is left to nftables: {}", link.name, link.why)?;
        }
        for Merging { link, state } in &state.merging {
            if let Err(reason) = state {
                writeln!(err, "slipway node: no UDP GRO forwarding at {link}: {reason}")?;
            }
        }
    }
    if args.output.json() {
        json::print(document(&state), out)?;
    } else {
        print_text(&state, out)?;
    }
    Ok(0)
}

fn state_after(task: Task) -> Result<State, CniError> {
    let read = NodeDefaults::read();
    // A mistake in the settings does not keep the programs on the node.
    let NodeDefaults { ebpf: settings, udp_gro_forwarding: wanted, .. } =
        if task == Task::Teardown { read.unwrap_or_default() } else { read? };
    let merging = match (task, wanted) {
        // First: it does not need the programs.
        (Task::Setup, Some(switch)) => ebpf::switch_merging(&settings.uplinks, switch)?,
        (Task::Teardown, Some(Switch::On)) => ebpf::switch_merging(&settings.uplinks, Switch::Off)?,
        _ => ebpf::merging(&settings.uplinks)?,
    };
    let status = match task {
        Task::Setup => ebpf::setup_node(&settings)?,
        Task::Teardown => {
            ebpf::teardown_node()?;
            ebpf::status(&settings)?
        }
        Task::Status => ebpf::status(&settings)?,
    };
    Ok(State { status, merging, is_asked: wanted == Some(Switch::On) })
}

fn print_text(State { status, merging, is_asked }: &State, out: &mut dyn Write) -> io::Result<()> {
    let state = match (status.is_set_up, status.is_current) {
        _ if ebpf::object().is_none() => "absent: this binary was built without them",
        (true, true) => "loaded",
        (true, false) => "loaded, of another version: `slipway node setup` replaces them",
        (false, _) => "not loaded: nftables serves everything",
    };
    writeln!(out, "programs    {state}")?;
    if status.is_set_up {
        writeln!(out, "uplinks     {}", status.uplinks.join(", "))?;
        for left in &status.uplinks_without {
            writeln!(out, "without     {}: {}", left.name, left.why)?;
        }
        for filter in &status.foreign_filters {
            writeln!(out, "before      {filter}: a final verdict leaves packets to netfilter")?;
        }
        writeln!(out, "containers  {}", status.containers)?;
    }
    for Fill { map, elements, max_elements } in status.maps.iter().filter(|fill| fill.elements > 0) {
        writeln!(out, "map         {map}: {elements} of {max_elements} elements")?;
    }
    for Merging { link, state } in merging.iter().filter(|one| *is_asked || one.state == Ok(Switch::On)) {
        match state {
            Ok(Switch::On) => writeln!(out, "udp gro     {link}: on")?,
            Ok(Switch::Off) => writeln!(out, "udp gro     {link}: off: `slipway node setup` switches it on")?,
            Err(reason) => writeln!(out, "udp gro     {link}: {reason}")?,
        }
    }
    for (counter, count) in &status.counters {
        let (name, about) = (names::of_counter(*counter), names::about_counter(*counter));
        match counter.is_drop() {
            true => writeln!(out, "dropped     {name}: {count} ({about})")?,
            false => writeln!(out, "counter     {name}: {count}")?,
        }
    }
    Ok(())
}

/// The document of `slipway node`.
fn document(State { status, merging, .. }: &State) -> BpfNode {
    let counts = |are_drops: bool| -> BTreeMap<String, u64> {
        let all = status.counters.iter().filter(|(counter, _)| counter.is_drop() == are_drops);
        all.map(|(counter, count)| (names::of_counter(*counter).to_owned(), *count)).collect()
    };
    let left = |links: &[UnservedLink]| -> Vec<LeftToNftables> {
        let link = |left: &UnservedLink| LeftToNftables { name: left.name.clone(), reason: left.why.clone() };
        links.iter().map(link).collect()
    };
    let earlier = |one: &ebpf::ForeignFilter| EarlierFilter {
        interface: one.link.clone(),
        hook: one.hook.to_owned(),
        kind: one.kind.clone(),
        preference: one.preference,
    };
    let map = |fill: &Fill| BpfMap {
        name: fill.map.to_owned(),
        elements: fill.elements.into(),
        max_elements: fill.max_elements.into(),
    };
    let forwarding = |one: &Merging| {
        let (state, reason) = match &one.state {
            Ok(Switch::On) => ("on", String::new()),
            Ok(Switch::Off) => ("off", String::new()),
            Err(error) => ("unknown", error.to_string()),
        };
        UdpGroForwarding { interface: one.link.clone(), state: state.to_owned(), reason }
    };
    BpfNode {
        built_in: ebpf::object().is_some(),
        loaded: status.is_set_up,
        current: status.is_current,
        uplinks: status.uplinks.clone(),
        uplinks_left_to_nftables: left(&status.uplinks_without),
        earlier_filters: status.foreign_filters.iter().map(earlier).collect(),
        containers: status.containers as u64,
        containers_left_to_nftables: left(&status.containers_without),
        counters: counts(false),
        dropped: counts(true),
        maps: status.maps.iter().map(map).collect(),
        udp_gro_forwarding: merging.iter().map(forwarding).collect(),
    }
}

#[cfg(test)]
mod tests {
    use cni_dataplane::ebpf::{Counter, ForeignFilter};
    use cni_kernel::ethtool::FeatureError;

    use super::*;

    #[test]
    fn the_status_is_printed() {
        let status = Status {
            is_set_up: true,
            is_current: true,
            uplinks: vec!["eth0".to_owned(), "eth1".to_owned()],
            uplinks_without: vec![UnservedLink {
                name: "eth2".to_owned(),
                why: "no such interface".to_owned(),
            }],
            foreign_filters: vec![
                ForeignFilter {
                    link: "eth0".to_owned(),
                    hook: "ingress",
                    kind: "u32".to_owned(),
                    preference: Some(1),
                },
                ForeignFilter {
                    link: "eth1".to_owned(),
                    hook: "egress",
                    kind: "tcx".to_owned(),
                    preference: None,
                },
            ],
            containers: 2,
            containers_without: vec![UnservedLink { name: "veth0".to_owned(), why: "no".to_owned() }],
            counters: vec![(Counter::Carried, 7), (Counter::DroppedWrite, 1)],
            maps: [("carried4", 2), ("carried6", 0)]
                .map(|(map, elements)| Fill { map, elements, max_elements: 64 })
                .into(),
        };
        let unknown = || FeatureError::Unknown("gro".to_owned());
        let merging = [("eth0", Ok(Switch::On)), ("eth1", Ok(Switch::Off)), ("eth2", Err(unknown()))]
            .map(|(link, state)| Merging { link: link.to_owned(), state });
        let state = State { status, merging: merging.into(), is_asked: true };
        let mut text = Vec::new();
        print_text(&state, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.ends_with(
                "uplinks     eth0, eth1\nwithout     eth2: no such interface\n\
                 before      eth0 ingress: u32, preference 1: a final verdict leaves packets to netfilter\n\
                 before      eth1 egress: tcx: a final verdict leaves packets to netfilter\ncontainers  2\n\
                 map         carried4: 2 of 64 elements\n\
                 udp gro     eth0: on\nudp gro     eth1: off: `slipway node setup` switches it on\n\
                 udp gro     eth2: the kernel has no feature gro\n\
                 counter     carried_packets: 7\n\
                 dropped     write_failed: 1 (the kernel refused to change the packet)\n"
            ),
            "{text}"
        );
        let document = document(&state);
        slipway_cli::checks::assert_documented("slipway node", std::slice::from_ref(&document));
        assert_eq!((document.containers, document.counters["carried_packets"]), (2, 7));
        let [interface, state, reason] =
            ["eth2", "unknown", "the kernel has no feature gro"].map(str::to_owned);
        assert_eq!(document.udp_gro_forwarding[2], UdpGroForwarding { interface, state, reason });
    }
}
