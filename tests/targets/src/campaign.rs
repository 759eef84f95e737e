// SPDX-License-Identifier: GPL-3.0-or-later

//! Mutates inputs for one target, without instrumentation. An input whose result has a new [shape](crate::Shape) is
//! kept and mutated further.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::minimise::minimised;
use crate::mutation::mutated;
use crate::random::Random;
use crate::run::{Problem, run};
use crate::shape::Shape;
use crate::target::Target;

/// The maximum number of inputs that are kept.
const POOL: usize = 512;
/// The number of inputs after which the clock is checked.
const ROUND: u64 = 64;

/// A mistake in the target, with the shortest input that reveals it.
#[derive(Debug, Clone)]
pub struct Finding {
    pub problem: Problem,
    pub input: Vec<u8>,
}

/// A run of mutated inputs for one target.
#[derive(Debug)]
pub struct Campaign {
    target: &'static Target,
    random: Random,
    /// The seeds, followed by the inputs with new shapes.
    pool: Vec<Vec<u8>>,
    seeds: usize,
    shapes: Vec<Shape>,
    /// The findings by the kind of mistake.
    findings: BTreeMap<String, Finding>,
    tried: u64,
    took: Duration,
}

impl Campaign {
    /// Reads the seeds. The number `seed` determines all later inputs.
    #[must_use]
    pub fn new(target: &'static Target, seeds: Vec<Vec<u8>>, seed: u64) -> Self {
        let mut campaign = Self {
            target,
            random: Random::new(seed),
            pool: Vec::new(),
            seeds: 0,
            shapes: Vec::new(),
            findings: BTreeMap::new(),
            tried: 0,
            took: Duration::ZERO,
        };
        for input in seeds {
            campaign.read(&input);
            campaign.pool.push(input);
        }
        campaign.seeds = campaign.pool.len();
        campaign
    }

    /// Tries this many mutated inputs, or fewer if the time is over before.
    pub fn mutate(&mut self, inputs: u64, end: Option<Instant>) {
        let (begin, last) = (Instant::now(), self.tried.saturating_add(inputs));
        while self.tried < last {
            if self.tried.is_multiple_of(ROUND) && end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            let input = self.random.pick(&self.pool).cloned().unwrap_or_default();
            let input = mutated(&input, &self.pool, self.target.words, &mut self.random);
            if self.read(&input) && self.pool.len() < POOL {
                self.pool.push(input);
            }
        }
        self.took += begin.elapsed();
    }

    /// Reads inputs from another mutator, and keeps those with new shapes.
    pub fn offer(&mut self, inputs: Vec<Vec<u8>>) {
        for input in inputs {
            if self.read(&input) && self.pool.len() < POOL {
                self.pool.push(input);
            }
        }
    }

    /// Reads an input, and returns true if its result has a new shape.
    fn read(&mut self, input: &[u8]) -> bool {
        self.tried += 1;
        match run(self.target, input) {
            Ok(shape) if self.shapes.iter().any(|known| known.is_like(shape)) => false,
            Ok(shape) => {
                self.shapes.push(shape);
                true
            }
            Err(problem) => {
                self.note(problem, input);
                false
            }
        }
    }

    fn note(&mut self, problem: Problem, input: &[u8]) {
        let kind = problem.kind().to_owned();
        if self.findings.contains_key(&kind) {
            return;
        }
        let shows_it =
            |input: &[u8]| run(self.target, input).is_err_and(|problem| problem.kind() == kind.as_str());
        // Minimising a slow input would take minutes.
        let input =
            if matches!(problem, Problem::Slow(_)) { input.to_vec() } else { minimised(input, shows_it) };
        self.findings.insert(kind, Finding { problem, input });
    }

    /// The number of inputs that were read, including the seeds.
    #[must_use]
    pub fn tried(&self) -> u64 {
        self.tried
    }

    /// The number of mutated inputs per second, 0 before the first one.
    #[must_use]
    pub fn per_second(&self) -> u64 {
        let mutated = self.tried.saturating_sub(self.seeds as u64);
        u64::try_from(u128::from(mutated) * 1000 / self.took.as_millis().max(1)).unwrap_or(u64::MAX)
    }

    /// The number of distinct shapes.
    #[must_use]
    pub fn shapes(&self) -> usize {
        self.shapes.len()
    }

    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.values()
    }

    /// For each shape that no seed has, the shortest input with it.
    #[must_use]
    pub fn interesting(&self) -> Vec<Vec<u8>> {
        let new = self.pool.get(self.seeds..).unwrap_or_default().iter();
        let short = new.filter_map(|input| {
            let shape = run(self.target, input).ok()?;
            let is_like = |input: &[u8]| run(self.target, input).is_ok_and(|other| other.is_like(shape));
            Some(minimised(input, is_like))
        });
        let mut all: Vec<Vec<u8>> = short.collect();
        all.sort_by_key(|input| (input.len(), input.clone()));
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three words lead to a panic, and each of them has a distinct shape. The words have no letter in common, so the
    /// shortest input consists of them one after the other.
    static STEPS: Target = Target {
        name: "steps",
        input: "a test's",
        read: |input| {
            let has = |word: &str| input.windows(word.len()).any(|part| part == word.as_bytes());
            assert!(!(has("abc") && has("def") && has("ghi")), "all three");
            Shape::of(&(has("abc"), has("abc") && has("def")))
        },
        words: &["abc", "def", "ghi"],
    };

    #[test]
    fn inputs_with_new_shapes_lead_to_a_mistake_and_it_is_reported_once() {
        let mut campaign = Campaign::new(&STEPS, vec![b"zero".to_vec()], 1);
        campaign.mutate(5_000, None);
        let findings: Vec<&Finding> = campaign.findings().collect();
        let [finding] = findings[..] else { panic!("{findings:?}") };
        assert!(finding.problem.to_string().ends_with("all three"), "{}", finding.problem);
        assert_eq!(finding.input.len(), "abcdefghi".len(), "{:?}", finding.input.escape_ascii().to_string());
        assert!(campaign.interesting().iter().any(|input| input == b"abc"));
        assert_eq!(campaign.tried(), 5_001);
    }

    #[test]
    fn a_seed_repeats_a_campaign() {
        let pool = |seed| {
            let mut campaign = Campaign::new(&STEPS, vec![b"zero".to_vec()], seed);
            campaign.mutate(300, None);
            campaign.pool
        };
        assert_eq!(pool(3), pool(3));
    }

    #[test]
    fn the_time_ends_a_campaign() {
        let mut campaign = Campaign::new(&STEPS, Vec::new(), 1);
        campaign.mutate(u64::MAX, Some(Instant::now()));
        assert_eq!(campaign.tried(), 0);
    }
}
