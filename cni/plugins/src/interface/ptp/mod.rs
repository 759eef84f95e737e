// SPDX-License-Identifier: GPL-2.0-or-later

//! `ptp`: connects a container to the node by a veth pair and routes.
//!
//! There is no bridge: the host's end has the gateway's address for this container only, and a route to each
//! of the container's addresses. The kernel deletes both with the pair; only the masquerade and the node's
//! forwarding outlive it.

mod check;
mod expected;
mod host;
mod plan;

use cni_kernel::route::{DuplicateDetection, Link};
use cni_spec::{AddResult, CniError};

use super::shared::container::{Container, Setting};
use super::shared::host::{Host, taken};
use super::shared::keys::Common;
use super::shared::{failed, interface, masquerade, networks, remove};
use crate::expected::Expected;
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::skel::delegate;
use crate::undo::Undo;
use plan::Plan;

/// The `ptp` plugin.
#[derive(Debug)]
pub struct Ptp;

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        "ptp"
    }

    fn summary(&self) -> &'static str {
        "connects a container to the node by a veth pair of its own"
    }

    fn place(&self) -> Place {
        Place::Link
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        super::shared::keys::decodes()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        let common = Common::new(request.config)?;
        let answer = request.config.prev_result.clone().unwrap_or_default();
        plan::plan(answer, common.dns.as_ref()).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let common = Common::new(request.config)?;
        let container = Container::open(request.netns.as_deref())?;
        let host = Host::open()?;
        // Checked before IPAM is called: if a second ADD fails, it must not release the first one's address.
        if container.route.find_link(request.attachment.ifname()).map_err(failed)?.is_some() {
            return Err(taken(&request.attachment));
        }
        let mut undo = Undo::new();
        let plan = match common.ipam {
            true => {
                let answer = delegate::ipam_add(request)?;
                undo.on_failure("release the addresses", || delegate::ipam_del(request));
                plan::plan(answer, common.dns.as_ref())?
            }
            false => plan::without_addresses(common.dns.clone().unwrap_or_default()),
        };
        let context = AddContext { request, common: &common, host: &host, container: &container };
        let (outer, inner) = set_up(&context, &plan, &mut undo)?;
        undo.keep();
        let interfaces = vec![interface(&outer, String::new()), interface(&inner, container.sandbox())];
        Ok(AddResult { interfaces, ..plan.result })
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        remove::del(request)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        check::check(request)?;
        crate::expected::check(&self.expected(request)?)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        remove::gc(request)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        expected::of(request)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let common = Common::new(request.config)?;
        masquerade::status(&common)?;
        if common.ipam { delegate::ipam_status(request) } else { Ok(()) }
    }
}

/// The context of an ADD's steps.
struct AddContext<'a> {
    request: &'a Request<'a>,
    common: &'a Common,
    host: &'a Host,
    container: &'a Container,
}

/// Carries out the plan. Returns the host's end and the container's end.
fn set_up<'a>(context: &AddContext<'a>, plan: &Plan, undo: &mut Undo<'a>) -> Result<(Link, Link), CniError> {
    // Duplicate address detection is off, because the link has no other hosts, and an end with a tentative link-local
    // address does not resolve the other end's address.
    const INSIDE: &[Setting] = &[("accept_dad", "0")];
    let AddContext { request, common, host, container } = *context;
    let attachment = &request.attachment;
    let mtu = host.mtu(common.mtu)?;
    let (inner, outer) = host.create_pair(&container.route, attachment, None, mtu)?;
    // Deleting this end also deletes the other end with its addresses and routes.
    let to_delete = inner.clone();
    undo.on_failure("delete the container's link", move || container.route.delete_link(&to_delete));
    masquerade::prepare(common, &outer)?;
    // The container's side comes first, because its error names the reason in a kernel without IPv6.
    common.advertisements.apply(container, &inner)?;
    container.prepare(&inner, &plan.layer3, INSIDE)?;
    host.serve(&outer, &plan.outside, attachment)?;
    container.bring_up(&inner, &plan.layer3, DuplicateDetection::Skip)?;
    host.wait_for_pair(&outer)?;
    masquerade::start(common, attachment, container, &plan.layer3.addresses, undo)?;
    host.forward(&plan.layer3.addresses)?;
    networks::joined(container, attachment, &inner)?;
    Ok((outer, inner))
}
