// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK: the comparisons of all plugins with a veth pair.

use cni_kernel::AddressFamily;
use cni_kernel::netns::Netns;
use cni_kernel::route::{Link, LinkKind, MAIN_TABLE, RouteSocket};
use cni_spec::{AddResult, CniError, Interface, IpConfig, Route};
use ipnet::IpNet;

use super::container::Container;
use super::failed;
use crate::plugin::Request;

/// The result of the ADD. `plugin` is the prefix of the reference's message.
///
/// # Errors
/// Code 7 if there is none.
pub(crate) fn previous_result<'a>(request: &'a Request<'_>, plugin: &str) -> Result<&'a AddResult, CniError> {
    let previous = request.config.prev_result.as_ref();
    previous.ok_or_else(|| CniError::config(format!("{plugin}Required prevResult missing")))
}

/// The container, for comparison with the ADD's result.
pub(crate) struct Inside<'a> {
    /// The container's namespace.
    pub(crate) container: Container,
    /// The result of the ADD.
    pub(crate) previous: &'a AddResult,
    /// The name of the container's interface.
    pub(crate) ifname: &'a str,
    /// The prefix of the reference's messages.
    plugin: &'static str,
}

impl<'a> Inside<'a> {
    /// Opens the container's namespace.
    ///
    /// # Errors
    /// Code 4 if the path does not lead to one.
    pub(crate) fn open(
        request: &'a Request<'_>,
        previous: &'a AddResult,
        plugin: &'static str,
    ) -> Result<Self, CniError> {
        let container = Container::open(request.netns.as_deref())?;
        Ok(Self { container, previous, ifname: request.attachment.ifname(), plugin })
    }

    /// The index of the container's interface in the result.
    fn index(&self) -> Option<usize> {
        let ours = |interface: &Interface| interface.name == self.ifname && !interface.sandbox.is_empty();
        self.previous.interfaces.iter().position(ours)
    }

    /// The container's entries of the result's `ips`.
    pub(crate) fn ips(&self) -> Vec<IpConfig> {
        let index = self.index();
        let ours = |ip: &&IpConfig| ip.interface.is_none() || ip.interface == index;
        self.previous.ips.iter().filter(ours).cloned().collect()
    }

    /// The container's addresses in the result.
    pub(crate) fn addresses(&self) -> Vec<IpNet> {
        self.ips().iter().map(|ip| ip.address).collect()
    }

    /// The container's end of a pair; see [`Inside::check_link_as`].
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check_link(&self) -> Result<Link, CniError> {
        self.check_link_as(|link| match link.kind {
            LinkKind::Veth => Ok(()),
            _ => Err(wrong(format!("Error: Container interface {} not of type veth", link.name))),
        })
    }

    /// The container's link, if it exists in this namespace, `is` accepts it, and its MAC address is the
    /// result's.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check_link_as(&self, is: impl Fn(&Link) -> Result<(), CniError>) -> Result<Link, CniError> {
        let (ifname, plugin) = (self.ifname, self.plugin);
        let expected = self
            .index()
            .and_then(|index| self.previous.interfaces.get(index))
            .ok_or_else(|| wrong(format!("CNI created interface in container {ifname} not found")))?;
        let sandbox = self.container.sandbox();
        // Another path may lead to the same namespace.
        let same = || Netns::open(expected.sandbox.as_ref()).is_ok_and(|netns| self.container.is(netns.id()));
        if expected.sandbox != sandbox && !same() {
            return Err(wrong(format!(
                "Sandbox in prevResult {} doesn't match configured netns: {sandbox}",
                expected.sandbox
            )));
        }
        let link = present(&self.container.route, ifname)?;
        is(&link)?;
        if !same_mac(&link, expected) {
            let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
            return Err(wrong(format!(
                "{plugin}Interface {ifname} Mac {} doesn't match container Mac: {mac}",
                expected.mac
            )));
        }
        Ok(link)
    }

    /// Checks the container's addresses.
    ///
    /// # Errors
    /// The first that is missing.
    pub(crate) fn check_addresses(&self, link: &Link) -> Result<(), CniError> {
        has_addresses(&self.container.route, link, &self.addresses())
    }

    /// Checks the result's routes. A default route matches with any gateway, as in the reference, and by any link: another
    /// interface of the container may have taken it over.
    ///
    /// # Errors
    /// The first that is missing.
    pub(crate) fn check_routes(&self, link: &Link) -> Result<(), CniError> {
        self.previous.routes.iter().try_for_each(|wanted| has_route(&self.container.route, link, wanted))
    }
}

/// Checks that the container has a route of the result; see [`Inside::check_routes`].
///
/// # Errors
/// The route is missing, or the routes cannot be read.
pub(crate) fn has_route(route: &RouteSocket, link: &Link, wanted: &Route) -> Result<(), CniError> {
    let table = wanted.table.unwrap_or(MAIN_TABLE);
    let present = route.routes(AddressFamily::of(wanted.dst.addr()), table).map_err(failed)?;
    let is_default = wanted.dst.prefix_len() == 0;
    // The unspecified address means an on-link route, which has no gateway in the kernel.
    let gateway = wanted.gw.filter(|gateway| !gateway.is_unspecified());
    let found = present.iter().any(|is| {
        is.dst == wanted.dst.trunc()
            && (is_default || is.link == Some(link.index))
            && (is_default || wanted.gw.is_none() || is.gateway == gateway)
            && (wanted.priority == 0 || is.metric == wanted.priority)
    });
    if found {
        return Ok(());
    }
    let via = wanted.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
    Err(wrong(format!("Expected Route {}{via} not found in routing table", wanted.dst)))
}

/// Checks that a link has all of the addresses.
///
/// # Errors
/// The first that is missing.
pub(crate) fn has_addresses(route: &RouteSocket, link: &Link, wanted: &[IpNet]) -> Result<(), CniError> {
    let present = route.addresses(link).map_err(failed)?;
    match wanted.iter().find(|net| !present.iter().any(|address| address.net == **net)) {
        Some(net) => Err(wrong(format!("Failed to match addr {net} on interface {}", link.name))),
        None => Ok(()),
    }
}

pub(crate) fn present(route: &RouteSocket, name: &str) -> Result<Link, CniError> {
    route.find_link(name).map_err(failed)?.ok_or_else(|| wrong(format!("Interface {name} not found")))
}

/// True if the link has the MAC address of the result, or the result has none.
pub(crate) fn same_mac(link: &Link, expected: &Interface) -> bool {
    expected.mac.is_empty() || expected.mac.parse().is_ok_and(|mac| link.mac == Some(mac))
}

/// The error for a difference.
pub(crate) fn wrong(msg: String) -> CniError {
    CniError::internal(msg)
}
