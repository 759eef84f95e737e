// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway dhcp daemon`: keeps the leases of all containers of the node, with one thread for each lease and
//! one for each running call.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use cni_kernel::activation::{self, ActivationError};
use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::lock::{FileLock, LockError};
use cni_spec::{CniError, ErrorCode};
use nix::sys::stat::{Mode, umask};

use super::config::on_host;
pub use super::config::{SOCKET, STATE};
use super::keeper::Patience;
use super::lease::Owner;
use super::leases::{LOCK, Leases, STACK};
use super::protocol::{self, Reply, Request};

/// The options of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub pid_file: Option<PathBuf>,
    /// The host's root directory, if the daemon is in a container.
    pub host_prefix: String,
    pub socket: PathBuf,
    /// The directory of the leases.
    pub state: PathBuf,
    /// The time to wait for a server's reply.
    pub timeout: Duration,
    /// The longest time between two requests.
    pub resend_max: Duration,
    /// The time after which an ADD fails.
    pub resend_timeout: Duration,
    /// Servers are asked to reply by broadcast.
    pub broadcast: bool,
}

/// The limit of concurrent calls; more wait in the socket's queue.
const MAX_CALLS: usize = 512;
/// The time limit for a caller's request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// The time between two attempts to keep the leases for which the system was short of something.
const LOAD_PAUSE: Duration = Duration::from_secs(60);
/// The time limit for the lock of an earlier daemon that is ending.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// The reasons why the daemon does not start. Texts that begin with a capital are those of the reference's daemon.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("Error getting listener: {0}")]
    Inherited(#[source] ActivationError),
    #[error("Error getting listener: {0}")]
    Listener(#[source] io::Error),
    #[error("Error writing pidfile {0:?}: path not absolute")]
    RelativePidFile(PathBuf),
    #[error("Error writing pidfile {0:?}: {1}")]
    PidFile(PathBuf, #[source] io::Error),
    #[error("-statedir {0:?} is not the path of a folder")]
    NoFolder(PathBuf),
    #[error(transparent)]
    State(#[from] DirError),
    #[error("another daemon keeps these leases: {0}")]
    Lock(#[source] LockError),
    #[error("start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// Serves until the process is killed.
pub fn run(options: &Options) -> Result<(), StartError> {
    let on_host = |path: &Path| on_host(&options.host_prefix, path);
    let inherited = activation::listener().map_err(StartError::Inherited)?;
    if let Some(path) = options.pid_file.as_ref().filter(|path| !path.is_absolute()) {
        return Err(StartError::RelativePidFile(path.clone()));
    }
    let store = open_state(&on_host(&options.state))?;
    // The lock is held until the process ends, because two daemons would keep the same leases.
    let _lock = FileLock::acquire(&store, LOCK, 0o600, LOCK_LIMIT).map_err(StartError::Lock)?;
    let listener = match inherited {
        Some(listener) => listener,
        None => listen(&on_host(&options.socket)).map_err(StartError::Listener)?,
    };
    // Written only now, because the file may belong to another daemon.
    if let Some(path) = &options.pid_file {
        write_pid(path).map_err(|error| StartError::PidFile(path.clone(), error))?;
    }
    let patience = Patience {
        timeout: options.timeout,
        resend_max: options.resend_max,
        resend_timeout: options.resend_timeout,
        broadcast: options.broadcast,
    };
    if let Err(error) = store.remove_temporaries() {
        log::warn!("{error}");
    }
    let leases = Arc::new(Leases::new(store, patience, options.host_prefix.clone()));
    load(&leases)?;
    log::info!("ready");
    serve(&leases, &listener);
    Ok(())
}

/// Starts keepers for the leases on disk. For those that the system cannot keep now, a thread tries again until it can,
/// because otherwise nobody would renew them, and the server would give away the addresses of running containers.
fn load(leases: &Arc<Leases>) -> Result<(), StartError> {
    let (incomplete, wanted) = channel();
    let later = leases.clone();
    let again = move || {
        if wanted.recv().is_err() {
            return; // All leases are kept.
        }
        loop {
            std::thread::sleep(LOAD_PAUSE);
            if later.load() {
                return;
            }
        }
    };
    // Started first, because the keepers may use up all threads.
    Builder::new().name("load".to_owned()).stack_size(STACK).spawn(again).map_err(StartError::Thread)?;
    if !leases.load() {
        // The thread waits for this.
        let _sent = incomplete.send(());
    }
    Ok(())
}

/// Writes the process ID. Only the owner may write the file, whatever the umask is.
fn write_pid(path: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(std::process::id().to_string().as_bytes())
}

/// Opens the folder of leases, which only root may read; makes it if missing.
fn open_state(path: &Path) -> Result<DurableDir, StartError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(StartError::NoFolder(path.to_owned()));
    };
    Ok(DurableDir::create(parent, 0o755)?.subdir(name, 0o700)?)
}

/// Makes the socket, for root only. Replaces one that refuses connections.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        DurableDir::create(folder, 0o755).map_err(io::Error::other)?;
    }
    let is_stale = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_stale {
        std::fs::remove_file(path)?;
    }
    // The umask limits the mode from the start. No other thread makes files yet.
    let before = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    umask(before);
    listener
}

/// Answers calls, each on a thread of its own.
fn serve(leases: &Arc<Leases>, listener: &UnixListener) {
    let calls = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            // The process may be out of file descriptors, for instance, until a call ends.
            Err(error) => {
                log::error!("accept a call: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        while calls.load(Ordering::Relaxed) >= MAX_CALLS {
            std::thread::sleep(Duration::from_millis(10));
        }
        let call = Call::new(&calls);
        let leases = leases.clone();
        let started = Builder::new().name("call".to_owned()).stack_size(STACK).spawn(move || {
            answer(&leases, stream);
            drop(call);
        });
        if let Err(error) = started {
            log::error!("start a thread: {error}");
        }
    }
}

/// A running call: counted until it is dropped.
struct Call(Arc<AtomicUsize>);

impl Call {
    fn new(calls: &Arc<AtomicUsize>) -> Self {
        calls.fetch_add(1, Ordering::Relaxed);
        Self(calls.clone())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(leases: &Arc<Leases>, mut stream: UnixStream) {
    let reply = match request(&mut stream).and_then(|request| carry_out(leases, request)) {
        Ok(reply) => reply,
        Err(error) => Reply::Failed(error),
    };
    // The plugin may have been killed; its DEL releases the lease.
    if let Err(error) = protocol::write(&mut stream, &reply) {
        log::info!("answer a call: {error}");
    }
}

fn request(stream: &mut UnixStream) -> Result<Request, CniError> {
    let failed = |what: &str| CniError::new(ErrorCode::Io, format!("DHCP socket: {what}"));
    for set in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
        set(stream, Some(REQUEST_LIMIT)).map_err(|e| failed(&e.to_string()))?;
    }
    // Read before the check: closing a socket with unread data would discard the reply.
    let line = protocol::read_line(stream);
    protocol::expect_root(stream).map_err(|error| failed(&error.to_string()))?;
    protocol::parse(&line.map_err(|e| protocol::failed("read from", &e))?)
}

fn carry_out(leases: &Arc<Leases>, request: Request) -> Result<Reply, CniError> {
    let valid = |owner: &Owner| owner.checked().map_err(CniError::from);
    match request {
        Request::Ping => Ok(Reply::done()),
        Request::Allocate { owner, netns, options } => {
            valid(&owner)?;
            Ok(Reply::result(&leases.allocate(&owner, &netns, options)?))
        }
        Request::Renew { owner } => {
            valid(&owner)?;
            Ok(Reply::result(&leases.renew(&owner)?))
        }
        Request::Release { owner } => {
            valid(&owner)?;
            leases.release(&owner).map(|()| Reply::done())
        }
        Request::Retain { network, owners } => leases.retain(&network, &owners).map(|()| Reply::done()),
    }
}
