// SPDX-License-Identifier: GPL-2.0-or-later

//! The common code of the plugins that make a single link, in the container: `macvlan`, `ipvlan`, `vlan`,
//! `dummy` and `tap`.
//!
//! The link is made in the container's namespace under a name derived from the attachment. One request then
//! gives it the runtime's name and its owner as its alias. So DEL finds it also after a killed ADD, and
//! leaves other links alone.

pub(crate) mod check;
pub(crate) mod expected;
pub(crate) mod keys;
pub(crate) mod remove;

use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::route::{DuplicateDetection, Link, LinkChange, RouteError};
use cni_spec::{AddResult, Attachment, CniError, Dns};

use super::advertisements::Advertisements;
use super::container::{Container, Setting};
use super::host::{Host, UNCHANGED};
use super::layer3::{Layer3, adopt};
use super::remove::delete;
use super::{failed, interface, networks};
use crate::plugin::Request;
use crate::skel::delegate;
use crate::undo::Undo;

/// The parameters of an ADD.
#[derive(Debug)]
pub(crate) struct Recipe<'a> {
    pub(crate) request: &'a Request<'a>,
    /// The plugin's name in errors.
    pub(crate) plugin: &'static str,
    pub(crate) addresses: Addresses,
    pub(crate) advertisements: Advertisements,
    /// The result's resolver settings; none to use IPAM's.
    pub(crate) dns: Option<Dns>,
    /// The prefix of IPAM's errors.
    pub(crate) ipam_failed: &'static str,
    /// Settings to make before the link has IPv6 addresses.
    pub(crate) settings: &'static [Setting],
    /// The mode of duplicate address detection.
    pub(crate) detection: DuplicateDetection,
}

/// The source of a link's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Addresses {
    /// No addresses: the link is only set up.
    None,
    Ipam,
    /// The previous result.
    Given(AddResult),
}

impl Addresses {
    /// IPAM, if the configuration names an IPAM plugin.
    pub(crate) fn of(request: &Request<'_>) -> Self {
        if request.config.ipam.is_empty() { Self::None } else { Self::Ipam }
    }
}

/// The namespaces of an ADD.
pub(crate) struct Site {
    pub(crate) host: Host,
    pub(crate) container: Container,
    /// The temporary name of the link.
    pub(crate) name: String,
}

impl Site {
    /// Opens both namespaces.
    ///
    /// # Errors
    /// Code 4 if `CNI_NETNS` does not lead to a network namespace.
    pub(crate) fn open(request: &Request<'_>) -> Result<Self, CniError> {
        let container = Container::open(request.netns.as_deref())?;
        Ok(Self { host: Host::open()?, container, name: temporary_name(&request.attachment) })
    }

    /// Deletes a link with the temporary name, which a call that failed or was killed has left.
    fn sweep(&self) -> Result<(), CniError> {
        match self.container.route.find_link(&self.name).map_err(failed)? {
            Some(link) => delete(&self.container.route, &link),
            None => Ok(()),
        }
    }
}

/// The temporary name of an attachment's link: `slip` and eleven hexadecimal digits of the attachment's hash.
pub(crate) fn temporary_name(attachment: &Attachment) -> String {
    const LENGTH: usize = 15;
    let mut name = format!("slip{}", cni_spec::text::hex(&AttachmentHash::of(attachment).0));
    name.truncate(LENGTH);
    name
}

/// Removes the link from the container. May be called twice.
pub(crate) type Remove<'a> = dyn Fn() -> Result<(), CniError> + 'a;

impl Recipe<'_> {
    /// Carries out an ADD. `make` makes the link in the container's namespace, down, with the temporary name,
    /// and returns changes to make when it gets its own name.
    pub(crate) fn add(
        &self,
        make: impl FnOnce(&Site) -> Result<LinkChange, CniError>,
    ) -> Result<AddResult, CniError> {
        let site = Site::open(self.request)?;
        self.refuse_if_taken(&site.container)?;
        site.sweep()?;
        let find = |change| Ok((change, site.container.route.link(&site.name).map_err(failed)?));
        // Sweep after any error: the kernel may have made the link although its reply was lost.
        let (change, made) = make(&site).and_then(find).inspect_err(|_| {
            if let Err(error) = site.sweep() {
                log::warn!("{error}");
            }
        })?;
        let remove = || delete(&site.container.route, &made);
        let mut undo = Undo::new();
        undo.on_failure("delete the container's link", remove);
        let link = self.give_name(&site.container, &made, change)?;
        let result = self.configure(&site.container, &link, &remove, &mut undo)?;
        undo.keep();
        Ok(result)
    }

    /// Refuses a second ADD of the attachment, before any change.
    pub(crate) fn refuse_if_taken(&self, container: &Container) -> Result<(), CniError> {
        match container.route.find_link(self.request.attachment.ifname()).map_err(failed)? {
            Some(_) => Err(self.taken()),
            None => Ok(()),
        }
    }

    /// Gives the container's link its addresses and routes, and sets it up. The link exists before IPAM is
    /// called, as `dhcp` needs it.
    ///
    /// # Errors
    /// The step that failed; `undo` releases the addresses.
    pub(crate) fn configure<'a>(
        &'a self,
        container: &Container,
        link: &Link,
        remove: &'a Remove<'a>,
        undo: &mut Undo<'a>,
    ) -> Result<AddResult, CniError> {
        self.advertisements.apply(container, link)?;
        let mut result = match self.addresses(remove, undo)? {
            None => AddResult { dns: self.dns.clone().unwrap_or_default(), ..AddResult::default() },
            Some(answer) => adopt(answer, 0, self.dns.as_ref())?,
        };
        let layer3 = Layer3::of(&result);
        container.prepare(link, &layer3, self.settings)?;
        container.bring_up(link, &layer3, self.detection)?;
        networks::joined(container, &self.request.attachment, link)?;
        // The link is read again, because other programs (systemd's link policies) change MAC addresses after creation.
        let link = container.route.link_by_index(link.index).map_err(failed)?;
        result.interfaces = vec![interface(&link, container.sandbox())];
        Ok(result)
    }

    fn addresses<'a>(
        &'a self,
        remove: &'a Remove<'a>,
        undo: &mut Undo<'a>,
    ) -> Result<Option<AddResult>, CniError> {
        match &self.addresses {
            Addresses::None => Ok(None),
            Addresses::Given(result) => Ok(Some(result.clone())),
            Addresses::Ipam => {
                let answer = delegate::ipam_add(self.request).map_err(|error| CniError {
                    msg: format!("{}{}", self.ipam_failed, error.msg),
                    ..error
                })?;
                undo.on_failure("release the addresses", move || {
                    // An address must lead nowhere when IPAM frees it.
                    if !delegate::ipam_needs_link(self.request.config) {
                        remove()?;
                    }
                    delegate::ipam_del(self.request)
                });
                Ok(Some(answer))
            }
        }
    }

    /// Gives the link the runtime's name, and its owner as its alias.
    fn give_name(&self, container: &Container, made: &Link, change: LinkChange) -> Result<Link, CniError> {
        let attachment = &self.request.attachment;
        let change = change.rename(attachment.ifname()).alias(&Owner::of(attachment).to_comment());
        container.route.change_link(made, &change).map_err(|error| match error {
            RouteError::Kernel { .. } if error.already_exists() => self.taken(),
            error => failed(error),
        })?;
        container.route.link_by_index(made.index).map_err(failed)
    }

    fn taken(&self) -> CniError {
        let (plugin, name) = (self.plugin, self.request.attachment.ifname());
        CniError::internal(format!(
            "failed to rename {plugin} to {name:?}: a link of that name already exists"
        ))
        .with_details(UNCHANGED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_temporary_name_depends_on_the_attachment() {
        let of = |ifname: &str| temporary_name(&Attachment::new("net", "c1", ifname).unwrap());
        assert_eq!(of("eth0").len(), 15);
        assert!(of("eth0").starts_with("slip"));
        assert_eq!(of("eth0"), of("eth0"));
        assert_ne!(of("eth0"), of("eth1"));
    }
}
