// SPDX-License-Identifier: MIT OR Apache-2.0

//! The machine's uptime and boot id, which do not depend on the wall clock.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since boot, sleep included (`CLOCK_BOOTTIME`, clock_gettime(2)).
#[must_use]
pub fn uptime() -> Duration {
    // Every kernel since Linux 2.6.39 has the clock.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// Identifier of the current boot (`/proc/sys/kernel/random/boot_id`, random(4)). Empty if it cannot be read.
#[must_use]
pub fn id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_grows_and_the_boot_id_stays() {
        let (before, start) = (uptime(), id());
        std::thread::sleep(Duration::from_millis(5));
        assert!(uptime() >= before + Duration::from_millis(5));
        assert_eq!(id(), start);
        assert_eq!(start.len(), 36);
    }
}
