// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads files whose paths or contents come from others, up to a size limit.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// The most bytes that a configuration may have, such as a plugin's standard input.
pub const CONFIGURATION: u64 = 16 << 20;

/// Reads a regular file of at most `limit` bytes. Follows symbolic links, but never waits for a FIFO or a device.
///
/// # Errors
/// The system's error; [`io::ErrorKind::InvalidInput`] for a file of another kind, [`io::ErrorKind::FileTooLarge`]
/// for a larger one.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match u64::try_from(bytes.len()) {
        Ok(length) if length <= limit => Ok(bytes),
        _ => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("file");
        std::fs::write(&file, "four").unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let fifo = temp.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read(&link, 4).unwrap(), b"four");
        assert_eq!(read(&file, 3).unwrap_err().to_string(), "larger than 3 bytes");
        for other in [fifo.as_path(), Path::new("/dev/zero"), temp.path()] {
            assert_eq!(read(other, 4).unwrap_err().to_string(), "not a regular file", "{other:?}");
        }
        assert_eq!(read(&temp.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
