// SPDX-License-Identifier: GPL-2.0-or-later

//! The choice of subnets for networks created without one. podman chooses them only for its own bridge driver.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use cni_kernel::AddressFamily;
use cni_kernel::bounded;
use cni_kernel::dir::DirError;
use cni_kernel::route::{MAIN_TABLE, RouteSocket};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nix::errno::Errno;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::error::DriverError;
use super::types::Subnet;

/// podman's networks of root, unless `network_config_dir` of containers.conf(5) names another directory.
pub(crate) const CONFIGURATIONS: &str = "/etc/containers/networks";
/// The file, the subnet and the bridge of podman's default network. The network exists even without the file, and then
/// has this subnet and bridge.
const DEFAULT_FILE: &str = "podman.json";
const DEFAULT_SUBNET: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 88, 0, 0), 16);
const DEFAULT_BRIDGE: &str = "podman0";
/// The first and the last subnet that are given to a network, as by podman's own driver (`default_subnet_pools`).
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 89, 0, 0);
const LAST: Ipv4Addr = Ipv4Addr::new(10, 255, 255, 0);
/// The length of their prefixes, and the step from one to the next.
const LENGTH: u8 = 24;
const STEP: usize = 1 << (32 - LENGTH);

/// The subnets and bridges that a new network must not use.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// The subnets of the node's links and of other networks.
    pub(super) subnets: Vec<IpNet>,
    /// The destinations of the node's routes. A subnet inside of one may be named, but is not chosen.
    pub(super) routed: Vec<IpNet>,
    pub(super) bridges: Vec<String>,
}

/// The parts of a network's file that are needed.
#[derive(Debug, Deserialize)]
struct Configuration {
    #[serde(default)]
    subnets: Vec<Subnet>,
    #[serde(default)]
    network_interface: String,
}

impl Used {
    /// Reads the addresses and routes of the node, and podman's networks. A file that does not describe a network is
    /// left out.
    pub(super) fn read() -> Result<Self, DriverError> {
        let route = RouteSocket::open().map_err(DriverError::Node)?;
        let mut used = Self::default();
        let addresses = route.all_addresses().map_err(DriverError::Node)?;
        used.subnets.extend(addresses.iter().map(|address| address.net.trunc()));
        for family in AddressFamily::BOTH {
            let routes = route.routes(family, MAIN_TABLE).map_err(DriverError::Node)?;
            used.routed.extend(routes.iter().filter(|route| !route.is_default()).map(|route| route.dst));
        }
        used.add_configurations(Path::new(CONFIGURATIONS))?;
        Ok(used)
    }

    fn add_configurations(&mut self, directory: &Path) -> Result<(), DirError> {
        let mut has_default = false;
        let entries = std::fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in unless_unusable(entries, "list", directory)?.unwrap_or_default() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = bounded::read(&path, bounded::CONFIGURATION);
            let Some(text) = unless_unusable(text, "read", &path)? else { continue };
            match serde_json::from_slice::<Configuration>(&text) {
                Ok(found) => {
                    has_default |= path.ends_with(DEFAULT_FILE);
                    self.subnets.extend(found.subnets.iter().map(|subnet| subnet.subnet.trunc()));
                    self.bridges.push(found.network_interface);
                }
                Err(error) => log::warn!("{}: {error}", path.display()),
            }
        }
        if !has_default {
            self.subnets.push(DEFAULT_SUBNET.into());
            self.bridges.push(DEFAULT_BRIDGE.to_owned());
        }
        Ok(())
    }

    /// The subnet in use that a subnet overlaps.
    pub(super) fn overlapping(&self, subnet: IpNet) -> Option<IpNet> {
        overlapping(&self.subnets, subnet)
    }

    /// The first free subnet of podman's pools.
    pub(super) fn free_v4(&self) -> Option<IpNet> {
        let all = (FIRST.to_bits()..=LAST.to_bits()).step_by(STEP);
        let mut nets = all.map(|bits| IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::from_bits(bits), LENGTH)));
        nets.find(|net| self.overlapping(*net).or_else(|| overlapping(&self.routed, *net)).is_none())
    }
}

/// None for what is missing, is no file or directory, or belongs to another user, as root's networks do for a rootless
/// podman. After any other error, a network may use what would be given to the new one.
fn unless_unusable<T>(
    read: io::Result<T>,
    operation: &'static str,
    path: &Path,
) -> Result<Option<T>, DirError> {
    let error = match read {
        Ok(read) => return Ok(Some(read)),
        Err(error) => error,
    };
    match (error.kind(), error.raw_os_error()) {
        (ErrorKind::NotFound | ErrorKind::NotADirectory, _) => Ok(None),
        (ErrorKind::PermissionDenied, _) | (_, None) => {
            log::warn!("{}: {error}", path.display());
            Ok(None)
        }
        (_, Some(number)) => {
            Err(DirError::System { operation, path: path.to_owned(), errno: Errno::from_raw(number) })
        }
    }
}

fn overlapping(nets: &[IpNet], subnet: IpNet) -> Option<IpNet> {
    let overlaps = |used: &&IpNet| used.contains(&subnet.network()) || subnet.contains(&used.network());
    nets.iter().find(overlaps).copied()
}

/// A unique local subnet (RFC 4193) with the digest of `seed` as its global ID and subnet ID.
pub(super) fn unique_v6(seed: &str) -> IpNet {
    let digest = Sha256::digest(seed.as_bytes());
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[1..8].copy_from_slice(&digest[..7]);
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::from(octets), 64))
}

/// The first address after that of the network, which is the gateway unless another one is named.
pub(super) fn first(subnet: IpNet) -> Option<IpAddr> {
    // An IPv6 subnet's hosts begin with its network address, which all routers have (RFC 4291, section 2.6.1).
    subnet.hosts().nth(usize::from(subnet.addr().is_ipv6()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(nets: &[&str]) -> Used {
        Used { subnets: nets.iter().map(|net| net.parse().unwrap()).collect(), ..Used::default() }
    }

    #[test]
    fn the_first_free_subnet_is_chosen() {
        let free = |nets: &[&str]| used(nets).free_v4().unwrap().to_string();
        assert_eq!(free(&[]), "10.89.0.0/24");
        assert_eq!(free(&["10.89.0.0/24", "10.89.1.128/25"]), "10.89.2.0/24");
        assert_eq!(free(&["10.88.0.0/15"]), "10.90.0.0/24");
        assert_eq!(used(&["10.0.0.0/8"]).free_v4(), None);
        let vpn = Used { routed: vec!["10.0.0.0/8".parse().unwrap()], ..Used::default() };
        assert_eq!((vpn.free_v4(), vpn.overlapping("10.89.0.0/24".parse().unwrap())), (None, None));
    }

    #[test]
    fn the_gateway_is_not_the_address_of_all_routers() {
        let gateway = |net: &str| first(net.parse().unwrap()).unwrap().to_string();
        assert_eq!(
            (gateway("10.89.1.0/24"), gateway("fd00:7::/64")),
            ("10.89.1.1".into(), "fd00:7::1".into())
        );
    }

    #[test]
    fn the_default_network_is_used_unless_a_file_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let inside = "10.88.7.0/24".parse().unwrap();
        let overlapping = |text: Option<&str>| {
            if let Some(text) = text {
                std::fs::write(folder.path().join("podman.json"), text).unwrap();
            }
            let mut used = Used::default();
            used.add_configurations(folder.path()).unwrap();
            used.overlapping(inside).map(|net| net.to_string())
        };
        assert_eq!(overlapping(None).as_deref(), Some("10.88.0.0/16"));
        assert_eq!(overlapping(Some("{")).as_deref(), Some("10.88.0.0/16"));
        let moved = r#"{"name": "podman", "subnets": [{"subnet": "10.99.0.0/16"}]}"#;
        assert_eq!(overlapping(Some(moved)), None);
    }

    #[test]
    fn no_subnet_is_chosen_while_networks_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        let read =
            |directory: &Path| Used::default().add_configurations(directory).map_err(|e| e.to_string());
        assert_eq!(read(&folder.path().join("none")), Ok(()));
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(read(&file), Ok(()), "not a directory");
        // A link to itself stands for any file that cannot be read at the moment.
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&file, &file).unwrap();
        assert!(read(&file).unwrap_err().starts_with("list "));
        assert!(read(folder.path()).unwrap_err().starts_with("read "));
    }

    #[test]
    fn ipv6_subnets_are_unique_local_and_follow_the_seed() {
        let net = unique_v6("a");
        assert_eq!((net.prefix_len(), unique_v6("a")), (64, net));
        assert_ne!(unique_v6("b"), net);
        assert!("fd00::/8".parse::<IpNet>().unwrap().contains(&net.network()) && net.trunc() == net);
    }

    #[test]
    fn networks_of_podman_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"name": "x", "network_interface": "podman3", "subnets": [{"subnet": "10.89.0.0/24", "gateway": "10.89.0.1"}]}"#;
        for (name, text) in [("x.json", text), ("y.json", "{"), ("netavark.lock", "")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        std::fs::create_dir(folder.path().join("z.json")).unwrap();
        let mut used = Used::default();
        used.add_configurations(folder.path()).unwrap();
        assert_eq!(used.overlapping("10.89.0.0/16".parse().unwrap()).unwrap().to_string(), "10.89.0.0/24");
        assert_eq!((used.bridges, used.subnets.len()), (vec!["podman3".to_owned(), "podman0".to_owned()], 2));
    }
}
