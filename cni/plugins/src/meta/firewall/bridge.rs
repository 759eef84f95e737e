// SPDX-License-Identifier: GPL-2.0-or-later

//! The containers on a bridge. The rules that isolate a bridge may be removed only if every container left on it has
//! a record.

use std::collections::BTreeSet;

use cni_dataplane::firewall::{self, BridgeUse};
use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::route::{Link, LinkKind, RouteSocket};
use cni_spec::CniError;

use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::plugin::Request;

/// The attachment that is being removed, whose link does not count as a use of the bridge.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Leaving {
    owner: Option<AttachmentHash>,
    /// The index of the node's end of the container's link.
    port: Option<u32>,
}

impl Leaving {
    /// The attachment of a DEL, or of an ADD that failed.
    pub(super) fn of(request: &Request<'_>) -> Result<Self, CniError> {
        let owner = Some(AttachmentHash::of(&request.attachment));
        let Some(container) = Container::open_if_there(request.netns.as_deref())? else {
            return Ok(Self { owner, port: None });
        };
        let link = container.route.find_link(request.attachment.ifname()).map_err(failed)?;
        Ok(Self { owner, port: link.and_then(|link| link.peer) })
    }

    /// An attachment of which only the record is left.
    pub(super) fn recorded(owner: AttachmentHash) -> Self {
        Self { owner: Some(owner), port: None }
    }
}

/// Returns [`BridgeUse::Unknown`] if containers on the bridge have no record, such as the reference's, because they may
/// need the isolation. For ptp, "the bridge" is the node's end of the container's link.
pub(super) fn use_of(bridge: &str, leaving: Leaving) -> Result<BridgeUse, CniError> {
    let host = RouteSocket::open().map_err(failed)?;
    let Some(link) = host.find_link(bridge).map_err(failed)? else { return Ok(BridgeUse::Unused) };
    let recorded: BTreeSet<AttachmentHash> = firewall::recorded()?.into_iter().collect();
    let is_unknown = |link: &Link| !is_known(link, leaving, &recorded);
    let unknown = match link.kind {
        LinkKind::Bridge => {
            let links = host.links().map_err(failed)?;
            links.iter().any(|port| port.master == Some(link.index) && is_unknown(port))
        }
        _ => is_unknown(&link),
    };
    Ok(if unknown { BridgeUse::Unknown } else { BridgeUse::Unused })
}

/// True if the alias that bridge and ptp write says that a link belongs to the leaving attachment or to one with a
/// record. A link outlives the path of its namespace for a while.
fn is_known(link: &Link, leaving: Leaving, recorded: &BTreeSet<AttachmentHash>) -> bool {
    if Some(link.index) == leaving.port {
        return true;
    }
    let owner = Owner::from_comment(&link.alias).map(|owner| owner.attachment_hash);
    owner.is_some_and(|owner| Some(owner) == leaving.owner || recorded.contains(&owner))
}

#[cfg(test)]
mod tests {
    use cni_spec::Attachment;

    use super::*;

    #[test]
    fn a_link_is_known_by_its_index_or_its_owner() {
        let one = Owner::of(&Attachment::new("net", "one", "eth0").unwrap());
        let two = Owner::of(&Attachment::new("net", "two", "eth0").unwrap());
        let leaving = Leaving { owner: Some(one.attachment_hash), port: Some(7) };
        let gone = Leaving::recorded(one.attachment_hash);
        let recorded = BTreeSet::from([two.attachment_hash]);
        for (index, alias, leaving, known) in [
            (7, "", leaving, true),
            (7, "", gone, false),
            (8, "", leaving, false),
            (8, &one.to_comment(), gone, true),
            (8, &one.to_comment(), Leaving::default(), false),
            (8, &two.to_comment(), Leaving::default(), true),
            (8, "an administrator's text", leaving, false),
        ] {
            let link = Link { index, alias: alias.to_owned(), ..Link::default() };
            assert_eq!(is_known(&link, leaving, &recorded), known, "{index} {alias:?} {leaving:?}");
        }
    }
}
