// SPDX-License-Identifier: GPL-2.0-or-later

//! A process that closes the netfilter sockets of calls that have ended, once no more calls end.
//!
//! The reason is in [`deferred_close`]. A DEL starts the process; the calls that end while it runs send their sockets to it.
//! Nothing depends on the process: without it, the kernel closes the sockets when the processes that opened them end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cni_dataplane::RUN_DIR;
use cni_dataplane::deferred_close::{self, Deferred};
use cni_kernel::dir::DurableDir;
use cni_kernel::process::without_other_descriptors;
use cni_kernel::unix;

/// The name of the process, by which the binary recognises its task.
pub const NAME: &str = "slipway-close-sockets";
const SOCKET: &str = "/run/slipway/closing.sock";
/// The process ends when no socket has arrived for this long; the kernel frees deleted objects in less time.
const QUIET: Duration = Duration::from_millis(100);
/// The process lives no longer than this.
const LIFE: Duration = Duration::from_secs(5);
/// The most sockets that the process keeps open, below a process's usual limit of 1024.
const MOST: usize = 900;

/// Sends the sockets of this call to the process that closes them. If there is none, a DEL that has changed a ruleset
/// starts one.
pub fn hand_over(is_del: bool) {
    let Deferred { sockets, has_committed } = deferred_close::take();
    if sockets.is_empty() || unix::send_descriptors(Path::new(SOCKET), &sockets).is_ok() {
        return;
    }
    if is_del
        && has_committed
        && let Err(error) = start(&sockets)
    {
        log::debug!("start {NAME}: {error}");
    }
}

/// Starts the process. If two calls start one at the same time, the first one gets no more sockets and soon ends.
fn start(sockets: &[OwnedFd]) -> io::Result<()> {
    DurableDir::create(Path::new(RUN_DIR), 0o755).map_err(io::Error::other)?;
    let inbox = unix::bind(Path::new(SOCKET), |path| UnixDatagram::bind(path))?;
    inbox.set_read_timeout(Some(QUIET))?;
    unix::send_descriptors(Path::new(SOCKET), sockets)?;
    let mut command = Command::new("/proc/self/exe");
    // The runtime waits for the end of the plugin's output, and may signal its process group.
    command.stdin(OwnedFd::from(inbox)).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    without_other_descriptors(&mut command);
    command.arg0(NAME).env_clear().current_dir("/").spawn().map(drop)
}

/// Receives sockets on standard input until no more arrive. The kernel closes all of them when the process ends.
pub fn close_sockets() -> io::Result<()> {
    let inbox = UnixDatagram::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (begun, mut sockets) = (Instant::now(), Vec::new());
    while begun.elapsed() < LIFE && sockets.len() < MOST {
        match unix::receive_descriptors(&inbox) {
            Ok(more) => sockets.extend(more),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
