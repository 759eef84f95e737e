// SPDX-License-Identifier: GPL-2.0-or-later

//! Router advertisements on a container's link.
//!
//! A new network namespace accepts every advertisement, even if the container has no IPv6 address from IPAM. A single
//! packet from another container on the bridge, or from any host on the master's network, gives the container a default
//! route, addresses, an MTU and a hop limit (the container's half of CVE-2020-10749). Therefore a container that gets
//! its addresses from IPAM ignores advertisements, unless the configuration asks for them.

use cni_kernel::forwarding::advertised_default_routes;
use cni_kernel::route::{Link, LinkKind, RouteSocket};
use cni_spec::{CniError, NetConf};
use serde::Deserialize;

use super::check::wrong;
use super::container::Container;
use super::failed;

/// Whether a container accepts router advertisements on its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advertisements {
    /// The namespace's own settings decide, and the plugin changes nothing.
    AsNamespace,
    Refuse,
}

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    #[serde(rename = "acceptRA")]
    accept_ra: bool,
}

impl Advertisements {
    /// Reads the key `acceptRA`. `has_addresses` is true if IPAM, or an earlier plugin, gives the link addresses.
    ///
    /// # Errors
    /// Code 7 for a value that cannot be used.
    pub(crate) fn new(config: &NetConf, has_addresses: bool) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        Ok(if has_addresses && !keys.accept_ra { Self::Refuse } else { Self::AsNamespace })
    }

    /// [`Advertisements::new`] for a plugin that gets addresses from IPAM only.
    ///
    /// # Errors
    /// The errors of [`Advertisements::new`].
    pub(crate) fn with_ipam(config: &NetConf) -> Result<Self, CniError> {
        Self::new(config, !config.ipam.is_empty())
    }

    /// Makes the container's link ignore advertisements. Call this while the link is down, and thus before IPAM,
    /// because a DHCP client sets the link up.
    pub(crate) fn apply(self, container: &Container, link: &Link) -> Result<(), CniError> {
        // A dummy link receives nothing.
        if self == Self::AsNamespace || link.accept_ra == 0 || link.kind == LinkKind::Dummy {
            return Ok(());
        }
        container.refuse_advertisements(link)
    }

    /// Compares the container's routes: none of them may have come from an advertisement.
    ///
    /// # Errors
    /// The first default route that came from one.
    pub(crate) fn check(self, route: &RouteSocket, link: &Link) -> Result<(), CniError> {
        if self == Self::AsNamespace {
            return Ok(());
        }
        let learnt = advertised_default_routes(route).map_err(failed)?;
        let Some(route) = learnt.iter().find(|route| route.link == Some(link.index)) else { return Ok(()) };
        Err(wrong(format!(
            "Default route {route} dev {} proto ra was not configured: it comes from a router advertisement",
            link.name
        ))
        .with_details(
            "delete it, and set accept_ra of the link to 0; or let the container accept advertisements with \
             \"acceptRA\": true",
        ))
    }
}

#[cfg(test)]
pub(crate) fn decodes() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<Keys>()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn of(keys: &Value) -> Result<Advertisements, CniError> {
        Advertisements::with_ipam(&configuration("x", keys))
    }

    #[test]
    fn only_containers_with_addresses_refuse_advertisements() {
        let ipam = json!({"type": "host-local"});
        for (keys, wanted) in [
            (json!({}), Advertisements::AsNamespace),
            (json!({"ipam": {}}), Advertisements::AsNamespace),
            (json!({"acceptRA": false}), Advertisements::AsNamespace),
            (json!({"ipam": ipam}), Advertisements::Refuse),
            (json!({"ipam": ipam, "acceptRA": null}), Advertisements::Refuse),
            (json!({"ipam": ipam, "acceptRA": true}), Advertisements::AsNamespace),
            (json!({"ipam": ipam, "AcceptRa": true}), Advertisements::AsNamespace),
        ] {
            assert_eq!(of(&keys).unwrap(), wanted, "{keys}");
        }
        let error = of(&json!({"ipam": ipam, "acceptRA": "yes"})).unwrap_err();
        assert!(error.msg.contains("acceptRA"), "{error}");
        assert_eq!(error.code.number(), 7);
    }
}
