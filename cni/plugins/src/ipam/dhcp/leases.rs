// SPDX-License-Identifier: GPL-2.0-or-later

//! All leases of the node: in memory, each with a keeper, and on disk, each with a file.
//!
//! The file is written before the plugin gets its reply, and removed after the server gets the release. So a
//! restarted daemon keeps the leases of one that was killed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::netns::Netns;
use cni_spec::{AddResult, CniError, ErrorCode};

use super::config::on_host;
use super::exchange::ExchangeError;
use super::keeper::{self, End, Keeper, Order, Patience};
use super::lease::{Lease, Owner};
use super::message::Options;

/// The file that a daemon locks. Names of lease files contain colons, so none has this name.
pub(super) const LOCK: &str = "lock";
/// The size of a thread's stack, in bytes: packet buffers are on it, and little else.
pub(super) const STACK: usize = 256 << 10;
/// The largest file of a lease, in bytes.
const LARGEST: usize = 1 << 20;
/// The time limit for another call of the same attachment to end.
const BUSY_LIMIT: Duration = Duration::from_secs(20);

pub(super) struct Leases {
    host_prefix: String,
    patience: Patience,
    store: Arc<DurableDir>,
    table: Arc<Table>,
    /// Notified when a [`Pending`] is dropped.
    ended: Condvar,
}

type Table = Mutex<HashMap<Owner, Slot>>;

/// A failure to read or write a lease's file.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error(transparent)]
    File(#[from] DirError),
    #[error(transparent)]
    Content(#[from] serde_json::Error),
}

/// A lease that could not be kept.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("start a thread for {client}: {source}")]
    Thread { client: String, source: std::io::Error },
    #[error("another call for its attachment is running")]
    Busy,
}

impl KeepError {
    /// True if a later try may succeed.
    fn is_transient(&self) -> bool {
        match self {
            Self::File(FileError::File(error)) => error.is_transient(),
            Self::File(FileError::Content(_)) => false,
            Self::Thread { .. } | Self::Busy => true,
        }
    }
}

/// The state of an attachment.
enum Slot {
    /// A call requests a lease. A DEL sets the flag to stop it.
    Requesting(Arc<AtomicBool>),
    /// A keeper holds a lease.
    Kept(Kept),
    /// A call is releasing the lease; the flag identifies the call.
    Releasing(Arc<AtomicBool>),
}

struct Kept {
    lease: Arc<Mutex<Lease>>,
    orders: Sender<Order>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<End>,
}

impl Kept {
    fn lease(&self) -> Lease {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A call that requests or releases a lease. Its slot is removed when it is dropped, unless another call has
/// replaced the slot. An attachment has one such call at most.
struct Pending<'a> {
    leases: &'a Leases,
    owner: &'a Owner,
    /// Set to stop the call; also identifies its slot.
    stop: Arc<AtomicBool>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut table = self.leases.table();
        if let Some(Slot::Requesting(flag) | Slot::Releasing(flag)) = table.get(self.owner)
            && Arc::ptr_eq(flag, &self.stop)
        {
            table.remove(self.owner);
        }
        self.leases.ended.notify_all();
    }
}

/// The outcome of [`Leases::begin_request`].
enum Begun<'a> {
    Request(Pending<'a>),
    /// The attachment has this lease already.
    Held(Box<Lease>),
}

impl Leases {
    pub(super) fn new(store: DurableDir, patience: Patience, host_prefix: String) -> Self {
        let (table, ended) = (Arc::default(), Condvar::new());
        Self { host_prefix, patience, store: Arc::new(store), table, ended }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Owner, Slot>> {
        locked(&self.table)
    }

    /// Starts keepers for the leases on disk that have none. Returns false if a later try may start more of them,
    /// because the system was short of descriptors, memory or threads.
    pub(super) fn load(&self) -> bool {
        let names = match self.store.list() {
            Ok(names) => names,
            Err(error) => {
                log::error!("{error}");
                return false;
            }
        };
        let mut is_complete = true;
        for name in names.iter().filter(|name| *name != LOCK) {
            match self.load_file(name) {
                Err(error) if error.is_transient() => {
                    log::error!("{name:?} is tried again later: {error}");
                    is_complete = false;
                }
                Err(error) => log::error!("{name:?} is ignored: {error}"),
                Ok(()) => {}
            }
        }
        is_complete
    }

    /// Starts a keeper for the lease in a file, unless it has one or a call is changing it.
    fn load_file(&self, name: &OsStr) -> Result<(), KeepError> {
        let Some(owner) = name.to_str().and_then(Owner::of_file) else {
            log::error!("{name:?} is ignored: it is not the name of a lease");
            return Ok(());
        };
        // A DEL that comes now waits until the keeper is there, and releases the lease.
        let _request = match self.begin_request(&owner) {
            Ok(Begun::Request(request)) => request,
            Ok(Begun::Held(_)) => return Ok(()),
            // A call for the attachment is running. If it fails, the lease still needs a keeper.
            Err(_) => return Err(KeepError::Busy),
        };
        match read(&self.store, name)? {
            None => Ok(()),
            Some(lease) if lease.owner != owner => {
                log::error!("{name:?} is ignored: it has the lease of {}", lease.owner.client_id());
                Ok(())
            }
            Some(lease) if lease.is_of_earlier_boot() => {
                log::info!("{}: lease of an earlier boot, removed", owner.client_id());
                if let Err(error) = self.store.remove(name) {
                    log::error!("{error}");
                }
                Ok(())
            }
            Some(lease) => {
                log::info!("{}: keeping {}", owner.client_id(), lease.address);
                self.keep(lease)
            }
        }
    }

    /// Returns the attachment's lease in this namespace, or requests one.
    ///
    /// # Errors
    /// Code 11 if another ADD of the attachment is running; code 999 if no server grants a lease.
    pub(super) fn allocate(
        &self,
        owner: &Owner,
        netns: &Path,
        options: Options,
    ) -> Result<AddResult, CniError> {
        let who = owner.client_id();
        let path = on_host(&self.host_prefix, netns);
        let request = loop {
            let old = match self.begin_request(owner)? {
                Begun::Request(request) => break request,
                Begun::Held(old) => old,
            };
            match Netns::open(&path) {
                Ok(netns) if (netns.id().dev, netns.id().ino) == old.netns_id => return Ok(old.result()),
                // The container may still have the address.
                Err(error) if !error.is_gone() => return Err(logged(owner, &error.into())),
                _ => {}
            }
            // The container was started again without a DEL.
            log::info!("{who}: {} was leased to an earlier namespace", old.address);
            self.release(owner)?;
        };
        log::info!("{who}: requesting a lease");
        let acquired = keeper::acquire(owner, &path, options, self.patience, &request.stop);
        let lease = acquired.map_err(|error| logged(owner, &error))?;
        log::info!("{who}: {} for {} s", lease.address, lease.expiry);
        let result = lease.result();
        let kept = self.save(&lease).map_err(KeepError::from).and_then(|()| self.keep(lease.clone()));
        if let Err(error) = kept {
            log::error!("{who}: {error}");
            let (_orders, received) = channel();
            self.keeper(Arc::new(Mutex::new(lease)), received, Arc::default()).release();
            self.forget(owner)?;
            return Err(CniError::new(ErrorCode::Io, error.to_string()));
        }
        let stopped = request.stop.load(Ordering::Relaxed);
        drop(request);
        if stopped {
            // A DEL came after the server's reply.
            self.release(owner)?;
            return Err(logged(owner, &ExchangeError::Stopped));
        }
        Ok(result)
    }

    /// Enters an ADD into the table, unless the attachment has a lease.
    fn begin_request<'a>(&'a self, owner: &'a Owner) -> Result<Begun<'a>, CniError> {
        let mut table = self.wait(owner, |slot| matches!(slot, Slot::Releasing(_)))?;
        match table.get(owner) {
            Some(Slot::Kept(kept)) if !kept.thread.is_finished() => Ok(Begun::Held(Box::new(kept.lease()))),
            Some(Slot::Requesting(_)) => {
                let msg = format!("another call requests a lease for {}", owner.client_id());
                Err(CniError::new(ErrorCode::TryAgainLater, msg))
            }
            _ => {
                let stop = Arc::<AtomicBool>::default();
                table.insert(owner.clone(), Slot::Requesting(stop.clone()));
                Ok(Begun::Request(Pending { leases: self, owner, stop }))
            }
        }
    }

    /// Returns the attachment's lease, and has its keeper renew it in the background.
    pub(super) fn renew(&self, owner: &Owner) -> Result<AddResult, CniError> {
        match self.table().get(owner) {
            Some(Slot::Kept(kept)) if !kept.thread.is_finished() => {
                // If the keeper has just ended, the following call fails.
                let _sent = kept.orders.send(Order::Renew);
                Ok(kept.lease().result())
            }
            _ => Err(CniError::internal(format!("there is no lease for {}", owner.client_id()))),
        }
    }

    /// Releases the attachment's lease, if it has one.
    ///
    /// # Errors
    /// Code 11 if another call of the attachment does not end in time; code 5 if the file cannot be removed.
    pub(super) fn release(&self, owner: &Owner) -> Result<(), CniError> {
        let (kept, _pending) = self.take(owner)?;
        if let Some(kept) = kept {
            // Stops a running exchange.
            kept.stop.store(true, Ordering::Relaxed);
            let _sent = kept.orders.send(Order::Release);
            if kept.thread.join().is_err() {
                return Err(CniError::internal(format!("the keeper of {} failed", owner.client_id())));
            }
        }
        // The keeper may have failed to remove the file, or the file was unreadable.
        self.forget(owner)
    }

    /// Takes an attachment's lease out of the table, after other calls of the attachment have ended.
    fn take<'a>(&'a self, owner: &'a Owner) -> Result<(Option<Kept>, Pending<'a>), CniError> {
        let mut table = self.wait(owner, |slot| match slot {
            Slot::Requesting(stop) => {
                stop.store(true, Ordering::Relaxed);
                true
            }
            Slot::Releasing(_) => true,
            Slot::Kept(_) => false,
        })?;
        let stop = Arc::<AtomicBool>::default();
        let kept = match table.insert(owner.clone(), Slot::Releasing(stop.clone())) {
            Some(Slot::Kept(kept)) => Some(kept),
            _ => None,
        };
        Ok((kept, Pending { leases: self, owner, stop }))
    }

    /// Waits while `is_busy` is true for the attachment's slot.
    fn wait(
        &self,
        owner: &Owner,
        is_busy: impl Fn(&Slot) -> bool,
    ) -> Result<MutexGuard<'_, HashMap<Owner, Slot>>, CniError> {
        let end = Instant::now() + BUSY_LIMIT;
        let mut table = self.table();
        while table.get(owner).is_some_and(&is_busy) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let msg = format!("timed out waiting for another call of {}", owner.client_id());
                return Err(CniError::new(ErrorCode::TryAgainLater, msg));
            }
            table = self.ended.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(table)
    }

    /// Releases all leases of the network except those of `owners`.
    ///
    /// # Errors
    /// The first error; all other leases were released.
    pub(super) fn retain(&self, network: &str, owners: &[Owner]) -> Result<(), CniError> {
        let mut all: Vec<Owner> = self.table().keys().cloned().collect();
        let names = self.store.list().map_err(|e| CniError::new(ErrorCode::Io, e.to_string()))?;
        // The names of unreadable files count, too.
        all.extend(names.iter().filter_map(|name| Owner::of_file(name.to_str()?)));
        all.retain(|owner| owner.network == network && !owners.contains(owner));
        all.iter().map(|owner| self.release(owner)).fold(Ok(()), Result::and)
    }

    fn forget(&self, owner: &Owner) -> Result<(), CniError> {
        match self.store.remove(owner.file_name()) {
            Ok(_was_there) => Ok(()),
            Err(error) => Err(CniError::new(ErrorCode::Io, error.to_string())),
        }
    }

    fn save(&self, lease: &Lease) -> Result<(), FileError> {
        save(&self.store, lease)
    }

    fn keeper(&self, lease: Arc<Mutex<Lease>>, orders: Receiver<Order>, stop: Arc<AtomicBool>) -> Keeper {
        let store = self.store.clone();
        let save = Box::new(move |lease: &Lease| {
            // The daemon has the renewed lease in memory. If it restarts, it reads the earlier end of the lease from
            // the file.
            if let Err(error) = save(&store, lease) {
                log::error!("{error}");
            }
        });
        Keeper { lease, orders, stop, patience: self.patience, save }
    }

    /// Starts a keeper.
    fn keep(&self, lease: Lease) -> Result<(), KeepError> {
        let owner = lease.owner.clone();
        let (orders, received) = channel();
        let (lease, stop) = (Arc::new(Mutex::new(lease)), Arc::<AtomicBool>::default());
        let keeper = self.keeper(lease.clone(), received, stop.clone());
        let (store, name) = (self.store.clone(), owner.file_name());
        let (shared, whose, its) = (self.table.clone(), owner.clone(), lease.clone());
        let run = move || {
            let end = keeper.run();
            // While the slot is in the table, no other thread writes the file.
            if let Err(error) = store.remove(&name) {
                log::error!("{error}");
            }
            let mut table = locked(&shared);
            // A release may already have taken the slot out, and be waiting for this thread.
            if matches!(table.get(&whose), Some(Slot::Kept(kept)) if Arc::ptr_eq(&kept.lease, &its)) {
                table.remove(&whose);
            }
            end
        };
        // The table is locked before the thread starts, because a thread that ends at once must find its slot.
        let mut table = self.table();
        let thread = Builder::new().name("lease".to_owned()).stack_size(STACK).spawn(run);
        let thread = thread.map_err(|source| KeepError::Thread { client: owner.client_id(), source })?;
        table.insert(owner, Slot::Kept(Kept { lease, orders, stop, thread }));
        Ok(())
    }
}

fn locked(table: &Table) -> MutexGuard<'_, HashMap<Owner, Slot>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a lease's file; none if there is no such file.
pub(super) fn read(store: &DurableDir, name: &OsStr) -> Result<Option<Lease>, FileError> {
    match store.read(name, LARGEST)? {
        Some(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        None => Ok(None),
    }
}

fn save(store: &DurableDir, lease: &Lease) -> Result<(), FileError> {
    let text = serde_json::to_vec(lease)?;
    Ok(store.replace(lease.owner.file_name(), &text, 0o600)?)
}

fn logged(owner: &Owner, error: &ExchangeError) -> CniError {
    log::warn!("{}: {error}", owner.client_id());
    CniError::internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use cni_kernel::boot;
    use nix::errno::Errno;
    use std::net::Ipv4Addr;
    use std::path::PathBuf;

    use super::*;

    const PATIENCE: Patience = Patience {
        timeout: Duration::from_secs(1),
        resend_max: Duration::from_secs(1),
        resend_timeout: Duration::from_secs(1),
        broadcast: false,
    };

    /// A lease that is due for renewal, of a namespace that is gone.
    fn lease_of_gone_netns() -> Lease {
        Lease {
            owner: Owner { network: "n".into(), container: "c".into(), ifname: "eth0".into() },
            netns: PathBuf::from("/run/netns/none-of-that-name"),
            netns_id: (1, 2),
            options: Options::default(),
            address: Ipv4Addr::new(10, 0, 0, 5),
            prefix: 24,
            server: Ipv4Addr::new(10, 0, 0, 1),
            gateway: None,
            routes: Vec::new(),
            boot: boot::id(),
            since: boot::uptime().as_secs(),
            renewal: 0,
            rebinding: 3600,
            expiry: 3600,
        }
    }

    fn leases(root: &tempfile::TempDir) -> Leases {
        let store = DurableDir::create(&root.path().join("dhcp"), 0o700).unwrap();
        Leases::new(store, PATIENCE, String::new())
    }

    /// A DEL runs during an ADD that has its lease and has not replied yet.
    #[test]
    fn the_end_of_an_add_does_not_end_a_del() {
        let root = tempfile::tempdir().unwrap();
        let (leases, lease) = (leases(&root), Lease { renewal: 3600, ..lease_of_gone_netns() });
        let owner = lease.owner.clone();
        let Begun::Request(request) = leases.begin_request(&owner).unwrap() else { panic!("a lease") };
        leases.keep(lease).unwrap();
        let (kept, releasing) = leases.take(&owner).unwrap();
        drop(request);
        assert_eq!(leases.table().len(), 1, "an ADD that comes now does not wait for the DEL");
        drop(releasing);
        assert!(leases.table().is_empty());
        kept.unwrap().orders.send(Order::Release).unwrap();
    }

    #[test]
    fn a_lease_on_disk_gets_one_keeper() {
        let root = tempfile::tempdir().unwrap();
        let (leases, lease) = (leases(&root), Lease { renewal: 3600, ..lease_of_gone_netns() });
        let owner = lease.owner.clone();
        leases.save(&lease).unwrap();
        for malformed in ["n:other:eth0", "no lease"] {
            std::fs::write(leases.store.path().join(malformed), "{}").unwrap();
        }
        let keeper = || match &leases.table()[&owner] {
            Slot::Kept(kept) => Arc::clone(&kept.lease),
            _ => panic!("no keeper"),
        };
        assert!(leases.load(), "another try changes nothing about a malformed file");
        let first = keeper();
        // If the first keeper were replaced, it would release the lease.
        assert!(leases.load() && Arc::ptr_eq(&first, &keeper()));
        assert_eq!(leases.table().len(), 1);
        leases.release(&owner).unwrap();
        assert!(leases.load() && leases.table().is_empty(), "a released lease has no file");
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        let refused = |errno| {
            let path = PathBuf::from("/var/lib/cni/dhcp/n:c:eth0");
            KeepError::File(FileError::File(DirError::System { operation: "open", path, errno }))
        };
        let thread = KeepError::Thread { client: "c/n/eth0".into(), source: Errno::EAGAIN.into() };
        assert!(refused(Errno::EMFILE).is_transient() && thread.is_transient());
        let malformed = serde_json::from_slice::<Lease>(b"{").unwrap_err();
        // A symbolic link.
        assert!(!refused(Errno::ELOOP).is_transient() && !KeepError::File(malformed.into()).is_transient());
    }

    #[test]
    fn a_repeated_add_that_cannot_open_the_namespace_keeps_the_lease() {
        let root = tempfile::tempdir().unwrap();
        let (leases, lease) = (leases(&root), Lease { renewal: 3600, ..lease_of_gone_netns() });
        let owner = lease.owner.clone();
        leases.keep(lease).unwrap();
        let add = |netns: &str| leases.allocate(&owner, Path::new(netns), Options::default()).unwrap_err();
        // It can be opened, but nobody knows what its name led to before.
        add("/proc/self/ns/mnt");
        assert_eq!(leases.table().len(), 1);
        // Now a lease is requested for another namespace, which is missing.
        add("/run/netns/none-of-that-name");
        assert!(leases.table().is_empty());
    }

    #[test]
    fn a_lease_whose_container_is_gone_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let leases = leases(&root);
        leases.save(&lease_of_gone_netns()).unwrap();
        leases.keep(lease_of_gone_netns()).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while !leases.table().is_empty() {
            assert!(Instant::now() < end, "its keeper is still in the table");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(leases.store.list().unwrap().is_empty());
        // A DEL finds nothing.
        leases.release(&lease_of_gone_netns().owner).unwrap();
        assert!(leases.table().is_empty());
    }
}
