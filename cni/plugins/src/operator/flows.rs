// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway flows`: the flows that the BPF programs track.

use std::io::{self, Write};

use cni_dataplane::ebpf::{self, Direction, Ends, KnownFlow, Plane, State};
use serde_json::{Value, json};

use super::filter::Filter;
use slipway_cli::{Failure, Given};
use slipway_cli::{columns, json};

use super::names;

/// Prints the flows.
pub(super) fn run(given: &Given, out: &mut dyn Write, _err: &mut dyn Write) -> Result<u8, Failure> {
    let filter = Filter::new(given);
    let mut flows = ebpf::flows().map_err(Failure::failed)?;
    flows.retain(|flow| filter.includes(flow.owner.as_ref()));
    if given.json() {
        json::print(document(&flows), out)?;
    } else {
        print_table(&flows, out)?;
    }
    Ok(0)
}

const HEADER: [&str; 12] = [
    "NETWORK",
    "CONTAINER",
    "PROTOCOL",
    "STATE",
    "SERVED",
    "FROM",
    "TO",
    "BECOMES",
    "PACKETS",
    "BYTES",
    "REPLIES",
    "IDLE",
];

fn print_table(flows: &[KnownFlow], out: &mut dyn Write) -> io::Result<()> {
    let lines: Vec<[String; 12]> = flows.iter().map(line).collect();
    columns::print(HEADER, &lines, out)
}

fn line(flow: &KnownFlow) -> [String; 12] {
    let (network, container) = match &flow.owner {
        Some(owner) => (owner.network.clone(), names::short(&owner.container_id)),
        None => ("-".to_owned(), flow.container.to_string()),
    };
    let (source, destination) = flow.first.before;
    let counted = |direction: Option<Direction>| direction.and_then(|direction| direction.counted);
    let number = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
    let (original, reply) = (counted(Some(flow.first)), counted(flow.answers));
    let idle = if flow.idle.as_secs() < 2 { "-".to_owned() } else { format!("{} s", flow.idle.as_secs()) };
    [
        network,
        container,
        protocol(flow.protocol),
        state(flow).to_owned(),
        served(flow.plane),
        source.to_string(),
        destination.to_string(),
        becomes(flow.first),
        number(original.map(|(packets, _)| packets)),
        number(original.map(|(_, bytes)| bytes)),
        number(reply.map(|(packets, _)| packets)),
        idle,
    ]
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        other => other.to_string(),
    }
}

/// The state, in the words of conntrack.
fn state(flow: &KnownFlow) -> &'static str {
    match flow.state {
        State::SynSent => "SYN_SENT",
        State::SynReceived => "SYN_RECV",
        State::Established => "ESTABLISHED",
        State::FinWait => "FIN_WAIT",
        State::CloseWait => "CLOSE_WAIT",
        State::LastAck => "LAST_ACK",
        State::TimeWait => "TIME_WAIT",
        State::Close => "CLOSE",
        State::Unreplied => "UNREPLIED",
        State::Replied => "REPLIED",
        State::Stream => "STREAM",
        State::Echo => "ECHO",
    }
}

fn served(plane: Plane) -> String {
    match plane {
        Plane::Published => "ebpf (port)".to_owned(),
        Plane::Masqueraded => "ebpf (masquerade)".to_owned(),
        Plane::Left(reason) => format!("netfilter ({})", names::of_reason(reason)),
    }
}

/// The ends that the translation changes.
fn becomes(direction: Direction) -> String {
    let (before, after): (Ends, Ends) = (direction.before, direction.after);
    let mut changed = Vec::new();
    if before.0 != after.0 {
        changed.push(format!("from {}", after.0));
    }
    if before.1 != after.1 {
        changed.push(format!("to {}", after.1));
    }
    if changed.is_empty() { "-".to_owned() } else { changed.join(" ") }
}

/// The document of `slipway flows`.
fn document(flows: &[KnownFlow]) -> Value {
    json!({ "flows": flows.iter().map(object).collect::<Vec<_>>() })
}

fn object(flow: &KnownFlow) -> Value {
    let owner = flow.owner.as_ref();
    let (kind, reason) = match flow.plane {
        Plane::Published => ("published", None),
        Plane::Masqueraded => ("masqueraded", None),
        Plane::Left(reason) => ("netfilter", Some(names::of_reason(reason))),
    };
    json!({
        "network": owner.map(|owner| &owner.network),
        "container": owner.map(|owner| &owner.container_id),
        "interface": owner.map(|owner| &owner.ifname),
        "container_ip": flow.container.to_string(),
        "protocol": protocol(flow.protocol),
        "state": state(flow),
        "established": flow.is_established,
        "kind": kind,
        "reason": reason,
        "idle_seconds": flow.idle.as_secs(),
        "original": direction(flow.first),
        "reply": flow.answers.map(direction),
    })
}

fn direction(direction: Direction) -> Value {
    let (before, after) = (direction.before, direction.after);
    json!({
        "source": before.0.to_string(),
        "destination": before.1.to_string(),
        "translated_source": after.0.to_string(),
        "translated_destination": after.1.to_string(),
        "packets": direction.counted.map(|(packets, _)| packets),
        "bytes": direction.counted.map(|(_, bytes)| bytes),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cni_dataplane::Owner;
    use cni_dataplane::ebpf::Reason;
    use cni_spec::Attachment;
    use expect_test::expect;

    use super::*;

    fn flows() -> [KnownFlow; 2] {
        let ends = |source: &str, destination: &str| (source.parse().unwrap(), destination.parse().unwrap());
        let owner = Owner::of(&Attachment::new("pods", "web1", "eth0").unwrap());
        let published = KnownFlow {
            protocol: 6,
            state: State::Established,
            is_established: true,
            plane: Plane::Published,
            first: Direction {
                before: ends("192.0.2.9:40000", "192.0.2.2:8080"),
                after: ends("192.0.2.9:40000", "10.22.0.2:80"),
                counted: Some((3, 300)),
            },
            answers: Some(Direction {
                before: ends("10.22.0.2:80", "192.0.2.9:40000"),
                after: ends("192.0.2.2:8080", "192.0.2.9:40000"),
                counted: None,
            }),
            idle: Duration::from_secs(7),
            container: [10, 22, 0, 2].into(),
            owner: Some(owner),
        };
        let left = KnownFlow {
            protocol: 17,
            state: State::Unreplied,
            is_established: false,
            plane: Plane::Left(Reason::Mtu),
            first: Direction {
                before: ends("[fd00::2]:5353", "[2001:db8::1]:53"),
                after: ends("[fd00::2]:5353", "[2001:db8::1]:53"),
                counted: Some((1, 90)),
            },
            answers: None,
            idle: Duration::ZERO,
            container: "fd00::2".parse().unwrap(),
            owner: None,
        };
        [published, left]
    }

    fn printed(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_is_aligned() {
        expect![[r#"
            NETWORK  CONTAINER  PROTOCOL  STATE        SERVED           FROM             TO                BECOMES          PACKETS  BYTES  REPLIES  IDLE
            pods     web1       tcp       ESTABLISHED  ebpf (port)      192.0.2.9:40000  192.0.2.2:8080    to 10.22.0.2:80  3        300    -        7 s
            -        fd00::2    udp       UNREPLIED    netfilter (mtu)  [fd00::2]:5353   [2001:db8::1]:53  -                1        90     -        -
        "#]].assert_eq(&printed(|out| print_table(&flows(), out)));
    }

    #[test]
    fn json_has_both_directions() {
        let document = document(&flows());
        let [published, _] = flows();
        let counted = |direction: Direction, counted| Direction { counted, ..direction };
        let swapped = KnownFlow {
            first: counted(published.first, None),
            answers: published.answers.map(|reply| counted(reply, Some((2, 200)))),
            ..published
        };
        slipway_cli::checks::assert_documented(
            "slipway flows",
            &[document.clone(), super::document(&[swapped])],
        );
        let [published, left] = [&document["flows"][0], &document["flows"][1]];
        assert_eq!(published["original"]["translated_destination"], "10.22.0.2:80");
        assert_eq!(
            (&published["original"]["packets"], &published["reply"]["packets"]),
            (&json!(3), &Value::Null)
        );
        assert_eq!(published["reply"]["translated_source"], "192.0.2.2:8080");
        assert_eq!((&left["kind"], &left["reason"]), (&json!("netfilter"), &json!("mtu")));
        assert_eq!(left["network"], Value::Null);
    }
}
