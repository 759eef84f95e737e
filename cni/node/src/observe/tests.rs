// SPDX-License-Identifier: GPL-3.0-or-later

//! The state after comparisons; and the pages, the dashboard and the rules against the metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use cni_kernel::route::PublicKey;
use cni_kernel::tables::Fill;
use cni_state::documents::{AddressRange, BpfMap, BpfNode, Port};
use cni_state::report::{InvalidReport, Report as Call, Verb};
use serde_json::Value;
use slipway_cli::checks::assert_documented;

use super::addresses::AddressUsage;
use super::dataplane::DataplaneView;
use super::metrics::Outcome;
use super::*;
use crate::cluster::annotations::Annotations;
use crate::cluster::desired::{
    self, Desired, OwnSubnets, PeerRoute, Tunnel, TunnelMode, Via, WireGuard, WireGuardPeer,
};
use crate::cluster::nodes::Nodes;
use crate::cluster::problem::{Problem, ProblemKind};
use crate::cluster::routes::Conflict;
use cni_spec::Attachment;

/// An agent that has just started.
pub(super) fn observer() -> Observer {
    let settings = Settings {
        node: "node-1".parse().unwrap(),
        paths: desired::Settings {
            tunnel: TunnelMode::Auto,
            vni: 1,
            port: 4789.try_into().unwrap(),
            pod_cidrs: Vec::new(),
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            path_mtu: None,
            encryption: None,
        },
        network: "pods".to_owned(),
        bridge: "slipway0".to_owned(),
        conflist: "/run/net.d/10-slipway.conflist".into(),
        subnet_file: "/run/slipway/subnet.json".into(),
        flannel_file: None,
        sysctl_dir: "/proc/sys".into(),
        without_masquerade: Vec::new(),
        accepts_forwarded: true,
        in_host_mounts: false,
    };
    let slipway = Program::new("/nonexistent/slipway");
    let mut observer = Observer::new(Arc::new(settings), Arc::default(), slipway);
    observer.reservations = "/nonexistent".into();
    observer
}

/// A comparison of a node that has routes, a tunnel and troubles.
fn report() -> Report {
    let (link, tunnel) = ("10.244.2.0/24".parse().unwrap(), "10.244.3.0/24".parse().unwrap());
    let peer = WireGuardPeer {
        node: "node-5".parse().unwrap(),
        key: PublicKey([7; 32]),
        endpoint: "192.168.50.15:51820".parse().unwrap(),
        addresses: Vec::new(),
        prefixes: Vec::new(),
    };
    let route = |prefix, via| PeerRoute { prefix, node: "node-2".parse().unwrap(), via };
    let problem = Problem { node: "node-4".parse().unwrap(), kind: ProblemKind::NoPodCidr };
    Report {
        desired: Desired {
            own: Some(OwnSubnets { prefixes: vec!["10.244.1.0/24".parse().unwrap()] }),
            routes: vec![
                route(link, Via::Link { gateway: "192.168.50.12".parse().unwrap(), link: 2 }),
                route(tunnel, Via::Tunnel { gateway: "10.244.3.0".parse().unwrap() }),
            ],
            tunnel: Some(Tunnel {
                vni: 1,
                port: 4789.try_into().unwrap(),
                local: "192.168.50.11".parse().unwrap(),
                link: 2,
                peers: Vec::new(),
            }),
            // In reality no node has both devices, but here each part of the document must appear.
            wireguard: Some(WireGuard { port: 51820.try_into().unwrap(), peers: vec![peer] }),
            refused: vec!["10.244.0.0/16".parse().unwrap()],
            mtu: Some(1450),
            prune: true,
            problems: vec![problem.clone(), problem],
            ..Desired::default()
        },
        announce: Annotations { wireguard_key: Some(PublicKey([8; 32])), ..Annotations::default() },
        changes: vec!["added route 10.244.2.0/24".to_owned()],
        conflicts: vec![Conflict { net: link, protocol: 12, wins: true }],
        is_ready: true,
        took: Duration::from_millis(3),
        ..Report::default()
    }
}

/// A sweep that found garbage.
fn sweep() -> Sweep {
    Sweep {
        lists: 2,
        failed_lists: 1,
        suspected: 3,
        deleted: vec![Attachment::new("pods", "8f3a", "eth0").unwrap()],
        kept: 1,
        failed: 2,
        troubles: ["garbage: 8f3b eth0 is not deleted: it runs".to_owned()].into(),
    }
}

fn failure() -> Arc<Failure> {
    Arc::new(crate::cluster::conflist::remove(Path::new("/")).unwrap_err().into())
}

fn snapshot(is_complete: bool) -> Snapshot {
    Snapshot::new(Nodes::new(), is_complete)
}

#[test]
fn the_node_is_ready_after_a_complete_list_and_a_comparison() {
    let observer = observer();
    assert!(observer.healthy().is_ok());
    let reason = |observer: &Observer| observer.ready().unwrap_err().to_string();
    assert_eq!(reason(&observer), "the list of Nodes is not complete");
    observer.compared(&snapshot(false), Ok(&report()));
    assert_eq!(reason(&observer), "the list of Nodes is not complete");
    observer.compared(&snapshot(true), Ok(&Report { is_ready: false, ..report() }));
    assert_eq!(reason(&observer), "the network is not complete");
    observer.compared(&snapshot(true), Err(&failure()));
    assert_eq!(reason(&observer), "configuration: \"/\" is not the path of a file");
    observer.compared(&snapshot(true), Ok(&report()));
    assert!(observer.ready().is_ok());
}

#[test]
fn an_agent_without_progress_is_not_healthy() {
    let observer = observer();
    let before = |time| Instant::now().checked_sub(time).unwrap();
    observer.state.lock().unwrap().progress = before(STUCK - Duration::from_secs(5));
    assert!(observer.healthy().is_ok());
    observer.state.lock().unwrap().progress = before(STUCK + Duration::from_secs(1));
    assert_eq!(observer.healthy().unwrap_err().to_string(), "no comparison for 91 s");
    // A comparison that failed counts as progress, too.
    observer.compared(&snapshot(true), Err(&failure()));
    assert!(observer.healthy().is_ok());
}

#[tokio::test(flavor = "current_thread")]
async fn the_status_is_as_documented() {
    let documents = async {
        let observer = observer();
        let first = observer.status().await;
        observer.compared(&snapshot(true), Ok(&report()));
        let ready = observer.status().await;
        let range = AddressRange { range: "10.244.1.0/24".parse().unwrap(), used: 0, free: 253 };
        assert_eq!(ready.addresses, [range]);
        assert_eq!((ready.ready, ready.network.trouble_count), (true, 3));
        assert_eq!(ready.network.troubles[0], "node node-4: no pod CIDR");
        assert_eq!((&ready.garbage, ready.former_addresses.as_slice()), (&None, &[][..]));
        let reserved = tempfile::tempdir().unwrap();
        let dir = reserved.path().join("pods");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("10.9.0.2"), "8f3a\r\neth0").unwrap();
        std::fs::write(dir.join("10.9.0.3"), "").unwrap();
        let mut observer = observer;
        observer.reservations = reserved.path().into();
        observer.swept(&sweep());
        observer.swept(&sweep());
        let more = observer.status().await;
        let former = (more.former_addresses[0].container.as_deref(), more.former_address_count);
        assert_eq!(former, (Some("8f3a"), 2));
        let troubles = vec!["garbage: 8f3b eth0 is not deleted: it runs".to_owned()];
        assert_eq!(more.garbage, Some(Garbage { suspected: 3, deleted: 2, failed: 4, troubles }));
        observer.compared(&snapshot(true), Err(&failure()));
        let failed = observer.status().await;
        assert_eq!(failed.network.troubles, ["configuration: \"/\" is not the path of a file"]);
        // A node whose WireGuard device could not be made has no key.
        observer.compared(&snapshot(true), Ok(&Report { announce: Annotations::default(), ..report() }));
        let without_key = observer.status().await;
        [first, ready, more, failed, without_key]
    };
    assert_documented("slipwayd status", &documents.await);
}

/// A published port whose flows are not counted.
pub(super) fn port() -> Port {
    Port {
        attachment: None,
        protocol: "tcp".to_owned(),
        host_ip: [0, 0, 0, 0].into(),
        host_port: 8080,
        host_port_end: 8080,
        container_ip: [10, 22, 0, 2].into(),
        container_port: 80,
        backend: "ebpf".to_owned(),
        connections: None,
        packets: None,
        bytes: None,
    }
}

/// The text of all metrics, each with a value.
fn exposed() -> String {
    let observer = observer();
    observer.compared(&snapshot(true), Ok(&report()));
    let metrics = observer.metrics();
    let (plugin, network) = ("bridge".to_owned(), "pods".to_owned());
    let call = Call { plugin, verb: Verb::Add, network, took: Duration::from_millis(2), code: Some(11) };
    metrics.called(&Ok(call));
    metrics.called(&Err(InvalidReport::TooLong));
    metrics.repaired("port", Outcome::Done);
    metrics.swept(&sweep());
    let counts = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 7)).collect();
    let counters = ["carried_packets", "recorded_packets", "checked_packets", "changed_packets"];
    let node = BpfNode {
        loaded: true,
        containers: 2,
        counters: counts(&counters),
        dropped: counts(&["forged_end"]),
        maps: vec![BpfMap { name: "carried4".to_owned(), elements: 5, max_elements: 10 }],
        ..BpfNode::default()
    };
    let port = |connections| Port { connections, ..port() };
    let view = DataplaneView { node, ports: vec![port(Some(2)), port(None), port(Some(3))] };
    let range = AddressRange { range: "10.244.1.0/24".parse().unwrap(), used: 3, free: 250 };
    let (source, dataplane) = (Arc::default(), Some(Arc::new(view)));
    let former = [FormerAddress { address: "10.9.0.2".parse().unwrap(), owner: None }].into();
    let addresses = AddressUsage { ranges: vec![range], former };
    let tables = vec![("neighbours4", Fill { entries: 820, limit: 1024 })];
    metrics.print(RequestValues { source, addresses, dataplane, tables }).unwrap()
}

/// Types and labels of the metrics in a text, by the names that a query has.
fn described(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut all = BTreeMap::new();
    let mut last = (String::new(), String::new());
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap();
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            last = (format!("{name}{suffix}"), kind.to_owned());
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            assert!(name.starts_with(&last.0), "{line}");
            let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
            let names = labels.map(|label| label.split_once('=').unwrap().0.to_owned());
            let entry = all.entry(last.0.clone()).or_insert_with(|| (last.1.clone(), BTreeSet::new()));
            entry.1.extend(names.filter(|name| name != "le"));
        }
    }
    all
}

const PAGE: &str = include_str!("../../../../docs/metrics.md");

#[test]
fn the_page_lists_all_metrics() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `slipway_"));
    let documented: BTreeMap<_, _> = rows
        .map(|row| {
            let cells: Vec<&str> = row.trim_end_matches('|').split(" | ").map(str::trim).collect();
            let names = cells[2].split(',').map(|label| label.trim().trim_matches('`'));
            let labels = names.filter(|label| !label.is_empty() && *label != "–").map(str::to_owned);
            (format!("slipway_{}", cells[0].trim_matches('`')), (cells[1].to_owned(), labels.collect()))
        })
        .collect();
    assert_eq!(described(&exposed()), documented, "exposed on the left, docs/metrics.md on the right");
}

#[test]
fn values_are_those_of_the_reports() {
    let text = exposed();
    for line in [
        "slipway_ready 1",
        "slipway_node_problems{reason=\"no_pod_cidr\"} 2",
        "slipway_routes{via=\"link\"} 1",
        "slipway_routes{via=\"wireguard\"} 0",
        "slipway_tunnel_peers 1",
        "slipway_comparison_seconds_bucket{le=\"0.005\"} 1",
        "slipway_plugin_calls_total{plugin=\"bridge\",verb=\"ADD\",code=\"11\"} 1",
        "slipway_plugin_call_seconds_bucket{le=\"0.0025\",plugin=\"bridge\",verb=\"ADD\"} 1",
        "slipway_published_ports{backend=\"ebpf\",protocol=\"tcp\"} 3.0",
        "slipway_published_connections{backend=\"ebpf\"} 5.0",
        "slipway_addresses_free{range=\"10.244.1.0/24\"} 250.0",
        "slipway_bpf_packets_total{kind=\"carried\"} 7",
        "slipway_repairs_total{what=\"port\",result=\"done\"} 1",
        "slipway_former_addresses 1.0",
        "slipway_kernel_table_entries{table=\"neighbours4\"} 820.0",
        "slipway_kernel_table_max_entries{table=\"neighbours4\"} 1024.0",
        "slipway_cri_lists_total{result=\"failed\"} 1",
        "slipway_garbage_suspected 3",
        "slipway_garbage_attachments_total{result=\"deleted\"} 1",
        "slipway_garbage_attachments_total{result=\"failed\"} 2",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}:\n{text}");
    }
    // A reason that no longer applies loses its metric.
    let observer = observer();
    observer.compared(&snapshot(true), Ok(&report()));
    observer.compared(&snapshot(true), Ok(&Report::default()));
    let scraped = RequestValues::default();
    let text = observer.metrics().print(scraped).unwrap();
    assert!(!text.contains("node_problems{") && text.contains("slipway_dataplane_up 0.0\n"), "{text}");
    assert!(!text.contains("bpf_"), "{text}");
}

/// The number of time series is bounded, for any names in reports.
#[test]
fn calls_beyond_a_number_of_names_are_counted_together() {
    let observer = observer();
    for number in 0..3000_u32 {
        let (plugin, network) = (format!("p{number}"), String::new());
        let call = Call { plugin, verb: Verb::Del, network, took: Duration::ZERO, code: Some(number + 1) };
        observer.metrics().called(&Ok(call));
    }
    let scraped = RequestValues::default();
    let text = observer.metrics().print(scraped).unwrap();
    let series = text.lines().filter(|line| line.starts_with("slipway_plugin_calls_total{")).count();
    assert_eq!(series, 1001);
    let others = "slipway_plugin_calls_total{plugin=\"other\",verb=\"DEL\",code=\"other\"} 2000\n";
    assert!(text.contains(others), "{text}");
}

/// The names in a text that begin as those of the metrics do, without the suffixes of a histogram.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let base = |word: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        suffixes.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word).to_owned()
    };
    words.filter(|word| word.starts_with("slipway_")).map(base).collect()
}

#[test]
fn the_dashboard_and_the_rules_name_metrics_that_exist() {
    let known: BTreeSet<String> = described(&exposed()).into_keys().collect();
    let dashboard = include_str!("../../../../docs/slipway-dashboard.json");
    let rules = include_str!("../../../../docs/slipway-alerts.yaml");
    for (file, text) in [("the dashboard", dashboard), ("the rules", rules)] {
        let used = names(text);
        assert!(used.len() >= 10, "{file}: {used:?}");
        assert_eq!(used.difference(&known).collect::<Vec<_>>(), [""; 0], "{file}");
    }
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        let is_row = panel["type"] == "row";
        assert!(is_row || !panel["targets"].as_array().unwrap().is_empty(), "{panel}");
    }
    let rules: Value = serde_saphyr::from_str(rules).unwrap();
    for rule in
        rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap())
    {
        for key in ["/alert", "/expr", "/for", "/labels/severity", "/annotations/summary"] {
            assert!(rule.pointer(key).is_some_and(Value::is_string), "{key}: {rule}");
        }
        let name = rule["alert"].as_str().unwrap();
        assert!(PAGE.contains(&format!("`{name}`")), "docs/metrics.md lacks {name}");
    }
}
