// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state that bridge and ptp share: the settings by which packets reach the container's link.

use cni_kernel::AddressFamily;
use cni_kernel::route::{Link, RouteSocket};
use cni_kernel::sysctl;
use cni_spec::{AddResult, CniError};
use ipnet::IpNet;

use super::check::{present, wrong};
use super::failed;
use super::host::{Host, forwarding_setting};
use super::layer3::{families, has};
use crate::expected::{Expected, Whose};

/// Objects in the order in which an ADD makes them.
pub(crate) type Objects = Vec<Box<dyn Expected>>;

/// The settings by which the node forwards the packets of a container that is behind `link`.
///
/// # Errors
/// The kernel cannot list its routes.
pub(crate) fn settings(link: &str, addresses: &[IpNet], previous: &AddResult) -> Result<Objects, CniError> {
    let mut all: Objects = Vec::new();
    for family in families(addresses) {
        all.push(Box::new(Forwarding(family)));
        // A container of an internal network only reaches its neighbours, so the node need not forward its packets.
        let leaves = previous.routes.iter().any(|route| AddressFamily::of(route.dst.addr()) == family);
        if leaves {
            all.push(Box::new(LinkForwarding { link: link.to_owned(), family }));
            for uplink in uplinks(family)? {
                if family == AddressFamily::V4 {
                    all.push(Box::new(ReversePath { link: uplink.clone() }));
                }
                all.push(Box::new(LinkForwarding { link: uplink, family }));
            }
        }
        if family == AddressFamily::V6 {
            all.push(Box::new(Ipv6 { link: link.to_owned() }));
        }
    }
    Ok(all)
}

/// The links of the node's default routes, through which replies to a container arrive.
fn uplinks(family: AddressFamily) -> Result<Vec<String>, CniError> {
    let routes = RouteSocket::open().and_then(|socket| socket.default_routes(family)).map_err(failed)?;
    let socket = RouteSocket::open().map_err(failed)?;
    let mut names = Vec::new();
    for index in routes.iter().filter_map(|route| route.link) {
        match socket.link_by_index(index) {
            Ok(link) if !names.contains(&link.name) => names.push(link.name),
            Err(error) if !error.is_not_found() => return Err(failed(error)),
            _ => {}
        }
    }
    Ok(names)
}

/// Forwarding of the whole node.
struct Forwarding(AddressFamily);

impl Expected for Forwarding {
    fn name(&self) -> String {
        format!("forwarding of {} ({})", self.0, forwarding_setting(self.0))
    }

    fn whose(&self) -> Whose {
        Whose::Shared
    }

    fn stops(&self, family: AddressFamily, is_forwarded: bool) -> bool {
        is_forwarded && family == self.0
    }

    fn check(&self) -> Result<(), CniError> {
        let socket = RouteSocket::open().map_err(failed)?;
        match socket.forwards(self.0).map_err(failed)? {
            true => Ok(()),
            false => Err(wrong(format!("{} is 0, and should be 1", forwarding_setting(self.0)))),
        }
    }

    fn put_back(&self) -> Result<(), CniError> {
        Host::open()?.forward_family(self.0)
    }
}

/// The setting that lets the node forward packets that arrive on one link, while the node forwards at all.
struct LinkForwarding {
    link: String,
    family: AddressFamily,
}

impl LinkForwarding {
    fn setting(&self) -> String {
        format!("net/ipv{}/conf/{}/forwarding", self.family.version(), self.link)
    }
}

impl Expected for LinkForwarding {
    fn name(&self) -> String {
        format!("forwarding of {} from {} ({})", self.family, self.link, self.setting())
    }

    fn whose(&self) -> Whose {
        Whose::Theirs
    }

    fn remedy(&self) -> String {
        remedy(&self.setting(), "1")
    }

    fn stops(&self, family: AddressFamily, is_forwarded: bool) -> bool {
        is_forwarded && family == self.family
    }

    fn check(&self) -> Result<(), CniError> {
        let socket = RouteSocket::open().map_err(failed)?;
        // Enabling the node-wide setting also enables that of each link.
        if !socket.forwards(self.family).map_err(failed)? {
            return Ok(());
        }
        match socket.find_link(&self.link).map_err(failed)? {
            Some(link) if !link.forwards(self.family) => {
                Err(wrong(format!("{} is 0, and should be 1", self.setting())))
            }
            _ => Ok(()),
        }
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.check()
    }
}

/// An uplink through which no replies leave must not have a strict reverse path filter, because the kernel would drop
/// the packets that arrive there.
struct ReversePath {
    link: String,
}

impl ReversePath {
    fn setting(&self) -> String {
        format!("net/ipv4/conf/{}/rp_filter", self.link)
    }

    /// True if the kernel filters strictly. The kernel takes the larger of the two settings, and 2 means loose.
    fn is_strict(&self) -> Result<bool, CniError> {
        let mut largest = 0;
        for setting in ["net/ipv4/conf/all/rp_filter".to_owned(), self.setting()] {
            match sysctl::get(&setting) {
                Ok(value) => largest = largest.max(value.trim().parse::<u8>().unwrap_or_default()),
                // The link is gone.
                Err(error) if error.is_not_found() => return Ok(false),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(largest == 1)
    }
}

impl Expected for ReversePath {
    fn name(&self) -> String {
        format!("no strict reverse path filter on {} ({})", self.link, self.setting())
    }

    fn whose(&self) -> Whose {
        Whose::Theirs
    }

    fn remedy(&self) -> String {
        remedy(&self.setting(), "2")
    }

    // The packet in question may come in through another uplink.
    fn alters(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        if !self.is_strict()? {
            return Ok(());
        }
        let socket = RouteSocket::open().map_err(failed)?;
        let Some(link) = socket.find_link(&self.link).map_err(failed)? else { return Ok(()) };
        let routes = socket.routes_to_anywhere(AddressFamily::V4).map_err(failed)?;
        let Some(other) =
            routes.first().filter(|_| routes.iter().all(|route| route.link != Some(link.index)))
        else {
            return Ok(());
        };
        let other = socket.link_by_index(other.link.unwrap_or_default()).map_err(failed)?;
        Err(wrong(format!(
            "{} is 1, strict: the kernel drops packets from far that come in by {}, as replies to them leave by {}",
            self.setting(),
            link.name,
            other.name
        )))
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.check()
    }
}

/// IPv6 must be enabled on the link that has the gateway's address. Otherwise the kernel has no IPv6 address there and
/// accepts no packets.
struct Ipv6 {
    link: String,
}

impl Ipv6 {
    fn setting(&self) -> String {
        format!("net/ipv6/conf/{}/disable_ipv6", self.link)
    }
}

impl Expected for Ipv6 {
    fn name(&self) -> String {
        format!("IPv6 on {} ({})", self.link, self.setting())
    }

    fn whose(&self) -> Whose {
        Whose::Theirs
    }

    fn remedy(&self) -> String {
        remedy(&self.setting(), "0")
    }

    fn stops(&self, family: AddressFamily, _is_forwarded: bool) -> bool {
        family == AddressFamily::V6
    }

    fn check(&self) -> Result<(), CniError> {
        let socket = RouteSocket::open().map_err(failed)?;
        match socket.find_link(&self.link).map_err(failed)? {
            Some(link) if link.disables_ipv6 => {
                Err(wrong(format!("{} is 1, and should be 0", self.setting())))
            }
            _ => Ok(()),
        }
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.check()
    }
}

/// The remedy for a setting of a link, with the places that it usually comes from.
fn remedy(setting: &str, value: &str) -> String {
    format!(
        "`sysctl -w {setting}={value}`; to find who writes it: `grep -rs {} /etc/sysctl.conf /etc/sysctl.d /run/sysctl.d \
         /usr/lib/sysctl.d`, and the settings of networkd or NetworkManager",
        setting.rsplit('/').next().unwrap_or(setting)
    )
}

/// The gateway's addresses on a link of the node.
pub(crate) struct Addresses<P> {
    /// The link's name.
    pub(crate) link: String,
    pub(crate) wanted: Vec<IpNet>,
    /// Makes them as the ADD does.
    pub(crate) put_back: P,
}

impl<P: Fn() -> Result<(), CniError>> Expected for Addresses<P> {
    fn name(&self) -> String {
        let wanted: Vec<String> = self.wanted.iter().map(ToString::to_string).collect();
        format!("gateway {} on {}", wanted.join(", "), self.link)
    }

    fn stops(&self, family: AddressFamily, _is_forwarded: bool) -> bool {
        has(&self.wanted, family)
    }

    fn check(&self) -> Result<(), CniError> {
        let socket = RouteSocket::open().map_err(failed)?;
        let link = present(&socket, &self.link)?;
        super::check::has_addresses(&socket, &link, &possible(&link, &self.wanted))
    }

    fn put_back(&self) -> Result<(), CniError> {
        (self.put_back)()
    }
}

/// The addresses that the link can have. IPv6 addresses are left out while IPv6 is disabled on the link, which is
/// reported as a separate object.
fn possible(link: &Link, wanted: &[IpNet]) -> Vec<IpNet> {
    let can = |net: &&IpNet| net.addr().is_ipv4() || !link.disables_ipv6;
    wanted.iter().filter(can).copied().collect()
}

/// The link-local IPv6 address of a gateway's link: the kernel solicits its neighbours from it.
pub(crate) struct LinkLocal {
    pub(crate) link: String,
}

impl Expected for LinkLocal {
    fn name(&self) -> String {
        format!("link-local address on {}", self.link)
    }

    fn stops(&self, family: AddressFamily, _is_forwarded: bool) -> bool {
        family == AddressFamily::V6
    }

    fn check(&self) -> Result<(), CniError> {
        let socket = RouteSocket::open().map_err(failed)?;
        let link = present(&socket, &self.link)?;
        if link.disables_ipv6 {
            return Ok(());
        }
        if Host::open()?.has_link_local(&link)? {
            return Ok(());
        }
        Err(wrong(format!("{} has no IPv6 address of link scope to solicit its neighbours from", self.link)))
    }

    fn put_back(&self) -> Result<(), CniError> {
        let host = Host::open()?;
        let link = present(&host.route, &self.link)?;
        host.ensure_link_local(&link)
    }
}
