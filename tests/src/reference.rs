// SPDX-License-Identifier: GPL-2.0-or-later

//! The reference plugins, for tests that compare them with ours, or let one find what the other left.

use std::path::{Path, PathBuf};

/// The feature that [`Reference::all`] checks, for [`crate::skip!`].
pub const REFERENCE: &str = "the reference plugins";

/// The feature that [`Reference::with_nftables`] checks, for [`crate::skip!`].
pub const NEWER_REFERENCE: &str = "reference plugins with an nftables backend";

/// One version of the reference plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    dir: PathBuf,
}

impl Reference {
    /// Those in the directories that `SLIPWAY_REFERENCE_DIRS` names, divided by colons; `cargo xtask test`
    /// fetches them. Without it those of the system's package, if it is installed.
    pub fn all() -> Vec<Self> {
        let named = std::env::var_os("SLIPWAY_REFERENCE_DIRS").unwrap_or_else(|| "/usr/lib/cni".into());
        let dirs = std::env::split_paths(&named).filter(|dir| dir.join("portmap").is_file());
        dirs.map(|dir| Self { dir }).collect()
    }

    pub fn any() -> Option<Self> {
        Self::all().into_iter().next()
    }

    /// Those whose portmap can write its rules with nftables, which it can since version 1.6.0.
    pub fn with_nftables() -> Vec<Self> {
        Self::all().into_iter().filter(Self::has_nftables).collect()
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn plugin(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// True if its portmap can write its rules with nftables.
    pub fn has_nftables(&self) -> bool {
        self.portmap_knows("cni_hostport")
    }

    /// The names of its portmap's backends.
    pub fn backends(&self) -> &'static [&'static str] {
        if self.has_nftables() { &["iptables", "nftables"] } else { &["iptables"] }
    }

    /// True if the binary of its portmap contains this word, for instance a key of the configuration.
    pub fn portmap_knows(&self, word: &str) -> bool {
        self.knows("portmap", word)
    }

    /// True if this word is among the texts in a plugin's program: the packages' plugins do not report their
    /// versions.
    pub fn knows(&self, plugin: &str, word: &str) -> bool {
        let path = self.plugin(plugin);
        let program = std::fs::read(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
        program.windows(word.len()).any(|window| window == word.as_bytes())
    }
}
