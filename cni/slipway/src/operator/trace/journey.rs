// SPDX-License-Identifier: GPL-2.0-or-later

//! Assembles the events of a trace into the paths of packets.

use std::time::{Duration, Instant};

use cni_dataplane::trace::{Event, Place, Policy, Step, TracedPacket, Verdict};

/// The time after which a packet without further events has left netfilter: all its hooks are passed in one go,
/// unless a program holds it in a queue.
const QUIET: Duration = Duration::from_millis(500);
/// The packets that may be open at once; more are not shown.
const MOST_OPEN: usize = 256;

/// The path of one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Journey {
    /// The packet as it came to netfilter.
    pub(super) first: TracedPacket,
    /// The base chains that it has passed, in order.
    pub(super) runs: Vec<Run>,
    /// Where the packet left netfilter, or was seen last.
    pub(super) exit: Exit,
}

/// The end of a packet's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Exit {
    /// The last run has dropped the packet.
    Dropped,
    /// The packet has passed all chains for packets to the node itself.
    Input(TracedPacket),
    /// The packet has passed all chains, and leaves through a link.
    Postrouting(TracedPacket),
    /// The packet was not seen again.
    Lost,
}

/// The path through one base chain and the chains that it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// The base chain.
    pub(super) place: Place,
    /// The packet when it entered the base chain.
    pub(super) seen: TracedPacket,
    /// The chains that rules led to.
    pub(super) path: Vec<String>,
    pub(super) end: End,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// No end was reported.
    Open,
    /// A rule accepted or translated the packet.
    Accepted(ByRule),
    /// A rule dropped the packet.
    Dropped(ByRule),
    /// A rule handed the packet to a program.
    Queued(ByRule),
    /// No rule decided, so the chain's policy did.
    Policy(Policy),
}

/// The rule that decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ByRule {
    pub(super) chain: String,
    pub(super) handle: u64,
    pub(super) text: Option<String>,
    pub(super) map: Option<String>,
}

/// The packets that have not reached their end.
#[derive(Debug, Default)]
pub(super) struct Journeys {
    open: Vec<(u32, Instant, Journey)>,
}

impl Journeys {
    /// Takes an event, and returns the path that it completes, if any.
    pub(super) fn take(&mut self, step: Step, now: Instant) -> Option<Journey> {
        let begins = step.place.is_of_trace() && matches!(step.place.hook, Some("prerouting" | "output"));
        if begins {
            let seen = step.seen?;
            // The kernel reuses packet numbers, so the earlier packet with this number is complete.
            let before = self.close(step.packet);
            if self.open.len() < MOST_OPEN {
                let journey = Journey { first: seen, runs: Vec::new(), exit: Exit::Lost };
                self.open.push((step.packet, now, journey));
            }
            return before;
        }
        let (_, last, journey) = self.open.iter_mut().find(|(packet, ..)| *packet == step.packet)?;
        *last = now;
        if step.place.is_of_trace() {
            journey.exit = match (step.place.hook, step.seen) {
                (Some("input"), Some(seen)) => Exit::Input(seen),
                (_, Some(seen)) => Exit::Postrouting(seen),
                _ => return None,
            };
            return self.close(step.packet);
        }
        journey.add(step.place, step.event, step.seen);
        if journey.exit == Exit::Dropped { self.close(step.packet) } else { None }
    }

    /// The paths of packets that were not seen again.
    pub(super) fn quiet(&mut self, now: Instant) -> Vec<Journey> {
        let (quiet, open) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|(_, last, _)| now.duration_since(*last) >= QUIET);
        self.open = open;
        quiet.into_iter().map(|(.., journey)| journey).collect()
    }

    /// True if packets have not reached their end.
    pub(super) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    fn close(&mut self, packet: u32) -> Option<Journey> {
        let at = self.open.iter().position(|(one, ..)| *one == packet)?;
        Some(self.open.remove(at).2)
    }
}

impl Journey {
    fn add(&mut self, place: Place, event: Event, seen: Option<TracedPacket>) {
        let chain = place.chain.clone();
        if let Some(seen) = seen {
            self.runs.push(Run { place, seen, path: Vec::new(), end: End::Open });
        }
        let Some(run) = self.runs.last_mut() else { return };
        match event {
            Event::Return => {}
            Event::Policy(policy) => run.end = End::Policy(policy),
            Event::Rule { handle, text, map, verdict } => {
                let rule = ByRule { chain, handle, text, map };
                match verdict {
                    Some(Verdict::Jump(chain) | Verdict::Goto(chain)) => run.path.push(chain),
                    Some(Verdict::Continue | Verdict::Return) => {}
                    Some(Verdict::Accept) => run.end = End::Accepted(rule),
                    Some(Verdict::Drop) => run.end = End::Dropped(rule),
                    None => run.end = End::Queued(rule),
                }
            }
        }
        if matches!(run.end, End::Dropped(_) | End::Policy(Policy::Drop)) {
            self.exit = Exit::Dropped;
        }
    }
}
