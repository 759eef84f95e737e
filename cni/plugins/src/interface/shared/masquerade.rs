// SPDX-License-Identifier: GPL-2.0-or-later

//! `ipMasq`: the dataplane's masquerade of a container's addresses.

use cni_dataplane::{Backend, Dataplane, Kinds, MasqueradeRequest, Withdrawal, node};
use cni_kernel::route::Link;
use cni_spec::address::check_container;
use cni_spec::{Attachment, CniError, ErrorCode};
use ipnet::IpNet;

use super::container::Container;
use super::keys::Common;
use crate::expected::Expected;
use crate::node_defaults::NodeDefaults;
use crate::undo::Undo;

/// Prepares the host's end of a new pair, which is not up yet, for what [`start`] will do with it.
///
/// # Errors
/// Code 7 for node settings that cannot be used.
pub(crate) fn prepare(common: &Common, port: &Link) -> Result<(), CniError> {
    if common.masquerade && common.ipam {
        dataplane(common, &NodeDefaults::read()?).prepare_link(&port.name);
    }
    Ok(())
}

/// Masquerades the container's addresses, if `ipMasq` is set.
///
/// # Errors
/// The dataplane's error; code 11 for an address of another attachment.
pub(crate) fn start<'a>(
    common: &Common,
    attachment: &'a Attachment,
    container: &Container,
    addresses: &[IpNet],
    undo: &mut Undo<'a>,
) -> Result<(), CniError> {
    if !common.masquerade || !common.ipam {
        return Ok(());
    }
    let defaults = NodeDefaults::read()?;
    undo.on_failure("stop masquerading", || {
        Dataplane::default().withdraw(&Withdrawal::of(attachment, Kinds::Masquerade))
    });
    let request = request(common, &defaults, attachment, (container, addresses));
    dataplane(common, &defaults).masquerade(&request)?;
    Ok(())
}

/// The masquerade of a container; none without `ipMasq`.
///
/// # Errors
/// Code 7 for an address that no container can have, or node settings that cannot be used.
pub(crate) fn expected(
    common: &Common,
    attachment: &Attachment,
    container: &Container,
    addresses: &[IpNet],
) -> Result<Option<Box<dyn Expected>>, CniError> {
    if !common.masquerade || !common.ipam {
        return Ok(None);
    }
    addresses.iter().try_for_each(|net| check_container(*net))?;
    let defaults = NodeDefaults::read()?;
    let request = request(common, &defaults, attachment, (container, addresses));
    Ok(Some(Box::new(Masqueraded { dataplane: dataplane(common, &defaults), request })))
}

/// The masqueraded addresses of one attachment.
struct Masqueraded {
    dataplane: Dataplane,
    request: MasqueradeRequest,
}

impl Expected for Masqueraded {
    fn name(&self) -> String {
        let addresses: Vec<String> =
            self.request.addresses.iter().map(|net| net.addr().to_string()).collect();
        format!("masquerade of {}", addresses.join(", "))
    }

    fn is_rules(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        Ok(self.dataplane.check_masquerade(&self.request)?)
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.dataplane.masquerade(&self.request)?;
        Ok(())
    }

    fn take_away(&self) -> Result<(), CniError> {
        if !node::is_recorded_elsewhere(&self.request.attachment, &self.request.netns)? {
            let withdrawal = Withdrawal::of(&self.request.attachment, Kinds::Masquerade);
            self.dataplane.withdraw(&Withdrawal { only_in: Some(&self.request.netns), ..withdrawal })?;
        }
        Ok(())
    }
}

/// Checks that the node can masquerade, if `ipMasq` is set.
///
/// # Errors
/// Code 50 with the missing feature.
pub(crate) fn status(common: &Common) -> Result<(), CniError> {
    if !common.masquerade {
        return Ok(());
    }
    dataplane(common, &NodeDefaults::read()?)
        .status()
        .map_err(|error| CniError::new(ErrorCode::NotAvailable, error.to_string()))
}

/// The dataplane with the configuration's backend, or the node's default.
fn dataplane(common: &Common, defaults: &NodeDefaults) -> Dataplane {
    defaults.dataplane(common.masquerade_backend.or(defaults.ip_masq_backend))
}

/// The request with the networks of the node and of the configuration that are exempt from masquerade.
fn request(
    common: &Common,
    defaults: &NodeDefaults,
    attachment: &Attachment,
    (container, addresses): (&Container, &[IpNet]),
) -> MasqueradeRequest {
    let exempt = defaults.non_masquerade.iter().chain(&common.non_masquerade).copied().collect();
    MasqueradeRequest {
        attachment: attachment.clone(),
        netns: container.netns(),
        addresses: addresses.to_vec(),
        exempt,
    }
}
