//! How long to wait for what must come, on machines that are not equally fast.

use std::sync::LazyLock;
use std::time::Duration;

/// By how much time limits are longer than on a usual machine: the environment variable `SLIPWAY_SLOWER`,
/// which is set on an emulated one. 1 when it is not set.
static SLOWER: LazyLock<u32> = LazyLock::new(|| {
    std::env::var("SLIPWAY_SLOWER").map_or(1, |text| text.parse().expect("SLIPWAY_SLOWER is a number"))
});

/// A limit for something that must happen, given for a usual machine, on this one. Not for what must take some
/// time, nor for what must not happen.
#[must_use]
pub fn within(limit: Duration) -> Duration {
    limit * *SLOWER
}

/// Whether an answer may take so long that the kernel sends what was answered again.
#[must_use]
pub fn is_slow() -> bool {
    *SLOWER > 1
}

/// How long a client tries before it gives up: a lost first SYN is sent again after one second, and a lost
/// neighbour solicitation too.
#[must_use]
pub fn patience() -> Duration {
    within(Duration::from_secs(12))
}
