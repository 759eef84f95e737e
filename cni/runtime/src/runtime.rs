// SPDX-License-Identifier: MIT OR Apache-2.0

//! The builder of a runtime, and its blocking calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cni_spec::AddResult;

use crate::asynchronous::{self, Settings};
use crate::cache::{self, Cached};
use crate::container::Container;
use crate::error::NetworkError;
use crate::event_loop::block_on;
use crate::exec::{CallOptions, Exec, Processes};
use crate::network::Network;
use crate::store::Store;
use crate::verbs::GcScope;

/// A runtime's settings, and the operations on networks. Each call blocks: it runs the future of the same method of
/// [`asynchronous::Runtime`] to its end, on an event loop of its own.
///
/// A clone is cheap, and shares the [`Exec`].
#[derive(Debug, Clone)]
pub struct Runtime(asynchronous::Runtime);

/// Builds a [`Runtime`].
///
/// The defaults are libcni's: the cache is in `/var/lib/cni`, a failed ADD is not undone, and DEL ends at the first
/// failure. There are no plugin directories. Locks are used.
#[derive(Clone)]
pub struct Builder {
    settings: Settings,
    exec: Arc<dyn Exec>,
}

impl Builder {
    /// Adds a plugin directory, as in `CNI_PATH`.
    #[must_use]
    pub fn plugin_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.settings.path.push(directory.into());
        self
    }

    /// Adds plugin directories.
    #[must_use]
    pub fn plugin_dirs(mut self, directories: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.settings.path.extend(directories.into_iter().map(Into::into));
        self
    }

    /// Sets the directory of the cache, as in [`cache::DIRECTORIES`]. The locks are in a directory below it.
    #[must_use]
    pub fn cache(mut self, directory: impl Into<PathBuf>) -> Self {
        self.settings.store.cache = directory.into();
        self
    }

    /// Uses no locks, because the caller serialises the operations itself.
    #[must_use]
    pub fn without_locks(mut self) -> Self {
        self.settings.store.locks = false;
        self
    }

    /// Sets the options of all operations for which [`Runtime::with`] sets none.
    #[must_use]
    pub fn options(mut self, options: CallOptions) -> Self {
        self.settings.options = options;
        self
    }

    /// Undoes a failed ADD with a DEL of the plugins that were called. If the first plugin fails in a container that
    /// already had the interface, nothing is undone, because the interface belongs to an earlier ADD.
    #[must_use]
    pub fn undo_failed_add(mut self) -> Self {
        self.settings.undo = true;
        self
    }

    /// Lets DEL continue after a plugin that fails or is missing. It reports every error, and keeps the cached
    /// attachment for another DEL.
    #[must_use]
    pub fn keep_deleting(mut self) -> Self {
        self.settings.keep_going = true;
        self
    }

    /// Sets how plugins are found and run. The default is [`Processes`].
    #[must_use]
    pub fn exec(mut self, exec: Arc<dyn Exec>) -> Self {
        self.exec = exec;
        self
    }

    /// The runtime with blocking calls.
    #[must_use]
    pub fn build(self) -> Runtime {
        Runtime(self.build_async())
    }

    /// The runtime with asynchronous calls.
    #[must_use]
    pub fn build_async(self) -> asynchronous::Runtime {
        asynchronous::Runtime::new(self.settings, self.exec)
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts a runtime with the defaults of [`Builder`].
    #[must_use]
    pub fn builder() -> Builder {
        let settings = Settings {
            path: Vec::new(),
            store: Store { cache: PathBuf::from(cache::DIRECTORIES[0]), locks: true },
            options: CallOptions::new(),
            undo: false,
            keep_going: false,
        };
        Builder { settings, exec: Arc::new(Processes) }
    }

    /// Returns the same runtime with other options for its calls.
    #[must_use]
    pub fn with(&self, options: CallOptions) -> Self {
        Self(self.0.with(options))
    }

    /// The plugin directories.
    #[must_use]
    pub fn plugin_dirs(&self) -> &[PathBuf] {
        self.0.plugin_dirs()
    }

    /// The directory of the cache.
    #[must_use]
    pub fn cache_dir(&self) -> &Path {
        self.0.cache_dir()
    }

    /// Calls ADD of every plugin in order, each with the result of the previous one, and caches the last result. If
    /// the attachment is cached and its interface is in the container, the ADD is refused before the first plugin
    /// runs. Without [`Builder::undo_failed_add`], a failure undoes nothing, and the caller decides whether to call
    /// DEL.
    ///
    /// # Errors
    /// [`NetworkError::Plugin`] for the first plugin that fails, or [`NetworkError::Remember`], inside
    /// [`NetworkError::Undone`] if the ADD was undone; [`NetworkError::Attached`] if the container is attached already;
    /// [`NetworkError::Name`]; [`NetworkError::Lock`].
    pub fn add(&self, network: &Network, container: &Container) -> Result<AddResult, NetworkError> {
        wait(self.0.add(network, container))
    }

    /// Calls CHECK of every plugin in order, with the cached result.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] of the first plugin that finds a difference; [`NetworkError::TooOld`] before
    /// version 0.4.0; [`NetworkError::Remembered`] if the cached result cannot be read.
    pub fn check(&self, network: &Network, container: &Container) -> Result<(), NetworkError> {
        wait(self.0.check(network, container))
    }

    /// Calls DEL of every plugin in reverse order, with the cached result, which is deleted when all plugins have
    /// succeeded. A cached result that cannot be used is ignored.
    ///
    /// # Errors
    /// [`NetworkError::Plugin`] for the first plugin that fails; with [`Builder::keep_deleting`]
    /// [`NetworkError::Several`] if more than one does. [`NetworkError::Remembered`] or [`NetworkError::Cache`] if the
    /// cached result cannot be read at the moment, or deleted.
    pub fn del(&self, network: &Network, container: &Container) -> Result<(), NetworkError> {
        wait(self.0.del(network, container))
    }

    /// Deletes the cached attachments of this network that are stale, then calls GC of every plugin with the list of
    /// the valid ones. No ADD or DEL of the network runs at the same time.
    ///
    /// # Errors
    /// All errors that occurred, as [`NetworkError::Stale`] and [`NetworkError::Gc`]. [`NetworkError::Cache`] if the cache
    /// cannot be read at the moment, and then nothing was done.
    pub fn gc(&self, network: &Network, scope: GcScope<'_>) -> Result<(), NetworkError> {
        wait(self.0.gc(network, scope))
    }

    /// Calls STATUS of every plugin in order. Succeeds before version 1.1.0, which introduced STATUS.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] of the first plugin that is not ready.
    pub fn status(&self, network: &Network) -> Result<(), NetworkError> {
        wait(self.0.status(network))
    }

    /// Checks that all plugins exist and support the network's version.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] or [`NetworkError::UnsupportedVersion`], one for each plugin that does not.
    pub fn validate(&self, network: &Network) -> Result<(), NetworkError> {
        wait(self.0.validate(network))
    }

    /// The versions that a plugin supports, according to its VERSION. 0.1.0 if the plugin does not have that command.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] if there is no such plugin, or its output cannot be decoded.
    pub fn versions(&self, plugin: &str) -> Result<Vec<String>, NetworkError> {
        wait(self.0.versions(plugin))
    }

    /// The cached attachments of a container, in the order of their ADDs.
    ///
    /// # Errors
    /// [`NetworkError::Cache`] if the cache cannot be listed.
    pub fn attachments(&self, container_id: &str) -> Result<Vec<Cached>, NetworkError> {
        wait(self.0.attachments(container_id))
    }
}

fn wait<T: Send>(operation: impl Future<Output = Result<T, NetworkError>> + Send) -> Result<T, NetworkError> {
    block_on(operation).map_err(NetworkError::EventLoop)?
}
