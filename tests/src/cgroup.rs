// SPDX-License-Identifier: GPL-2.0-or-later

//! A control group of a node's own, below the one that the test is in.
//!
//! It is a threaded one, so that single threads of a test can be in it: those that run in the node's spaces.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::unistd::gettid;

/// A control group, removed when it is dropped unless a process is still in it.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    /// As the test sees it.
    path: PathBuf,
    /// Below the root of the hierarchy.
    pub(crate) below_root: PathBuf,
}

impl ControlGroup {
    /// Makes a control group below this process's own; none without a hierarchy of version 2.
    ///
    /// # Errors
    /// `/proc/self` cannot be read, or the kernel refuses the group.
    pub(crate) fn new() -> io::Result<Option<Self>> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let Some((root, own)) = hierarchy()? else { return Ok(None) };
        // A killed test of an earlier process with this number may have left its own.
        const ATTEMPTS: usize = 100;
        let mut attempt = 0;
        let made = loop {
            attempt += 1;
            let name = format!("slipway-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
            let below_root = own.join(name);
            let path = root.join(&below_root);
            match fs::create_dir(&path) {
                Ok(()) => break Self { path, below_root },
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS => {}
                Err(e) => return Err(e),
            }
        };
        fs::write(made.path.join("cgroup.type"), "threaded")?;
        Ok(Some(made))
    }

    /// Moves the calling thread there for good.
    pub(crate) fn enter(&self) {
        let file = self.path.join("cgroup.threads");
        fs::write(&file, gettid().to_string()).unwrap_or_else(|e| panic!("write to {}: {e}", file.display()));
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

/// The mount point of the hierarchy of version 2, and the test's own control group below it.
fn hierarchy() -> io::Result<Option<(PathBuf, PathBuf)>> {
    // proc_pid_mountinfo(5): the fifth field is the mount point; the type comes after a dash.
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let is_unified =
        |line: &&str| line.split_once(" - ").is_some_and(|(_, rest)| rest.starts_with("cgroup2 "));
    let mounted = mounts.lines().find(is_unified).and_then(|line| line.split(' ').nth(4));
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(mounted.zip(own).map(|(root, own)| (Path::new(root).to_owned(), Path::new(own).to_owned())))
}
