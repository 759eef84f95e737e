// SPDX-License-Identifier: MIT OR Apache-2.0

//! The driver, with operations on networks as futures, and with the cache and the locks. It needs a tokio runtime
//! with I/O and time. The calls of [`crate::Runtime`] block until such a future has ended.
//!
//! The order of calls, the checks and the messages are those of the reference library (libcni).
//!
//! Dropping a future kills the running plugin together with its process group, and releases the locks. A failed ADD
//! is undone only if its future is polled to the end. To cancel an ADD and have it undone, use a [`Cancel`] token
//! instead.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cni_kernel::netns::Netns;
use cni_kernel::route::{RouteError, RouteSocket};
use cni_spec::{AddResult, Attachment, check_network};
use tokio::task::spawn_blocking;

use crate::cache::Cached;
use crate::container::Container;
use crate::error::{CallError, NetworkError};
use crate::exec::{CallOptions, Cancel, Exec};
use crate::lock::Held;
use crate::network::Network;
use crate::store::Store;
use crate::verbs::{
    Add, Check, Del, Gc, GcScope, Outcome, PluginCall, Status, Step, Validate, Verb, Versions,
};

/// The settings of a [`Runtime`].
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) path: Vec<PathBuf>,
    pub(crate) store: Store,
    pub(crate) options: CallOptions,
    pub(crate) undo: bool,
    pub(crate) keep_going: bool,
}

/// A runtime's settings, and the operations on networks. Made by
/// [`Builder::build_async`](crate::runtime::Builder::build_async). A clone is cheap.
#[derive(Clone)]
pub struct Runtime {
    settings: Settings,
    exec: Arc<dyn Exec>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Runtime {
    pub(crate) fn new(settings: Settings, exec: Arc<dyn Exec>) -> Self {
        Self { settings, exec }
    }

    /// Returns the same runtime with other options for its calls.
    #[must_use]
    pub fn with(&self, options: CallOptions) -> Self {
        Self { settings: Settings { options, ..self.settings.clone() }, exec: Arc::clone(&self.exec) }
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

    /// Like [`crate::Runtime::add`]. Refuses an ADD as [`Self::refuse_attached`] does.
    ///
    /// # Errors
    /// The errors of [`crate::Runtime::add`].
    pub async fn add(&self, network: &Network, container: &Container) -> Result<AddResult, NetworkError> {
        let attachment = network.attachment(container)?;
        let held = Arc::new(self.lock(&attachment).await?);
        let added = self.attach(network, container, &attachment, &held).await;
        if added.is_err() {
            self.tidy(held, attachment).await;
        }
        added
    }

    /// Runs ADD while holding the locks.
    async fn attach(
        &self,
        network: &Network,
        container: &Container,
        attachment: &Attachment,
        held: &Arc<Held>,
    ) -> Result<AddResult, NetworkError> {
        let had_interface = self.refuse_attached(network, container).await?;
        let mut add = Add::new(network, container, &self.settings.path)
            .undo(self.settings.undo)
            .had_interface(had_interface);
        let result = self.drive(&mut add).await?;
        let (network, container) = (network.clone(), container.clone());
        let (attachment, held, stored) = (attachment.clone(), Arc::clone(held), result.clone());
        let remembered = self.blocking(move |store| {
            // The thread outlives the future if that is dropped, and must hold the lock until it ends.
            let _held = held;
            store.remember(&network, &attachment, &container, &stored)
        });
        let remembered = remembered.await;
        if let Err(error) = remembered {
            let step = add.fail(error);
            return self.drive_from(&mut add, step).await;
        }
        Ok(result)
    }

    /// Refuses a second ADD of a cached attachment whose interface is in the container, as [`Self::add`] does before
    /// it calls a plugin. Otherwise, returns whether the container has an interface with that name. If so, a caller
    /// that undoes failed ADDs itself must not undo this one, because the interface belongs to an earlier ADD.
    ///
    /// Without [`Builder::undo_failed_add`](crate::runtime::Builder::undo_failed_add), the interface is looked up
    /// only for a cached attachment.
    ///
    /// # Errors
    /// [`NetworkError::Attached`]; [`NetworkError::Name`]; [`NetworkError::Cache`] if the cache cannot be looked up;
    /// [`NetworkError::Interface`].
    pub async fn refuse_attached(
        &self,
        network: &Network,
        container: &Container,
    ) -> Result<bool, NetworkError> {
        let attachment = network.attachment(container)?;
        let (netns, undo) = (PathBuf::from(&container.netns), self.settings.undo);
        self.blocking(move |store| {
            let is_cached = store.remembers(&attachment)?;
            // If the attachment is not cached and nothing would be undone, the answer does not matter.
            let has_interface = (is_cached || undo) && has_interface(&netns, attachment.ifname())?;
            // A namespace has a loopback even without an attachment.
            if is_cached && has_interface && attachment.ifname() != LOOPBACK {
                return Err(NetworkError::Attached(attachment));
            }
            Ok(has_interface)
        })
        .await
    }

    /// Like [`crate::Runtime::check`].
    ///
    /// # Errors
    /// The errors of [`crate::Runtime::check`].
    pub async fn check(&self, network: &Network, container: &Container) -> Result<(), NetworkError> {
        if !network.wants_check()? {
            return Ok(());
        }
        let attachment = network.attachment(container)?;
        let held = Arc::new(self.lock(&attachment).await?);
        let of = attachment.clone();
        let result = self.blocking(move |store| store.result(&of)).await?;
        let is_cached = result.is_some();
        let checked = self.drive(&mut Check::new(network, container, &self.settings.path, result)).await;
        if !is_cached {
            self.tidy(held, attachment).await;
        }
        checked
    }

    /// Deletes the lock file of a container that has no attachments.
    async fn tidy(&self, held: Arc<Held>, attachment: Attachment) {
        let tidied = self.blocking(move |store| {
            store.tidy(&held, &attachment);
            Ok(())
        });
        if let Err(error) = tidied.await {
            log::debug!("remove a lock file: {error}");
        }
    }

    /// Like [`crate::Runtime::del`].
    ///
    /// # Errors
    /// The errors of [`crate::Runtime::del`].
    pub async fn del(&self, network: &Network, container: &Container) -> Result<(), NetworkError> {
        let attachment = network.attachment(container)?;
        let held = self.lock(&attachment).await?;
        self.delete(network, container, &attachment, held).await
    }

    /// Runs DEL while holding the locks.
    async fn delete(
        &self,
        network: &Network,
        container: &Container,
        attachment: &Attachment,
        held: Held,
    ) -> Result<(), NetworkError> {
        let Settings { path, keep_going, .. } = &self.settings;
        let (of, name) = (network.clone(), attachment.clone());
        let result = self.blocking(move |store| store.result_for_del(&of, &name)).await?;
        self.drive(&mut Del::new(network, container, path, result).keep_going(*keep_going)).await?;
        let name = attachment.clone();
        self.blocking(move |store| {
            store.forget(&name)?;
            store.tidy(&held, &name);
            Ok(())
        })
        .await
    }

    /// Like [`crate::Runtime::gc`].
    ///
    /// # Errors
    /// The errors of [`crate::Runtime::gc`].
    pub async fn gc(&self, network: &Network, scope: GcScope<'_>) -> Result<(), NetworkError> {
        if network.list().disable_gc {
            return Ok(());
        }
        check_network(network.name())?;
        let of = network.clone();
        let _held = self.locked(move |store, options| store.lock_network(&of, options)).await?;
        let of = network.clone();
        let mut cached = self.blocking(move |store| store.of_network(&of)).await?;
        cached.retain(|one| scope.is_stale(&one.attachment));
        let mut errors = Vec::new();
        for one in cached {
            let (container, attachment) = (one.container(), one.attachment);
            if let Err(error) = self.delete_stale(network, &container, &attachment).await {
                errors.push(NetworkError::stale(&attachment, error));
            }
        }
        self.blocking(|store| {
            store.tidy_all();
            Ok(())
        })
        .await?;
        self.drive(&mut Gc::new(network, &self.settings.path, scope, errors)).await
    }

    async fn delete_stale(
        &self,
        network: &Network,
        container: &Container,
        attachment: &Attachment,
    ) -> Result<(), NetworkError> {
        let name = attachment.clone();
        let held = self.locked(move |store, options| store.lock_container(&name, options)).await?;
        self.delete(network, container, attachment, held).await
    }

    /// Like [`crate::Runtime::status`].
    ///
    /// # Errors
    /// The errors of [`crate::Runtime::status`].
    pub async fn status(&self, network: &Network) -> Result<(), NetworkError> {
        self.drive(&mut Status::new(network, &self.settings.path)).await
    }

    /// Like [`crate::Runtime::validate`].
    ///
    /// # Errors
    /// The errors of [`crate::Runtime::validate`].
    pub async fn validate(&self, network: &Network) -> Result<(), NetworkError> {
        self.drive(&mut Validate::new(network, &self.settings.path)).await
    }

    /// Like [`crate::Runtime::versions`].
    ///
    /// # Errors
    /// The errors of [`crate::Runtime::versions`].
    pub async fn versions(&self, plugin: &str) -> Result<Vec<String>, NetworkError> {
        self.drive(&mut Versions::new(plugin, &self.settings.path)).await
    }

    /// Like [`crate::Runtime::attachments`].
    ///
    /// # Errors
    /// The errors of [`crate::Runtime::attachments`].
    pub async fn attachments(&self, container_id: &str) -> Result<Vec<Cached>, NetworkError> {
        let id = container_id.to_owned();
        self.blocking(move |store| store.of_container(&id)).await
    }

    async fn drive<V: Verb>(&self, verb: &mut V) -> Result<V::Output, NetworkError> {
        let first = verb.next(None);
        self.drive_from(verb, first).await
    }

    async fn drive_from<V: Verb>(
        &self,
        verb: &mut V,
        mut step: Step<V::Output>,
    ) -> Result<V::Output, NetworkError> {
        loop {
            match step {
                Step::Done(done) => return done,
                Step::Call(call) => step = verb.next(Some(self.call(call).await)),
            }
        }
    }

    async fn call(&self, mut call: PluginCall) -> Outcome {
        let options = self.settings.options.apply(&mut call);
        if options.is_cancelled() {
            return Err(CallError::Cancelled);
        }
        self.exec.exec(&self.settings.path, &call, &options).await
    }

    async fn lock(&self, attachment: &Attachment) -> Result<Held, NetworkError> {
        let attachment = attachment.clone();
        self.locked(move |store, options| store.lock(&attachment, options)).await
    }

    /// Acquires locks on a thread. If the future is dropped, the wait ends, and a lock that is acquired too late is
    /// released again.
    pub(crate) async fn locked(
        &self,
        acquire: impl FnOnce(&Store, &CallOptions) -> Result<Held, NetworkError> + Send + 'static,
    ) -> Result<Held, NetworkError> {
        if !self.settings.store.locks {
            return Ok(Held::nothing());
        }
        let abandoned = Cancel::new().map_err(NetworkError::Pipe)?;
        let waiting = CancelOnDrop(abandoned.clone());
        let options = CallOptions { cancel: Some(abandoned), ..self.settings.options.clone() };
        let acquired = self.blocking(move |store| acquire(store, &options));
        let held = match &self.settings.options.cancel {
            None => acquired.await,
            Some(cancel) => tokio::select! {
                biased;
                () = cancel.cancelled() => Err(NetworkError::Cancelled),
                held = acquired => held,
            },
        };
        drop(waiting);
        held
    }

    /// Runs file operations on a thread for blocking work.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, NetworkError> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let store = self.settings.store.clone();
        match spawn_blocking(move || work(&store)).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(NetworkError::Cancelled),
            },
        }
    }
}

/// Ends the wait for locks when the future that waits for them is dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The name of the interface that the kernel makes in each namespace.
const LOOPBACK: &str = "lo";

/// True if a namespace has an interface with that name. False also if the namespace can never be entered, because the
/// plugins will report the cause.
///
/// # Errors
/// [`NetworkError::Interface`] if the system is short of something. An earlier ADD's interface would be taken for one of
/// this ADD, which is undone if it fails.
fn has_interface(netns: &Path, ifname: &str) -> Result<bool, NetworkError> {
    let opened = Netns::open(netns).map_err(|source| {
        let action = "look for an interface".to_owned();
        RouteError::Netns { action, source }
    });
    let found = opened.and_then(|netns| RouteSocket::open_in(&netns)?.find_link(ifname));
    match found {
        Err(error) if error.is_transient() => Err(NetworkError::Interface(error)),
        found => Ok(found.is_ok_and(|link| link.is_some())),
    }
}
