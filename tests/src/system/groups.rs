// SPDX-License-Identifier: GPL-2.0-or-later

//! The control groups of a system, one in each hierarchy.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::ENDING;
use super::root::{make_dir, write};
use crate::pace::within;

/// The name of the control group for daemons below that of the system.
const DAEMONS: &str = "daemons";

/// The prefix of the names of systems' control groups. The process ID of the test follows.
const GROUPS: &str = "slipway-test-";

/// Control groups for an init process, removed on drop. End the init's processes before.
#[derive(Debug)]
pub struct ControlGroups {
    name: String,
    unified: PathBuf,
}

impl ControlGroups {
    /// Makes the control groups. None on a machine without control groups of version 2.
    pub fn make() -> Option<Self> {
        hierarchies().iter().find(|hierarchy| is_unified(hierarchy))?;
        let name = name();
        make(&name);
        let (_, unified) = unified(&name)?;
        Some(Self { name, unified })
    }

    /// The directory of the init's version 2 control group.
    pub fn unified(&self) -> &Path {
        &self.unified
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        remove_within(&self.name, Instant::now());
    }
}

/// Removes the control groups with this name as soon as the kernel permits it, for at most twenty seconds.
pub(super) fn remove_within(name: &str, begin: Instant) {
    while begin.elapsed() < within(ENDING) && !remove(name) {
        thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn make(name: &str) {
    for hierarchy in hierarchies() {
        remove_left(&hierarchy);
        let group = hierarchy.join(name.trim_start_matches('/'));
        make_dir(&group);
        // A new group has neither processors nor memory nodes, and accepts no process without them (cpuset(7)).
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read_to_string(hierarchy.join(file)) {
                write(&group.join(file), all.trim());
            }
        }
        if is_unified(&hierarchy) {
            make_dir(&group.join(DAEMONS));
        }
    }
}

/// The version 2 control group, and the group for daemons below it.
pub(super) fn unified(name: &str) -> Option<(PathBuf, PathBuf)> {
    let root = hierarchies().into_iter().find(|hierarchy| is_unified(hierarchy))?;
    let group = root.join(name.trim_start_matches('/'));
    Some((group.clone(), group.join(DAEMONS)))
}

/// A new name for the control groups of a system.
pub(super) fn name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("/{GROUPS}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The mount points of the hierarchies. There is either one per controller plus the one of version 2, or only the
/// latter.
fn hierarchies() -> Vec<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    if top.join("cgroup.procs").exists() {
        return vec![top.to_owned()];
    }
    let below = fs::read_dir(top).into_iter().flatten().flatten().map(|entry| entry.path());
    below.filter(|dir| dir.join("cgroup.procs").exists()).collect()
}

/// Removes control groups that killed tests have left.
fn remove_left(hierarchy: &Path) {
    for entry in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let process = name.strip_prefix(GROUPS).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // The kernel refuses this while the group contains a process.
            remove_cgroup(&entry.path());
        }
    }
}

fn is_unified(hierarchy: &Path) -> bool {
    hierarchy.join("cgroup.controllers").exists()
}

/// Removes the system's control groups in every hierarchy (one per controller, or the one of version 2). Returns true
/// if nothing is left.
fn remove(name: &str) -> bool {
    let top = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(top).into_iter().flatten().flatten().map(|entry| entry.path());
    let groups = hierarchies.chain([top.to_owned()]).map(|dir| dir.join(name.trim_start_matches('/')));
    groups.filter(|group| group.is_dir() && !remove_cgroup(group)).count() == 0
}

fn remove_cgroup(group: &Path) -> bool {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    fs::remove_dir(group).is_ok()
}
