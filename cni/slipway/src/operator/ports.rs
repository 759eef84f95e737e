// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway ports`: the published ports of this node, with their owners.

use std::io::{self, Write};
use std::net::IpAddr;

use cni_dataplane::{Backend, Dataplane, Listed, Traffic};
use cni_state::documents::{PortOwners, Ports};

use super::filter::Filter;
use slipway_cli::{Failure, Output};
use slipway_cli::{columns, json};

use super::names;

/// List published ports, their owners and connections
///
/// Packets and bytes are those that conntrack or the BPF programs have counted; `-` where nothing counts. CONNECTIONS is
/// the number of flows that exist now. `slipwayd top` shows rates.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  slipway ports --network pods
  slipway ports --container 3f29 --output json")]
pub(super) struct Args {
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    output: Output,
}

type Row = (Listed, Option<Traffic>);

/// Prints the published ports.
pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let dataplane = Dataplane::default();
    let mut listed = dataplane.list().map_err(Failure::failed)?;
    listed.retain(|one| args.filter.includes(one.owner.as_ref()));
    // Without conntrack the list is still worth printing.
    let traffic = match dataplane.traffic(&listed) {
        Ok(traffic) => traffic.into_iter().map(Some).collect(),
        Err(error) => {
            writeln!(err, "slipway ports: connections are not counted: {error}")?;
            vec![None; listed.len()]
        }
    };
    let rows: Vec<Row> = listed.into_iter().zip(traffic).collect();
    if args.output.json() {
        json::print(document(&rows), out)?;
    } else {
        print_table(&rows, out)?;
    }
    Ok(0)
}

const HEADER: [&str; 10] = [
    "NETWORK",
    "CONTAINER",
    "INTERFACE",
    "PROTOCOL",
    "HOST",
    "TARGET",
    "BACKEND",
    "CONNECTIONS",
    "PACKETS",
    "BYTES",
];

fn print_table(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    let lines: Vec<[String; 10]> = rows.iter().map(|(listed, traffic)| line(listed, *traffic)).collect();
    columns::print(HEADER, &lines, out)
}

fn line(listed: &Listed, traffic: Option<Traffic>) -> [String; 10] {
    let unknown = || "-".to_owned();
    let (network, container, ifname) = match &listed.owner {
        Some(o) => (o.network.clone(), names::short(&o.container_id), o.ifname.clone()),
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
    let connections = traffic.map_or_else(unknown, |traffic| traffic.connections.to_string());
    let (packets, bytes) = match traffic.and_then(|traffic| traffic.counted) {
        Some((packets, bytes)) => (packets.to_string(), bytes.to_string()),
        None => (unknown(), unknown()),
    };
    let (protocol, backend) = (port.host.protocol.to_string(), listed.backend.as_str().to_owned());
    [network, container, ifname, protocol, host, target, backend, connections, packets, bytes]
}

/// The document of `slipway ports`.
fn document(rows: &[Row]) -> Ports {
    let mut owners = PortOwners::default();
    let ports = rows.iter().map(|(listed, traffic)| listed.document(*traffic, &mut owners)).collect();
    Ports { attachments: owners.into_list(), ports }
}

#[cfg(test)]
mod tests {
    use cni_dataplane::{AddressFamily, BackendName, HostAddress, HostPorts, Owner, Protocol, PublishedPort};
    use cni_spec::Attachment;
    use expect_test::expect;

    use super::*;

    fn rows() -> Vec<Row> {
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
        let traffic = Traffic { connections: 3, counted: Some((30, 3000)) };
        let fast = Listed { owner: Some(owner), port, backend: BackendName::Ebpf };
        let by_hand = Listed { owner: None, port: run, backend: BackendName::Nftables };
        vec![(fast, Some(traffic)), (by_hand, None)]
    }

    fn printed(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_is_aligned() {
        expect![[r#"
            NETWORK          CONTAINER     INTERFACE  PROTOCOL  HOST                     TARGET               BACKEND   CONNECTIONS  PACKETS  BYTES
            k8s-pod-network  0123456789ab  eth0       tcp       0.0.0.0:8080             10.88.0.2:80         ebpf      3            30       3000
            -                -             -          udp       [2001:db8::1]:9000-9099  [fd00::2]:9000-9099  nftables  -            -        -
        "#]]
        .assert_eq(&printed(|out| print_table(&rows(), out)));
    }

    #[test]
    fn without_ports_there_is_a_header_or_an_empty_list() {
        assert_eq!(printed(|out| print_table(&[], out)).lines().count(), 1);
        assert!(document(&[]).ports.is_empty());
    }

    /// A port takes the same space, however long its owner's names are.
    #[test]
    fn the_size_of_a_port_does_not_depend_on_its_owner() {
        let size = |id: &str, count: usize| {
            let (listed, traffic) = rows().remove(0);
            let owner = Owner::of(&Attachment::new("pods", id, "eth0").unwrap());
            let row = (Listed { owner: Some(owner), ..listed }, traffic);
            printed(|out| json::print(document(&vec![row; count]), out)).len()
        };
        let long = "0123456789abcdef".repeat(4);
        assert_eq!(size(&long, 100) - size("web", 100), long.len() - "web".len());
    }

    #[test]
    fn json_has_everything() {
        let document = document(&rows());
        slipway_cli::checks::assert_documented("slipway ports", &[document.clone(), super::document(&[])]);
        let [container, by_hand] = &document.ports[..] else { panic!("{document:?}") };
        assert_eq!(container.host_ip.to_string(), "0.0.0.0");
        assert_eq!((container.connections, container.bytes), (Some(3), Some(3000)));
        assert_eq!((container.backend.as_str(), by_hand.bytes), ("ebpf", None));
        assert_eq!((by_hand.host_port, by_hand.host_port_end), (9000, 9099));
        assert_eq!((container.attachment, by_hand.attachment), (Some(0), None));
        assert_eq!(document.attachments[0].network, "k8s-pod-network");
    }
}
