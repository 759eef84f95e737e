// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cost of a span of time.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::measure::cpu_time;
use nix::sys::resource::UsageWho;
use serde::{Deserialize, Serialize};
use xtask_base::error::{Error, Result};
use xtask_base::files;

/// The operations in a span of time, and their cost.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Spent {
    /// KiB or transactions.
    pub(crate) operations: f64,
    /// Wall clock, in seconds.
    pub(crate) wall: f64,
    /// The whole machine's busy time, idle control not yet taken off, in seconds of one processor.
    pub(crate) busy: f64,
    /// User and system time of this process, which is both ends of the connection, in seconds.
    pub(crate) own: f64,
}

/// A span that has begun.
#[derive(Debug)]
pub(super) struct Clock {
    idle: Idle,
    own: f64,
    begun: Instant,
}

/// All processors together, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Idle {
    processors: f64,
    /// Idle, or used by the hypervisor.
    free: f64,
}

impl Clock {
    /// Starts a span.
    pub(super) fn start() -> Result<Self> {
        Ok(Self { idle: idle()?, own: own()?, begun: Instant::now() })
    }

    /// Ends the span after this many operations.
    pub(super) fn stop(self, operations: f64) -> Result<Spent> {
        let wall = self.begun.elapsed().as_secs_f64();
        let (idle, own) = (idle()?, own()? - self.own);
        let busy = idle.processors * wall - (idle.free - self.idle.free);
        Ok(Spent { operations, wall, busy: busy.max(0.0), own })
    }
}

/// User and system time of this process.
fn own() -> Result<f64> {
    Ok(cpu_time(UsageWho::RUSAGE_SELF)?.as_secs_f64())
}

/// The share of one processor that is busy while nothing is measured.
pub(super) fn idle_rate(time: Duration) -> Result<f64> {
    let clock = Clock::start()?;
    std::thread::sleep(time);
    let spent = clock.stop(0.0)?;
    Ok(spent.busy / spent.wall)
}

fn idle() -> Result<Idle> {
    let path = Path::new("/proc/stat");
    let text = files::read(path)?;
    idle_in(&text).ok_or_else(|| Error::Failed("/proc/stat has no line `cpu`".to_owned()))
}

/// The idle, iowait and steal times of the first line, in ticks of 10 ms, see proc(5). Busy time is the rest. Adding up
/// user, nice, system, irq and softirq would be less exact: the timer's interrupt samples them some 250 times a second,
/// while the kernel measures a processor's idle time, because the timer stops meanwhile (`CONFIG_NO_HZ_IDLE`).
fn idle_in(text: &str) -> Option<Idle> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let processors = text.lines().filter(|line| is_processor(line)).count();
    let free = ticks.get(3)? + ticks.get(4)? + ticks.get(7)?;
    Some(Idle { processors: f64::from(u32::try_from(processors).ok()?), free: free / 100.0 })
}

/// True for `cpu0 …`, but not for the sum `cpu …`.
fn is_processor(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_stolen_time_is_free() {
        let text = "cpu  1 2 3 1000 100 4 5 10 0 0\ncpu0 9 9 9\ncpu1 9\nctxt 1\n";
        assert_eq!(idle_in(text), Some(Idle { processors: 2.0, free: 11.1 }));
    }
}
