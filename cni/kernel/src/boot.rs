//! Time that nobody sets: how long the machine has been running, and which start of it this is.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// How long the machine has been running, sleep included (`CLOCK_BOOTTIME`, clock_gettime(2)).
#[must_use]
pub fn uptime() -> Duration {
    // The clock is there since Linux 2.6.39; without it time would stand still here.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// What this start of the machine is told apart by (`/proc/sys/kernel/random/boot_id`, random(4)); empty
/// where there is no /proc.
#[must_use]
pub fn id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_the_start_stays() {
        let (before, start) = (uptime(), id());
        std::thread::sleep(Duration::from_millis(5));
        assert!(uptime() >= before + Duration::from_millis(5));
        assert_eq!(id(), start);
        assert_eq!(start.len(), 36);
    }
}
