// SPDX-License-Identifier: GPL-2.0-or-later

//! A lease: its terms, its phases, and the result of an ADD.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use cni_kernel::boot;
use cni_spec::address::{AddressError, check_container, check_router};
use cni_spec::{AddResult, Attachment, AttachmentError, IpConfig, Route};
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use super::message::{Options, Reply};

/// The duration of a lease if the server names none, in seconds.
const DEFAULT_DURATION: u32 = 3600;
/// `RT_SCOPE_LINK` of `linux/rtnetlink.h`.
const SCOPE_LINK: u8 = 253;

/// The attachment that a lease belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Owner {
    pub(super) network: String,
    pub(super) container: String,
    pub(super) ifname: String,
}

impl Owner {
    pub(super) fn of(attachment: &Attachment) -> Self {
        Self {
            network: attachment.network().to_owned(),
            container: attachment.container_id().to_owned(),
            ifname: attachment.ifname().to_owned(),
        }
    }

    /// Checks the names, which come from another process.
    pub(super) fn checked(&self) -> Result<(), AttachmentError> {
        Attachment::new(&self.network, &self.container, &self.ifname).map(drop)
    }

    /// The client identifier (option 61), by which servers know the lease.
    pub(super) fn client_id(&self) -> String {
        format!("{}/{}/{}", self.container, self.network, self.ifname)
    }

    /// The name of the lease's file. None of the three parts has a colon.
    pub(super) fn file_name(&self) -> String {
        format!("{}:{}:{}", self.network, self.container, self.ifname)
    }

    /// The owner that a file's name stands for.
    pub(super) fn of_file(name: &str) -> Option<Self> {
        let [network, container, ifname] = name.split(':').collect::<Vec<_>>().try_into().ok()?;
        Attachment::new(network, container, ifname).ok().map(|attachment| Self::of(&attachment))
    }
}

/// The namespace of a lease.
#[derive(Debug, Clone)]
pub(super) struct LeaseNetns {
    pub(super) path: PathBuf,
    /// Device and inode number.
    pub(super) id: (u64, u64),
}

/// A lease, in the form of its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) owner: Owner,
    /// The path of the container's namespace.
    pub(super) netns: PathBuf,
    /// The namespace's device and inode number.
    pub(super) netns_id: (u64, u64),
    pub(super) options: Options,
    pub(super) address: Ipv4Addr,
    pub(super) prefix: u8,
    pub(super) server: Ipv4Addr,
    pub(super) gateway: Option<Ipv4Addr>,
    /// Destination and gateway; the unspecified address means that there is no gateway.
    pub(super) routes: Vec<(Ipv4Net, Ipv4Addr)>,
    /// The kernel's boot ID.
    pub(super) boot: String,
    /// The uptime at which the server granted the lease, in seconds.
    pub(super) since: u64,
    /// In seconds from then on, like the next two fields.
    pub(super) renewal: u32,
    pub(super) rebinding: u32,
    pub(super) expiry: u32,
}

/// Why a reply is not usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum LeaseError {
    #[error("DHCP option Subnet Mask not found in DHCPACK")]
    NoMask,
    #[error("the subnet mask {0} of the DHCPACK is not a valid mask")]
    Mask(Ipv4Addr),
    #[error("DHCP option Server Identifier not found in DHCPACK")]
    NoServer,
    #[error("the lease has no duration")]
    NoDuration,
    #[error(transparent)]
    Unusable(#[from] AddressError),
}

/// The state of a lease (RFC 2131, section 4.4.5), with the time left in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing to do.
    Bound(Duration),
    /// The server that granted it is asked to extend it.
    Renewing(Duration),
    /// Any server is asked to extend it.
    Rebinding(Duration),
    Expired,
}

/// The terms of a lease in a server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Terms {
    address: Ipv4Addr,
    prefix: u8,
    server: Ipv4Addr,
    gateway: Option<Ipv4Addr>,
    routes: Vec<(Ipv4Net, Ipv4Addr)>,
    renewal: u32,
    rebinding: u32,
    expiry: u32,
}

impl Terms {
    /// Checks a reply. `server` is the addressed server, for a reply without option 54.
    pub(super) fn of(reply: &Reply, server: Option<Ipv4Addr>) -> Result<Self, LeaseError> {
        let mask = reply.mask.ok_or(LeaseError::NoMask)?;
        let bits = u32::from(mask);
        let ones = bits.leading_ones();
        if bits.count_ones() != ones {
            return Err(LeaseError::Mask(mask));
        }
        let prefix = u8::try_from(ones).unwrap_or(32);
        let net = Ipv4Net::new(reply.address, prefix).unwrap_or_else(|_| reply.address.into());
        check_container(net.into())?;
        let server = reply.server.or(server).filter(|server| !server.is_unspecified());
        let (server, routes) = (server.ok_or(LeaseError::NoServer)?, routes(reply));
        let gateway = reply.routers.first().copied();
        let next_hops = routes.iter().map(|(_, next_hop)| *next_hop).chain(gateway);
        next_hops.chain([server]).try_for_each(|address| check_router(address.into()))?;
        let expiry = reply.lease.unwrap_or(DEFAULT_DURATION);
        if expiry == 0 {
            return Err(LeaseError::NoDuration);
        }
        let part = |percent: u64| u32::try_from(u64::from(expiry) * percent / 100).unwrap_or(u32::MAX);
        let rebinding = reply.rebinding.unwrap_or_else(|| part(85)).min(expiry);
        Ok(Self {
            address: reply.address,
            prefix,
            server,
            gateway,
            routes,
            renewal: reply.renewal.unwrap_or_else(|| part(50)).min(rebinding),
            rebinding,
            expiry,
        })
    }

    /// Checks an offer. It need not have the subnet mask yet.
    pub(super) fn check_offer(offer: &Reply) -> Result<(), LeaseError> {
        let mask = offer.mask.or(Some(Ipv4Addr::BROADCAST));
        Self::of(&Reply { mask, ..offer.clone() }, None).map(drop)
    }

    pub(super) fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub(super) fn server(&self) -> Ipv4Addr {
        self.server
    }
}

/// The routes of a reply. By RFC 3442, classless routes replace all others and the router.
fn routes(reply: &Reply) -> Vec<(Ipv4Net, Ipv4Addr)> {
    if !reply.classless.is_empty() {
        return reply.classless.clone();
    }
    let classful = reply.classful.iter().filter_map(|(dst, gw)| Some((classful(*dst)?, *gw)));
    let default = reply.routers.first().map(|gw| (Ipv4Net::default(), *gw));
    classful.chain(default).collect()
}

/// The network of an address by its class A, B or C; none for other addresses.
fn classful(address: Ipv4Addr) -> Option<Ipv4Net> {
    let length = match address.octets()[0] {
        0..128 => 8,
        128..192 => 16,
        192..224 => 24,
        _ => return None,
    };
    Ipv4Net::new(address, length).ok()
}

impl Lease {
    pub(super) fn new(owner: Owner, netns: LeaseNetns, options: Options, terms: &Terms) -> Self {
        let mut lease = Self {
            owner,
            netns: netns.path,
            netns_id: netns.id,
            options,
            address: terms.address,
            prefix: terms.prefix,
            server: terms.server,
            gateway: None,
            routes: Vec::new(),
            boot: boot::id(),
            since: 0,
            renewal: 0,
            rebinding: 0,
            expiry: 0,
        };
        lease.extend(terms);
        lease
    }

    /// True if the machine was booted since the lease was granted. False if a boot ID could not be read, because a lease
    /// that is dropped by mistake leaves its container with an address that the server may give to others.
    pub(super) fn is_of_earlier_boot(&self) -> bool {
        let boot = boot::id();
        !boot.is_empty() && !self.boot.is_empty() && self.boot != boot
    }

    /// Extends the lease from now on.
    pub(super) fn extend(&mut self, terms: &Terms) {
        self.since = boot::uptime().as_secs();
        self.server = terms.server;
        self.gateway = terms.gateway;
        self.routes.clone_from(&terms.routes);
        (self.renewal, self.rebinding, self.expiry) = (terms.renewal, terms.rebinding, terms.expiry);
    }

    /// The phase at an uptime.
    pub(super) fn phase(&self, now: Duration) -> Phase {
        let age = now.saturating_sub(Duration::from_secs(self.since));
        let at = |seconds: u32| Duration::from_secs(u64::from(seconds));
        if self.expiry == u32::MAX {
            // Infinite, by RFC 2131, section 3.3.
            return Phase::Bound(Duration::from_secs(86_400));
        }
        if age >= at(self.expiry) {
            Phase::Expired
        } else if age >= at(self.rebinding) {
            Phase::Rebinding(at(self.expiry) - age)
        } else if age >= at(self.renewal) {
            Phase::Renewing(at(self.rebinding) - age)
        } else {
            Phase::Bound(at(self.renewal) - age)
        }
    }

    pub(super) fn result(&self) -> AddResult {
        let net = Ipv4Net::new(self.address, self.prefix).unwrap_or_else(|_| Ipv4Net::from(self.address));
        let ip = IpConfig { interface: None, address: IpNet::V4(net), gateway: self.gateway.map(IpAddr::V4) };
        let route = |(dst, gw): &(Ipv4Net, Ipv4Addr)| match gw.is_unspecified() {
            // An on-link route.
            true => Route { scope: Some(SCOPE_LINK), ..Route::new(IpNet::V4(*dst), Some(IpAddr::V4(*gw))) },
            false => Route::new(IpNet::V4(*dst), Some(IpAddr::V4(*gw))),
        };
        AddResult { ips: vec![ip], routes: self.routes.iter().map(route).collect(), ..AddResult::default() }
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::DhcpMessageType as MessageType;

    use super::*;

    fn reply() -> Reply {
        Reply {
            kind: MessageType::Ack,
            address: Ipv4Addr::new(10, 0, 0, 5),
            server: Some(Ipv4Addr::new(10, 0, 0, 1)),
            mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
            routers: vec![Ipv4Addr::new(10, 0, 0, 1)],
            classless: Vec::new(),
            classful: vec![(Ipv4Addr::new(172, 16, 0, 0), Ipv4Addr::new(10, 0, 0, 9))],
            lease: Some(1000),
            renewal: None,
            rebinding: None,
        }
    }

    fn lease(reply: &Reply) -> Lease {
        let owner = Owner { network: "n".into(), container: "c".into(), ifname: "eth0".into() };
        let terms = Terms::of(reply, None).unwrap();
        let netns = LeaseNetns { path: PathBuf::from("/run/netns/c"), id: (1, 2) };
        Lease::new(owner, netns, Options::default(), &terms)
    }

    fn shown(lease: &Lease) -> Vec<String> {
        let gw = |route: &Route| route.gw.map(|gw| gw.to_string()).unwrap_or_default();
        lease.result().routes.iter().map(|r| format!("{} {} {:?}", r.dst, gw(r), r.scope)).collect()
    }

    #[test]
    fn times_are_the_servers_or_half_and_85_percent() {
        let at = |lease: &Lease, seconds: u64| lease.phase(Duration::from_secs(lease.since + seconds));
        let seconds = Duration::from_secs;
        let plain = lease(&reply());
        assert_eq!(at(&plain, 100), Phase::Bound(seconds(400)));
        assert_eq!(at(&plain, 500), Phase::Renewing(seconds(350)));
        assert_eq!(at(&plain, 850), Phase::Rebinding(seconds(150)));
        assert_eq!(at(&plain, 1000), Phase::Expired);
        let named = lease(&Reply { renewal: Some(5), rebinding: Some(7), ..reply() });
        assert_eq!(
            (at(&named, 5), at(&named, 7)),
            (Phase::Renewing(seconds(2)), Phase::Rebinding(seconds(993)))
        );
        let unnamed = lease(&Reply { lease: None, ..reply() });
        assert_eq!((unnamed.renewal, unnamed.rebinding, unnamed.expiry), (1800, 3060, 3600));
        let for_ever = lease(&Reply { lease: Some(u32::MAX), ..reply() });
        assert!(matches!(at(&for_ever, 9_000_000_000), Phase::Bound(_)));
    }

    #[test]
    fn classless_routes_replace_the_others() {
        assert_eq!(shown(&lease(&reply())), ["172.16.0.0/16 10.0.0.9 None", "0.0.0.0/0 10.0.0.1 None"]);
        let on_link = Ipv4Addr::UNSPECIFIED;
        let classless = vec![
            ("10.9.0.0/16".parse().unwrap(), on_link),
            ("0.0.0.0/0".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 2)),
        ];
        let lease = lease(&Reply { classless, ..reply() });
        assert_eq!(shown(&lease), ["10.9.0.0/16 0.0.0.0 Some(253)", "0.0.0.0/0 10.0.0.2 None"]);
        assert_eq!(lease.result().ips[0].address.to_string(), "10.0.0.5/24");
    }

    #[test]
    fn incomplete_replies_are_refused() {
        let refused = |reply: Reply| Terms::of(&reply, None).unwrap_err();
        assert_eq!(refused(Reply { mask: None, ..reply() }), LeaseError::NoMask);
        assert_eq!(refused(Reply { server: None, ..reply() }), LeaseError::NoServer);
        let odd = Ipv4Addr::new(255, 0, 255, 0);
        assert_eq!(refused(Reply { mask: Some(odd), ..reply() }), LeaseError::Mask(odd));
        assert_eq!(refused(Reply { server: Some(Ipv4Addr::UNSPECIFIED), ..reply() }), LeaseError::NoServer);
        assert_eq!(refused(Reply { lease: Some(0), ..reply() }), LeaseError::NoDuration);
    }

    #[test]
    fn replies_with_unusable_addresses_are_refused() {
        let refused = |reply: Reply| Terms::of(&reply, None).unwrap_err().to_string();
        for (address, why) in [
            ([127, 0, 0, 1], "127.0.0.1/24: it is a loopback address"),
            ([224, 1, 1, 1], "224.1.1.1/24: it is a multicast address"),
            ([255, 255, 255, 255], "255.255.255.255/24: it is the broadcast address"),
            ([0, 0, 0, 0], "0.0.0.0/24: it is unspecified"),
            ([10, 0, 0, 0], "10.0.0.0/24: it is the address of its subnet"),
            ([10, 0, 0, 255], "10.0.0.255/24: it is the broadcast address of its subnet"),
        ] {
            let lie = Reply { address: address.into(), ..reply() };
            assert_eq!(refused(lie.clone()), format!("no container can have address {why}"));
            assert!(Terms::check_offer(&lie).is_err(), "{why}");
        }
        let no_mask = Reply { mask: Some(Ipv4Addr::UNSPECIFIED), ..reply() };
        assert_eq!(refused(no_mask), "no container can have address 10.0.0.5/0: its prefix has no length");
        let loopback = "no router can have address 127.0.0.1: it is a loopback address";
        assert_eq!(refused(Reply { routers: vec![Ipv4Addr::LOCALHOST], ..reply() }), loopback);
        let route = ("10.9.0.0/16".parse().unwrap(), Ipv4Addr::LOCALHOST);
        assert_eq!(refused(Reply { classless: vec![route], ..reply() }), loopback);
        let route = (Ipv4Addr::new(172, 16, 0, 0), Ipv4Addr::LOCALHOST);
        assert_eq!(refused(Reply { classful: vec![route], ..reply() }), loopback);
        assert_eq!(refused(Reply { server: Some(Ipv4Addr::LOCALHOST), ..reply() }), loopback);
        assert_eq!(Terms::check_offer(&Reply { mask: None, ..reply() }), Ok(()));
    }

    #[test]
    fn a_lease_is_read_as_it_was_written() {
        let lease = lease(&reply());
        let text = serde_json::to_string(&lease).unwrap();
        assert_eq!(serde_json::from_str::<Lease>(&text).unwrap(), lease);
        assert_eq!(Owner::of_file(&lease.owner.file_name()), Some(lease.owner));
        for other in ["lock", "a:b", "a:b:c:d", "a::c", "a:b:.."] {
            assert_eq!(Owner::of_file(other), None, "{other}");
        }
    }
}
