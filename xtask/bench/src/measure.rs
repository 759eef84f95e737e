// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cost of one call: wall clock, CPU of the processes, and the whole machine's busy time.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use xtask::cni::Call;
use xtask_base::error::{Error, Result};
use xtask_base::files;

/// The cost of an operation.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// From the start of the process to its end.
    pub(super) wall: Duration,
    /// User and system time of the process and of those that it waited for.
    pub(super) cpu: Duration,
}

impl Cost {
    /// The sum of several calls.
    pub(super) fn sum(calls: &[Self]) -> Self {
        calls
            .iter()
            .fold(Self::default(), |sum, one| Self { wall: sum.wall + one.wall, cpu: sum.cpu + one.cpu })
    }
}

/// Runs a call as a runtime does, and returns its output.
pub(super) fn call(call: Call) -> Result<(Cost, String)> {
    let cpu = children_cpu()?;
    let begun = Instant::now();
    let out = call.output()?;
    let wall = begun.elapsed();
    Ok((Cost { wall, cpu: children_cpu()?.saturating_sub(cpu) }, out))
}

/// User and system time of all children that were waited for.
pub(super) fn children_cpu() -> Result<Duration> {
    cpu_time(UsageWho::RUSAGE_CHILDREN)
}

/// User and system time.
pub(super) fn cpu_time(of: UsageWho) -> Result<Duration> {
    let usage = getrusage(of).map_err(|e| Error::system("read the CPU time", e))?;
    let micros = (usage.user_time() + usage.system_time()).num_microseconds();
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

/// The busy time of all processors since boot. It includes soft interrupts and kernel threads, which no
/// process is charged for.
pub(super) fn busy() -> Result<Duration> {
    let path = Path::new("/proc/stat");
    let text = files::read(path)?;
    busy_in(&text).ok_or_else(|| Error::Failed("/proc/stat has no line `cpu`".to_owned()))
}

/// The first line: user, nice, system, idle, iowait, irq, softirq, steal in ticks of 10 ms, see
/// proc(5). Time of the hypervisor (steal) is not counted.
fn busy_in(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let busy = ticks.get(0..3)?.iter().sum::<u64>() + ticks.get(5..7)?.iter().sum::<u64>();
    Some(Duration::from_millis(busy * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_stolen_time_is_not_busy() {
        let text = "cpu  1 2 3 1000 1000 4 5 1000 0 0\ncpu0 9 9 9\n";
        assert_eq!(busy_in(text), Some(Duration::from_millis(150)));
    }
}
