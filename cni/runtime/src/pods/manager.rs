// SPDX-License-Identifier: MIT OR Apache-2.0

//! The manager: operations on pods.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use cni_spec::{AddResult, Attachment, Version, check_container_id, text};
use tokio::sync::watch;

use super::directory::{Directory, Networks};
use super::error::{PodError, PodVerb, several};
use super::journal::{Journal, Planned};
use super::matching::{attachments_of, is_attachment, is_requested, lookup, named, names, requested};
use super::request::{Attach, Pod};
use super::sandbox::{self, Loopback};
use super::steps::{in_sandbox, lock_pod, of_network, on_files, on_thread, remove, settled};
use crate::cache::{Cache, Cached};
use crate::container::Container;
use crate::error::NetworkError;
use crate::exec::{CallOptions, Cancel};
use crate::lock::Held;
use crate::network::Network;
use crate::store::Store;
use crate::verbs::GcScope;
use crate::{asynchronous, config, runtime};

/// The time limit of a plugin's VERSION, because it delays the reading of the directory.
const VERSION_LIMIT: Duration = Duration::from_secs(30);

/// Sets up, tears down and checks pods. A clone is cheap.
///
/// Operations on one sandbox are serialised, operations on different sandboxes run in parallel, and GC runs
/// exclusively. The locks also work between processes. Dropping the future of an operation kills the running plugin
/// but undoes nothing. To have the operation undone, cancel it with a [`Cancel`] token in the options instead.
#[derive(Debug, Clone)]
pub struct Manager {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: Arc<Directory>,
    runtime: asynchronous::Runtime,
    args: Vec<(String, String)>,
    watcher: Mutex<Option<Watcher>>,
}

#[derive(Debug)]
struct Watcher {
    stop: Cancel,
    thread: JoinHandle<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let watcher = self.watcher.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = watcher {
            watcher.stop.cancel();
        }
    }
}

/// Builds a [`Manager`].
#[derive(Debug, Clone)]
pub struct Builder {
    runtime: runtime::Builder,
    directory: PathBuf,
    default: Option<String>,
    args: Vec<(String, String)>,
}

/// An attachment of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Attached {
    /// The network.
    pub network: String,
    /// The interface.
    pub ifname: String,
    /// The version of the network's configuration.
    pub version: Version,
    /// The result of its ADD.
    pub result: AddResult,
}

/// What was found of a pod's attachments.
#[derive(Debug, Default)]
struct Found {
    /// Attachments that are cached or pending.
    known: Vec<Planned>,
    /// Attachments that are neither, with the configuration and parameters that a set-up would use.
    unknown: Vec<Planned>,
    /// Errors for networks that are not even configured.
    missing: Vec<PodError>,
}

impl Builder {
    /// Sets the configuration directory. The default is [`config::DIRECTORY`].
    #[must_use]
    pub fn config_dir(self, directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), ..self }
    }

    /// Sets the name of the default network, which then does not change: as long as its configuration is not valid,
    /// there is no default network. Without this setting, the default network is the first valid one.
    #[must_use]
    pub fn default_network(self, name: impl Into<String>) -> Self {
        Self { default: Some(name.into()), ..self }
    }

    /// Adds further pairs to the `CNI_ARGS` of all pods (see [`parse_args`](super::parse_args)).
    #[must_use]
    pub fn args(self, pairs: Vec<(String, String)>) -> Self {
        Self { args: pairs, ..self }
    }

    /// A manager for a few operations. It reads the configuration directory when it needs a network.
    #[must_use]
    pub fn open(self) -> Manager {
        let Self { runtime, directory, default, args } = self;
        let limited = CallOptions::new().limit(VERSION_LIMIT);
        let directory = Directory::new(directory, default, runtime.clone().build().with(limited));
        let runtime = runtime.undo_failed_add().keep_deleting().build_async();
        let (directory, watcher) = (Arc::new(directory), Mutex::default());
        Manager { inner: Arc::new(Inner { directory, runtime, args, watcher }) }
    }

    /// Creates the configuration directory, reads it, and follows its changes and those of the plugin directories.
    ///
    /// # Errors
    /// [`PodError::Start`] if the directory or the thread cannot be created. If the directory cannot be read, this is
    /// logged, and the directory is read again later.
    pub async fn start(self) -> Result<Manager, PodError> {
        let path = self.directory.clone();
        on_thread(move || {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(&path);
            made.map_err(|error| PodError::Start { action: format!("create {}", path.display()), error })
        })
        .await??;
        self.watch().await
    }

    /// Starts the manager like [`Self::start`] does, but does not create the directory, for a program that only
    /// reads. A missing directory is read as soon as it exists.
    ///
    /// # Errors
    /// [`PodError::Start`] if the thread cannot be created.
    pub async fn watch(self) -> Result<Manager, PodError> {
        let manager = self.open();
        let directory = Arc::clone(&manager.inner.directory);
        let failed = |action: String| move |error| PodError::Start { action, error };
        let watcher = on_thread(move || {
            // The first reading must end before the first operation.
            if let Err(error) = directory.sync() {
                log::warn!("{error}");
            }
            let stop = Cancel::new().map_err(failed("make a pipe".to_owned()))?;
            let thread = super::watch::start(directory, stop.clone())
                .map_err(failed("start the thread for the configuration".to_owned()))?;
            Ok::<_, PodError>(Watcher { stop, thread })
        });
        let watcher = watcher.await??;
        *manager.inner.watcher() = Some(watcher);
        Ok(manager)
    }
}

impl Inner {
    fn watcher(&self) -> std::sync::MutexGuard<'_, Option<Watcher>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Manager {
    /// Starts building a manager with the plugin directories, the cache and the options of `runtime`. Whatever is set
    /// there, a failed ADD is undone, and DEL continues after errors.
    #[must_use]
    pub fn builder(runtime: runtime::Builder) -> Builder {
        Builder { runtime, directory: config::DIRECTORY.into(), default: None, args: Vec::new() }
    }

    /// The networks of the last reading of the configuration directory.
    #[must_use]
    pub fn networks(&self) -> Arc<Networks> {
        self.inner.directory.networks()
    }

    /// Returns a receiver that gets the networks after each change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Networks>> {
        self.inner.directory.subscribe()
    }

    /// Reads the configuration directory.
    ///
    /// # Errors
    /// [`PodError::Load`] if it cannot be listed.
    pub async fn resync(&self) -> Result<Arc<Networks>, PodError> {
        let directory = Arc::clone(&self.inner.directory);
        Ok(on_thread(move || directory.sync()).await??)
    }

    /// Ends the thread that follows the configuration, and waits for it. Operations on pods still work.
    pub async fn shut_down(&self) {
        let Some(Watcher { stop, thread }) = self.inner.watcher().take() else { return };
        stop.cancel();
        if !matches!(on_thread(move || thread.join()).await, Ok(Ok(()))) {
            log::warn!("the thread for the configuration panicked");
        }
    }

    /// Sets the loopback up and attaches the pod to its networks in order. If one attachment fails, those that were
    /// made are removed. If a network is not known, the manager reads the configuration directory once more.
    ///
    /// # Errors
    /// [`PodError::Undone`] if an ADD failed; [`PodError::NoDefault`], [`PodError::NoNetwork`], [`PodError::Name`] or
    /// [`PodError::Request`] if the pod cannot be attached; [`PodError::Attached`] if it is already attached.
    pub async fn set_up(&self, pod: &Pod, options: &CallOptions) -> Result<Vec<Attached>, PodError> {
        check_container_id(&pod.sandbox).map_err(NetworkError::from)?;
        let planned = self.plan(pod).await?;
        let runtime = self.inner.runtime.with(options.clone());
        let held = Arc::new(lock_pod(&runtime, pod).await?);
        for cached in runtime.attachments(&pod.sandbox).await? {
            let ifname = cached.attachment.ifname();
            // A second ADD would fail, and undoing it would remove the existing attachment.
            if planned.iter().any(|planned| planned.container.ifname == ifname) {
                let (sandbox, ifname) = (pod.sandbox.clone(), ifname.to_owned());
                let network = cached.attachment.network().to_owned();
                return Err(PodError::Attached { sandbox, network, ifname });
            }
        }
        let netns = pod.netns.clone();
        let loopback = in_sandbox(pod, move || sandbox::loopback_up(&netns)).await?;
        let (sandbox, pending) = (pod.sandbox.clone(), planned.clone());
        let noted = on_files(&runtime, &held, move |cache| Journal::create(cache)?.add(&sandbox, &pending));
        if let Err(error) = noted.await {
            let undo = self.undo(pod, &[], loopback, options).await;
            return Err(PodError::Undone { error: Box::new(error), undo });
        }
        let mut attached = Vec::new();
        for Planned { network, container } in &planned {
            match runtime.add(network, container).await {
                Ok(result) => attached.push(Attached::new(network, container, result)),
                Err(error) => {
                    let is_undone = !matches!(&error, NetworkError::Undone { undo: Some(_), .. });
                    let error = Box::new(of_network(PodVerb::Adding, pod, network, error));
                    let made = &planned[..attached.len()];
                    let undo = self.undo(pod, made, loopback, options).await;
                    if is_undone && undo.is_empty() {
                        settled(&runtime, &held, &pod.sandbox, planned).await;
                    }
                    self.forget(&runtime, pod, &held).await;
                    return Err(PodError::Undone { error, undo });
                }
            }
        }
        settled(&runtime, &held, &pod.sandbox, planned).await;
        Ok(attached)
    }

    /// Removes attachments of the pod. If the pod names no networks, these are all cached and pending attachments;
    /// otherwise those of its networks, found by the network's name alone if no interface is named. The configuration
    /// and the parameters are those in the cache, or else those of a set-up that was killed, or else those in the
    /// configuration directory. If the attachments are already gone, or a network is neither cached nor configured,
    /// this is logged and counts as success. Continues after an error.
    ///
    /// # Errors
    /// [`PodError::Network`] if a DEL failed, [`PodError::Several`] if several did.
    pub async fn tear_down(&self, pod: &Pod, options: &CallOptions) -> Result<(), PodError> {
        check_container_id(&pod.sandbox).map_err(NetworkError::from)?;
        let runtime = self.inner.runtime.with(options.clone());
        let held = Arc::new(lock_pod(&runtime, pod).await?);
        let Found { known, unknown, missing } = self.find(&runtime, pod).await?;
        for error in missing {
            log::warn!("pod {}: nothing to tear down: {error}", pod.full_name());
        }
        for Planned { network, container } in unknown.iter().filter(|_| !pod.networks.is_empty()) {
            let (id, ifname, network) = (&container.id, &container.ifname, text::quote(network.name()));
            log::warn!(
                "sandbox {id} is not attached to network {network} as {ifname}, as far as the cache knows"
            );
        }
        // If an interface is cached for another network, plugins would mistake it for that of a network that was
        // renamed.
        let cached = runtime.attachments(&pod.sandbox).await?;
        let is_of_another = |one: &Planned| {
            let other = |found: &Cached| {
                found.attachment.ifname() == one.container.ifname
                    && found.attachment.network() != one.network.name()
            };
            cached.iter().any(other)
        };
        let unknown: Vec<Planned> = unknown.into_iter().filter(|one| !is_of_another(one)).collect();
        let planned = [known, unknown].concat();
        let errors = remove(&runtime, pod, &planned).await;
        if errors.is_empty() {
            settled(&runtime, &held, &pod.sandbox, planned).await;
        }
        self.forget(&runtime, pod, &held).await;
        several(errors)
    }

    /// Checks the loopback and the attachments of the pod, and returns their results. For each attachment, CHECK is
    /// called if the version is 0.4.0 or later. The result is the cached one, or else has the addresses in the
    /// namespace.
    ///
    /// # Errors
    /// [`PodError::Network`] for the first CHECK that fails; [`PodError::Sandbox`] if the loopback is down, or the
    /// interface has no address; [`PodError::NoDefault`] or [`PodError::NoNetwork`] for a network that is neither
    /// cached nor configured; [`PodError::NotAttached`] for one that is not cached if the pod has no namespace.
    pub async fn status(&self, pod: &Pod, options: &CallOptions) -> Result<Vec<Attached>, PodError> {
        check_container_id(&pod.sandbox).map_err(NetworkError::from)?;
        let runtime = self.inner.runtime.with(options.clone());
        let held = lock_pod(&runtime, pod).await?;
        let attached = self.inspect(&runtime, pod).await;
        self.forget(&runtime, pod, &held).await;
        attached
    }

    async fn inspect(&self, runtime: &asynchronous::Runtime, pod: &Pod) -> Result<Vec<Attached>, PodError> {
        let Found { known, unknown, missing } = self.find(runtime, pod).await?;
        if let Some(error) = missing.into_iter().next() {
            return Err(error);
        }
        // Without a namespace, nothing can be inspected.
        if let Some(Planned { network, .. }) = unknown.first().filter(|one| one.container.netns.is_empty()) {
            let (sandbox, network) = (pod.sandbox.clone(), network.name().to_owned());
            return Err(PodError::NotAttached { sandbox, network });
        }
        let planned = [known, unknown].concat();
        let mut cached = runtime.attachments(&pod.sandbox).await?;
        if let Some(Planned { container, .. }) = planned.first() {
            let netns = container.netns.clone();
            in_sandbox(pod, move || sandbox::check_loopback(&netns)).await?;
        }
        let mut attached = Vec::new();
        for Planned { network, container } in &planned {
            match runtime.check(network, container).await {
                Ok(()) | Err(NetworkError::TooOld { .. }) => {}
                Err(error) => return Err(of_network(PodVerb::Checking, pod, network, error)),
            }
            let is_it = |one: &Cached| is_attachment(one, network.name(), &container.ifname);
            let result = match cached.iter().position(is_it) {
                Some(at) => cached.swap_remove(at).result,
                None => {
                    let (netns, ifname) = (container.netns.clone(), container.ifname.clone());
                    in_sandbox(pod, move || sandbox::read_back(&netns, &ifname)).await?
                }
            };
            attached.push(Attached::new(network, container, result));
        }
        Ok(attached)
    }

    /// Succeeds if the next pod can be attached to the default network, which means that the network exists and
    /// STATUS of its plugins succeeds.
    ///
    /// # Errors
    /// [`PodError::NoDefault`], or [`PodError::Runtime`] with the plugin's error.
    pub async fn ready(&self, options: &CallOptions) -> Result<(), PodError> {
        let mut networks = self.networks();
        if networks.default_network().is_none() {
            networks = self.resync().await?;
        }
        let network = networks.default_network().ok_or_else(|| self.no_default())?;
        Ok(self.inner.runtime.with(options.clone()).status(network).await?)
    }

    /// Removes the cached and pending attachments that belong to none of the valid pods, and then calls GC of every
    /// network. No other operation runs at the same time.
    ///
    /// For a valid pod, the attachments of its networks and all cached and pending attachments of its sandbox are
    /// kept, also those whose files cannot be used.
    ///
    /// # Errors
    /// [`PodError::Several`] if several DELs or GCs fail; otherwise the only error, from one of these, the locks or
    /// the cache.
    pub async fn gc(&self, valid: &[Pod], options: &CallOptions) -> Result<(), PodError> {
        let networks = self.resync().await?;
        let runtime = self.inner.runtime.with(options.clone());
        let lock = runtime.locked(|store, options| match store.locks()? {
            Some(locks) => locks.pods(options),
            None => Ok(Held::nothing()),
        });
        let held = Arc::new(lock.await?);
        let ((cached, unusable), noted) = (self.read_cache().await?, self.noted().await?);
        // For networks that are no longer configured, the latest cached configuration is used.
        let mut all: BTreeMap<String, Network> =
            cached.iter().map(|one| (one.attachment.network().to_owned(), one.network())).collect();
        all.extend(networks.all().map(|network| (network.name().to_owned(), network.clone())));
        let mut keep: Vec<Attachment> = Vec::new();
        for pod in valid {
            keep.extend(requested(pod, &networks)?);
            let of_pod = cached.iter().filter(|one| one.attachment.container_id() == pod.sandbox);
            keep.extend(of_pod.map(|one| one.attachment.clone()));
            // The plugins would take the attachment of an unusable file for deleted.
            keep.extend(named(&unusable, all.keys(), &pod.sandbox));
        }
        let is_valid = |one: &Planned| valid.iter().any(|pod| pod.sandbox == one.container.id);
        let (valid, stale): (Vec<_>, Vec<_>) = noted.into_iter().partition(is_valid);
        for one in &valid {
            keep.push(one.attachment()?);
        }
        let mut errors = Vec::new();
        for one in stale.into_iter().rev().filter(|one| !one.network.list().disable_gc) {
            let attachment = one.attachment()?;
            match runtime.del(&one.network, &one.container).await {
                Ok(()) => settled(&runtime, &held, attachment.container_id(), vec![one]).await,
                Err(error) => errors.push(NetworkError::stale(&attachment, error).into()),
            }
        }
        for network in all.values() {
            errors.extend(runtime.gc(network, GcScope::AllBut(&keep)).await.err().map(PodError::from));
        }
        let swept = on_files(&runtime, &held, |directory| {
            if let Some(cache) = Cache::open(directory)? {
                cache.sweep()?;
            }
            if let Some(journal) = Journal::open(directory)? {
                journal.sweep()?;
            }
            Ok(())
        });
        errors.extend(swept.await.err());
        several(errors)
    }

    /// All cached attachments in the order of their ADDs. Files that cannot be used are logged and left out.
    ///
    /// # Errors
    /// [`PodError::Runtime`] if the cache cannot be listed, or if the system lacks descriptors or memory to read a file.
    pub async fn attachments(&self) -> Result<Vec<Cached>, PodError> {
        Ok(self.read_cache().await?.0)
    }

    /// The damaged files of the cache. Their names tell whose attachments they are about: `NETWORK-SANDBOX-IFNAME`.
    ///
    /// # Errors
    /// As for [`Manager::attachments`].
    pub async fn unusable_files(&self) -> Result<Vec<PathBuf>, PodError> {
        Ok(self.read_cache().await?.1)
    }

    async fn read_cache(&self) -> Result<(Vec<Cached>, Vec<PathBuf>), PodError> {
        Ok(self.inner.runtime.blocking(Store::read).await?)
    }

    /// The attachments of set-ups that are running or were killed, as far as they are not cached. A teardown and a GC
    /// remove them.
    ///
    /// # Errors
    /// [`PodError::Runtime`] if the files cannot be listed.
    pub async fn pending(&self) -> Result<Vec<Planned>, PodError> {
        // The pending attachments are read before the cache, so an attachment that is made concurrently is in one of
        // the two.
        let mut pending = self.noted().await?;
        if !pending.is_empty() {
            let cached = self.attachments().await?;
            pending.retain(|one| !cached.iter().any(|cached| one.is_cached_as(cached)));
        }
        Ok(pending)
    }

    /// The attachments of set-ups that are running or were killed, whether cached or not.
    async fn noted(&self) -> Result<Vec<Planned>, PodError> {
        let noted = self.inner.runtime.blocking(|store| match Journal::open(&store.cache)? {
            Some(journal) => Ok(journal.all()?),
            None => Ok(Vec::new()),
        });
        Ok(noted.await?)
    }

    /// The attachments to make.
    async fn plan(&self, pod: &Pod) -> Result<Vec<Planned>, PodError> {
        let mut networks = self.networks();
        let attachments = attachments_of(pod);
        if attachments.iter().any(|attach| lookup(&networks, attach).is_none()) {
            networks = self.resync().await?;
        }
        let ifnames = names(&attachments, &networks)?;
        let mut planned = Vec::new();
        for (attach, ifname) in attachments.iter().zip(ifnames) {
            planned.push(self.planned(pod, attach, &ifname, &networks)?);
        }
        Ok(planned)
    }

    fn planned(
        &self,
        pod: &Pod,
        attach: &Attach,
        ifname: &str,
        networks: &Networks,
    ) -> Result<Planned, PodError> {
        let network = lookup(networks, attach).ok_or_else(|| self.unknown(attach))?.clone();
        let container = pod.container(&attach.parameters, ifname, &self.inner.args)?;
        let planned = Planned { network, container };
        planned.attachment()?;
        Ok(planned)
    }

    /// The attachments to check or remove.
    async fn find(&self, runtime: &asynchronous::Runtime, pod: &Pod) -> Result<Found, PodError> {
        let known = self.known(runtime, pod).await?;
        if pod.networks.is_empty() && !known.is_empty() {
            return Ok(Found { known, ..Found::default() });
        }
        let attachments = attachments_of(pod);
        let mut networks = self.networks();
        let ifnames = names(&attachments, &networks)?;
        let mut found = Found::default();
        for (attach, ifname) in attachments.iter().zip(ifnames) {
            let matching: Vec<&Planned> =
                known.iter().filter(|one| is_requested(one, attach, &ifname)).collect();
            if !matching.is_empty() {
                // If two of the pod's networks refer to the same attachment, it must be found only once.
                let new = matching.into_iter().filter(|one| !found.known.contains(one)).cloned();
                let new: Vec<Planned> = new.collect();
                found.known.extend(new);
                continue;
            }
            if lookup(&networks, attach).is_none() {
                networks = self.resync().await?;
            }
            match self.planned(pod, attach, &ifname, &networks) {
                Ok(planned) => found.unknown.push(planned),
                Err(error @ (PodError::NoDefault(_) | PodError::NoNetwork(_))) => found.missing.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The cached and the pending attachments of a sandbox.
    async fn known(&self, runtime: &asynchronous::Runtime, pod: &Pod) -> Result<Vec<Planned>, PodError> {
        let cached = runtime.attachments(&pod.sandbox).await?;
        let sandbox = pod.sandbox.clone();
        let pending = runtime.blocking(move |store| match Journal::open(&store.cache)? {
            Some(journal) => Ok(journal.read(&sandbox)?),
            None => Ok(Vec::new()),
        });
        let pending =
            pending.await?.into_iter().filter(|one| !cached.iter().any(|cached| one.is_cached_as(cached)));
        let of_cache =
            cached.iter().map(|one| Planned { network: one.network(), container: one.container() });
        let mut known: Vec<Planned> = of_cache.chain(pending).collect();
        if !pod.netns.is_empty() {
            known.iter_mut().for_each(|one| one.container.netns.clone_from(&pod.netns));
        }
        Ok(known)
    }

    fn unknown(&self, attach: &Attach) -> PodError {
        match &attach.network {
            Some(name) => PodError::NoNetwork(name.clone()),
            None => self.no_default(),
        }
    }

    fn no_default(&self) -> PodError {
        PodError::NoDefault(self.inner.directory.path().to_owned())
    }

    /// Removes the attachments of a failed set-up, even if it was cancelled.
    async fn undo(
        &self,
        pod: &Pod,
        made: &[Planned],
        loopback: Loopback,
        options: &CallOptions,
    ) -> Vec<PodError> {
        let runtime = self.inner.runtime.with(CallOptions { cancel: None, ..options.clone() });
        let mut errors = remove(&runtime, pod, made).await;
        let netns = pod.netns.clone();
        let restored = in_sandbox(pod, move || sandbox::restore_loopback(&netns, &loopback)).await;
        errors.extend(restored.err());
        errors
    }

    /// Deletes the lock file of a sandbox that has no attachments.
    async fn forget(&self, runtime: &asynchronous::Runtime, pod: &Pod, held: &Held) {
        match runtime.attachments(&pod.sandbox).await {
            Ok(left) if left.is_empty() => held.forget_container(),
            Ok(_) => {}
            Err(error) => log::debug!("{error}"),
        }
    }
}

impl Attached {
    fn new(network: &Network, container: &Container, result: AddResult) -> Self {
        let (ifname, version) = (container.ifname.clone(), network.version());
        Self { network: network.name().to_owned(), ifname, version, result }
    }
}
