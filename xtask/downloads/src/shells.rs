// SPDX-License-Identifier: MIT OR Apache-2.0

//! zsh and fish for the tests of completions, from Debian's packages. Nothing is installed.

use std::path::PathBuf;

use xtask_base::apt_root::AptRoot;
use xtask_base::error::Result;
use xtask_base::files;
use xtask_base::workspace;

/// The variable with the root of their files, for the tests.
pub const VARIABLE: &str = "SLIPWAY_SHELLS_DIR";

/// The suite with tests that need them.
pub const SUITE: &str = "completions";

/// Debian's suite. Its programs run with the C libraries of Debian 12 and 13 and Ubuntu 24.04.
const RELEASE: &str = "bookworm";

/// 8 MB. The last one is the only library that a minimal system lacks.
const PACKAGES: [&str; 5] = ["zsh", "zsh-common", "fish", "fish-common", "libpcre2-32-0"];

/// The root of the shells' files; they are fetched once.
pub fn find() -> Result<PathBuf> {
    let dir = workspace::scratch("shells")?;
    let (root, fresh) = (dir.join("root"), dir.join("new"));
    if root.is_dir() {
        return Ok(root);
    }
    workspace::remove(&fresh)?;
    AptRoot::open(RELEASE)?.fetch_only(&PACKAGES, &fresh)?;
    files::rename(&fresh, &root)?;
    Ok(root)
}
