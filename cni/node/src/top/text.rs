// SPDX-License-Identifier: GPL-3.0-or-later

//! Prints a sample: tables for people, or the document for programs.

use std::io::{self, Write};

use cni_dataplane::{Listed, PublishedFlow};
use cni_state::documents::{
    Conntrack, DroppedPackets, FlowTraffic, PacketRates, PortOwners, PortTraffic, Top,
};

use super::model::{Model, Rates};
use super::sample::Sample;
use super::table::{Cell, View, cells, fit, rows};

/// Prints all views as tables.
///
/// # Errors
/// `out` cannot be written.
pub fn print(model: &Model, out: &mut dyn Write) -> io::Result<()> {
    let sample = &model.sample;
    writeln!(out, "time       {}", time(sample))?;
    if let Some(Conntrack { count, max }) = sample.conntrack {
        writeln!(out, "conntrack  {count} of {max}")?;
    }
    let reason = sample.agent.as_ref().err().map(|reason| format!("no events: {reason}"));
    for trouble in sample.troubles.iter().chain(&reason) {
        writeln!(out, "trouble    {trouble}")?;
    }
    for view in View::ALL {
        let shown: Vec<Vec<Cell>> =
            rows(model, view, "", view.usual()).into_iter().map(|row| cells(model, view, row)).collect();
        if shown.is_empty() {
            continue;
        }
        writeln!(out, "\n{}", view.name())?;
        for line in fit(view.columns(), None, &shown, usize::MAX) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

/// The document of `slipwayd top`.
#[must_use]
pub fn document(model: &Model) -> Top {
    let sample = &model.sample;
    let agent = sample.agent.as_ref();
    let drops = sample.drops.iter().zip(&model.drops).map(|(drops, rate)| DroppedPackets {
        by: drops.by.to_owned(),
        reason: drops.reason.to_owned(),
        packets: drops.packets,
        packets_per_second: *rate,
    });
    let mut owners = PortOwners::default();
    let ports = sample.ports.iter().zip(&model.ports).map(|((listed, traffic), rates)| PortTraffic {
        port: listed.document(*traffic, &mut owners),
        connections_per_second: rates.map(|rates| rates.flows),
        rates: packet_rates(*rates),
    });
    let ports = ports.collect();
    Top {
        time: time(sample),
        attachments: owners.into_list(),
        ports,
        flows: sample
            .flows
            .iter()
            .zip(&model.flows)
            .filter_map(|(flow, rates)| Some(flow_traffic(flow, &sample.ports.get(flow.port)?.0, *rates)))
            .collect(),
        more_flows: sample.more_flows,
        drops: drops.collect(),
        conntrack: sample.conntrack,
        pools: sample.pools.clone(),
        calls: agent.ok().map(|agent| agent.calls.clone()),
        repairs: agent.ok().map(|agent| agent.repairs.clone()),
        agent_error: agent.err().map(ToString::to_string),
        troubles: sample.troubles.clone(),
    }
}

/// The sample's time by RFC 3339, to the second.
fn time(sample: &Sample) -> String {
    sample.time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn flow_traffic(flow: &PublishedFlow, listed: &Listed, rates: Option<Rates>) -> FlowTraffic {
    FlowTraffic {
        protocol: listed.port.host.protocol.as_str().to_owned(),
        client: flow.client,
        host: flow.host,
        container: listed.owner.as_ref().map(|owner| owner.container_id.clone()),
        container_ip: listed.port.container,
        carried: flow.is_carried,
        packets: flow.counted.map(|(packets, _)| packets),
        bytes: flow.counted.map(|(_, bytes)| bytes),
        rates: packet_rates(rates),
    }
}

fn packet_rates(rates: Option<Rates>) -> PacketRates {
    let (packets, bytes) = rates.and_then(|rates| rates.counted).unzip();
    PacketRates { packets_per_second: packets, bytes_per_second: bytes }
}
