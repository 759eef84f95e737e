// SPDX-License-Identifier: GPL-2.0-or-later

//! The forms that the values of options must have, for messages.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueError {
    #[error("an address")]
    Address,
    #[error("an address and a port, such as 192.0.2.2:8080 or [2001:db8::2]:8080")]
    Socket,
    #[error("true or false")]
    Boolean,
    #[error("a duration such as 10s or 1m30s")]
    Duration,
    #[error("a time between 1s and {}m", .longest.as_secs() / 60)]
    Time { longest: Duration },
}
