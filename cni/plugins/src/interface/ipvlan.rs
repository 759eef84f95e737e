// SPDX-License-Identifier: GPL-2.0-or-later

//! `ipvlan`: gives a container a link of its own, with the MAC address of a link of the node.

use cni_kernel::route::{DuplicateDetection, IpvlanMode, Link, LinkChange, LinkKind, NewKind};
use cni_spec::{AddResult, CniError, NetConf};
use serde::Deserialize;

use super::shared::advertisements::Advertisements;
use super::shared::container::Setting;
use super::shared::expected::Objects;
use super::shared::single::check::{Expected, check, not_of_type, same_mode};
use super::shared::single::expected;
use super::shared::single::keys::{Below, kind_status};
use super::shared::single::{Addresses, Recipe, Site, remove};
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::skel::delegate;

/// The `ipvlan` plugin.
#[derive(Debug)]
pub struct Ipvlan;

/// The IPv6 counterpart of `arp_notify`.
const SETTINGS: &[Setting] = &[("ndisc_notify", "1")];

impl Plugin for Ipvlan {
    fn name(&self) -> &'static str {
        "ipvlan"
    }

    fn summary(&self) -> &'static str {
        "gives a container a link with the MAC address of a link of the node"
    }

    fn place(&self) -> Place {
        Place::Link
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        &super::shared::single::keys::decodes() | &crate::keys::probe::fields::<Keys>()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        Settings::new(request.config).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let mut settings = Settings::new(request.config)?;
        settings.chain(request.config.prev_result.as_ref())?;
        let addresses = addresses(request)?;
        let recipe = Recipe {
            request,
            plugin: "ipvlan",
            advertisements: Advertisements::new(request.config, addresses != Addresses::None)?,
            addresses,
            dns: Some(settings.below.dns.clone()),
            ipam_failed: "",
            settings: SETTINGS,
            detection: DuplicateDetection::AsLink,
        };
        recipe.add(|site| settings.make(site))
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        remove::del(request, |kind| matches!(kind, LinkKind::Ipvlan(_)))
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config)?;
        let is_asked_for = |link: &Link| settings.compare(link);
        check(request, &Expected { no_result: "Required prevResult missing", link: &is_asked_for })?;
        if settings.below.master.is_some() {
            settings.below.find(&Site::open(request)?)?;
        }
        Ok(())
    }

    fn expected(&self, request: &Request<'_>) -> Result<Objects, CniError> {
        expected::of(request, &Settings::new(request.config)?.below)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        remove::gc(request)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config)?;
        kind_status("ipvlan")?;
        // Without the key, the master may be the link of an earlier plugin, which is unknown here.
        if settings.below.master.is_some() {
            settings.below.status()?;
        }
        if request.config.ipam.is_empty() { Ok(()) } else { delegate::ipam_status(request) }
    }
}

/// IPAM's addresses, or without IPAM those of the previous result.
fn addresses(request: &Request<'_>) -> Result<Addresses, CniError> {
    match &request.config.prev_result {
        Some(previous) if request.config.ipam.is_empty() && !previous.ips.is_empty() => {
            previous.check_addresses()?;
            Ok(Addresses::Given(previous.clone()))
        }
        _ => Ok(Addresses::Ipam),
    }
}

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    below: Below,
    mode: IpvlanMode,
    mtu: Option<u32>,
}

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    mode: String,
}

impl Settings {
    fn new(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let mode = match keys.mode.as_str() {
            "" => IpvlanMode::L2,
            name => IpvlanMode::from_name(name)
                .ok_or_else(|| CniError::config(format!("unknown ipvlan mode: {name:?}")))?,
        };
        let below = Below::new(config)?;
        let wrong = || CniError::config(format!("key \"mtu\": invalid MTU {}", below.mtu));
        let mtu = u32::try_from(below.mtu).map_err(|_| wrong())?;
        Ok(Self { below, mode, mtu: (mtu != 0).then_some(mtu) })
    }

    /// Uses the link of the previous result as master, if the configuration names none.
    fn chain(&mut self, previous: Option<&AddResult>) -> Result<(), CniError> {
        let (None, Some(previous)) = (&self.below.master, previous) else { return Ok(()) };
        match previous.interfaces.as_slice() {
            [only] if !only.name.is_empty() => self.below.master = Some(only.name.clone()),
            _ => {
                return Err(CniError::config(
                    "chained master failure. PrevResult lacks a single named interface",
                ));
            }
        }
        Ok(())
    }

    fn make(&self, site: &Site) -> Result<LinkChange, CniError> {
        let master = self.below.find(site)?;
        let made = self.below.create(site, &master, NewKind::Ipvlan(self.mode), None, self.mtu);
        made.map_err(|error| CniError::internal(format!("failed to create ipvlan: {error}")))?;
        // The kernel then announces the address to the neighbours, which may know it at another link.
        Ok(LinkChange::new().arp_notify())
    }

    fn compare(&self, link: &Link) -> Result<(), CniError> {
        match link.kind {
            LinkKind::Ipvlan(mode) => same_mode("Container IPVlan", mode.name(), self.mode.name()),
            _ => Err(not_of_type(link, "ipvlan")),
        }
    }
}

#[cfg(test)]
mod tests {
    use cni_spec::Interface;
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn settings(keys: &Value) -> Result<Settings, CniError> {
        Settings::new(&configuration("ipvlan", keys))
    }

    #[test]
    fn modes() {
        for (name, mode) in
            [("", IpvlanMode::L2), ("l2", IpvlanMode::L2), ("l3", IpvlanMode::L3), ("l3s", IpvlanMode::L3s)]
        {
            assert_eq!(settings(&json!({"mode": name})).unwrap().mode, mode);
        }
        let error = settings(&json!({"mode": "L4"})).unwrap_err();
        assert_eq!((error.msg.as_str(), error.code.number()), ("unknown ipvlan mode: \"L4\"", 7));
    }

    #[test]
    fn a_negative_mtu_is_refused_by_name() {
        assert_eq!(settings(&json!({"mtu": 1400})).unwrap().mtu, Some(1400));
        let error = settings(&json!({"mtu": -1})).unwrap_err();
        assert_eq!(error.msg, "key \"mtu\": invalid MTU -1");
    }

    #[test]
    fn the_link_of_the_previous_result_is_the_master() {
        let result = |names: &[&str]| AddResult {
            interfaces: names
                .iter()
                .map(|name| Interface { name: (*name).to_owned(), ..Interface::default() })
                .collect(),
            ..AddResult::default()
        };
        let chained = |keys: Value, names: &[&str]| {
            let mut settings = settings(&keys).unwrap();
            settings.chain(Some(&result(names))).map(|()| settings.below.master)
        };
        assert_eq!(chained(json!({}), &["bond0"]).unwrap().as_deref(), Some("bond0"));
        assert_eq!(chained(json!({"master": "eth0"}), &["a", "b"]).unwrap().as_deref(), Some("eth0"));
        for names in [&[][..], &[""], &["a", "b"]] {
            let error = chained(json!({}), names).unwrap_err();
            assert_eq!(error.msg, "chained master failure. PrevResult lacks a single named interface");
        }
    }
}
