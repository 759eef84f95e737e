// SPDX-License-Identifier: GPL-3.0-or-later

//! Prints a sample: tables for people, or the document for programs.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::model::{Model, Rates};
use super::sample::{Drops, Pool};
use super::table::{Cell, View, cells, fit, rows};

/// Prints all views as tables.
///
/// # Errors
/// `out` cannot be written.
pub fn print(model: &Model, out: &mut dyn Write) -> io::Result<()> {
    let sample = &model.sample;
    writeln!(out, "time       {}", sample.time.strftime("%Y-%m-%dT%H:%M:%SZ"))?;
    if let Some((count, most)) = sample.conntrack {
        writeln!(out, "conntrack  {count} of {most}")?;
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

/// The document of `slipwayd top`, without the number of its form.
#[must_use]
pub fn document(model: &Model) -> Value {
    let sample = &model.sample;
    let agent = sample.agent.as_ref();
    let drops = sample.drops.iter().zip(&model.drops).map(|(drops, rate)| {
        let Drops { by, reason, packets, .. } = drops;
        json!({ "by": by, "reason": reason, "packets": packets, "packets_per_second": rate })
    });
    let pools = sample.pools.iter().map(|pool| {
        let Pool { network, range, used, free } = pool;
        json!({ "network": network, "range": range, "used": used, "free": free })
    });
    json!({
        "time": sample.time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "ports": (0..sample.ports.len()).filter_map(|row| port(model, row)).collect::<Vec<_>>(),
        "flows": (0..sample.flows.len()).filter_map(|row| flow(model, row)).collect::<Vec<_>>(),
        "more_flows": sample.more_flows,
        "drops": drops.collect::<Vec<_>>(),
        "conntrack": sample.conntrack.map(|(count, most)| json!({ "count": count, "max": most })),
        "pools": pools.collect::<Vec<_>>(),
        "calls": agent.ok().map(|agent| &agent.calls),
        "repairs": agent.ok().map(|agent| &agent.repairs),
        "agent_error": agent.err().map(ToString::to_string),
        "troubles": sample.troubles,
    })
}

fn port(model: &Model, row: usize) -> Option<Value> {
    let (listed, traffic) = model.sample.ports.get(row)?;
    let (port, owner) = (&listed.port, listed.owner.as_ref());
    let counted = traffic.and_then(|traffic| traffic.counted);
    let mut object = json!({
        "network": owner.map(|owner| &owner.network),
        "container": owner.map(|owner| &owner.container_id),
        "interface": owner.map(|owner| &owner.ifname),
        "protocol": port.host.protocol.as_str(),
        "host_ip": port.host.address.ip().to_string(),
        "host_port": port.host.first,
        "host_port_end": port.host.last,
        "container_ip": port.container.to_string(),
        "container_port": port.container_port,
        "backend": listed.backend.as_str(),
        "connections": traffic.map(|traffic| traffic.connections),
        "packets": counted.map(|(packets, _)| packets),
        "bytes": counted.map(|(_, bytes)| bytes),
    });
    let rates = model.ports.get(row).copied().flatten();
    object["connections_per_second"] = json!(rates.map(|rates| rates.flows));
    add_rates(&mut object, rates);
    Some(object)
}

fn flow(model: &Model, row: usize) -> Option<Value> {
    let flow = model.sample.flows.get(row)?;
    let (listed, _) = model.sample.ports.get(flow.port)?;
    let mut object = json!({
        "protocol": listed.port.host.protocol.as_str(),
        "client": flow.client.to_string(),
        "host": flow.host.to_string(),
        "container": listed.owner.as_ref().map(|owner| &owner.container_id),
        "container_ip": listed.port.container.to_string(),
        "carried": flow.is_carried,
        "packets": flow.counted.map(|(packets, _)| packets),
        "bytes": flow.counted.map(|(_, bytes)| bytes),
    });
    add_rates(&mut object, model.flows.get(row).copied().flatten());
    Some(object)
}

fn add_rates(object: &mut Value, rates: Option<Rates>) {
    let counted = rates.and_then(|rates| rates.counted);
    object["packets_per_second"] = json!(counted.map(|(packets, _)| packets));
    object["bytes_per_second"] = json!(counted.map(|(_, bytes)| bytes));
}
