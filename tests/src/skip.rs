// SPDX-License-Identifier: GPL-2.0-or-later

//! Tests that cannot run on this kernel write a line to a file, which is compared with a committed list.

use std::io::Write;

/// Ends the test that calls it, with a line `<suite>::<test>: skipped: needs <feature>` in the file
/// that the environment variable `SLIPWAY_SKIPS` names.
///
/// libtest cannot skip a test at run time and counts it as passed. Therefore `cargo xtask test` compares that file with
/// `tests/skips.txt` and fails if a line is not listed there.
///
/// ```no_run
/// # fn has_vrf() -> bool { false }
/// if !has_vrf() {
///     slipway_tests::skip!("vrf");
/// }
/// ```
#[macro_export]
macro_rules! skip {
    ($feature:expr) => {{
        fn here() {}
        $crate::record_skip($crate::test_name(&here), $feature);
        return;
    }};
}

/// Ends the test that calls it with [`skip!`], unless the first expression is true.
///
/// ```no_run
/// # fn has_vrf() -> bool { false }
/// slipway_tests::needs!(has_vrf(), "vrf");
/// ```
#[macro_export]
macro_rules! needs {
    ($has:expr, $feature:expr) => {
        if !$has {
            $crate::skip!($feature);
        }
    };
}

/// Ends the calling test with [`skip!`] in a kernel without IPv6.
#[macro_export]
macro_rules! needs_ipv6 {
    () => {
        $crate::needs!($crate::has_ipv6(), $crate::IPV6)
    };
}

/// Ends the calling test with [`skip!`] in a kernel that accepts no rules of iptables.
#[macro_export]
macro_rules! needs_iptables {
    () => {
        $crate::needs!($crate::has_iptables(), $crate::IPTABLES)
    };
}

/// Ends the calling test if [another implementation](crate::is_peer) is tested, because only Slipway promises what the
/// test checks.
#[macro_export]
macro_rules! slipway_only {
    () => {
        if $crate::is_peer() {
            return;
        }
    };
}

/// The suite and function around `here`, a function declared inside it. libtest names threads after tests, but not with
/// `--test-threads=1`.
pub fn test_name<T>(_here: &T) -> &'static str {
    let name = std::any::type_name::<T>();
    let name = name.strip_suffix("::here").unwrap_or(name);
    name.trim_end_matches("::{{closure}}")
}

/// Writes the line of [`skip!`] with a single write in append mode, because several test processes may do so at once.
pub fn record_skip(test: &str, feature: &str) {
    let line = format!("{test}: skipped: needs {feature}\n");
    eprint!("{line}");
    append("SLIPWAY_SKIPS", &line);
}

/// Appends a line to the file that an environment variable names, if the variable is set.
pub(crate) fn append(variable: &str, line: &str) {
    let Some(path) = std::env::var_os(variable) else { return };
    std::fs::File::options()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_test_knows_its_name() {
        fn here() {}
        assert_eq!(super::test_name(&here), "slipway_tests::skip::tests::a_test_knows_its_name");
        let inside = || {
            fn here() {}
            super::test_name(&here)
        };
        assert_eq!(inside(), "slipway_tests::skip::tests::a_test_knows_its_name");
    }
}
