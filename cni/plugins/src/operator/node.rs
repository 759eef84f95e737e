//! `slipway node`: the programs of the eBPF backend on this node.

use std::io::{self, Write};

use cni_dataplane::ebpf::{self, Counter, Reason, Sockets, Status};
use cni_spec::CniError;
use serde_json::json;

use crate::node_defaults::NodeDefaults;
use crate::operator::said;

/// Arguments of `slipway node`.
pub const USAGE: &str = "setup|teardown|status [--output text|json]";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Setup,
    Teardown,
    Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    Text,
    Json,
}

/// Sets the programs up, takes them away, or says what there is: exit code 0, 1 when that fails, 2 for wrong
/// arguments.
pub fn node_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let (task, output) = match parse(args) {
        Ok(parsed) => parsed,
        Err(reason) => return said(writeln!(err, "slipway node: {reason}"), 2),
    };
    let done = run(task);
    if let (Task::Setup, Ok(status)) = (task, &done) {
        // What is said of it stands in the status, too: that nobody hears it is no failure.
        let _ = warn(status, err);
    }
    match done {
        Ok(status) => said(
            match output {
                Output::Text => print_text(&status, out),
                Output::Json => print_json(&status, out),
            },
            0,
        ),
        Err(error) => said(writeln!(err, "slipway node: {error}"), 1),
    }
}

/// Names the uplinks that the set-up had to leave.
fn warn(status: &Status, err: &mut dyn Write) -> io::Result<()> {
    status.uplinks_without.iter().try_for_each(|left| {
        writeln!(err, "slipway node: uplink {} is left to nftables: {}", left.name, left.why)
    })
}

fn run(task: Task) -> Result<Status, CniError> {
    // A mistake in the file is no reason to leave the programs where they are.
    let settings = NodeDefaults::read().map(|defaults| defaults.ebpf);
    match task {
        Task::Setup => Ok(ebpf::setup_node(&settings?)?),
        Task::Teardown => {
            ebpf::teardown_node()?;
            Ok(ebpf::status(&settings.unwrap_or_default())?)
        }
        Task::Status => Ok(ebpf::status(&settings?)?),
    }
}

fn parse(args: &[String]) -> Result<(Task, Output), String> {
    let Some((task, rest)) = args.split_first() else {
        return Err("setup, teardown or status?".to_owned());
    };
    let task = match task.as_str() {
        "setup" => Task::Setup,
        "teardown" => Task::Teardown,
        "status" => Task::Status,
        other => return Err(format!("unknown task {other:?}")),
    };
    let value = match rest {
        [] => return Ok((task, Output::Text)),
        [one] => one.strip_prefix("--output=").ok_or_else(|| format!("unknown argument {one:?}"))?,
        [name, value] if name == "--output" || name == "-o" => value.as_str(),
        [other, ..] => return Err(format!("unknown argument {other:?}")),
    };
    match value {
        "text" => Ok((task, Output::Text)),
        "json" => Ok((task, Output::Json)),
        other => Err(format!("--output is text or json, not {other:?}")),
    }
}

fn print_text(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let state = match (status.is_set_up, status.is_current) {
        _ if ebpf::object().is_none() => "absent: this binary was built without them",
        (true, true) => "loaded",
        (true, false) => "loaded, of another version: `slipway node setup` replaces them",
        (false, _) if !status.served_elsewhere.is_empty() => {
            "not to be found here: their maps are pinned in another mount namespace"
        }
        (false, _) => "not loaded: nftables serves everything",
    };
    writeln!(out, "programs    {state}")?;
    if status.is_set_up {
        writeln!(out, "uplinks     {}", status.uplinks.join(", "))?;
        for left in &status.uplinks_without {
            writeln!(out, "without     {}: {}", left.name, left.why)?;
        }
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
    for (counter, count) in &status.counters {
        writeln!(out, "counter     {counter:?}: {count}")?;
    }
    for (counter, count) in &status.dropped {
        writeln!(out, "dropped     {}: {count} ({})", drop_name(*counter), why_dropped(*counter))?;
    }
    for (reason, count) in &status.left {
        writeln!(out, "left        {reason:?}: {count} ({})", why_left(*reason))?;
    }
    Ok(())
}

/// Without what all drops begin with.
fn drop_name(counter: Counter) -> String {
    let name = format!("{counter:?}");
    name.strip_prefix("Drop").map_or(name.clone(), str::to_owned)
}

fn why_dropped(counter: Counter) -> &'static str {
    match counter {
        Counter::DropTooBig => "larger than the route takes, after the conversation had begun",
        Counter::DropWrite => "the kernel refused to change the packet",
        _ => "no port was free",
    }
}

fn why_left(reason: Reason) -> &'static str {
    match reason {
        Reason::Direct => "the container's own address was asked for: nothing to translate",
        Reason::Mtu => "the uplink takes larger packets than the container, or the other way round",
        Reason::Full => "the map of conversations takes no more",
        Reason::Clash => "no source port tells this conversation from another one",
        Reason::NoPort => "no port for masquerade is free towards this destination",
        Reason::Earlier => "netfilter had the conversation before the programs served the container",
        Reason::NodeSocket => "a socket of the node has this port",
        Reason::UnknownAddress => "an address that the programs do not know: `slipway node setup`",
        Reason::NotForwarding => "forwarding is off at the interface",
        Reason::PodGone => "the container is gone",
        Reason::NoAddress => {
            "the uplink's address for masquerade is not certain: none, several, or a new one"
        }
        Reason::Router => "the container has sent it to another router on its link",
        Reason::Route => "the route leads to no uplink",
        Reason::TooBig => "larger than the route takes: the sender is told",
        Reason::Ttl => "the time to live ended here",
        Reason::Fragment => "a piece of a packet whose first piece was not seen",
        Reason::Headers => "extension headers that the programs do not read",
        Reason::Pod => "the container's rate is limited, or it is kept apart from others",
    }
}

fn print_json(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let counters: serde_json::Map<_, _> =
        status.counters.iter().map(|(counter, count)| (format!("{counter:?}"), json!(count))).collect();
    let dropped: serde_json::Map<_, _> =
        status.dropped.iter().map(|(counter, count)| (drop_name(*counter), json!(count))).collect();
    let left: serde_json::Map<_, _> =
        status.left.iter().map(|(reason, count)| (format!("{reason:?}"), json!(count))).collect();
    let (group, why) = match &status.sockets {
        Some(Sockets::At(group)) => (Some(group.display().to_string()), None),
        Some(Sockets::Not(why)) => (None, Some(why)),
        None => (None, None),
    };
    let without: Vec<_> =
        status.uplinks_without.iter().map(|left| json!({"name": left.name, "why": left.why})).collect();
    let value = json!({
        "builtIn": ebpf::object().is_some(),
        "setUp": status.is_set_up,
        "current": status.is_current,
        "uplinks": status.uplinks,
        "uplinksWithout": without,
        "servedElsewhere": status.served_elsewhere,
        "sockets": group,
        "socketsLeft": why,
        "masqueradePorts": status.masquerade_ports.map(|ports| ports.to_string()),
        "masqueradeClash": status.masquerade_clash,
        "services": status.services,
        "containers": status.containers,
        "containersLeft": status.containers_left,
        "ports": status.ports,
        "portsLeft": status.ports_left,
        "counters": counters,
        "dropped": dropped,
        "left": left,
    });
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use cni_dataplane::ebpf::{PortRange, Without};

    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn arguments() {
        assert_eq!(parse(&args("setup")), Ok((Task::Setup, Output::Text)));
        assert_eq!(parse(&args("status -o json")), Ok((Task::Status, Output::Json)));
        assert_eq!(parse(&args("teardown --output=text")), Ok((Task::Teardown, Output::Text)));
        for wrong in ["", "up", "setup now", "status --output xml"] {
            assert!(parse(&args(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_there_is_said() {
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
        };
        let mut text = Vec::new();
        print_text(&status, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.ends_with(
                "uplinks     eth0, eth1\nwithout     eth2: no such interface\nsockets     /sys/fs/cgroup\nmasquerade  with ports 61000-65535\ncontainers  2, 1 of them left to nftables\nports       3, served by nftables\n\
                 counter     Published: 7\n\
                 dropped     Write: 1 (the kernel refused to change the packet)\n\
                 left        Ttl: 2 (the time to live ended here)\n"
            ),
            "{text}"
        );
        let mut json = Vec::new();
        print_json(&status, &mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!((&json["ports"], &json["counters"]["Published"]), (&json!(3), &json!(7)));
    }
}
