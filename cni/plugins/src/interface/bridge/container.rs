//! The container's side: settings, addresses, routes.

use std::path::Path;
use std::time::Duration;

use cni_kernel::netns::{Netns, NetnsId};
use cni_kernel::route::{
    DuplicateDetection, Existing, Family, Link, LinkChange, OperState, Route, RouteSocket,
};
use cni_kernel::sysctl;
use cni_spec::{CniError, ErrorCode};

use super::config::Settings;
use super::plan::Plan;
use super::{failed, optional};

/// How long duplicate address detection may take. The kernel waits for a random part of a second
/// and then probes for one (RFC 4862, sections 5.4 and 5.1).
const DETECTION_PATIENCE: Duration = Duration::from_secs(5);

/// The container's namespace.
pub(super) struct Container {
    netns: Netns,
    /// Its socket.
    pub(super) route: RouteSocket,
}

impl Container {
    /// Opens it for an ADD or a CHECK.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, CniError> {
        let path = path.unwrap_or(Path::new(""));
        let netns = Netns::open(path).map_err(|error| {
            // The path came with the environment.
            CniError::new(ErrorCode::InvalidEnvironment, format!("failed to open netns {path:?}: {error}"))
        })?;
        Self::of(netns)
    }

    /// Opens it for a DEL; none when it is gone.
    pub(super) fn open_if_there(path: Option<&Path>) -> Result<Option<Self>, CniError> {
        let Some(path) = path else { return Ok(None) };
        match Netns::open(path) {
            Ok(netns) => Self::of(netns).map(Some),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn of(netns: Netns) -> Result<Self, CniError> {
        let route = RouteSocket::open_in(&netns).map_err(failed)?;
        Ok(Self { netns, route })
    }

    /// The namespace's path, as the result names it.
    pub(super) fn sandbox(&self) -> String {
        self.netns.path().display().to_string()
    }

    /// Whether it is the namespace of that identity.
    pub(super) fn is(&self, id: NetnsId) -> bool {
        self.netns.id() == id
    }

    /// The namespace for the owner's record.
    pub(super) fn netns(&self) -> cni_dataplane::ContainerNetns {
        let id = self.netns.id();
        cni_dataplane::ContainerNetns { path: self.netns.path().to_owned(), dev: id.dev, ino: id.ino }
    }

    /// Gives the link its settings, addresses and routes, and switches it on.
    pub(super) fn configure(&self, link: &Link, plan: &Plan, settings: &Settings) -> Result<(), CniError> {
        self.netns.run(|| set_sysctls(&link.name, plan, settings)).map_err(failed)??;
        if settings.container_link_down {
            return Ok(());
        }
        let detection =
            if settings.detect_duplicates { DuplicateDetection::AsLink } else { DuplicateDetection::Skip };
        for net in &plan.addresses {
            self.route.add_address(link, *net, detection).map_err(|error| {
                CniError::internal(format!("failed to add IP addr {net} to {:?}: {error}", link.name))
            })?;
        }
        // After the addresses: with arp_notify the kernel tells the neighbours when the link comes up.
        self.route.change_link(link, &LinkChange::new().up()).map_err(failed)?;
        if settings.detect_duplicates && plan.has(Family::V6) {
            self.wait_for_detection(link)?;
        }
        for route in &plan.routes {
            let route = Route { link: Some(link.index), ..route.clone() };
            // Others to the same place are next hops beside it, as with the reference.
            self.route.add_route(&route, Existing::Append).map_err(|error| {
                CniError::internal(format!("failed to add route '{route} dev {}': {error}", link.name))
            })?;
        }
        Ok(())
    }

    fn wait_for_detection(&self, link: &Link) -> Result<(), CniError> {
        let settled = self.route.wait_for_detection(link, DETECTION_PATIENCE).map_err(failed)?;
        if let Some(address) = settled.iter().find(|address| address.duplicate) {
            return Err(CniError::internal(format!(
                "somebody else on the link has address {} of {} (duplicate address detection failed)",
                address.net, link.name
            )));
        }
        let Some(address) = settled.iter().find(|address| address.tentative) else { return Ok(()) };
        // Detection makes no progress on a link that does not work; that is for the port's check.
        if self.route.link_by_index(link.index).map_err(failed)?.state != OperState::Up {
            return Ok(());
        }
        Err(CniError::internal(format!(
            "address {} of {} is still tentative after {} s",
            address.net,
            link.name,
            DETECTION_PATIENCE.as_secs()
        )))
    }
}

/// Runs inside the namespace.
fn set_sysctls(ifname: &str, plan: &Plan, settings: &Settings) -> Result<(), CniError> {
    let v4 = |key: &str| format!("net/ipv4/conf/{ifname}/{key}");
    let v6 = |key: &str| format!("net/ipv6/conf/{ifname}/{key}");
    optional(sysctl::set(&v4("arp_notify"), "1"))?;
    if settings.detect_duplicates {
        optional(sysctl::set(&v6("enhanced_dad"), "1"))?;
        optional(sysctl::set(&v6("accept_dad"), "1"))?;
    } else {
        optional(sysctl::set(&v6("accept_dad"), "0"))?;
    }
    if plan.has(Family::V6) {
        // Container engines switch IPv6 off in new namespaces.
        sysctl::ensure("net/ipv6/conf/lo/disable_ipv6", "0").map_err(failed)?;
        sysctl::ensure(&v6("disable_ipv6"), "0").map_err(failed)?;
        sysctl::set(&v6("keep_addr_on_down"), "1").map_err(failed)?;
    }
    Ok(())
}
