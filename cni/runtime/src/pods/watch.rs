// SPDX-License-Identifier: MIT OR Apache-2.0

//! Follows changes of the configuration and plugin directories with inotify(7), on a thread.
//!
//! New watches are added before each reading of the directory, so that no change in between is missed, even after a
//! queue overflow, or if a directory is removed and created again. Where inotify does not work, as with some network
//! file systems, the change is found by reading the directory every [`INTERVAL`].

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use super::directory::{Directory, is_hidden};
use crate::config::{LIST, SINGLE};
use crate::exec::Cancel;
use crate::network::Network;

/// The time after which the directory is read even without an event.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);
/// The time between an event and the reading, because a file that has just been created is not complete yet.
const SETTLE: Duration = Duration::from_millis(10);

/// Starts the thread, which ends when `stop` is cancelled.
pub(crate) fn start(directory: Arc<Directory>, stop: Cancel) -> std::io::Result<JoinHandle<()>> {
    let name = "cni-config".to_owned();
    std::thread::Builder::new().name(name).spawn(move || follow(&directory, &stop))
}

fn follow(directory: &Directory, stop: &Cancel) {
    while !stop.is_cancelled() {
        let targets = targets(directory);
        let watches = Watches::new(&targets);
        if let Err(error) = directory.sync() {
            log::warn!("{error}");
        }
        // The reading may have found networks that have directories of their own.
        if self::targets(directory) != targets {
            continue;
        }
        watches.wait(stop, Instant::now() + INTERVAL);
        rest(stop, SETTLE);
    }
}

/// A directory to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    path: PathBuf,
    content: Content,
}

/// What matters in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    /// Configuration files.
    Configurations,
    /// All files that are not hidden.
    Files,
    /// The next directory on the path to a directory that is missing.
    Entry(OsString),
}

impl Content {
    fn has(&self, name: &OsStr) -> bool {
        let path = Path::new(name);
        match self {
            Self::Configurations => {
                let extension = path.extension();
                // A name without an extension may be the directory of a network.
                !is_hidden(path)
                    && extension.is_none_or(|end| end == LIST || SINGLE.iter().any(|single| end == *single))
            }
            Self::Files => !is_hidden(path) && !name.to_string_lossy().ends_with(['~']),
            Self::Entry(wanted) => name == wanted,
        }
    }
}

/// The directories to watch: that of the configurations, those of networks with files of their own, and those of the
/// plugins. If a directory is missing, its closest existing parent is watched instead.
fn targets(directory: &Directory) -> Vec<Target> {
    let networks = directory.networks();
    let folders = networks.all().map(Network::name).map(|name| directory.path().join(name));
    let folders = folders.filter(|path| path.is_dir());
    let mut all = vec![existing(directory.path(), Content::Configurations)];
    all.extend(folders.map(|path| Target { path, content: Content::Configurations }));
    all.extend(directory.plugin_dirs().iter().map(|path| existing(path, Content::Files)));
    all
}

fn existing(path: &Path, content: Content) -> Target {
    if path.is_dir() {
        return Target { path: path.to_owned(), content };
    }
    let mut missing = path;
    loop {
        let (Some(parent), Some(name)) = (missing.parent(), missing.file_name()) else {
            return Target { path: PathBuf::from("/"), content };
        };
        if parent.is_dir() {
            return Target { path: parent.to_owned(), content: Content::Entry(name.to_owned()) };
        }
        missing = parent;
    }
}

/// An inotify instance with its watches. None if the system has no instance left.
struct Watches<'a> {
    inotify: Option<Inotify>,
    /// Two targets may be the same directory, which then has one descriptor.
    watched: Vec<(WatchDescriptor, &'a Target)>,
}

impl<'a> Watches<'a> {
    fn new(targets: &'a [Target]) -> Self {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
            .map_err(|errno| log::debug!("inotify_init1: {errno}"))
            .ok();
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            // When a plugin is made executable, its attributes change.
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let watched = inotify.iter().flat_map(|inotify| {
            targets.iter().filter_map(move |target| match inotify.add_watch(&target.path, flags) {
                Ok(descriptor) => Some((descriptor, target)),
                Err(errno) => {
                    log::debug!("watch {}: {errno}", target.path.display());
                    None
                }
            })
        });
        let watched = watched.collect();
        Self { inotify, watched }
    }

    /// Waits for a change, until the given time or until `stop` is cancelled.
    fn wait(&self, stop: &Cancel, until: Instant) {
        let Some(inotify) = &self.inotify else { return rest(stop, until - Instant::now()) };
        while !stop.is_cancelled() {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [
                PollFd::new(inotify.as_fd(), PollFlags::POLLIN),
                PollFd::new(stop.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, timeout(left)) {
                Ok(0) => return,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => {
                    log::debug!("poll: {errno}");
                    return rest(stop, left);
                }
            }
            match inotify.read_events() {
                Ok(events) if events.iter().any(|event| self.matters(event)) => return,
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) => {
                    log::debug!("read inotify events: {errno}");
                    return;
                }
            }
        }
    }

    /// True for a change of a file that matters, and for everything that concerns the watches themselves: an
    /// overflow, or a directory that was removed, moved or unmounted.
    fn matters(&self, event: &InotifyEvent) -> bool {
        let Some(name) = &event.name else { return !event.mask.contains(AddWatchFlags::IN_ATTRIB) };
        self.watched.iter().any(|(descriptor, target)| *descriptor == event.wd && target.content.has(name))
    }
}

/// Waits for the given time, or until `stop` is cancelled.
fn rest(stop: &Cancel, time: Duration) {
    let mut fds = [PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
    if let Err(errno) = poll(&mut fds, timeout(time)) {
        log::debug!("poll: {errno}");
    }
}

/// Rounds up, because a wait that ends too early would be repeated without a pause.
fn timeout(time: Duration) -> PollTimeout {
    PollTimeout::try_from(time.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_and_temporary_files_do_not_matter() {
        let has = |content: &Content, name: &str| content.has(OsStr::new(name));
        for name in ["10-a.conflist", "a.conf", "a.json", "pods"] {
            assert!(has(&Content::Configurations, name), "{name}");
        }
        for name in [".10-a.conflist", "10-a.conflist~", "10-a.conflist.tmp", "a.txt", "..data"] {
            assert!(!has(&Content::Configurations, name), "{name}");
        }
        assert!(has(&Content::Files, "bridge") && !has(&Content::Files, ".bridge.new"));
    }

    #[test]
    fn of_a_missing_directory_the_closest_parent_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        let target = existing(&dir.path().join("cni/net.d"), Content::Files);
        assert_eq!(target, Target { path: dir.path().to_owned(), content: Content::Entry("cni".into()) });
        let own = existing(dir.path(), Content::Files);
        assert_eq!((own.path.as_path(), own.content), (dir.path(), Content::Files));
    }
}
