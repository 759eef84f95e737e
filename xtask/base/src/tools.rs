// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs from crates.io that tasks use, each built once in a pinned version and kept in the user's cache folder.

use std::fs::File;
use std::path::PathBuf;

use crate::error::Result;
use crate::run::{self, cargo};
use crate::workspace::{self, Lock};

/// A program of a crate of the same name.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    name: &'static str,
    version: &'static str,
    /// The only features that are built; without any, the crate's default.
    features: &'static [&'static str],
}

/// Checks licences, sources and bans of dependencies.
pub const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", features: &[] };
/// Embeds the list of dependencies in a binary.
pub const CARGO_AUDITABLE: Tool = Tool { name: "cargo-auditable", version: "0.7.7", features: &[] };
/// Prints the list that a binary carries.
pub const RUST_AUDIT_INFO: Tool = Tool { name: "rust-audit-info", version: "0.5.4", features: &[] };
/// Renders Markdown pages as a site with search.
pub const MDBOOK: Tool = Tool { name: "mdbook", version: "0.5.4", features: &["search"] };

impl Tool {
    /// The program's path; it is built if it is missing. What the build prints goes to `log`.
    pub fn ensure(self, log: &File) -> Result<PathBuf> {
        let Self { name, version, features } = self;
        let cache = workspace::cache()?;
        let home = cache.join(format!("{name}-{version}"));
        let program = home.join("bin").join(name);
        let _lock = Lock::take(&cache.join(format!("{name}.lock")))?;
        if program.is_file() {
            return Ok(program);
        }
        let work = home.join("build");
        let mut command =
            cargo(&["install", name, "--locked", "--version", &format!("={version}"), "--root"]);
        command.arg(&home).arg("--target-dir").arg(&work);
        if !features.is_empty() {
            command.arg("--no-default-features").arg("--features").arg(features.join(","));
        }
        // Each tool runs for a second or two, so the time of its build matters more than its speed.
        for (key, value) in [("OPT_LEVEL", "0"), ("DEBUG", "0"), ("LTO", "off"), ("CODEGEN_UNITS", "16")] {
            command.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
        }
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
            command.env_remove(name);
        }
        let built = run::log(&mut run::yielding(&command), log);
        crate::workspace::remove(&work)?;
        built.map(|()| program)
    }
}
