// SPDX-License-Identifier: GPL-3.0-or-later

//! host-local's reservations: a directory for each network, a file for each address, which names the owner: the
//! container's ID, CR LF, the interface's name. Any program may have written there: other names are skipped, and content
//! that names no attachment has no owner.

use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use cni_kernel::dir::{DirError, DurableDir};
use cni_spec::Attachment;

/// The usual directory of reservations.
pub const DIRECTORY: &str = "/var/lib/cni/networks";

/// The largest file that is read, in bytes. An ID may be as long as a file name.
const LONGEST: usize = 1 << 10;
/// The most files that are read.
const MOST: usize = 100_000;

/// The reservations of a network.
#[derive(Debug)]
pub struct Reservations {
    dir: DurableDir,
    network: String,
}

impl Reservations {
    /// Opens the reservations of a network; none if it has no directory.
    ///
    /// # Errors
    /// [`DirError`] if the directory cannot be opened.
    pub fn open(directory: &Path, network: &str) -> Result<Option<Self>, DirError> {
        match DurableDir::open(&directory.join(network)) {
            Ok(dir) => Ok(Some(Self { dir, network: network.to_owned() })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The reserved addresses. Only an address in its canonical form is a reservation.
    ///
    /// # Errors
    /// [`DirError`] if the directory cannot be listed.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, DirError> {
        let names = self.dir.list()?.into_iter().take(MOST);
        let address = |name: std::ffi::OsString| {
            let name = name.to_str()?;
            name.parse::<IpAddr>().ok().filter(|address| address.to_string() == name)
        };
        Ok(names.filter_map(address).collect())
    }

    /// The owner of an address; none if the file is gone, or names no attachment.
    #[must_use]
    pub fn owner(&self, address: IpAddr) -> Option<Attachment> {
        let bytes = self.dir.read(address.to_string(), LONGEST).ok()??;
        let text = std::str::from_utf8(&bytes).ok()?;
        // Like the plugin, this ignores text after a second line break.
        let mut lines = text.split("\r\n").map(str::trim);
        Attachment::new(&self.network, lines.next()?, lines.next()?).ok()
    }

    /// The time at which an address was reserved; none if the file is gone.
    #[must_use]
    pub fn written(&self, address: IpAddr) -> Option<SystemTime> {
        let path = self.dir.path().join(address.to_string());
        std::fs::symlink_metadata(path).and_then(|data| data.modified()).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn hostile_names_and_contents_have_no_owner() {
        let temp = tempfile::tempdir().unwrap();
        assert!(Reservations::open(temp.path(), "pods").unwrap().is_none());
        let dir = temp.path().join("pods");
        std::fs::create_dir(&dir).unwrap();
        for (name, content) in [
            ("10.244.1.2", "web\r\neth0"),
            ("10.244.1.3", " web \r\n eth1 \r\nmore"),
            ("10.244.1.4", "web"),
            ("10.244.1.5", "../../etc\r\neth0"),
            ("10.244.1.6", ""),
            ("10.244.1.7", "a\r\neth0\0"),
            ("fd44::2", "web\r\neth0"),
            // The following names are not canonical, or are not addresses.
            ("fd44:0::3", "web\r\neth0"),
            ("010.244.1.8", "web\r\neth0"),
            ("last_reserved_ip.0", "10.244.1.2"),
            ("lock", ""),
        ] {
            std::fs::write(dir.join(name), content).unwrap();
        }
        std::fs::write(dir.join("10.244.1.9"), "a".repeat(1 << 20)).unwrap();
        symlink("/etc/passwd", dir.join("10.244.1.10")).unwrap();
        std::fs::create_dir(dir.join("10.244.1.11")).unwrap();
        let reservations = Reservations::open(temp.path(), "pods").unwrap().unwrap();
        let mut addresses = reservations.addresses().unwrap();
        addresses.sort();
        let owned: Vec<String> = addresses
            .iter()
            .filter_map(|address| {
                let owner = reservations.owner(*address)?;
                Some(format!("{address} {} {}", owner.container_id(), owner.ifname()))
            })
            .collect();
        assert_eq!(owned, ["10.244.1.2 web eth0", "10.244.1.3 web eth1", "fd44::2 web eth0"]);
        assert_eq!(addresses.len(), 10, "{addresses:?}");
        let gone = "10.9.9.9".parse().unwrap();
        assert!(reservations.owner(gone).is_none() && reservations.written(gone).is_none());
        assert!(reservations.written(addresses[0]).is_some());
    }
}
