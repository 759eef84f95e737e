// SPDX-License-Identifier: GPL-2.0-or-later

//! `dummy`: gives a container a link that drops all packets, for addresses of its own.

use cni_kernel::route::{DuplicateDetection, Link, LinkChange, LinkKind, NewKind, NewLink};
use cni_spec::{AddResult, CniError};

use super::shared::advertisements::Advertisements;
use super::shared::expected::Objects;
use super::shared::single::check::{Expected, check, not_of_type};
use super::shared::single::expected;
use super::shared::single::keys::kind_status;
use super::shared::single::{Addresses, Recipe, Site, remove};
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::skel::delegate;

/// The `dummy` plugin.
#[derive(Debug)]
pub struct Dummy;

impl Plugin for Dummy {
    fn name(&self) -> &'static str {
        "dummy"
    }

    fn summary(&self) -> &'static str {
        "gives a container a link that drops all packets"
    }

    fn place(&self) -> Place {
        Place::Link
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        if request.config.ipam.is_empty() {
            return Err(CniError::config("dummy interface requires an IPAM configuration"));
        }
        let recipe = Recipe {
            request,
            plugin: "dummy",
            addresses: Addresses::Ipam,
            // A dummy link receives no advertisements.
            advertisements: Advertisements::AsNamespace,
            dns: None,
            ipam_failed: "",
            settings: &[],
            detection: DuplicateDetection::AsLink,
        };
        recipe.add(make)
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        remove::del(request, |kind| *kind == LinkKind::Dummy)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let is_dummy = |link: &Link| match link.kind {
            LinkKind::Dummy => Ok(()),
            _ => Err(not_of_type(link, "dummy")),
        };
        check(request, &Expected { no_result: "Required prevResult missing", link: &is_dummy }).map(drop)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Objects, CniError> {
        expected::inside(request)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        remove::gc(request)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        kind_status("dummy")?;
        delegate::ipam_status(request)
    }
}

fn make(site: &Site) -> Result<LinkChange, CniError> {
    let new =
        NewLink { name: &site.name, kind: NewKind::Dummy, below: None, netns: None, mac: None, mtu: None };
    let made = site.container.route.create_link(&new);
    made.map_err(|error| CniError::internal(format!("failed to create dummy: {error}")))?;
    Ok(LinkChange::new())
}
