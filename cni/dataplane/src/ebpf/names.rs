// SPDX-License-Identifier: GPL-2.0-or-later

//! The names of the counters. Other programs depend on them, in text and JSON.

use slipway_ebpf_abi::Counter;

#[must_use]
pub const fn of_counter(counter: Counter) -> &'static str {
    match counter {
        Counter::Carried => "carried_packets",
        Counter::Asked => "recorded_packets",
        Counter::Checked => "checked_packets",
        Counter::Unlike => "changed_packets",
        Counter::DroppedFar => "forged_end",
        Counter::DroppedWrite => "write_failed",
        Counter::Copied => "copied_packets",
    }
}

/// Describes a counter; for a counter of dropped packets, the reason.
#[must_use]
pub const fn about_counter(counter: Counter) -> &'static str {
    match counter {
        Counter::Carried => "packets that the BPF programs carried",
        Counter::Asked => "packets that were recorded before they passed the kernel's stack",
        Counter::Checked => "recorded packets that came out of the kernel's stack",
        Counter::Unlike => "recorded packets that came out changed in another way than the BPF programs can",
        Counter::DroppedFar => "FIN and RST whose sequence number is far from the connection's",
        Counter::DroppedWrite => "the kernel refused to change the packet",
        Counter::Copied => "recorded packets that came out more than once: a copy of each was made",
    }
}
