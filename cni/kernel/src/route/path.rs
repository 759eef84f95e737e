// SPDX-License-Identifier: MIT OR Apache-2.0

//! Routes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU8;
use std::ops::ControlFlow;

use cni_netlink::Message;
use cni_netlink::message::{self, flag};
use ipnet::IpNet;
use nix::errno::Errno;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope as WireScope, RouteType,
};

use super::error::{ReplyError, RouteError};
use super::transport::Verb;
use super::{RouteSocket, wire};
use crate::AddressFamily;

/// The main routing table, `RT_TABLE_MAIN`.
pub const MAIN_TABLE: u32 = 254;
/// The table of local addresses, `RT_TABLE_LOCAL`.
pub const LOCAL_TABLE: u32 = 255;

/// `RTPROT_UNSPEC`.
const ANY_PROTOCOL: u8 = 0;
/// `IP6_RT_PRIO_USER` of `linux/ipv6_route.h`: the metric that the kernel gives an IPv6 route without one.
const IPV6_METRIC: u32 = 1024;

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination. The kernel stores it masked; see [`IpNet::trunc`].
    pub dst: IpNet,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Index of the outgoing link.
    pub link: Option<u32>,
    /// Preferred source address of the node's own packets.
    pub source: Option<IpAddr>,
    /// Metric. The route with the lowest one wins. For IPv6, the kernel treats 0 as 1,024.
    pub metric: u32,
    /// Table, [`MAIN_TABLE`] by default.
    pub table: u32,
    /// Scope (IPv4 only). By default, universe with a gateway, link without one, and host for [`RouteKind::Local`].
    pub scope: Option<RouteScope>,
    /// Type.
    pub kind: RouteKind,
    /// Path MTU in bytes, or 0 for the link's MTU.
    pub mtu: u32,
    /// Maximum TCP segment size to advertise in bytes, or 0 for the kernel's choice.
    pub advmss: u32,
    /// True if the gateway is on the link although no prefix covers it.
    pub onlink: bool,
    /// Origin (`rtm_protocol`), by its number in `linux/rtnetlink.h`. 0 means `boot`, like for `ip route add`.
    pub protocol: u8,
}

// linux/netconf.h
const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
const NETCONFA_IFINDEX_ALL: i32 = -1;
/// The length of `struct netconfmsg`: the family, padded.
const NETCONFMSG: usize = 4;

/// Decodes a message about settings: the family, the number of the link (negative for the whole namespace), and
/// whether it forwards. None if the message is not about forwarding.
pub(super) fn decode_forwarding(payload: &[u8]) -> Option<(AddressFamily, i32, bool)> {
    let (header, settings) = payload.split_at_checked(NETCONFMSG)?;
    let family =
        AddressFamily::BOTH.into_iter().find(|family| header[0] == u8::from(wire::family(*family)))?;
    let number =
        |wanted| message::find(settings, wanted)?.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
    Some((family, number(NETCONFA_IFINDEX)?, number(NETCONFA_FORWARDING)? != 0))
}

/// Type of a route (`rtm_type`), which decides what happens to its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// Forwarded or sent.
    Unicast,
    /// Delivered to this node.
    Local,
    /// Any other, by its number in `linux/rtnetlink.h`.
    Other(u8),
}

impl RouteKind {
    /// Dropped and answered with ICMP "destination unreachable" (`RTN_UNREACHABLE`). The kernel lists such an IPv6
    /// route with the loopback as its link.
    pub const UNREACHABLE: Self = Self::Other(7);
}

/// Scope of a route (`rtm_scope`), by its number in `linux/rtnetlink.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteScope(pub u8);

impl RouteScope {
    /// Everywhere.
    pub const UNIVERSE: Self = Self(0);
    /// A directly attached network.
    pub const LINK: Self = Self(253);
    /// The node itself.
    pub const HOST: Self = Self(254);
}

/// What happens if a route to the same destination with the same metric exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Fail with EEXIST.
    Refuse,
    /// Add the new route after it, or for IPv6 as another next hop. It is still EEXIST if the routes are equal.
    Append,
    /// Add the new route before it, so that packets take the new route. Otherwise like [`Existing::Append`].
    Prepend,
    /// Replace it, whatever its origin.
    Replace,
}

impl Route {
    /// A route in the main table. Everything else is unset.
    #[must_use]
    pub fn to(dst: IpNet) -> Self {
        Self {
            dst,
            gateway: None,
            link: None,
            source: None,
            metric: 0,
            table: MAIN_TABLE,
            scope: None,
            kind: RouteKind::Unicast,
            mtu: 0,
            advmss: 0,
            onlink: false,
            protocol: 0,
        }
    }

    /// The default route of a family. Everything else is unset.
    #[must_use]
    pub fn default_of(family: AddressFamily) -> Self {
        Self::to(match family {
            AddressFamily::V4 => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
            AddressFamily::V6 => IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
        })
    }

    /// True for a default route.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.dst.prefix_len() == 0
    }

    fn is_default_by_link(&self) -> bool {
        self.is_default() && self.link.is_some() && self.kind == RouteKind::Unicast
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = wire::family(AddressFamily::of(self.dst.addr()));
        message.header.destination_prefix_length = self.dst.prefix_len();
        message.header.table = u8::try_from(self.table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
        message.header.protocol = match self.protocol {
            0 => RouteProtocol::Boot,
            number => RouteProtocol::from(number),
        };
        message.header.kind = match self.kind {
            RouteKind::Unicast => RouteType::Unicast,
            RouteKind::Local => RouteType::Local,
            RouteKind::Other(number) => RouteType::from(number),
        };
        message.header.scope = WireScope::from(self.effective_scope().0);
        if self.onlink {
            message.header.flags = RouteFlags::Onlink;
        }
        let attributes = &mut message.attributes;
        if !self.is_default() {
            attributes.push(RouteAttribute::Destination(self.dst.trunc().addr().into()));
        }
        attributes.extend(self.gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())));
        attributes.extend(self.link.map(RouteAttribute::Oif));
        attributes.extend(self.source.map(|source| RouteAttribute::PrefSource(source.into())));
        if self.metric != 0 {
            attributes.push(RouteAttribute::Priority(self.metric));
        }
        attributes.push(RouteAttribute::Table(self.table));
        let mut metrics = Vec::new();
        if self.mtu != 0 {
            metrics.push(RouteMetric::Mtu(self.mtu));
        }
        if self.advmss != 0 {
            metrics.push(RouteMetric::Advmss(self.advmss));
        }
        if !metrics.is_empty() {
            attributes.push(RouteAttribute::Metrics(metrics));
        }
        message
    }

    fn effective_scope(&self) -> RouteScope {
        match (self.scope, self.kind) {
            (Some(scope), _) => scope,
            (None, RouteKind::Local) => RouteScope::HOST,
            (None, _) if self.gateway.is_some() || self.dst.addr().is_ipv6() => RouteScope::UNIVERSE,
            (None, _) => RouteScope::LINK,
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RouteKind::Unicast => {}
            RouteKind::Local => f.write_str("local ")?,
            RouteKind::UNREACHABLE => f.write_str("unreachable ")?,
            RouteKind::Other(number) => write!(f, "type {number} ")?,
        }
        write!(f, "{}", self.dst)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if self.metric != 0 {
            write!(f, " metric {}", self.metric)?;
        }
        if self.table != MAIN_TABLE {
            write!(f, " table {}", self.table)?;
        }
        Ok(())
    }
}

impl RouteSocket {
    /// True if the namespace forwards packets of this family (`net.ipv4.ip_forward`,
    /// `net.ipv6.conf.all.forwarding`). False if the kernel lacks the family.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot read the setting.
    pub fn forwards(&self, family: AddressFamily) -> Result<bool, RouteError> {
        // linux/rtnetlink.h
        const RTM_GETNETCONF: u16 = 82;
        let mut request = Message::new(RTM_GETNETCONF, 0);
        request.raw(&[u8::from(wire::family(family)), 0, 0, 0]);
        request.attr(NETCONFA_IFINDEX, &NETCONFA_IFINDEX_ALL.to_ne_bytes());
        let forwards = self.transport.get(request, format_args!("read forwarding of {family}"), |reply| {
            Ok(decode_forwarding(reply).is_some_and(|(_, _, on)| on))
        });
        match forwards {
            Err(error) if matches!(error.errno(), Some(Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT)) => Ok(false),
            other => other,
        }
    }

    /// The routes of one family in a table, with one route for each next hop. Empty if there is no such table.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn routes(&self, family: AddressFamily, table: u32) -> Result<Vec<Route>, RouteError> {
        self.list_routes(family, table, ANY_PROTOCOL, format_args!("list routes of table {table}"))
    }

    /// The routes of one family in a table whose origin has this number ([`Route::protocol`]), with one route for
    /// each next hop. Empty if there is no such table.
    ///
    /// IPv6 routes via gateways that share destination and metric become next hops of one route, which has the origin
    /// of the first one (`rt6_fill_node`). So routes that are to be found by their origin need a metric of their own.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn routes_of_protocol(
        &self,
        family: AddressFamily,
        table: u32,
        protocol: NonZeroU8,
    ) -> Result<Vec<Route>, RouteError> {
        let action = format_args!("list routes of table {table} with protocol {protocol}");
        self.list_routes(family, table, protocol.get(), action)
    }

    fn list_routes(
        &self,
        family: AddressFamily,
        table: u32,
        protocol: u8,
        action: fmt::Arguments<'_>,
    ) -> Result<Vec<Route>, RouteError> {
        let message = list_request(family, table, protocol);
        // A kernel without IPv6 lists the routes of the families that it has, and a kernel before Linux 4.20 lists
        // the routes of all origins.
        let decode = |payload: &[u8]| {
            let mut routes = decode(payload, table)?;
            routes.retain(|route| {
                AddressFamily::of(route.dst.addr()) == family
                    && (protocol == ANY_PROTOCOL || route.protocol == protocol)
            });
            Ok(Some(routes))
        };
        match self.transport.list(RouteNetlinkMessage::GetRoute(message), action, decode) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(Vec::new()),
            other => Ok(other?.into_iter().flatten().collect()),
        }
    }

    /// The default route of a family in the main table that leaves by a link. If there are several, the one with the
    /// lowest metric. See [`RouteSocket::default_routes`].
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list the routes.
    pub fn default_route(self, family: AddressFamily) -> Result<Option<Route>, RouteError> {
        Ok(self.default_routes(family)?.into_iter().min_by_key(|route| route.metric))
    }

    /// The default routes of a family in the main table that leave by a link. A route that leads nowhere
    /// (`unreachable`, `blackhole`, …) does not count, although the kernel lists it with the loopback.
    ///
    /// Takes the socket by value, because the list of IPv4 routes is not read to its end: the kernel lists routes by
    /// address (`fib_table_dump`), so those to 0.0.0.0 come first, whatever the length of their prefix.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list the routes.
    pub fn default_routes(self, family: AddressFamily) -> Result<Vec<Route>, RouteError> {
        let mut routes = match family {
            AddressFamily::V4 => self.routes_to_unspecified()?,
            AddressFamily::V6 => self.routes(family, MAIN_TABLE)?,
        };
        routes.retain(Route::is_default_by_link);
        Ok(routes)
    }

    fn routes_to_unspecified(self) -> Result<Vec<Route>, RouteError> {
        let request = list_request(AddressFamily::V4, MAIN_TABLE, ANY_PROTOCOL);
        let action = format_args!("list routes of table {MAIN_TABLE} to 0.0.0.0");
        let request = RouteNetlinkMessage::GetRoute(request);
        let listed = self.transport.list_until(request, action, |routes, payload| {
            let decoded = decode(payload, MAIN_TABLE)?;
            if decoded.iter().any(|route| !route.dst.addr().is_unspecified()) {
                return Ok(ControlFlow::Break(()));
            }
            routes.extend(decoded);
            Ok(ControlFlow::Continue(()))
        });
        match listed {
            // A table does not exist until it has a route.
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(Vec::new()),
            other => other,
        }
    }

    /// The link of the default route of a family, as [`RouteSocket::default_route`] finds it. If several IPv6 routes
    /// have the same metric, the link of any of them.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list the routes.
    pub fn default_link(self, family: AddressFamily) -> Result<Option<u32>, RouteError> {
        if family == AddressFamily::V6
            && let Some(route) = self.found_ipv6_default()
        {
            return Ok(route.link);
        }
        Ok(self.default_route(family)?.and_then(|route| route.link))
    }

    /// The default route for IPv6, if a lookup finds it. This avoids a list, at the end of which the kernel puts the
    /// default routes of IPv6 (`fib6_walk_continue`). Also none if a rule leads to another table, or if there are
    /// several next hops.
    fn found_ipv6_default(&self) -> Option<Route> {
        // After an error, the list of routes decides.
        let routes = self.matching(Ipv6Addr::UNSPECIFIED.into(), MAIN_TABLE).ok()?;
        let [route] = <[Route; 1]>::try_from(routes).ok()?;
        route.is_default_by_link().then_some(route)
    }

    /// The routes by which the node's packets to distant destinations leave, in the tables to which rules lead: the
    /// default route, or the two routes to half of all addresses each that a VPN puts before it. Empty if there is no
    /// such route.
    ///
    /// # Errors
    /// [`RouteError::is_transient`] if the kernel could not look it up.
    pub fn routes_to_anywhere(&self, family: AddressFamily) -> Result<Vec<Route>, RouteError> {
        /// The longest prefix that still counts as a route to anywhere.
        const HALF: u8 = 1;
        const ANY_TABLE: u32 = 0;
        // One address in each half, to which nobody has a specific route.
        let far: [IpAddr; 2] = match family {
            AddressFamily::V4 => [[1, 255, 255, 254].into(), [223, 255, 255, 254].into()],
            AddressFamily::V6 => {
                [[0x3eff, 0xffff, 0, 0, 0, 0, 0, 1].into(), [0xbfff, 0, 0, 0, 0, 0, 0, 1].into()]
            }
        };
        let mut found = Vec::new();
        for address in far {
            found.extend(self.matching(address, ANY_TABLE)?);
        }
        found.retain(|route| {
            route.dst.prefix_len() <= HALF && route.link.is_some() && route.kind == RouteKind::Unicast
        });
        Ok(found)
    }

    /// The route at which a lookup of the address ends, with all its next hops, if the route is in this table (0 for
    /// any table). Empty if there is no route, or only one that refuses packets.
    fn matching(&self, address: IpAddr, table: u32) -> Result<Vec<Route>, RouteError> {
        match self.lookup(address, table) {
            Err(error) if !error.is_transient() => {
                log::debug!("{error}");
                Ok(Vec::new())
            }
            found => found,
        }
    }

    fn lookup(&self, address: IpAddr, table: u32) -> Result<Vec<Route>, RouteError> {
        /// `linux/rtnetlink.h`: reply with the route itself.
        const RTM_F_FIB_MATCH: u32 = 0x2000;
        let mut message = lookup_request(address);
        message.header.flags = RouteFlags::from_bits_retain(RTM_F_FIB_MATCH);
        let action = format_args!("find the route that leads to {address}");
        self.transport.get(RouteNetlinkMessage::GetRoute(message), action, |reply| decode(reply, table))
    }

    /// The link by which the node's own packets to `address` leave. If there are several next hops, the link of the
    /// first one. Unlike [`RouteSocket::route_to`], this is cheap even on a node with thousands of links, because the
    /// kernel does not look at the addresses of all links to choose a source (`rt6_fill_node`).
    ///
    /// # Errors
    /// The errors of [`RouteSocket::route_to`].
    pub fn link_to(&self, address: IpAddr) -> Result<Option<u32>, RouteError> {
        let found = self.lookup(address, 0)?;
        let link =
            found.into_iter().filter(|route| route.kind == RouteKind::Unicast).find_map(|route| route.link);
        // The reply names no link for the node's own addresses, and for routes with nexthop objects.
        link.map_or_else(|| Ok(self.route_to(address)?.link), |link| Ok(Some(link)))
    }

    /// The route of the node's own packets to `address`, as `ip route get` prints it.
    ///
    /// # Errors
    /// [`RouteError::Kernel`] with ENETUNREACH if there is none.
    pub fn route_to(&self, address: IpAddr) -> Result<Route, RouteError> {
        let request = RouteNetlinkMessage::GetRoute(lookup_request(address));
        self.transport.get(request, format_args!("find route to {address}"), |payload| {
            decode(payload, 0)?.into_iter().next().ok_or(ReplyError::Empty)
        })
    }

    /// Adds a route.
    ///
    /// # Errors
    /// [`RouteError::already_exists`], depending on `existing`.
    pub fn add_route(&self, route: &Route, existing: Existing) -> Result<(), RouteError> {
        let flags = match existing {
            Existing::Refuse => flag::EXCLUSIVE,
            Existing::Append => flag::APPEND,
            // Without either flag, fib_table_insert() puts the new route first.
            Existing::Prepend => 0,
            Existing::Replace => flag::REPLACE,
        };
        let message = RouteNetlinkMessage::NewRoute(route.message());
        self.transport.run(Verb::CreateWith(flags), message, format_args!("add route {route}"))
    }

    /// Deletes a route, whatever its origin.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is no such route.
    pub fn delete_route(&self, route: &Route) -> Result<(), RouteError> {
        let mut message = route.message();
        message.header.protocol = RouteProtocol::Unspec;
        if route.scope.is_none() {
            message.header.scope = WireScope::NoWhere;
        }
        self.transport.run(
            Verb::Change,
            RouteNetlinkMessage::DelRoute(message),
            format_args!("delete route {route}"),
        )
    }

    /// Deletes a route if it has this origin ([`Route::protocol`]). Another program's route to the same destination
    /// stays.
    ///
    /// The kernel also compares destination, table and metric, and, if they are set, gateway and link. For IPv4, it
    /// also compares type and scope, and, if they are set, source, MTU and segment size (`fib_table_delete`,
    /// `ip6_route_del`). For IPv4, a metric of 0 means the lowest metric that such a route has.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is no such route.
    pub fn delete_own_route(&self, route: &Route) -> Result<(), RouteError> {
        let mut message = route.message();
        if route.metric == 0 && route.dst.addr().is_ipv6() {
            // If no metric is given, the kernel accepts any.
            message.attributes.push(RouteAttribute::Priority(IPV6_METRIC));
        }
        let protocol = u8::from(message.header.protocol);
        let action = format_args!("delete route {route} with protocol {protocol}");
        self.transport.run(Verb::Change, RouteNetlinkMessage::DelRoute(message), action)
    }
}

fn list_request(family: AddressFamily, table: u32, protocol: u8) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = wire::family(family);
    message.header.protocol = RouteProtocol::from(protocol);
    message.attributes.push(RouteAttribute::Table(table));
    message
}

fn lookup_request(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = wire::family(AddressFamily::of(address));
    message.header.destination_prefix_length = IpNet::from(address).prefix_len();
    message.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
    message
}

/// Length of `struct rtmsg` (`linux/rtnetlink.h`).
const RTMSG: usize = 12;
// linux/rtnetlink.h
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
const RTNEXTHOP: usize = 8;

/// Decodes a route of `table`, or of any table for 0, into one route for each next hop.
pub(super) fn decode(payload: &[u8], table: u32) -> Result<Vec<Route>, ReplyError> {
    let (header, rest) = payload.split_at_checked(RTMSG).ok_or(ReplyError::NoHeader("a route"))?;
    let Some(family) = wire::family_of(header[0]) else { return Ok(Vec::new()) };
    let mut route = Route::default_of(family);
    let mut hops = None;
    let prefix = header[1];
    route.table = u32::from(header[4]);
    route.protocol = header[5];
    route.scope = Some(RouteScope(header[6]));
    route.kind = match RouteType::from(header[7]) {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Local => RouteKind::Local,
        other => RouteKind::Other(other.into()),
    };
    route.onlink = RouteFlags::from_bits_retain(message::u32_of(&header[8..])).contains(RouteFlags::Onlink);
    let mut dst = route.dst.addr();
    for (kind, value) in message::attributes(rest) {
        match kind {
            nix::libc::RTA_DST => dst = wire::address(value).unwrap_or(dst),
            nix::libc::RTA_MULTIPATH => hops = Some(value),
            nix::libc::RTA_PRIORITY => route.metric = message::u32_of(value),
            nix::libc::RTA_PREFSRC => route.source = wire::address(value),
            nix::libc::RTA_TABLE => route.table = message::u32_of(value),
            nix::libc::RTA_METRICS => decode_metrics(value, &mut route),
            _ => decode_hop(kind, value, &mut route),
        }
    }
    route.dst = IpNet::new(dst, prefix).map_err(|_| ReplyError::Prefix { address: dst, length: prefix })?;
    if table != 0 && route.table != table {
        return Ok(Vec::new());
    }
    Ok(hops.map_or_else(|| vec![route.clone()], |hops| by_hop(hops, &route)))
}

fn decode_hop(kind: u16, value: &[u8], route: &mut Route) {
    match kind {
        nix::libc::RTA_OIF => route.link = Some(message::u32_of(value)),
        nix::libc::RTA_GATEWAY => route.gateway = wire::address(value),
        // RFC 5549: an IPv4 route via an IPv6 gateway. The value begins with the family.
        nix::libc::RTA_VIA => route.gateway = value.get(2..).and_then(wire::address),
        _ => {}
    }
}

/// Decodes one route for each next hop: `struct rtnexthop` (`linux/rtnetlink.h`), followed by attributes.
fn by_hop(mut hops: &[u8], route: &Route) -> Vec<Route> {
    let mut routes = Vec::new();
    while let (Some(length), Some(index)) = (hops.get(..2).map(message::u16_of), hops.get(4..RTNEXTHOP)) {
        let length = usize::from(length);
        let Some(attributes) = hops.get(RTNEXTHOP..length) else { break };
        let mut hop = Route { link: Some(message::u32_of(index)), ..route.clone() };
        for (kind, value) in message::attributes(attributes) {
            decode_hop(kind, value, &mut hop);
        }
        routes.push(hop);
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    routes
}

fn decode_metrics(value: &[u8], route: &mut Route) {
    for (kind, value) in message::attributes(value) {
        match kind {
            RTAX_MTU => route.mtu = message::u32_of(value),
            RTAX_ADVMSS => route.advmss = message::u32_of(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
