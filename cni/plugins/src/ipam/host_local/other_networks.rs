// SPDX-License-Identifier: GPL-2.0-or-later

//! Reservations of other networks on the node: a network that was renamed has left its own behind.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;

use cni_kernel::dir::DurableDir;
use cni_spec::{Attachment, CniError, NetConf};

use super::config::RawConfig;
use super::ledger::{self, Ledger};
use super::store::{Entry, OURS, Store, StoreError};

/// The name of this plugin, as in `ipam.type`.
const TYPE: &str = "host-local";

/// The networks other than the attachment's in which its container has a reservation for its interface; none if the
/// configuration has another IPAM plugin.
///
/// # Errors
/// Code 7 for the configuration, code 5 if the reservations cannot be read.
pub(crate) fn with_reservations_of(
    config: &NetConf,
    attachment: &Attachment,
) -> Result<Vec<Attachment>, CniError> {
    let mut found = Vec::new();
    visit(config, attachment.network(), |data_dir, network| {
        let Some(store) = Store::open(data_dir, network)? else { return Ok(()) };
        let Ok(other) = Attachment::new(network, attachment.container_id(), attachment.ifname()) else {
            return Ok(());
        };
        // A folder of another program, such as a runtime's cache, is not locked.
        if !store.has_reservations()? {
            return Ok(());
        }
        if !ledger::index_shows_none(&store, &other) && !Ledger::open(&store)?.owned(&other)?.is_empty() {
            found.push(other);
        }
        Ok(())
    })?;
    Ok(found)
}

/// The attachments to other networks that have reserved an address.
///
/// # Errors
/// As for [`with_reservations_of`].
pub(crate) fn holders(config: &NetConf, address: IpAddr) -> Result<Vec<Attachment>, CniError> {
    let mut found = Vec::new();
    visit(config, &config.name, |data_dir, network| {
        let Some(store) = Store::open(data_dir, network)? else { return Ok(()) };
        if let Some(Entry::Owned(text)) = store.entry(address)? {
            let text = String::from_utf8_lossy(&text);
            let mut lines = text.split("\r\n").map(str::trim);
            let (id, ifname) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
            found.extend(Attachment::new(network, id, ifname));
        }
        Ok(())
    })?;
    Ok(found)
}

fn visit(
    config: &NetConf,
    own: &str,
    mut visit: impl FnMut(&Path, &str) -> Result<(), StoreError>,
) -> Result<(), CniError> {
    if config.ipam != TYPE {
        return Ok(());
    }
    let data_dir = config.decode::<RawConfig>()?.data_dir()?;
    let names = match DurableDir::open(&data_dir) {
        Ok(dir) => dir.list().map_err(StoreError::from)?,
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(StoreError::from(error).into()),
    };
    let networks = names.iter().filter(|name| *name != OURS && *name != own).filter_map(as_network);
    for network in networks {
        // The directory may hold files of others, too.
        if let Err(error) = visit(&data_dir, network) {
            log::debug!("reservations of network {network}: {error}");
        }
    }
    Ok(())
}

fn as_network(name: &OsString) -> Option<&str> {
    name.to_str().filter(|name| cni_spec::check_network(name).is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn reservations_of_other_networks_are_found_and_files_of_others_skipped() {
        let temp = tempfile::tempdir().unwrap();
        for (network, file, text) in [
            ("old", "10.0.0.2", "c1\r\neth0"),
            ("own", "10.0.0.2", "c1\r\neth0"),
            ("third", "10.0.0.2", "c2\r\neth0"),
            ("third", "10.0.0.3", "c1\r\neth1"),
            ("results", "own-c1-eth0", "{}"),
        ] {
            fs::create_dir_all(temp.path().join(network)).unwrap();
            fs::write(temp.path().join(network).join(file), text).unwrap();
        }
        fs::write(temp.path().join("notes"), "mine").unwrap();
        let config = |kind: &str| {
            let ipam = json!({"type": kind, "dataDir": temp.path()});
            NetConf::parse(json!({"name": "own", "type": "bridge", "ipam": ipam}).to_string()).unwrap()
        };
        let own = Attachment::new("own", "c1", "eth0").unwrap();
        let names = |found: Vec<Attachment>| -> Vec<String> {
            let mut names: Vec<String> = found.iter().map(ToString::to_string).collect();
            names.sort();
            names
        };
        let old = "network old, container c1, interface eth0";
        assert_eq!(names(with_reservations_of(&config("host-local"), &own).unwrap()), [old]);
        assert_eq!(fs::read_dir(temp.path().join("results")).unwrap().count(), 1, "no lock of ours");
        let third = "network third, container c2, interface eth0";
        assert_eq!(names(holders(&config("host-local"), "10.0.0.2".parse().unwrap()).unwrap()), [old, third]);
        assert!(holders(&config("host-local"), "10.0.0.9".parse().unwrap()).unwrap().is_empty());
        assert!(with_reservations_of(&config("static"), &own).unwrap().is_empty());
    }
}
