// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kinds of links and their modes.

use std::net::IpAddr;

use cni_netlink::message;
use rtnetlink::packet_route::link::{IpVlanMode as WireIpvlanMode, MacVlanMode as WireMacvlanMode};

use super::wire;

/// Which traffic is possible between links of one macvlan master (`enum macvlan_mode` of `linux/if_link.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacvlanMode {
    /// No traffic.
    Private,
    /// Only through the switch to which the master is connected, provided that the switch sends packets back.
    Vepa,
    /// All traffic, directly.
    Bridge,
    /// No other link: the master has only this one.
    Passthru,
    /// Only from source addresses on a list.
    Source,
    /// Any other, by its number.
    Other(u32),
}

impl MacvlanMode {
    /// The mode of this name, as in `ip link`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Private, Self::Vepa, Self::Bridge, Self::Passthru].into_iter().find(|mode| mode.name() == name)
    }

    /// The name, as in `ip link`.
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

    pub(super) fn wire(self) -> WireMacvlanMode {
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

/// Layer at which an ipvlan link works (`enum ipvlan_mode` of `linux/if_link.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanMode {
    /// Layer 2: the link answers ARP and neighbour solicitations on the master's network.
    L2,
    /// Layer 3: the master's namespace routes packets that leave the link.
    L3,
    /// Like [`IpvlanMode::L3`], but packets pass the netfilter hooks of the master's namespace.
    L3s,
    /// Any other, by its number.
    Other(u16),
}

impl IpvlanMode {
    /// The mode of this name, as in `ip link`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::L2, Self::L3, Self::L3s].into_iter().find(|mode| mode.name() == name)
    }

    /// The name, as in `ip link`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::L3 => "l3",
            Self::L3s => "l3s",
            Self::Other(_) => "unknown",
        }
    }

    pub(super) fn wire(self) -> WireIpvlanMode {
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

/// Settings of a VXLAN link (RFC 7348), which sends Ethernet frames in UDP packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    /// VXLAN network identifier, of 24 bits.
    pub vni: u32,
    /// UDP port to which packets are sent and at which they are received.
    pub port: u16,
    /// Index of the link on which packets leave. None for the link to which the route to the remote leads.
    pub underlay: Option<u32>,
    /// Source address of the packets, to whose family all remotes must belong. If none, the route determines the
    /// source, and remotes have IPv4 addresses.
    pub local: Option<IpAddr>,
    /// True if the link adds FDB entries for received frames, which is the kernel's default.
    pub learning: bool,
}

impl Vxlan {
    fn decode(data: &[u8]) -> Self {
        let mut vxlan = Self { vni: 0, port: 0, underlay: None, local: None, learning: false };
        for (kind, value) in message::attributes(data) {
            match kind {
                IFLA_VXLAN_ID => vxlan.vni = message::u32_of(value),
                IFLA_VXLAN_LINK => vxlan.underlay = Some(message::u32_of(value)).filter(|index| *index != 0),
                IFLA_VXLAN_LOCAL | IFLA_VXLAN_LOCAL6 => vxlan.local = wire::address(value),
                IFLA_VXLAN_LEARNING => vxlan.learning = message::u8_of(value) != 0,
                // In network byte order.
                IFLA_VXLAN_PORT => vxlan.port = u16::from_be(message::u16_of(value)),
                _ => {}
            }
        }
        vxlan
    }
}

/// Kind of a link (`IFLA_INFO_KIND`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// A bridge.
    Bridge,
    /// One end of a veth pair.
    Veth,
    /// A link without a kind: a device, or the loopback.
    #[default]
    Plain,
    /// A link with an Ethernet address of its own on another link.
    Macvlan(MacvlanMode),
    /// A link with the Ethernet address of the link below.
    Ipvlan(IpvlanMode),
    /// The packets of this VLAN ID of the link below.
    Vlan(u16),
    /// Ethernet frames in UDP packets.
    Vxlan(Vxlan),
    /// Encrypted IP packets in UDP packets.
    WireGuard,
    /// A link that drops all packets sent.
    Dummy,
    /// A link whose packets a process reads and writes.
    Tun,
    /// Any other, by the kernel's name for it.
    Other(String),
}

// linux/if_link.h
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_IPVLAN_MODE: u16 = 1;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LINK: u16 = 3;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const IFLA_VXLAN_COLLECT_METADATA: u16 = 25;
const IFLA_GENEVE_COLLECT_METADATA: u16 = 6;
const IFLA_XFRM_COLLECT_METADATA: u16 = 3;
// linux/if_tunnel.h
const IFLA_IPTUN_COLLECT_METADATA: u16 = 19;
const IFLA_GRE_COLLECT_METADATA: u16 = 18;

/// The kind of a link, from `IFLA_INFO_KIND` and `IFLA_INFO_DATA`.
pub(super) fn decode(name: &str, data: &[u8]) -> LinkKind {
    let find = |wanted| message::find(data, wanted).unwrap_or_default();
    match name {
        "bridge" => LinkKind::Bridge,
        "veth" => LinkKind::Veth,
        "macvlan" => LinkKind::Macvlan(MacvlanMode::from_number(message::u32_of(find(IFLA_MACVLAN_MODE)))),
        "ipvlan" => LinkKind::Ipvlan(IpvlanMode::from_number(message::u16_of(find(IFLA_IPVLAN_MODE)))),
        "vlan" => LinkKind::Vlan(message::u16_of(find(IFLA_VLAN_ID))),
        "vxlan" => LinkKind::Vxlan(Vxlan::decode(data)),
        "wireguard" => LinkKind::WireGuard,
        "dummy" => LinkKind::Dummy,
        "tun" => LinkKind::Tun,
        other => LinkKind::Other(other.to_owned()),
    }
}

/// [`Link::is_external`](super::Link::is_external), from `IFLA_INFO_KIND` and `IFLA_INFO_DATA`.
pub(super) fn is_external(name: &str, data: &[u8]) -> bool {
    let wanted = match name {
        "bareudp" => return true,
        "vxlan" => IFLA_VXLAN_COLLECT_METADATA,
        "geneve" => IFLA_GENEVE_COLLECT_METADATA,
        "xfrm" => IFLA_XFRM_COLLECT_METADATA,
        "ipip" | "ip6tnl" => IFLA_IPTUN_COLLECT_METADATA,
        "gre" | "gretap" | "ip6gre" | "ip6gretap" | "erspan" | "ip6erspan" => IFLA_GRE_COLLECT_METADATA,
        _ => return false,
    };
    // VXLAN has a number here, the other kinds have a flag.
    message::attributes(data).any(|(kind, value)| kind == wanted && value != [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names_and_numbers() {
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
    fn a_kind_is_decoded_with_its_mode() {
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
        let vxlan = Vxlan { vni: 7, port: 0, underlay: None, local: None, learning: false };
        assert_eq!(decode("vxlan", &attribute(&7_u32.to_ne_bytes())), LinkKind::Vxlan(vxlan));
        assert_eq!(decode("geneve", &[]), LinkKind::Other("geneve".to_owned()));
    }

    #[test]
    fn a_tunnel_is_external_by_number_or_flag() {
        let vxlan = |value: u8| [5, 0, 25, 0, value, 0, 0, 0];
        assert!(is_external("vxlan", &vxlan(1)) && !is_external("vxlan", &vxlan(0)));
        let geneve = [4, 0, 6, 0];
        assert!(
            is_external("geneve", &geneve) && !is_external("geneve", &[]) && !is_external("veth", &geneve)
        );
    }
}
