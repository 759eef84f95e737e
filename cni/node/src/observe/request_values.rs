// SPDX-License-Identifier: GPL-3.0-or-later

//! Metrics whose values are read when they are requested: counters of the Nodes' source, addresses, the dataplane, the
//! kernel's tables.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cni_kernel::AddressFamily;
use cni_kernel::tables::{Fill, Neighbours};
use cni_state::documents::{AddressRange, Port};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::addresses::AddressUsage;
use super::dataplane::DataplaneView;
use crate::cluster::source::Counters;

/// The values of one request.
#[derive(Debug, Default)]
pub(super) struct RequestValues {
    pub(super) source: Arc<Counters>,
    pub(super) addresses: AddressUsage,
    /// None if the installed program does not report.
    pub(super) dataplane: Option<Arc<DataplaneView>>,
    pub(super) tables: KernelTables,
}

/// The fill of the kernel's tables, by their names; without those that cannot be read.
pub(super) type KernelTables = Vec<(&'static str, Fill)>;

/// Reads the tables of the node. The agent is in its network namespace.
pub(super) fn kernel_tables() -> KernelTables {
    let neighbours = |family| Neighbours::of(family).ok().flatten().map(|table| table.fill);
    let all = [
        ("flows", Fill::of_flows().ok().flatten()),
        ("neighbours4", neighbours(AddressFamily::V4)),
        ("neighbours6", neighbours(AddressFamily::V6)),
    ];
    all.into_iter().filter_map(|(name, fill)| Some((name, fill?))).collect()
}

type Labels = Vec<(&'static str, String)>;
/// Values with their labels.
type Values = Vec<(Labels, f64)>;

impl Collector for RequestValues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut encoder;
        let Self { source, addresses, dataplane, tables } = self;
        counter(out, "node_lists", "Complete lists of Nodes", source.lists())?;
        counter(out, "node_events", "Events of Nodes", source.events())?;
        counter(out, "unchanged_node_events", "Events of Nodes that changed nothing", source.unchanged())?;
        counter(
            out,
            "api_failures",
            "Failed requests to the API server to list or watch",
            source.failures(),
        )?;
        let range = |one: &AddressRange| vec![("range", one.range.to_string())];
        let AddressUsage { ranges, former } = addresses;
        let used = ranges.iter().map(|one| (range(one), number(one.used)));
        gauges(out, "addresses_used", "Addresses of the node's subnets that pods have", used)?;
        let free = ranges.iter().map(|one| (range(one), number(one.free)));
        gauges(out, "addresses_free", "Addresses of the node's subnets that are free", free)?;
        if !ranges.is_empty() {
            let count = number(former.len() as u64);
            gauges(
                out,
                "former_addresses",
                "Addresses of pods outside the node's subnets",
                [(vec![], count)],
            )?;
        }
        let values = |of: fn(&Fill) -> u64| {
            tables.iter().map(move |(name, fill)| (vec![("table", (*name).to_owned())], number(of(fill))))
        };
        gauges(out, "kernel_table_entries", "Entries of a table of the kernel", values(|fill| fill.entries))?;
        gauges(out, "kernel_table_max_entries", "The most entries of the table", values(|fill| fill.limit))?;
        let is_up = number(dataplane.is_some().into());
        gauges(out, "dataplane_up", "1 if the installed slipway reports ports and flows", [(vec![], is_up)])?;
        match dataplane {
            Some(view) => encode_view(out, view),
            None => Ok(()),
        }
    }
}

fn encode_view(
    out: &mut DescriptorEncoder<'_>,
    DataplaneView { node, ports }: &DataplaneView,
) -> fmt::Result {
    let (published, connections) = by_backend(ports);
    gauges(out, "published_ports", "Published ports, by backend and protocol", published)?;
    gauges(out, "published_connections", "Flows to published ports that exist now, by backend", connections)?;
    let loaded = number(node.loaded.into());
    gauges(out, "bpf_loaded", "1 if the BPF programs are loaded", [(vec![], loaded)])?;
    gauges(
        out,
        "bpf_containers",
        "Containers whose links have BPF programs",
        [(vec![], number(node.containers))],
    )?;
    let kinds = ["carried", "recorded", "checked", "changed"].into_iter().filter_map(|kind| {
        Some((vec![("kind", kind.to_owned())], *node.counters.get(&format!("{kind}_packets"))?))
    });
    counters(out, "bpf_packets", "Packets that the BPF programs have seen, by kind", kinds.collect())?;
    let by_reason = |counts: &BTreeMap<String, u64>| -> Vec<(Labels, u64)> {
        counts.iter().map(|(reason, count)| (vec![("reason", reason.clone())], *count)).collect()
    };
    counters(
        out,
        "bpf_dropped_packets",
        "Packets that the BPF programs dropped, by reason",
        by_reason(&node.dropped),
    )?;
    let map = |name: &str| vec![("map", name.to_owned())];
    let elements = node.maps.iter().map(|one| (map(&one.name), number(one.elements)));
    gauges(out, "bpf_map_elements", "Elements of a BPF map", elements)?;
    let most = node.maps.iter().map(|one| (map(&one.name), number(one.max_elements)));
    gauges(out, "bpf_map_max_elements", "The most elements that a BPF map holds", most)
}

/// Numbers of ports by backend and protocol, and of their flows by backend where they are counted.
fn by_backend(ports: &[Port]) -> (Values, Values) {
    let (mut published, mut connections) = (BTreeMap::<_, f64>::new(), BTreeMap::<_, f64>::new());
    for Port { backend, protocol, connections: flows, .. } in ports {
        *published.entry((backend, protocol)).or_default() += 1.0;
        if let Some(flows) = flows {
            *connections.entry(backend).or_default() += number(*flows);
        }
    }
    let labels = |backend: &String| ("backend", backend.clone());
    let published = published
        .into_iter()
        .map(|((backend, protocol), count)| (vec![labels(backend), ("protocol", protocol.clone())], count));
    let connections = connections.into_iter().map(|(backend, count)| (vec![labels(backend)], count));
    (published.collect(), connections.collect())
}

/// The number as Prometheus has all values. Beyond 2^53 it is rounded.
fn number(count: u64) -> f64 {
    count as f64
}

fn counter(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    counters(out, name, help, vec![(Labels::new(), value)])
}

fn counters(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: Vec<(Labels, u64)>,
) -> fmt::Result {
    let values = values.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
    encode(out, name, help, MetricType::Counter, values)
}

fn gauges(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = (Labels, f64)>,
) -> fmt::Result {
    let values = values.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value)));
    encode(out, name, help, MetricType::Gauge, values)
}

/// Encodes a metric with its values; nothing without values.
fn encode<M: EncodeMetric>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    values: impl Iterator<Item = (Labels, M)>,
) -> fmt::Result {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return Ok(());
    }
    // The registry ends the help texts of its metrics in the same way.
    let help = format!("{help}.");
    let mut encoder: MetricEncoder<'_> = out.encode_descriptor(name, &help, None, kind)?;
    for (labels, metric) in values {
        if labels.is_empty() {
            // An encoder cannot be used twice: a metric without labels has one value.
            return metric.encode(encoder);
        }
        metric.encode(encoder.encode_family(&labels)?)?;
    }
    Ok(())
}
