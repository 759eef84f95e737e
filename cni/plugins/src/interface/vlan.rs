// SPDX-License-Identifier: GPL-2.0-or-later

//! `vlan`: gives a container the packets of one VLAN (IEEE 802.1Q) of a link.

use cni_kernel::route::{DuplicateDetection, Link, LinkChange, LinkKind, NewKind};
use cni_spec::{AddResult, CniError, NetConf};
use serde::Deserialize;

use super::shared::advertisements::Advertisements;
use super::shared::check::wrong;
use super::shared::expected::Objects;
use super::shared::single::check::{Expected, check, not_of_type};
use super::shared::single::expected;
use super::shared::single::keys::{Below, kind_status};
use super::shared::single::{Addresses, Recipe, Site, remove};
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::skel::delegate;

/// The largest VLAN ID: 4095 is reserved.
const LAST_VLAN: i64 = 4094;

/// The `vlan` plugin.
#[derive(Debug)]
pub struct Vlan;

impl Plugin for Vlan {
    fn name(&self) -> &'static str {
        "vlan"
    }

    fn summary(&self) -> &'static str {
        "gives a container the packets of one VLAN of a link"
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
        let settings = Settings::new(request.config)?;
        let recipe = Recipe {
            request,
            plugin: "vlan",
            addresses: Addresses::Ipam,
            advertisements: Advertisements::with_ipam(request.config)?,
            dns: Some(settings.below.dns.clone()),
            ipam_failed: "failed to execute IPAM delegate: ",
            settings: &[],
            detection: DuplicateDetection::AsLink,
        };
        recipe.add(|site| settings.make(site))
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        remove::del(request, |kind| matches!(kind, LinkKind::Vlan(_)))
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config)?;
        let is_asked_for = |link: &Link| settings.compare(link);
        check(request, &Expected { no_result: "Required prevResult missing", link: &is_asked_for })?;
        settings.below.find(&Site::open(request)?).map(drop)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Objects, CniError> {
        expected::of(request, &Settings::new(request.config)?.below)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        remove::gc(request)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let settings = Settings::new(request.config)?;
        kind_status("vlan")?;
        settings.below.status_with_mtu()?;
        delegate::ipam_status(request)
    }
}

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    below: Below,
    id: u16,
}

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    vlan_id: i64,
}

impl Settings {
    fn new(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let below = Below::new(config)?;
        if below.master.is_none() {
            return Err(CniError::config(
                "\"master\" field is required. It specifies the host interface name to create the VLAN for",
            ));
        }
        let id = u16::try_from(keys.vlan_id).ok().filter(|_| keys.vlan_id <= LAST_VLAN);
        // The reference's text; the reference itself refuses 4095.
        let wrong = format!("invalid VLAN ID {} (must be between 0 and 4095 inclusive)", keys.vlan_id);
        Ok(Self { below, id: id.ok_or_else(|| CniError::config(wrong))? })
    }

    fn make(&self, site: &Site) -> Result<LinkChange, CniError> {
        let master = self.below.find(site)?;
        let mtu = self.below.mtu(&master)?;
        let made = self.below.create(site, &master, NewKind::Vlan(self.id), None, mtu);
        made.map_err(|error| CniError::internal(format!("failed to create vlan: {error}")))?;
        Ok(LinkChange::new())
    }

    fn compare(&self, link: &Link) -> Result<(), CniError> {
        match link.kind {
            LinkKind::Vlan(id) if id == self.id => Ok(()),
            LinkKind::Vlan(id) => Err(wrong(format!(
                "Error: Container interface {} has VLAN ID {id}, the configuration has {}",
                link.name, self.id
            ))),
            _ => Err(not_of_type(link, "vlan")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn settings(keys: &Value) -> Result<Settings, CniError> {
        Settings::new(&configuration("vlan", keys))
    }

    #[test]
    fn the_master_is_required() {
        let error = settings(&json!({"vlanId": 5})).unwrap_err();
        assert_eq!(
            error.msg,
            "\"master\" field is required. It specifies the host interface name to create the VLAN for"
        );
        assert_eq!(error.code.number(), 7);
    }

    #[test]
    fn an_id_is_between_0_and_4094() {
        let id = |id: i64| settings(&json!({"master": "eth0", "vlanId": id})).map(|settings| settings.id);
        assert_eq!((id(0).unwrap(), id(4094).unwrap()), (0, 4094));
        for wrong in [-1, 4095, 70_000] {
            let text = format!("invalid VLAN ID {wrong} (must be between 0 and 4095 inclusive)");
            assert_eq!(id(wrong).unwrap_err().msg, text);
        }
    }
}
