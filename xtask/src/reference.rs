//! The reference plugins that tests compare ours with, as Debian has them; unpacked below target, not
//! installed.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::apt_root::AptRoot;
use crate::error::{Error, Result};
use crate::workspace;

/// The variable that names their directories to the tests.
const VARIABLE: &str = "SLIPWAY_REFERENCE_DIRS";

/// Where they are in a system, and what they are called.
const DIRECTORY: &str = "usr/lib/cni";
const PACKAGE: &str = "containernetworking-plugins";

/// What the tests' skips say that need them.
const SKIPS: [&str; 2] = ["needs the reference plugins", "needs reference plugins with an nftables backend"];

/// The suite whose version, 1.1.1, does not change any more; it can work with iptables only.
pub(crate) const STABLE: &str = "bookworm";

/// The suite with the newest version.
pub const NEWEST: &str = "unstable";

/// The reference plugins of one or more suites.
#[derive(Debug)]
pub(crate) struct Reference {
    dirs: OsString,
    missing: Vec<(&'static str, Error)>,
}

impl Reference {
    /// Fetches those of some suites, or takes the directories that the environment names. What cannot be
    /// fetched is [`missing`](Self::missing).
    pub(crate) fn find(suites: &[&'static str]) -> Self {
        if let Some(dirs) = std::env::var_os(VARIABLE) {
            return Self { dirs, missing: Vec::new() };
        }
        let mut own = Self { dirs: OsString::new(), missing: Vec::new() };
        for suite in suites {
            match fetch(suite) {
                Ok(dir) => {
                    if !own.dirs.is_empty() {
                        own.dirs.push(":");
                    }
                    own.dirs.push(dir);
                }
                Err(e) => own.missing.push((suite, e)),
            }
        }
        own
    }

    /// None, where no test needs them.
    pub(crate) fn none() -> Self {
        Self { dirs: OsString::new(), missing: Vec::new() }
    }

    /// The variable of the environment for the tests.
    pub(crate) fn variable(&self) -> (&'static str, &OsString) {
        (VARIABLE, &self.dirs)
    }

    /// For people: where they are, or that there are none.
    pub(crate) fn summary(&self) -> String {
        if self.dirs.is_empty() { "none could be had".to_owned() } else { self.dirs.display().to_string() }
    }

    /// Those that could not be had, and why.
    pub(crate) fn missing(&self) -> impl Iterator<Item = String> + '_ {
        self.missing.iter().map(|(suite, e)| {
            format!("the tests that compare with the reference plugins of Debian {suite}, which could not be had: {e}")
        })
    }

    /// Whether a test was skipped for plugins that could not be had.
    pub(crate) fn explains(&self, skip: &str) -> bool {
        !self.missing.is_empty() && is_needed(skip)
    }
}

/// Whether a test was skipped for want of them.
pub(crate) fn is_needed(skip: &str) -> bool {
    SKIPS.iter().any(|needs| skip.ends_with(needs))
}

/// The directory with the plugins of one suite. Without a network, what was fetched before serves.
///
/// # Errors
/// They were not fetched before, and cannot be now.
pub fn fetch(suite: &'static str) -> Result<PathBuf> {
    let fetched = AptRoot::open(suite).and_then(|apt| apt.fetch(PACKAGE)).map(|root| root.join(DIRECTORY));
    let before =
        || Some(workspace::scratch("apt").ok()?.join(suite).join("unpacked").join(PACKAGE).join(DIRECTORY));
    match fetched {
        Err(e) => before().filter(|dir| dir.is_dir()).ok_or(e),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_explained_by_what_could_not_be_had() {
        let there = Reference { dirs: "/a".into(), missing: Vec::new() };
        let gone = Reference {
            dirs: OsString::new(),
            missing: vec![(STABLE, Error::Failed("no mirror".to_owned()))],
        };
        let skip = "gc::what_the_reference_made: skipped: needs the reference plugins";
        assert!(gone.explains(skip) && !there.explains(skip));
        assert!(!gone.explains("vrf::single: skipped: needs vrf"));
        assert_eq!(gone.missing().count(), 1);
    }
}
