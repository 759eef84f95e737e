// SPDX-License-Identifier: GPL-2.0-or-later

//! Exports flows of the programs to conntrack, which translates their later packets.
//!
//! The containers are held first, so that no new flow begins with the programs. Their flows are inserted into
//! conntrack with their translation. Then each container is removed from the maps in one step, which ends its
//! flows for the programs: the next packet is conntrack's.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_kernel::grace::wait_for_packets;
use cni_nftables::conntrack::{Conntrack, NewFlow, Tuple};
use ipnet::IpNet;
use slipway_ebpf_abi::{IPPROTO_TCP, State};

use super::flows::{self, Clock, Ends, KnownFlow};
use super::pins::Pins;
use super::pods::{self, Pods};
use super::tables::{PodId, Tables};
use crate::Error;

/// The result of an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Handed {
    /// Number of flows that conntrack has taken.
    pub(crate) count: usize,
    /// Flows that it refused, which end: the container's address, and the flow with the reason.
    pub(crate) lost: Vec<(IpAddr, String)>,
}

impl Handed {
    /// Describes the refused flows of a container with these addresses, if any.
    pub(crate) fn complaint(&self, addresses: &[IpNet]) -> Option<String> {
        const SHOWN: usize = 3;
        let is_own =
            |(container, _): &&(IpAddr, String)| addresses.iter().any(|net| net.addr() == *container);
        let own: Vec<&str> = self.lost.iter().filter(is_own).map(|(_, what)| what.as_str()).collect();
        if own.is_empty() {
            return None;
        }
        let shown = own.get(..SHOWN).unwrap_or(&own).join(", ");
        let more = if own.len() > SHOWN { ", …" } else { "" };
        Some(format!("conntrack refused {} of its flows: {shown}{more}", own.len()))
    }
}

/// A flow's protocol and the ends of its first packet.
type Name = (u8, Ends);

/// Exports the flows of containers, and removes the containers from the maps. Their ports and addresses stay
/// and lead nowhere.
///
/// # Errors
/// [`Error::Kernel`] if a map cannot be read or written. The containers stay held; another call continues.
pub(super) fn hand_over(pins: &Pins, tables: &mut Tables, pods: &Pods) -> Result<Handed, Error> {
    let mut handed = Handed::default();
    if pods.is_empty() {
        return Ok(handed);
    }
    let ids = pods.iter().map(|(link, generation)| PodId { link: *link, generation: *generation });
    for id in ids.clone() {
        pods::hold(tables, id)?;
    }
    // After this, packets that a program handled before are through.
    wait_for_packets();
    let mut inserted: BTreeMap<Name, State> = BTreeMap::new();
    insert(pins, pods, &mut inserted, &mut handed)?;
    handed.count = inserted.len();
    for id in ids {
        tables.forget_pod(id)?;
    }
    // A connection may have ended since the first pass: conntrack would keep it for days.
    insert(pins, pods, &mut inserted, &mut handed)?;
    Ok(handed)
}

/// Inserts flows into conntrack, except those that were inserted in the same state.
fn insert(
    pins: &Pins,
    pods: &Pods,
    inserted: &mut BTreeMap<Name, State>,
    handed: &mut Handed,
) -> Result<(), Error> {
    let clock = Clock::read(pins)?;
    let mut conntrack = None;
    for flow in flows::served(pins, &clock, pods)? {
        let name = (flow.protocol, flow.first.before);
        let again = inserted.get(&name).copied();
        let goes_on = |state| matches!(state, State::Established | State::Stream | State::Replied);
        if again.is_some_and(|before| before == flow.state || goes_on(flow.state)) {
            continue;
        }
        let conntrack = match &mut conntrack {
            Some(conntrack) => conntrack,
            none => {
                let opened = Conntrack::open().map_err(|e| Error::kernel("reach conntrack", e))?;
                none.insert(opened)
            }
        };
        match conntrack.insert(&as_new(&flow, &clock)) {
            Ok(()) => drop(inserted.insert(name, flow.state)),
            Err(error) if again.is_none() => {
                let (from, to) = flow.first.before;
                let what = format!("{from} to {to} (protocol {}): {error}", flow.protocol);
                handed.lost.push((flow.container, what));
            }
            Err(error) => log::warn!("update an ended connection in conntrack: {error}"),
        }
    }
    Ok(())
}

fn as_new(flow: &KnownFlow, clock: &Clock) -> NewFlow {
    let tuple = |(source, destination): Ends| Tuple {
        source: source.ip(),
        destination: destination.ip(),
        protocol: flow.protocol,
        source_port: source.port(),
        destination_port: destination.port(),
    };
    let is_tcp = flow.protocol == IPPROTO_TCP;
    NewFlow {
        original: tuple(flow.first.before),
        translated: tuple(flow.first.after),
        seen_reply: flow.is_established || !matches!(flow.state, State::SynSent | State::Unreplied),
        is_assured: flow.is_established,
        // The states of TCP have conntrack's numbers.
        tcp_state: is_tcp.then_some(flow.state as u8),
        timeout: clock.left(flow),
    }
}
