// SPDX-License-Identifier: GPL-3.0-or-later

//! The MTU of the node's links.

use cni_kernel::route::{Link, RouteError, RouteSocket};

use super::config::BRIDGE;

/// The MTU if no link suggests one.
const FALLBACK_MTU: u32 = 1460;
/// The least MTU that counts: that of an IPv4 packet which every host must take (RFC 791).
const LEAST_MTU: u32 = 576;
/// The least MTU of the links that are up. The loopback does not count, nor do links without a MAC address, such as
/// tunnels, nor the bridge of the pods and its ports.
pub(super) fn least() -> Result<u32, RouteError> {
    Ok(least_of(&RouteSocket::open()?.links()?))
}

fn least_of(links: &[Link]) -> u32 {
    let bridge = links.iter().find(|link| link.name == BRIDGE).map(|link| link.index);
    let counts = |link: &&Link| {
        let is_of_pods = bridge.is_some_and(|bridge| link.index == bridge || link.master == Some(bridge));
        link.up && link.name != "lo" && link.mac.is_some() && !is_of_pods
    };
    let least = links.iter().filter(counts).min_by_key(|link| link.mtu);
    match least {
        Some(link) if link.mtu >= LEAST_MTU => {
            log::debug!("Using interface {} MTU {} as bridge MTU", link.name, link.mtu);
            link.mtu
        }
        _ => {
            log::warn!("Failed to find default bridge MTU, using {FALLBACK_MTU}: no suitable interface");
            FALLBACK_MTU
        }
    }
}

#[cfg(test)]
mod tests {
    use cni_kernel::mac::Mac;

    use super::*;

    fn link(index: u32, name: &str, mtu: u32) -> Link {
        let mac = Some(Mac([2, 0, 0, 0, 0, 1]));
        Link { index, name: name.into(), mtu, mac, up: true, ..Link::default() }
    }

    #[test]
    fn the_least_mtu_of_the_nodes_links_is_that_of_the_bridge() {
        let mut links = vec![
            link(1, "lo", 600),
            link(2, "eth0", 1500),
            link(3, "eth1", 1400),
            Link { up: false, ..link(4, "eth2", 1300) },
            Link { mac: None, ..link(5, "wg0", 1280) },
            link(6, "cbr0", 1000),
            Link { master: Some(6), ..link(7, "veth1", 900) },
        ];
        assert_eq!(least_of(&links), 1400);
        links.push(link(8, "tiny", 500));
        assert_eq!(least_of(&links), FALLBACK_MTU);
        assert_eq!(least_of(&[link(1, "lo", 65536)]), FALLBACK_MTU);
    }
}
