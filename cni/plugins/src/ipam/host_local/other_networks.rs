// SPDX-License-Identifier: GPL-2.0-or-later

//! Reservations of other networks on the node: a network that was renamed has left its own behind.
//!
//! Other networks' folders are only read, without their locks: nothing is made in a folder that may be another program's.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_kernel::dir::DurableDir;
use cni_kernel::is_transient;
use cni_kernel::lock::FileLock;
use cni_spec::{Attachment, CniError, NetConf};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::config::RawConfig;
use super::ledger;
use super::mark;
use super::owner::{self, Content};
use super::reservation_life::{self, ReservationLife};
use super::store::{OURS, Store, StoreError, boot_id};

/// The name of this plugin, as in `ipam.type`.
pub(crate) const TYPE: &str = "host-local";
/// The largest reservation, in bytes. A larger file is not a reservation.
const LARGEST: u64 = 4096;
/// The time limit for the lock of all networks. Without the lock, two networks may give out one address at the same moment.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// The folders of the other networks in a directory of reservations.
#[derive(Debug)]
pub(crate) struct OtherNetworks {
    data_dir: PathBuf,
    names: Vec<String>,
}

/// Another network's attachment that has reserved an address.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) owner: Attachment,
    /// The record of the holder's namespace; none if nothing can prove that the namespace is gone.
    pub(super) namespace: Option<Vec<u8>>,
}

/// The networks other than the attachment's in which its container has a reservation for its interface; none if the
/// configuration has another IPAM plugin.
///
/// # Errors
/// Code 7 for the configuration, code 5 if the directory cannot be read.
pub(crate) fn with_reservations_of(
    config: &NetConf,
    attachment: &Attachment,
) -> Result<Vec<Attachment>, CniError> {
    let Some(dir) = data_dir(config)? else { return Ok(Vec::new()) };
    let others = OtherNetworks::beside(dir.path(), attachment.network())?;
    let mut found = Vec::new();
    for network in &others.names {
        let Ok(other) = Attachment::new(network, attachment.container_id(), attachment.ifname()) else {
            continue;
        };
        let owns = Store::open(&others.data_dir, network)
            .and_then(|store| store.map_or(Ok(Vec::new()), |store| ledger::addresses(&store, &other)));
        match owns {
            Ok(addresses) if addresses.is_empty() => {}
            Ok(_) => found.push(other),
            // Repeated, the call finds the reservation.
            Err(error) if error.is_transient() => return Err(error.into()),
            // The directory may hold files of others, too.
            Err(error) => log::debug!("reservations of network {network}: {error}"),
        }
    }
    Ok(found)
}

/// What the reservations of an attachment to another network show about its container.
///
/// # Errors
/// As for [`with_reservations_of`].
pub(crate) fn life_of(config: &NetConf, other: &Attachment) -> Result<ReservationLife, CniError> {
    match data_dir(config)? {
        Some(dir) => Ok(reservation_life::of(dir.path(), other)?),
        None => Ok(ReservationLife::Unreserved),
    }
}

/// A claim to addresses. While it is held, no attachment to another network gets one of these addresses. See [`claim`].
#[derive(Debug)]
#[must_use = "the claim ends when it is dropped"]
pub(crate) struct Claim {
    _lock: Option<FileLock>,
}

/// Claims addresses that host-local has reserved for the configuration's network, until the container's link is in place.
/// `refuse` is called with each attachment to another network that has reserved one of them, too.
///
/// Two calls for one address under different names of a network both reserve it first. So at least one of them sees the
/// other one here:
///
/// ```text
/// sees no other    holds the shared lock until its link is in place
/// sees another     takes the exclusive lock, which waits for all those, and looks again: `refuse` decides by the other's link
/// ```
///
/// Therefore exactly one of them is admitted. Calls for different addresses do not wait for each other.
///
/// # Errors
/// Code 7 for the configuration, code 5 if the directory cannot be read, and the errors of `refuse`.
pub(crate) fn claim(
    config: &NetConf,
    addresses: &[IpAddr],
    mut refuse: impl FnMut(IpAddr, &Attachment) -> Result<(), CniError>,
) -> Result<Claim, CniError> {
    let Some(dir) = data_dir(config)?.filter(|_| !addresses.is_empty()) else {
        return Ok(Claim { _lock: None });
    };
    let shared = or_warn(FileLock::share_directory(&dir, LOCK_LIMIT));
    let others = OtherNetworks::beside(dir.path(), &config.name)?;
    if others.holders_of_any(addresses)?.is_empty() {
        return Ok(Claim { _lock: shared });
    }
    drop(shared);
    let exclusive = or_warn(FileLock::on_directory(&dir, LOCK_LIMIT));
    let others = OtherNetworks::beside(dir.path(), &config.name)?;
    for (address, holder) in others.holders_of_any(addresses)? {
        refuse(address, &holder.owner)?;
    }
    Ok(Claim { _lock: exclusive })
}

/// Takes the lock under which all networks of a directory choose their addresses; the caller has its network's own. None if
/// that fails.
pub(super) fn lock(data_dir: &Path) -> Option<FileLock> {
    let dir = DurableDir::open(&data_dir.join(OURS));
    let dir = dir.inspect_err(|error| log::debug!("no lock of all networks: {error}")).ok()?;
    or_warn(FileLock::on_directory(&dir, LOCK_LIMIT))
}

fn or_warn(lock: Result<FileLock, cni_kernel::lock::LockError>) -> Option<FileLock> {
    lock.inspect_err(|error| log::warn!("another network may give out the same address: {error}")).ok()
}

/// The directory of reservations. None if it does not exist, or if the configuration has another IPAM plugin.
fn data_dir(config: &NetConf) -> Result<Option<DurableDir>, CniError> {
    if config.ipam != TYPE {
        return Ok(None);
    }
    match DurableDir::open(&config.decode::<RawConfig>()?.data_dir()?) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(StoreError::from(error).into()),
    }
}

impl OtherNetworks {
    /// Lists the networks beside `own`.
    pub(super) fn beside(data_dir: &Path, own: &str) -> Result<Self, StoreError> {
        let failed = |error: io::Error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
            StoreError::System { operation: "list", path: data_dir.to_path_buf(), errno }
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(data_dir).map_err(failed)? {
            names.extend(entry.map_err(failed)?.file_name().into_string().ok());
        }
        names.retain(|name| name != OURS && name != own && cni_spec::check_network(name).is_ok());
        Ok(Self { data_dir: data_dir.to_path_buf(), names })
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The number of a network and its reservation, for each network that has reserved the address, or whose
    /// reservation cannot be read.
    pub(super) fn numbered_holders(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (usize, Result<Holder, StoreError>)> {
        let numbered = self.names.iter().enumerate();
        numbered.filter_map(move |(at, network)| Some((at, self.holder(network, address).transpose()?)))
    }

    fn holders_of_any(&self, addresses: &[IpAddr]) -> Result<Vec<(IpAddr, Holder)>, StoreError> {
        let of = |address: &IpAddr| {
            let address = *address;
            self.numbered_holders(address).map(move |(_, holder)| Ok((address, holder?)))
        };
        addresses.iter().flat_map(of).collect()
    }

    fn holder(&self, network: &str, address: IpAddr) -> Result<Option<Holder>, StoreError> {
        let path = self.data_dir.join(network).join(address.to_string());
        match read_holder(network, &path) {
            Err(errno) if is_transient(errno) => Err(StoreError::System { operation: "read", path, errno }),
            // There is none. Other programs may have directories here, too, which may stay unreadable.
            Err(_) => Ok(None),
            Ok(holder) => Ok(holder),
        }
    }

    /// The reservations of a network.
    pub(super) fn store(&self, network: usize) -> Option<Store> {
        let name = self.names.get(network)?;
        let opened = Store::open(&self.data_dir, name);
        opened.inspect_err(|error| log::debug!("reservations of network {name}: {error}")).ok().flatten()
    }
}

/// Reads a reservation of a network.
fn read_holder(network: &str, path: &Path) -> Result<Option<Holder>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut file = File::from(open(path, flags, Mode::empty())?);
    let failed = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or_default());
    if !file.metadata().map_err(failed)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.by_ref().take(LARGEST).read_to_end(&mut bytes).map_err(failed)?;
    let Content::Owned(text) = Content::of(&bytes) else { return Ok(None) };
    let text = String::from_utf8_lossy(&text);
    let (id, ifname) = owner::names(&text);
    let owner = ifname.and_then(|ifname| Attachment::new(network, id, ifname).ok());
    let namespace = mark::read(&file, &boot_id())?;
    Ok(owner.map(|owner| Holder { owner, namespace }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(found: impl IntoIterator<Item = Attachment>) -> Vec<String> {
        let mut names: Vec<String> = found.into_iter().map(|one| one.to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn one_network_at_a_time_chooses_an_address() {
        let temp = tempfile::tempdir().unwrap();
        assert!(lock(temp.path()).is_none(), "no network is served yet");
        fs::create_dir(temp.path().join(OURS)).unwrap();
        let held = lock(temp.path()).unwrap();
        let dir = DurableDir::open(&temp.path().join(OURS)).unwrap();
        assert!(FileLock::on_directory(&dir, Duration::ZERO).unwrap_err().is_timeout());
        drop(held);
        assert!(FileLock::on_directory(&dir, Duration::ZERO).is_ok());
    }

    #[test]
    fn links_and_pipes_of_other_programs_are_not_read() {
        let temp = tempfile::tempdir().unwrap();
        let old = temp.path().join("old");
        fs::create_dir(&old).unwrap();
        fs::write(old.join("10.0.0.2"), "c1\r\neth0").unwrap();
        std::os::unix::fs::symlink("10.0.0.2", old.join("10.0.0.3")).unwrap();
        nix::unistd::mkfifo(&old.join("10.0.0.4"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let others = OtherNetworks::beside(temp.path(), "own").unwrap();
        let found =
            [2, 3, 4].map(|last| others.holders_of_any(&[IpAddr::from([10, 0, 0, last])]).unwrap().len());
        assert_eq!(found, [1, 0, 0]);
    }

    #[test]
    fn reservations_of_other_networks_are_found_and_nothing_is_written() {
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
        let old = "network old, container c1, interface eth0";
        assert_eq!(names(with_reservations_of(&config("host-local"), &own).unwrap()), [old]);
        let third = "network third, container c2, interface eth0";
        let holders = |address: &str| {
            let mut found = Vec::new();
            let address: IpAddr = address.parse().unwrap();
            let claim = claim(&config("host-local"), &[address], |_, holder| {
                found.push(holder.clone());
                Ok(())
            });
            assert!(claim.unwrap()._lock.is_some());
            names(found)
        };
        assert_eq!(holders("10.0.0.2"), [old, third]);
        assert_eq!(holders("10.0.0.9"), Vec::<String>::new());
        assert_eq!(with_reservations_of(&config("static"), &own).unwrap(), []);
        for (network, count) in [("results", 1), ("old", 1), ("third", 2), ("own", 1)] {
            assert_eq!(fs::read_dir(temp.path().join(network)).unwrap().count(), count, "{network}");
        }
        assert!(!temp.path().join(OURS).exists());
        // Nothing was reserved in a directory that is missing; one that cannot be opened may have reservations.
        std::os::unix::fs::symlink("loop", temp.path().join("loop")).unwrap();
        let at = |dir: &str| {
            let ipam = json!({"type": "host-local", "dataDir": temp.path().join(dir)});
            let config = NetConf::parse(json!({"name": "own", "ipam": ipam}).to_string()).unwrap();
            with_reservations_of(&config, &own).map_err(|error| error.code)
        };
        assert_eq!((at("missing"), at("loop")), (Ok(Vec::new()), Err(cni_spec::ErrorCode::Io)));
    }
}
