//! The way of a link into a container and back.

use cni_dataplane::owner::Owner;
use cni_kernel::route::{Link, LinkChange, LinkKind, RouteSocket};
use cni_spec::{CniError, check_ifname};

use super::device::Device;
use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::interface::shared::host::Host;

/// Between which places a link moves.
pub(super) struct Journey<'a> {
    /// The node.
    pub(super) host: &'a Host,
    /// The container.
    pub(super) container: &'a Container,
    /// The link's name in the container.
    pub(super) ifname: &'a str,
}

impl Journey<'_> {
    /// Moves a link of the node's into the container, under the name that the runtime chose, with its own
    /// as its alias. One request does it all, so that a kill leaves the link here or there.
    pub(super) fn take_there(&self, link: &Link) -> Result<Link, CniError> {
        let moved = self.host.route.move_link(link, self.container.namespace(), self.ifname, &link.name);
        moved.map_err(|error| CniError::internal(format!("failed to move link {:?}: {error}", link.name)))?;
        self.container.route.link(self.ifname).map_err(failed)
    }

    /// Brings the link that was taken there home, if it is not. `link` is as it was on the node.
    pub(super) fn bring_home(&self, link: &Link) -> Result<(), CniError> {
        if self.host.route.find_link(&link.name).map_err(failed)?.is_some() {
            return Ok(());
        }
        // Under its old name, if only the first half of the request was carried out.
        for name in [self.ifname, &link.name] {
            let there = self.container.route.find_link(name).map_err(failed)?;
            if let Some(there) = there.filter(|there| there.mac == link.mac && there.kind == link.kind) {
                return self.bring_home_as(&there, &link.name);
            }
        }
        Err(CniError::internal(format!("link {} is neither on the node nor in the container", link.name)))
    }

    /// Switches a link of the node's on.
    pub(super) fn switch_on(&self, link: &Link) -> Result<(), CniError> {
        let link = self.host.route.link(&link.name).map_err(failed)?;
        self.host.route.change_link(&link, &LinkChange::new().up()).map_err(failed)
    }

    /// The attachment's link in the container, and its name on the node; none when it is gone.
    ///
    /// # Errors
    /// The link of the name does not say where it belongs.
    pub(super) fn find_abroad(&self) -> Result<Option<(Link, String)>, CniError> {
        let route = &self.container.route;
        if let Some(link) = route.find_link(self.ifname).map_err(failed)? {
            if Owner::from_comment(&link.alias).is_some() {
                return Ok(None); // Another plugin has made it.
            }
            if link.alias.is_empty() {
                let ifname = self.ifname;
                let msg = format!("failed to find original ifname for {ifname:?} (alias is not set)");
                return Err(CniError::internal(msg));
            }
            let name = link.alias.clone();
            return Ok(Some((link, name)));
        }
        // One that a DEL which was killed had named for the way home already.
        let links = route.links().map_err(failed)?;
        let leaving = links.into_iter().find(|link| !link.alias.is_empty() && link.alias == link.name);
        Ok(leaving.map(|link| (link.clone(), link.name)))
    }

    /// Moves a link of the container's to the node, under that name. It is down afterwards.
    pub(super) fn bring_home_as(&self, link: &Link, name: &str) -> Result<(), CniError> {
        check_ifname(name).map_err(|error| {
            CniError::internal(format!("the alias of link {} is no name of a link: {error}", link.name))
        })?;
        let (here, there) = (&self.host.route, &self.container.route);
        if link.up {
            there.change_link(link, &LinkChange::new().down()).map_err(failed)?;
        }
        // It gets its name before it appears on the node, where others watch for new links. If the
        // container has another link of that name, it gets it on the way.
        if link.name != name {
            match there.change_link(link, &LinkChange::new().rename(name).alias(name)) {
                Err(error) if error.already_exists() => log::debug!("{error}"),
                other => other.map_err(failed)?,
            }
        }
        there.move_link(link, &self.host.netns, name, name).map_err(|error| {
            CniError::internal(format!("failed to bring link {name} home from the container: {error}"))
        })?;
        let home = here.link(name).map_err(failed)?;
        here.change_link(&home, &LinkChange::new().alias("")).map_err(failed)
    }
}

/// Gives a link that the kernel has brought back to the node its name again: it keeps the one that it had
/// in the container, or is called `dev` and a number where that is taken (`default_device_exit_net` in
/// `net/core/dev.c`). A link that is in use, or that does not say where it belongs, is left alone.
pub(super) fn settle(route: &RouteSocket, device: &Device, ifname: &str) -> Result<(), CniError> {
    let links = match device {
        Device::Name(name) => {
            let mut links = route.links().map_err(failed)?;
            links.retain(|link| link.alias == *name);
            links
        }
        // What is not there need not be settled.
        device => device.find(route).into_iter().collect(),
    };
    for link in links.iter().filter(|link| is_stranded(link, ifname)) {
        if link.name != link.alias {
            route.change_link(link, &LinkChange::new().rename(&link.alias)).map_err(failed)?;
        }
        route.change_link(link, &LinkChange::new().alias("")).map_err(failed)?;
    }
    Ok(())
}

/// Whether a link of the node's is one that came back from a container without a DEL, or whose DEL was
/// killed at its last step.
fn is_stranded(link: &Link, ifname: &str) -> bool {
    let numbered = |name: &str| {
        name.strip_prefix("dev")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let known = link.name == link.alias || link.name == ifname || numbered(&link.name);
    let device = !matches!(link.kind, LinkKind::Bridge);
    !link.up && known && device && check_ifname(&link.alias).is_ok()
}

#[cfg(test)]
mod tests {
    use cni_kernel::route::OperState;

    use super::*;

    fn link(name: &str, alias: &str) -> Link {
        Link {
            index: 7,
            name: name.to_owned(),
            alias: alias.to_owned(),
            mac: None,
            mtu: 1500,
            kind: LinkKind::Plain,
            up: false,
            promiscuous: false,
            all_multicast: false,
            tx_queue: 0,
            state: OperState::Down,
            master: None,
            peer: None,
            peer_netns: None,
            port: None,
            vlan_filtering: None,
            vrf_table: None,
            route_localnet: false,
            accept_ra: 0,
        }
    }

    #[test]
    fn what_came_back_by_itself_is_known_by_its_name() {
        for (name, alias, expected) in [
            ("eth0", "ens5", true),
            ("dev12", "ens5", true),
            ("ens5", "ens5", true),
            // An alias that somebody else has written.
            ("ens5", "uplink", false),
            ("development", "ens5", false),
            ("eth0", "", false),
            ("eth0", "the link to the rack", false),
        ] {
            assert_eq!(is_stranded(&link(name, alias), "eth0"), expected, "{name} {alias}");
        }
        assert!(!is_stranded(&Link { up: true, ..link("eth0", "ens5") }, "eth0"));
    }
}
