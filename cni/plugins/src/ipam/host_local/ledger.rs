//! The reservations of one network under its lock: read through the index, changed with it.

use std::fs::File;
use std::io;
use std::net::IpAddr;

use cni_kernel::lock::FileLock;
use cni_spec::Attachment;

use super::index::{Contents, Index};
use super::owner::{self, OwnerKey};
use super::search::{Bits, Block};
use super::store::{Entry, Linked, Staged, Store, StoreError};

/// The reservations, while the lock is held.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    store: &'a Store,
    source: Source,
    _lock: FileLock,
}

/// Where it is known from what is reserved.
#[derive(Debug)]
enum Source {
    /// The index on disk, true.
    Index(Index),
    /// A scan of the directory; there is no index.
    Scan(Contents),
    /// Nothing: the index failed in the middle of a change.
    Unknown,
}

/// Why an address was not reserved.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReserveError {
    /// The index was wrong: the name is taken. Read the directory and try again.
    #[error("address {0} is taken, against the index")]
    Taken(IpAddr),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An address that is to be reserved, the number of its range set, and its file.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    pub(super) set: usize,
    pub(super) address: IpAddr,
    pub(super) staged: &'a Staged,
}

/// True if the index shows that the attachment has no address. Takes no lock and changes nothing; false where
/// the index is not to be trusted, or changes at that moment.
///
/// An entry keeps its slot for as long as it is there, but for an index that is rewritten, whose header is
/// another one then: so an owner that has an address all the time is not missed.
pub(super) fn index_shows_none(store: &Store, attachment: &Attachment) -> bool {
    let look = || -> Option<bool> {
        let stamp = store.stamp().ok()?;
        let index = Index::open(store.present_index()?, &stamp)?;
        for key in [owner::key(attachment), owner::key_without_interface(attachment)] {
            if !index.owned(key).ok()?.is_empty() {
                return None;
            }
        }
        Some(index.is_as_opened(&stamp) && store.stamp().ok()? == stamp)
    };
    look().unwrap_or(false)
}

impl<'a> Ledger<'a> {
    /// Waits for the lock.
    pub(super) fn open(store: &'a Store) -> Result<Self, StoreError> {
        let lock = store.lock()?;
        let trusted = store.index_file().and_then(|file| Some(Index::open(file, &store.stamp().ok()?)));
        let mut ledger = Self { store, source: Source::Unknown, _lock: lock };
        match trusted.flatten() {
            Some(index) => ledger.source = Source::Index(index),
            None => ledger.rebuild()?,
        }
        Ok(ledger)
    }

    /// Reads the directory, and writes the index anew from it.
    pub(super) fn rebuild(&mut self) -> Result<(), StoreError> {
        self.store.remove_leftovers();
        let before = self.store.stamp()?;
        let contents = self.store.contents()?;
        self.source = Source::Unknown;
        match self.store.index_file().map(|file| Index::create(file, &contents)) {
            Some(Ok(index)) => {
                self.source = Source::Index(index);
                // Somebody without the lock changed it meanwhile: good enough for this call, whose
                // every step is checked, but not for the next one.
                if self.store.stamp()? == before {
                    self.finish();
                }
            }
            Some(Err(error)) => {
                self.abandon(&error);
                self.source = Source::Scan(contents);
            }
            None => self.source = Source::Scan(contents),
        }
        Ok(())
    }

    /// The addresses of this attachment: those reserved for it, or else those reserved for its
    /// container before interface names were written. Each was compared with its file.
    pub(super) fn owned(&mut self, attachment: &Attachment) -> Result<Vec<IpAddr>, StoreError> {
        let (addresses, wrong) = self.owned_by_index(attachment)?;
        if !wrong {
            return Ok(addresses);
        }
        self.rebuild()?;
        Ok(self.owned_by_index(attachment)?.0)
    }

    /// Also tells whether the index turned out wrong.
    fn owned_by_index(&mut self, attachment: &Attachment) -> Result<(Vec<IpAddr>, bool), StoreError> {
        let mut wrong = false;
        for key in [owner::key(attachment), owner::key_without_interface(attachment)] {
            let mut addresses = Vec::new();
            for address in self.by_key(key)? {
                match self.store.entry(address)? {
                    Some(Entry::Owned(text)) if OwnerKey::of(&text) == key => addresses.push(address),
                    _ => wrong = true,
                }
            }
            if !addresses.is_empty() {
                return Ok((addresses, wrong));
            }
        }
        Ok((Vec::new(), wrong))
    }

    fn by_key(&mut self, key: OwnerKey) -> Result<Vec<IpAddr>, StoreError> {
        let found = match &self.source {
            Source::Index(index) => index.owned(key),
            Source::Scan(contents) => return Ok(of(contents, key)),
            Source::Unknown => Err(unknown()),
        };
        match found {
            Ok(found) => Ok(found),
            Err(error) => Ok(of(&self.scan_after(&error)?, key)),
        }
    }

    /// What is taken in a block.
    pub(super) fn taken(&mut self, block: Block) -> Result<Bits, StoreError> {
        let found = match &self.source {
            Source::Index(index) => index.taken(block),
            Source::Scan(contents) => return Ok(contents.blocks.get(&block).copied().unwrap_or_default()),
            Source::Unknown => Err(unknown()),
        };
        match found {
            Ok(found) => Ok(found),
            Err(error) => Ok(self.scan_after(&error)?.blocks.get(&block).copied().unwrap_or_default()),
        }
    }

    /// Reserves all of these addresses or none. The place in the round is only a hint for the next search: where it
    /// cannot be written, as without a free inode, the reservations count all the same. Returns files that the
    /// caller syncs, and the directory after them, once the lock is free.
    pub(super) fn reserve(
        &mut self,
        attachment: &Attachment,
        reservations: &[Reservation<'_>],
    ) -> Result<Vec<File>, ReserveError> {
        self.begin();
        let done = self.link_all(&owner::text(attachment), reservations);
        if done.is_ok() {
            for reservation in reservations {
                self.record(|index| index.insert(owner::key(attachment), reservation.address));
            }
        }
        self.finish();
        done
    }

    fn link_all(&mut self, text: &str, reservations: &[Reservation<'_>]) -> Result<Vec<File>, ReserveError> {
        for (done, reservation) in reservations.iter().enumerate() {
            if let Err(error) = self.link_one(text, reservation) {
                self.take_back(reservations.get(..done).unwrap_or_default());
                return Err(error);
            }
        }
        let last = reservations.iter().map(|one| self.store.set_last(one.set, one.address));
        Ok(last.filter_map(|set| set.inspect_err(|error| log::warn!("{error}")).ok()).collect())
    }

    fn link_one(&self, text: &str, reservation: &Reservation<'_>) -> Result<(), ReserveError> {
        let Reservation { address, staged, .. } = *reservation;
        if self.store.link(staged, text, address)? == Linked::Done {
            return Ok(());
        }
        // Its writer died, and no other can be at work while the lock is held.
        if self.store.entry(address)? == Some(Entry::Torn) {
            log::info!("reservation of {address} is empty or torn: replaced");
            self.store.unlink(address)?;
            if self.store.link(staged, text, address)? == Linked::Done {
                return Ok(());
            }
        }
        Err(ReserveError::Taken(address))
    }

    fn take_back(&mut self, reservations: &[Reservation<'_>]) {
        for reservation in reservations {
            if let Err(error) = self.store.unlink(reservation.address) {
                log::error!("{error}");
                self.abandon(&io::Error::other(error));
            }
        }
    }

    /// Removes these reservations of the attachment. Goes on after a failure, and tells the first.
    pub(super) fn release(
        &mut self,
        attachment: &Attachment,
        addresses: &[IpAddr],
    ) -> Result<(), StoreError> {
        self.begin();
        let mut failed = Ok(());
        for address in addresses {
            match self.store.unlink(*address) {
                Ok(()) => {
                    // It is under one of the two; removing it under the other changes nothing.
                    self.record(|index| {
                        index.remove(owner::key(attachment), *address)?;
                        index.remove(owner::key_without_interface(attachment), *address)
                    });
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        self.finish();
        failed
    }

    /// Removes the reservations of everybody but these attachments, and torn ones. Reads the whole
    /// directory. Goes on after a failure, and tells the first.
    pub(super) fn retain(&mut self, valid: &[Attachment]) -> Result<(), StoreError> {
        self.store.remove_leftovers();
        let mut dead = Vec::new();
        self.store.scan(|address, entry| match entry {
            Entry::Owned(text) if owner::is_one_of(&text, valid) => {}
            Entry::Foreign => {}
            Entry::Owned(_) | Entry::Torn => dead.push(address),
        })?;
        if dead.is_empty() {
            return Ok(());
        }
        self.begin();
        let mut failed = Ok(());
        for address in dead {
            failed = failed.and(self.store.unlink(address));
        }
        // Rather than entry by entry: this reads everything anyway.
        self.rebuild()?;
        failed
    }

    /// Marks the index as not to be trusted before the directory changes.
    fn begin(&mut self) {
        self.record(Index::begin);
    }

    /// Marks the index as true after the directory changed.
    fn finish(&mut self) {
        if matches!(self.source, Source::Index(_)) {
            match self.store.mark() {
                Some(stamp) => self.record(|index| index.finish(stamp)),
                None => {
                    log::warn!("{:?}: its mtime cannot be set: the index is not used", self.store.dir.path());
                }
            }
        }
    }

    fn record(&mut self, change: impl FnOnce(&mut Index) -> io::Result<()>) {
        if let Source::Index(index) = &mut self.source
            && let Err(error) = change(index)
        {
            self.abandon(&error);
        }
    }

    /// An index that cannot be written is worth nothing, and never a reason to fail.
    fn abandon(&mut self, error: &io::Error) {
        log::warn!("index of {:?}: {error}", self.store.dir.path());
        self.source = Source::Unknown;
        self.store.remove_index();
    }

    fn scan_after(&mut self, error: &io::Error) -> Result<Contents, StoreError> {
        self.abandon(error);
        let contents = self.store.contents()?;
        self.source = Source::Scan(contents.clone());
        Ok(contents)
    }
}

fn of(contents: &Contents, key: OwnerKey) -> Vec<IpAddr> {
    contents.owners.iter().filter(|(owner, _)| *owner == key).map(|(_, address)| *address).collect()
}

fn unknown() -> io::Error {
    io::Error::other("it failed before")
}
