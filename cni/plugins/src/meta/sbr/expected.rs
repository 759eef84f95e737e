// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state: a rule for each address of the interface, and the routes of its table.

use std::path::PathBuf;

use cni_kernel::AddressFamily;
use cni_kernel::route::{Link, Route, RouteSocket, Rule};
use cni_spec::CniError;

use super::plan::{self, Gateway, Present, Source};
use super::{Config, carry_out, lock, previous, sources};
use crate::expected::Expected;
use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::plugin::Request;

/// The rules and tables of one interface of the container.
pub(super) struct SourceRouting {
    config: Config,
    sources: Vec<Source>,
    netns: Option<PathBuf>,
    ifname: String,
}

impl SourceRouting {
    /// # Errors
    /// The configuration is invalid, or has no result of an ADD.
    pub(super) fn of(request: &Request<'_>) -> Result<Self, CniError> {
        let config = Config::read(request.config)?;
        let ifname = request.attachment.ifname().to_owned();
        let sources = sources(&config, previous(request)?, &ifname);
        Ok(Self { config, sources, netns: request.netns.clone(), ifname })
    }

    /// Adds the missing rule for each table that an earlier ADD has filled.
    fn find_tables(&self, route: &RouteSocket, link: &Link) -> Result<(), CniError> {
        if self.config.table.is_some() {
            return Ok(());
        }
        let mut present = Present::read(route)?;
        for source in &self.sources {
            let Some(rule) = plan::lost_rule(source, link.index, &present, &self.sources) else { continue };
            route.add_rule(&rule).map_err(failed)?;
            present.rules.push(rule);
        }
        Ok(())
    }
}

impl Expected for SourceRouting {
    fn name(&self) -> String {
        let addresses: Vec<String> =
            self.sources.iter().map(|source| source.address.addr().to_string()).collect();
        format!("source routing of {} in the container", addresses.join(", "))
    }

    fn stops(&self, family: AddressFamily, is_forwarded: bool) -> bool {
        let mut addresses = self.sources.iter().map(|source| source.address.addr());
        is_forwarded && addresses.any(|address| AddressFamily::of(address) == family)
    }

    fn check(&self) -> Result<(), CniError> {
        let container = Container::open(self.netns.as_deref())?;
        let present = Present::read(&container.route)?;
        let link = container.route.link(&self.ifname).map_err(failed)?;
        self.sources.iter().try_for_each(|source| check(source, self.config.table, &link, &present))
    }

    fn put_back(&self) -> Result<(), CniError> {
        let container = Container::open(self.netns.as_deref())?;
        let _lock = lock(&container)?;
        let link = container.route.link(&self.ifname).map_err(failed)?;
        self.find_tables(&container.route, &link)?;
        let present = Present::read(&container.route)?;
        carry_out(&container.route, &self.config.plan(&self.sources, &link, &present), &present)
    }
}

fn check(source: &Source, table: Option<u32>, link: &Link, present: &Present) -> Result<(), CniError> {
    let address = source.address.addr();
    let missing = |what: String| Err(CniError::internal(what));
    if let Some(table) = table {
        let wanted = Rule::from_address(address, table);
        let found = present.rules.iter().any(|rule| Rule { priority: None, ..rule.clone() } == wanted);
        return if found { Ok(()) } else { missing(format!("there is no rule {wanted}")) };
    }
    let Some(rule) = present.rule_of(address) else {
        return missing(format!("there is no rule from {address} to a table of its own"));
    };
    let mut routes =
        present.routes.iter().filter(|route| route.table == rule.table && route.link == Some(link.index));
    match source.gateway {
        Some(Gateway::Chosen(gateway))
            if !routes.any(|has| has.is_default() && has.gateway == Some(gateway)) =>
        {
            missing(format!("table {} has no default route via {gateway}", rule.table))
        }
        Some(Gateway::FromIpam(_)) if !routes.any(Route::is_default) => {
            missing(format!("table {} has no default route by {}", rule.table, link.name))
        }
        _ => Ok(()),
    }
}
