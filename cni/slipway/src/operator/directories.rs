// SPDX-License-Identifier: GPL-2.0-or-later

//! The directories of plugins, and of caches of attachments: those of CNI runtimes, and that of netavark's driver.

use std::path::PathBuf;

use cni_runtime::cache::DIRECTORIES;
use cni_runtime::config;

use crate::netavark::CACHE;

/// The usual caches.
pub(super) const CACHES: [&str; 3] = [DIRECTORIES[0], DIRECTORIES[1], CACHE];

/// The caches of the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(super) struct CacheDirs {
    /// The cache, if it is neither /var/lib/cni, /var/lib/cni/cache nor /run/slipway/netavark; its files are in
    /// DIR/results; any number of times
    #[arg(long = "cache-dir", value_name = "DIR")]
    pub(super) cache_dirs: Vec<PathBuf>,
}

impl CacheDirs {
    /// The named ones, or else the usual ones.
    pub(super) fn all(&self) -> Vec<PathBuf> {
        if self.cache_dirs.is_empty() { CACHES.map(PathBuf::from).into() } else { self.cache_dirs.clone() }
    }
}

/// The plugin directories of the command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct PluginDirs {
    /// A plugin directory [default: those of CNI_PATH, else /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni and
    /// /usr/lib/slipway/cni]; any number of times
    #[arg(long = "plugin-dir", value_name = "DIR")]
    plugin_dirs: Vec<PathBuf>,
}

impl PluginDirs {
    /// The named ones, or else those of a runtime.
    pub(super) fn all(&self) -> Vec<PathBuf> {
        if self.plugin_dirs.is_empty() { config::plugin_directories() } else { self.plugin_dirs.clone() }
    }
}
