// SPDX-License-Identifier: GPL-2.0-or-later

//! Moving a link into a container and back.

use std::time::{Duration, Instant};

use cni_dataplane::owner::Owner;
use cni_kernel::mac::Mac;
use cni_kernel::route::{Link, LinkChange, LinkKind, RouteSocket};
use cni_spec::{CniError, check_ifname};

use super::device::Device;
use super::record::Record;
use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::interface::shared::host::Host;

/// How long a DEL waits for the kernel to move a device back.
const RETURN_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two checks for that.
const RETURN_PAUSE: Duration = Duration::from_millis(50);

/// The two places that a link moves between.
pub(super) struct Places<'a> {
    pub(super) host: &'a Host,
    pub(super) container: &'a Container,
    /// The link's name in the container.
    pub(super) ifname: &'a str,
}

/// A link that was found in the container.
pub(super) struct Found {
    pub(super) link: Link,
    /// The device's name on the node.
    pub(super) host_name: String,
}

impl Places<'_> {
    /// Moves a link of the node into the container and renames it, with its old name as its alias. One
    /// netlink request does it all, so that a killed process leaves the link in one of the two places.
    pub(super) fn move_to_container(&self, link: &Link) -> Result<Link, CniError> {
        let moved = self.host.route.move_link(link, self.container.namespace(), self.ifname, &link.name);
        moved.map_err(|error| CniError::internal(format!("failed to move link {:?}: {error}", link.name)))?;
        self.container.route.link(self.ifname).map_err(failed)
    }

    /// Moves a link back, unless it is on the node already. `link` is its former state on the node.
    pub(super) fn move_back(&self, link: &Link) -> Result<(), CniError> {
        if self.host.route.find_link(&link.name).map_err(failed)?.is_some() {
            return Ok(());
        }
        // The link has its old name if the kernel carried out only the first half of the request.
        for name in [self.ifname, &link.name] {
            let there = self.container.route.find_link(name).map_err(failed)?;
            if let Some(there) = there.filter(|there| there.mac == link.mac && there.kind == link.kind) {
                return self.move_back_as(&there, &link.name, None);
            }
        }
        Err(CniError::internal(format!("link {} is neither on the node nor in the container", link.name)))
    }

    /// Sets a link of the node up.
    pub(super) fn set_up(&self, link: &Link) -> Result<(), CniError> {
        let link = self.host.route.link(&link.name).map_err(failed)?;
        self.host.route.change_link(&link, &LinkChange::new().up()).map_err(failed)
    }

    /// Finds the attachment's link in the container; none if it is gone, or if the name belongs to another
    /// link. `previous` is the MAC address in `prevResult`.
    pub(super) fn find_in_container(
        &self,
        device: Option<&Device>,
        previous: Option<Mac>,
        record: Option<&Record>,
    ) -> Result<Option<Found>, CniError> {
        let Some(link) = self.container.route.find_link(self.ifname).map_err(failed)? else {
            return Ok(None);
        };
        match record {
            Some(record) => Ok(Self::recorded(link, device, record)),
            None => Self::by_alias(link, device, previous, self.ifname),
        }
    }

    /// The link, if it may be the device of the record.
    fn recorded(link: Link, device: Option<&Device>, record: &Record) -> Option<Found> {
        if !record.may_be(&link) {
            log::warn!(
                "link {} of the container is not the device {}: it stays there",
                link.name,
                record.name
            );
            return None;
        }
        let is_device = match device {
            Some(Device::Name(name)) => record.has_name(name),
            Some(Device::Mac(mac)) => record.has_mac(*mac),
            Some(Device::Path(_) | Device::Pci(_) | Device::Auxiliary(_)) | None => true,
        };
        if !is_device {
            log::debug!("link {} of the container is another attachment's {}", link.name, record.name);
            return None;
        }
        Some(Found { link, host_name: record.name.clone() })
    }

    /// The link, if its alias shows that it may be the device.
    fn by_alias(
        link: Link,
        device: Option<&Device>,
        previous: Option<Mac>,
        ifname: &str,
    ) -> Result<Option<Found>, CniError> {
        if Owner::from_comment(&link.alias).is_some() {
            return Ok(None); // Made by another plugin.
        }
        if link.alias.is_empty() {
            let msg = format!("failed to find original ifname for {ifname:?} (alias is not set)");
            return Err(CniError::internal(msg));
        }
        check_ifname(&link.alias).map_err(|error| {
            CniError::internal(format!(
                "the alias of link {} is not a valid name of a link: {error}",
                link.name
            ))
        })?;
        if !Self::is_device(&link, device, previous) {
            log::debug!("link {} of the container is another attachment's {}", link.name, link.alias);
            return Ok(None);
        }
        let host_name = link.alias.clone();
        Ok(Some(Found { link, host_name }))
    }

    /// True if a link of the container may be the configured device. By path or bus it cannot be checked:
    /// `/sys` shows the node's links only.
    fn is_device(link: &Link, device: Option<&Device>, previous: Option<Mac>) -> bool {
        match device {
            Some(Device::Name(name)) if link.alias == *name => true,
            // A link keeps its alternative names when it moves.
            Some(Device::Name(name)) => link.alternative_names.contains(name),
            // The container may have changed the MAC address since the ADD.
            Some(Device::Mac(mac)) => link.mac == Some(*mac) || previous == Some(*mac),
            Some(Device::Path(_) | Device::Pci(_) | Device::Auxiliary(_)) | None => true,
        }
    }

    /// Moves a link of the container to the node and renames it. The link is down afterwards, and without alias.
    ///
    /// A single netlink request moves and renames the link. Therefore a killed process leaves the link in one of the
    /// two places, and a link that is still in the container has the attachment's name.
    pub(super) fn move_back_as(
        &self,
        link: &Link,
        name: &str,
        record: Option<&Record>,
    ) -> Result<(), CniError> {
        let (here, there) = (&self.host.route, &self.container.route);
        let cannot = |why: &str| {
            CniError::internal(format!("failed to move link {name} back from the container: {why}"))
        };
        // The kernel would move the link before it notices that the name is taken.
        if here.find_link(name).map_err(failed)?.is_some() {
            return Err(cannot("the node has another link of that name"));
        }
        if link.up {
            there.change_link(link, &LinkChange::new().down()).map_err(failed)?;
        }
        there.move_link(link, &self.host.netns, name, name).map_err(|error| cannot(&error.to_string()))?;
        let moved = here.link(name).map_err(failed)?;
        if let Some(record) = record {
            record.restore(here, &moved)?;
        }
        here.change_link(&moved, &LinkChange::new().alias("")).map_err(failed)
    }
}

/// Waits until the kernel has moved the device back from a namespace that is gone, which it does
/// asynchronously (`cleanup_net` in `net/core/net_namespace.c`), and restores its name ([`settle`]). A device
/// that does not come back is in another container, or was deleted with the namespace.
pub(super) fn await_return(
    route: &RouteSocket,
    device: &Device,
    absence: &Absence<'_>,
) -> Result<(), CniError> {
    let end = Instant::now() + RETURN_LIMIT;
    loop {
        settle(route, device, absence)?;
        // Without a result no ADD has moved the device.
        if absence.previous.is_none() || !device.may_return() || Instant::now() >= end {
            return Ok(());
        }
        if device.find_if_there(route)?.is_some() {
            // The kernel may have returned the device in the meantime.
            return settle(route, device, absence);
        }
        std::thread::sleep(RETURN_PAUSE);
    }
}

/// Identifies a device that may have come back from a container without a DEL.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Absence<'a> {
    /// The device's name in the container.
    pub(super) ifname: &'a str,
    /// The MAC address in `prevResult`, for a container whose namespace is gone.
    pub(super) previous: Option<Mac>,
    /// The record of the ADD, for a container whose namespace is gone.
    pub(super) record: Option<&'a Record>,
}

impl Absence<'_> {
    /// The name that a link had on the node, if it is the device.
    fn name_of<'b>(&'b self, link: &'b Link) -> &'b str {
        self.record.map_or(link.alias.as_str(), |record| record.name.as_str())
    }

    /// True if the link has the MAC address that the device had.
    fn has_mac(&self, link: &Link) -> bool {
        let is_recorded = |mac: Mac| self.record.is_some_and(|record| record.has_mac(mac));
        link.mac.is_some_and(|mac| self.previous == Some(mac) || is_recorded(mac))
    }
}

/// Renames a link that the kernel has moved back to the node. The kernel keeps its name in the container, or
/// calls it `dev` and a number if that is taken (`default_device_exit_net` in `net/core/dev.c`). Leaves alone
/// a link that is up, or, without a record, that has no alias.
pub(super) fn settle(route: &RouteSocket, device: &Device, absence: &Absence<'_>) -> Result<(), CniError> {
    let links = match device {
        Device::Name(name) => {
            // The link is found by its alias, by an alternative name, or by its record.
            let named = route.find_link(name).map_err(failed)?.map(|link| link.index);
            let is_recorded = |link: &Link| absence.record.is_some() && absence.has_mac(link);
            let mut links = route.links().map_err(failed)?;
            links.retain(|link| {
                link.alias == *name || (Some(link.index) == named && link.name != *name) || is_recorded(link)
            });
            links
        }
        // A missing device has nothing to settle.
        device => device.find_if_there(route)?.into_iter().collect(),
    };
    for link in links.iter().filter(|link| is_stranded(link, device, absence)) {
        let name = absence.name_of(link);
        if link.name != name {
            route.change_link(link, &LinkChange::new().rename(name)).map_err(failed)?;
        }
        if let Some(record) = absence.record {
            record.restore(route, link)?;
        }
        route.change_link(link, &LinkChange::new().alias("")).map_err(failed)?;
    }
    Ok(())
}

/// True if a link of the node came back from a container without a DEL, or if its DEL was killed at the last
/// step.
///
/// An administrator may have set the alias. So it must be the configured name of the device, or `prevResult` or the
/// record must show that the link was in the container.
fn is_stranded(link: &Link, device: &Device, absence: &Absence<'_>) -> bool {
    let numbered = |name: &str| {
        name.strip_prefix("dev")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let may_be = |name: &str| absence.record.is_none_or(|record| record.has_name(name));
    let has_alias = matches!(device, Device::Name(name) if link.alias == *name && may_be(name));
    let was_away = has_alias || absence.has_mac(link);
    let renamed = was_away && (link.name == absence.ifname || numbered(&link.name));
    let movable = !matches!(link.kind, LinkKind::Bridge);
    let name = absence.name_of(link);
    !link.up && movable && check_ifname(name).is_ok() && (link.name == name || renamed)
}

#[cfg(test)]
mod tests {
    use cni_kernel::netns::NetnsId;
    use cni_kernel::route::OperState;

    use super::*;

    fn away(previous: Option<Mac>) -> Absence<'static> {
        Absence { ifname: "eth0", previous, record: None }
    }

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
    fn a_link_that_came_back_is_recognised_by_its_name() {
        let named = Device::Name("ens5".to_owned());
        for (name, alias, expected) in [
            ("eth0", "ens5", true),
            ("dev12", "ens5", true),
            ("ens5", "ens5", true),
            // An administrator's alias.
            ("ens5", "uplink", false),
            ("development", "ens5", false),
            ("eth0", "", false),
            ("eth0", "the link to the rack", false),
        ] {
            assert_eq!(is_stranded(&link(name, alias), &named, &away(None)), expected, "{name} {alias}");
        }
        assert!(!is_stranded(&Link { up: true, ..link("eth0", "ens5") }, &named, &away(None)));
    }

    /// The container wrote the alias.
    #[test]
    fn a_device_with_a_record_gets_the_name_of_the_record() {
        let netns = NetnsId { dev: 4, ino: 5 };
        let record = Record::new(&Link { mac: Some(MAC), ..link("ens5", "") }, netns);
        let absence = Absence { record: Some(&record), ..away(None) };
        for device in [Device::Name("ens5".to_owned()), Device::Mac(MAC), Device::Pci("0".to_owned())] {
            for (name, alias) in [("eth0", "eth1"), ("dev3", ""), ("eth0", "the link to the rack")] {
                let link = Link { mac: Some(MAC), ..link(name, alias) };
                assert!(is_stranded(&link, &device, &absence), "{device:?}: {name} {alias}");
                assert_eq!(absence.name_of(&link), "ens5");
            }
            let other = Link { mac: Some(Mac([2, 0, 0, 0, 0, 8])), ..link("eth0", "eth1") };
            assert!(!is_stranded(&other, &device, &absence), "{device:?}");
        }
    }

    /// The alias may be an administrator's.
    #[test]
    fn a_device_that_is_not_configured_by_name_needs_the_mac_address_of_the_result() {
        let here = |name, alias| Link { mac: Some(MAC), ..link(name, alias) };
        let other = Mac([2, 0, 0, 0, 0, 8]);
        for device in [
            Device::Mac(MAC),
            Device::Path("/sys/devices/a".into()),
            Device::Pci("0".to_owned()),
            Device::Name("an alternative name".to_owned()),
        ] {
            for (name, alias, previous, expected) in [
                ("eth0", "uplink", None, false),
                ("dev3", "uplink", None, false),
                ("eth0", "ens5", Some(other), false),
                ("eth0", "ens5", Some(MAC), true),
                ("dev3", "ens5", Some(MAC), true),
                ("ens5", "uplink", Some(MAC), false),
                // A DEL that was killed before it had cleared the alias.
                ("ens5", "ens5", None, true),
            ] {
                let seen = is_stranded(&here(name, alias), &device, &away(previous));
                assert_eq!(seen, expected, "{name} {alias} {previous:?}");
            }
            assert!(!is_stranded(&link("eth0", "ens5"), &device, &away(None)), "without an address");
        }
    }
}
