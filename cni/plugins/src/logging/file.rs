// SPDX-License-Identifier: GPL-2.0-or-later

//! Log lines to a file that any number of processes write concurrently.
//!
//! Each line is one write(2) to a file opened for appending, so that lines of two processes do not mix. A full file is
//! renamed to `NAME.1`, which replaces the previous one.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cni_kernel::dir::{Access, DirError, DurableDir};
use nix::unistd::geteuid;

/// Only its owner may read the file, because lines name containers and networks.
const MODE: u32 = 0o600;

pub(super) struct LogFile {
    /// None if the directory cannot be opened: lines are lost then.
    dir: Option<DurableDir>,
    name: String,
    max_size: u64,
}

impl LogFile {
    pub(super) fn new(path: &Path, max_size: u64) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let dir = path.parent().and_then(|parent| DurableDir::open(parent).ok());
        Self { dir, name, max_size }
    }

    /// Appends a line, or loses it.
    pub(super) fn write(&self, line: &str) {
        let Some(dir) = &self.dir else { return };
        // The call proceeds without its line.
        let _lost = self.append(dir, line);
    }

    fn append(&self, dir: &DurableDir, line: &str) -> Result<(), DirError> {
        let Some(mut file) = self.open(dir)? else { return Ok(()) };
        if size(&file) + line.len() as u64 > self.max_size && self.set_aside(dir, &file)? {
            let Some(next) = self.open(dir)? else { return Ok(()) };
            file = next;
        }
        let _lost = file.write_all(line.as_bytes());
        Ok(())
    }

    /// The file; none if another user owns it, or if it has a second hard link, which may be anywhere.
    fn open(&self, dir: &DurableDir) -> Result<Option<File>, DirError> {
        let file = dir.open_file(&self.name, Access::AppendOrCreate(MODE))?;
        let ours = file.metadata().is_ok_and(|data| data.nlink() == 1 && data.uid() == geteuid().as_raw());
        Ok(ours.then_some(file))
    }

    /// Renames the file, unless another process is doing so. True if the name now leads to another file.
    fn set_aside(&self, dir: &DurableDir, file: &File) -> Result<bool, DirError> {
        if file.try_lock().is_err() {
            return Ok(false);
        }
        // Another process may have renamed it before the lock was held.
        let inode = |file: &File| file.metadata().map(|data| data.ino()).ok();
        if let Some(now) = self.open(dir)?
            && inode(&now) == inode(file)
        {
            dir.rename(&self.name, Path::new(&format!("{}.1", self.name)))?;
        }
        Ok(true)
    }
}

fn size(file: &File) -> u64 {
    file.metadata().map_or(0, |data| data.len())
}
