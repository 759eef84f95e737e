//! What the plugins that make one link, in the container alone, have in common: `macvlan`, `ipvlan`,
//! `vlan`, `dummy` and `tap`.
//!
//! The link is made in the container's namespace under a name that follows from the attachment, and gets
//! its owner's name as its alias together with the name that the runtime chose. So DEL finds it whatever
//! became of the ADD, and leaves the links of others alone.

pub(crate) mod check;
pub(crate) mod keys;
pub(crate) mod remove;

use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::route::{DuplicateDetection, Link, LinkChange, RouteError};
use cni_spec::{AddResult, Attachment, CniError, Dns};

use super::container::{Container, Setting};
use super::host::Host;
use super::layer3::{Layer3, adopt};
use super::remove::delete;
use super::{failed, interface};
use crate::plugin::Request;
use crate::skel::delegate;
use crate::undo::Undo;

/// What an ADD does beside making the link.
#[derive(Debug)]
pub(crate) struct Recipe<'a> {
    /// The call.
    pub(crate) request: &'a Request<'a>,
    /// What the plugin is called in errors.
    pub(crate) plugin: &'static str,
    /// Where its addresses come from.
    pub(crate) addresses: Addresses,
    /// The result's resolver settings; none for IPAM's.
    pub(crate) dns: Option<Dns>,
    /// What IPAM's errors begin with.
    pub(crate) ipam_failed: &'static str,
    /// What is set before the link has IPv6 addresses.
    pub(crate) settings: &'static [Setting],
    /// Whether its IPv6 addresses are probed before they are used.
    pub(crate) detection: DuplicateDetection,
}

/// Where the addresses of a link come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Addresses {
    /// There are none: the link is switched on, and that is all.
    None,
    /// IPAM is asked.
    Ipam,
    /// They are those of another plugin's result.
    Given(AddResult),
}

impl Addresses {
    /// IPAM's, if the configuration names an IPAM plugin.
    pub(crate) fn of(request: &Request<'_>) -> Self {
        if request.config.ipam.is_empty() { Self::None } else { Self::Ipam }
    }
}

/// Where an ADD works.
pub(crate) struct Site {
    /// The node.
    pub(crate) host: Host,
    /// The container.
    pub(crate) container: Container,
    /// The name that the link is made under.
    pub(crate) name: String,
}

impl Site {
    /// Opens both namespaces.
    ///
    /// # Errors
    /// Code 4 when `CNI_NETNS` does not lead to a network namespace.
    pub(crate) fn open(request: &Request<'_>) -> Result<Self, CniError> {
        let container = Container::open(request.netns.as_deref())?;
        Ok(Self { host: Host::open()?, container, name: unfinished_name(&request.attachment) })
    }

    /// Deletes what a call that failed or was killed has left under the name that links are made under.
    fn sweep(&self) -> Result<(), CniError> {
        match self.container.route.find_link(&self.name).map_err(failed)? {
            Some(link) => delete(&self.container.route, &link),
            None => Ok(()),
        }
    }
}

/// The name that an attachment's link is made under: `slip` and eleven hexadecimal digits that follow from
/// the attachment.
pub(crate) fn unfinished_name(attachment: &Attachment) -> String {
    const LENGTH: usize = 15;
    let hash = AttachmentHash::of(attachment).0;
    let mut name: String = "slip".to_owned();
    name.extend(hash.iter().map(|byte| format!("{byte:02x}")));
    name.truncate(LENGTH);
    name
}

/// How a link is taken away from the container. May be called again.
pub(crate) type TakeAway<'a> = dyn Fn() -> Result<(), CniError> + 'a;

impl Recipe<'_> {
    /// Carries an ADD out. `make` makes the link in the container's namespace, down, under the site's name,
    /// and says what is to be set on it when it gets its own.
    ///
    /// # Errors
    /// What failed; nothing is left then.
    pub(crate) fn add(
        &self,
        make: impl FnOnce(&Site) -> Result<LinkChange, CniError>,
    ) -> Result<AddResult, CniError> {
        let site = Site::open(self.request)?;
        self.refuse_if_taken(&site.container)?;
        site.sweep()?;
        let find = |change| Ok((change, site.container.route.link(&site.name).map_err(failed)?));
        // Also when the kernel made it and only its answer was lost, or it cannot be found again.
        let (change, made) = make(&site).and_then(find).inspect_err(|_| {
            if let Err(error) = site.sweep() {
                log::warn!("{error}");
            }
        })?;
        let take_away = || delete(&site.container.route, &made);
        let mut undo = Undo::new();
        undo.on_failure("delete the container's link", take_away);
        let link = self.give_name(&site.container, &made, change)?;
        let result = self.configure(&site.container, &link, &take_away, &mut undo)?;
        undo.keep();
        Ok(result)
    }

    /// Before anything else: a second ADD of the same attachment must leave the first one alone.
    ///
    /// # Errors
    /// The container has a link of the name.
    pub(crate) fn refuse_if_taken(&self, container: &Container) -> Result<(), CniError> {
        match container.route.find_link(self.request.attachment.ifname()).map_err(failed)? {
            Some(_) => Err(self.taken()),
            None => Ok(()),
        }
    }

    /// Gives the container's link its addresses and routes, and switches it on.
    ///
    /// The link is there before IPAM is asked, as `dhcp` speaks through it.
    ///
    /// # Errors
    /// What failed; `undo` knows how to take the addresses back then.
    pub(crate) fn configure<'a>(
        &'a self,
        container: &Container,
        link: &Link,
        take_away: &'a TakeAway<'a>,
        undo: &mut Undo<'a>,
    ) -> Result<AddResult, CniError> {
        let mut result = match self.addresses(take_away, undo)? {
            None => AddResult { dns: self.dns.clone().unwrap_or_default(), ..AddResult::default() },
            Some(answer) => adopt(answer, 0, self.dns.as_ref())?,
        };
        let layer3 = Layer3::of(&result);
        container.prepare(link, &layer3, self.settings)?;
        container.bring_up(link, &layer3, self.detection)?;
        // Read again: other programs change addresses after creation.
        let link = container.route.link_by_index(link.index).map_err(failed)?;
        result.interfaces = vec![interface(&link, container.sandbox())];
        Ok(result)
    }

    fn addresses<'a>(
        &'a self,
        take_away: &'a TakeAway<'a>,
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
                    // An address that is free must lead to nobody.
                    if !delegate::ipam_needs_link(self.request.config) {
                        take_away()?;
                    }
                    delegate::ipam_del(self.request)
                });
                Ok(Some(answer))
            }
        }
    }

    /// Names the link as the runtime wants it, and writes its owner on it.
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_a_link_is_made_under_follows_from_the_attachment() {
        let of = |ifname: &str| unfinished_name(&Attachment::new("net", "c1", ifname).unwrap());
        assert_eq!(of("eth0").len(), 15);
        assert!(of("eth0").starts_with("slip"));
        assert_eq!(of("eth0"), of("eth0"));
        assert_ne!(of("eth0"), of("eth1"));
    }
}
