// SPDX-License-Identifier: GPL-2.0-or-later

//! The names of the BPF programs' counters: an interface, in text and JSON. Short container IDs.

use cni_dataplane::ebpf::Counter;

/// The name of a counter.
pub(super) const fn of_counter(counter: Counter) -> &'static str {
    match counter {
        Counter::Carried => "carried_packets",
        Counter::Asked => "recorded_packets",
        Counter::Checked => "checked_packets",
        Counter::Unlike => "changed_packets",
        Counter::DroppedFar => "forged_end",
        Counter::DroppedWrite => "write_failed",
    }
}

/// A counter in words; for one of dropped packets, the reason.
pub(super) const fn about_counter(counter: Counter) -> &'static str {
    match counter {
        Counter::Carried => "packets that the BPF programs carried",
        Counter::Asked => "packets that were recorded before they passed the kernel's stack",
        Counter::Checked => "recorded packets that came out of the kernel's stack",
        Counter::Unlike => "recorded packets that came out changed in another way than the BPF programs can",
        Counter::DroppedFar => "FIN and RST whose sequence number is far from the connection's",
        Counter::DroppedWrite => "the kernel refused to change the packet",
    }
}

/// The first twelve characters of a container ID, as container tools show it.
pub(super) fn short(container_id: &str) -> String {
    container_id.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipway_cli::checks;

    #[test]
    fn the_page_has_each_name_and_no_other() {
        let row = |one| vec![format!("`{}`", of_counter(one)), about_counter(one).to_owned()];
        let (dropped, counted): (Vec<Counter>, Vec<Counter>) =
            Counter::ALL.into_iter().partition(|one| one.is_drop());
        assert_eq!(checks::rows("Counters"), counted.into_iter().map(row).collect::<Vec<_>>());
        assert_eq!(
            checks::rows("Counters of dropped packets"),
            dropped.into_iter().map(row).collect::<Vec<_>>()
        );
    }

    #[test]
    fn names_differ() {
        let mut names: Vec<&str> = Counter::ALL.into_iter().map(of_counter).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Counter::ALL.len());
    }
}
