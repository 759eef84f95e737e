// SPDX-License-Identifier: MIT OR Apache-2.0

//! Switches on forwarding in a network namespace, without losing what routers have advertised.
//!
//! A kernel that forwards IPv6 packets is a router, and ignores the advertisements of other routers unless a link's
//! `accept_ra` is 2. When forwarding is switched on, the kernel also deletes the default routes that it has learnt on
//! all other links (`rt6_purge_dflt_routers` in `net/ipv6/route.c`). A node whose only default route comes from a
//! router would lose its network. So `accept_ra` of exactly these links is set to 2 first.
//!
//! ```text
//! subscribe to changes of routes
//!     lock the setting, read it again
//!         list what routers have advertised          accept_ra 2 on these links
//!         read the changes                           accept_ra 2 on the links of new routes
//!         write the setting
//!     unlock
//! read the changes                                   the same, and ask the routers again
//! ```

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::num::NonZeroU8;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily as SocketFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto,
    setsockopt, socket, sockopt,
};

use crate::AddressFamily;
use crate::route::{Address, Link, Notification, NotificationGroup, Notifications, RouteError, RouteSocket};
use crate::sysctl::{self, SysctlError};

/// `RTPROT_RA` of `linux/rtnetlink.h`: the origin of routes from router advertisements.
const FROM_ADVERTISEMENT: NonZeroU8 = NonZeroU8::new(9).expect("not zero");
/// Means all tables, because advertised routes of a VRF's links are in the VRF's table.
const ALL_TABLES: u32 = 0;
/// The value of `accept_ra` with which a link accepts advertisements although the kernel forwards.
const ACCEPT_AS_ROUTER: &str = "2";

/// Forwarding could not be switched on.
#[derive(Debug, thiserror::Error)]
pub enum ForwardingError {
    /// The kernel refused a request, or its state could not be read.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A setting could not be read or written.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

/// Makes the calling thread's namespace forward packets of a family, if it does not do so yet. `route` is a socket in
/// that namespace.
///
/// For IPv6, links on which the kernel has learnt routes from advertisements keep these routes, because their
/// `accept_ra` is set to 2. Returns the names of these links. In the common case, forwarding is already on, which
/// costs one request, and the result is empty.
///
/// # Errors
/// [`ForwardingError`] if a setting cannot be written. Either forwarding is then off, or a link's `accept_ra` is not
/// 2.
pub fn enable(route: &RouteSocket, family: AddressFamily) -> Result<Vec<String>, ForwardingError> {
    enable_below(sysctl::DIRECTORY.as_ref(), route, family)
}

/// Does the same as [`enable`] with another directory for the settings, like [`sysctl::ensure_below`].
///
/// # Errors
/// The errors of [`enable`].
pub fn enable_below(
    directory: &Path,
    route: &RouteSocket,
    family: AddressFamily,
) -> Result<Vec<String>, ForwardingError> {
    // Checked first, because writing the setting resets others, even if its value stays the same.
    if route.forwards(family)? {
        return Ok(Vec::new());
    }
    match family {
        AddressFamily::V4 => {
            sysctl::ensure_below(directory, "net/ipv4/ip_forward", "1")?;
            Ok(Vec::new())
        }
        AddressFamily::V6 => enable_ipv6(directory, route),
    }
}

fn enable_ipv6(directory: &Path, route: &RouteSocket) -> Result<Vec<String>, ForwardingError> {
    let changes = Notifications::open(&[NotificationGroup::Routes])?;
    let mut learnt = Advertised { directory, route, changes, kept: BTreeSet::new(), names: Vec::new() };
    sysctl::ensure_after(directory, "net/ipv6/conf/all/forwarding", "1", || learnt.keep_all())?;
    learnt.keep_late()?;
    Ok(learnt.names)
}

/// The indexes of the links on which the kernel has learnt something from router advertisements: a route, or an
/// address with a limited lifetime, which only another advertisement renews.
///
/// # Errors
/// [`RouteError`] if links, addresses or routes cannot be listed.
pub fn advertised_links(route: &RouteSocket) -> Result<BTreeSet<u32>, RouteError> {
    let routes = route.routes_of_protocol(AddressFamily::V6, ALL_TABLES, FROM_ADVERTISEMENT)?;
    let mut found: BTreeSet<u32> = routes.iter().filter_map(|route| route.link).collect();
    let links = route.links()?;
    if links.iter().any(|link| link.has_router && !found.contains(&link.index)) {
        // Other programs also add addresses with limited lifetimes, so only links on which a router has answered
        // count.
        let addresses = route.all_addresses()?;
        let renewed = addresses.iter().filter(|address| is_renewed(address));
        let links = renewed.filter_map(|address| links.iter().find(|link| link.index == address.link));
        found.extend(links.filter(|link| link.has_router).map(|link| link.index));
    }
    Ok(found)
}

/// True if this link is one of [`advertised_links`]. Does not list all links, of which a full node has thousands.
///
/// # Errors
/// [`RouteError`] if the link's addresses or the node's routes cannot be listed.
pub fn learns_from_routers(route: &RouteSocket, link: &Link) -> Result<bool, RouteError> {
    let routes = route.routes_of_protocol(AddressFamily::V6, ALL_TABLES, FROM_ADVERTISEMENT)?;
    if routes.iter().any(|route| route.link == Some(link.index)) {
        return Ok(true);
    }
    Ok(link.has_router && route.addresses(link)?.iter().any(is_renewed))
}

/// True for an address that only another advertisement renews, if a router has answered on its link.
fn is_renewed(address: &Address) -> bool {
    address.expires && address.net.addr().is_ipv6()
}

/// The default routes that the kernel has learnt from router advertisements, in all tables.
///
/// # Errors
/// [`RouteError`] if routes cannot be listed.
pub fn advertised_default_routes(route: &RouteSocket) -> Result<Vec<crate::route::Route>, RouteError> {
    let mut routes = route.routes_of_protocol(AddressFamily::V6, ALL_TABLES, FROM_ADVERTISEMENT)?;
    routes.retain(crate::route::Route::is_default);
    Ok(routes)
}

/// The routes and links that router advertisements have set up, while forwarding is being switched on.
struct Advertised<'a> {
    directory: &'a Path,
    route: &'a RouteSocket,
    changes: Notifications,
    /// The indexes of the links that have been looked at.
    kept: BTreeSet<u32>,
    /// The names of the links whose `accept_ra` was changed.
    names: Vec<String>,
}

impl Advertised<'_> {
    /// Before the change: keeps everything that has been learnt until now.
    fn keep_all(&mut self) -> Result<(), ForwardingError> {
        for index in advertised_links(self.route)? {
            self.keep(index)?;
        }
        for index in self.reported()? {
            self.keep(index)?;
        }
        Ok(())
    }

    /// After the change, a route that appeared since the last look is gone. Lets its link accept advertisements and
    /// asks for one, because the next unsolicited one may take half an hour (RFC 4861, section 6.2.1).
    fn keep_late(&mut self) -> Result<(), ForwardingError> {
        for index in self.reported()? {
            if let Some(link) = self.keep(index)?
                && let Err(errno) = solicit(&link)
            {
                log::warn!("ask the routers at {} for an advertisement: {errno}", link.name);
            }
        }
        Ok(())
    }

    /// The links of advertised routes that were reported since the last call and have not been looked at.
    fn reported(&mut self) -> Result<BTreeSet<u32>, ForwardingError> {
        let mut found = BTreeSet::new();
        while let Some(change) = self.changes.read()? {
            match change {
                Notification::Route { route, deleted: false }
                    if route.protocol == FROM_ADVERTISEMENT.get() =>
                {
                    found.extend(route.link);
                }
                Notification::Lost => found.extend(advertised_links(self.route)?),
                _ => {}
            }
        }
        Ok(found.difference(&self.kept).copied().collect())
    }

    /// Sets a link's `accept_ra` to 2, unless the link refuses advertisements (0) or already has that value. Returns
    /// the link if the setting was changed.
    fn keep(&mut self, index: u32) -> Result<Option<Link>, ForwardingError> {
        self.kept.insert(index);
        let link = match self.route.link_by_index(index) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        if matches!(link.accept_ra, 0 | 2) {
            return Ok(None);
        }
        let name = format!("net/ipv6/conf/{}/accept_ra", link.name);
        match sysctl::ensure_below(self.directory, &name, ACCEPT_AS_ROUTER) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        log::warn!(
            "set sysctl {name} to 2 before the node forwards IPv6 packets: {} has routes from router advertisements, \
             which a forwarding node ignores otherwise",
            link.name
        );
        self.names.push(link.name.clone());
        Ok(Some(link))
    }
}

/// Sends a router solicitation (RFC 4861, section 4.1).
fn solicit(link: &Link) -> Result<(), Errno> {
    const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    /// Routers ignore a solicitation that may have been forwarded.
    const HOP_LIMIT: i32 = 255;
    // Type 133, code 0; the kernel fills in the checksum (RFC 3542, section 3.1).
    let message = [133, 0, 0, 0, 0, 0, 0, 0];
    let socket = socket(SocketFamily::Inet6, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::IcmpV6)?;
    setsockopt(&socket, sockopt::Ipv6MulticastHops, &HOP_LIMIT)?;
    let to = SockaddrIn6::from(SocketAddrV6::new(ALL_ROUTERS, 0, 0, link.index));
    sendto(socket.as_raw_fd(), &message, &to, MsgFlags::MSG_DONTWAIT).map(drop)
}
