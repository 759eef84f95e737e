//! `slipway dhcp daemon`: keeps the leases of all containers of the node.
//!
//! One thread for each lease and one for each call that is being answered.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;
use std::time::Duration;

use cni_kernel::activation;
use cni_kernel::dir::DurableDir;
use cni_kernel::lock::FileLock;
use cni_spec::{CniError, ErrorCode};
use nix::sys::stat::{Mode, umask};

use super::flags::Flags;
use super::keeper::Patience;
use super::lease::Owner;
use super::leases::{LOCK, Leases, STACK};
use super::protocol::{self, Reply, Request};

/// Arguments of the command.
pub const USAGE: &str = "daemon [-pidfile PATH] [-hostprefix PATH] [-socketpath PATH] [-statedir PATH] [-timeout 10s] [-resendmax 62s] [-resendtimeout 208s] [-broadcast]";

/// How many calls are answered at a time; more wait in the socket's queue.
const MOST_CALLS: usize = 512;
/// How long a caller has to say what it wants.
const TO_SAY: Duration = Duration::from_secs(10);
/// How long a daemon that is about to end is waited for.
const PREDECESSOR: Duration = Duration::from_secs(5);

/// Runs `slipway dhcp ARGS` and `dhcp daemon`.
pub fn dhcp_command(args: &[String], _out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let told = |text: &str, code: u8, err: &mut dyn Write| writeln!(err, "{text}").map_or(1, |()| code);
    let flags = match args.split_first() {
        Some((word, flags)) if word == "daemon" => Flags::parse(flags),
        _ => Err("the one thing to do is `daemon`".to_owned()),
    };
    let flags = match flags {
        Ok(flags) => flags,
        Err(text) => return told(&format!("slipway dhcp: {text}\nusage: slipway dhcp {USAGE}"), 2, err),
    };
    match run(&flags) {
        Ok(()) => 0,
        Err(text) => told(&format!("slipway dhcp: {text}"), 1, err),
    }
}

/// Serves until the process is killed.
fn run(flags: &Flags) -> Result<(), String> {
    let inherited = activation::listener().map_err(|e| format!("Error getting listener: {e}"))?;
    if let Some(path) = flags.pid_file.as_ref().filter(|path| !path.is_absolute()) {
        return Err(format!("Error writing pidfile {path:?}: path not absolute"));
    }
    let store = open_state(&flags.on_host(&flags.state))?;
    // Two daemons would take the same leases for theirs. Kept as long as the process lives.
    let _lock = FileLock::acquire(&store, LOCK, 0o600, PREDECESSOR)
        .map_err(|e| format!("another daemon keeps these leases: {e}"))?;
    let listener = match inherited {
        Some(listener) => listener,
        None => listen(&flags.on_host(&flags.socket)).map_err(|e| format!("Error getting listener: {e}"))?,
    };
    // Now that nothing keeps it from running: the file may be that of another daemon.
    if let Some(path) = &flags.pid_file {
        write_pid(path).map_err(|e| format!("Error writing pidfile {path:?}: {e}"))?;
    }
    let patience = Patience {
        timeout: flags.timeout,
        resend_max: flags.resend_max,
        resend_timeout: flags.resend_timeout,
        broadcast: flags.broadcast,
    };
    let leases = Arc::new(Leases::new(store, patience, flags.host_prefix.clone()));
    leases.take_up();
    log::info!("ready");
    serve(&leases, &listener);
    Ok(())
}

/// Whatever the umask, nobody else writes it.
fn write_pid(path: &Path) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    file.write_all(std::process::id().to_string().as_bytes())
}

/// The folder of leases, for root alone; those above it are everybody's to see.
fn open_state(path: &Path) -> Result<DurableDir, String> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(format!("-statedir {path:?} names no folder"));
    };
    DurableDir::create(parent, 0o755).and_then(|parent| parent.subdir(name, 0o700)).map_err(|e| e.to_string())
}

/// Makes the socket, for root alone. One that nobody answers on any more is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        DurableDir::create(folder, 0o755).map_err(io::Error::other)?;
    }
    let is_stale = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_stale {
        std::fs::remove_file(path)?;
    }
    // From the first moment on; there is no other thread yet that would make files.
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
            // Out of descriptors, for instance: others may close theirs.
            Err(error) => {
                log::error!("accept a call: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        while calls.load(Ordering::Relaxed) >= MOST_CALLS {
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

/// A call that is being answered, however that ends.
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
    // A plugin that was killed does not listen any more; its DEL finds the lease.
    if let Err(error) = protocol::write(&mut stream, &reply) {
        log::info!("answer a call: {error}");
    }
}

fn request(stream: &mut UnixStream) -> Result<Request, CniError> {
    let failed = |what: &str| CniError::new(ErrorCode::Io, format!("DHCP socket: {what}"));
    for set in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
        set(stream, Some(TO_SAY)).map_err(|e| failed(&e.to_string()))?;
    }
    // Read in any case: an answer is lost when a socket is closed that something waits in.
    let line = protocol::read_line(stream);
    protocol::expect_root(stream).map_err(|text| failed(&text))?;
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
