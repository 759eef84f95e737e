// SPDX-License-Identifier: MIT OR Apache-2.0

//! The reference plugins of Debian, with which tests compare; unpacked below the target folder.

use std::ffi::OsString;
use std::path::PathBuf;

use xtask_base::apt_root::AptRoot;
use xtask_base::error::{Error, Result};
use xtask_base::workspace;

/// The variable with the directories of the reference plugins, for the tests.
const VARIABLE: &str = "SLIPWAY_REFERENCE_DIRS";

/// The directory of the reference plugins in the package, and the package.
const DIRECTORY: &str = "usr/lib/cni";
const PACKAGE: &str = "containernetworking-plugins";

/// The reasons of skipped tests that need the reference plugins.
const SKIPS: [&str; 2] = ["needs the reference plugins", "needs reference plugins with an nftables backend"];

/// The suite with version 1.1.1, which supports only iptables and does not change any more.
pub const STABLE: &str = "bookworm";

/// The suite with the newest version.
pub const NEWEST: &str = "unstable";

/// The reference plugins of one or more suites.
#[derive(Debug)]
pub struct Reference {
    dirs: OsString,
    missing: Vec<(&'static str, Error)>,
}

impl Reference {
    /// Fetches the reference plugins of some suites, or takes the directories of the environment. Failures are in
    /// [`missing`](Self::missing).
    pub fn find(suites: &[&'static str]) -> Self {
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

    /// No reference plugins, because no test needs them.
    pub fn none() -> Self {
        Self { dirs: OsString::new(), missing: Vec::new() }
    }

    /// The variable of the environment for the tests.
    pub fn variable(&self) -> (&'static str, &OsString) {
        (VARIABLE, &self.dirs)
    }

    /// The directories of the reference plugins, for people.
    pub fn summary(&self) -> String {
        if self.dirs.is_empty() {
            "none could be fetched".to_owned()
        } else {
            self.dirs.display().to_string()
        }
    }

    /// The reference plugins that could not be fetched, and why.
    pub fn missing(&self) -> impl Iterator<Item = String> + '_ {
        self.missing.iter().map(|(suite, e)| {
            format!("the tests that compare with the reference plugins of Debian {suite}, which could not be fetched: {e}")
        })
    }

    /// True if a test was skipped because reference plugins could not be fetched.
    pub fn explains(&self, skip: &str) -> bool {
        !self.missing.is_empty() && is_needed(skip)
    }
}

/// True if a test was skipped because it needs reference plugins.
pub fn is_needed(skip: &str) -> bool {
    SKIPS.iter().any(|needs| skip.ends_with(needs))
}

/// The directory with the plugins of one suite. The stable suite is fetched once; of another one, what was fetched
/// before serves where there is no network.
pub fn fetch(suite: &'static str) -> Result<PathBuf> {
    let unpacked = workspace::scratch("apt")?.join(suite).join("unpacked");
    let before = unpacked.join(PACKAGE).join(DIRECTORY);
    // The file is written after everything was unpacked.
    let is_whole = unpacked.join(format!("{PACKAGE}.from")).is_file() && before.is_dir();
    if suite == STABLE && is_whole {
        return Ok(before);
    }
    match AptRoot::open(suite).and_then(|apt| apt.fetch(PACKAGE)) {
        Ok(root) => Ok(root.join(DIRECTORY)),
        Err(e) => before.is_dir().then_some(before).ok_or(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_explained_by_plugins_that_could_not_be_fetched() {
        let there = Reference { dirs: "/a".into(), missing: Vec::new() };
        let gone = Reference {
            dirs: OsString::new(),
            missing: vec![(STABLE, Error::Failed("no mirror".to_owned()))],
        };
        let skip = "gc::chains_of_the_reference: skipped: needs the reference plugins";
        assert!(gone.explains(skip) && !there.explains(skip));
        assert!(!gone.explains("vrf::single: skipped: needs vrf"));
        assert_eq!(gone.missing().count(), 1);
    }
}
