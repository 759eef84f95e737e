// SPDX-License-Identifier: GPL-2.0-or-later

//! The reference plugins, for tests that compare them with ours, or let one of the two find what the other left behind.

use std::path::{Path, PathBuf};

/// The feature that [`Reference::all`] checks, for [`crate::skip!`].
pub const REFERENCE: &str = "the reference plugins";

/// The feature that [`Reference::with_nftables`] checks, for [`crate::skip!`].
pub const NEWER_REFERENCE: &str = "reference plugins with an nftables backend";

/// A version of the reference plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    dir: PathBuf,
}

impl Reference {
    /// The versions in the directories that `SLIPWAY_REFERENCE_DIRS` lists, separated by colons. `cargo xtask test`
    /// fetches them. Without the variable, the version of the system's package, if it is installed.
    pub fn all() -> Vec<Self> {
        let named = std::env::var_os("SLIPWAY_REFERENCE_DIRS").unwrap_or_else(|| "/usr/lib/cni".into());
        let dirs = std::env::split_paths(&named).filter(|dir| dir.join("portmap").is_file());
        dirs.map(|dir| Self { dir }).collect()
    }

    pub fn any() -> Option<Self> {
        Self::all().into_iter().next()
    }

    /// The versions whose portmap can write its rules with nftables, that is, 1.6.0 and later.
    pub fn with_nftables() -> Vec<Self> {
        Self::all().into_iter().filter(Self::has_nftables).collect()
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn plugin(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// True if this version's portmap can write its rules with nftables.
    pub fn has_nftables(&self) -> bool {
        self.portmap_knows("cni_hostport")
    }

    /// The backends of this version's portmap.
    pub fn backends(&self) -> &'static [&'static str] {
        if self.has_nftables() { &["iptables", "nftables"] } else { &["iptables"] }
    }

    /// True if the portmap binary contains this word, for instance a configuration key.
    pub fn portmap_knows(&self, word: &str) -> bool {
        self.knows("portmap", word)
    }

    /// True if a plugin's binary contains this word. Words tell versions apart, because plugins from packages do not
    /// report their versions.
    pub fn knows(&self, plugin: &str, word: &str) -> bool {
        let path = self.plugin(plugin);
        let program = std::fs::read(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
        program.windows(word.len()).any(|window| window == word.as_bytes())
    }
}
