// SPDX-License-Identifier: GPL-2.0-or-later

//! Reservations whose owner is provably gone. They are freed when a range is exhausted.
//!
//! A runtime may lose or unmount the path of a namespace in which processes are still running. So a missing path proves
//! that the owner is gone only if both of these hold:
//!
//! ```text
//! the node's end of the pair      is missing, because it goes with the namespace
//! the namespace's inode number    belongs to no namespace that is mounted, or that a process is in or has open; or it
//!                                 belongs to one without the address, because the kernel reuses the numbers
//! ```
//!
//! The owner of a reservation without a [`mark`] (made by the reference, or on a file system without such attributes)
//! may still be alive. The same is true for a reservation from an earlier boot: a path proves something only in the
//! mount namespace that it was recorded in, and the directory may be shared with another node.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use cni_dataplane::firewall::{self, BridgeUse, FirewallLock};
use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_dataplane::{Backend as _, Dataplane, Kinds, Withdrawal, macspoof, namespace_record};
use cni_kernel::dir::Access;
use cni_kernel::netns::{Netns, NetnsId};
use cni_kernel::netns_search;
use cni_kernel::route::{RouteError, RouteSocket};
use cni_spec::{Attachment, CniError};

use super::mark;
use super::owner::{self, Content};
use super::store::{Store, StoreError};

/// A reservation of an owner that is gone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Abandoned {
    /// The time of the ADD.
    since: SystemTime,
    pub(super) address: IpAddr,
    owner: Attachment,
    namespace: NetnsId,
}

/// The reservations in these ranges whose owners are provably gone, oldest first. Reads the whole directory.
pub(super) fn find(
    store: &Store,
    network: &str,
    is_wanted: impl Fn(IpAddr) -> bool,
) -> Result<Vec<Abandoned>, StoreError> {
    let names = store.dir.list()?;
    let addresses = names.iter().filter_map(|name| owner::address(name.to_str()?));
    let mut found: Vec<Abandoned> =
        addresses.filter(|address| is_wanted(*address)).filter_map(|one| read(store, network, one)).collect();
    if !found.is_empty() {
        found = without_living(found).unwrap_or_else(|error| {
            log::warn!("no address is freed, as its container may live: {error}");
            Vec::new()
        });
    }
    found.sort();
    Ok(found)
}

/// Why it cannot be proven that containers are gone.
#[derive(Debug, thiserror::Error)]
enum Unproven {
    #[error(transparent)]
    Links(#[from] RouteError),
    #[error("look for their namespaces in /proc: {0}")]
    Processes(#[from] io::Error),
}

/// Leaves out the reservations whose namespace may still exist although its path is gone.
fn without_living(all: Vec<Abandoned>) -> Result<Vec<Abandoned>, Unproven> {
    let links = RouteSocket::open()?.links()?;
    let owners: BTreeSet<AttachmentHash> = links
        .iter()
        .filter_map(|link| Owner::from_comment(&link.alias))
        .map(|owner| owner.attachment_hash)
        .collect();
    let present = netns_search::find(&all.iter().map(|one| one.namespace).collect())?;
    let is_gone = |one: &Abandoned| {
        !owners.contains(&AttachmentHash::of(&one.owner))
            && present.get(&one.namespace).is_none_or(|path| lacks(path, one.address))
    };
    Ok(all.into_iter().filter(is_gone).collect())
}

/// True if the namespace at a path has no link with the address.
fn lacks(path: &Path, address: IpAddr) -> bool {
    let Ok(netns) = Netns::open(path) else { return false };
    let addresses = RouteSocket::open_in(&netns).and_then(|socket| socket.all_addresses());
    addresses.is_ok_and(|all| all.iter().all(|one| one.net.addr() != address))
}

/// Reads a reservation. None if its owner may still be alive, or the file cannot be read.
fn read(store: &Store, network: &str, address: IpAddr) -> Option<Abandoned> {
    let mut file = store.dir.open_file(address.to_string(), Access::Read).ok()?;
    let namespace = mark::read(&file, &store.boot).ok()??;
    if !namespace_record::is_gone(&namespace) {
        return None;
    }
    let mut bytes = Vec::new();
    file.by_ref().take(4096).read_to_end(&mut bytes).ok()?;
    let Content::Owned(text) = Content::of(&bytes) else { return None };
    let text = String::from_utf8(text).ok()?;
    let (id, ifname) = owner::names(&text);
    let owner = Attachment::new(network, id, ifname?).ok()?;
    let recorded = namespace_record::decode(&namespace)?;
    let namespace = NetnsId { dev: recorded.dev, ino: recorded.ino };
    Some(Abandoned { since: file.metadata().ok()?.modified().ok()?, address, owner, namespace })
}

impl Abandoned {
    /// Removes the ports, masquerade and rules that the owner has at its address: the next holder of the address
    /// would get the packets of these ports, and the trust that the owner had.
    ///
    /// # Errors
    /// The dataplane's errors, after which the address must not be given to another container.
    pub(super) fn detach(&self) -> Result<(), CniError> {
        let withdrawal = Withdrawal { has_vanished: true, ..Withdrawal::of(&self.owner, Kinds::All) };
        Dataplane::default().withdraw(&withdrawal)?;
        macspoof::release(&self.owner)?;
        if let Some(held) = firewall::held(&self.owner)? {
            firewall::forget(&held, BridgeUse::Unknown, &FirewallLock::for_del())?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Abandoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.address, self.owner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::Duration;

    use cni_kernel::xattr;

    use super::super::mark::{ATTRIBUTE, BOOT_ID, record};
    use super::*;

    #[test]
    fn only_an_owner_of_this_boot_whose_namespace_is_gone_is_found_and_the_oldest_first() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::create(temp.path(), "net").unwrap();
        let netns = |name: &str| {
            let path = temp.path().join(name);
            fs::write(&path, "").unwrap();
            path
        };
        let (living, gone) = (netns("living"), netns("gone"));
        let mut other_boot = store.boot;
        other_boot[0] ^= 1;
        let reserve = |last: u8, record: Option<&[u8]>| {
            let path = temp.path().join("net").join(format!("10.0.0.{last}"));
            fs::write(&path, format!("c{last}\r\neth0")).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - u64::from(last))).unwrap();
            record.is_none_or(|record| xattr::set(&file, ATTRIBUTE, record).is_ok())
        };
        let of_gone = record(&store.boot, Some(&gone)).unwrap();
        if !reserve(2, Some(&of_gone)) {
            // Without privileges, or on a file system without such attributes.
            return;
        }
        reserve(3, Some(&of_gone));
        reserve(4, record(&store.boot, Some(&living)).as_deref());
        reserve(5, record(&other_boot, Some(&gone)).as_deref());
        reserve(6, None);
        reserve(7, Some(b"short"));
        reserve(8, Some(&of_gone));
        fs::write(temp.path().join("net/10.0.0.8"), "").unwrap();
        let find = || -> Vec<String> {
            let found = super::find(&store, "net", |address| address != IpAddr::from([10, 0, 0, 9])).unwrap();
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(find(), Vec::<String>::new());
        fs::remove_file(&gone).unwrap();
        let named = |last: u8| format!("10.0.0.{last} of network net, container c{last}, interface eth0");
        assert_eq!(find(), [named(3), named(2)]);
        // A process may hold a namespace whose path is gone, as this process holds its own.
        let held = temp.path().join("held");
        std::os::unix::fs::symlink("/proc/self/ns/net", &held).unwrap();
        let of_held = record(&store.boot, Some(&held)).unwrap();
        fs::remove_file(&held).unwrap();
        let all = RouteSocket::open().unwrap().all_addresses().unwrap();
        let present = all.first().map(|one| one.net.addr());
        for address in present.into_iter().chain(["192.0.2.1".parse().unwrap()]) {
            let path = temp.path().join("net").join(address.to_string());
            fs::write(&path, "c9\r\neth0").unwrap();
            xattr::set(File::open(&path).unwrap(), ATTRIBUTE, &of_held).unwrap();
        }
        let of_c9: Vec<String> = find().into_iter().filter(|one| one.contains("c9")).collect();
        let without_it = ["192.0.2.1 of network net, container c9, interface eth0"];
        assert_eq!(of_c9, without_it, "the namespace still has {present:?}");
        assert_eq!(record(&[0; BOOT_ID], Some(&living)), None);
        assert_eq!(record(&store.boot, Some(&gone)), None);
        assert_eq!(record(&store.boot, None), None);
    }
}
