// SPDX-License-Identifier: GPL-2.0-or-later

//! `cni_nftables::conntrack` on the running kernel, in separate network namespaces.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use cni_kernel::AddressFamily;
use cni_nftables::conntrack::{Conntrack, Filter, Flow, NewFlow, Tuple};
use slipway_tests::in_namespace;

/// Inserts a flow with a translated destination into the conntrack table.
fn insert(protocol: &str, source: &str, (host, port): (&str, u16), (pod, pod_port): (&str, u16)) {
    let port = port.to_string();
    let target = if pod.contains(':') { format!("[{pod}]:{pod_port}") } else { format!("{pod}:{pod_port}") };
    let mut command = Command::new("conntrack");
    command.args(["-I", "-p", protocol, "-s", source, "-d", host, "--sport", "40000", "--dport", &port]);
    command.args(["--reply-src", host, "--reply-dst", source, "--reply-port-src", &port]);
    command.args(["--reply-port-dst", "40000", "-t", "100", "--dst-nat", &target]);
    if protocol == "tcp" {
        command.args(["--state", "ESTABLISHED"]);
    }
    let output = command.output().expect("start conntrack");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn fill() {
    for source in ["192.0.2.1", "192.0.2.2"] {
        insert("udp", source, ("10.0.0.1", 53), ("10.9.0.2", 5353));
        insert("udp", source, ("10.0.0.2", 53), ("10.9.0.3", 5353));
        insert("udp", source, ("10.0.0.1", 54), ("10.9.0.2", 5353));
        insert("tcp", source, ("10.0.0.1", 53), ("10.9.0.2", 5353));
    }
    insert("udp", "2001:db8::1", ("fd00::1", 53), ("fd00:9::2", 5353));
    insert("udp", "2001:db8::1", ("fd00::2", 53), ("fd00:9::3", 5353));
}

fn all(family: Option<AddressFamily>) -> Filter {
    Filter { family, protocol: None, destinations: vec![], port: None, reply_source: None, status: 0 }
}

fn udp(family: Option<AddressFamily>, destinations: &[&str], port: u16) -> Filter {
    let destinations: Vec<IpAddr> = destinations.iter().map(|text| text.parse().unwrap()).collect();
    Filter { protocol: Some(17), destinations, port: Some(port), ..all(family) }
}

#[test]
fn filters_select_flows() {
    in_namespace(|| {
        let conntrack = Conntrack::open().unwrap();
        assert_eq!(conntrack.count(&all(Some(AddressFamily::V4))).unwrap(), 0);
        fill();
        let count = |filter: &Filter| conntrack.count(filter).unwrap();
        assert_eq!(count(&all(Some(AddressFamily::V4))), 8);
        assert_eq!(count(&all(Some(AddressFamily::V6))), 2);
        assert_eq!(count(&udp(Some(AddressFamily::V4), &[], 53)), 4);
        assert_eq!(count(&udp(Some(AddressFamily::V4), &["10.0.0.1"], 53)), 2);
        assert_eq!(count(&udp(Some(AddressFamily::V4), &["10.0.0.1", "10.0.0.2"], 53)), 4);
        assert_eq!(count(&udp(Some(AddressFamily::V4), &["10.0.0.3"], 53)), 0);
        let to = |source: &str| Filter {
            reply_source: Some(source.parse().unwrap()),
            ..all(Some(AddressFamily::V4))
        };
        assert_eq!(count(&to("10.9.0.2")), 6);
        assert_eq!(count(&Filter { port: Some(54), ..all(Some(AddressFamily::V4)) }), 2);
        let mut flows = Vec::new();
        conntrack
            .for_each(&udp(Some(AddressFamily::V6), &["fd00::1"], 53), |flow| flows.push(*flow))
            .unwrap();
        let [flow] = flows.as_slice() else { panic!("{flows:?}") };
        assert_eq!(flow.original.source, "2001:db8::1".parse::<IpAddr>().unwrap());
        assert_eq!((flow.original.source_port, flow.original.destination_port), (40000, 53));
        assert_eq!(flow.reply.source, "fd00:9::2".parse::<IpAddr>().unwrap());
        assert_eq!((flow.reply.source_port, flow.reply.protocol), (5353, 17));
        assert!(flow.is_dnat());
    });
}

#[test]
fn only_flows_that_pass_the_filter_are_deleted() {
    in_namespace(|| {
        fill();
        let conntrack = Conntrack::open().unwrap();
        assert_eq!(conntrack.delete(&udp(Some(AddressFamily::V4), &["10.0.0.1"], 53)).unwrap(), 2);
        assert_eq!(conntrack.delete(&udp(Some(AddressFamily::V4), &["10.0.0.1"], 53)).unwrap(), 0);
        assert_eq!(conntrack.count(&all(Some(AddressFamily::V4))).unwrap(), 6);
        let tcp = Filter { protocol: Some(6), ..udp(Some(AddressFamily::V4), &["10.0.0.1"], 53) };
        assert_eq!(conntrack.count(&tcp).unwrap(), 2);
        assert_eq!(conntrack.delete(&udp(Some(AddressFamily::V6), &["fd00::1", "fd00::3"], 53)).unwrap(), 1);
        assert_eq!(conntrack.count(&all(Some(AddressFamily::V6))).unwrap(), 1);
        // A filter whose addresses are all of the other family matches no flow.
        assert_eq!(conntrack.delete(&udp(Some(AddressFamily::V4), &["fd00::2"], 53)).unwrap(), 0);
    });
}

/// Kernels from 5.8 on filter dumps themselves. Without that, the whole table of a busy node would be copied for each
/// container.
#[test]
fn the_kernel_filters_its_dump() {
    in_namespace(|| {
        fill();
        let conntrack = Conntrack::open().unwrap();
        let answered = |filter: &Filter| conntrack.for_each(filter, |_| {}).unwrap();
        assert_eq!(answered(&udp(Some(AddressFamily::V4), &["10.0.0.1"], 53)), 2);
        assert_eq!(answered(&udp(Some(AddressFamily::V4), &[], 53)), 4);
        assert_eq!(answered(&udp(Some(AddressFamily::V6), &["fd00::1"], 54)), 0);
        let source = Some("10.9.0.3".parse().unwrap());
        assert_eq!(answered(&Filter { reply_source: source, ..udp(Some(AddressFamily::V4), &[], 53) }), 2);
    });
}

/// A flow whose two addresses are both translated.
fn new(
    protocol: u8,
    (source, source_port): (&str, u16),
    (destination, destination_port): (&str, u16),
    (new_source, new_source_port): (&str, u16),
    (new_destination, new_destination_port): (&str, u16),
) -> NewFlow {
    let tuple = |source: &str, source_port, destination: &str, destination_port| Tuple {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol,
        source_port,
        destination_port,
    };
    NewFlow {
        original: tuple(source, source_port, destination, destination_port),
        translated: tuple(new_source, new_source_port, new_destination, new_destination_port),
        seen_reply: true,
        is_assured: true,
        tcp_state: (protocol == 6).then_some(3),
        timeout: Duration::from_secs(100),
    }
}

#[test]
fn inserted_flows_translate_both_ends() {
    in_namespace(|| {
        let conntrack = Conntrack::open().unwrap();
        let published =
            new(6, ("192.0.2.9", 40000), ("192.0.2.2", 8080), ("192.0.2.9", 1024), ("10.0.0.5", 80));
        let masqueraded =
            new(17, ("10.0.0.5", 5000), ("192.0.2.9", 53), ("192.0.2.2", 61000), ("192.0.2.9", 53));
        let echo = new(1, ("10.0.0.5", 77), ("192.0.2.9", 0), ("192.0.2.2", 78), ("192.0.2.9", 0));
        let v6 =
            new(6, ("2001:db8::9", 40000), ("2001:db8::2", 80), ("2001:db8::9", 40000), ("fd00::5", 8080));
        let echo6 = new(58, ("fd00::5", 1), ("2001:db8::9", 0), ("2001:db8::2", 2), ("2001:db8::9", 0));
        let all_of = [published, masqueraded, echo, v6, echo6];
        for flow in &all_of {
            conntrack.insert(flow).unwrap_or_else(|e| panic!("{flow:?}: {e}"));
        }
        let listed = || {
            let mut flows = Vec::new();
            conntrack.for_each(&all(None), |flow| flows.push(*flow)).unwrap();
            flows
        };
        let flows = listed();
        assert_eq!(flows.len(), all_of.len(), "{flows:#?}");
        for wanted in &all_of {
            let found = flows.iter().find(|flow| flow.original == wanted.original).expect("the flow");
            assert_eq!(found.reply, wanted.translated.reversed(), "{found:?}");
            assert_eq!(found.tcp_state, wanted.tcp_state, "{found:?}");
            assert_ne!(found.status & Flow::SEEN_REPLY, 0, "{found:?}");
        }
        assert!(flows.iter().find(|flow| flow.original == v6.original).expect("the flow").is_dnat());
        // A new connection between the same addresses and ports replaces the old flow.
        let closing = NewFlow { tcp_state: Some(7), ..published };
        conntrack.insert(&closing).unwrap();
        let elsewhere =
            new(6, ("192.0.2.9", 40001), ("192.0.2.3", 8080), ("192.0.2.9", 1024), ("10.0.0.5", 80));
        conntrack.insert(&elsewhere).unwrap();
        let flows = listed();
        assert_eq!(flows.len(), all_of.len(), "{flows:#?}");
        assert!(!flows.iter().any(|flow| flow.original == published.original), "{flows:#?}");
        assert!(
            conntrack
                .insert(&new(132, ("10.0.0.5", 1), ("10.0.0.6", 2), ("10.0.0.5", 1), ("10.0.0.7", 2)))
                .is_err()
        );
    });
}
