// SPDX-License-Identifier: GPL-2.0-or-later

//! The tables of the legacy variant, read from the kernel without the tools.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cni_kernel::dir::DurableDir;
use cni_kernel::xtables::{self, XtablesError};
use sha2::{Digest, Sha512};

use super::names::{MASQUERADE_PREFIX, TableName};
use crate::run_dir::RUN_DIR;
use crate::{AddressFamily, Error};
use cni_spec::text::hex;

/// From this number of rules on, a file records that a table has no chains of containers.
const LARGE: usize = 1000;

fn failed(error: XtablesError) -> Error {
    Error::kernel("read the legacy tables", error)
}

/// True if the nat table exists.
pub(crate) fn has_nat(family: AddressFamily) -> Result<bool, Error> {
    has_table(family, TableName::Nat)
}

pub(super) fn has_table(family: AddressFamily, table: TableName) -> Result<bool, Error> {
    xtables::has_table(family, table.as_str()).map_err(failed)
}

/// True if the rules of a table contain one of these texts.
pub(super) fn contains(family: AddressFamily, table: TableName, texts: &[Vec<u8>]) -> Result<bool, Error> {
    xtables::contains(family, table.as_str(), texts).map_err(failed)
}

/// The chains of a table. None if the table does not exist.
pub(super) fn chains(family: AddressFamily, table: TableName) -> Result<Vec<String>, Error> {
    xtables::chains(family, table.as_str()).map_err(failed)
}

/// The chains of the nat table whose names have the prefix of the reference plugins.
///
/// The kernel returns a table only as a whole, at about half a microsecond per rule. So for a large table without
/// such chains, a file records the table's fingerprint, and the table is read again only after a change, not for
/// every container. Tables with such chains are not recorded, because the chains of one container may have been
/// replaced with another container's chains of the same size.
pub(super) fn cni_chains(family: AddressFamily) -> Result<Vec<String>, Error> {
    let Some(info) = xtables::info(family, TableName::Nat.as_str()).map_err(failed)? else {
        return Ok(Vec::new());
    };
    let file = (info.entries > LARGE).then(|| fingerprint_file(family)).flatten();
    let fingerprint = hex(&Sha512::digest(&info.bytes));
    if let Some((directory, file)) = &file
        && let Ok(Some(recorded)) = directory.read(file, 2 * fingerprint.len())
        && recorded == fingerprint.as_bytes()
    {
        return Ok(Vec::new());
    }
    let mut chains = chains(family, TableName::Nat)?;
    chains.retain(|chain| chain.starts_with(MASQUERADE_PREFIX));
    // If the table has changed since it was read, this is the fingerprint of the old table, and the next call reads
    // the table again.
    if let (true, Some((directory, file))) = (chains.is_empty(), &file)
        && let Err(error) = directory.replace(file, fingerprint.as_bytes(), 0o600)
    {
        log::debug!("{error}: the table will be read again");
    }
    Ok(chains)
}

/// The file for the thread's network namespace and the family. /run is emptied at a reboot, when all tables are empty
/// as well.
fn fingerprint_file(family: AddressFamily) -> Option<(DurableDir, String)> {
    let netns = netns()?;
    let directory = DurableDir::create(Path::new(RUN_DIR), 0o755).ok()?;
    Some((directory, format!("no-chains-{netns}-{}", family.version())))
}

/// The inode of the thread's network namespace.
fn netns() -> Option<u64> {
    std::fs::metadata("/proc/thread-self/ns/net").ok().map(|meta| meta.ino())
}
