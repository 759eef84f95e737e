// SPDX-License-Identifier: GPL-2.0-or-later

//! The container's side: settings, addresses, routes.

use std::path::Path;
use std::time::Duration;

use cni_kernel::AddressFamily;
use cni_kernel::lock::{FileLock, LockError};
use cni_kernel::netns::{Netns, NetnsId};
use cni_kernel::route::{DuplicateDetection, Existing, Link, LinkChange, OperState, Route, RouteSocket};
use cni_kernel::sysctl::{self, Ipv6Settings, SysctlError};
use cni_spec::{CniError, ErrorCode};

use super::layer3::{Layer3, Subnets};
use super::{failed, optional, spare};

/// The time limit of duplicate address detection. The kernel waits for a random part of a second and then probes for
/// one (RFC 4862, sections 5.4 and 5.1). A worker of the kernel does this, and first waits for the lock of all network
/// configuration, which takes seconds on a node that is removing many containers.
const DETECTION_LIMIT: Duration = Duration::from_secs(10);

/// The container's namespace.
pub(crate) struct Container {
    netns: Netns,
    pub(crate) route: RouteSocket,
    /// For an ADD; none in a kernel without IPv6.
    ipv6: Option<Ipv6Settings>,
}

impl Container {
    /// Opens the namespace for an ADD or a CHECK.
    ///
    /// # Errors
    /// Code 4 if the path does not lead to a network namespace.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, CniError> {
        let path = path.unwrap_or(Path::new(""));
        let netns = Netns::open(path).map_err(|error| {
            // The path comes from the environment.
            CniError::new(ErrorCode::InvalidEnvironment, format!("failed to open netns {path:?}: {error}"))
        })?;
        // The thread that opens the socket also opens the settings, because starting another thread would cost more
        // than the settings save.
        let opened = RouteSocket::open_in_with(&netns, Ipv6Settings::open).map_err(failed)?;
        let (route, ipv6) = opened;
        Ok(Self { netns, route, ipv6: optional_directory(ipv6)? })
    }

    /// Opens the namespace for a DEL; none if it is gone.
    pub(crate) fn open_if_there(path: Option<&Path>) -> Result<Option<Self>, CniError> {
        let Some(path) = path else { return Ok(None) };
        match Netns::open(path) {
            Ok(netns) => {
                let route = RouteSocket::open_in(&netns).map_err(failed)?;
                Ok(Some(Self { netns, route, ipv6: None }))
            }
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Runs `work` inside the namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, CniError> {
        self.netns.run(work).map_err(failed)
    }

    /// Locks the namespace against other plugins that lock it.
    pub(crate) fn lock(&self, patience: Duration) -> Result<FileLock, LockError> {
        self.netns.lock(patience)
    }

    /// The namespace's device and inode number.
    pub(crate) fn id(&self) -> NetnsId {
        self.netns.id()
    }

    /// The namespace's path, for the result.
    pub(crate) fn sandbox(&self) -> String {
        self.netns.path().display().to_string()
    }

    /// The namespace itself.
    pub(crate) fn namespace(&self) -> &Netns {
        &self.netns
    }

    /// True if the namespace has that ID.
    pub(crate) fn is(&self, id: NetnsId) -> bool {
        self.netns.id() == id
    }

    /// The namespace for the owner's record.
    pub(crate) fn netns(&self) -> cni_dataplane::ContainerNetns {
        let id = self.netns.id();
        cni_dataplane::ContainerNetns {
            path: self.netns.path().to_owned(),
            dev: id.dev,
            ino: id.ino,
            cookie: self.route.netns_cookie(),
        }
    }

    /// Sets `accept_ra` of a link to 0. A read-only `/proc/sys` must not make the ADD fail: the container works, with the risk
    /// that the log names.
    pub(crate) fn refuse_advertisements(&self, link: &Link) -> Result<(), CniError> {
        let Some(ipv6) = &self.ipv6 else { return Ok(()) };
        match ipv6.set(&link.name, "accept_ra", "0") {
            Err(error) if error.is_read_only() => {
                log::warn!("the container believes router advertisements: {error}");
                Ok(())
            }
            other => optional(other),
        }
    }

    /// Keeps the kernel from repeating the packets that it sends when the link comes up. On a bridge without multicast
    /// snooping, each of these frames goes to every container. Multicast listener reports are repeated within a day
    /// instead of a second. If there is no IPv6 address from IPAM, the kernel does not probe the link-local address
    /// either, because that is derived from this link's MAC address and so is unique.
    pub(crate) fn quieten(&self, link: &Link, layer3: &Layer3) {
        let has_address = layer3.has(AddressFamily::V6);
        let Some(ipv6) = self.ipv6.as_ref().filter(|_| has_address || !link.disables_ipv6) else { return };
        spare(ipv6.set(&link.name, "mldv2_unsolicited_report_interval", "86400000"));
        if !has_address {
            spare(ipv6.set(&link.name, "accept_dad", "0"));
        }
    }

    /// Enables IPv6 and applies `settings`, if the link is to have IPv6 addresses. Skips settings that the
    /// kernel lacks.
    ///
    /// # Errors
    /// The kernel has no IPv6, or refuses a setting.
    pub(crate) fn prepare(&self, link: &Link, layer3: &Layer3, settings: &[Setting]) -> Result<(), CniError> {
        let Some(address) = layer3.addresses.iter().find(|net| net.addr().is_ipv6()) else { return Ok(()) };
        if self.ipv6.is_none() {
            // Otherwise the error would be the kernel's "Operation not supported", about an address or a setting.
            return Err(CniError::internal(format!(
                "this node's kernel has no IPv6, so the container cannot have the address {address}: remove the IPv6 \
                 range from the network's IPAM, or boot the node without ipv6.disable=1"
            )));
        }
        self.netns.run(|| set(&link.name, settings)).map_err(failed)?
    }

    /// Gives the link its addresses and routes, and sets it up.
    ///
    /// # Errors
    /// The kernel's refusal; with detection, also a duplicate address.
    pub(crate) fn bring_up(
        &self,
        link: &Link,
        layer3: &Layer3,
        detection: DuplicateDetection,
    ) -> Result<(), CniError> {
        for net in &layer3.addresses {
            let added = match layer3.subnets {
                Subnets::OnLink => self.route.add_address(link, *net, detection),
                Subnets::BehindGateway => self.route.add_address_without_route(link, *net, detection),
            };
            added.map_err(|error| {
                CniError::internal(format!("failed to add IP addr {net} to {:?}: {error}", link.name))
            })?;
        }
        // The link comes up after it has its addresses, because with arp_notify the kernel announces them then.
        self.route.change_link(link, &LinkChange::new().up()).map_err(failed)?;
        if detection == DuplicateDetection::AsLink && layer3.has(AddressFamily::V6) {
            self.wait_for_detection(link)?;
        }
        for route in &layer3.routes {
            let route = Route { link: Some(link.index), ..route.clone() };
            // As with the reference, the last of several IPv4 routes to a destination is used, and IPv6 routes become
            // next hops of one route.
            self.route.add_route(&route, Existing::Prepend).map_err(|error| {
                CniError::internal(format!("failed to add route '{route} dev {}': {error}", link.name))
            })?;
        }
        Ok(())
    }

    fn wait_for_detection(&self, link: &Link) -> Result<(), CniError> {
        let settled = self.route.wait_for_detection(link, DETECTION_LIMIT).map_err(failed)?;
        if let Some(address) = settled.iter().find(|address| address.duplicate) {
            return Err(CniError::internal(format!(
                "another host on the link has address {} of {} (duplicate address detection failed)",
                address.net, link.name
            )));
        }
        let Some(address) = settled.iter().find(|address| address.tentative) else { return Ok(()) };
        // Detection makes no progress on a link that is not up. The caller checks the link.
        if self.route.link_by_index(link.index).map_err(failed)?.state != OperState::Up {
            return Ok(());
        }
        Err(CniError::internal(format!(
            "address {} of {} is still tentative after {} s",
            address.net,
            link.name,
            DETECTION_LIMIT.as_secs()
        )))
    }
}

/// Accepts that the directory is missing, as in a kernel without IPv6.
fn optional_directory(opened: Result<Ipv6Settings, SysctlError>) -> Result<Option<Ipv6Settings>, CniError> {
    match opened {
        Err(error) if error.is_not_found() => Ok(None),
        other => other.map(Some).map_err(failed),
    }
}

/// A setting of one link, below `/proc/sys/net/ipv6/conf/<link>`, and its value.
pub(crate) type Setting = (&'static str, &'static str);

/// Applies the settings. Runs inside the namespace.
fn set(ifname: &str, settings: &[Setting]) -> Result<(), CniError> {
    let name = |setting: &str| format!("net/ipv6/conf/{ifname}/{setting}");
    for (setting, value) in settings {
        optional(sysctl::set(&name(setting), value))?;
    }
    // Container engines disable IPv6 in new namespaces.
    sysctl::ensure("net/ipv6/conf/lo/disable_ipv6", "0").map_err(failed)?;
    sysctl::ensure(&name("disable_ipv6"), "0").map_err(failed)?;
    spare(sysctl::set(&name("keep_addr_on_down"), "1"));
    Ok(())
}
