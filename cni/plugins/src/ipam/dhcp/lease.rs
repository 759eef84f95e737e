//! A lease: what a server gave, for how long, and what that is as a result.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use cni_kernel::boot;
use cni_spec::address::{AddressError, check_container, check_router};
use cni_spec::{AddResult, Attachment, AttachmentError, IpConfig, Route};
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use super::message::{Answer, Options};

/// How long a lease is if the server does not say, in seconds.
const USUAL: u32 = 3600;
/// `RT_SCOPE_LINK` of `linux/rtnetlink.h`.
const SCOPE_LINK: u8 = 253;

/// Whose it is: an attachment, as the runtime names it.
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

    /// What came from outside, checked.
    pub(super) fn checked(&self) -> Result<(), AttachmentError> {
        Attachment::new(&self.network, &self.container, &self.ifname).map(drop)
    }

    /// What servers know the lease by.
    pub(super) fn client_id(&self) -> String {
        format!("{}/{}/{}", self.container, self.network, self.ifname)
    }

    /// The name of its file. A colon is in none of the three.
    pub(super) fn file_name(&self) -> String {
        format!("{}:{}:{}", self.network, self.container, self.ifname)
    }

    /// Whose a file is by its name.
    pub(super) fn of_file(name: &str) -> Option<Self> {
        let [network, container, ifname] = name.split(':').collect::<Vec<_>>().try_into().ok()?;
        Attachment::new(network, container, ifname).ok().map(|attachment| Self::of(&attachment))
    }
}

/// A lease as it is kept on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) owner: Owner,
    /// The container's namespace, and what it is told apart by.
    pub(super) netns: PathBuf,
    pub(super) netns_id: (u64, u64),
    pub(super) options: Options,
    pub(super) address: Ipv4Addr,
    pub(super) prefix: u8,
    pub(super) server: Ipv4Addr,
    pub(super) gateway: Option<Ipv4Addr>,
    /// Destination and gateway; the unspecified gateway is none.
    pub(super) routes: Vec<(Ipv4Net, Ipv4Addr)>,
    /// Which start of the machine this is, and when in it the server gave the lease, in seconds.
    pub(super) boot: String,
    pub(super) since: u64,
    /// Seconds from then on.
    pub(super) renewal: u32,
    pub(super) rebinding: u32,
    pub(super) expiry: u32,
}

/// Why an answer makes no lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum LeaseError {
    #[error("DHCP option Subnet Mask not found in DHCPACK")]
    NoMask,
    #[error("the subnet mask {0} of the DHCPACK is no mask")]
    Mask(Ipv4Addr),
    #[error("DHCP option Server Identifier not found in DHCPACK")]
    NoServer,
    #[error("the lease has no duration")]
    NoDuration,
    #[error(transparent)]
    Unusable(#[from] AddressError),
}

/// What is to be done about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing for that long.
    Bound(Duration),
    /// The server that gave it is to be asked for more time, for so long.
    Renewing(Duration),
    /// Any server is to be asked, for so long.
    Rebinding(Duration),
    /// It is nobody's any more.
    Expired,
}

/// The terms of a lease: all that an answer says.
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
    /// `server` is the one that was asked, for an answer that does not name itself.
    pub(super) fn of(answer: &Answer, server: Option<Ipv4Addr>) -> Result<Self, LeaseError> {
        let mask = answer.mask.ok_or(LeaseError::NoMask)?;
        let bits = u32::from(mask);
        let ones = bits.leading_ones();
        if bits.count_ones() != ones {
            return Err(LeaseError::Mask(mask));
        }
        let prefix = u8::try_from(ones).unwrap_or(32);
        let net = Ipv4Net::new(answer.address, prefix).unwrap_or_else(|_| answer.address.into());
        check_container(net.into())?;
        let server = answer.server.or(server).filter(|server| !server.is_unspecified());
        let (server, routes) = (server.ok_or(LeaseError::NoServer)?, routes(answer));
        let gateway = answer.routers.first().copied();
        let next_hops = routes.iter().map(|(_, next_hop)| *next_hop).chain(gateway);
        next_hops.chain([server]).try_for_each(|address| check_router(address.into()))?;
        let expiry = answer.lease.unwrap_or(USUAL);
        if expiry == 0 {
            return Err(LeaseError::NoDuration);
        }
        let part = |percent: u64| u32::try_from(u64::from(expiry) * percent / 100).unwrap_or(u32::MAX);
        let rebinding = answer.rebinding.unwrap_or_else(|| part(85)).min(expiry);
        Ok(Self {
            address: answer.address,
            prefix,
            server,
            gateway,
            routes,
            renewal: answer.renewal.unwrap_or_else(|| part(50)).min(rebinding),
            rebinding,
            expiry,
        })
    }

    /// Checks an offer. The mask may come with the acknowledgment alone.
    pub(super) fn check_offer(offer: &Answer) -> Result<(), LeaseError> {
        let mask = offer.mask.or(Some(Ipv4Addr::BROADCAST));
        Self::of(&Answer { mask, ..offer.clone() }, None).map(drop)
    }

    pub(super) fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub(super) fn server(&self) -> Ipv4Addr {
        self.server
    }
}

/// RFC 3442: classless routes go before all others, also before the router.
fn routes(answer: &Answer) -> Vec<(Ipv4Net, Ipv4Addr)> {
    if !answer.classless.is_empty() {
        return answer.classless.clone();
    }
    let classful = answer.classful.iter().filter_map(|(dst, gw)| Some((classful(*dst)?, *gw)));
    let default = answer.routers.first().map(|gw| (Ipv4Net::default(), *gw));
    classful.chain(default).collect()
}

/// The network of an address in the days of classes A, B and C; none for what has no class.
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
    pub(super) fn new(owner: Owner, place: (PathBuf, (u64, u64)), options: Options, terms: &Terms) -> Self {
        let mut lease = Self {
            owner,
            netns: place.0,
            netns_id: place.1,
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

    /// The same address for longer, from now on.
    pub(super) fn extend(&mut self, terms: &Terms) {
        self.since = boot::uptime().as_secs();
        self.server = terms.server;
        self.gateway = terms.gateway;
        self.routes.clone_from(&terms.routes);
        (self.renewal, self.rebinding, self.expiry) = (terms.renewal, terms.rebinding, terms.expiry);
    }

    /// What is to be done at a time since the machine's start.
    pub(super) fn phase(&self, now: Duration) -> Phase {
        let age = now.saturating_sub(Duration::from_secs(self.since));
        let at = |seconds: u32| Duration::from_secs(u64::from(seconds));
        if self.expiry == u32::MAX {
            // RFC 2131, section 3.3: this is for ever.
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

    /// What the plugin answers.
    pub(super) fn result(&self) -> AddResult {
        let net = Ipv4Net::new(self.address, self.prefix).unwrap_or_else(|_| Ipv4Net::from(self.address));
        let ip = IpConfig { interface: None, address: IpNet::V4(net), gateway: self.gateway.map(IpAddr::V4) };
        let route = |(dst, gw): &(Ipv4Net, Ipv4Addr)| match gw.is_unspecified() {
            // On the link itself.
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

    fn answer() -> Answer {
        Answer {
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

    fn lease(answer: &Answer) -> Lease {
        let owner = Owner { network: "n".into(), container: "c".into(), ifname: "eth0".into() };
        let terms = Terms::of(answer, None).unwrap();
        Lease::new(owner, (PathBuf::from("/run/netns/c"), (1, 2)), Options::default(), &terms)
    }

    fn shown(lease: &Lease) -> Vec<String> {
        let gw = |route: &Route| route.gw.map(|gw| gw.to_string()).unwrap_or_default();
        lease.result().routes.iter().map(|r| format!("{} {} {:?}", r.dst, gw(r), r.scope)).collect()
    }

    #[test]
    fn times_are_the_servers_or_half_and_85_percent() {
        let at = |lease: &Lease, seconds: u64| lease.phase(Duration::from_secs(lease.since + seconds));
        let seconds = Duration::from_secs;
        let plain = lease(&answer());
        assert_eq!(at(&plain, 100), Phase::Bound(seconds(400)));
        assert_eq!(at(&plain, 500), Phase::Renewing(seconds(350)));
        assert_eq!(at(&plain, 850), Phase::Rebinding(seconds(150)));
        assert_eq!(at(&plain, 1000), Phase::Expired);
        let told = lease(&Answer { renewal: Some(5), rebinding: Some(7), ..answer() });
        assert_eq!(
            (at(&told, 5), at(&told, 7)),
            (Phase::Renewing(seconds(2)), Phase::Rebinding(seconds(993)))
        );
        let usual = lease(&Answer { lease: None, ..answer() });
        assert_eq!((usual.renewal, usual.rebinding, usual.expiry), (1800, 3060, 3600));
        let for_ever = lease(&Answer { lease: Some(u32::MAX), ..answer() });
        assert!(matches!(at(&for_ever, 9_000_000_000), Phase::Bound(_)));
    }

    #[test]
    fn classless_routes_go_before_the_others() {
        assert_eq!(shown(&lease(&answer())), ["172.16.0.0/16 10.0.0.9 None", "0.0.0.0/0 10.0.0.1 None"]);
        let on_link = Ipv4Addr::UNSPECIFIED;
        let classless = vec![
            ("10.9.0.0/16".parse().unwrap(), on_link),
            ("0.0.0.0/0".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 2)),
        ];
        let lease = lease(&Answer { classless, ..answer() });
        assert_eq!(shown(&lease), ["10.9.0.0/16 0.0.0.0 Some(253)", "0.0.0.0/0 10.0.0.2 None"]);
        assert_eq!(lease.result().ips[0].address.to_string(), "10.0.0.5/24");
    }

    #[test]
    fn answers_that_make_no_lease() {
        let refused = |answer: Answer| Terms::of(&answer, None).unwrap_err();
        assert_eq!(refused(Answer { mask: None, ..answer() }), LeaseError::NoMask);
        assert_eq!(refused(Answer { server: None, ..answer() }), LeaseError::NoServer);
        let odd = Ipv4Addr::new(255, 0, 255, 0);
        assert_eq!(refused(Answer { mask: Some(odd), ..answer() }), LeaseError::Mask(odd));
        assert_eq!(refused(Answer { server: Some(Ipv4Addr::UNSPECIFIED), ..answer() }), LeaseError::NoServer);
        assert_eq!(refused(Answer { lease: Some(0), ..answer() }), LeaseError::NoDuration);
    }

    #[test]
    fn answers_with_addresses_that_cannot_be() {
        let refused = |answer: Answer| Terms::of(&answer, None).unwrap_err().to_string();
        for (address, why) in [
            ([127, 0, 0, 1], "127.0.0.1/24: it is a loopback address"),
            ([224, 1, 1, 1], "224.1.1.1/24: it is a multicast address"),
            ([255, 255, 255, 255], "255.255.255.255/24: it is the broadcast address"),
            ([0, 0, 0, 0], "0.0.0.0/24: it is unspecified"),
            ([10, 0, 0, 0], "10.0.0.0/24: it is the address of its subnet"),
            ([10, 0, 0, 255], "10.0.0.255/24: it is the broadcast address of its subnet"),
        ] {
            let lie = Answer { address: address.into(), ..answer() };
            assert_eq!(refused(lie.clone()), format!("no container can have address {why}"));
            assert!(Terms::check_offer(&lie).is_err(), "{why}");
        }
        let no_mask = Answer { mask: Some(Ipv4Addr::UNSPECIFIED), ..answer() };
        assert_eq!(refused(no_mask), "no container can have address 10.0.0.5/0: its prefix has no length");
        let loopback = "no router can have address 127.0.0.1: it is a loopback address";
        assert_eq!(refused(Answer { routers: vec![Ipv4Addr::LOCALHOST], ..answer() }), loopback);
        let route = ("10.9.0.0/16".parse().unwrap(), Ipv4Addr::LOCALHOST);
        assert_eq!(refused(Answer { classless: vec![route], ..answer() }), loopback);
        let route = (Ipv4Addr::new(172, 16, 0, 0), Ipv4Addr::LOCALHOST);
        assert_eq!(refused(Answer { classful: vec![route], ..answer() }), loopback);
        assert_eq!(refused(Answer { server: Some(Ipv4Addr::LOCALHOST), ..answer() }), loopback);
        assert_eq!(Terms::check_offer(&Answer { mask: None, ..answer() }), Ok(()));
    }

    #[test]
    fn a_lease_survives_its_file() {
        let lease = lease(&answer());
        let text = serde_json::to_string(&lease).unwrap();
        assert_eq!(serde_json::from_str::<Lease>(&text).unwrap(), lease);
        assert_eq!(Owner::of_file(&lease.owner.file_name()), Some(lease.owner));
        for other in ["lock", "a:b", "a:b:c:d", "a::c", "a:b:.."] {
            assert_eq!(Owner::of_file(other), None, "{other}");
        }
    }
}
