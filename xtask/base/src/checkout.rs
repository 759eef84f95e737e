// SPDX-License-Identifier: MIT OR Apache-2.0

//! Questions about the checkout, which cargo and git answer.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::run::{self, cargo, tool};
use crate::workspace;

/// The packages of the workspace and their targets, as cargo prints them.
pub fn metadata() -> Result<Value> {
    let words = ["metadata", "--format-version=1", "--no-deps", "--locked"];
    let printed = run::capture(&mut cargo(&words))?;
    serde_json::from_str(&printed).map_err(|e| Error::Failed(format!("read cargo's metadata: {e}")))
}

/// When the commit was made, in a format of git.
pub fn commit_time(format: &str) -> Result<String> {
    let mut git = tool("git", &["show", "--no-patch", &format!("--format={format}"), "HEAD"]);
    Ok(run::capture(git.current_dir(workspace::root()))?.trim().to_owned())
}

/// Paths on which no test depends. They may change without making the results stale.
const UNTESTED: [&str; 4] =
    [":(exclude)docs", ":(exclude)*.md", ":(exclude)xtask/bench", ":(exclude)xtask/docs"];

/// The paths of the product. Results are stale after a change of these.
pub const PRODUCT: [&str; 2] = ["cni", "ebpf"];

/// True if paths are what they were at a commit. False if there is no such commit.
pub fn is_unchanged(commit: &str, paths: &[&str]) -> bool {
    let mut git = tool("git", &["diff", "--quiet", commit, "--"]);
    run::capture(git.args(paths).current_dir(workspace::root())).is_ok()
}

/// The version of what is tested.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The last commit that changed it; none if it was changed since.
    pub commit: Option<String>,
}

impl Sources {
    /// The state of the checkout. Without git there is no commit.
    pub fn of_checkout() -> Self {
        let git = |words: &[&str]| {
            let mut command = tool("git", words);
            run::capture(command.args(["--", "."]).args(UNTESTED).current_dir(workspace::root()))
        };
        let is_clean = git(&["status", "--porcelain"]).is_ok_and(|changes| changes.is_empty());
        let commit = git(&["log", "-1", "--format=%h", "--abbrev=12"]).unwrap_or_default().trim().to_owned();
        Self { commit: Some(commit).filter(|commit| is_clean && !commit.is_empty()) }
    }
}

/// Today, as `2026-11-22`, in UTC.
pub fn today() -> String {
    run::capture(&mut tool("date", &["--utc", "+%F"])).unwrap_or_default().trim().to_owned()
}
