// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK: compares the result of the ADD with the kernel's state.

use cni_kernel::AddressFamily;
use cni_kernel::route::{Link, MAIN_TABLE, Route, RouteSocket};
use cni_spec::{AddResult, CniError, Interface};

use super::plan::own_routes;
use crate::interface::shared::check::{Inside, previous_result, wrong};
use crate::interface::shared::failed;
use crate::interface::shared::host::Host;
use crate::interface::shared::keys::Common;
use crate::plugin::Request;
use crate::skel::delegate;

/// The prefix of the reference's messages.
pub(super) const PLUGIN: &str = "ptp: ";

pub(super) fn check(request: &Request<'_>) -> Result<(), CniError> {
    let common = Common::new(request.config)?;
    if common.ipam {
        delegate::ipam_check(request)?;
    }
    let previous = previous_result(request, PLUGIN)?;
    let inside = Inside::open(request, previous, PLUGIN)?;
    let host = Host::open()?;

    let inner = inside.check_link()?;
    inside.check_addresses(&inner)?;
    inside.check_routes(&inner)?;
    common.advertisements.check(&inside.container.route, &inner)?;
    let ips = inside.ips();
    let tables = tables(&inside.container.route, &inner, previous)?;
    for wanted in &own_routes(&ips)? {
        let wanted = Route { link: Some(inner.index), ..wanted.clone() };
        has_route(&inside.container.route, &wanted, &tables)?;
    }
    check_outer(&host.route, previous, &inner)
}

/// The host's end: the peer of the container's end, and an interface of the result.
fn check_outer(route: &RouteSocket, previous: &AddResult, inner: &Link) -> Result<(), CniError> {
    let missing = || wrong(format!("{PLUGIN}host end of container interface {} was not found", inner.name));
    let outer = match route.link_by_index(inner.peer.ok_or_else(missing)?) {
        Err(error) if error.is_not_found() => return Err(missing()),
        other => other.map_err(failed)?,
    };
    let named = |interface: &Interface| interface.sandbox.is_empty() && interface.name == outer.name;
    if previous.interfaces.iter().any(named) { Ok(()) } else { Err(missing()) }
}

/// The tables that the container's own routes may be in: a later plugin may have moved them.
fn tables(socket: &RouteSocket, inner: &Link, previous: &AddResult) -> Result<Vec<u32>, CniError> {
    let in_result = previous.routes.iter().filter_map(|route| route.table);
    let vrf = match inner.master.map(|master| socket.link_by_index(master)) {
        Some(Ok(master)) => master.vrf_table,
        Some(Err(error)) if !error.is_not_found() => return Err(failed(error)),
        _ => None,
    };
    Ok([MAIN_TABLE].into_iter().chain(in_result).chain(vrf).collect())
}

pub(super) fn has_route(socket: &RouteSocket, wanted: &Route, tables: &[u32]) -> Result<(), CniError> {
    let mut found = false;
    for table in tables {
        let present = socket.routes(AddressFamily::of(wanted.dst.addr()), *table).map_err(failed)?;
        found |= present
            .iter()
            .any(|is| is.dst == wanted.dst && is.link == wanted.link && is.gateway == wanted.gateway);
    }
    if found { Ok(()) } else { Err(wrong(format!("Expected Route {wanted} not found in routing table"))) }
}
