// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway node`: the BPF programs of the eBPF backend on this node, UDP GRO forwarding at its uplinks, and limits of the
//! kernel.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use cni_dataplane::ebpf::{self, Fill, Merging, Status, UnservedLink};
use cni_kernel::ethtool::Switch;
use cni_kernel::sysctl;
use cni_runtime::config;
use cni_spec::CniError;
use cni_state::documents::{
    BpfMap, BpfNode, EarlierFilter, HoldingRule, KernelLimit, LeftToNftables, UdpGroForwarding,
};

use slipway_cli::json;
use slipway_cli::{Failure, Output};

use super::limits::{self, Room};
use super::names;
use cni_plugins::node_defaults::NodeDefaults;

/// Prepare the node: limits of the kernel, and the BPF programs of the eBPF backend
///
/// All tasks print the status. `limits` raises the kernel's limits to what the networks in /etc/cni/net.d have room for:
/// those of the neighbour tables and of the backlog, which belong to the whole machine and are never lowered. `setup` does
/// that, too, loads the BPF programs, and with the key udpGroForwarding in /etc/cni/slipway.json switches UDP GRO forwarding
/// at the uplinks. The first container with the eBPF backend loads the programs as well. After `teardown` nftables serves
/// everything; the limits stay.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway node limits
  slipway node setup
  slipway node status --output json")]
pub(super) struct Args {
    /// Raise the limits, also load and attach the programs, remove the programs, or only print the status
    #[arg(value_enum)]
    task: Task,
    /// The directory of the networks
    #[arg(long, value_name = "DIRECTORY", default_value = config::DIRECTORY, value_hint = clap::ValueHint::DirPath)]
    conf_dir: PathBuf,
    /// The directory of the kernel's settings, for a call in a container
    #[arg(long, value_name = "DIRECTORY", default_value = sysctl::DIRECTORY, value_hint = clap::ValueHint::DirPath)]
    sysctl_dir: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// The work of a call, before the status is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Task {
    Limits,
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
    room: Room,
    limits: Vec<KernelLimit>,
}

/// Sets up the node, or removes what a set-up made, as the task demands, and prints the status.
pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    // The programs depend neither on the networks nor on the limits.
    let files = match config::load_all(&args.conf_dir) {
        Ok(files) => files,
        Err(error) if args.task == Task::Limits => return Err(Failure::failed(error)),
        Err(error) => {
            writeln!(err, "slipway node: {error}")?;
            Vec::new()
        }
    };
    let room = Room::of(&files);
    let found = match args.task {
        Task::Limits | Task::Setup => limits::raise(&args.sysctl_dir, &room),
        Task::Teardown | Task::Status => limits::read(&args.sysctl_dir, &room),
    };
    let limits = match found {
        Ok(limits) => limits,
        Err(error) if args.task == Task::Limits => return Err(Failure::failed(error)),
        Err(error) => {
            writeln!(err, "slipway node: {error}")?;
            limits::read(&args.sysctl_dir, &room).unwrap_or_default()
        }
    };
    let state = state_after(args.task, room, limits).map_err(Failure::failed)?;
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

fn state_after(task: Task, room: Room, limits: Vec<KernelLimit>) -> Result<State, CniError> {
    let read = NodeDefaults::read();
    // A mistake in the settings must not prevent the removal of the programs.
    let NodeDefaults { ebpf: settings, udp_gro_forwarding: wanted, .. } =
        if task == Task::Teardown { read.unwrap_or_default() } else { read? };
    let merging = match (task, wanted) {
        // UDP GRO forwarding comes first, because it does not need the programs.
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
        Task::Limits | Task::Status => ebpf::status(&settings)?,
    };
    Ok(State { status, merging, is_asked: wanted == Some(Switch::On), room, limits })
}

fn print_text(state: &State, out: &mut dyn Write) -> io::Result<()> {
    let State { status, merging, is_asked, room, limits } = state;
    let programs = match (status.is_set_up, status.is_current) {
        _ if ebpf::object().is_none() => "absent: this binary was built without them",
        (true, true) => "loaded",
        (true, false) => "loaded, of another version: `slipway node setup` replaces them",
        (false, _) => "not loaded: nftables serves everything",
    };
    writeln!(out, "programs    {programs}")?;
    if status.is_set_up {
        writeln!(out, "uplinks     {}", status.uplinks.join(", "))?;
        for left in &status.uplinks_without {
            writeln!(out, "without     {}: {}", left.name, left.why)?;
        }
        for filter in &status.foreign_filters {
            writeln!(out, "before      {filter}: a final verdict leaves packets to netfilter")?;
        }
        for ebpf::HoldingRule { rule, what, flows } in &status.holding_rules {
            writeln!(out, "held        {flows}: {rule}: {what}")?;
        }
        for link in &status.containers_with_queue {
            writeln!(out, "queue       {}: {}", link.name, link.why)?;
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
    if !room.networks.is_empty() {
        writeln!(out, "room        {} containers: {}", room.containers, room.words())?;
    }
    for KernelLimit { setting, value, wanted, .. } in limits {
        let remedy = match value < wanted {
            true => format!(": `slipway node limits` raises it to {wanted}"),
            false => String::new(),
        };
        writeln!(out, "limit       {setting}: {value}{remedy}")?;
    }
    Ok(())
}

/// The document of `slipway node`.
fn document(State { status, merging, room, limits, .. }: &State) -> BpfNode {
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
    let holding = |one: &ebpf::HoldingRule| HoldingRule {
        rule: one.rule.clone(),
        what: one.what.clone(),
        flows: one.flows.clone(),
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
        holding_rules: status.holding_rules.iter().map(holding).collect(),
        containers: status.containers as u64,
        containers_left_to_nftables: left(&status.containers_without),
        containers_with_queue: left(&status.containers_with_queue),
        counters: counts(false),
        dropped: counts(true),
        maps: status.maps.iter().map(map).collect(),
        udp_gro_forwarding: merging.iter().map(forwarding).collect(),
        networks: room.networks.clone(),
        limits: limits.clone(),
    }
}

#[cfg(test)]
mod tests {
    use cni_dataplane::ebpf::{Counter, ForeignFilter};
    use cni_kernel::ethtool::FeatureError;
    use cni_state::documents::NetworkRoom;

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
            holding_rules: vec![ebpf::HoldingRule {
                rule: "the rule with handle 4 in chain c of table ip t".to_owned(),
                what: "limit".to_owned(),
                flows: "UDP".to_owned(),
            }],
            containers_with_queue: vec![UnservedLink {
                name: "veth1".to_owned(),
                why: "an XDP program in the container".to_owned(),
            }],
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
        let limit = |setting: &str, value, wanted, enough_for| KernelLimit {
            setting: setting.to_owned(),
            value,
            wanted,
            enough_for,
        };
        let network = |name: &str, addresses, bridge: Option<&str>| NetworkRoom {
            name: name.to_owned(),
            addresses,
            bridge: bridge.map(str::to_owned),
        };
        let state = State {
            status,
            merging: merging.into(),
            is_asked: true,
            room: Room {
                networks: vec![network("a", Some(253), Some("cni0")), network("b", None, None)],
                containers: 253,
                on_one_bridge: 253,
            },
            limits: vec![limit("net.a", 512, 1024, Some(256)), limit("net.b", 4096, 4096, None)],
        };
        let mut text = Vec::new();
        print_text(&state, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.ends_with(
                "uplinks     eth0, eth1\nwithout     eth2: no such interface\n\
                 before      eth0 ingress: u32, preference 1: a final verdict leaves packets to netfilter\n\
                 before      eth1 egress: tcx: a final verdict leaves packets to netfilter\n\
                 held        UDP: the rule with handle 4 in chain c of table ip t: limit\n\
                 queue       veth1: an XDP program in the container\ncontainers  2\n\
                 map         carried4: 2 of 64 elements\n\
                 udp gro     eth0: on\nudp gro     eth1: off: `slipway node setup` switches it on\n\
                 udp gro     eth2: the kernel has no feature gro\n\
                 counter     carried_packets: 7\n\
                 dropped     write_failed: 1 (the kernel refused to change the packet)\n\
                 room        253 containers: a: 253, b: unknown\n\
                 limit       net.a: 512: `slipway node limits` raises it to 1024\n\
                 limit       net.b: 4096\n"
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
