// SPDX-License-Identifier: GPL-3.0-or-later

//! Takes a sample. Parts that cannot be read are listed as troubles of the sample, next to the other parts.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cni_dataplane::ebpf::{about_counter, counters, of_counter};
use cni_dataplane::{Backend as _, Dataplane, Flows};
use cni_kernel::tables::Fill;
use cni_state::documents::{Activity, Conntrack};
use k8s_openapi::jiff::Timestamp;

use super::pools;
use super::sample::{Drops, Sample};
use crate::agent_client::AgentError;

/// The most flows that a sample has.
pub const FLOWS: usize = 65_536;

/// The counters of conntrack that count dropped packets, by the names of the kernel's file, with their meaning.
const CONNTRACK: [(&str, &str); 3] = [
    ("drop", "the table of flows is full, or a flow could not be made"),
    ("early_drop", "flows that were evicted to make room for others"),
    ("insert_failed", "another flow had the same ends"),
];

/// Takes a sample of the kernel and of the networks in a configuration directory. Blocks.
#[must_use]
pub fn sample(config_dir: &Path, agent: Result<Activity, AgentError>) -> Sample {
    let mut troubles = Vec::new();
    let dataplane = Dataplane::default();
    let listed = dataplane.list().unwrap_or_else(|error| {
        troubles.push(format!("published ports: {error}"));
        Vec::new()
    });
    let found = dataplane.flows(&listed, FLOWS);
    let is_read = found.is_ok();
    let Flows { traffic, flows, more } = found.unwrap_or_else(|error| {
        troubles.push(format!("flows: {error}"));
        Flows::default()
    });
    if more > 0 {
        troubles.push(format!("{more} flows are not shown, and rates are unknown: more than {FLOWS} flows"));
    }
    if is_read && flows.iter().any(|flow| flow.counted.is_none()) {
        troubles
            .push("packets and bytes are not counted: sysctl net.netfilter.nf_conntrack_acct=1".to_owned());
    }
    let mut traffic = traffic.into_iter().map(Some);
    let ports = listed.into_iter().map(|one| (one, traffic.next().flatten())).collect();
    let (at, time) = (Instant::now(), Timestamp::now());
    let drops = drops(&mut troubles);
    let fill = Fill::of_flows().unwrap_or_else(|error| {
        troubles.push(format!("tracked flows: {error}"));
        None
    });
    let conntrack = fill.map(|Fill { entries, limit }| Conntrack { count: entries, max: limit });
    let pools = pools::read(config_dir, &mut troubles);
    let agent = agent.map_err(Arc::new);
    Sample { at, time, ports, flows, more_flows: more, drops, conntrack, pools, agent, troubles }
}

fn drops(troubles: &mut Vec<String>) -> Vec<Drops> {
    let carried = counters().unwrap_or_else(|error| {
        troubles.push(format!("counters of the BPF programs: {error}"));
        Vec::new()
    });
    let of_bpf = carried.into_iter().filter(|(counter, _)| counter.is_drop()).map(|(counter, packets)| {
        Drops { by: "bpf", reason: of_counter(counter), about: about_counter(counter), packets }
    });
    // Without conntrack there is no such file.
    let text = std::fs::read_to_string("/proc/thread-self/net/stat/nf_conntrack").unwrap_or_default();
    of_bpf.chain(of_conntrack(&text)).collect()
}

/// Reads the counters of conntrack: a header, and a line of hexadecimal numbers for each processor.
pub(crate) fn of_conntrack(text: &str) -> Vec<Drops> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
    let of = |(reason, about): (&'static str, &'static str)| {
        let column = header.iter().position(|name| *name == reason)?;
        let numbers = rows.iter().filter_map(|row| u64::from_str_radix(row.get(column)?, 16).ok());
        let packets = numbers.fold(0, u64::saturating_add);
        Some(Drops { by: "conntrack", reason, about, packets })
    };
    CONNTRACK.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_conntrack_are_sums_over_processors() {
        let text = "entries insert_failed drop early_drop\n00000002 00000001 0000000a 00000000\n\
                    00000002 00000010 00000001 00000000\n";
        let counted: Vec<_> = of_conntrack(text).iter().map(|drops| (drops.reason, drops.packets)).collect();
        assert_eq!(counted, [("drop", 11), ("early_drop", 0), ("insert_failed", 17)]);
        for text in ["", "entries drop", "entries drop\nzz", "drop\nxyz\n"] {
            assert!(of_conntrack(text).iter().all(|drops| drops.packets == 0), "{text:?}");
        }
    }
}
