//! The legacy variant's nat table, as far as it can be looked at without the tools.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cni_kernel::dir::DurableDir;
use cni_kernel::route::Family;
use cni_kernel::xtables;

use sha2::{Digest, Sha512};

use super::names::MASQUERADE_PREFIX;
use crate::owner::hex;
use crate::{AddressFamily, Error};

/// From so many rules on it is remembered that a table has no chains of containers.
const LARGE: usize = 1000;
/// The folder for it.
const MEMORY: &str = "/run/slipway";

fn kernel_family(family: AddressFamily) -> Family {
    match family {
        AddressFamily::V4 => Family::V4,
        AddressFamily::V6 => Family::V6,
    }
}

/// Whether the nat table is there.
pub(crate) fn has_nat(family: AddressFamily) -> bool {
    has_table(family, "nat")
}

/// Whether a table is there.
pub(crate) fn has_table(family: AddressFamily, table: &str) -> bool {
    xtables::has_table(kernel_family(family), table)
}

/// The chains of the nat table that are called as the reference's and ours are.
///
/// The kernel hands a table out as a whole only, at a microsecond a rule. Of a large one without such
/// chains it is remembered what it was like, so that it is read once for each change that somebody
/// makes to it, not for each container. (Of one with such chains it is not: one container's may have
/// taken the place of another's of the same size.)
pub(crate) fn chains(family: AddressFamily) -> Result<Vec<String>, Error> {
    let look = |e| Error::kernel("look at the legacy tables", e);
    let Some(info) = xtables::info(kernel_family(family), "nat").map_err(look)? else {
        return Ok(Vec::new());
    };
    let large = info.entries > LARGE;
    let file = large.then(|| memory_of(family)).flatten();
    let fingerprint = hex(&Sha512::digest(&info.bytes));
    if let Some((directory, file)) = &file
        && directory
            .read(file, 2 * fingerprint.len())
            .is_ok_and(|is| is.as_deref() == Some(fingerprint.as_bytes()))
    {
        return Ok(Vec::new());
    }
    let mut chains = chains_of(family, "nat")?;
    chains.retain(|chain| chain.starts_with(MASQUERADE_PREFIX));
    // It may have been changed in between: then it is like something else by now, and no harm is done.
    if let (true, Some((directory, file))) = (chains.is_empty(), &file)
        && let Err(error) = directory.replace(file, fingerprint.as_bytes(), 0o600)
    {
        log::debug!("{error}: the table will be read again");
    }
    Ok(chains)
}

/// Where it is remembered what a table was like: one file for each network namespace and family, below
/// /run, which is empty after a reboot, as the tables are.
fn memory_of(family: AddressFamily) -> Option<(DurableDir, String)> {
    let netns = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
    let number = if family == AddressFamily::V4 { 4 } else { 6 };
    let directory = DurableDir::create(Path::new(MEMORY), 0o755).ok()?;
    Some((directory, format!("no-chains-{}-{number}", netns.ino())))
}

/// The chains of a table; none if it is not there.
pub(crate) fn chains_of(family: AddressFamily, table: &str) -> Result<Vec<String>, Error> {
    xtables::chains(kernel_family(family), table).map_err(|e| Error::kernel("look at the legacy tables", e))
}
