// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ways in which Slipway is disturbed, each with the tests that do so.

use std::collections::BTreeSet;

/// A way of disturbing Slipway.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// What is tried, for people.
    pub(super) tries: &'static str,
    /// Beginnings of the titles of its tests, as in `tests/alone.txt`.
    pub(super) tests: &'static [&'static str],
}

/// All rows. A test belongs to the first row that names it.
pub(super) const ROWS: &[Row] = &[
    Row {
        name: "power",
        tries: "a power cut, at each flush of the disk's cache and between two flushes",
        tests: &["reliability::power_cut::"],
    },
    Row {
        name: "clock",
        tries: "a clock that jumps by a day, to 1970 and to 2106",
        tests: &["reliability::clock::"],
    },
    Row {
        name: "calls",
        tries: "a kill, and an error, at the system calls of plugins and commands",
        tests: &[
            "reliability::",
            "host_local::interrupted::",
            "migrate::killed::",
            "migrate::restored::",
            "netavark::killed::",
            "pods::kill::",
        ],
    },
    Row {
        name: "random",
        tries: "random operations of several workers, compared with a model",
        tests: &["soak::"],
    },
    Row {
        name: "inputs",
        tries: "mutated configurations, environments and names",
        tests: &["garbage::", "dhcp::garbage::", "protocol::"],
    },
    Row {
        name: "disk",
        tries: "disks that are full, read-only or without inodes, and programs that are missing",
        tests: &["host_local::disk::", "no_trace::"],
    },
    Row {
        name: "flush",
        tries: "rulesets that are flushed while containers run",
        tests: &["restore::flushed::", "restore::concurrent::", "restore::programs::"],
    },
    Row {
        name: "changes",
        tries: "settings, links and programs that others change",
        tests: &["ebpf::settings::", "ebpf::safety::", "advertisements::node::", "flicker::"],
    },
    Row {
        name: "engines",
        tries: "flows that other programs of the node decide on",
        tests: &["carried::engines::", "carried::filters::", "carried::property::"],
    },
    Row {
        name: "neighbours",
        tries: "pods and hosts that spoof, flood and advertise",
        tests: &["carried::attacks::", "advertisements::container::", "macspoof::"],
    },
];

/// The disturbances that this task does not try, and the task that does.
pub(super) const ELSEWHERE: &[(&str, &str)] =
    &[("kernels", "cargo xtask vm-test"), ("parsers", "cargo xtask fuzz")];

/// The index of the row of a test.
pub(super) fn row_of(title: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.tests.iter().any(|beginning| title.starts_with(beginning)))
}

/// The suites of all rows, or the named ones.
pub(super) fn suites(named: &[String]) -> Vec<String> {
    let all = ROWS.iter().flat_map(|row| row.tests).filter_map(|beginning| beginning.split("::").next());
    let all: BTreeSet<&str> =
        all.filter(|suite| named.is_empty() || named.iter().any(|name| name == suite)).collect();
    all.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use xtask_base::workspace;

    use super::*;
    use crate::test::NETWORK_TESTS_FOLDER;

    #[test]
    fn every_beginning_names_a_suite_and_its_module() {
        let folder = workspace::root().join(NETWORK_TESTS_FOLDER).join("tests");
        for beginning in ROWS.iter().flat_map(|row| row.tests) {
            let mut parts = beginning.strip_suffix("::").unwrap().split("::");
            let suite = parts.next().unwrap();
            let main = folder.join(suite).join("main.rs");
            assert!(main.is_file() || folder.join(format!("{suite}.rs")).is_file(), "{beginning}");
            if let Some(module) = parts.next() {
                let main = fs::read_to_string(main).unwrap();
                assert!(main.contains(&format!("mod {module};")), "{beginning}");
            }
        }
    }

    #[test]
    fn a_test_has_one_row() {
        assert_eq!(row_of("reliability::bridge::killed_in_add"), Some(2));
        assert_eq!(row_of("reliability::power_cut::a"), Some(0));
        assert_eq!(row_of("reliability_of_others::a"), None);
        assert_eq!(suites(&["soak".to_owned()]), ["soak"]);
        assert!(suites(&[]).len() > 8);
    }
}
