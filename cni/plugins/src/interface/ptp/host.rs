// SPDX-License-Identifier: GPL-2.0-or-later

//! The host's side: the gateway of one container.

use cni_dataplane::owner::Owner;
use cni_kernel::route::{DuplicateDetection, Existing, Link, LinkChange, OperState, Route, RouteScope};
use cni_kernel::sysctl;
use cni_spec::{Attachment, CniError, ErrorCode};
use ipnet::IpNet;

use super::plan::Outside;
use crate::interface::shared::host::Host;
use crate::interface::shared::{failed, optional, spare};

impl Host {
    /// Sets the host's end up, with the owner as its alias, the gateways' addresses and the routes to the
    /// container's addresses.
    pub(super) fn serve(
        &self,
        outer: &Link,
        outside: &Outside,
        attachment: &Attachment,
    ) -> Result<(), CniError> {
        // The node must not accept routes from a container.
        let name = |setting: &str| format!("net/ipv6/conf/{}/{setting}", outer.name);
        optional(sysctl::set(&name("accept_ra"), "0"))?;
        for (setting, value) in [("accept_dad", "0"), ("keep_addr_on_down", "1")] {
            spare(sysctl::set(&name(setting), value));
        }
        let change = LinkChange::new().alias(&Owner::of(attachment).to_comment()).up();
        self.route.change_link(outer, &change).map_err(failed)?;
        self.give_addresses(outer, outside)?;
        self.lead_to(outer, outside)
    }

    pub(super) fn give_addresses(&self, outer: &Link, outside: &Outside) -> Result<(), CniError> {
        for gateway in &outside.gateways {
            // Duplicate address detection is skipped, because the link has no other hosts.
            match self.route.add_address_without_route(outer, *gateway, DuplicateDetection::Skip) {
                Err(error) if !error.already_exists() => {
                    return Err(CniError::internal(format!(
                        "failed to add IP addr {gateway} to {:?}: {error}",
                        outer.name
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds the routes to the container's addresses.
    pub(super) fn lead_to(&self, outer: &Link, outside: &Outside) -> Result<(), CniError> {
        for container in &outside.containers {
            match self.route.add_route(&to_container(*container, outer), Existing::Refuse) {
                Err(error) if error.already_exists() => {
                    let found = self.route.link_to(container.addr()).ok().flatten();
                    if found != Some(outer.index) {
                        return Err(self.taken_address(*container));
                    }
                }
                Err(error) => {
                    return Err(CniError::internal(format!("failed to add route on host: {error}")));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// The error for an address whose route leads to another link, with its owner. That container still
    /// exists, as its link goes with its namespace.
    fn taken_address(&self, container: IpNet) -> CniError {
        let address = container.addr();
        let link = self.route.link_to(address).ok().flatten();
        let link = link.and_then(|index| self.route.link_by_index(index).ok());
        let owner = link.as_ref().and_then(|link| Owner::from_comment(&link.alias));
        let (holder, way_out) = match (&owner, &link) {
            (Some(owner), _) => (owner.to_string(), owner.way_out()),
            (None, Some(link)) => (format!("the route to link {}", link.name), String::new()),
            (None, None) => ("another route".to_owned(), String::new()),
        };
        let text = format!("container address {address} is taken by {holder}");
        CniError::new(ErrorCode::TryAgainLater, text).with_details(way_out)
    }

    /// Waits until packets can pass between the ends.
    pub(super) fn wait_for_pair(&self, outer: &Link) -> Result<(), CniError> {
        let seen = self.wait_until_up(outer)?;
        if seen.state == OperState::Up {
            return Ok(());
        }
        Err(CniError::internal(format!("link {} does not come up: its state is {}", seen.name, seen.state)))
    }
}

/// The route to a container's address, of host scope as in the reference.
pub(super) fn to_container(container: IpNet, outer: &Link) -> Route {
    Route { link: Some(outer.index), scope: Some(RouteScope::HOST), ..Route::to(container) }
}
