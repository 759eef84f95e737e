// SPDX-License-Identifier: GPL-2.0-or-later

//! UDP GRO forwarding at the uplinks: the kernel merges datagrams of one flow that arrive together. Rules, routes and
//! BPF programs then see them as one packet, which is split again where it leaves the node or in the container's
//! socket.

use cni_kernel::ethtool::{self, FeatureError, Switch, UDP_GRO_FORWARDING};
use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket};

use super::uplinks;
use crate::Error;

/// A device that receives an uplink's packets, with the state of the feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merging {
    pub link: String,
    /// The feature's state, or the reason why it cannot be read or set.
    pub state: Result<Switch, FeatureError>,
}

/// Reads the state of each uplink's devices. The uplinks are found as for [`super::Settings::uplinks`].
pub fn merging(uplinks: &[String]) -> Result<Vec<Merging>, Error> {
    each(uplinks, |link| ethtool::feature(link, UDP_GRO_FORWARDING))
}

/// Switches the feature at each device of the uplinks.
pub fn switch_merging(uplinks: &[String], switch: Switch) -> Result<Vec<Merging>, Error> {
    each(uplinks, |link| ethtool::set_feature(link, UDP_GRO_FORWARDING, switch).map(|()| switch))
}

fn each(named: &[String], act: impl Fn(&str) -> Result<Switch, FeatureError>) -> Result<Vec<Merging>, Error> {
    let names = || -> Result<Vec<String>, RouteError> {
        let (chosen, links) = (uplinks::find(named)?, RouteSocket::open()?.links()?);
        let mut names: Vec<String> = chosen.keys().flat_map(|index| devices(&links, *index)).collect();
        names.sort();
        names.dedup();
        Ok(names)
    };
    let names = names().map_err(|e| Error::kernel("look for the devices of uplinks", e))?;
    let state = |link: String| Merging { state: act(&link), link };
    Ok(names.into_iter().map(state).collect())
}

/// The names of the devices that receive an uplink's packets. The uplink may be a bond, a bridge or a VLAN, but
/// packets are merged where they arrive. A bridge's ports to containers do not count.
fn devices(links: &[Link], index: u32) -> Vec<String> {
    let Some(link) = links.iter().find(|link| link.index == index) else { return Vec::new() };
    let below: Vec<u32> = match (&link.kind, link.peer) {
        (LinkKind::Vlan(_), Some(below)) if link.peer_netns.is_none() => vec![below],
        _ => {
            let is_container = |port: &Link| link.kind == LinkKind::Bridge && port.kind == LinkKind::Veth;
            let ports = links.iter().filter(|port| port.master == Some(index) && !is_container(port));
            ports.map(|port| port.index).collect()
        }
    };
    // The recursion ends, because the kernel refuses links that form a cycle.
    match below[..] {
        [] => vec![link.name.clone()],
        _ => below.into_iter().flat_map(|index| devices(links, index)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_merged_at_the_devices_below() {
        let link = |index, name: &str, kind, master, peer| Link {
            index,
            name: name.to_owned(),
            kind,
            master,
            peer,
            ..Link::default()
        };
        let bond = || LinkKind::Other("bond".to_owned());
        let links = [
            link(1, "eth0", LinkKind::Plain, Some(3), None),
            link(2, "eth1", LinkKind::Plain, Some(3), None),
            link(3, "bond0", bond(), Some(5), None),
            link(4, "bond0.7", LinkKind::Vlan(7), None, Some(3)),
            link(5, "br0", LinkKind::Bridge, None, None),
            link(6, "veth0", LinkKind::Veth, Some(5), Some(2)),
            link(7, "out0", LinkKind::Veth, None, Some(2)),
        ];
        for index in [3, 4, 5] {
            assert_eq!(devices(&links, index), ["eth0", "eth1"], "{index}");
        }
        assert_eq!(devices(&links, 2), ["eth1"]);
        assert_eq!(devices(&links, 7), ["out0"]);
        assert_eq!(devices(&links, 9), [""; 0]);
    }
}
