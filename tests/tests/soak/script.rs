// SPDX-License-Identifier: GPL-2.0-or-later

//! What the workers do. Any part of a script can be left out, because the model decides what an operation means.

use std::fmt;

use slipway_tests::Random;

pub(crate) const WORKERS: usize = 8;
/// The containers of each worker.
pub(crate) const PODS: usize = 3;
const ROUNDS: usize = 6;
/// The operations of each worker in a round.
const STEPS: u64 = 4;
/// A kill comes within so many microseconds.
const KILL: u64 = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Of an attached container, a repeated ADD.
    Add,
    Del,
    Check,
    Status,
    /// Kills the call of the plugin at this place of the list after so many microseconds: a DEL of an attached
    /// container, or else the ADD of the first plugin.
    Kill(usize, u64),
    /// The worker calls with the network's other name from now on.
    Rename,
    /// The runtime loses its cache.
    Forget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) pod: usize,
    pub(crate) operation: Operation,
}

/// What happens to the whole node while the workers work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Nothing,
    Flush,
    Restore,
    Migrate(&'static str),
    Gc,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) event: Event,
    /// The steps of each worker.
    pub(crate) steps: Vec<Vec<Step>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Script(pub(crate) Vec<Round>);

fn small(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

impl Script {
    pub(crate) fn random(random: &mut Random, migrations: &[&'static str]) -> Self {
        Self((0..ROUNDS).map(|_| Round::random(random, migrations)).collect())
    }

    /// The number of operations, with those of the whole node.
    pub(crate) fn len(&self) -> u64 {
        self.0.iter().map(|round| 1 + round.steps.iter().map(Vec::len).sum::<usize>() as u64).sum()
    }

    /// Scripts that lack a part of this one, those that lack most first.
    pub(crate) fn shorter(&self) -> Vec<Self> {
        let changed = |change: &dyn Fn(&mut Vec<Round>)| {
            let mut rounds = self.0.clone();
            change(&mut rounds);
            Self(rounds)
        };
        let mut all = Vec::new();
        for round in 0..self.0.len() {
            all.push(changed(&|rounds| drop(rounds.remove(round))));
        }
        for worker in 0..WORKERS {
            all.push(changed(&|rounds| rounds.iter_mut().for_each(|round| round.steps[worker].clear())));
        }
        for round in 0..self.0.len() {
            all.push(changed(&|rounds| rounds[round].event = Event::Nothing));
            for worker in 0..WORKERS {
                for step in 0..self.0[round].steps[worker].len() {
                    all.push(changed(&|rounds| {
                        rounds[round].steps[worker].remove(step);
                    }));
                }
            }
        }
        all.retain(|script| script != self && !script.0.is_empty());
        all
    }
}

impl Round {
    fn random(random: &mut Random, migrations: &[&'static str]) -> Self {
        let event = match random.below(8) {
            0 | 1 => Event::Migrate(migrations[small(random.below(migrations.len() as u64))]),
            2 | 3 => Event::Flush,
            4 => Event::Restore,
            5 => Event::Gc,
            _ => Event::Nothing,
        };
        let mut steps = || (0..STEPS).map(|_| Step::random(random)).collect();
        Self { event, steps: (0..WORKERS).map(|_| steps()).collect() }
    }
}

impl Step {
    fn random(random: &mut Random) -> Self {
        let pod = small(random.below(PODS as u64));
        let operation = match random.below(20) {
            0..8 => Operation::Add,
            8..12 => Operation::Del,
            12..14 => Operation::Check,
            14 => Operation::Status,
            15..18 => Operation::Kill(small(random.below(2)), random.below(KILL)),
            18 => Operation::Rename,
            _ => Operation::Forget,
        };
        Self { pod, operation }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, round) in self.0.iter().enumerate() {
            writeln!(f, "round {number}: {:?}", round.event)?;
            for (worker, steps) in round.steps.iter().enumerate().filter(|(_, steps)| !steps.is_empty()) {
                let steps: Vec<String> =
                    steps.iter().map(|step| format!("{:?} w{worker}p{}", step.operation, step.pod)).collect();
                writeln!(f, "  {}", steps.join(", "))?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_script_is_made_shorter_until_nothing_can_be_left_out() {
    let script = Script::random(&mut Random::new(7), &["nftables"]);
    assert_eq!(script, Script::random(&mut Random::new(7), &["nftables"]));
    // The failure needs a flush, and a DEL of another worker's container in a later round.
    let fails = |script: &Script| {
        let flush = script.0.iter().position(|round| round.event == Event::Flush);
        let is_del = |step: &Step| step.operation == Operation::Del;
        let later = |at: usize| script.0[at + 1..].iter().any(|round| round.steps[3].iter().any(is_del));
        flush.is_some_and(later)
    };
    let mut script = (7..100)
        .map(|seed| Script::random(&mut Random::new(seed), &["nftables"]))
        .find(fails)
        .expect("one with a flush");
    while let Some(shorter) = script.shorter().into_iter().find(fails) {
        script = shorter;
    }
    assert_eq!((script.0.len(), script.len()), (2, 3), "{script}");
}
