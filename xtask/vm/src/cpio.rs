// SPDX-License-Identifier: MIT OR Apache-2.0

//! The archive that a kernel unpacks as its first root file system.
//!
//! Format "newc" with ASCII headers: Documentation/driver-api/early-userspace/buffer-format.rst in the
//! kernel's sources. Not compressed: packing and unpacking would cost more than reading the bytes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use xtask_base::error::{Error, Result};

/// Folders that are one with a folder below /usr, as on the systems that the programs come from.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// An archive that is being written. Paths are absolute, as in the guest.
#[derive(Debug)]
pub(crate) struct Archive<W: Write = BufWriter<File>> {
    out: W,
    written: u64,
    inode: u32,
    known: BTreeSet<PathBuf>,
}

/// The fields of a header that differ.
struct Head {
    mode: u32,
    size: u32,
    device: (u32, u32),
}

impl Archive {
    /// Starts an archive in a new file.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::file("make", path, e))?;
        Self::new(BufWriter::new(file))
    }
}

impl<W: Write> Archive<W> {
    fn new(out: W) -> Result<Self> {
        let mut archive = Self { out, written: 0, inode: 0, known: BTreeSet::new() };
        for name in MERGED {
            archive.symlink(&Path::new("/").join(name), Path::new(&format!("usr/{name}")))?;
            archive.folder(&Path::new("/usr").join(name))?;
        }
        // Standard input and output of the first process before it mounts /dev.
        archive.put(Path::new("/dev/console"), &Head { mode: 0o020_600, size: 0, device: (5, 1) }, &[])?;
        Ok(archive)
    }

    pub(crate) fn has(&self, path: &Path) -> bool {
        self.known.contains(&merged(path))
    }

    /// A folder, and those above it.
    pub(crate) fn folder(&mut self, path: &Path) -> Result<()> {
        self.put(path, &Head { mode: 0o040_755, size: 0, device: (0, 0) }, &[])
    }

    /// A symbolic link. One that is there already stays.
    pub(crate) fn symlink(&mut self, path: &Path, target: &Path) -> Result<()> {
        let target = target.to_string_lossy();
        let head = Head { mode: 0o120_777, size: length(target.as_bytes())?, device: (0, 0) };
        self.put(path, &head, target.as_bytes())
    }

    /// A file with this content and mode (permissions only). One that is there already stays.
    pub(crate) fn bytes(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<()> {
        let head = Head { mode: 0o100_000 | mode & 0o7777, size: length(content)?, device: (0, 0) };
        self.put(path, &head, content)
    }

    /// A copy of a file, with its permissions.
    pub(crate) fn file(&mut self, path: &Path, from: &Path) -> Result<()> {
        if self.has(path) {
            return Ok(());
        }
        let mode = fs::metadata(from).map_err(|e| Error::file("look at", from, e))?.permissions().mode();
        let content = fs::read(from).map_err(|e| Error::file("read", from, e))?;
        self.bytes(path, &content, mode)
    }

    /// A copy of what is below a folder and `wanted`. Links inside are copied as links.
    pub(crate) fn tree(&mut self, path: &Path, from: &Path, wanted: fn(&Path) -> bool) -> Result<()> {
        self.folder(path)?;
        let mut entries: Vec<PathBuf> = fs::read_dir(from)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
            .map_err(|e| Error::file("list", from, e))?;
        entries.retain(|entry| wanted(entry));
        entries.sort();
        for entry in entries {
            let inside = path.join(entry.file_name().unwrap_or_default());
            if entry.is_symlink() {
                let target = fs::read_link(&entry).map_err(|e| Error::file("read the link", &entry, e))?;
                self.symlink(&inside, &target)?;
            } else if entry.is_dir() {
                self.tree(&inside, &entry, wanted)?;
            } else {
                self.file(&inside, &entry)?;
            }
        }
        Ok(())
    }

    /// Writes the closing entry; returns the archive's size in bytes.
    pub(crate) fn finish(mut self) -> Result<u64> {
        self.entry("TRAILER!!!", &Head { mode: 0, size: 0, device: (0, 0) }, &[])
            .and_then(|()| self.out.flush())
            .map_err(|e| Error::system("write the archive", e))?;
        Ok(self.written)
    }

    fn put(&mut self, path: &Path, head: &Head, content: &[u8]) -> Result<()> {
        let path = merged(path);
        if path == Path::new("/") || !self.known.insert(path.clone()) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.folder(parent)?;
        }
        let name = path.strip_prefix("/").unwrap_or(&path).to_string_lossy().into_owned();
        self.entry(&name, head, content).map_err(|e| Error::system(format!("write {name} to the archive"), e))
    }

    fn entry(&mut self, name: &str, head: &Head, content: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let (major, minor) = head.device;
        let name_size = name.len() + 1;
        // magic, inode, mode, uid, gid, links, mtime, size, device of the file, device that it is,
        // length of the name, checksum
        let header = format!(
            "070701{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{major:08x}{minor:08x}{name_size:08x}{:08x}",
            self.inode, head.mode, 0, 0, 1, 0, head.size, 0, 0, 0
        );
        self.write(header.as_bytes())?;
        self.write(name.as_bytes())?;
        self.write(&[0])?;
        self.pad()?;
        self.write(content)?;
        self.pad()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// To a multiple of four, measured from the start of the archive.
    fn pad(&mut self) -> io::Result<()> {
        let over = self.written % 4;
        if over == 0 { Ok(()) } else { self.write(&[0; 3][..usize::try_from(4 - over).unwrap_or_default()]) }
    }
}

/// The path with its first folder replaced by the one that it is a link to.
fn merged(path: &Path) -> PathBuf {
    let mut parts = path.components().filter(|part| *part != Component::RootDir);
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(first)), Some(_)) if MERGED.iter().any(|name| *name == first) => {
            Path::new("/usr").join(path.strip_prefix("/").unwrap_or(path))
        }
        _ => path.to_owned(),
    }
}

fn length(content: &[u8]) -> Result<u32> {
    u32::try_from(content.len())
        .map_err(|_| Error::Failed("a file of 4 GB or more in the archive".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_folders_come_before_what_is_in_them() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes).unwrap();
        archive.bytes(Path::new("/a/b/c"), b"hello", 0o755).unwrap();
        archive.bytes(Path::new("/a/b/c"), b"again", 0o755).unwrap();
        archive.bytes(Path::new("/lib/x.so"), b"x", 0o644).unwrap();
        assert!(archive.has(Path::new("/usr/lib/x.so")));
        let size = archive.finish().unwrap();
        assert_eq!(size, bytes.len() as u64);
        assert_eq!(
            names(&bytes),
            [
                "bin",
                "usr",
                "usr/bin",
                "sbin",
                "usr/sbin",
                "lib",
                "usr/lib",
                "lib64",
                "usr/lib64",
                "dev",
                "dev/console",
                "a",
                "a/b",
                "a/b/c",
                "usr/lib/x.so",
                "TRAILER!!!"
            ]
        );
        assert!(bytes.windows(5).any(|window| window == b"hello"));
        assert!(!bytes.windows(5).any(|window| window == b"again"));
    }

    /// Walks the archive as the kernel does.
    fn names(bytes: &[u8]) -> Vec<String> {
        let mut names = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701", "at {at}");
            let number = |field: usize| {
                let from = at + 6 + 8 * field;
                usize::from_str_radix(std::str::from_utf8(&bytes[from..from + 8]).unwrap(), 16).unwrap()
            };
            let (size, name_size) = (number(6), number(11));
            let name = &bytes[at + 110..at + 110 + name_size - 1];
            names.push(String::from_utf8(name.to_vec()).unwrap());
            at = (at + 110 + name_size).next_multiple_of(4);
            at = (at + size).next_multiple_of(4);
        }
        names
    }
}
