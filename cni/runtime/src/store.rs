// SPDX-License-Identifier: MIT OR Apache-2.0

//! The files that an operation uses: the cache and the locks.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cni_spec::{AddResult, Attachment};

use crate::cache::{Cache, Cached, lasting};
use crate::container::Container;
use crate::error::NetworkError;
use crate::exec::CallOptions;
use crate::lock::{Held, Locks};
use crate::network::Network;
use crate::verbs::Del;

/// The directory of the cache, with the locks.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) cache: PathBuf,
    pub(crate) locks: bool,
}

impl Store {
    pub(crate) fn locks(&self) -> Result<Option<Locks>, NetworkError> {
        Ok(if self.locks { Some(Locks::open(&self.cache)?) } else { None })
    }

    /// The locks of an ADD, a DEL or a CHECK.
    pub(crate) fn lock(&self, attachment: &Attachment, options: &CallOptions) -> Result<Held, NetworkError> {
        let Some(locks) = self.locks()? else { return Ok(Held::nothing()) };
        locks.attachment(attachment.network(), attachment.container_id(), options)
    }

    /// The lock of a GC.
    pub(crate) fn lock_network(
        &self,
        network: &Network,
        options: &CallOptions,
    ) -> Result<Held, NetworkError> {
        let Some(locks) = self.locks()? else { return Ok(Held::nothing()) };
        locks.network(network.name(), options)
    }

    /// The lock of a DEL inside a GC.
    pub(crate) fn lock_container(
        &self,
        attachment: &Attachment,
        options: &CallOptions,
    ) -> Result<Held, NetworkError> {
        let Some(locks) = self.locks()? else { return Ok(Held::nothing()) };
        locks.container(attachment.container_id(), options)
    }

    pub(crate) fn remember(
        &self,
        network: &Network,
        attachment: &Attachment,
        container: &Container,
        result: &AddResult,
    ) -> Result<(), NetworkError> {
        let cache = Cache::create(&self.cache)?;
        let version = network.version().as_str();
        Ok(cache.remember(attachment, network.bytes(), container, result, version)?)
    }

    pub(crate) fn remembers(&self, attachment: &Attachment) -> Result<bool, NetworkError> {
        let Some(cache) = Cache::open(&self.cache)? else { return Ok(false) };
        Ok(cache.remembers(attachment)?)
    }

    /// The result of the ADD.
    pub(crate) fn result(&self, attachment: &Attachment) -> Result<Option<AddResult>, NetworkError> {
        let Some(cache) = Cache::open(&self.cache)? else { return Ok(None) };
        cache
            .result(attachment)
            .map_err(|error| NetworkError::Remembered { network: attachment.network().to_owned(), error })
    }

    /// The result of the ADD, for a DEL. A result that stays unusable is ignored.
    pub(crate) fn result_for_del(
        &self,
        network: &Network,
        attachment: &Attachment,
    ) -> Result<Option<AddResult>, NetworkError> {
        if !Del::takes_result(network) {
            return Ok(None);
        }
        let is_transient = |error: &NetworkError| match error {
            NetworkError::Cache(error) => error.is_transient(),
            NetworkError::Remembered { error, .. } => error.is_transient(),
            _ => false,
        };
        match self.result(attachment) {
            // Some plugins find what they made only by the result, and the DEL deletes it.
            Err(error) if !is_transient(&error) => {
                log::warn!("{error}");
                Ok(None)
            }
            result => result,
        }
    }

    pub(crate) fn forget(&self, attachment: &Attachment) -> Result<(), NetworkError> {
        if let Some(cache) = Cache::open(&self.cache)? {
            cache.forget(attachment)?;
        }
        Ok(())
    }

    /// Deletes the lock file of a container that has no attachments.
    pub(crate) fn tidy(&self, held: &Held, attachment: &Attachment) {
        if self.of_container(attachment.container_id()).is_ok_and(|left| left.is_empty()) {
            held.forget_container();
        }
    }

    /// Deletes the lock files of containers that have no attachments in the cache, because a DEL of another
    /// implementation deletes only the cached result. A file that cannot be deleted stays until the next GC.
    pub(crate) fn tidy_all(&self) {
        let tidied = self.locks().and_then(|locks| {
            let (Some(locks), Some(cache)) = (locks, Cache::open(&self.cache)?) else { return Ok(()) };
            let attached = || -> Result<BTreeSet<String>, NetworkError> {
                let (all, _) = cache.read()?;
                Ok(all.iter().map(|one| one.attachment.container_id().to_owned()).collect())
            };
            locks.forget_others(attached)
        });
        if let Err(error) = tidied {
            log::warn!("{error}");
        }
    }

    /// All attachments in the cache, and the files that cannot be used.
    pub(crate) fn read(&self) -> Result<(Vec<Cached>, Vec<PathBuf>), NetworkError> {
        let Some(cache) = Cache::open(&self.cache)? else { return Ok(Default::default()) };
        let (all, faults) = cache.read()?;
        Ok((all, lasting(faults)?))
    }

    /// The attachments of a network in the cache.
    pub(crate) fn of_network(&self, network: &Network) -> Result<Vec<Cached>, NetworkError> {
        let (mut all, _) = self.read()?;
        all.retain(|one| one.attachment.network() == network.name());
        Ok(all)
    }

    pub(crate) fn of_container(&self, id: &str) -> Result<Vec<Cached>, NetworkError> {
        match Cache::open(&self.cache)? {
            Some(cache) => Ok(cache.of_container(id)?),
            None => Ok(Vec::new()),
        }
    }
}
