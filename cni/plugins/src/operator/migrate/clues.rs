//! What is known of the attachments beside the ruleset: the runtimes' cache, and the reservations of host-local,
//! the reference's or ours.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_dataplane::ContainerNetns;
use cni_dataplane::migrate::Clue;
use cni_kernel::dir::DurableDir;
use cni_runtime::{Cache, Cached, cache};
use cni_spec::Attachment;
use ipnet::IpNet;

/// Where host-local keeps its reservations unless a configuration says otherwise.
const RESERVATIONS: &str = "/var/lib/cni/networks";

/// Reads both. What is not named and is not there says nothing.
pub(super) fn read(cache_dirs: &[PathBuf], data_dirs: &[PathBuf]) -> Result<Vec<Clue>, String> {
    let mut clues = Vec::new();
    clues.extend(cached(cache_dirs)?.into_iter().map(|cached| Clue {
        addresses: cached.result.ips.iter().map(|ip| ip.address).collect(),
        netns: cached.netns.as_deref().and_then(|path| ContainerNetns::read(path).ok()),
        attachment: cached.attachment,
    }));
    let usual = [PathBuf::from(RESERVATIONS)];
    for directory in if data_dirs.is_empty() { usual.as_slice() } else { data_dirs } {
        clues.extend(reservations(directory)?);
    }
    Ok(clues)
}

/// All attachments in these caches, or in the usual ones if none is named.
pub(super) fn cached(directories: &[PathBuf]) -> Result<Vec<Cached>, String> {
    let usual = cache::DIRECTORIES.map(PathBuf::from);
    let mut cached = Vec::new();
    for directory in if directories.is_empty() { usual.as_slice() } else { directories } {
        let Some(cache) = Cache::open(directory).map_err(|e| e.to_string())? else { continue };
        let (all, faults) = cache.read().map_err(|e| e.to_string())?;
        for fault in faults {
            log::warn!("{}: {}", fault.path.display(), fault.error);
        }
        cached.extend(all);
    }
    Ok(cached)
}

/// A folder for each network, in it a file for each address: the container's ID and, on another line, the
/// interface.
fn reservations(directory: &Path) -> Result<Vec<Clue>, String> {
    let mut clues = Vec::new();
    let Some(networks) = list(directory)? else { return Ok(clues) };
    for network in networks {
        let folder = directory.join(&network);
        // Anything may lie in that folder; what is no folder of addresses says nothing.
        let Ok(Some(files)) = list(&folder) else { continue };
        for file in files {
            let Ok(address) = file.parse::<IpAddr>() else { continue };
            let Ok(text) = std::fs::read_to_string(folder.join(&file)) else { continue };
            let mut lines = text.lines().map(str::trim);
            let (Some(id), Some(ifname)) = (lines.next(), lines.next()) else { continue };
            if let Ok(attachment) = Attachment::new(&network, id, ifname) {
                clues.push(Clue { attachment, addresses: vec![IpNet::from(address)], netns: None });
            }
        }
    }
    Ok(clues)
}

fn list(directory: &Path) -> Result<Option<Vec<String>>, String> {
    match DurableDir::open(directory) {
        Ok(folder) => {
            let names = folder.list().map_err(|e| e.to_string())?;
            Ok(Some(names.into_iter().filter_map(|name| name.into_string().ok()).collect()))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
