// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway trace`: shows real packets to a port, hook by hook through the node's rules.
//!
//! [`journey`] puts the kernel's events together, [`words`] turns them into sentences.

mod journey;
#[cfg(test)]
mod tests;
mod words;

use std::cell::OnceCell;
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use cni_dataplane::ebpf::{CarriedPackets, Counter};
use cni_dataplane::explain::{self, Packet};
use cni_dataplane::foreign_nat::{ForeignNat, Hook as ForeignHook, Place, Probe};
use cni_dataplane::trace::{Report, TracedPacket, Tracer};
use cni_dataplane::{AddressFamily, Error, Protocol, ebpf};
use cni_kernel::route::RouteSocket;
use cni_state::documents::{PacketTrace, Trace};
use slipway_cli::{Failure, Output, json};

use super::check_node;
use super::destination::Destination;
use super::explain::{self as explanation};
use super::interrupt::Interrupt;
use super::values::ValueError;
use journey::{End, Journey, Journeys, Run};
use words::{Description, Facts};

/// The longest time.
const LONGEST: Duration = Duration::from_secs(600);
/// The interval at which signals, and packets that are not seen again, are checked.
const LOOK: Duration = Duration::from_millis(100);
/// The time between two reads of the BPF programs' records, because each read takes all of them.
const COUNT_AGAIN: Duration = Duration::from_millis(500);

/// Show real packets to a port, hook by hook through the node's rules
///
/// Has the kernel trace packets to this address and port, a few a second at most, and prints what each chain did with them,
/// also chains of other programs. The rule for this ends with the command, from Linux 5.12 also if it is killed; before, the
/// next trace removes it. No packet is sent. Packets that BPF programs carry past netfilter are counted only; rules of
/// iptables-legacy are not shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway trace tcp 192.0.2.2:8080
  slipway trace udp 192.0.2.2:53 --for 1m --count 3 --output json")]
pub(super) struct Args {
    #[command(flatten)]
    destination: Destination,
    /// The time after which the trace ends, 10m at most
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = seconds, allow_hyphen_values = true)]
    time: Duration,
    /// The number of packets after which the trace ends, 1000 at most
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = slipway_cli::number(1..=1000_usize))]
    count: usize,
    #[command(flatten)]
    output: Output,
}

/// The packets of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    protocol: Protocol,
    to: SocketAddr,
    time: Duration,
    count: usize,
}

/// Reads a time in seconds or minutes: `10s`, `2m`, `10`.
fn seconds(text: &str) -> Result<Duration, ValueError> {
    let (number, unit) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let time =
        number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).map(Duration::from_secs);
    time.filter(|time| !time.is_zero() && *time <= LONGEST).ok_or(ValueError::Time { longest: LONGEST })
}

/// The result of a trace, besides its packets.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Summary {
    /// The reason of its end: `time`, `count` or `signal`.
    ended: &'static str,
    /// True if there were more events than the socket's buffer holds.
    lost: bool,
    /// Packets that BPF programs carried past netfilter; none without the programs.
    carried: Option<u64>,
    /// Counters of the programs that grew, for all ports of the node.
    counted: Vec<(Counter, u64)>,
}

/// Traces packets and prints their paths, each as soon as it is complete.
pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, Failure> {
    let Destination { protocol, to } = args.destination;
    let (time, count) = (args.time, args.count);
    let wanted = Wanted { protocol, to, time, count };
    if !args.output.json() {
        writeln!(err, "tracing {protocol} to {to}: {count} packets at most, {} s at most", time.as_secs())?;
    }
    let mut all = Vec::new();
    let mut failed = Ok(());
    let summary = watch(&wanted, &mut |described| {
        all.push(described.document());
        if !args.output.json() && failed.is_ok() {
            failed = out.write_all(described.text(all.len()).as_bytes()).and_then(|()| out.flush());
        }
    });
    let summary = summary.map_err(Failure::failed)?;
    failed?;
    if args.output.json() {
        json::print(document(&wanted, &summary, all), out)?;
    } else {
        out.write_all(closing(&wanted, &summary, all.len()).as_bytes())?;
    }
    Ok(0)
}

/// Traces until the time or the number of packets is reached, or a signal comes.
fn watch(wanted: &Wanted, each: &mut dyn FnMut(&Description)) -> Result<Summary, Error> {
    let Wanted { protocol, to, time, count } = *wanted;
    let interrupt = Interrupt::hold().map_err(|e| Error::kernel("hold signals back", e))?;
    let (mut carried, counted_before) = (CarriedPackets::start(protocol, to)?, ebpf::counters()?);
    let mut tracer = Tracer::start(protocol, to, time)?;
    let node = OfNode { protocol, to, owner: OnceCell::new() };
    let (end, mut journeys) = (Instant::now() + time, Journeys::default());
    let (mut shown, mut lost) = (0, false);
    let mut next_look = Instant::now() + COUNT_AGAIN;
    let ended = loop {
        let now = Instant::now();
        if let Some(carried) = carried.as_mut().filter(|_| now >= next_look) {
            carried.look()?;
            next_look = now + COUNT_AGAIN;
        }
        let mut done: Vec<Journey> = journeys.quiet(now);
        match tracer.next((now + LOOK).min(end))? {
            Some(Report::Lost) => lost = true,
            Some(Report::Step(step)) => done.extend(journeys.take(*step, Instant::now())),
            // Packets that have not reached their end may need longer than the requested time.
            None if now >= end && !journeys.any() => break "time",
            None if now >= end => std::thread::sleep(LOOK),
            None => {}
        }
        for journey in done.iter().take(count - shown) {
            shown += 1;
            each(&Description::of(journey, protocol, &node));
        }
        if shown == count {
            break "count";
        }
        if interrupt.came() {
            break "signal";
        }
    };
    let carried = carried.as_mut().map(CarriedPackets::look).transpose()?;
    Ok(Summary { ended, lost, carried, counted: added(&counted_before, ebpf::counters()?) })
}

/// The counters that have grown, by how much. One that `before` lacks was zero.
fn added(before: &[(Counter, u64)], after: Vec<(Counter, u64)>) -> Vec<(Counter, u64)> {
    let earlier = |counter| before.iter().find(|one| one.0 == counter).map_or(0, |one| one.1);
    let grown = after.into_iter().map(|(counter, count)| (counter, count.saturating_sub(earlier(counter))));
    grown.filter(|one| one.1 > 0).collect()
}

/// The first packet of a flow that a trace caught while a request was made, for another command.
#[derive(Debug)]
pub(super) struct Caught {
    /// What became of the packet.
    pub(super) outcome: String,
    /// True if it was dropped.
    pub(super) dropped: bool,
}

/// Traces packets to a destination while `work` runs, and returns the paths that were caught.
///
/// # Errors
/// The errors of [`Tracer::start`].
pub(super) fn during(protocol: Protocol, to: SocketAddr, work: impl FnOnce()) -> Result<Vec<Caught>, Error> {
    let mut tracer = Tracer::start(protocol, to, Duration::from_secs(10))?;
    work();
    let node = OfNode { protocol, to, owner: OnceCell::new() };
    let mut journeys = Journeys::default();
    let mut done = Vec::new();
    while let Some(report) = tracer.next(Instant::now() + LOOK)? {
        if let Report::Step(step) = report {
            done.extend(journeys.take(*step, Instant::now()));
        }
    }
    done.extend(journeys.quiet(Instant::now() + Duration::from_secs(60)));
    let described = done.iter().map(|journey| Description::of(journey, protocol, &node));
    Ok(described.map(|described| Caught { outcome: described.outcome, dropped: described.dropped }).collect())
}

fn closing(wanted: &Wanted, summary: &Summary, packets: usize) -> String {
    let mut text = match (packets, summary.ended) {
        (0, _) => "No packet to this port came to netfilter.\n".to_owned(),
        (_, "count") => format!("{packets} packets; --count shows more.\n"),
        _ => format!("{packets} packets.\n"),
    };
    if summary.lost {
        text.push_str("Events were lost: there were more than could be read.\n");
    }
    if let Some(carried) = summary.carried {
        text.push_str(&format!(
            "BPF programs carried {carried} packets of flows to this port past netfilter: of these a trace sees \
             the first packets, and up to two per second of each direction. Of a flow that ended, the last \
             packets are not counted.\n"
        ));
    }
    if !summary.counted.is_empty() {
        text.push_str("During the trace the BPF programs counted, for all ports of the node:\n");
        for (counter, count) in &summary.counted {
            let about = ebpf::about_counter(*counter);
            text.push_str(&format!("  {count} {about}\n"));
        }
    }
    if packets == 0 && summary.carried.is_none_or(|carried| carried == 0) {
        text.push_str(&format!(
            "`slipway explain {} {}` shows what a packet would meet.\n",
            wanted.protocol, wanted.to
        ));
    }
    text
}

/// The document of `slipway trace`.
fn document(wanted: &Wanted, summary: &Summary, packets: Vec<PacketTrace>) -> Trace {
    let counters = summary.counted.iter();
    Trace {
        protocol: wanted.protocol.as_str().to_owned(),
        destination: wanted.to.to_string(),
        packets,
        ended: summary.ended.to_owned(),
        events_lost: summary.lost,
        carried_packets: summary.carried,
        counters: counters.map(|(counter, count)| (ebpf::of_counter(*counter).to_owned(), *count)).collect(),
    }
}

/// Facts of the node that runs the command.
struct OfNode {
    protocol: Protocol,
    to: SocketAddr,
    owner: OnceCell<Option<String>>,
}

impl OfNode {
    fn read_owner(&self) -> Option<String> {
        let hit = explain::first_hit(self.protocol, self.to).ok().flatten()?;
        hit.owner.map(|owner| owner.to_string())
    }
}

impl Facts for OfNode {
    fn link(&self, index: u32) -> String {
        let link = RouteSocket::open().and_then(|route| route.link_by_index(index));
        link.map_or_else(|_| format!("link {index}"), |link| link.name)
    }

    fn owner(&self) -> Option<String> {
        self.owner.get_or_init(|| self.read_owner()).clone()
    }

    fn listener(&self) -> String {
        explanation::listener_at(self.protocol, self.to).to_owned()
    }

    fn translator(&self, seen: &TracedPacket, run: &Run) -> Option<String> {
        let End::Accepted(rule) = &run.end else { return None };
        let hook =
            if run.place.hook == Some("output") { ForeignHook::Output } else { ForeignHook::Prerouting };
        let family = AddressFamily::of(self.to.ip());
        let (protocol, to, port) = (self.protocol.number(), Some(self.to.ip()), self.to.port());
        let (from, link) = (Some(seen.from.ip()), seen.link_in.map(|index| self.link(index)));
        let first = ForeignNat::open(hook).ok()??.first(&Probe { family, protocol, to, port, from, link });
        let is_it = |place: &Place| matches!(place, Place::Table { handle, .. } if *handle == rule.handle);
        let first = first.ok()?.filter(|first| is_it(&first.place) && first.chain == rule.chain)?;
        let (reason, fix) = check_node::advice(&first);
        Some(format!("{reason}\n{fix}"))
    }

    fn reason(&self, seen: &TracedPacket) -> Option<String> {
        let link = seen.link_in.map_or_else(|| "lo".to_owned(), |index| self.link(index));
        let from = Some(seen.from.ip());
        let origin = explanation::origin(from, Some(&link), self.to.ip()).ok()?;
        explanation::outcome(Packet { protocol: self.protocol, to: self.to, from, origin })
    }
}
