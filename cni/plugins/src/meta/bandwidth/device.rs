// SPDX-License-Identifier: GPL-2.0-or-later

//! The intermediate device (ifb) that limits a container's egress: its names, its owner.

use std::collections::BTreeSet;

use cni_dataplane::owner::{AttachmentHash, NetworkHash, Owner};
use cni_kernel::mac::Mac;
use cni_kernel::route::{Link, LinkChange, LinkKind, RouteError, RouteSocket};
use cni_spec::Attachment;
use sha2::{Digest, Sha512};

use crate::meta::gone;

/// The prefix of all names, as the reference's.
const PREFIX: &str = "bwp";
/// The number of hexadecimal digits that follow: a link's name has 15 characters at most.
const DIGITS: usize = 12;

/// The names that an attachment's device may have: the reference's, which does not depend on the interface,
/// and one for a second interface of the container in the same network.
pub(super) fn names(attachment: &Attachment) -> [String; 2] {
    let (network, container) = (attachment.network(), attachment.container_id());
    [hashed(&[network, container]), hashed(&[network, container, "\0", attachment.ifname()])]
}

fn hashed(parts: &[&str]) -> String {
    let mut hash = Sha512::new();
    parts.iter().for_each(|part| hash.update(part));
    let digits = cni_spec::text::hex(&hash.finalize());
    format!("{PREFIX}{}", &digits[..DIGITS])
}

/// The MAC address of a network's devices. It is set at creation, before the owner's alias, so that a GC
/// recognises the network of a device that a killed ADD left.
fn mac(network: &str) -> Mac {
    let [a, b, c, d, e, ..] = NetworkHash::of(network).0;
    // Locally administered, for one link (IEEE 802).
    Mac([0x02, a, b, c, d, e])
}

fn is_device(link: &Link) -> bool {
    link.kind == LinkKind::Other("ifb".to_owned()) && link.name.starts_with(PREFIX)
}

/// True if a link is a device with an owner's alias, which the reference does not write.
pub fn is_ours(link: &Link) -> bool {
    is_device(link) && Owner::from_comment(&link.alias).is_some()
}

/// True if a link that has one of the attachment's names is the attachment's device. A link without an alias may be the
/// reference's, or may be left from an ADD that was killed.
fn is_of(link: &Link, attachment: &Attachment) -> bool {
    let named = || {
        Owner::from_comment(&link.alias)
            .is_some_and(|owner| owner.attachment_hash == AttachmentHash::of(attachment))
    };
    is_device(link) && (link.alias.is_empty() || named())
}

/// The attachment's devices, usually one.
pub(super) fn find(route: &RouteSocket, attachment: &Attachment) -> Result<Vec<Link>, RouteError> {
    let mut found = Vec::new();
    for name in names(attachment) {
        found.extend(route.find_link(&name)?.filter(|link| is_of(link, attachment)));
    }
    Ok(found)
}

/// Makes the attachment's device, or uses the one of an earlier ADD.
pub(super) fn provide(
    route: &RouteSocket,
    attachment: &Attachment,
    mtu: u32,
) -> Result<(Link, Made), RouteError> {
    if let Some(link) = find(route, attachment)?.into_iter().next() {
        let change = LinkChange::new().mtu(mtu).up().alias(&Owner::of(attachment).to_comment());
        route.change_link(&link, &change)?;
        return Ok((link, Made::Before));
    }
    match make(route, attachment, mtu) {
        Ok(link) => Ok((link, Made::Now)),
        Err(error) => {
            // The request may have succeeded with its reply lost, or the alias may be missing.
            for left in find(route, attachment).unwrap_or_default() {
                if let Err(error) = gone(route.delete_link(&left)) {
                    log::warn!("{error}");
                }
            }
            Err(error)
        }
    }
}

fn make(route: &RouteSocket, attachment: &Attachment, mtu: u32) -> Result<Link, RouteError> {
    let [reference, own] = names(attachment);
    let mac = mac(attachment.network());
    let name = match route.create_ifb(&reference, mac, mtu) {
        // The name belongs to the device of the container's other interface.
        Err(error) if error.already_exists() => {
            route.create_ifb(&own, mac, mtu)?;
            own
        }
        made => {
            made?;
            reference
        }
    };
    let link = route.link(&name)?;
    route.change_link(&link, &LinkChange::new().alias(&Owner::of(attachment).to_comment()))?;
    Ok(link)
}

/// The call that made a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    /// The device was made by the present ADD.
    Now,
    /// The device was made by an earlier ADD.
    Before,
}

/// Removes the attachment's devices.
///
/// # Errors
/// The first error; all other devices were removed.
pub(super) fn remove(route: &RouteSocket, attachment: &Attachment) -> Result<(), RouteError> {
    let removed = names(attachment).map(|name| match route.find_link(&name)? {
        Some(link) if is_of(&link, attachment) => gone(route.delete_link(&link)),
        _ => Ok(()),
    });
    removed.into_iter().fold(Ok(()), Result::and)
}

/// Removes the devices of a network whose owners are not valid any more.
///
/// # Errors
/// The first error; all other devices were removed.
pub(super) fn retain(route: &RouteSocket, network: &str, valid: &[Attachment]) -> Result<(), RouteError> {
    let valid = Valid::of(network, valid);
    let mut result = Ok(());
    for link in route.links()?.iter().filter(|link| valid.lacks(link)) {
        result = result.and(gone(route.delete_link(link)));
    }
    result
}

/// What the devices of a network's valid attachments are recognised by. Each hash is computed once, not once for each
/// device, of which a node may have thousands.
struct Valid {
    network: NetworkHash,
    /// The MAC address of the network's devices.
    mac: Mac,
    owners: BTreeSet<AttachmentHash>,
    names: BTreeSet<String>,
}

impl Valid {
    fn of(network: &str, valid: &[Attachment]) -> Self {
        Self {
            network: NetworkHash::of(network),
            mac: mac(network),
            owners: valid.iter().map(AttachmentHash::of).collect(),
            names: valid.iter().flat_map(names).collect(),
        }
    }

    /// True for a device of the network whose owner is not valid.
    fn lacks(&self, link: &Link) -> bool {
        if !is_device(link) {
            return false;
        }
        match Owner::from_comment(&link.alias) {
            Some(owner) => {
                owner.network_hash == self.network && !self.owners.contains(&owner.attachment_hash)
            }
            // The MAC address shows the network of a device without an alias, which goes unless a valid attachment has its
            // name.
            None => link.alias.is_empty() && link.mac == Some(self.mac) && !self.names.contains(&link.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_is_the_references() {
        let [reference, own] = names(&Attachment::new("net", "c1", "eth0").unwrap());
        // printf netc1 | sha512sum
        assert_eq!(reference, "bwp623e1c388032");
        assert_eq!((reference.len(), own.len()), (15, 15));
        let [same, other] = names(&Attachment::new("net", "c1", "eth1").unwrap());
        assert!(same == reference && other != own && other != reference);
    }
}
