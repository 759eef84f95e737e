// SPDX-License-Identifier: GPL-2.0-or-later

//! The names of the BPF programs' counters: an interface, in text and JSON. Short container IDs.

pub(super) use cni_dataplane::ebpf::{about_counter, of_counter};

/// The first twelve characters of a container ID, as container tools show it.
pub(super) fn short(container_id: &str) -> String {
    container_id.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use cni_dataplane::ebpf::Counter;
    use slipway_cli::checks;

    use super::*;

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
