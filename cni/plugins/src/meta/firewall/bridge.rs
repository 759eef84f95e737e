//! Who is on a bridge: what keeps it apart may go when nobody is of whom nothing is recorded.

use cni_dataplane::firewall::{self, BridgeUse};
use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::route::{Link, LinkKind, RouteSocket};
use cni_spec::CniError;

use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::plugin::Request;

/// The attachment that goes: its link does not count.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Leaving {
    owner: Option<AttachmentHash>,
    /// The number of the node's end of the container's link.
    port: Option<u32>,
}

impl Leaving {
    /// The one that a DEL, or an ADD that failed, is about.
    ///
    /// # Errors
    /// What could not be read in the container.
    pub(super) fn of(request: &Request<'_>) -> Result<Self, CniError> {
        let owner = Some(AttachmentHash::of(&request.attachment));
        let Some(container) = Container::open_if_there(request.netns.as_deref())? else {
            return Ok(Self { owner, port: None });
        };
        let link = container.route.find_link(request.attachment.ifname()).map_err(failed)?;
        Ok(Self { owner, port: link.and_then(|link| link.peer) })
    }

    /// One that is known by its record alone.
    pub(super) fn recorded(owner: AttachmentHash) -> Self {
        Self { owner: Some(owner), port: None }
    }
}

/// Whether there are containers on a bridge of whom nothing is recorded, such as the reference's: they may
/// need it apart. "The bridge" of one on ptp is the node's end of its link.
///
/// # Errors
/// What could not be read.
pub(super) fn use_of(bridge: &str, leaving: Leaving) -> Result<BridgeUse, CniError> {
    let host = RouteSocket::open().map_err(failed)?;
    let Some(link) = host.find_link(bridge).map_err(failed)? else { return Ok(BridgeUse::Unused) };
    let recorded = firewall::recorded()?;
    let is_stranger = |link: &Link| !is_known((link.index, &link.alias), leaving, &recorded);
    let strangers = match link.kind {
        LinkKind::Bridge => {
            let links = host.links().map_err(failed)?;
            links.iter().any(|port| port.master == Some(link.index) && is_stranger(port))
        }
        _ => is_stranger(&link),
    };
    Ok(if strangers { BridgeUse::Unknown } else { BridgeUse::Unused })
}

/// Whether a link is that of the attachment that goes, or of one of whom it is recorded what it needs: by the
/// owner's name on it, as bridge and ptp write it. It outlives the namespace's path for a while.
fn is_known((index, alias): (u32, &str), leaving: Leaving, recorded: &[AttachmentHash]) -> bool {
    if Some(index) == leaving.port {
        return true;
    }
    let owner = Owner::from_comment(alias).map(|owner| owner.attachment_hash);
    owner.is_some_and(|owner| Some(owner) == leaving.owner || recorded.contains(&owner))
}

#[cfg(test)]
mod tests {
    use cni_spec::Attachment;

    use super::*;

    #[test]
    fn a_link_is_known_by_its_number_or_its_owner() {
        let one = Owner::of(&Attachment::new("net", "one", "eth0").unwrap());
        let two = Owner::of(&Attachment::new("net", "two", "eth0").unwrap());
        let leaving = Leaving { owner: Some(one.attachment_hash), port: Some(7) };
        let gone = Leaving::recorded(one.attachment_hash);
        let recorded = [two.attachment_hash];
        for (index, alias, leaving, known) in [
            (7, "", leaving, true),
            (7, "", gone, false),
            (8, "", leaving, false),
            (8, &one.to_comment(), gone, true),
            (8, &one.to_comment(), Leaving::default(), false),
            (8, &two.to_comment(), Leaving::default(), true),
            (8, "somebody's own words", leaving, false),
        ] {
            assert_eq!(is_known((index, alias), leaving, &recorded), known, "{index} {alias:?} {leaving:?}");
        }
    }
}
