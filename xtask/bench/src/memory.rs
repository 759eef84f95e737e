// SPDX-License-Identifier: MIT OR Apache-2.0

//! The memory of running processes, from `smaps_rollup` in proc(5).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use xtask_base::error::{Error, Result};

/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Processes whose memory is added up.
#[derive(Debug)]
pub(crate) enum Measured {
    Process(u32),
    /// This process's children that execute a file.
    ChildrenOf(PathBuf),
}

/// The memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Resident, with pages that other processes have, too.
    pub(crate) resident_bytes: u64,
    /// Likewise, with each shared page divided by the number of its processes.
    pub(crate) proportional_bytes: u64,
    /// Pages that no other process has.
    pub(crate) private_bytes: u64,
}

/// Runs `body`, and returns the peak of the sum of the processes' proportional sizes during it.
pub(crate) fn peak_during(measured: &Measured, body: impl FnOnce() -> Result<()>) -> Result<u64> {
    let done = AtomicBool::new(false);
    let peak = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = 0;
            while !done.load(Ordering::Relaxed) {
                // A process that has ended adds nothing.
                let sizes = measured.processes().into_iter().filter_map(of_process);
                peak = peak.max(sizes.map(|memory| memory.proportional_bytes).sum::<u64>());
                thread::sleep(PAUSE);
            }
            peak
        });
        let result = body();
        done.store(true, Ordering::Relaxed);
        let peak = watcher.join().unwrap_or(0);
        result.map(|()| peak)
    })?;
    if peak == 0 {
        return Err(Error::Failed("the memory of no process could be read".to_owned()));
    }
    Ok(peak)
}

impl Measured {
    fn processes(&self) -> Vec<u32> {
        let file = match self {
            Self::Process(id) => return vec![*id],
            Self::ChildrenOf(file) => file,
        };
        let mut found = Vec::new();
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
        // Before its exec(2), a child has this process's memory.
        found.retain(|id| fs::read_link(format!("/proc/{id}/exe")).is_ok_and(|exe| exe == *file));
        found
    }
}

/// The memory of a process; none if it has ended.
pub(crate) fn of_process(id: u32) -> Option<Memory> {
    memory_in(&fs::read_to_string(Path::new("/proc").join(id.to_string()).join("smaps_rollup")).ok()?)
}

fn memory_in(text: &str) -> Option<Memory> {
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some(Memory {
        resident_bytes: bytes("Rss")?,
        proportional_bytes: bytes("Pss")?,
        private_bytes: bytes("Private_Clean")? + bytes("Private_Dirty")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_the_rollup() {
        let text = "5-7 ---p 0 00:00 0  [rollup]\nRss:    100 kB\nPss:     40 kB\nPss_Dirty:  9 kB\n\
                    Private_Clean:  3 kB\nPrivate_Dirty:  20 kB\n";
        let memory = memory_in(text).unwrap();
        let kib = |n: u64| n * 1024;
        assert_eq!(
            (memory.resident_bytes, memory.proportional_bytes, memory.private_bytes),
            (kib(100), kib(40), kib(23))
        );
        assert_eq!(memory_in("Rss: 100 kB\n"), None);
        assert!(of_process(std::process::id()).is_some_and(|own| own.private_bytes > 0));
    }

    #[test]
    fn only_children_that_execute_the_file_are_measured() {
        let sleep = xtask_base::run::which("sleep").and_then(|path| path.canonicalize().ok()).unwrap();
        let mut child = std::process::Command::new(&sleep).arg("60").spawn().unwrap();
        let seen = || Measured::ChildrenOf(sleep.clone()).processes().contains(&child.id());
        let is_seen = (0..500).any(|_| {
            thread::sleep(PAUSE);
            seen()
        });
        let other = Measured::ChildrenOf("/no/such/file".into()).processes();
        let peak = peak_during(&Measured::ChildrenOf("/no/such/file".into()), || Ok(()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_seen && other.is_empty() && peak.is_err());
    }
}
