//! All leases of the node: in memory, where each has a keeper, and on disk, where each has a file.
//!
//! A lease is on disk before a plugin hears of it, and the file goes after the server has heard that it is
//! given back: a daemon that is started again goes on where the last one was killed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use cni_kernel::boot;
use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::netns::Netns;
use cni_spec::{AddResult, CniError, ErrorCode};

use super::config::on_host;
use super::exchange::ExchangeError;
use super::keeper::{self, End, Keeper, Order, Patience};
use super::lease::{Lease, Owner};
use super::message::Options;

/// The file that a daemon holds a lock on. The name of a lease's file has colons.
pub(super) const LOCK: &str = "lock";
/// The stack of a thread, in bytes: packet buffers are on it, and little else.
pub(super) const STACK: usize = 256 << 10;
/// The largest file of a lease, in bytes.
const LARGEST: usize = 1 << 20;
/// How long another call for the same attachment is waited for, when it is to stop or gives a lease back.
const TO_STOP: Duration = Duration::from_secs(20);

/// All leases.
pub(super) struct Leases {
    host_prefix: String,
    patience: Patience,
    store: Arc<DurableDir>,
    table: Arc<Table>,
    /// Told when somebody's [`Turn`] is over.
    turned: Condvar,
}

type Table = Mutex<HashMap<Owner, Slot>>;

/// Why a file says nothing of a lease.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    File(#[from] DirError),
    #[error(transparent)]
    Content(#[from] serde_json::Error),
}

/// What there is of an attachment.
enum Slot {
    /// A server is being asked. Set when somebody wants it to end.
    Asking(Arc<AtomicBool>),
    /// A lease is kept.
    Kept(Kept),
    /// It is being given back, by the call that has this mark.
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

/// The place in the table of a call that asks for a lease or gives it back, however the call ends. An
/// attachment has one such place at most.
struct Turn<'a> {
    leases: &'a Leases,
    owner: &'a Owner,
    /// Set when it is to end, and what the place is told apart by from that of the next call.
    stop: Arc<AtomicBool>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut table = self.leases.table();
        if let Some(Slot::Asking(mark) | Slot::Releasing(mark)) = table.get(self.owner)
            && Arc::ptr_eq(mark, &self.stop)
        {
            table.remove(self.owner);
        }
        self.leases.turned.notify_all();
    }
}

impl Leases {
    pub(super) fn new(store: DurableDir, patience: Patience, host_prefix: String) -> Self {
        let (table, turned) = (Arc::default(), Condvar::new());
        Self { host_prefix, patience, store: Arc::new(store), table, turned }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Owner, Slot>> {
        locked(&self.table)
    }

    /// Goes on with the leases on the disk.
    pub(super) fn take_up(&self) {
        let swept = self.store.remove_temporaries().and_then(|_count| self.store.list());
        let names = swept.unwrap_or_else(|error| {
            log::error!("{error}");
            Vec::new()
        });
        let boot = boot::id();
        for name in names.iter().filter(|name| *name != LOCK) {
            match read(&self.store, name) {
                Ok(None) => {}
                Ok(Some(lease)) if **name != *lease.owner.file_name() || lease.owner.checked().is_err() => {
                    log::error!("{name:?} is of {}, left alone", lease.owner.client_id());
                }
                Ok(Some(lease)) if lease.boot != boot => {
                    log::info!("{}: gone with the machine's last run", lease.owner.client_id());
                    if let Err(error) = self.store.remove(name) {
                        log::error!("{error}");
                    }
                }
                Ok(Some(lease)) => {
                    log::info!("{}: keeping {} as before", lease.owner.client_id(), lease.address);
                    if let Err(error) = self.keep(lease) {
                        log::error!("{error}");
                    }
                }
                Err(error) => log::error!("{name:?}, left alone: {error}"),
            }
        }
    }

    /// The attachment's lease in this namespace: the one that it has, or a new one.
    ///
    /// # Errors
    /// Code 11 when an ADD of the attachment is waiting for a server already.
    pub(super) fn allocate(
        &self,
        owner: &Owner,
        netns: &Path,
        options: Options,
    ) -> Result<AddResult, CniError> {
        let who = owner.client_id();
        let path = on_host(&self.host_prefix, netns);
        let asking = loop {
            let old = match self.start_asking(owner)? {
                Ok(asking) => break asking,
                Err(old) => old,
            };
            if Netns::open(&path).is_ok_and(|netns| (netns.id().dev, netns.id().ino) == old.netns_id) {
                return Ok(old.result());
            }
            // The container was started again, and nobody said DEL.
            log::info!("{who}: {} was another container's", old.address);
            self.release(owner)?;
        };
        log::info!("{who}: asking for a lease");
        let acquired = keeper::acquire(owner, &path, options, self.patience, &asking.stop);
        let lease = acquired.map_err(|error| told(owner, &error))?;
        log::info!("{who}: {} for {} s", lease.address, lease.expiry);
        let result = lease.result();
        let kept = self.save(&lease).and_then(|()| self.keep(lease.clone()));
        if let Err(error) = kept {
            log::error!("{who}: {error}");
            let (_orders, received) = channel();
            self.keeper(Arc::new(Mutex::new(lease)), received, Arc::default()).release();
            self.forget(owner)?;
            return Err(CniError::new(ErrorCode::Io, error));
        }
        let stopped = asking.stop.load(Ordering::Relaxed);
        drop(asking);
        if stopped {
            // A DEL came at the last moment.
            self.release(owner)?;
            return Err(told(owner, &ExchangeError::Stopped));
        }
        Ok(result)
    }

    /// A place in the table for an ADD; or the lease that is there.
    fn start_asking<'a>(&'a self, owner: &'a Owner) -> Result<Result<Turn<'a>, Lease>, CniError> {
        let mut table = self.wait(owner, |slot| matches!(slot, Slot::Releasing(_)))?;
        match table.get(owner) {
            Some(Slot::Kept(kept)) if !kept.thread.is_finished() => Ok(Err(kept.lease())),
            Some(Slot::Asking(_)) => {
                let msg = format!("a server is being asked for {} already", owner.client_id());
                Err(CniError::new(ErrorCode::TryAgainLater, msg))
            }
            _ => {
                let stop = Arc::<AtomicBool>::default();
                table.insert(owner.clone(), Slot::Asking(stop.clone()));
                Ok(Ok(Turn { leases: self, owner, stop }))
            }
        }
    }

    /// Has the attachment's lease renewed, which is not waited for, and says what it is.
    ///
    /// # Errors
    /// The attachment has no lease.
    pub(super) fn renew(&self, owner: &Owner) -> Result<AddResult, CniError> {
        match self.table().get(owner) {
            Some(Slot::Kept(kept)) if !kept.thread.is_finished() => {
                // A keeper that has just ended says so by the next call.
                let _sent = kept.orders.send(Order::Renew);
                Ok(kept.lease().result())
            }
            _ => Err(CniError::internal(format!("there is no lease for {}", owner.client_id()))),
        }
    }

    /// Gives the attachment's lease back, if there is one.
    ///
    /// # Errors
    /// Code 11 when another call is busy with it for long; code 5 when the file does not go.
    pub(super) fn release(&self, owner: &Owner) -> Result<(), CniError> {
        let (kept, _turn) = self.take(owner)?;
        if let Some(kept) = kept {
            // What it is at ends soon.
            kept.stop.store(true, Ordering::Relaxed);
            let _sent = kept.orders.send(Order::Release);
            if kept.thread.join().is_err() {
                return Err(CniError::internal(format!("the keeper of {} failed", owner.client_id())));
            }
        }
        // Of a keeper that could not, or one that could not be read.
        self.forget(owner)
    }

    /// Takes an attachment's lease out of the table, when nobody asks for it or gives it back any more.
    fn take<'a>(&'a self, owner: &'a Owner) -> Result<(Option<Kept>, Turn<'a>), CniError> {
        let mut table = self.wait(owner, |slot| match slot {
            Slot::Asking(stop) => {
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
        Ok((kept, Turn { leases: self, owner, stop }))
    }

    /// Waits as long as an attachment's place is one that `is_busy` says is another call's.
    fn wait(
        &self,
        owner: &Owner,
        is_busy: impl Fn(&Slot) -> bool,
    ) -> Result<MutexGuard<'_, HashMap<Owner, Slot>>, CniError> {
        let end = Instant::now() + TO_STOP;
        let mut table = self.table();
        while table.get(owner).is_some_and(&is_busy) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let msg = format!("another call is busy with {}", owner.client_id());
                return Err(CniError::new(ErrorCode::TryAgainLater, msg));
            }
            table = self.turned.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(table)
    }

    /// Gives back all leases of the network but those of `owners`.
    ///
    /// # Errors
    /// The first one that could not be given back; all others were.
    pub(super) fn retain(&self, network: &str, owners: &[Owner]) -> Result<(), CniError> {
        let mut all: Vec<Owner> = self.table().keys().cloned().collect();
        let names = self.store.list().map_err(|e| CniError::new(ErrorCode::Io, e.to_string()))?;
        // Also files that nobody could read.
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

    fn save(&self, lease: &Lease) -> Result<(), String> {
        save(&self.store, lease)
    }

    fn keeper(&self, lease: Arc<Mutex<Lease>>, orders: Receiver<Order>, stop: Arc<AtomicBool>) -> Keeper {
        let store = self.store.clone();
        let save = Box::new(move |lease: &Lease| {
            // It is kept all the same: the next daemon will think that it ends earlier.
            if let Err(error) = save(&store, lease) {
                log::error!("{error}");
            }
        });
        Keeper { lease, orders, stop, patience: self.patience, save }
    }

    /// Starts a keeper.
    fn keep(&self, lease: Lease) -> Result<(), String> {
        let owner = lease.owner.clone();
        let (orders, received) = channel();
        let (lease, stop) = (Arc::new(Mutex::new(lease)), Arc::<AtomicBool>::default());
        let keeper = self.keeper(lease.clone(), received, stop.clone());
        let (store, name) = (self.store.clone(), owner.file_name());
        let (shared, whose, its) = (self.table.clone(), owner.clone(), lease.clone());
        let run = move || {
            let end = keeper.run();
            // As long as the place in the table is there nobody else writes the file.
            if let Err(error) = store.remove(&name) {
                log::error!("{error}");
            }
            let mut table = locked(&shared);
            // Somebody may be taking it out already, who waits for this thread.
            if matches!(table.get(&whose), Some(Slot::Kept(kept)) if Arc::ptr_eq(&kept.lease, &its)) {
                table.remove(&whose);
            }
            end
        };
        // A thread that ends at once finds its place nevertheless.
        let mut table = self.table();
        let thread = Builder::new().name("lease".to_owned()).stack_size(STACK).spawn(run);
        let thread = thread.map_err(|e| format!("start a thread for {}: {e}", owner.client_id()))?;
        table.insert(owner, Slot::Kept(Kept { lease, orders, stop, thread }));
        Ok(())
    }
}

fn locked(table: &Table) -> MutexGuard<'_, HashMap<Owner, Slot>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lease in a file; none when there is no such file.
pub(super) fn read(store: &DurableDir, name: &OsStr) -> Result<Option<Lease>, ReadError> {
    match store.read(name, LARGEST)? {
        Some(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        None => Ok(None),
    }
}

fn save(store: &DurableDir, lease: &Lease) -> Result<(), String> {
    let text = serde_json::to_vec(lease).map_err(|e| e.to_string())?;
    store.replace(lease.owner.file_name(), &text, 0o600).map_err(|e| e.to_string())
}

fn told(owner: &Owner, error: &ExchangeError) -> CniError {
    log::warn!("{}: {error}", owner.client_id());
    CniError::internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::PathBuf;

    use super::*;

    const PATIENCE: Patience = Patience {
        timeout: Duration::from_secs(1),
        resend_max: Duration::from_secs(1),
        resend_timeout: Duration::from_secs(1),
        broadcast: false,
    };

    /// A lease that is to be renewed at once, of a namespace that is gone.
    fn of_nobody() -> Lease {
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

    /// A DEL that comes when an ADD has its lease and is about to say so.
    #[test]
    fn the_end_of_an_add_does_not_end_a_del() {
        let root = tempfile::tempdir().unwrap();
        let (leases, lease) = (leases(&root), Lease { renewal: 3600, ..of_nobody() });
        let owner = lease.owner.clone();
        let asking = leases.start_asking(&owner).unwrap().unwrap();
        leases.keep(lease).unwrap();
        let (kept, releasing) = leases.take(&owner).unwrap();
        drop(asking);
        assert_eq!(leases.table().len(), 1, "an ADD that comes now does not wait for the DEL");
        drop(releasing);
        assert!(leases.table().is_empty());
        kept.unwrap().orders.send(Order::Release).unwrap();
    }

    #[test]
    fn of_a_lease_whose_container_went_nothing_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let leases = leases(&root);
        leases.save(&of_nobody()).unwrap();
        leases.keep(of_nobody()).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while !leases.table().is_empty() {
            assert!(Instant::now() < end, "its keeper is still in the table");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(leases.store.list().unwrap().is_empty());
        // Nothing is left that a DEL would have to find.
        leases.release(&of_nobody().owner).unwrap();
        assert!(leases.table().is_empty());
    }
}
