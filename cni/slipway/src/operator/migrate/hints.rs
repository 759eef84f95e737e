// SPDX-License-Identifier: GPL-2.0-or-later

//! Attachments outside the ruleset: in the runtimes' caches and in host-local's reservations.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_dataplane::ContainerNetns;
use cni_dataplane::migrate::KnownAttachment;
use cni_kernel::dir::{DirError, DurableDir};
use cni_runtime::{Cache, Cached};
use cni_spec::Attachment;
use ipnet::IpNet;

use crate::operator::directories;

/// The default directory of host-local's reservations.
const RESERVATIONS: &str = "/var/lib/cni/networks";

/// Reads both. A missing directory has no hints.
pub(in crate::operator) fn read(
    cache_dirs: &[PathBuf],
    data_dirs: &[PathBuf],
) -> Result<Vec<KnownAttachment>, DirError> {
    let mut hints = Vec::new();
    hints.extend(cached(cache_dirs)?.into_iter().map(|cached| KnownAttachment {
        addresses: cached.result.ips.iter().map(|ip| ip.address).collect(),
        netns: cached.netns.as_deref().and_then(|path| ContainerNetns::read(path).ok()),
        attachment: cached.attachment,
    }));
    let usual = [PathBuf::from(RESERVATIONS)];
    for directory in if data_dirs.is_empty() { usual.as_slice() } else { data_dirs } {
        hints.extend(reservations(directory)?);
    }
    Ok(hints)
}

/// Reads the attachments in these caches, or else in the usual ones.
pub(super) fn cached(directories: &[PathBuf]) -> Result<Vec<Cached>, DirError> {
    let usual = directories::CACHES.map(PathBuf::from);
    let mut cached = Vec::new();
    for directory in if directories.is_empty() { usual.as_slice() } else { directories } {
        let Some(cache) = Cache::open(directory)? else { continue };
        let (all, faults) = cache.read()?;
        for fault in faults {
            log::warn!("{}: {}", fault.path.display(), fault.error);
        }
        cached.extend(all);
    }
    Ok(cached)
}

/// Reads a directory for each network, with a file for each address: the container ID, and the interface on
/// the next line.
fn reservations(directory: &Path) -> Result<Vec<KnownAttachment>, DirError> {
    let mut hints = Vec::new();
    let Some(networks) = list(directory)? else { return Ok(hints) };
    for network in networks {
        let folder = directory.join(&network);
        // The directory may have other files.
        let Ok(Some(files)) = list(&folder) else { continue };
        for file in files {
            let Ok(address) = file.parse::<IpAddr>() else { continue };
            let Ok(text) = std::fs::read_to_string(folder.join(&file)) else { continue };
            let mut lines = text.lines().map(str::trim);
            let (Some(id), Some(ifname)) = (lines.next(), lines.next()) else { continue };
            if let Ok(attachment) = Attachment::new(&network, id, ifname) {
                hints.push(KnownAttachment {
                    attachment,
                    addresses: vec![IpNet::from(address)],
                    netns: None,
                });
            }
        }
    }
    Ok(hints)
}

fn list(directory: &Path) -> Result<Option<Vec<String>>, DirError> {
    match DurableDir::open(directory) {
        Ok(folder) => {
            let names = folder.list()?;
            Ok(Some(names.into_iter().filter_map(|name| name.into_string().ok()).collect()))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
