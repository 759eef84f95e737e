// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state of the plugins whose link is on a link of the node.

use cni_kernel::AddressFamily;
use cni_kernel::route::RouteSocket;
use cni_spec::CniError;

use super::keys::{Below, Place};
use crate::expected::{Expected, Whose};
use crate::interface::shared::check::{Inside, present, previous_result, wrong};
use crate::interface::shared::container::Container;
use crate::interface::shared::expected::Objects;
use crate::interface::shared::{container_side, failed};
use crate::plugin::Request;

/// The objects that the attachment needs: the master, if it is on the node, and those inside the container.
///
/// # Errors
/// The container or its link cannot be found.
pub(crate) fn of(request: &Request<'_>, below: &Below) -> Result<Objects, CniError> {
    let mut all: Objects = Vec::new();
    if below.place != Place::Container {
        let container = Container::open(request.netns.as_deref())?;
        let link = present(&container.route, request.attachment.ifname())?;
        // The kernel knows the present master: the default route may have changed since the ADD.
        let index = link.peer.ok_or_else(|| wrong(format!("link {} has no master", link.name)))?;
        let master = RouteSocket::open().and_then(|host| host.link_by_index(index)).map_err(failed)?;
        all.push(Box::new(Master { name: master.name, index }));
    }
    all.extend(inside(request)?);
    Ok(all)
}

/// The objects inside the container.
///
/// # Errors
/// The container cannot be found.
pub(crate) fn inside(request: &Request<'_>) -> Result<Objects, CniError> {
    container_side::of(Inside::open(request, previous_result(request, "")?, "")?)
}

/// The link of the node through which the container's packets pass.
struct Master {
    name: String,
    index: u32,
}

impl Expected for Master {
    fn name(&self) -> String {
        format!("master {}", self.name)
    }

    fn whose(&self) -> Whose {
        Whose::Theirs
    }

    fn remedy(&self) -> String {
        format!(
            "`ip link set {} up`; to find who sets it down: networkd, NetworkManager, or the journal",
            self.name
        )
    }

    fn stops(&self, _family: AddressFamily, _is_forwarded: bool) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        let master = RouteSocket::open().and_then(|host| host.link_by_index(self.index)).map_err(failed)?;
        if master.up { Ok(()) } else { Err(wrong(format!("master {} is down", master.name))) }
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.check()
    }
}
