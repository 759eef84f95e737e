// SPDX-License-Identifier: GPL-2.0-or-later

//! The reservations of one network under its lock, read from the index and changed together with it.

use std::io;
use std::net::IpAddr;

use cni_kernel::lock::FileLock;
use cni_spec::Attachment;

use super::abandoned::{self, Abandoned};
use super::index::{Contents, Index};
use super::owner::{self, OwnerKey, Owners};
use super::search::{Bits, Block};
use super::store::{Entry, Linked, Staged, Store, StoreError};

/// The most reservations that one call frees, together with what their owners have in the dataplane. More would keep
/// other calls waiting for too long.
const AT_ONCE: usize = 32;

/// The reservations, while the lock is held.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    store: &'a Store,
    source: Source,
    _lock: FileLock,
}

/// The source of what is reserved.
#[derive(Debug)]
enum Source {
    /// The index on disk, up to date.
    Index(Index),
    /// A scan of the directory, without an index.
    Scan(Contents),
    /// No source, because the index failed during a change.
    Unknown,
}

/// Why an address was not reserved.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReserveError {
    /// The index is wrong. The caller rebuilds it and tries again.
    #[error("address {0} is taken, although the index has it free")]
    Taken(IpAddr),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The addresses of an attachment according to the index.
struct Owned {
    addresses: Vec<IpAddr>,
    /// True if the index differs from a file.
    index_is_wrong: bool,
}

/// An address to reserve, the number of its range set, and its file.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    pub(super) set: usize,
    pub(super) address: IpAddr,
    pub(super) staged: &'a Staged,
}

/// True if the index shows that the attachment has no address. Takes no lock and changes nothing; false if
/// the index is not trusted, or changes during the call.
///
/// An owner that has an address throughout the call is found: its entry keeps its slot unless the index is
/// rewritten, and a rewritten index has another header.
pub(super) fn index_shows_none(store: &Store, attachment: &Attachment) -> bool {
    let look = || -> Option<bool> {
        let stamp = store.stamp().ok()?;
        let index = Index::open(store.present_index()?, &stamp)?;
        for key in [owner::key(attachment), owner::key_without_interface(attachment)] {
            if !index.owned(key).ok()??.is_empty() {
                return None;
            }
        }
        Some(index.is_as_opened(&stamp) && store.stamp().ok()? == stamp)
    };
    look().unwrap_or(false)
}

/// The addresses of an attachment. Takes no lock and makes no file, because the folder may be another network's:
/// changes of a concurrent call may be seen or not.
pub(super) fn addresses(store: &Store, attachment: &Attachment) -> Result<Vec<IpAddr>, StoreError> {
    if index_shows_none(store, attachment) {
        return Ok(Vec::new());
    }
    let keys = [owner::key(attachment), owner::key_without_interface(attachment)];
    let is_its = |entry: &Entry| matches!(entry, Entry::Owned(text) if keys.contains(&OwnerKey::of(text)));
    let index = || Index::open(store.present_index()?, &store.stamp().ok()?);
    let mut found = Vec::new();
    if let Some(index) = index() {
        for address in keys.iter().filter_map(|key| index.owned(*key).ok().flatten()).flatten() {
            if store.entry(address)?.as_ref().is_some_and(is_its) {
                found.push(address);
            }
        }
    }
    if found.is_empty() {
        store.scan(|address, entry| found.extend(is_its(&entry).then_some(address)))?;
    }
    Ok(found)
}

impl<'a> Ledger<'a> {
    /// Takes the lock and opens the index, or rebuilds it.
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

    /// Reads the directory and rewrites the index from it.
    pub(super) fn rebuild(&mut self) -> Result<(), StoreError> {
        self.store.remove_leftovers();
        let before = self.store.stamp()?;
        let contents = self.store.contents()?;
        self.source = Source::Unknown;
        match self.store.index_file().map(|file| Index::create(file, &contents)) {
            Some(Ok(index)) => {
                self.source = Source::Index(index);
                // The index stays unfinished if another program changed the directory without the lock. This call
                // checks each step against the files, but the next one must rebuild.
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

    /// The addresses reserved for this attachment, or else for its container by a version that wrote no
    /// interface name. Each is compared with its file.
    pub(super) fn owned(&mut self, attachment: &Attachment) -> Result<Vec<IpAddr>, StoreError> {
        let owned = self.owned_by_index(attachment)?;
        if !owned.index_is_wrong {
            return Ok(owned.addresses);
        }
        self.rebuild()?;
        Ok(self.owned_by_index(attachment)?.addresses)
    }

    fn owned_by_index(&mut self, attachment: &Attachment) -> Result<Owned, StoreError> {
        let mut index_is_wrong = false;
        for key in [owner::key(attachment), owner::key_without_interface(attachment)] {
            let mut addresses = Vec::new();
            for address in self.by_key(key)? {
                match self.store.entry(address)? {
                    Some(Entry::Owned(text)) if OwnerKey::of(&text) == key => addresses.push(address),
                    _ => index_is_wrong = true,
                }
            }
            if !addresses.is_empty() {
                return Ok(Owned { addresses, index_is_wrong });
            }
        }
        Ok(Owned { addresses: Vec::new(), index_is_wrong })
    }

    fn by_key(&mut self, key: OwnerKey) -> Result<Vec<IpAddr>, StoreError> {
        let found = match &self.source {
            Source::Index(index) => index.owned(key),
            Source::Scan(contents) => return Ok(contents.owned(key)),
            Source::Unknown => Err(unknown()),
        };
        match found {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Ok(self.store.contents()?.owned(key)),
            Err(error) => Ok(self.scan_after(&error)?.owned(key)),
        }
    }

    /// The taken addresses of a block.
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

    /// Reserves all of these addresses or none. The `last_reserved_ip` files are only hints for the next search: if one
    /// cannot be written, because there is no free inode for instance, the reservations hold.
    pub(super) fn reserve(
        &mut self,
        attachment: &Attachment,
        reservations: &[Reservation<'_>],
    ) -> Result<(), ReserveError> {
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

    fn link_all(&mut self, text: &str, reservations: &[Reservation<'_>]) -> Result<(), ReserveError> {
        for (done, reservation) in reservations.iter().enumerate() {
            if let Err(error) = self.link_one(text, reservation) {
                self.take_back(reservations.get(..done).unwrap_or_default());
                return Err(error);
            }
        }
        for one in reservations {
            if let Err(error) = self.store.set_last(one.set, one.address) {
                log::warn!("{error}");
            }
        }
        Ok(())
    }

    fn link_one(&self, text: &str, reservation: &Reservation<'_>) -> Result<(), ReserveError> {
        let Reservation { address, staged, .. } = *reservation;
        if self.store.link(staged, text, address)? == Linked::Done {
            return Ok(());
        }
        // The writer of a torn reservation has died, because no other process writes while this one holds the lock.
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

    /// Removes these reservations of the attachment.
    ///
    /// # Errors
    /// The first error; all other reservations were removed.
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
                    // The entry has one of the two keys; removing the other one changes nothing.
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

    /// Frees reservations of these addresses whose owners are provably gone, oldest first, and at most [`AT_ONCE`] of
    /// them. Returns their number.
    pub(super) fn free_abandoned(
        &mut self,
        network: &str,
        is_wanted: impl Fn(IpAddr) -> bool,
    ) -> Result<usize, StoreError> {
        let found = abandoned::find(self.store, network, is_wanted)?;
        let is_free = |one: &Abandoned| match one.detach() {
            Ok(()) => true,
            Err(error) => {
                log::warn!("address {one}, whose namespace is gone, stays reserved: {error}");
                false
            }
        };
        let freed: Vec<Abandoned> = found.into_iter().take(AT_ONCE).filter(is_free).collect();
        if freed.is_empty() {
            return Ok(0);
        }
        self.begin();
        for one in &freed {
            self.store.unlink(one.address)?;
            log::warn!("address {one} is freed: the container's namespace is gone, and it had no DEL");
        }
        self.store.sync()?;
        // The directory was read anyway.
        self.rebuild()?;
        Ok(freed.len())
    }

    /// Removes torn reservations and those of all other attachments. Reads the whole directory.
    ///
    /// # Errors
    /// The first error; all other reservations were removed.
    pub(super) fn retain(&mut self, valid: &[Attachment]) -> Result<(), StoreError> {
        self.store.remove_leftovers();
        let mut dead = Vec::new();
        let valid = Owners::new(valid);
        self.store.scan(|address, entry| match entry {
            Entry::Owned(text) if valid.have(&text) => {}
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
        // A rebuild is simpler than removing entry by entry, and the directory was read anyway.
        self.rebuild()?;
        failed
    }

    /// Marks the index as unfinished, before the directory changes.
    fn begin(&mut self) {
        self.record(Index::begin);
    }

    /// Marks the index as finished, after the directory changed.
    fn finish(&mut self) {
        if matches!(self.source, Source::Index(_)) {
            match self.store.mark() {
                Some(stamp) => self.record(|index| index.finish(stamp)),
                None => {
                    log::warn!(
                        "set the mtime of {:?}: no effect, the index is not used",
                        self.store.dir.path()
                    );
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

    /// Drops an index that cannot be read or written. The call proceeds without it.
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

fn unknown() -> io::Error {
    io::Error::other("an earlier write failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_trusted_between_changes_and_dropped_when_it_fails() {
        let temp = tempfile::tempdir().unwrap();
        let mut store = Store::create(temp.path(), "net").unwrap();
        store.make_ours(temp.path(), "net");
        let is_trusted = || Index::open(store.present_index().unwrap(), &store.stamp().unwrap()).is_some();
        let mut ledger = Ledger::open(&store).unwrap();
        assert!(is_trusted());
        ledger.begin();
        assert!(!is_trusted(), "a process that is killed now leaves a part of the change");
        ledger.finish();
        assert!(is_trusted());
        // The call goes on with what the directory has.
        ledger.abandon(&io::Error::other("no space"));
        assert!(store.present_index().is_none());
        std::fs::write(temp.path().join("net/10.0.0.2"), "c1\r\neth0").unwrap();
        let address: IpAddr = "10.0.0.2".parse().unwrap();
        let (block, place) = Block::of(address);
        assert!(ledger.taken(block).unwrap().has(place));
        assert_eq!(ledger.owned(&Attachment::new("net", "c1", "eth0").unwrap()).unwrap(), [address]);
    }
}
