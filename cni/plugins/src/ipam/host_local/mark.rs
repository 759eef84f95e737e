// SPDX-License-Identifier: GPL-2.0-or-later

//! The mark of a reservation: the container's namespace, in an extended attribute of the file.
//!
//! The reference compares a reservation's text as a whole, so the text has no room for it. No program but ours looks at
//! the attribute, and it comes and goes with the reservation.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::path::Path;

use cni_dataplane::namespace_record;
use cni_kernel::{is_transient, xattr};
use nix::errno::Errno;

/// The kernel hides trusted attributes from unprivileged programs.
pub(super) const ATTRIBUTE: &CStr = c"trusted.slipway.netns";
/// The boot ID and the record of the namespace, whose path is short.
pub(super) const LARGEST: usize = 512;
pub(super) const BOOT_ID: usize = 16;

/// The attribute's value for a container's namespace. None if its end could not be proven later.
pub(super) fn record(boot: &[u8; BOOT_ID], netns: Option<&Path>) -> Option<Vec<u8>> {
    let namespace = namespace_record::encode(netns?)?;
    (*boot != [0; BOOT_ID] && namespace.len() + BOOT_ID <= LARGEST).then(|| [&boot[..], &namespace].concat())
}

/// The record of the namespace in a reservation that was made since the last boot; none without one.
///
/// # Errors
/// The system is short of something at the moment ([`is_transient`]).
pub(super) fn read(file: impl AsFd, boot: &[u8; BOOT_ID]) -> Result<Option<Vec<u8>>, Errno> {
    let record = match xattr::get::<LARGEST>(file, ATTRIBUTE) {
        Ok(record) => record.unwrap_or_default(),
        Err(errno) if is_transient(errno) => return Err(errno),
        Err(errno) => {
            if errno != Errno::EOPNOTSUPP {
                log::debug!("read the namespace of a reservation's owner: {errno}");
            }
            return Ok(None);
        }
    };
    let recorded = record.split_at_checked(BOOT_ID).filter(|(recorded, _)| recorded == boot);
    Ok(recorded.map(|(_, namespace)| namespace.to_vec()))
}

/// Adds the record to a reservation, which is valid without it as well.
pub(super) fn write(file: impl AsFd, record: &[u8]) {
    if let Err(errno) = xattr::set(file, ATTRIBUTE, record) {
        log::debug!("record a reservation's namespace: {errno}");
    }
}
