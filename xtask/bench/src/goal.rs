// SPDX-License-Identifier: MIT OR Apache-2.0

//! Goals of the design, and whether a run meets them.

use serde::{Deserialize, Serialize};

/// A figure with the limit that the design sets for it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) value: f64,
    goal: Limit,
    pub(crate) met: bool,
}

/// The limit as it is saved: a bare number where the figures of a benchmark have no lower limit.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum Limit {
    AtMost(f64),
    Named(Bound),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    pub(crate) fn at_most(what: String, value: f64, limit: f64) -> Self {
        Self { what, value, goal: Limit::AtMost(limit), met: value <= limit }
    }

    pub(crate) fn bounded(what: String, value: f64, bound: Bound) -> Self {
        let met = match bound {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
        };
        Self { what, value, goal: Limit::Named(bound), met }
    }

    /// The same with the name of its run.
    pub(crate) fn of(self, run: &str) -> Self {
        Self { what: format!("{run}: {}", self.what), ..self }
    }

    /// The limit for readers, as `≤ 0.1`.
    pub(crate) fn limit(&self) -> String {
        match self.goal {
            Limit::AtMost(most) | Limit::Named(Bound::AtMost(most)) => format!("≤ {most}"),
            Limit::Named(Bound::AtLeast(least)) => format!("≥ {least}"),
        }
    }
}

/// The goals for the terminal, each a line.
pub(crate) fn text(goals: &[Goal]) -> String {
    let line = |goal: &Goal| {
        let verdict = if goal.met { "met   " } else { "MISSED" };
        format!("{verdict}  {:>7.3}  goal {:<6}  {}\n", goal.value, goal.limit(), goal.what)
    };
    goals.iter().map(line).collect()
}
