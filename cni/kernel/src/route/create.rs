// SPDX-License-Identifier: MIT OR Apache-2.0

//! Creates links of all kinds except for bridges.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    InfoData, InfoIpVlan, InfoKind, InfoMacVlan, InfoVeth, InfoVlan, InfoVrf, InfoVxlan, LinkAttribute,
    LinkInfo, LinkMessage,
};

use super::RouteSocket;
use super::error::RouteError;
use super::kinds::{IpvlanMode, MacvlanMode, Vxlan};
use super::link::Link;
use super::transport::Verb;
use crate::mac::Mac;
use crate::netns::Netns;

/// A veth pair to create: one end in the socket's namespace, the peer in `peer_netns`.
#[derive(Debug)]
pub struct NewVeth<'a> {
    /// Name of the end in the socket's namespace.
    pub name: &'a str,
    /// Address of that end. None for a random one.
    pub mac: Option<Mac>,
    /// Name of the peer.
    pub peer_name: &'a str,
    /// Address of the peer. None for a random one.
    pub peer_mac: Option<Mac>,
    /// Namespace of the peer.
    pub peer_netns: &'a Netns,
    /// MTU of both ends in bytes. None for the kernel's default of 1,500.
    pub mtu: Option<u32>,
}

/// Kind of a new link, with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewKind {
    /// A link with an Ethernet address of its own on another link.
    Macvlan {
        /// Which traffic is possible between links of the same master.
        mode: MacvlanMode,
        /// Length of the master's queue of broadcasts. None for the kernel's default of 1,000. Since Linux
        /// 5.11; older kernels ignore it.
        broadcast_queue: Option<u32>,
    },
    /// A link with the Ethernet address of the link below.
    Ipvlan(IpvlanMode),
    /// The packets of one VLAN ID (IEEE 802.1Q) of the link below.
    Vlan(u16),
    /// Ethernet frames in UDP packets. The link on which these packets leave is [`Vxlan::underlay`], not
    /// [`NewLink::below`].
    Vxlan(Vxlan),
    /// Encrypted IP packets in UDP packets; [`super::WireGuardSocket`] sets its keys and peers.
    WireGuard,
    /// A link that drops all packets sent.
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
            Self::Vxlan(vxlan) => {
                let mut data = vec![
                    InfoVxlan::Id(vxlan.vni),
                    InfoVxlan::Port(vxlan.port),
                    // Without this attribute, the link would learn addresses.
                    InfoVxlan::Learning(vxlan.learning),
                ];
                data.extend(vxlan.underlay.map(InfoVxlan::Link));
                data.extend(vxlan.local.map(|address| match address {
                    IpAddr::V4(address) => InfoVxlan::Local(address),
                    IpAddr::V6(address) => InfoVxlan::Local6(address),
                }));
                vec![LinkInfo::Kind(InfoKind::Vxlan), LinkInfo::Data(InfoData::Vxlan(data))]
            }
            Self::WireGuard => vec![LinkInfo::Kind(InfoKind::Wireguard)],
            Self::Dummy => vec![LinkInfo::Kind(InfoKind::Dummy)],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Macvlan { .. } => "macvlan",
            Self::Ipvlan(_) => "ipvlan",
            Self::Vlan(_) => "vlan",
            Self::Vxlan(_) => "vxlan",
            Self::WireGuard => "wireguard",
            Self::Dummy => "dummy",
        }
    }
}

/// A link to create.
#[derive(Debug)]
pub struct NewLink<'a> {
    /// Name. Kernels before 6.15 also refuse a name that is taken in the socket's namespace, wherever the
    /// link is created.
    pub name: &'a str,
    /// Kind.
    pub kind: NewKind,
    /// The link below, in the socket's namespace, for the kinds that have one.
    pub below: Option<&'a Link>,
    /// The link's namespace, or none for the socket's.
    pub netns: Option<&'a Netns>,
    /// The link's address, or none to let the kernel choose. An ipvlan link has the address of the link below.
    pub mac: Option<Mac>,
    /// MTU in bytes. None for the kernel's default, that of the link below.
    pub mtu: Option<u32>,
}

impl RouteSocket {
    /// Creates a link, which is down.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if the name, or the VLAN ID on the link below, or the VNI at that UDP
    /// port, is taken; EOPNOTSUPP if the kernel does not have the kind.
    pub fn create_link(&self, new: &NewLink<'_>) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        let attributes = &mut message.attributes;
        attributes.push(LinkAttribute::IfName(new.name.to_owned()));
        attributes.extend(new.below.map(|link| LinkAttribute::Link(link.index)));
        attributes.extend(new.netns.map(|netns| LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd())));
        attributes.extend(new.mtu.map(LinkAttribute::Mtu));
        attributes.extend(new.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        attributes.push(LinkAttribute::LinkInfo(new.kind.info()));
        let (kind, name) = (new.kind.name(), new.name);
        let message = RouteNetlinkMessage::NewLink(message);
        match new.below {
            Some(link) => {
                let action = format_args!("create {kind} link {name} on {}", link.name);
                self.transport.run(Verb::Create, message, action)
            }
            None => self.transport.run(Verb::Create, message, format_args!("create {kind} link {name}")),
        }
    }

    /// Creates a veth pair, both ends down.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if one of the names is taken in its namespace.
    pub fn create_veth(&self, new: &NewVeth<'_>) -> Result<(), RouteError> {
        let mut peer = LinkMessage::default();
        peer.attributes.push(LinkAttribute::IfName(new.peer_name.to_owned()));
        peer.attributes.push(LinkAttribute::NetNsFd(new.peer_netns.as_fd().as_raw_fd()));
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(new.name.to_owned()));
        for end in [&mut message, &mut peer] {
            // By default a kernel since 5.15 makes a queue for each processor and then removes all but one, for which
            // it waits for a grace period (`veth_init_queues`).
            end.attributes.extend([LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)]);
        }
        if let Some(mtu) = new.mtu {
            message.attributes.push(LinkAttribute::Mtu(mtu));
            peer.attributes.push(LinkAttribute::Mtu(mtu));
        }
        for (end, mac) in [(&mut message, new.mac), (&mut peer, new.peer_mac)] {
            end.attributes.extend(mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        }
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        let action = format_args!("create veth pair {} and {}", new.name, new.peer_name);
        self.transport.run(Verb::Create, RouteNetlinkMessage::NewLink(message), action)
    }

    /// Creates a VRF: a link that represents a routing table, in which the packets of its ports are looked up.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if the name is taken; EOPNOTSUPP if the kernel has no VRFs.
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

    /// True if the kernel has a kind of link, named as for `ip link add type …`. Loads the kind's module if
    /// necessary. This tries to create a link, so call it in a throw-away namespace.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; [`RouteError::Socket`] if no reply comes.
    pub fn knows_kind(&self, kind: &str) -> Result<bool, RouteError> {
        self.knows(kind, &[])
    }

    /// True if the kernel has the kind `dummy`, `ipvlan`, `macvlan` or `vlan`. Loads the kind's module if necessary.
    /// The request is for a link that cannot be created, with a multicast address and no link below, but the kernel
    /// checks the kind first and reports an unknown one (`rtnl_newlink` in `net/core/rtnetlink.c`).
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; [`RouteError::Socket`] if no reply comes.
    pub fn can_create(&self, kind: &str) -> Result<bool, RouteError> {
        const MULTICAST: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);
        self.knows(kind, &[LinkAttribute::Address(MULTICAST.0.to_vec())])
    }

    fn knows(&self, kind: &str, more: &[LinkAttribute]) -> Result<bool, RouteError> {
        let mut message = LinkMessage::default();
        message.attributes.extend_from_slice(more);
        message
            .attributes
            .push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Other(kind.to_owned()))]));
        let action = format_args!("create a link of kind {kind}");
        let created = self.transport.run(Verb::Create, RouteNetlinkMessage::NewLink(message), action);
        match created.as_ref().map_err(RouteError::errno) {
            Ok(()) => Ok(true),
            Err(Some(Errno::EOPNOTSUPP)) => Ok(false),
            Err(None | Some(Errno::EPERM | Errno::EACCES)) => created.map(|()| true),
            // The kernel has the kind, but the request lacks a master or an identifier.
            Err(Some(_)) => Ok(true),
        }
    }
}
