// SPDX-License-Identifier: MIT OR Apache-2.0

//! The blocking driver: operations on networks, with the cache and the locks.
//!
//! Order, checks and messages are those of the reference library (libcni).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cni_spec::{AddResult, Attachment};

use crate::cache::{self, Cached};
use crate::container::Container;
use crate::error::NetworkError;
use crate::exec::{CallOptions, Exec, Processes};
use crate::network::Network;
use crate::store::Store;
use crate::verbs::{
    Add, Check, Del, Gc, GcScope, Outcome, PluginCall, Status, Step, Validate, Verb, Versions,
};

/// A runtime's settings, and the operations on networks. All calls block; `asynchronous::Runtime` (feature
/// `tokio`) is the same for tokio.
///
/// A clone is cheap, and shares the [`Exec`].
#[derive(Clone)]
pub struct Runtime {
    pub(crate) settings: Settings,
    exec: Arc<dyn Exec>,
}

/// The settings that both drivers share.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) path: Vec<PathBuf>,
    pub(crate) store: Store,
    pub(crate) options: CallOptions,
    pub(crate) undo: bool,
    pub(crate) keep_going: bool,
}

impl Settings {
    /// The same settings with other options.
    pub(crate) fn with(&self, options: CallOptions) -> Self {
        Self { options, ..self.clone() }
    }
}

/// Builds a [`Runtime`].
///
/// The defaults are libcni's: `/var/lib/cni` as the cache, a failed ADD is not undone, DEL ends at the first
/// failure. There are no plugin directories. Locks are on.
#[derive(Clone)]
pub struct Builder {
    settings: Settings,
    exec: Option<Arc<dyn Exec>>,
    #[cfg(feature = "tokio")]
    async_exec: Option<Arc<dyn crate::asynchronous::Exec>>,
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

    /// Sets the directory of the cache, as in [`cache::DIRECTORIES`]; the locks are below it.
    #[must_use]
    pub fn cache(mut self, directory: impl Into<PathBuf>) -> Self {
        self.settings.store.cache = directory.into();
        self
    }

    /// Leaves the locks off: the caller serialises the operations itself.
    #[must_use]
    pub fn without_locks(mut self) -> Self {
        self.settings.store.locks = false;
        self
    }

    /// Sets the options of operations for which [`Runtime::with`] sets none.
    #[must_use]
    pub fn options(mut self, options: CallOptions) -> Self {
        self.settings.options = options;
        self
    }

    /// Undoes a failed ADD with a DEL of the plugins that were called.
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

    /// Sets what finds and runs plugins; [`Processes`] without it.
    #[must_use]
    pub fn exec(mut self, exec: Arc<dyn Exec>) -> Self {
        self.exec = Some(exec);
        self
    }

    /// Sets what finds and runs plugins of the driver for tokio; `asynchronous::Processes` without it.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn async_exec(mut self, exec: Arc<dyn crate::asynchronous::Exec>) -> Self {
        self.async_exec = Some(exec);
        self
    }

    /// The blocking driver.
    #[must_use]
    pub fn build(self) -> Runtime {
        let Self { settings, exec, .. } = self;
        Runtime { settings, exec: exec.unwrap_or_else(|| Arc::new(Processes)) }
    }

    /// The driver for tokio.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn build_async(self) -> crate::asynchronous::Runtime {
        let Self { settings, async_exec, .. } = self;
        crate::asynchronous::Runtime::new(settings, async_exec)
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("settings", &self.settings).finish_non_exhaustive()
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
        Builder {
            settings,
            exec: None,
            #[cfg(feature = "tokio")]
            async_exec: None,
        }
    }

    /// The same runtime with other options for its calls.
    #[must_use]
    pub fn with(&self, options: CallOptions) -> Self {
        Self { settings: self.settings.with(options), exec: Arc::clone(&self.exec) }
    }

    /// The plugin directories.
    #[must_use]
    pub fn plugin_dirs(&self) -> &[PathBuf] {
        &self.settings.path
    }

    /// The directory of the cache.
    #[must_use]
    pub fn cache_dir(&self) -> &Path {
        &self.settings.store.cache
    }

    /// Calls ADD of every plugin in order, each with the result of the previous one, and caches the last
    /// result. Without [`Builder::undo_failed_add`] a failure undoes nothing: the caller decides on a DEL.
    ///
    /// # Errors
    /// [`NetworkError::Plugin`] for the first plugin that fails, or [`NetworkError::Remember`], inside
    /// [`NetworkError::Undone`] if the ADD was undone; [`NetworkError::Name`]; [`NetworkError::Lock`].
    pub fn add(&self, network: &Network, container: &Container) -> Result<AddResult, NetworkError> {
        let Settings { store, options, .. } = &self.settings;
        let attachment = network.attachment(container)?;
        let held = store.lock(&attachment, options)?;
        let added = self.attach(network, container, &attachment);
        if added.is_err() {
            store.tidy(&held, &attachment);
        }
        added
    }

    /// An ADD under the locks.
    fn attach(
        &self,
        network: &Network,
        container: &Container,
        attachment: &Attachment,
    ) -> Result<AddResult, NetworkError> {
        let Settings { path, store, undo, .. } = &self.settings;
        let mut add = Add::new(network, container, path).undo(*undo);
        let result = self.drive(&mut add)?;
        if let Err(error) = store.remember(network, attachment, container, &result) {
            let step = add.fail(error);
            return self.drive_from(&mut add, step);
        }
        Ok(result)
    }

    /// Calls CHECK of every plugin in order, with the cached result.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] of the first plugin that finds a difference; [`NetworkError::TooOld`] before
    /// version 0.4.0; [`NetworkError::Remembered`] if the cached result cannot be read.
    pub fn check(&self, network: &Network, container: &Container) -> Result<(), NetworkError> {
        let Settings { path, store, options, .. } = &self.settings;
        if !network.wants_check()? {
            return Ok(());
        }
        let attachment = network.attachment(container)?;
        let held = store.lock(&attachment, options)?;
        let result = store.result(&attachment)?;
        let is_cached = result.is_some();
        let checked = self.drive(&mut Check::new(network, container, path, result));
        if !is_cached {
            store.tidy(&held, &attachment);
        }
        checked
    }

    /// Calls DEL of every plugin in reverse order, with the cached result, and deletes that when all have
    /// succeeded. An unreadable cached result is ignored.
    ///
    /// # Errors
    /// [`NetworkError::Plugin`] for the first plugin that fails; with [`Builder::keep_deleting`]
    /// [`NetworkError::Several`] if more than one does.
    pub fn del(&self, network: &Network, container: &Container) -> Result<(), NetworkError> {
        let Settings { store, options, .. } = &self.settings;
        let attachment = network.attachment(container)?;
        let held = store.lock(&attachment, options)?;
        self.delete(network, container, &attachment)?;
        store.tidy(&held, &attachment);
        Ok(())
    }

    /// A DEL under the locks.
    fn delete(
        &self,
        network: &Network,
        container: &Container,
        attachment: &Attachment,
    ) -> Result<(), NetworkError> {
        let Settings { path, store, keep_going, .. } = &self.settings;
        let result = store.result_for_del(network, attachment);
        self.drive(&mut Del::new(network, container, path, result).keep_going(*keep_going))?;
        store.forget(attachment)
    }

    /// Deletes the cached attachments of this network that are stale, then calls GC of every plugin with the
    /// list of valid ones. No ADD and no DEL of the network runs concurrently.
    ///
    /// # Errors
    /// [`NetworkError::Stale`] and [`NetworkError::Gc`], all that occurred.
    pub fn gc(&self, network: &Network, scope: GcScope<'_>) -> Result<(), NetworkError> {
        let Settings { path, store, options, .. } = &self.settings;
        if network.list().disable_gc {
            return Ok(());
        }
        let _held = store.lock_network(network, options)?;
        let mut errors = Vec::new();
        let mut all = store.of_network(network)?;
        all.retain(|one| scope.is_stale(&one.attachment));
        for cached in all {
            let container = cached.container();
            let deleted = store.lock_container(&cached.attachment, options).and_then(|held| {
                self.delete(network, &container, &cached.attachment)?;
                store.tidy(&held, &cached.attachment);
                Ok(())
            });
            errors.extend(deleted.err().map(|error| stale(&cached.attachment, error)));
        }
        store.tidy_all();
        self.drive(&mut Gc::new(network, path, scope, errors))
    }

    /// Calls STATUS of every plugin in order. Succeeds before version 1.1.0, which introduced it.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] of the first plugin that is not ready.
    pub fn status(&self, network: &Network) -> Result<(), NetworkError> {
        self.drive(&mut Status::new(network, &self.settings.path))
    }

    /// Checks that all plugins exist and support the network's version.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] or [`NetworkError::UnsupportedVersion`], one for each plugin that does not.
    pub fn validate(&self, network: &Network) -> Result<(), NetworkError> {
        self.drive(&mut Validate::new(network, &self.settings.path))
    }

    /// The versions that a plugin supports, by its VERSION; 0.1.0 if it does not have that command.
    ///
    /// # Errors
    /// [`NetworkError::FromPlugin`] if there is no such plugin, or its output cannot be decoded.
    pub fn versions(&self, plugin: &str) -> Result<Vec<String>, NetworkError> {
        self.drive(&mut Versions::new(plugin, &self.settings.path))
    }

    /// The cached attachments of a container, in the order of their ADDs.
    ///
    /// # Errors
    /// [`NetworkError::Cache`] if the cache cannot be listed.
    pub fn attachments(&self, container_id: &str) -> Result<Vec<Cached>, NetworkError> {
        self.settings.store.of_container(container_id)
    }

    fn drive<V: Verb>(&self, verb: &mut V) -> Result<V::Output, NetworkError> {
        let first = verb.next(None);
        self.drive_from(verb, first)
    }

    fn drive_from<V: Verb>(
        &self,
        verb: &mut V,
        mut step: Step<V::Output>,
    ) -> Result<V::Output, NetworkError> {
        loop {
            match step {
                Step::Done(done) => return done,
                Step::Call(call) => step = verb.next(Some(self.call(call))),
            }
        }
    }

    fn call(&self, mut call: PluginCall) -> Outcome {
        let Settings { path, options, .. } = &self.settings;
        let options = options.apply(&mut call);
        if options.is_cancelled() {
            return Err(crate::CallError::Cancelled);
        }
        let file = self.exec.find(&call.plugin, path)?;
        self.exec.exec(&file, &call, &options)
    }
}

/// The error of the DEL of a stale attachment.
pub(crate) fn stale(attachment: &Attachment, error: NetworkError) -> NetworkError {
    NetworkError::Stale {
        container: attachment.container_id().to_owned(),
        ifname: attachment.ifname().to_owned(),
        error: Box::new(error),
    }
}
