// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK: compares the result of the ADD with the kernel's state.

use cni_kernel::route::{Link, LinkKind, RouteSocket};
use cni_spec::{AddResult, CniError, Interface};

use super::config::Settings;
use crate::interface::shared::check::{Inside, present, previous_result, wrong};
use crate::interface::shared::failed;
use crate::interface::shared::host::Host;
use crate::plugin::Request;
use crate::skel::delegate;

pub(super) fn check(request: &Request<'_>) -> Result<(), CniError> {
    let settings = Settings::new(request.config, request.args)?;
    if settings.common.ipam {
        delegate::ipam_check(request)?;
    }
    let previous = previous_result(request, "")?;
    let inside = Inside::open(request, previous, "")?;
    let host = Host::open()?;

    let bridge = check_bridge(&host.route, previous, &settings)?;
    let inner = inside.check_link()?;
    check_port(&host.route, previous, &bridge, &inner)?;
    inside.check_addresses(&inner)?;
    inside.check_routes(&inner)?;
    settings.common.advertisements.check(&inside.container.route, &inner)
}

fn check_bridge(route: &RouteSocket, previous: &AddResult, settings: &Settings) -> Result<Link, CniError> {
    let name = &settings.bridge;
    let of_host = |interface: &&Interface| interface.sandbox.is_empty() && interface.name == *name;
    if !previous.interfaces.iter().any(|interface| of_host(&interface)) {
        return Err(wrong(format!("CNI created bridge {name} in host namespace was not found")));
    }
    let bridge = present(route, name)?;
    if bridge.kind != LinkKind::Bridge {
        return Err(wrong(format!("Interface {name} does not have link type of bridge")));
    }
    Ok(bridge)
}

fn check_port(
    route: &RouteSocket,
    previous: &AddResult,
    bridge: &Link,
    inner: &Link,
) -> Result<(), CniError> {
    let missing = || wrong(format!("CNI veth created for bridge {} was not found", bridge.name));
    let port = match route.link_by_index(inner.peer.ok_or_else(missing)?) {
        Err(error) if error.is_not_found() => return Err(missing()),
        other => other.map_err(failed)?,
    };
    let named = |interface: &Interface| interface.sandbox.is_empty() && interface.name == port.name;
    if port.master != Some(bridge.index) || !previous.interfaces.iter().any(named) {
        return Err(missing());
    }
    Ok(())
}
