// SPDX-License-Identifier: GPL-2.0-or-later

//! Imports flows from conntrack: those that a container has before the programs serve it. They are written to
//! the maps of flows, so that the programs leave them to netfilter for their whole life.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aya::Pod as Plain;
use cni_kernel::grace::wait_for_packets;
use cni_nftables::conntrack::{self, Conntrack, Filter, FlowFamily};
use slipway_ebpf_abi::{
    Action, Addr4, Addr6, Flow, FlowKey, IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP, IPPROTO_UDP, ORIGINAL,
    PUBLISHED, Port, Reason, SIDE_POD, SIDE_UPLINK, State, maps,
};

use super::flows::Clock;
use super::pins::Pins;
use super::pods::{self, Adopted};
use super::tables::{PodId, Table, Tables};
use crate::Error;
use crate::nftables::conntrack::flow_count;

/// Imports the flows of these containers, which are held. Returns their number.
///
/// # Errors
/// [`Error::Kernel`] if conntrack cannot be read, or a map cannot be written.
pub(super) fn import(pins: &Pins, pods: &[Adopted]) -> Result<usize, Error> {
    // After this, packets that passed a program before it knew the container are in conntrack.
    wait_for_packets();
    if flow_count() == Some(0) {
        return Ok(0);
    }
    let of: BTreeMap<IpAddr, PodId> =
        pods.iter().flat_map(|pod| pod.addresses.iter().map(|address| (*address, pod.id))).collect();
    let found = flows_of(&of)?;
    let clock = Clock::read(pins)?;
    let (mut v4, mut v6) = (FlowMaps::<Addr4>::open(pins)?, FlowMaps::<Addr6>::open(pins)?);
    for flow in &found {
        // Both ends may be containers, if one uses a published port of the other.
        for (side, address) in [(SIDE_POD, flow.original.source), (SIDE_UPLINK, flow.reply.source)] {
            let Some(pod) = of.get(&address) else { continue };
            match address {
                IpAddr::V4(_) => v4.write(flow, side, *pod, &clock)?,
                IpAddr::V6(_) => v6.write(flow, side, *pod, &clock)?,
            }
        }
    }
    Ok(found.len())
}

/// Imports the flows of a held container, and releases it.
pub(super) fn release(pins: &Pins, tables: &mut Tables, pod: &Adopted) -> Result<(), Error> {
    if !pod.is_held {
        return Ok(());
    }
    import(pins, std::slice::from_ref(pod))?;
    pods::release(tables, pod)
}

/// Reads conntrack's flows from or to these addresses.
fn flows_of(of: &BTreeMap<IpAddr, PodId>) -> Result<Vec<conntrack::Flow>, Error> {
    let failed = |e| Error::kernel("list the flows of containers", e);
    let everything = Filter {
        family: FlowFamily::Both,
        protocol: None,
        destinations: Vec::new(),
        port: None,
        reply_source: None,
        status: 0,
    };
    let mut found = Vec::new();
    let each = |flow: &conntrack::Flow| {
        if of.contains_key(&flow.original.source) || of.contains_key(&flow.reply.source) {
            found.push(*flow);
        }
    };
    Conntrack::open().and_then(|conntrack| conntrack.for_each(&everything, each)).map_err(failed)?;
    Ok(found)
}

/// An address of one family.
trait Address: Copy + Default {
    /// The address, if it is of this family.
    fn of(address: IpAddr) -> Option<Self>;
    /// The maps of established and of half-open flows.
    const MAPS: (&'static str, &'static str);
}

impl Address for Addr4 {
    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) => Some(Ipv4Addr::into(address)),
            IpAddr::V6(_) => None,
        }
    }

    const MAPS: (&'static str, &'static str) = (maps::FLOWS4, maps::HALF_OPEN4);
}

impl Address for Addr6 {
    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V6(address) => Some(Ipv6Addr::into(address)),
            IpAddr::V4(_) => None,
        }
    }

    const MAPS: (&'static str, &'static str) = (maps::FLOWS6, maps::HALF_OPEN6);
}

/// The maps of flows of one family.
struct FlowMaps<A> {
    flows: Table<FlowKey<A>, Flow<A>>,
    half_open: Table<FlowKey<A>, Flow<A>>,
}

impl<A: Address> FlowMaps<A>
where
    FlowKey<A>: Plain + Hash,
    Flow<A>: Plain,
{
    fn open(pins: &Pins) -> Result<Self, Error> {
        let (flows, half_open) = A::MAPS;
        Ok(Self { flows: Table::open(pins, flows)?, half_open: Table::open(pins, half_open)? })
    }

    fn write(&mut self, flow: &conntrack::Flow, side: u8, pod: PodId, clock: &Clock) -> Result<(), Error> {
        let Some(one) = direction::<A>(flow, side, pod) else { return Ok(()) };
        let (key, half) = (one.key, Flow { last_seen: clock.now, ..one.half });
        let directions = [(key, half), (half.reverse_key(&key), half.reverse(&key))];
        let mut served = false;
        for (key, _) in &directions {
            for map in [&self.flows, &self.half_open] {
                let there = map.get(key)?;
                served |= there.is_some_and(|there| {
                    there.action != Action::Pass as u8
                        && there.generation == half.generation
                        && clock.idle(&there).is_some()
                });
            }
        }
        // The programs translate this flow. conntrack has it from an earlier time, or by a packet that a
        // program left to it.
        if served {
            return Ok(());
        }
        for (key, half) in directions {
            if one.is_established {
                self.flows.put(key, half)?;
                self.half_open.remove(&key)?;
            } else {
                // The programs would remove this direction with a dead one in the other map.
                self.flows.remove(&key)?;
                self.half_open.put(key, half)?;
            }
        }
        Ok(())
    }
}

/// A direction with its key, and its map.
#[derive(Debug)]
struct Keyed<A> {
    key: FlowKey<A>,
    half: Flow<A>,
    is_established: bool,
}

/// The direction of a flow's first packet, as the program on that side sees it. None for protocols that the
/// programs never handle.
fn direction<A: Address>(flow: &conntrack::Flow, side: u8, pod: PodId) -> Option<Keyed<A>> {
    let (original, reply) = (&flow.original, &flow.reply);
    let (state, is_established) = state_of(flow)?;
    let key = FlowKey {
        source: A::of(original.source)?,
        destination: A::of(original.destination)?,
        source_port: Port::new(original.source_port),
        destination_port: Port::new(original.destination_port),
        protocol: original.protocol,
        side,
        pad: 0,
    };
    let published = if side == SIDE_UPLINK && flow.is_dnat() { PUBLISHED } else { 0 };
    let half = Flow {
        // The reply tuple shows the translation of the first packet.
        source: A::of(reply.destination)?,
        destination: A::of(reply.source)?,
        source_port: Port::new(reply.destination_port),
        destination_port: Port::new(reply.source_port),
        action: Action::Pass as u8,
        reason: Reason::Earlier as u8,
        state: state as u8,
        flags: ORIGINAL | published,
        pod: pod.link,
        generation: pod.generation,
        ..Flow::default()
    };
    Some(Keyed { key, half, is_established })
}

/// A flow's state, and true if it is established.
fn state_of(flow: &conntrack::Flow) -> Option<(State, bool)> {
    let has = |bit| flow.status & bit != 0;
    match flow.original.protocol {
        IPPROTO_TCP => {
            let number = flow.tcp_state.unwrap_or_default();
            let state = State::from_number(number).filter(|state| *state as u8 <= State::Close as u8);
            let state = state.unwrap_or(State::SynSent);
            let established = (State::Established as u8..=State::TimeWait as u8).contains(&(state as u8));
            Some((state, established))
        }
        IPPROTO_UDP if has(conntrack::Flow::ASSURED) => Some((State::Stream, true)),
        IPPROTO_UDP if has(conntrack::Flow::SEEN_REPLY) => Some((State::Replied, false)),
        IPPROTO_UDP => Some((State::Unreplied, false)),
        IPPROTO_ICMP | IPPROTO_ICMPV6 => Some((State::Echo, false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use cni_nftables::conntrack::Tuple;

    use super::*;

    fn tuple(source: (&str, u16), destination: (&str, u16), protocol: u8) -> Tuple {
        Tuple {
            source: source.0.parse().unwrap(),
            destination: destination.0.parse().unwrap(),
            protocol,
            source_port: source.1,
            destination_port: destination.1,
        }
    }

    fn flow(original: Tuple, reply: Tuple, status: u32, tcp_state: Option<u8>) -> conntrack::Flow {
        conntrack::Flow { original, reply, status, zone: 0, counted: None, tcp_state }
    }

    const POD: PodId = PodId { link: 7, generation: 99 };

    #[test]
    fn a_flow_to_a_port_has_the_two_directions_that_the_programs_look_up() {
        let original = tuple(("192.0.2.9", 40000), ("192.0.2.2", 8080), 17);
        let reply = tuple(("10.0.0.5", 80), ("192.0.2.9", 40000), 17);
        let status = conntrack::Flow::SEEN_REPLY | conntrack::Flow::ASSURED | 32;
        let known = flow(original, reply, status, None);
        let one = direction::<Addr4>(&known, SIDE_UPLINK, POD).unwrap();
        assert_eq!((one.key.destination_port.number(), one.key.side), (8080, SIDE_UPLINK));
        assert_eq!((one.half.action, one.half.state), (Action::Pass as u8, State::Stream as u8));
        assert_eq!((one.half.flags, one.is_established), (ORIGINAL | PUBLISHED, true));
        let answer = one.half.reverse_key(&one.key);
        assert_eq!(IpAddr::from(answer.source), reply.source);
        assert_eq!((answer.source_port.number(), answer.destination_port.number()), (80, 40000));
        assert_eq!(answer.side, SIDE_POD);
        assert_eq!(one.half.reverse(&one.key).action, Action::Pass as u8);
        assert!(direction::<Addr6>(&known, SIDE_UPLINK, POD).is_none());
    }

    #[test]
    fn a_masqueraded_flow_is_found_from_both_sides() {
        let original = tuple(("fd00::5", 50000), ("2001:db8::1", 443), 6);
        let reply = tuple(("2001:db8::1", 443), ("2001:db8::2", 50001), 6);
        for (tcp, state, established) in
            [(3, State::Established, true), (1, State::SynSent, false), (8, State::Close, false)]
        {
            let one = direction::<Addr6>(&flow(original, reply, 0, Some(tcp)), SIDE_POD, POD).unwrap();
            assert_eq!((one.half.state, one.is_established), (state as u8, established));
            assert_eq!((one.half.flags, one.half.pod, one.half.generation), (ORIGINAL, 7, 99));
            let answer = one.half.reverse_key(&one.key);
            assert_eq!((IpAddr::from(answer.destination), answer.side), (reply.destination, SIDE_UPLINK));
            assert_eq!(answer.destination_port.number(), 50001);
        }
    }

    #[test]
    fn a_single_request_and_reply_is_no_stream() {
        let of = |protocol, status| {
            let original = tuple(("10.0.0.5", 40000), ("192.0.2.9", 53), protocol);
            let one = direction::<Addr4>(&flow(original, original.reversed(), status, None), SIDE_POD, POD);
            one.map(|one| (one.half.state, one.is_established)).unwrap()
        };
        assert_eq!(of(IPPROTO_UDP, 0), (State::Unreplied as u8, false));
        assert_eq!(of(IPPROTO_UDP, conntrack::Flow::SEEN_REPLY), (State::Replied as u8, false));
        assert_eq!(of(IPPROTO_ICMP, conntrack::Flow::SEEN_REPLY), (State::Echo as u8, false));
    }

    #[test]
    fn other_protocols_are_not_imported() {
        let original = tuple(("10.0.0.5", 0), ("192.0.2.9", 0), 132);
        assert!(direction::<Addr4>(&flow(original, original.reversed(), 0, None), SIDE_POD, POD).is_none());
    }
}
