// SPDX-License-Identifier: MIT OR Apache-2.0

//! Extended attributes of open files.
#![allow(unsafe_code, reason = "fsetxattr and fgetxattr are system calls that nix does not wrap")]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc;

/// Sets an attribute of a file.
///
/// # Errors
/// The system's: `EOPNOTSUPP` if the file system has no such attributes, `EPERM` without privileges.
pub fn set(file: impl AsFd, name: &CStr, value: &[u8]) -> Result<(), Errno> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: name ends with a NUL, and the kernel reads `value.len()` bytes of value, which outlives the call.
    let result = unsafe { libc::fsetxattr(fd, name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    Errno::result(result).map(drop)
}

/// Reads an attribute of a file of at most `N` bytes. None if the file has no such attribute.
///
/// # Errors
/// The system's: `ERANGE` if the value is longer, `EOPNOTSUPP` if the file system has no such attributes.
pub fn get<const N: usize>(file: impl AsFd, name: &CStr) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0_u8; N];
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: name ends with a NUL, and the kernel writes at most `value.len()` bytes to value.
    let result = unsafe { libc::fgetxattr(fd, name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    match Errno::result(result) {
        Ok(length) => {
            value.truncate(usize::try_from(length).unwrap_or(0));
            Ok(Some(value))
        }
        Err(Errno::ENODATA) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.as_file();
        match set(file, c"user.slipway.test", b"value") {
            Err(Errno::EOPNOTSUPP) => {}
            set => {
                assert_eq!(set, Ok(()));
                assert_eq!(get::<16>(file, c"user.slipway.test"), Ok(Some(b"value".to_vec())));
                assert_eq!(get::<2>(file, c"user.slipway.test"), Err(Errno::ERANGE));
                assert_eq!(get::<16>(file, c"user.slipway.other"), Ok(None));
            }
        }
    }
}
