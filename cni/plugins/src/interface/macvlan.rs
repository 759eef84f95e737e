// SPDX-License-Identifier: GPL-2.0-or-later

//! `macvlan`: gives a container a link with a MAC address of its own, on a link of the node.

use cni_kernel::mac::Mac;
use cni_kernel::route::{DuplicateDetection, Link, LinkChange, LinkKind, MacvlanMode, NewKind};
use cni_spec::{AddResult, CniError, NetConf};
use serde::Deserialize;

use super::shared::advertisements::Advertisements;
use super::shared::container::Setting;
use super::shared::expected::Objects;
use super::shared::single::check::{Expected, check, not_of_type, same_mode};
use super::shared::single::expected;
use super::shared::single::keys::{Below, kind_status, mac};
use super::shared::single::{Addresses, Recipe, Site, remove};
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::skel::delegate;

/// The `macvlan` plugin.
#[derive(Debug)]
pub struct Macvlan;

/// The IPv6 counterpart of `arp_notify`.
const SETTINGS: &[Setting] = &[("ndisc_notify", "1")];

impl Plugin for Macvlan {
    fn name(&self) -> &'static str {
        "macvlan"
    }

    fn summary(&self) -> &'static str {
        "gives a container a link with a MAC address of its own on a link of the node"
    }

    fn place(&self) -> Place {
        Place::Link
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        use super::shared::single::keys;
        &(&keys::decodes() | &keys::decodes_mac()) | &crate::keys::probe::fields::<Keys>()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        Settings::new(request.config, request.args).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let settings = Settings::new(request.config, request.args)?;
        let recipe = Recipe {
            request,
            plugin: "macvlan",
            addresses: Addresses::of(request),
            advertisements: Advertisements::with_ipam(request.config)?,
            dns: Some(settings.below.dns.clone()),
            ipam_failed: "",
            settings: SETTINGS,
            detection: DuplicateDetection::AsLink,
        };
        recipe.add(|site| settings.make(site))
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        remove::del(request, |kind| matches!(kind, LinkKind::Macvlan(_)))
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config, request.args)?;
        let is_asked_for = |link: &Link| settings.compare(link);
        check(request, &Expected { no_result: "required prevResult missing", link: &is_asked_for })?;
        settings.below.find(&Site::open(request)?).map(drop)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Objects, CniError> {
        expected::of(request, &Settings::new(request.config, request.args)?.below)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        remove::gc(request)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config, "")?;
        kind_status("macvlan")?;
        settings.below.status_with_mtu()?;
        if request.config.ipam.is_empty() { Ok(()) } else { delegate::ipam_status(request) }
    }
}

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    below: Below,
    mode: MacvlanMode,
    mac: Option<Mac>,
    broadcast_queue: Option<u32>,
}

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    mode: String,
    bcqueuelen: u32,
}

impl Settings {
    fn new(config: &NetConf, args: &str) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let mode = match keys.mode.as_str() {
            "" => MacvlanMode::Bridge,
            name => MacvlanMode::from_name(name)
                .ok_or_else(|| CniError::config(format!("unknown macvlan mode: {name:?}")))?,
        };
        let broadcast_queue = (keys.bcqueuelen != 0).then_some(keys.bcqueuelen);
        Ok(Self { below: Below::new(config)?, mode, mac: mac(config, args)?, broadcast_queue })
    }

    fn make(&self, site: &Site) -> Result<LinkChange, CniError> {
        let master = self.below.find(site)?;
        let kind = NewKind::Macvlan { mode: self.mode, broadcast_queue: self.broadcast_queue };
        let mtu = self.below.mtu(&master)?;
        let made = self.below.create(site, &master, kind, self.mac, mtu);
        made.map_err(|error| CniError::internal(format!("failed to create macvlan: {error}")))?;
        // The kernel then announces the address to the neighbours, which may know it at another link.
        Ok(LinkChange::new().arp_notify())
    }

    fn compare(&self, link: &Link) -> Result<(), CniError> {
        match link.kind {
            LinkKind::Macvlan(mode) => same_mode("container macvlan", mode.name(), self.mode.name()),
            _ => Err(not_of_type(link, "macvlan")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn settings(keys: &Value) -> Result<Settings, CniError> {
        Settings::new(&configuration("macvlan", keys), "")
    }

    #[test]
    fn modes() {
        for (name, mode) in [
            ("", MacvlanMode::Bridge),
            ("bridge", MacvlanMode::Bridge),
            ("private", MacvlanMode::Private),
            ("vepa", MacvlanMode::Vepa),
            ("passthru", MacvlanMode::Passthru),
        ] {
            assert_eq!(settings(&json!({"mode": name})).unwrap().mode, mode);
        }
        let error = settings(&json!({"mode": "source"})).unwrap_err();
        assert_eq!((error.msg.as_str(), error.code.number()), ("unknown macvlan mode: \"source\"", 7));
    }

    #[test]
    fn the_queue_is_the_kernels_unless_it_is_given() {
        assert_eq!(settings(&json!({})).unwrap().broadcast_queue, None);
        assert_eq!(settings(&json!({"bcqueuelen": 5000})).unwrap().broadcast_queue, Some(5000));
        let error = settings(&json!({"bcqueuelen": -1})).unwrap_err();
        assert!(error.msg.contains("bcqueuelen"), "{error}");
    }
}
