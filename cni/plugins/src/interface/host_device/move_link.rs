//! The way of a link into a container and back.

use std::time::{Duration, Instant};

use cni_dataplane::owner::Owner;
use cni_kernel::mac::Mac;
use cni_kernel::route::{Link, LinkChange, LinkKind, RouteSocket};
use cni_spec::{CniError, check_ifname};

use super::device::Device;
use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::interface::shared::host::Host;

/// How long a DEL waits for a device that the kernel brings back.
const RETURN_PATIENCE: Duration = Duration::from_secs(2);
/// How often it looks meanwhile.
const RETURN_PAUSE: Duration = Duration::from_millis(50);

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

    /// The attachment's link in the container, and its name on the node; none when it is gone, or when the
    /// link of the name is another's. `told` is the address that the ADD's result told.
    ///
    /// # Errors
    /// The link of the name does not say where it belongs.
    pub(super) fn find_abroad(
        &self,
        device: Option<&Device>,
        told: Option<Mac>,
    ) -> Result<Option<(Link, String)>, CniError> {
        let Some(link) = self.container.route.find_link(self.ifname).map_err(failed)? else {
            return Ok(None);
        };
        if Owner::from_comment(&link.alias).is_some() {
            return Ok(None); // Another plugin has made it.
        }
        if link.alias.is_empty() {
            let ifname = self.ifname;
            let msg = format!("failed to find original ifname for {ifname:?} (alias is not set)");
            return Err(CniError::internal(msg));
        }
        check_ifname(&link.alias).map_err(|error| {
            CniError::internal(format!("the alias of link {} is no name of a link: {error}", link.name))
        })?;
        if !Self::is_meant(&link, device, told) {
            log::debug!("link {} of the container is another attachment's {}", link.name, link.alias);
            return Ok(None);
        }
        let name = link.alias.clone();
        Ok(Some((link, name)))
    }

    /// Whether a link of the container's is the device that the configuration names, as far as can be told
    /// from here: what is below `/sys` is the node's.
    fn is_meant(link: &Link, device: Option<&Device>, told: Option<Mac>) -> bool {
        match device {
            Some(Device::Name(name)) if link.alias == *name => true,
            // An alternative name goes with the link.
            Some(Device::Name(name)) => link.alternative_names.contains(name),
            // Its address may be another by now; that it was this one, the result tells.
            Some(Device::Mac(mac)) => link.mac == Some(*mac) || told == Some(*mac),
            Some(Device::Path(_) | Device::Pci(_) | Device::Auxiliary(_)) | None => true,
        }
    }

    /// Moves a link of the container's to the node, under that name. It is down afterwards.
    ///
    /// One request does it all, so that a kill leaves the link here or there, and a link in the container
    /// is the attachment's under the attachment's name only.
    pub(super) fn bring_home_as(&self, link: &Link, name: &str) -> Result<(), CniError> {
        let (here, there) = (&self.host.route, &self.container.route);
        let cannot = |why: &str| {
            CniError::internal(format!("failed to bring link {name} home from the container: {why}"))
        };
        // The kernel moves it before it finds that out.
        if here.find_link(name).map_err(failed)?.is_some() {
            return Err(cannot("the node has another link of that name"));
        }
        if link.up {
            there.change_link(link, &LinkChange::new().down()).map_err(failed)?;
        }
        there.move_link(link, &self.host.netns, name, name).map_err(|error| cannot(&error.to_string()))?;
        let home = here.link(name).map_err(failed)?;
        here.change_link(&home, &LinkChange::new().alias("")).map_err(failed)
    }
}

/// Waits until the kernel has brought the device back from a namespace that is gone, which it does some time
/// after the namespace went (`cleanup_net` in `net/core/net_namespace.c`), and settles it. A device that
/// does not come is with another container, or went with the namespace.
pub(super) fn await_return(
    route: &RouteSocket,
    device: &Device,
    ifname: &str,
    told: Option<Mac>,
) -> Result<(), CniError> {
    let end = Instant::now() + RETURN_PATIENCE;
    loop {
        settle(route, device, ifname, told)?;
        // Without a result there was no ADD that ended well: nothing is under way.
        let awaited = told.is_some() && device.may_return() && device.find(route).is_err();
        if !awaited || Instant::now() >= end {
            return Ok(());
        }
        std::thread::sleep(RETURN_PAUSE);
    }
}

/// Gives a link that the kernel has brought back to the node its name again: it keeps the one that it had
/// in the container, or is called `dev` and a number where that is taken (`default_device_exit_net` in
/// `net/core/dev.c`). A link that is in use, or that does not say where it belongs, is left alone.
///
/// `told` is the address that the ADD's result told of the link, for a container whose namespace is gone.
pub(super) fn settle(
    route: &RouteSocket,
    device: &Device,
    ifname: &str,
    told: Option<Mac>,
) -> Result<(), CniError> {
    let links = match device {
        Device::Name(name) => {
            // By its alias, or by an alternative name.
            let named = route.find_link(name).map_err(failed)?.map(|link| link.index);
            let mut links = route.links().map_err(failed)?;
            links.retain(|link| link.alias == *name || (Some(link.index) == named && link.name != *name));
            links
        }
        // What is not there need not be settled.
        device => device.find(route).into_iter().collect(),
    };
    for link in links.iter().filter(|link| is_stranded(link, device, ifname, told)) {
        if link.name != link.alias {
            route.change_link(link, &LinkChange::new().rename(&link.alias)).map_err(failed)?;
        }
        route.change_link(link, &LinkChange::new().alias("")).map_err(failed)?;
    }
    Ok(())
}

/// Whether a link of the node's is one that came back from a container without a DEL, or whose DEL was
/// killed at its last step.
///
/// An alias may also be an administrator's. That it is the name which the configuration has for the device
/// speaks against that; for a device that the configuration names otherwise, the result of an ADD must tell
/// that the link was in the container.
fn is_stranded(link: &Link, device: &Device, ifname: &str, told: Option<Mac>) -> bool {
    let numbered = |name: &str| {
        name.strip_prefix("dev")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let was_away =
        matches!(device, Device::Name(name) if link.alias == *name) || (told.is_some() && told == link.mac);
    let renamed = was_away && (link.name == ifname || numbered(&link.name));
    let movable = !matches!(link.kind, LinkKind::Bridge);
    !link.up && movable && check_ifname(&link.alias).is_ok() && (link.name == link.alias || renamed)
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
            mtu: 1500,
            state: OperState::Down,
            ..Link::default()
        }
    }

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);

    #[test]
    fn what_came_back_by_itself_is_known_by_its_name() {
        let named = Device::Name("ens5".to_owned());
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
            assert_eq!(is_stranded(&link(name, alias), &named, "eth0", None), expected, "{name} {alias}");
        }
        assert!(!is_stranded(&Link { up: true, ..link("eth0", "ens5") }, &named, "eth0", None));
    }

    /// The alias may be an administrator's, and the link never have been away.
    #[test]
    fn a_device_that_is_not_known_by_name_was_away_if_the_result_tells_so() {
        let here = |name, alias| Link { mac: Some(MAC), ..link(name, alias) };
        let other = Mac([2, 0, 0, 0, 0, 8]);
        for device in [
            Device::Mac(MAC),
            Device::Path("/sys/devices/a".into()),
            Device::Pci("0".to_owned()),
            Device::Name("an alternative name".to_owned()),
        ] {
            for (name, alias, told, expected) in [
                ("eth0", "uplink", None, false),
                ("dev3", "uplink", None, false),
                ("eth0", "ens5", Some(other), false),
                ("eth0", "ens5", Some(MAC), true),
                ("dev3", "ens5", Some(MAC), true),
                ("ens5", "uplink", Some(MAC), false),
                // A DEL that was killed before it had cleared the alias.
                ("ens5", "ens5", None, true),
            ] {
                let seen = is_stranded(&here(name, alias), &device, "eth0", told);
                assert_eq!(seen, expected, "{name} {alias} {told:?}");
            }
            assert!(!is_stranded(&link("eth0", "ens5"), &device, "eth0", None), "without an address");
        }
    }
}
