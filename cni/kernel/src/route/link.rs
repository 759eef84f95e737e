//! Links: the network interfaces and what joins them.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rtnetlink::packet_core::DefaultNla;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecUnspec, InetDevConf, InfoData, InfoKind, InfoVeth, InfoVrf, LinkAttribute,
    LinkExtentMask, LinkFlags, LinkInfo, LinkMessage,
};

use super::bridge::{PortSettings, VlanFiltering};
use super::error::RouteError;
use super::kinds::{self, IpvlanMode, MacvlanMode};
use super::transport::Verb;
use super::{RouteSocket, wire};
use crate::mac::Mac;
use crate::netns::Netns;

/// A link as the kernel describes it; by default one of which it says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its alternative names. Before Linux 6.7 a link that has been moved still has them, and is not found by them
    /// where it is now.
    pub alternative_names: Vec<String>,
    /// `IFLA_IFALIAS`, a free text of at most 255 bytes; empty when there is none.
    pub alias: String,
    /// Its Ethernet address; none where the link layer has another kind.
    pub mac: Option<Mac>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// What it is.
    pub kind: LinkKind,
    /// Whether it is switched on (`IFF_UP`); see [`Link::state`] for whether it works.
    pub up: bool,
    /// Whether somebody asked for promiscuous mode (`IFF_PROMISC`).
    pub promiscuous: bool,
    /// Whether somebody asked for all multicast packets (`IFF_ALLMULTI`).
    pub all_multicast: bool,
    /// How many packets may wait to be sent (`IFLA_TXQLEN`).
    pub tx_queue: u32,
    /// Its operational state.
    pub state: OperState,
    /// Number of the bridge (or bond, VRF, …) it belongs to.
    pub master: Option<u32>,
    /// `IFLA_LINK`: of a veth the number of its other end, in that end's namespace; of a VLAN or
    /// macvlan the number of the link below.
    pub peer: Option<u32>,
    /// `IFLA_LINK_NETNSID`: the namespace of the other end or the link below, if that is another one, by a number
    /// that means something in this namespace alone.
    pub peer_netns: Option<i32>,
    /// What it is set to as a port of a bridge.
    pub port: Option<PortSettings>,
    /// Of a bridge: whether it filters by VLAN.
    pub vlan_filtering: Option<VlanFiltering>,
    /// Of a VRF: the routing table that it stands for.
    pub vrf_table: Option<u32>,
    /// Its setting `net.ipv4.conf.<link>.route_localnet`.
    pub route_localnet: bool,
    /// Its setting `net.ipv6.conf.<link>.accept_ra`; 0 where there is no IPv6.
    pub accept_ra: u32,
}

/// What a link is (`IFLA_INFO_KIND`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// A bridge.
    Bridge,
    /// One end of a pair.
    Veth,
    /// A link without a kind: a device, or the loopback.
    #[default]
    Plain,
    /// A link with an address of its own on another link.
    Macvlan(MacvlanMode),
    /// A link with the Ethernet address of the link below.
    Ipvlan(IpvlanMode),
    /// The packets of this VLAN ID of the link below.
    Vlan(u16),
    /// A link that drops all that is sent.
    Dummy,
    /// A link whose packets a program reads and writes.
    Tun,
    /// Any other, by the kernel's name for it.
    Other(String),
}

/// The state of RFC 2863, section 3.1.14, as `IFLA_OPERSTATE` numbers it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OperState {
    /// The driver does not tell; the loopback's state for ever.
    #[default]
    Unknown,
    /// Some part is missing.
    NotPresent,
    /// Not able to carry packets.
    Down,
    /// Down because of the link below it.
    LowerLayerDown,
    /// In a test.
    Testing,
    /// Waiting for something outside, such as authentication.
    Dormant,
    /// Carries packets.
    Up,
}

impl std::fmt::Display for OperState {
    /// The words that `ip link` and sysfs use.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::NotPresent => "not-present",
            Self::Down => "down",
            Self::LowerLayerDown => "lower-layer-down",
            Self::Testing => "testing",
            Self::Dormant => "dormant",
            Self::Up => "up",
        })
    }
}

/// A pair of links to be made: one end in the socket's namespace, the other one in `peer_netns`.
#[derive(Debug)]
pub struct NewVeth<'a> {
    /// Name of the end in the socket's namespace.
    pub name: &'a str,
    /// Address of that end; none for a random one.
    pub mac: Option<Mac>,
    /// Name of the other end.
    pub peer_name: &'a str,
    /// Where the other end is made.
    pub peer_netns: &'a Netns,
    /// MTU of both ends in bytes; none for the kernel's default of 1,500.
    pub mtu: Option<u32>,
}

/// Changes to a link that the kernel makes in one request.
#[derive(Debug, Default, Clone)]
pub struct LinkChange {
    flags: LinkFlags,
    mask: LinkFlags,
    attributes: Vec<LinkAttribute>,
    /// Only what is not zero is sent, all in one attribute: of two the kernel would take the last.
    ipv4: InetDevConf,
    words: Vec<String>,
}

impl LinkChange {
    /// No change yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Switches the link on.
    #[must_use]
    pub fn up(self) -> Self {
        self.flag(LinkFlags::Up, LinkFlags::Up, "up")
    }

    /// Switches the link off.
    #[must_use]
    pub fn down(self) -> Self {
        self.flag(LinkFlags::Up, LinkFlags::empty(), "down")
    }

    /// Asks for promiscuous mode.
    #[must_use]
    pub fn promiscuous(self) -> Self {
        self.flag(LinkFlags::Promisc, LinkFlags::Promisc, "promisc on")
    }

    /// Gives promiscuous mode up.
    #[must_use]
    pub fn not_promiscuous(self) -> Self {
        self.flag(LinkFlags::Promisc, LinkFlags::empty(), "promisc off")
    }

    /// Asks for all multicast packets.
    #[must_use]
    pub fn all_multicast(self) -> Self {
        self.flag(LinkFlags::Allmulti, LinkFlags::Allmulti, "allmulticast on")
    }

    /// Asks for no more multicast packets than were joined.
    #[must_use]
    pub fn not_all_multicast(self) -> Self {
        self.flag(LinkFlags::Allmulti, LinkFlags::empty(), "allmulticast off")
    }

    /// Sets how many packets may wait to be sent.
    #[must_use]
    pub fn tx_queue(self, packets: u32) -> Self {
        self.attribute(LinkAttribute::TxQueueLen(packets), format!("txqueuelen {packets}"))
    }

    /// Sets the MTU in bytes.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        self.attribute(LinkAttribute::Mtu(mtu), format!("mtu {mtu}"))
    }

    /// Sets the Ethernet address.
    #[must_use]
    pub fn mac(self, mac: Mac) -> Self {
        self.attribute(LinkAttribute::Address(mac.0.to_vec()), format!("address {mac}"))
    }

    /// Makes the link a port of a bridge.
    #[must_use]
    pub fn master(self, master: &Link) -> Self {
        self.attribute(LinkAttribute::Controller(master.index), format!("master {}", master.name))
    }

    /// Takes the link out of its bridge.
    #[must_use]
    pub fn no_master(self) -> Self {
        self.attribute(LinkAttribute::Controller(0), "nomaster".to_owned())
    }

    /// Sets the free text; at most 255 bytes.
    #[must_use]
    pub fn alias(self, alias: &str) -> Self {
        self.attribute(LinkAttribute::IfAlias(alias.to_owned()), format!("alias {alias:?}"))
    }

    /// Sets `net.ipv4.conf.<link>.arp_notify`.
    ///
    /// There is a file below `/proc/sys` too, but to find it there takes the kernel a walk past those of all network namespaces whose settings were looked at
    /// (`proc_sys_compare`). The kernel makes other changes of the same request first.
    #[must_use]
    pub fn arp_notify(mut self) -> Self {
        self.ipv4.arp_notify = 1;
        self.words.push("arp_notify 1".to_owned());
        self
    }

    /// Sets `net.ipv4.conf.<link>.route_localnet`; see [`LinkChange::arp_notify`].
    #[must_use]
    pub fn route_localnet(mut self) -> Self {
        self.ipv4.route_localnet = 1;
        self.words.push("route_localnet 1".to_owned());
        self
    }

    /// Renames the link. Before Linux 6.1 it must be down.
    #[must_use]
    pub fn rename(self, name: &str) -> Self {
        self.attribute(LinkAttribute::IfName(name.to_owned()), format!("name {name}"))
    }

    fn flag(mut self, mask: LinkFlags, value: LinkFlags, word: &str) -> Self {
        self.mask |= mask;
        self.flags = (self.flags & !mask) | value;
        self.words.push(word.to_owned());
        self
    }

    fn attribute(mut self, attribute: LinkAttribute, word: String) -> Self {
        self.attributes.push(attribute);
        self.words.push(word);
        self
    }
}

impl RouteSocket {
    /// The link of this name, or of this alternative name, which may have up to 127 bytes.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] when there is none.
    pub fn link(&self, name: &str) -> Result<Link, RouteError> {
        /// `ALTIFNAMSIZ` of `linux/netdevice.h`.
        const ALTIFNAMSIZ: usize = 128;
        const LONG: usize = nix::libc::IFNAMSIZ;
        let missing = || Err(self.transport.not_found(format_args!("find link {name:?}"), Errno::ENODEV));
        let name_attribute = match name.len() {
            1..LONG => LinkAttribute::IfName(name.to_owned()),
            LONG..ALTIFNAMSIZ => {
                let value = [name.as_bytes(), b"\0"].concat();
                LinkAttribute::Other(DefaultNla::new(IFLA_ALT_IFNAME, value))
            }
            // The kernel would answer EINVAL or ERANGE to a name that no link can have.
            _ => return missing(),
        };
        let message = RouteNetlinkMessage::GetLink(query(0, Some(name_attribute)));
        match self.transport.get(message, format_args!("find link {name}"), decode) {
            // Before Linux 5.5 there were no alternative names.
            Err(error) if name.len() >= LONG && error.errno() == Some(Errno::EINVAL) => missing(),
            answer => answer,
        }
    }

    /// The link of this name, or none.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn find_link(&self, name: &str) -> Result<Option<Link>, RouteError> {
        match self.link(name) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The link of this number.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] when there is none.
    pub fn link_by_index(&self, index: u32) -> Result<Link, RouteError> {
        let message = query(index, None);
        self.transport.get(
            RouteNetlinkMessage::GetLink(message),
            format_args!("find link number {index}"),
            decode,
        )
    }

    /// All links of the namespace.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn links(&self) -> Result<Vec<Link>, RouteError> {
        let message = RouteNetlinkMessage::GetLink(query(0, None));
        self.transport.list(&message, format_args!("list links"), |payload| decode(payload).map(Some))
    }

    /// Makes a pair of links, both down.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] when one of the names is taken in its namespace.
    pub fn create_veth(&self, new: &NewVeth<'_>) -> Result<(), RouteError> {
        let mut peer = LinkMessage::default();
        peer.attributes.push(LinkAttribute::IfName(new.peer_name.to_owned()));
        peer.attributes.push(LinkAttribute::NetNsFd(new.peer_netns.as_fd().as_raw_fd()));
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(new.name.to_owned()));
        if let Some(mtu) = new.mtu {
            message.attributes.push(LinkAttribute::Mtu(mtu));
            peer.attributes.push(LinkAttribute::Mtu(mtu));
        }
        if let Some(mac) = new.mac {
            message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        }
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        let action = format_args!("create veth pair {} and {}", new.name, new.peer_name);
        self.transport.run(Verb::Create, RouteNetlinkMessage::NewLink(message), action)
    }

    /// Makes a VRF: a link that stands for a routing table, which its ports' packets are looked up in.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] when the name is taken; EOPNOTSUPP where the kernel has none.
    pub fn create_vrf(&self, name: &str, table: u32) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Vrf),
            LinkInfo::Data(InfoData::Vrf(vec![InfoVrf::TableId(table)])),
        ]));
        let action = format_args!("create vrf {name} with table {table}");
        self.transport.run(Verb::Create, RouteNetlinkMessage::NewLink(message), action)
    }

    /// Whether the kernel knows a kind of link, as `ip link add type …` names it, loading its module
    /// if need be. Tries to make one: use it in a namespace that is thrown away afterwards.
    ///
    /// # Errors
    /// When the kernel gives no answer, or no permission.
    pub fn knows_kind(&self, kind: &str) -> Result<bool, RouteError> {
        self.knows(kind, &[])
    }

    /// Whether the kernel knows one of the kinds `dummy`, `ipvlan`, `macvlan` and `vlan`, loading its module if
    /// need be. Asks for a link that it cannot make, of an address for groups and on no other link: a kind
    /// that is not known is what it says first (`rtnl_newlink` in `net/core/rtnetlink.c`).
    ///
    /// # Errors
    /// When the kernel gives no answer, or no permission.
    pub fn can_create(&self, kind: &str) -> Result<bool, RouteError> {
        const FOR_GROUPS: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);
        self.knows(kind, &[LinkAttribute::Address(FOR_GROUPS.0.to_vec())])
    }

    fn knows(&self, kind: &str, more: &[LinkAttribute]) -> Result<bool, RouteError> {
        let mut message = LinkMessage::default();
        message.attributes.extend_from_slice(more);
        message
            .attributes
            .push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Other(kind.to_owned()))]));
        let action = format_args!("create a link of kind {kind}");
        let made = self.transport.run(Verb::Create, RouteNetlinkMessage::NewLink(message), action);
        match made.as_ref().map_err(RouteError::errno) {
            Ok(()) => Ok(true),
            Err(Some(Errno::EOPNOTSUPP)) => Ok(false),
            Err(None | Some(Errno::EPERM | Errno::EACCES)) => made.map(|()| true),
            // It knows the kind, and misses what that kind needs: a master, an identifier.
            Err(Some(_)) => Ok(true),
        }
    }

    /// Changes a link.
    ///
    /// # Errors
    /// Names the change. Of several, some may have been made.
    pub fn change_link(&self, link: &Link, change: &LinkChange) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.header.flags = change.flags;
        message.header.change_mask = change.mask;
        message.attributes.clone_from(&change.attributes);
        if change.ipv4 != InetDevConf::default() {
            let settings = AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(change.ipv4)]);
            message.attributes.push(LinkAttribute::AfSpecUnspec(vec![settings]));
        }
        let action = format_args!("set {} {}", link.name, change.words.join(" "));
        self.transport.run(Verb::Change, RouteNetlinkMessage::SetLink(message), action)
    }

    /// Deletes a link; of a pair the other end goes with it.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] when it is gone already.
    pub fn delete_link(&self, link: &Link) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let action = format_args!("delete link {}", link.name);
        self.transport.run(Verb::Change, RouteNetlinkMessage::DelLink(message), action)
    }

    /// Waits until `wanted` holds for the link, and returns the link as it was last seen, whether it
    /// holds by then or not. The kernel is asked at growing intervals from 1 ms to 50 ms: the state
    /// of a new veth settles within a few of them.
    ///
    /// # Errors
    /// When the link cannot be read, as when it is gone.
    pub fn wait_for_link(
        &self,
        link: &Link,
        patience: Duration,
        wanted: impl Fn(&Link) -> bool,
    ) -> Result<Link, RouteError> {
        let end = Instant::now() + patience;
        let mut pause = Duration::from_millis(1);
        loop {
            let seen = self.link_by_index(link.index)?;
            let left = end.saturating_duration_since(Instant::now());
            if wanted(&seen) || left.is_zero() {
                return Ok(seen);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

fn query(index: u32, name: Option<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.extend(name);
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

/// Length of `struct ifinfomsg` of `linux/rtnetlink.h`.
pub(super) const IFINFOMSG: usize = 16;

// linux/if_link.h
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_VRF_TABLE: u16 = 1;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_CONF: u16 = 2;
/// `IPV4_DEVCONF_ROUTE_LOCALNET` of `linux/ip.h`, which counts from 1.
const ROUTE_LOCALNET: usize = 25;
/// `DEVCONF_ACCEPT_RA` of `linux/ipv6.h`, which counts from 0.
const ACCEPT_RA: usize = 3;

pub(super) fn decode(payload: &[u8]) -> Result<Link, String> {
    let (header, rest) = payload.split_at_checked(IFINFOMSG).ok_or("a link without a header")?;
    let flags = LinkFlags::from_bits_retain(wire::u32_of(&header[8..]));
    let mut link = Link {
        index: wire::u32_of(&header[4..]),
        up: flags.contains(LinkFlags::Up),
        promiscuous: flags.contains(LinkFlags::Promisc),
        all_multicast: flags.contains(LinkFlags::Allmulti),
        ..Link::default()
    };
    for (kind, value) in wire::attributes(rest) {
        match kind {
            nix::libc::IFLA_IFNAME => link.name = wire::text(value),
            IFLA_PROP_LIST => {
                let names = wire::attributes(value).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
                link.alternative_names = names.map(|(_, name)| wire::text(name)).collect();
            }
            nix::libc::IFLA_IFALIAS => link.alias = wire::text(value),
            nix::libc::IFLA_ADDRESS => link.mac = wire::mac(value),
            nix::libc::IFLA_MTU => link.mtu = wire::u32_of(value),
            nix::libc::IFLA_TXQLEN => link.tx_queue = wire::u32_of(value),
            nix::libc::IFLA_OPERSTATE => link.state = oper_state(wire::u8_of(value)),
            nix::libc::IFLA_MASTER => link.master = Some(wire::u32_of(value)),
            nix::libc::IFLA_LINK => link.peer = Some(wire::u32_of(value)),
            // Negative where the kernel has given it no number.
            nix::libc::IFLA_LINK_NETNSID => {
                link.peer_netns = Some(wire::u32_of(value).cast_signed()).filter(|id| *id >= 0);
            }
            nix::libc::IFLA_LINKINFO => decode_info(value, &mut link),
            nix::libc::IFLA_AF_SPEC => {
                link.route_localnet =
                    setting(value, (nix::libc::AF_INET, IFLA_INET_CONF), ROUTE_LOCALNET) != 0;
                link.accept_ra = setting(value, (nix::libc::AF_INET6, IFLA_INET6_CONF), ACCEPT_RA);
            }
            _ => {}
        }
    }
    Ok(link)
}

fn decode_info(info: &[u8], link: &mut Link) {
    let find = |wanted| wire::attributes(info).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    if let Some(kind) = find(IFLA_INFO_KIND) {
        link.kind = kinds::decode(&wire::text(kind), find(IFLA_INFO_DATA).unwrap_or_default());
    }
    if link.kind == LinkKind::Bridge {
        let data = find(IFLA_INFO_DATA).unwrap_or_default();
        let filtering = wire::attributes(data)
            .any(|(kind, value)| kind == IFLA_BR_VLAN_FILTERING && wire::u8_of(value) != 0);
        link.vlan_filtering = Some(if filtering { VlanFiltering::On } else { VlanFiltering::Off });
    }
    if link.kind == LinkKind::Other("vrf".to_owned()) {
        let data = find(IFLA_INFO_DATA).unwrap_or_default();
        link.vrf_table = wire::attributes(data)
            .find(|(kind, _)| *kind == IFLA_VRF_TABLE)
            .map(|(_, value)| wire::u32_of(value));
    }
    if find(IFLA_INFO_SLAVE_KIND).is_some_and(|kind| wire::text(kind) == "bridge") {
        link.port = Some(PortSettings::decode(find(IFLA_INFO_SLAVE_DATA).unwrap_or_default()));
    }
}

/// One number of the array of a family's settings; 0 where the kernel tells none.
fn setting(families: &[u8], (family, array): (i32, u16), index: usize) -> u32 {
    fn find(nested: &[u8], wanted: u16) -> &[u8] {
        wire::attributes(nested).find(|(kind, _)| *kind == wanted).map_or(&[], |(_, value)| value)
    }
    let array = u16::try_from(family).map_or([].as_slice(), |family| find(find(families, family), array));
    array.get(4 * index..).map_or(0, wire::u32_of)
}

fn oper_state(number: u8) -> OperState {
    match number {
        1 => OperState::NotPresent,
        2 => OperState::Down,
        3 => OperState::LowerLayerDown,
        4 => OperState::Testing,
        5 => OperState::Dormant,
        6 => OperState::Up,
        _ => OperState::Unknown,
    }
}
