//! Links of other kinds than bridges and pairs: those on top of another link, and those on nothing.

use std::os::fd::{AsFd, AsRawFd};

use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    InfoData, InfoIpVlan, InfoKind, InfoMacVlan, InfoVlan, IpVlanMode as WireIpvlanMode, LinkAttribute,
    LinkInfo, LinkMessage, MacVlanMode as WireMacvlanMode,
};

use super::error::RouteError;
use super::link::{Link, LinkKind};
use super::transport::Verb;
use super::{RouteSocket, wire};
use crate::mac::Mac;
use crate::netns::Netns;

/// What links of one macvlan master may say to each other (`enum macvlan_mode` of `linux/if_link.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacvlanMode {
    /// Nothing.
    Private,
    /// What the switch that the master is connected to sends back.
    Vepa,
    /// Everything, at once.
    Bridge,
    /// There is only one link, which has the master for itself.
    Passthru,
    /// Only what comes from addresses on a list.
    Source,
    /// Any other, by its number.
    Other(u32),
}

impl MacvlanMode {
    /// The mode of a name that `ip link` uses too.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Private, Self::Vepa, Self::Bridge, Self::Passthru].into_iter().find(|mode| mode.name() == name)
    }

    /// The name that `ip link` uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Vepa => "vepa",
            Self::Bridge => "bridge",
            Self::Passthru => "passthru",
            Self::Source => "source",
            Self::Other(_) => "unknown",
        }
    }

    fn wire(self) -> WireMacvlanMode {
        match self {
            Self::Private => WireMacvlanMode::Private,
            Self::Vepa => WireMacvlanMode::Vepa,
            Self::Bridge => WireMacvlanMode::Bridge,
            Self::Passthru => WireMacvlanMode::Passthrough,
            Self::Source => WireMacvlanMode::Source,
            Self::Other(number) => WireMacvlanMode::Other(number),
        }
    }

    fn from_number(number: u32) -> Self {
        [Self::Private, Self::Vepa, Self::Bridge, Self::Passthru, Self::Source]
            .into_iter()
            .find(|mode| u32::from(mode.wire()) == number)
            .unwrap_or(Self::Other(number))
    }
}

/// What of a packet an ipvlan link looks at (`enum ipvlan_mode` of `linux/if_link.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanMode {
    /// Frames: the link answers for its addresses on the master's network.
    L2,
    /// Packets: the master's namespace routes what leaves.
    L3,
    /// As [`IpvlanMode::L3`], through the netfilter hooks of the master's namespace.
    L3s,
    /// Any other, by its number.
    Other(u16),
}

impl IpvlanMode {
    /// The mode of a name that `ip link` uses too.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::L2, Self::L3, Self::L3s].into_iter().find(|mode| mode.name() == name)
    }

    /// The name that `ip link` uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::L3 => "l3",
            Self::L3s => "l3s",
            Self::Other(_) => "unknown",
        }
    }

    fn wire(self) -> WireIpvlanMode {
        match self {
            Self::L2 => WireIpvlanMode::L2,
            Self::L3 => WireIpvlanMode::L3,
            Self::L3s => WireIpvlanMode::L3S,
            Self::Other(number) => WireIpvlanMode::Other(number),
        }
    }

    fn from_number(number: u16) -> Self {
        [Self::L2, Self::L3, Self::L3s]
            .into_iter()
            .find(|mode| u16::from(mode.wire()) == number)
            .unwrap_or(Self::Other(number))
    }
}

/// What a new link is, and how it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewKind {
    /// A link with an address of its own on another link.
    Macvlan {
        /// What it may say to its neighbours.
        mode: MacvlanMode,
        /// How many broadcasts the master keeps for its links; none for the kernel's default of 1,000.
        /// Since Linux 5.11; older kernels do not look at it.
        broadcast_queue: Option<u32>,
    },
    /// A link with the Ethernet address of the link below.
    Ipvlan(IpvlanMode),
    /// The packets of one VLAN ID (IEEE 802.1Q) of the link below.
    Vlan(u16),
    /// A link that drops all that is sent.
    Dummy,
}

impl NewKind {
    fn info(self) -> Vec<LinkInfo> {
        match self {
            Self::Macvlan { mode, broadcast_queue } => {
                let mut data = vec![InfoMacVlan::Mode(mode.wire())];
                data.extend(broadcast_queue.map(InfoMacVlan::BcQueueLen));
                vec![LinkInfo::Kind(InfoKind::MacVlan), LinkInfo::Data(InfoData::MacVlan(data))]
            }
            Self::Ipvlan(mode) => {
                let data = vec![InfoIpVlan::Mode(mode.wire())];
                vec![LinkInfo::Kind(InfoKind::IpVlan), LinkInfo::Data(InfoData::IpVlan(data))]
            }
            Self::Vlan(id) => {
                let data = vec![InfoVlan::Id(id)];
                vec![LinkInfo::Kind(InfoKind::Vlan), LinkInfo::Data(InfoData::Vlan(data))]
            }
            Self::Dummy => vec![LinkInfo::Kind(InfoKind::Dummy)],
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Macvlan { .. } => "macvlan",
            Self::Ipvlan(_) => "ipvlan",
            Self::Vlan(_) => "vlan",
            Self::Dummy => "dummy",
        }
    }
}

/// A link to be made.
#[derive(Debug)]
pub struct NewLink<'a> {
    /// Its name. Kernels before 6.15 look for it in the socket's namespace too, wherever the link is made.
    pub name: &'a str,
    /// What it is.
    pub kind: NewKind,
    /// The link below, of the socket's namespace; none for a link on nothing.
    pub below: Option<&'a Link>,
    /// Where it is made; none for the socket's namespace.
    pub netns: Option<&'a Netns>,
    /// Its address; none for one of the kernel's choice. An ipvlan link has that of the link below.
    pub mac: Option<Mac>,
    /// Its MTU in bytes; none for the kernel's default, that of the link below.
    pub mtu: Option<u32>,
}

impl RouteSocket {
    /// Makes a link, which is down.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] when the name, or the VLAN ID on the link below, is taken; EOPNOTSUPP
    /// when the kernel does not know the kind.
    pub fn create_link(&self, new: &NewLink<'_>) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        let attributes = &mut message.attributes;
        attributes.push(LinkAttribute::IfName(new.name.to_owned()));
        attributes.extend(new.below.map(|link| LinkAttribute::Link(link.index)));
        attributes.extend(new.netns.map(|netns| LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd())));
        attributes.extend(new.mtu.map(LinkAttribute::Mtu));
        attributes.extend(new.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        attributes.push(LinkAttribute::LinkInfo(new.kind.info()));
        let (word, name) = (new.kind.word(), new.name);
        let message = RouteNetlinkMessage::NewLink(message);
        match new.below {
            Some(link) => {
                let action = format_args!("create {word} link {name} on {}", link.name);
                self.transport.run(Verb::Create, message, action)
            }
            None => self.transport.run(Verb::Create, message, format_args!("create {word} link {name}")),
        }
    }

    /// Moves a link to another namespace and, in the same request, gives it another name and alias. The
    /// kernel switches it off and takes its addresses and routes away.
    ///
    /// # Errors
    /// EEXIST when a link of the name is there: the link may be in the other namespace by then, under its
    /// old name. EINVAL for a link that cannot leave its namespace.
    pub fn move_link(&self, link: &Link, to: &Netns, name: &str, alias: &str) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.attributes.push(LinkAttribute::NetNsFd(to.as_fd().as_raw_fd()));
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        let action = format_args!("move link {} to {} as {name}", link.name, to.path().display());
        self.transport.run(Verb::Change, RouteNetlinkMessage::SetLink(message), action)
    }
}

// linux/if_link.h
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_IPVLAN_MODE: u16 = 1;
const IFLA_VLAN_ID: u16 = 1;

/// The kind of a link by the kernel's word for it and its `IFLA_INFO_DATA`.
pub(super) fn decode(word: &str, data: &[u8]) -> LinkKind {
    let find =
        |wanted| wire::attributes(data).find(|(kind, _)| *kind == wanted).map_or(&[][..], |(_, value)| value);
    match word {
        "bridge" => LinkKind::Bridge,
        "veth" => LinkKind::Veth,
        "macvlan" => LinkKind::Macvlan(MacvlanMode::from_number(wire::u32_of(find(IFLA_MACVLAN_MODE)))),
        "ipvlan" => LinkKind::Ipvlan(IpvlanMode::from_number(wire::u16_of(find(IFLA_IPVLAN_MODE)))),
        "vlan" => LinkKind::Vlan(wire::u16_of(find(IFLA_VLAN_ID))),
        "dummy" => LinkKind::Dummy,
        "tun" => LinkKind::Tun,
        other => LinkKind::Other(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_told_by_name_and_number() {
        for mode in [MacvlanMode::Private, MacvlanMode::Vepa, MacvlanMode::Bridge, MacvlanMode::Passthru] {
            assert_eq!(MacvlanMode::from_name(mode.name()), Some(mode));
            assert_eq!(MacvlanMode::from_number(mode.wire().into()), mode);
        }
        assert_eq!(MacvlanMode::from_name("source"), None);
        assert_eq!(MacvlanMode::from_number(99), MacvlanMode::Other(99));
        for mode in [IpvlanMode::L2, IpvlanMode::L3, IpvlanMode::L3s] {
            assert_eq!(IpvlanMode::from_name(mode.name()), Some(mode));
            assert_eq!(IpvlanMode::from_number(mode.wire().into()), mode);
        }
        assert_eq!(IpvlanMode::from_name(""), None);
    }

    #[test]
    fn a_kind_is_read_with_what_it_is_set_to() {
        let attribute = |value: &[u8]| {
            let mut bytes = (4 + u16::try_from(value.len()).unwrap()).to_ne_bytes().to_vec();
            bytes.extend(1_u16.to_ne_bytes());
            bytes.extend(value);
            bytes
        };
        assert_eq!(
            decode("macvlan", &attribute(&4_u32.to_ne_bytes())),
            LinkKind::Macvlan(MacvlanMode::Bridge)
        );
        assert_eq!(decode("ipvlan", &attribute(&1_u16.to_ne_bytes())), LinkKind::Ipvlan(IpvlanMode::L3));
        assert_eq!(decode("vlan", &attribute(&100_u16.to_ne_bytes())), LinkKind::Vlan(100));
        assert_eq!(decode("vlan", &[]), LinkKind::Vlan(0));
        assert_eq!(decode("vxlan", &[]), LinkKind::Other("vxlan".to_owned()));
    }
}
