//! The legacy variant's nat table, as far as it can be looked at without the tools.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni_kernel::dir::DurableDir;
use cni_kernel::route::Family;
use cni_kernel::xtables;

use sha2::{Digest, Sha512};

use super::names::MASQUERADE_PREFIX;
use crate::owner::hex;
use crate::run_dir::RUN_DIR;
use crate::{AddressFamily, Error};

/// From so many rules on it is remembered that a table has no chains of containers.
const LARGE: usize = 1000;

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
    if let Some(chains) = seen(family, &info.bytes) {
        return Ok(chains);
    }
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
    remember(Seen { family, netns: netns(), sizes: info.bytes, at: Instant::now(), chains: chains.clone() });
    Ok(chains)
}

/// What a table was like a moment ago.
struct Seen {
    family: AddressFamily,
    netns: Option<u64>,
    sizes: Vec<u8>,
    at: Instant,
    chains: Vec<String>,
}

/// One operation asks for the chains several times. What others do within that time is not seen by one that
/// asks once, either; what the tool refuses for it is read again, and what the tool changes is forgotten.
const MOMENT: Duration = Duration::from_secs(1);

static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

fn lock() -> MutexGuard<'static, Vec<Seen>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seen(family: AddressFamily, sizes: &[u8]) -> Option<Vec<String>> {
    let netns = netns();
    let same = |seen: &&Seen| {
        seen.family == family && seen.netns == netns && seen.sizes == sizes && seen.at.elapsed() < MOMENT
    };
    lock().iter().find(same).map(|seen| seen.chains.clone())
}

fn remember(new: Seen) {
    let mut seen = lock();
    seen.retain(|old| (old.family, old.netns) != (new.family, new.netns));
    seen.push(new);
}

/// A tool has changed a table, or may have.
pub(crate) fn forget() {
    lock().clear();
}

/// The number of the thread's network namespace.
fn netns() -> Option<u64> {
    std::fs::metadata("/proc/thread-self/ns/net").ok().map(|meta| meta.ino())
}

/// Where it is remembered what a table was like: one file for each network namespace and family, below
/// /run, which is empty after a reboot, as the tables are.
fn memory_of(family: AddressFamily) -> Option<(DurableDir, String)> {
    let netns = netns()?;
    let number = if family == AddressFamily::V4 { 4 } else { 6 };
    let directory = DurableDir::create(Path::new(RUN_DIR), 0o755).ok()?;
    Some((directory, format!("no-chains-{netns}-{number}")))
}

/// True if the rules of a table contain one of these texts.
pub(super) fn contains(family: AddressFamily, table: &str, texts: &[Vec<u8>]) -> Result<bool, Error> {
    let read = xtables::contains(kernel_family(family), table, texts);
    read.map_err(|e| Error::kernel("look at the legacy tables", e))
}

/// The chains of a table; none if it is not there.
pub(crate) fn chains_of(family: AddressFamily, table: &str) -> Result<Vec<String>, Error> {
    xtables::chains(kernel_family(family), table).map_err(|e| Error::kernel("look at the legacy tables", e))
}
