// SPDX-License-Identifier: GPL-2.0-or-later

//! Time limits that also suit slow machines.

use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

/// The factor by which time limits are longer than on a usual machine. The environment variable `SLIPWAY_SLOWER`, which
/// is set in VMs, gives it; the default is 1.
static SLOWER: LazyLock<u32> = LazyLock::new(|| {
    std::env::var("SLIPWAY_SLOWER").map_or(1, |text| text.parse().expect("SLIPWAY_SLOWER is a number"))
});

/// Converts a limit for something that must happen from a usual machine to this one. Do not use it for a wait that must
/// last, nor for something that must not happen.
pub fn within(limit: Duration) -> Duration {
    limit * *SLOWER
}

/// True if a reply may take so long that the kernel sends the request again.
pub fn is_slow() -> bool {
    *SLOWER > 1
}

/// The time limit of a client. The kernel resends a lost first SYN after one second, and likewise a lost neighbour
/// solicitation.
pub fn patience() -> Duration {
    within(Duration::from_secs(12))
}

/// Waits until the condition is true. Returns false if it is not within a [`patience`].
pub fn comes(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + patience();
    loop {
        if condition() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the condition is true, and returns how long that took. Panics with a description of the condition if
/// that takes longer than [`within`] the limit.
#[track_caller]
pub fn until(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < within(limit), "{what}: not so");
        thread::sleep(Duration::from_millis(10));
    }
    begun.elapsed()
}
