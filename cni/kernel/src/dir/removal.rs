// SPDX-License-Identifier: MIT OR Apache-2.0

//! Directories that can be emptied but not removed: mount points and symbolic links.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Why a directory can be emptied but not removed. None if it can be removed. Whoever made the mount point or the
/// link may still need it.
#[must_use]
pub fn is_fixed(path: &Path) -> Option<&'static str> {
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_symlink()) {
        return Some("a symbolic link");
    }
    let path = fs::canonicalize(path).ok()?;
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    mount_points(&mounts)
        .any(|point| point.as_bytes() == path.as_os_str().as_bytes())
        .then_some("a mount point")
}

/// Removes an empty directory. Leaves it alone if it [is fixed](is_fixed) or does not exist.
///
/// # Errors
/// The system's error, for instance `ENOTEMPTY`.
pub fn remove_empty(path: &Path) -> Result<(), Errno> {
    match unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        // The error is EROFS if the directory is a mount point in a read-only file system.
        Err(Errno::EBUSY | Errno::ENOTDIR | Errno::EROFS) if is_fixed(path).is_some() => Ok(()),
        removed => removed,
    }
}

/// Removes a directory with everything in it. A mount point is only emptied. Links in the directory are removed but
/// not followed. If `path` itself is a link, it is left alone.
///
/// # Errors
/// The system's error for the first file or directory that cannot be removed.
pub fn remove_all(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_symlink()) {
        return Ok(());
    }
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let removed = match entry.file_type()?.is_dir() {
            true => remove_all(&entry.path()),
            false => fs::remove_file(entry.path()),
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match remove_empty(path) {
        // A fixed directory inside this one stays.
        Err(Errno::ENOTEMPTY | Errno::EEXIST) if contains_only_fixed(path) => Ok(()),
        removed => removed.map_err(io::Error::from),
    }
}

fn contains_only_fixed(path: &Path) -> bool {
    let has_fixed = |path: &Path| is_fixed(path).is_some() || contains_only_fixed(path);
    fs::read_dir(path).is_ok_and(|mut entries| {
        entries.all(|entry| entry.is_ok_and(|entry| entry.path().is_dir() && has_fixed(&entry.path())))
    })
}

/// The fifth field of each line, in which the kernel escapes white space and backslashes (`show_mountinfo`).
pub(crate) fn mount_points(mounts: &[u8]) -> impl Iterator<Item = OsString> {
    let lines = mounts.split(|byte| *byte == b'\n');
    lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped)
}

fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let text =
            b"36 35 98:0 / /run/a\\040b rw - ext3 /dev/root rw\n37 35 0:5 / /x\\134y rw - tmpfs t rw\n\n";
        assert_eq!(mount_points(text).collect::<Vec<_>>(), ["/run/a b", "/x\\y"]);
        assert_eq!(is_fixed(Path::new("/proc")), Some("a mount point"));
        assert_eq!(is_fixed(Path::new("/proc/self")), Some("a symbolic link"));
        assert_eq!(is_fixed(Path::new("/missing")), None);
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (real, outside, link) =
            (dir.path().join("real"), dir.path().join("outside"), dir.path().join("link"));
        fs::create_dir_all(real.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("theirs"), "").unwrap();
        fs::write(real.join("a/file"), "").unwrap();
        symlink(&outside, real.join("a/out")).unwrap();
        symlink(&real, &link).unwrap();
        remove_all(&link).unwrap();
        assert_eq!(remove_empty(&link), Ok(()));
        assert!(link.is_symlink() && real.join("a/file").exists());
        assert_eq!(remove_empty(&outside), Err(Errno::ENOTEMPTY));
        remove_all(&real).unwrap();
        assert!(!real.exists() && outside.join("theirs").exists());
        remove_all(&real).unwrap();
    }
}
