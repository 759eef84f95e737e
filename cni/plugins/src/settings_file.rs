// SPDX-License-Identifier: GPL-2.0-or-later

//! `/etc/cni/slipway.json`, the settings of the node, as bytes.

use std::path::Path;

use cni_kernel::dir::{DirError, DurableDir};

/// The directory of CNI's configuration; networks are in `net.d` below it.
pub(crate) const DIRECTORY: &str = "/etc/cni";
pub(crate) const FILE: &str = "slipway.json";
/// The largest file that is read, in bytes.
const LIMIT: usize = 64 << 10;

/// The file's content; none if there is no file.
pub(crate) fn read() -> Result<Option<Vec<u8>>, DirError> {
    read_in(Path::new(DIRECTORY))
}

pub(crate) fn read_in(directory: &Path) -> Result<Option<Vec<u8>>, DirError> {
    match DurableDir::open(directory) {
        Ok(directory) => directory.read(FILE, LIMIT),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
