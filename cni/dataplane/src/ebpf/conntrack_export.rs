//! Conversations of the programs that netfilter goes on with.
//!
//! The containers are held first, so that nothing begins with the programs any more. What they have is put into
//! conntrack with its translation; then the containers are taken from the maps, in one step each, which ends all
//! their flows for the programs: the next packet is conntrack's.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_kernel::grace::wait_for_packets;
use cni_nftables::conntrack::{Conntrack, NewFlow, Tuple};
use ipnet::IpNet;
use slipway_ebpf_abi::{IPPROTO_TCP, State};

use super::flows::{self, Clock, Ends, KnownFlow};
use super::pins::Pins;
use super::pods::{self, Pods};
use super::tables::Tables;
use crate::Error;

/// What became of the conversations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Handed {
    /// How many conntrack has now.
    pub(crate) count: usize,
    /// Those that it has not, each with the container's address and the reason: they end.
    pub(crate) lost: Vec<(IpAddr, String)>,
}

impl Handed {
    /// How many of a container with these addresses were lost and which, if any.
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
        Some(format!("{} of its conversations could not be given to conntrack: {shown}{more}", own.len()))
    }
}

/// Which conversation.
type Name = (u8, Ends);

/// Hands the conversations of containers over to conntrack, and has the programs forget the containers, but for
/// their ports and addresses, which lead nowhere from then on.
///
/// # Errors
/// The maps cannot be read or written; the containers stay held, and a further call goes on.
pub(super) fn hand_over(pins: &Pins, tables: &mut Tables, pods: &Pods) -> Result<Handed, Error> {
    let mut handed = Handed::default();
    if pods.is_empty() {
        return Ok(handed);
    }
    for pod in pods {
        pods::hold(tables, (*pod.0, *pod.1))?;
    }
    // Packets that a program has seen before are through.
    wait_for_packets();
    let mut told: BTreeMap<Name, State> = BTreeMap::new();
    tell(pins, pods, &mut told, &mut handed)?;
    handed.count = told.len();
    for (link, generation) in pods {
        tables.forget_pod(*link, *generation)?;
    }
    // Some may have ended between the two: conntrack would keep them for days.
    tell(pins, pods, &mut told, &mut handed)?;
    Ok(handed)
}

/// Tells conntrack of the conversations, except for those that it was told of in the same state.
fn tell(
    pins: &Pins,
    pods: &Pods,
    told: &mut BTreeMap<Name, State>,
    handed: &mut Handed,
) -> Result<(), Error> {
    let clock = Clock::read(pins)?;
    let mut conntrack = None;
    for flow in flows::served(pins, &clock, pods)? {
        let name = (flow.protocol, flow.first.before);
        let again = told.get(&name).copied();
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
            Ok(()) => drop(told.insert(name, flow.state)),
            Err(error) if again.is_none() => {
                let (from, to) = flow.first.before;
                let what = format!("{from} to {to} (protocol {}): {error}", flow.protocol);
                handed.lost.push((flow.container, what));
            }
            Err(error) => log::warn!("tell conntrack that a connection has ended: {error}"),
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
        is_answered: flow.is_established || !matches!(flow.state, State::SynSent | State::Unreplied),
        is_assured: flow.is_established,
        // The states of TCP have conntrack's numbers.
        tcp_state: is_tcp.then_some(flow.state as u8),
        timeout: clock.left(flow),
    }
}
