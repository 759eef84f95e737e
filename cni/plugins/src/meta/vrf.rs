// SPDX-License-Identifier: GPL-2.0-or-later

//! `vrf`: enslaves a container's link to a VRF, a link with a routing table of its own.
//!
//! The kernel sets a link down and up again when it enslaves it, which removes its routes and, by default,
//! its IPv6 addresses. The plugin restores them, the routes in the VRF's table.

use std::path::PathBuf;

use cni_kernel::AddressFamily;
use cni_kernel::route::{
    Existing, Link, LinkChange, LinkKind, MAIN_TABLE, Route as KernelRoute, RouteError, RouteSocket,
};
use cni_spec::{AddResult, CniError, NetConf, Version, check_ifname, text};
use serde::Deserialize;

use crate::expected::Expected;
use crate::interface::shared::check::has_route;
use crate::interface::shared::container::Container;
use crate::interface::shared::{self, failed};
use crate::meta::layer3::Layer3;
use crate::meta::{gone, probe, there};
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::undo::Undo;

/// The kernel's name for a VRF (`IFLA_INFO_KIND`).
const KIND: &str = "vrf";

/// The `vrf` plugin.
#[derive(Debug)]
pub struct Vrf;

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Keys {
    vrfname: String,
    table: i64,
}

/// The configuration, checked.
#[derive(Debug, PartialEq, Eq)]
struct Config {
    name: String,
    /// None means the present table of the VRF, or the first free one for a new VRF.
    table: Option<u32>,
}

impl Config {
    fn read(config: &NetConf) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        if keys.vrfname.is_empty() {
            return Err(CniError::config("configuration is expected to have a valid vrf name"));
        }
        check_ifname(&keys.vrfname)
            .map_err(|error| CniError::config(format!("vrfname {}: {error}", text::quote(&keys.vrfname))))?;
        let table = u32::try_from(keys.table).map_err(|_| {
            CniError::config(format!("table: {} is not between 0 and {}", keys.table, u32::MAX))
        })?;
        Ok(Self { name: keys.vrfname, table: (table != 0).then_some(table) })
    }
}

impl Plugin for Vrf {
    fn name(&self) -> &'static str {
        "vrf"
    }

    fn summary(&self) -> &'static str {
        "enslaves the container's link to a VRF with a routing table of its own"
    }

    fn place(&self) -> Place {
        Place::Chained
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        crate::keys::probe::fields::<Keys>()
    }

    fn versions(&self) -> &'static [Version] {
        const { since_0_3_1() }
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        Config::read(request.config).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config = Config::read(request.config)?;
        let previous = previous(request)?;
        let container = Container::open(request.netns.as_deref())?;
        let table = enslave(&container.route, &config, request.attachment.ifname())
            .map_err(|error| CniError { msg: format!("cmdAdd failed: {}", error.msg), ..error })?;
        Ok(result(previous, table))
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let Some(container) = Container::open_if_there(request.netns.as_deref())? else { return Ok(()) };
        let keys: Keys = request.config.decode().unwrap_or_default();
        if check_ifname(&keys.vrfname).is_err() {
            return Ok(()); // No ADD can have made such a VRF.
        }
        let route = &container.route;
        let Some(vrf) = route.find_link(&keys.vrfname).map_err(failed)?.filter(is_vrf) else { return Ok(()) };
        if let Some(link) = route.find_link(request.attachment.ifname()).map_err(failed)?
            && link.master == Some(vrf.index)
        {
            gone(route.change_link(&link, &LinkChange::new().no_master())).map_err(failed)?;
        }
        let used = route.links().map_err(failed)?.iter().any(|link| link.master == Some(vrf.index));
        if used { Ok(()) } else { gone(route.delete_link(&vrf)).map_err(failed) }
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        Membership::of(request)?.check()
    }

    fn expected(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        Ok(vec![Box::new(Membership::of(request)?)])
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        Config::read(request.config)?;
        probe::in_new_namespace(|route| route.create_vrf("probe", 100))
    }
}

/// The expected state: the interface is in the VRF, and its routes are in the VRF's table.
struct Membership {
    config: Config,
    netns: Option<PathBuf>,
    ifname: String,
    result: AddResult,
}

impl Membership {
    fn of(request: &Request<'_>) -> Result<Self, CniError> {
        let config = Config::read(request.config)?;
        let result = previous(request)?.clone();
        Ok(Self {
            config,
            netns: request.netns.clone(),
            ifname: request.attachment.ifname().to_owned(),
            result,
        })
    }
}

impl Expected for Membership {
    fn name(&self) -> String {
        format!("membership of {} in vrf {} in the container", self.ifname, self.config.name)
    }

    fn check(&self) -> Result<(), CniError> {
        let container = Container::open(self.netns.as_deref())?;
        let (ifname, route) = (&self.ifname, &container.route);
        let wrong = |why: String| Err(CniError::internal(why));
        let Some(vrf) = route.find_link(&self.config.name).map_err(failed)?.filter(is_vrf) else {
            return wrong(format!("there is no vrf {}", self.config.name));
        };
        different_table(&vrf, &self.config)?;
        let link = route.find_link(ifname).map_err(failed)?;
        let Some(link) = link.filter(|link| link.master == Some(vrf.index)) else {
            return wrong(format!("failed to find {ifname} associated to vrf {}", self.config.name));
        };
        let mut in_vrf = self.result.routes.iter().filter(|route| route.table == vrf.vrf_table);
        in_vrf.try_for_each(|wanted| has_route(route, &link, wanted))
    }

    fn put_back(&self) -> Result<(), CniError> {
        let container = Container::open(self.netns.as_deref())?;
        let table = enslave(&container.route, &self.config, &self.ifname)?;
        let link = container.route.link(&self.ifname).map_err(failed)?;
        // The kernel dropped these routes when the link left the VRF.
        let mut result = self.result.clone();
        result.routes.retain(|route| route.table == Some(table));
        for lost in shared::layer3::Layer3::of(&result).routes {
            let lost = KernelRoute { link: Some(link.index), ..lost };
            there(container.route.add_route(&lost, Existing::Append)).map_err(failed)?;
        }
        Ok(())
    }
}

const fn since_0_3_1() -> &'static [Version] {
    Version::ALL.split_at(3).1
}

fn previous<'a>(request: &'a Request<'_>) -> Result<&'a AddResult, CniError> {
    let previous = request.config.prev_result.as_ref();
    previous.ok_or_else(|| CniError::config("missing prevResult from earlier plugin"))
}

fn is_vrf(link: &Link) -> bool {
    link.kind == LinkKind::Other(KIND.to_owned())
}

fn different_table(vrf: &Link, config: &Config) -> Result<(), CniError> {
    match (vrf.vrf_table, config.table) {
        (Some(has), Some(wanted)) if has != wanted => {
            let msg = format!("VRF {} already exist with different routing table {has}", config.name);
            Err(CniError::internal(msg))
        }
        _ => Ok(()),
    }
}

/// The result with the VRF's table in its routes, because CHECK of the interface plugin looks for the routes there.
fn result(previous: &AddResult, table: u32) -> AddResult {
    let mut result = previous.clone();
    for route in result.routes.iter_mut().filter(|route| route.table.is_none_or(|table| table == MAIN_TABLE))
    {
        route.table = Some(table);
    }
    result
}

/// Enslaves the link to the VRF, which is created if it is missing. Returns the VRF's table.
fn enslave(route: &RouteSocket, config: &Config, ifname: &str) -> Result<u32, CniError> {
    let mut undo = Undo::new();
    let link = route.link(ifname).map_err(failed)?;
    let vrf = match route.find_link(&config.name).map_err(failed)? {
        Some(other) if !is_vrf(&other) => {
            return Err(CniError::internal(format!("{} already exists but is not a VRF", config.name)));
        }
        Some(vrf) => {
            different_table(&vrf, config)?;
            vrf
        }
        None => {
            let table = config.table.map_or_else(|| free_table(route), Ok).map_err(failed)?;
            route.create_vrf(&config.name, table).map_err(failed)?;
            let vrf = route.link(&config.name).map_err(failed)?;
            let made = vrf.clone();
            undo.on_failure(format!("vrf {}", config.name), move || gone(route.delete_link(&made)));
            vrf
        }
    };
    if let Some(master) = link.master.filter(|master| *master != vrf.index) {
        let name = route.link_by_index(master).map(|link| link.name).map_err(failed)?;
        return Err(CniError::internal(format!("interface {ifname} has already a master set: {name}")));
    }
    if !vrf.up {
        route.change_link(&vrf, &LinkChange::new().up()).map_err(failed)?;
    }
    let table = vrf.vrf_table.unwrap_or(MAIN_TABLE);
    if link.master.is_none() {
        let before = Layer3::of(route, &link).map_err(failed)?;
        let (lost, at) = (before.clone(), link.clone());
        undo.on_failure(format!("master of {ifname}"), move || {
            route.change_link(&at, &LinkChange::new().no_master())?;
            lost.put_back(route, &at)
        });
        route.change_link(&link, &LinkChange::new().master(&vrf)).map_err(failed)?;
        before.in_vrf(table).put_back(route, &link).map_err(failed)?;
    }
    undo.keep();
    Ok(table)
}

/// The first table from 1 on without a VRF and without routes.
fn free_table(route: &RouteSocket) -> Result<u32, RouteError> {
    let mut used: Vec<u32> = route.links()?.iter().filter_map(|link| link.vrf_table).collect();
    for family in AddressFamily::BOTH {
        used.extend(route.routes(family, 0)?.iter().map(|has| has.table));
    }
    let mut table = 1;
    // 253 to 255 are the kernel's.
    while used.contains(&table) || (253..=255).contains(&table) {
        table += 1;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn read(keys: &Value) -> Result<Config, String> {
        Config::read(&configuration("vrf", keys)).map_err(|error| error.msg)
    }

    #[test]
    fn keys_are_checked() {
        let config = |table| Ok(Config { name: "blue".into(), table });
        assert_eq!(read(&json!({"vrfname": "blue"})), config(None));
        assert_eq!(read(&json!({"VrfName": "blue", "table": 0})), config(None));
        assert_eq!(
            read(&json!({"vrfname": "blue", "table": 4_000_000_000_u32})),
            config(Some(4_000_000_000))
        );
        let missing = "configuration is expected to have a valid vrf name";
        assert_eq!(read(&json!({})), Err(missing.to_owned()));
        assert!(read(&json!({"vrfname": "a/b"})).unwrap_err().starts_with("vrfname \"a/b\": "));
        assert!(read(&json!({"vrfname": "blue", "table": -1})).is_err());
    }
}
