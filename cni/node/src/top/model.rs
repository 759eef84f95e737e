// SPDX-License-Identifier: GPL-3.0-or-later

//! A sample with its rates.

use std::collections::HashMap;
use std::net::SocketAddr;

use cni_dataplane::PublishedFlow;

use super::sample::{Drops, Sample};

/// Rates since the sample before, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// New flows.
    pub flows: f64,
    /// Packets and bytes; none where accounting is off.
    pub counted: Option<(f64, f64)>,
}

/// A sample with its rates. Without a sample before it, these are unknown.
#[derive(Debug, Clone)]
pub struct Model {
    /// The sample.
    pub sample: Sample,
    /// The rates of each port.
    pub ports: Vec<Option<Rates>>,
    /// The rates of each flow.
    pub flows: Vec<Option<Rates>>,
    /// The dropped packets per second, of each reason.
    pub drops: Vec<Option<f64>>,
}

/// The ends that identify a flow.
fn ends(flow: &PublishedFlow) -> (u8, SocketAddr, SocketAddr) {
    (flow.protocol, flow.client, flow.host)
}

impl Model {
    /// The first sample.
    #[must_use]
    pub fn first(sample: Sample) -> Self {
        let (ports, flows) = (vec![None; sample.ports.len()], vec![None; sample.flows.len()]);
        let drops = vec![None; sample.drops.len()];
        Self { sample, ports, flows, drops }
    }

    /// A sample after another one.
    ///
    /// A port's rate is the sum over its flows: the port's own counters decrease when a flow ends. If a flow is new, or
    /// its counters went backwards because its ends were used again, all of its packets count as packets since the
    /// sample before.
    #[must_use]
    pub fn after(before: &Sample, sample: Sample) -> Self {
        let mut model = Self::first(sample);
        let seconds = model.sample.at.saturating_duration_since(before.at).as_secs_f64();
        if seconds <= 0.0 {
            return model;
        }
        model.drops = model.sample.drops.iter().map(|now| Some(dropped(before, now) / seconds)).collect();
        // Flows that were not read may be new or not.
        if before.more_flows == 0 && model.sample.more_flows == 0 {
            model.rate_flows(before, seconds);
        }
        model
    }

    fn rate_flows(&mut self, before: &Sample, seconds: f64) {
        let known: HashMap<_, _> = before.flows.iter().map(|flow| (ends(flow), flow.counted)).collect();
        let has_traffic = |(_, traffic): &(_, Option<_>)| traffic.is_some();
        let mut ports: Vec<Option<Rates>> =
            self.sample.ports.iter().map(|port| has_traffic(port).then(Rates::default)).collect();
        let rates = |flow: &PublishedFlow| {
            let last = known.get(&ends(flow)).copied();
            let is_less = matches!((last, flow.counted), (Some(Some(last)), Some(now)) if now.0 < last.0 || now.1 < last.1);
            let is_new = last.is_none() || is_less;
            let last = last.flatten().filter(|_| !is_less).unwrap_or_default();
            let counted = flow.counted.map(|now| {
                let since = |now: u64, last: u64| now.saturating_sub(last) as f64 / seconds;
                (since(now.0, last.0), since(now.1, last.1))
            });
            Rates { flows: f64::from(u8::from(is_new)) / seconds, counted }
        };
        let flows: Vec<Option<Rates>> = self.sample.flows.iter().map(|flow| Some(rates(flow))).collect();
        for (flow, rates) in self.sample.flows.iter().zip(flows.iter().flatten()) {
            if let Some(Some(sum)) = ports.get_mut(flow.port) {
                sum.flows += rates.flows;
                if let Some((packets, bytes)) = rates.counted {
                    let (sum_packets, sum_bytes) = sum.counted.unwrap_or_default();
                    sum.counted = Some((sum_packets + packets, sum_bytes + bytes));
                }
            }
        }
        // A port without flows has no packets, unless nothing counts them.
        let is_off = !flows.is_empty() && flows.iter().flatten().all(|rates| rates.counted.is_none());
        for rates in ports.iter_mut().flatten().filter(|_| !is_off) {
            rates.counted.get_or_insert_default();
        }
        (self.ports, self.flows) = (ports, flows);
    }

    /// Dropped packets per second, all reasons together; none without a sample before.
    #[must_use]
    pub(crate) fn drop_rate(&self) -> Option<f64> {
        self.drops.iter().copied().sum()
    }
}

/// The packets that were dropped for a reason since a sample. A counter that went backwards began again at zero.
fn dropped(before: &Sample, now: &Drops) -> f64 {
    let is_same = |last: &&Drops| (last.by, last.reason) == (now.by, now.reason);
    let last = before.drops.iter().find(is_same).map_or(0, |last| last.packets);
    now.packets.checked_sub(last).unwrap_or(now.packets) as f64
}
