// SPDX-License-Identifier: GPL-2.0-or-later

//! Lists the flows of the programs: both directions of each, and its owner.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use aya::Pod as Plain;
use nix::time::{ClockId, clock_gettime};
use slipway_ebpf_abi::{
    Action, Addr4, Addr6, Config, Flow, FlowKey, ONE_SIDED, ORIGINAL, PUBLISHED, Reason, SIDE_POD, State,
    TICK_SHIFT, maps,
};

use super::pins::Pins;
use super::pods::Pods;
use super::tables::Table;
use super::{carried, config};
use crate::nftables;
use crate::{BackendName, Error, HostAddress, Listed, Owner, Traffic};

/// The plane that serves a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// The programs: it goes to a published port.
    Published,
    /// The programs: a container began it and is masqueraded.
    Masqueraded,
    /// The kernel's stack with netfilter, for the flow's whole life.
    Left(Reason),
}

/// Source and destination of a packet. For an ICMP echo, the port of the requester is the identifier, the
/// other one 0.
pub type Ends = (SocketAddr, SocketAddr);

/// One direction of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    /// Ends of its packets as they arrive.
    pub before: Ends,
    /// Ends of its packets after translation.
    pub after: Ends,
    /// Number of packets, and of bytes with the link layer's header; none if this direction was evicted from
    /// the map. The next packet of either direction adds it again.
    pub counted: Option<(u64, u64)>,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFlow {
    /// IP protocol number.
    pub protocol: u8,
    /// Its state.
    pub state: State,
    /// True if both sides have sent packets.
    pub is_established: bool,
    /// The plane that serves it.
    pub plane: Plane,
    /// The direction of its first packet.
    pub first: Direction,
    /// The direction of the replies; none if only the kernel's stack knows their ends.
    pub answers: Option<Direction>,
    /// Time since the last packet, in steps of about a second.
    pub idle: Duration,
    /// The container's address.
    pub container: IpAddr,
    /// Its owner, if known.
    pub owner: Option<Owner>,
}

/// Lists the live flows by container; none if no programs are set up.
///
/// # Errors
/// [`Error::Kernel`] if the maps cannot be read.
pub fn flows() -> Result<Vec<KnownFlow>, Error> {
    let Some(pins) = Pins::find() else { return Ok(Vec::new()) };
    let owners = match nftables::addresses() {
        Err(Error::NoNfTables(_)) => BTreeMap::new(),
        other => other?,
    };
    let clock = Clock::read(&pins)?;
    let pods: Pods = Table::<u32, slipway_ebpf_abi::Pod>::open(&pins, maps::PODS)?
        .all()?
        .into_iter()
        .map(|(link, pod)| (link, pod.generation))
        .collect();
    let is_there = |link: u32, generation: u32| link == 0 || pods.get(&link) == Some(&generation);
    let mut all = read(&pins, &clock, is_there)?;
    for flow in &mut all {
        flow.owner = owners.get(&flow.container).cloned();
    }
    all.sort_by_key(|flow| (flow.container, flow.protocol, flow.first.before));
    Ok(all)
}

/// Lists the flows of these containers that the programs translate.
///
/// # Errors
/// [`Error::Kernel`] if the maps cannot be read.
pub(super) fn served(pins: &Pins, clock: &Clock, pods: &Pods) -> Result<Vec<KnownFlow>, Error> {
    let mut all = read(pins, clock, |link, generation| pods.get(&link) == Some(&generation))?;
    all.retain(|flow| !matches!(flow.plane, Plane::Left(_)));
    Ok(all)
}

fn read(
    pins: &Pins,
    clock: &Clock,
    is_there: impl Fn(u32, u32) -> bool + Copy,
) -> Result<Vec<KnownFlow>, Error> {
    let mut all = Vec::new();
    for (name, is_established) in [(maps::FLOWS4, true), (maps::HALF_OPEN4, false)] {
        let halves = halves::<Addr4>(pins, name)?;
        all.extend(pairs(&halves, is_established, clock, is_there));
    }
    for (name, is_established) in [(maps::FLOWS6, true), (maps::HALF_OPEN6, false)] {
        let halves = halves::<Addr6>(pins, name)?;
        all.extend(pairs(&halves, is_established, clock, is_there));
    }
    Ok(all)
}

/// Adds the programs' flows to conntrack's.
///
/// # Errors
/// As [`flows`].
pub(crate) fn add_traffic(listed: &[Listed], traffic: &mut [Traffic]) -> Result<(), Error> {
    if listed.iter().all(|one| one.backend != BackendName::Ebpf) {
        return Ok(());
    }
    if carried::find().is_some() {
        return add_carried(listed, traffic);
    }
    for flow in flows()?.iter().filter(|flow| flow.plane == Plane::Published) {
        let through = listed.iter().zip(traffic.iter_mut()).filter(|(one, _)| goes_through(flow, one));
        for (_, sum) in through {
            let directions = [Some(flow.first), flow.answers].into_iter().flatten();
            let counted =
                directions.filter_map(|one| one.counted).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            sum.add(Some(counted));
        }
    }
    Ok(())
}

/// Adds the packets that the programs carried to flows that conntrack counts, if it counts.
fn add_carried(listed: &[Listed], traffic: &mut [Traffic]) -> Result<(), Error> {
    for direction in carried::directions()? {
        let (asked, reached) = (direction.before, direction.after);
        // The reverse direction goes from where the first one goes to.
        let ways = [(asked.1, reached.1), (reached.0, asked.0)];
        for (one, sum) in listed.iter().zip(traffic.iter_mut()) {
            if let Some((packets, bytes)) = &mut sum.counted
                && ways.iter().any(|(asked, reached)| leads(direction.protocol, *asked, *reached, one))
            {
                *packets = packets.saturating_add(direction.packets);
                *bytes = bytes.saturating_add(direction.bytes);
            }
        }
    }
    Ok(())
}

fn goes_through(flow: &KnownFlow, listed: &Listed) -> bool {
    leads(flow.protocol, flow.first.before.1, flow.first.after.1, listed)
}

/// True if a mapping translates one destination into the other.
fn leads(protocol: u8, asked: SocketAddr, reached: SocketAddr, listed: &Listed) -> bool {
    let port = &listed.port;
    let offset = asked.port().wrapping_sub(port.host.first);
    protocol == port.host.protocol.number()
        && (port.host.first..=port.host.last).contains(&asked.port())
        && reached == SocketAddr::new(port.container, port.container_port.wrapping_add(offset))
        && match port.host.address {
            HostAddress::One(address) => address == asked.ip(),
            HostAddress::Any(_) => true,
        }
}

/// The time, and the timeouts of flows.
pub(super) struct Clock {
    /// In ticks.
    pub(super) now: u32,
    config: Config,
}

impl Clock {
    /// Reads both.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the settings cannot be read.
    pub(super) fn read(pins: &Pins) -> Result<Self, Error> {
        Ok(Self { now: now(), config: config::configured(pins)? })
    }

    /// Time until a flow without further packets ends.
    pub(super) fn left(&self, flow: &KnownFlow) -> Duration {
        let timeout = self.config.timeouts.get(flow.state as usize).copied().unwrap_or_default();
        Duration::from_nanos(u64::from(timeout) << TICK_SHIFT).saturating_sub(flow.idle)
    }

    /// Time since the last packet of a direction; none if its timeout is over.
    pub(super) fn idle<A>(&self, flow: &Flow<A>) -> Option<Duration> {
        // A packet may have arrived after the clock was read.
        let ticks = self.now.saturating_sub(flow.last_seen);
        let timeout = self.config.timeouts.get(usize::from(flow.timeout_state()))?;
        (ticks <= *timeout).then(|| Duration::from_nanos(u64::from(ticks) << TICK_SHIFT))
    }
}

/// The programs' clock.
fn now() -> u32 {
    let Ok(now) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return 0 };
    let ticks = Duration::from(now).as_nanos() >> TICK_SHIFT;
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// Most elements that are read of one map.
const MOST: usize = 1 << 22;

type Halves<A> = BTreeMap<FlowKey<A>, Flow<A>>;

fn halves<A>(pins: &Pins, name: &'static str) -> Result<Halves<A>, Error>
where
    A: Ord + Copy,
    FlowKey<A>: Plain + Ord + Hash,
    Flow<A>: Plain,
{
    Ok(Table::<FlowKey<A>, Flow<A>>::open(pins, name)?.some(MOST)?.into_iter().collect())
}

fn pairs<A: Ord + Copy + Into<IpAddr>>(
    halves: &Halves<A>,
    is_established: bool,
    clock: &Clock,
    is_there: impl Fn(u32, u32) -> bool,
) -> Vec<KnownFlow> {
    let pair = |(key, half): (&FlowKey<A>, &Flow<A>)| {
        let is_lone = half.flags & ONE_SIDED != 0;
        let reverse_key = half.reverse_key(key);
        let other = halves.get(&reverse_key).filter(|_| !is_lone);
        let is_first = half.flags & ORIGINAL != 0;
        // A flow of two directions is listed once: at the direction of its first packet.
        if !is_first && other.is_some() || !is_there(half.pod, half.generation) {
            return None;
        }
        let own = direction(key, half, true);
        let derived = half.reverse(key);
        let counterpart = direction(&reverse_key, other.unwrap_or(&derived), other.is_some());
        let (first, answers) = match (is_first, is_lone) {
            (_, true) => (own, None),
            (true, false) => (own, Some(counterpart)),
            (false, false) => (counterpart, Some(own)),
        };
        let at_pod = if key.side == SIDE_POD { key } else { &reverse_key };
        Some(KnownFlow {
            protocol: key.protocol,
            state: State::from_number(half.state)?,
            is_established,
            plane: plane(half)?,
            first,
            answers,
            idle: clock.idle(half)?,
            container: at_pod.source.into(),
            owner: None,
        })
    };
    halves.iter().filter_map(pair).collect()
}

fn plane<A>(half: &Flow<A>) -> Option<Plane> {
    if half.action == Action::Pass as u8 {
        return Reason::from_number(half.reason).map(Plane::Left);
    }
    Some(if half.flags & PUBLISHED != 0 { Plane::Published } else { Plane::Masqueraded })
}

fn direction<A: Copy + Into<IpAddr>>(key: &FlowKey<A>, half: &Flow<A>, is_known: bool) -> Direction {
    let end = |address: A, port: slipway_ebpf_abi::Port| SocketAddr::new(address.into(), port.number());
    Direction {
        before: (end(key.source, key.source_port), end(key.destination, key.destination_port)),
        after: (end(half.source, half.source_port), end(half.destination, half.destination_port)),
        counted: is_known.then_some((half.packets, half.bytes)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use slipway_ebpf_abi::{FlowKey4, Port, SIDE_UPLINK, ticks};

    use super::*;

    fn published() -> (FlowKey4, Flow<Addr4>) {
        let address = |last| Addr4::from(Ipv4Addr::new(192, 0, 2, last));
        let key = FlowKey4 {
            source: address(9),
            destination: address(2),
            source_port: Port::new(40000),
            destination_port: Port::new(8080),
            protocol: 6,
            side: SIDE_UPLINK,
            pad: 0,
        };
        let half = Flow {
            source: address(9),
            destination: Addr4::from(Ipv4Addr::new(10, 0, 0, 5)),
            source_port: Port::new(40000),
            destination_port: Port::new(80),
            action: Action::ToPod as u8,
            state: State::Established as u8,
            flags: ORIGINAL | PUBLISHED,
            pod: 7,
            generation: 1,
            packets: 3,
            bytes: 300,
            last_seen: 1000,
            ..Flow::default()
        };
        (key, half)
    }

    fn clock() -> Clock {
        Clock { now: 1000 + ticks(60), config: Config::new(1) }
    }

    fn known(halves: &Halves<Addr4>) -> Vec<KnownFlow> {
        pairs(halves, true, &clock(), |pod, generation| (pod, generation) == (7, 1))
    }

    #[test]
    fn two_directions_are_one_flow() {
        let (key, half) = published();
        let other = Flow { packets: 2, bytes: 200, ..half.reverse(&key) };
        let halves = Halves::from([(key, half), (half.reverse_key(&key), other)]);
        let [flow] = &known(&halves)[..] else { panic!("{halves:?}") };
        assert_eq!((flow.plane, flow.state), (Plane::Published, State::Established));
        assert_eq!(flow.first.before.1.to_string(), "192.0.2.2:8080");
        assert_eq!(flow.first.after.1.to_string(), "10.0.0.5:80");
        assert_eq!(flow.first.counted, Some((3, 300)));
        let answers = flow.answers.unwrap();
        assert_eq!((answers.before.0, answers.counted), (flow.first.after.1, Some((2, 200))));
        assert_eq!(flow.container.to_string(), "10.0.0.5");
        assert_eq!(flow.idle.as_secs(), 60);
    }

    #[test]
    fn an_evicted_direction_is_derived_from_the_other_one() {
        let (key, half) = published();
        let whole = known(&Halves::from([(key, half), (half.reverse_key(&key), half.reverse(&key))]));
        for (key, half) in [(key, half), (half.reverse_key(&key), half.reverse(&key))] {
            let [flow] = &known(&Halves::from([(key, half)]))[..] else { panic!("{half:?}") };
            assert_eq!((flow.first.before, flow.first.after), (whole[0].first.before, whole[0].first.after));
            assert_eq!(flow.container, whole[0].container);
            assert!(flow.first.counted.is_none() != flow.answers.unwrap().counted.is_none());
        }
    }

    #[test]
    fn ended_flows_are_not_listed() {
        let (key, half) = published();
        let of_another = Flow { generation: 2, ..half };
        let silent = Flow { state: State::TimeWait as u8, last_seen: 1, ..half };
        for half in [of_another, silent] {
            let mut late = clock();
            late.now += ticks(120);
            let found = pairs(&Halves::from([(key, half)]), true, &late, |pod, generation| {
                (pod, generation) == (7, 1)
            });
            assert_eq!(found, []);
        }
    }

    #[test]
    fn a_one_sided_flow_has_one_direction() {
        let (mut key, half) = published();
        key.side = SIDE_POD;
        let half = Flow { action: 0, reason: Reason::Mtu as u8, flags: ORIGINAL | ONE_SIDED, ..half };
        let [flow] = &known(&Halves::from([(key, half)]))[..] else { panic!("one") };
        assert_eq!((flow.plane, flow.answers), (Plane::Left(Reason::Mtu), None));
        assert_eq!(flow.container, IpAddr::from(key.source));
    }
}
