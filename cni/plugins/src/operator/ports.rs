//! `slipway ports`: what is published on this node, and who owns it.

use std::io::{self, Write};
use std::net::IpAddr;

use cni_dataplane::nftables::Nftables;
use cni_dataplane::{Backend, Dataplane, HostAddress, Listed};
use serde_json::{Value, json};

/// Arguments of `slipway ports`.
pub const USAGE: &str = "[--network NAME] [--container ID] [--output table|json]";

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    network: Option<String>,
    container: Option<String>,
    json: bool,
}

/// Prints the published ports: exit code 0 (also when there are none), 1 when they cannot be read,
/// 2 for wrong arguments.
pub fn ports_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let options = match parse(args) {
        Ok(options) => options,
        Err(reason) => return said(writeln!(err, "slipway ports: {reason}"), 2),
    };
    let mut listed = match Dataplane::default().list() {
        Ok(listed) => listed,
        Err(error) => return said(writeln!(err, "slipway ports: {error}"), 1),
    };
    listed.retain(|one| options.includes(one));
    // Without conntrack the list is still worth printing.
    let connections = match Nftables::new().connections(&listed) {
        Ok(connections) => connections.into_iter().map(Some).collect(),
        Err(error) => {
            if writeln!(err, "slipway ports: connections are not counted: {error}").is_err() {
                return 1;
            }
            vec![None; listed.len()]
        }
    };
    let rows: Vec<(Listed, Option<usize>)> = listed.into_iter().zip(connections).collect();
    said(if options.json { print_json(&rows, out) } else { print_table(&rows, out) }, 0)
}

fn said(written: io::Result<()>, code: u8) -> u8 {
    written.map_or(1, |()| code)
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        if !["--network", "--container", "--output", "-o"].contains(&name) {
            return Err(format!("unknown argument {arg:?}"));
        }
        let value = inline.or_else(|| args.next().cloned()).ok_or_else(|| format!("{name} needs a value"))?;
        match name {
            "--network" => options.network = Some(value),
            "--container" => options.container = Some(value),
            _ => options.json = parse_output(&value)?,
        }
    }
    Ok(options)
}

fn parse_output(value: &str) -> Result<bool, String> {
    match value {
        "json" => Ok(true),
        "table" => Ok(false),
        other => Err(format!("--output is table or json, not {other:?}")),
    }
}

impl Options {
    fn includes(&self, listed: &Listed) -> bool {
        let owner = listed.owner.as_ref();
        let network = |wanted: &String| owner.is_some_and(|owner| same(&owner.network, wanted));
        let container = |wanted: &String| {
            owner
                .is_some_and(|o| o.container_id.starts_with(wanted.as_str()) || same(&o.container_id, wanted))
        };
        self.network.as_ref().is_none_or(network) && self.container.as_ref().is_none_or(container)
    }
}

/// Whether a name as elements carry it (cut to fit, `~` at the end) can be the one that is wanted.
fn same(carried: &str, wanted: &str) -> bool {
    match carried.strip_suffix('~') {
        Some(begin) => wanted.starts_with(begin),
        None => carried == wanted,
    }
}

const HEADER: [&str; 7] = ["NETWORK", "CONTAINER", "INTERFACE", "PROTOCOL", "HOST", "TARGET", "CONNECTIONS"];

fn print_table(rows: &[(Listed, Option<usize>)], out: &mut dyn Write) -> io::Result<()> {
    let lines: Vec<[String; 7]> =
        rows.iter().map(|(listed, connections)| line(listed, *connections)).collect();
    let mut widths = HEADER.map(str::len);
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut put = |cells: [&str; 7]| {
        let padded: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        writeln!(out, "{}", padded.join("  ").trim_end())
    };
    put(HEADER)?;
    for line in &lines {
        put(line.each_ref().map(String::as_str))?;
    }
    Ok(())
}

fn line(listed: &Listed, connections: Option<usize>) -> [String; 7] {
    let unknown = || "-".to_owned();
    let (network, container, ifname) = match &listed.owner {
        // Twelve characters are what people know a container by.
        Some(o) => (o.network.clone(), o.container_id.chars().take(12).collect(), o.ifname.clone()),
        None => (unknown(), unknown(), unknown()),
    };
    let port = &listed.port;
    let run =
        |first: u16, last: u16| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let host = format!("{}:{}", port.host.address, run(port.host.first, port.host.last));
    let target = match port.container {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let target = format!("{target}:{}", run(port.container_port, port.last_container_port()));
    let connections = connections.map_or_else(unknown, |count| count.to_string());
    [network, container, ifname, port.host.protocol.to_string(), host, target, connections]
}

fn print_json(rows: &[(Listed, Option<usize>)], out: &mut dyn Write) -> io::Result<()> {
    let all: Vec<Value> = rows.iter().map(|(listed, connections)| object(listed, *connections)).collect();
    serde_json::to_writer_pretty(&mut *out, &all)?;
    writeln!(out)
}

fn object(listed: &Listed, connections: Option<usize>) -> Value {
    let port = &listed.port;
    let host_ip = match port.host.address {
        HostAddress::Any(cni_dataplane::AddressFamily::V4) => "0.0.0.0".to_owned(),
        HostAddress::Any(cni_dataplane::AddressFamily::V6) => "::".to_owned(),
        HostAddress::One(address) => address.to_string(),
    };
    let owner = listed.owner.as_ref();
    json!({
        "network": owner.map(|owner| &owner.network),
        "container": owner.map(|owner| &owner.container_id),
        "interface": owner.map(|owner| &owner.ifname),
        "protocol": port.host.protocol.as_str(),
        "hostIP": host_ip,
        "hostPort": port.host.first,
        "hostPortEnd": port.host.last,
        "containerIP": port.container.to_string(),
        "containerPort": port.container_port,
        "connections": connections,
    })
}

#[cfg(test)]
mod tests {
    use cni_dataplane::{AddressFamily, HostPorts, Owner, Protocol, PublishedPort};
    use cni_spec::Attachment;
    use expect_test::expect;

    use super::*;

    fn rows() -> Vec<(Listed, Option<usize>)> {
        let id = "0123456789abcdef".repeat(4);
        let owner = Owner::of(&Attachment::new("k8s-pod-network", &id, "eth0").unwrap());
        let host = HostPorts {
            protocol: Protocol::Tcp,
            address: HostAddress::Any(AddressFamily::V4),
            first: 8080,
            last: 8080,
        };
        let port = PublishedPort { host, container: [10, 88, 0, 2].into(), container_port: 80 };
        let address = HostAddress::One("2001:db8::1".parse().unwrap());
        let run = HostPorts { protocol: Protocol::Udp, address, first: 9000, last: 9099 };
        let run = PublishedPort { host: run, container: "fd00::2".parse().unwrap(), container_port: 9000 };
        vec![(Listed { owner: Some(owner), port }, Some(3)), (Listed { owner: None, port: run }, None)]
    }

    fn printed(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_lines_up() {
        expect![[r#"
            NETWORK          CONTAINER     INTERFACE  PROTOCOL  HOST                     TARGET               CONNECTIONS
            k8s-pod-network  0123456789ab  eth0       tcp       0.0.0.0:8080             10.88.0.2:80         3
            -                -             -          udp       [2001:db8::1]:9000-9099  [fd00::2]:9000-9099  -
        "#]]
        .assert_eq(&printed(|out| print_table(&rows(), out)));
    }

    #[test]
    fn nothing_published_is_a_header_or_an_empty_list() {
        assert_eq!(printed(|out| print_table(&[], out)).lines().count(), 1);
        assert_eq!(printed(|out| print_json(&[], out)), "[]\n");
    }

    #[test]
    fn json_has_everything() {
        let all: Value = serde_json::from_str(&printed(|out| print_json(&rows(), out))).unwrap();
        assert_eq!(all[0]["hostIP"], "0.0.0.0");
        assert_eq!(all[0]["connections"], 3);
        assert_eq!((&all[1]["hostPort"], &all[1]["hostPortEnd"]), (&json!(9000), &json!(9099)));
        assert_eq!(all[1]["network"], Value::Null);
    }

    #[test]
    fn arguments() {
        let parse = |args: &[&str]| parse(&args.iter().map(|&a| a.to_owned()).collect::<Vec<_>>());
        assert!(parse(&["--output=json"]).unwrap().json);
        assert_eq!(parse(&["--network", "a"]).unwrap().network.as_deref(), Some("a"));
        assert_eq!(parse(&["--output", "xml"]).unwrap_err(), "--output is table or json, not \"xml\"");
        assert_eq!(parse(&["--network"]).unwrap_err(), "--network needs a value");
        assert_eq!(parse(&["what"]).unwrap_err(), "unknown argument \"what\"");
    }

    #[test]
    fn filters_know_cut_names() {
        let options = Options { network: Some("k8s-pod-network".to_owned()), ..Options::default() };
        let of: Vec<bool> = rows().iter().map(|(listed, _)| options.includes(listed)).collect();
        assert_eq!(of, [true, false]);
        let by_id = Options { container: Some("0123".to_owned()), ..Options::default() };
        assert!(by_id.includes(&rows()[0].0));
        assert!(same("abc~", "abcdef") && !same("abc~", "abX"));
    }
}
