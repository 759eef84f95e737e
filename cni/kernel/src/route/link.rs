// SPDX-License-Identifier: MIT OR Apache-2.0

//! Links: reading, changing and deleting network interfaces.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use cni_netlink::message;
use nix::errno::Errno;
use rtnetlink::packet_core::DefaultNla;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecUnspec, InetDevConf, LinkAttribute, LinkExtentMask, LinkFlags, LinkMessage, Prop,
};

use super::error::{ReplyError, RouteError};
use super::kinds::{self, LinkKind};
use super::port::{PortSettings, VlanFiltering};
use super::transport::Verb;
use super::{RouteSocket, wire};
use crate::AddressFamily;
use crate::mac::Mac;
use crate::netns::Netns;

/// A link as the kernel describes it. By default, all attributes are missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Index in its namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Alternative names. Before Linux 6.7, a link that was moved to another namespace still lists them, but cannot
    /// be found by them.
    pub alternative_names: Vec<String>,
    /// Alias (`IFLA_IFALIAS`), a text of at most 255 bytes. Empty if there is none.
    pub alias: String,
    /// Ethernet address. None for another link layer.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Kind.
    pub kind: LinkKind,
    /// True for a tunnel whose remote comes from each packet's route (`external` in ip-link(8)).
    pub is_external: bool,
    /// True if the link is switched on (`IFF_UP`); [`Link::state`] says whether it works.
    pub up: bool,
    /// True if promiscuous mode is requested (`IFF_PROMISC`).
    pub promiscuous: bool,
    /// True if all multicast packets are requested (`IFF_ALLMULTI`).
    pub all_multicast: bool,
    /// Length of the transmit queue in packets (`IFLA_TXQLEN`).
    pub tx_queue: u32,
    /// Operational state.
    pub state: OperState,
    /// Index of its bridge, bond or VRF.
    pub master: Option<u32>,
    /// `IFLA_LINK`: for a veth, the index of the peer in the peer's namespace; for a VLAN or macvlan, that of the
    /// link below.
    pub peer: Option<u32>,
    /// `IFLA_LINK_NETNSID`: the namespace of the peer or of the link below, if that is another namespace, as an ID
    /// that is valid only in this namespace.
    pub peer_netns: Option<i32>,
    /// True if an XDP program in the driver sees each packet that the link receives.
    pub has_native_xdp: bool,
    /// Settings of a bridge port.
    pub port: Option<PortSettings>,
    /// VLAN filtering of a bridge.
    pub vlan_filtering: Option<VlanFiltering>,
    /// Routing table of a VRF.
    pub vrf_table: Option<u32>,
    /// `net.ipv4.conf.<link>.route_localnet`.
    pub route_localnet: bool,
    /// `net.ipv4.conf.<link>.forwarding`.
    pub forwards_ipv4: bool,
    /// `net.ipv6.conf.<link>.accept_ra`; 0 without IPv6.
    pub accept_ra: u32,
    /// `net.ipv6.conf.<link>.forwarding`. False without IPv6.
    pub forwards_ipv6: bool,
    /// True if the kernel has sent a router solicitation on the link since the link came up, and has accepted an
    /// advertisement (`IF_RA_RCVD`, set in `ndisc_router_discovery`). This stays true when the kernel begins to
    /// forward.
    pub has_router: bool,
    /// `net.ipv6.conf.<link>.disable_ipv6`. False without IPv6.
    pub disables_ipv6: bool,
}

impl Link {
    /// True if, as far as this link decides, packets of this family that arrive on it are forwarded.
    #[must_use]
    pub const fn forwards(&self, family: AddressFamily) -> bool {
        match family {
            AddressFamily::V4 => self.forwards_ipv4,
            AddressFamily::V6 => self.forwards_ipv6,
        }
    }
}

/// Operational state of RFC 2863, section 3.1.14 (`IFLA_OPERSTATE`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OperState {
    /// The driver does not report it, as always for the loopback.
    #[default]
    Unknown,
    /// A component is missing.
    NotPresent,
    /// Unable to carry packets.
    Down,
    /// Down because of the link below it.
    LowerLayerDown,
    /// In a test.
    Testing,
    /// Waiting for an external event, such as authentication.
    Dormant,
    /// Carries packets.
    Up,
}

impl std::fmt::Display for OperState {
    /// Prints the words of `ip link` and sysfs.
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

/// Changes to a link in one request.
#[derive(Debug, Default, Clone)]
pub struct LinkChange {
    flags: LinkFlags,
    mask: LinkFlags,
    attributes: Vec<LinkAttribute>,
    /// Only fields that are not zero are sent. All are in one attribute, because the kernel would use only the last
    /// of two.
    ipv4: InetDevConf,
    words: Vec<String>,
}

impl LinkChange {
    /// No change.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// True if it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Sets the link up.
    #[must_use]
    pub fn up(self) -> Self {
        self.flag(LinkFlags::Up, LinkFlags::Up, "up")
    }

    /// Sets the link down.
    #[must_use]
    pub fn down(self) -> Self {
        self.flag(LinkFlags::Up, LinkFlags::empty(), "down")
    }

    /// Requests promiscuous mode.
    #[must_use]
    pub fn promiscuous(self) -> Self {
        self.flag(LinkFlags::Promisc, LinkFlags::Promisc, "promisc on")
    }

    /// Ends the request for promiscuous mode.
    #[must_use]
    pub fn not_promiscuous(self) -> Self {
        self.flag(LinkFlags::Promisc, LinkFlags::empty(), "promisc off")
    }

    /// Requests all multicast packets.
    #[must_use]
    pub fn all_multicast(self) -> Self {
        self.flag(LinkFlags::Allmulti, LinkFlags::Allmulti, "allmulticast on")
    }

    /// Ends the request for all multicast packets.
    #[must_use]
    pub fn not_all_multicast(self) -> Self {
        self.flag(LinkFlags::Allmulti, LinkFlags::empty(), "allmulticast off")
    }

    /// Sets the length of the transmit queue in packets.
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

    /// Removes the link from its bridge.
    #[must_use]
    pub fn no_master(self) -> Self {
        self.attribute(LinkAttribute::Controller(0), "nomaster".to_owned())
    }

    /// Sets the alias, of at most 255 bytes.
    #[must_use]
    pub fn alias(self, alias: &str) -> Self {
        self.attribute(LinkAttribute::IfAlias(alias.to_owned()), format!("alias {alias:?}"))
    }

    /// Sets `net.ipv4.conf.<link>.arp_notify`, after the other changes of the request.
    ///
    /// Netlink is faster than the file below `/proc/sys`, because a lookup of that file walks past the entries of all
    /// network namespaces whose settings have been read (`proc_sys_compare`).
    #[must_use]
    pub fn arp_notify(mut self) -> Self {
        self.ipv4.arp_notify = 1;
        self.words.push("arp_notify 1".to_owned());
        self
    }

    /// Sets `net.ipv4.conf.<link>.route_localnet`, by the same means as [`LinkChange::arp_notify`].
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
    /// The link with this name or alternative name (of up to 127 bytes).
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is none.
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
            // No link can have such a name. The kernel would report EINVAL or ERANGE.
            _ => return missing(),
        };
        let message = RouteNetlinkMessage::GetLink(query(0, Some(name_attribute)));
        match self.transport.get(message, format_args!("find link {name}"), decode) {
            // The kernel knows alternative names since Linux 5.5.
            Err(error) if name.len() >= LONG && error.errno() == Some(Errno::EINVAL) => missing(),
            other => other,
        }
    }

    /// The link of this name, or none.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot look it up.
    pub fn find_link(&self, name: &str) -> Result<Option<Link>, RouteError> {
        match self.link(name) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The link of this index.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is none.
    pub fn link_by_index(&self, index: u32) -> Result<Link, RouteError> {
        let message = query(index, None);
        self.transport.get(
            RouteNetlinkMessage::GetLink(message),
            format_args!("find link number {index}"),
            decode,
        )
    }

    /// The peer of a veth, which may be in another namespace. None if the peer is gone or cannot be looked up.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel refuses.
    pub fn peer(&self, link: &Link) -> Result<Option<Link>, RouteError> {
        let Some(peer) = link.peer else { return Ok(None) };
        let mut message = query(peer, None);
        message.attributes.extend(link.peer_netns.map(LinkAttribute::IfNetnsId));
        let action = format_args!("find the peer of {}", link.name);
        match self.transport.get(RouteNetlinkMessage::GetLink(message), action, decode) {
            Ok(found) => Ok(Some(found)),
            // The peer's namespace may be gone as well.
            Err(error) if error.is_not_found() || error.errno() == Some(Errno::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All links of the namespace that exist while the list is read, and perhaps some that come or go meanwhile.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn links(&self) -> Result<Vec<Link>, RouteError> {
        let message = RouteNetlinkMessage::GetLink(query(0, None));
        self.transport.list_changing(
            message,
            format_args!("list links"),
            |payload| decode(payload).map(Some),
            |link| link.index,
        )
    }

    /// Changes a link.
    ///
    /// # Errors
    /// The kernel's error. If there are several changes, some of them may have been made.
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

    /// Moves a link to another namespace and, in the same request, sets its name and alias. The kernel sets
    /// the link down and deletes its addresses and routes.
    ///
    /// # Errors
    /// EEXIST if the name is taken, in which case the link may be in the other namespace under its old name. EINVAL
    /// for a link that cannot leave its namespace.
    pub fn move_link(&self, link: &Link, to: &Netns, name: &str, alias: &str) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.attributes.push(LinkAttribute::NetNsFd(to.as_fd().as_raw_fd()));
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        let action = format_args!("move link {} to {} as {name}", link.name, to.path().display());
        self.transport.run(Verb::Change, RouteNetlinkMessage::SetLink(message), action)
    }

    /// Removes alternative names of a link.
    ///
    /// # Errors
    /// ENOENT if the link does not have one of them.
    pub fn remove_alternative_names(&self, link: &Link, names: &[&str]) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let properties = names.iter().map(|name| Prop::AltIfName((*name).to_owned()));
        message.attributes.push(LinkAttribute::PropList(properties.collect()));
        let action = format_args!("remove alternative names {} of {}", names.join(", "), link.name);
        self.transport.run(Verb::Change, RouteNetlinkMessage::DelLinkProp(message), action)
    }

    /// Deletes a link. If it has a peer, the peer is deleted, too.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if it is gone.
    pub fn delete_link(&self, link: &Link) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let action = format_args!("delete link {}", link.name);
        self.transport.run(Verb::Change, RouteNetlinkMessage::DelLink(message), action)
    }

    /// Waits until `wanted` is true for the link, for at most `patience`. Returns the link as it was last read,
    /// whether `wanted` is true or not. The link is read at intervals that grow from 1 ms to 50 ms, because the state
    /// of a new veth settles within a few of them.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if the link is gone.
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

/// Length of `struct ifinfomsg` (`linux/rtnetlink.h`).
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
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
/// `XDP_ATTACHED_NONE` and `XDP_ATTACHED_SKB`. Programs of the second kind see packets only after the driver.
const NO_NATIVE_XDP: [u8; 2] = [0, 2];
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_FLAGS: u16 = 1;
const IFLA_INET6_CONF: u16 = 2;
/// `IF_RA_RCVD` of `net/if_inet6.h`.
const ROUTER_ANSWERED: u32 = 0x20;
/// `IPV4_DEVCONF_ROUTE_LOCALNET` (`linux/ip.h`), counted from 1.
const ROUTE_LOCALNET: usize = 25;
/// `IPV4_DEVCONF_FORWARDING`, likewise.
const FORWARDING: usize = 0;
/// `DEVCONF_ACCEPT_RA` (`linux/ipv6.h`), counted from 0.
const ACCEPT_RA: usize = 3;
/// `DEVCONF_FORWARDING`, likewise.
const FORWARDING6: usize = 0;
/// `DEVCONF_DISABLE_IPV6`, likewise.
const DISABLE_IPV6: usize = 26;

pub(super) fn decode(payload: &[u8]) -> Result<Link, ReplyError> {
    let (header, rest) = payload.split_at_checked(IFINFOMSG).ok_or(ReplyError::NoHeader("a link"))?;
    let flags = LinkFlags::from_bits_retain(message::u32_of(&header[8..]));
    let mut link = Link {
        index: message::u32_of(&header[4..]),
        up: flags.contains(LinkFlags::Up),
        promiscuous: flags.contains(LinkFlags::Promisc),
        all_multicast: flags.contains(LinkFlags::Allmulti),
        ..Link::default()
    };
    for (kind, value) in message::attributes(rest) {
        match kind {
            nix::libc::IFLA_IFNAME => link.name = message::text(value),
            IFLA_PROP_LIST => {
                let names = message::attributes(value).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
                link.alternative_names = names.map(|(_, name)| message::text(name)).collect();
            }
            nix::libc::IFLA_IFALIAS => link.alias = message::text(value),
            nix::libc::IFLA_ADDRESS => link.mac = wire::mac(value),
            nix::libc::IFLA_MTU => link.mtu = message::u32_of(value),
            nix::libc::IFLA_TXQLEN => link.tx_queue = message::u32_of(value),
            nix::libc::IFLA_OPERSTATE => link.state = oper_state(message::u8_of(value)),
            nix::libc::IFLA_MASTER => link.master = Some(message::u32_of(value)),
            nix::libc::IFLA_LINK => link.peer = Some(message::u32_of(value)),
            // The number is negative if the kernel has assigned no ID.
            nix::libc::IFLA_LINK_NETNSID => {
                link.peer_netns = Some(message::u32_of(value).cast_signed()).filter(|id| *id >= 0);
            }
            nix::libc::IFLA_LINKINFO => decode_info(value, &mut link),
            IFLA_XDP => {
                link.has_native_xdp = message::find(value, IFLA_XDP_ATTACHED)
                    .is_some_and(|mode| !NO_NATIVE_XDP.contains(&message::u8_of(mode)));
            }
            nix::libc::IFLA_AF_SPEC => {
                let [ipv4, ipv6] =
                    [nix::libc::AF_INET, nix::libc::AF_INET6].map(|family| find(value, family));
                let state6 = find(ipv6, IFLA_INET6_FLAGS);
                let (ipv4, ipv6) = (find(ipv4, IFLA_INET_CONF), find(ipv6, IFLA_INET6_CONF));
                link.route_localnet = setting(ipv4, ROUTE_LOCALNET) != 0;
                link.forwards_ipv4 = setting(ipv4, FORWARDING) != 0;
                link.accept_ra = setting(ipv6, ACCEPT_RA);
                link.forwards_ipv6 = setting(ipv6, FORWARDING6) != 0;
                link.disables_ipv6 = setting(ipv6, DISABLE_IPV6) != 0;
                link.has_router = setting(state6, 0) & ROUTER_ANSWERED != 0;
            }
            _ => {}
        }
    }
    Ok(link)
}

fn decode_info(info: &[u8], link: &mut Link) {
    let find = |wanted| message::find(info, wanted);
    if let Some(kind) = find(IFLA_INFO_KIND) {
        let (name, data) = (message::text(kind), find(IFLA_INFO_DATA).unwrap_or_default());
        link.kind = kinds::decode(&name, data);
        link.is_external = kinds::is_external(&name, data);
    }
    if link.kind == LinkKind::Bridge {
        let data = find(IFLA_INFO_DATA).unwrap_or_default();
        let filtering = message::attributes(data)
            .any(|(kind, value)| kind == IFLA_BR_VLAN_FILTERING && message::u8_of(value) != 0);
        link.vlan_filtering = Some(if filtering { VlanFiltering::On } else { VlanFiltering::Off });
    }
    if link.kind == LinkKind::Other("vrf".to_owned()) {
        let data = find(IFLA_INFO_DATA).unwrap_or_default();
        link.vrf_table = message::find(data, IFLA_VRF_TABLE).map(message::u32_of);
    }
    if find(IFLA_INFO_SLAVE_KIND).is_some_and(|kind| message::text(kind) == "bridge") {
        link.port = Some(PortSettings::decode(find(IFLA_INFO_SLAVE_DATA).unwrap_or_default()));
    }
}

/// The attribute of this type among nested ones. Empty if it is missing.
fn find(nested: &[u8], wanted: impl TryInto<u16>) -> &[u8] {
    let Ok(wanted) = wanted.try_into() else { return &[] };
    message::find(nested, wanted).unwrap_or_default()
}

/// One number of an array of settings; 0 if it is missing.
fn setting(array: &[u8], index: usize) -> u32 {
    array.get(4 * index..).map_or(0, message::u32_of)
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
