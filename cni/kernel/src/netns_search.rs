// SPDX-License-Identifier: MIT OR Apache-2.0

//! Searches for namespaces whose path is unknown or gone. A namespace is kept alive by a process in it, by an open
//! descriptor, or by a mount of its file.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::netns::NetnsId;

/// How the target of a namespace link in /proc begins, and the root of a namespace in a list of mounts.
const NET: &str = "net:[";

/// Finds a path to each of these namespaces, if a process of this PID namespace is in it, has it open, or sees it
/// mounted. Reads all of `/proc`. A namespace that only a socket keeps alive is not found.
///
/// # Errors
/// The system's error if a process must not be inspected, in which case the search proves nothing.
pub fn find(wanted: &BTreeSet<NetnsId>) -> io::Result<BTreeMap<NetnsId, PathBuf>> {
    let mut search = Search { wanted, found: BTreeMap::new(), mounts: BTreeSet::new() };
    for pid in numbers(Path::new("/proc"))? {
        match search.look_at(&Path::new("/proc").join(pid.to_string())) {
            // Process 1 belongs to the node itself, and inspecting it may require more rights.
            Err(error) if pid != 1 || error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    Ok(search.found)
}

struct Search<'a> {
    wanted: &'a BTreeSet<NetnsId>,
    found: BTreeMap<NetnsId, PathBuf>,
    /// The mount namespaces that were searched.
    mounts: BTreeSet<(u64, u64)>,
}

impl Search<'_> {
    fn look_at(&mut self, process: &Path) -> io::Result<()> {
        let tasks = process.join("task");
        for thread in numbers(&tasks)? {
            self.note(tasks.join(format!("{thread}/ns/net")))?;
        }
        let descriptors = process.join("fd");
        for number in numbers(&descriptors)? {
            let path = descriptors.join(number.to_string());
            match fs::read_link(&path) {
                Ok(target) if target.as_os_str().as_bytes().starts_with(NET.as_bytes()) => self.note(path)?,
                Ok(_) => {}
                Err(error) => ended_or(error)?,
            }
        }
        let mounts = match fs::metadata(process.join("ns/mnt")) {
            Ok(data) => (data.dev(), data.ino()),
            Err(error) => return ended_or(error),
        };
        if self.mounts.insert(mounts) {
            let list = match fs::read(process.join("mountinfo")) {
                Ok(list) => list,
                // A process that has ended but has not been waited for has no mounts.
                Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => return Ok(()),
                Err(error) => return ended_or(error),
            };
            for mount in mounted(&list) {
                self.note(process.join("root").join(mount.strip_prefix("/").unwrap_or(&mount)))?;
            }
        }
        Ok(())
    }

    fn note(&mut self, path: PathBuf) -> io::Result<()> {
        match fs::metadata(&path) {
            Ok(data) => {
                let id = NetnsId { dev: data.dev(), ino: data.ino() };
                if self.wanted.contains(&id) {
                    self.found.entry(id).or_insert(path);
                }
                Ok(())
            }
            Err(error) => ended_or(error),
        }
    }
}

/// The mount points of network namespaces in the text of a mountinfo file (proc_pid_mountinfo(5)).
pub(crate) fn mounted(list: &[u8]) -> Vec<PathBuf> {
    let of_line = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        root.starts_with(NET.as_bytes()).then(|| PathBuf::from(OsString::from_vec(unescaped(point))))
    };
    list.split(|byte| *byte == b'\n').filter_map(of_line).collect()
}

/// A word without the octal escapes of white space and backslashes.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

/// The names in a directory of /proc that are numbers. None if the process has ended.
fn numbers(directory: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    let entries = match fs::read_dir(directory) {
        Err(error) => return ended_or(error).map(|()| numbers),
        Ok(entries) => entries,
    };
    for entry in entries {
        match entry {
            Ok(entry) => numbers.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())),
            Err(error) => {
                ended_or(error)?;
                break;
            }
        }
    }
    Ok(numbers)
}

/// Turns the error that says that a process has ended into success.
fn ended_or(error: io::Error) -> io::Result<()> {
    let has_ended =
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32);
    if has_ended { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;

    #[test]
    fn mount_points_of_network_namespaces_are_read() {
        let list = b"24 1 0:4 net:[4026532000] /run/netns/a\\040b rw shared:1 - nsfs nsfs rw\n\
            25 1 0:4 mnt:[4026532001] /run/mnt rw - nsfs nsfs rw\n26 1 8:1 / / rw - ext4 /dev/sda rw\n\n";
        assert_eq!(mounted(list), [PathBuf::from("/run/netns/a b")]);
        assert_eq!(unescaped(b"a\\134b\\9"), b"a\\b\\9");
    }

    #[test]
    fn the_namespace_of_a_process_is_found() {
        let own = Netns::current().unwrap().id();
        let wanted = BTreeSet::from([own, NetnsId { ino: u64::MAX, ..own }]);
        // Only root may inspect the processes of all users.
        let Ok(found) = find(&wanted) else { return };
        assert_eq!(found.keys().collect::<Vec<_>>(), [&own]);
        assert_eq!(Netns::open(&found[&own]).unwrap().id(), own);
    }
}
