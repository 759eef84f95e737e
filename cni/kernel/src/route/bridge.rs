// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bridges, and the settings and VLANs of their ports.

use cni_netlink::message;
use rtnetlink::packet_route::link::{
    AfSpecBridge, BridgeBooleanOptionFlags, BridgeBooleanOptions, BridgeVlanInfo, BridgeVlanInfoFlags,
    InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, LinkAttribute,
    LinkExtentMask, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::RouteSocket;
use super::error::{ReplyError, RouteError};
use super::link::{IFINFOMSG, Link};
use super::port::{PortSettings, Switch, VlanFiltering};
use super::transport::Verb;
use crate::mac::Mac;

/// A bridge to create.
#[derive(Debug)]
pub struct NewBridge<'a> {
    /// Name.
    pub name: &'a str,
    /// Address. If none, the bridge has the lowest address of its ports, which changes as ports come and go.
    pub mac: Option<Mac>,
    /// MTU in bytes. If none, the bridge has the smallest MTU of its ports, which changes as ports come and go.
    pub mtu: Option<u32>,
    /// VLAN filtering.
    pub vlan_filtering: VlanFiltering,
}

/// VLANs of a port: all IDs from `first` to `last`, with the same flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortVlan {
    /// First VLAN ID, 1–4094.
    pub first: u16,
    /// Last VLAN ID, not less than the first.
    pub last: u16,
    /// Untagged packets received belong to this VLAN. For a single ID only.
    pub pvid: Switch,
    /// Packets are sent untagged.
    pub untagged: Switch,
}

impl PortVlan {
    /// One VLAN, untagged in both directions.
    #[must_use]
    pub fn native(id: u16) -> Self {
        Self { first: id, last: id, pvid: Switch::On, untagged: Switch::On }
    }

    /// VLANs whose packets are tagged.
    #[must_use]
    pub fn tagged(first: u16, last: u16) -> Self {
        Self { first, last, pvid: Switch::Off, untagged: Switch::Off }
    }

    fn flags(self) -> BridgeVlanInfoFlags {
        let mut flags = BridgeVlanInfoFlags::empty();
        flags.set(BridgeVlanInfoFlags::Pvid, self.pvid.is_on());
        flags.set(BridgeVlanInfoFlags::Untagged, self.untagged.is_on());
        flags
    }

    /// The entries of a netlink message. A range consists of two entries, marked as its begin and its end.
    fn entries(self) -> Vec<AfSpecBridge> {
        let entry = |vid, flags| AfSpecBridge::VlanInfo(BridgeVlanInfo { flags, vid });
        if self.first == self.last {
            vec![entry(self.first, self.flags())]
        } else {
            vec![
                entry(self.first, self.flags() | BridgeVlanInfoFlags::RangeBegin),
                entry(self.last, self.flags() | BridgeVlanInfoFlags::RangeEnd),
            ]
        }
    }
}

impl std::fmt::Display for PortVlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.first == self.last {
            write!(f, "vlan {}", self.first)
        } else {
            write!(f, "vlans {}-{}", self.first, self.last)
        }
    }
}

// linux/if_bridge.h
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;

impl RouteSocket {
    /// Creates a bridge that is down, without multicast snooping.
    ///
    /// The kernel sets no alias while it creates a link. So a process that is killed right after this leaves a bridge that is
    /// down and has no alias.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if the name is taken; EOPNOTSUPP for VLAN filtering in a kernel that
    /// was built without it.
    pub fn create_bridge(&self, new: &NewBridge<'_>) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(new.name.to_owned()));
        if let Some(mtu) = new.mtu {
            message.attributes.push(LinkAttribute::Mtu(mtu));
        }
        if let Some(mac) = new.mac {
            message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        }
        // Without a querier, which a bridge of containers does not have, snooping filters nothing, but each port that
        // comes or goes starts two timers for every other port (`br_port_state_selection`).
        let mut settings = vec![InfoBridge::MulticastSnooping(false)];
        if new.vlan_filtering == VlanFiltering::On {
            settings.push(InfoBridge::VlanFiltering(true));
        }
        let info = vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(InfoData::Bridge(settings))];
        message.attributes.push(LinkAttribute::LinkInfo(info));
        let action = format_args!("create bridge {}", new.name);
        self.transport.run(Verb::Create, RouteNetlinkMessage::NewLink(message), action)
    }

    /// Switches VLAN filtering on or off.
    ///
    /// # Errors
    /// EOPNOTSUPP in a kernel that was built without it.
    pub fn set_vlan_filtering(&self, bridge: &Link, filtering: VlanFiltering) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.header.index = bridge.index;
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bridge),
            LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::VlanFiltering(filtering == VlanFiltering::On)])),
        ]));
        let action = format_args!("set {} vlan_filtering {filtering:?}", bridge.name);
        self.transport.run(Verb::Change, RouteNetlinkMessage::NewLink(message), action)
    }

    /// Keeps a bridge from learning the source addresses of frames to link-local groups, such as those of LLDP
    /// (`BR_BOOLOPT_NO_LL_LEARN`). The bridge takes these frames for itself, and most of them pass no netfilter hook
    /// before it learns their sources (`br_handle_frame` in `net/bridge/br_input.c`).
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if the bridge is gone.
    pub fn ignore_link_local_sources(&self, bridge: &Link) -> Result<(), RouteError> {
        let option = BridgeBooleanOptionFlags::NoLinkLocalLearn;
        let options = InfoBridge::MultiBoolOpt(BridgeBooleanOptions { value: option, mask: option });
        let mut message = LinkMessage::default();
        message.header.index = bridge.index;
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bridge),
            LinkInfo::Data(InfoData::Bridge(vec![options])),
        ]));
        let action = format_args!("set {} no_linklocal_learn", bridge.name);
        self.transport.run(Verb::Change, RouteNetlinkMessage::NewLink(message), action)
    }

    /// Changes the settings of a bridge port. Only those that differ from `from` are sent, so that a kernel which
    /// lacks a setting still works for callers that do not change it.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if the link is gone.
    pub fn set_port(&self, port: &Link, from: PortSettings, to: PortSettings) -> Result<(), RouteError> {
        let mut data = Vec::new();
        if from.hairpin != to.hairpin {
            data.push(InfoBridgePort::HairpinMode(to.hairpin.is_on()));
        }
        if from.isolated != to.isolated {
            data.push(InfoBridgePort::Isolated(to.isolated.is_on()));
        }
        if data.is_empty() {
            return Ok(());
        }
        let mut message = LinkMessage::default();
        message.header.index = port.index;
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(data)),
        ]));
        let action =
            format_args!("set bridge port {} hairpin {:?} isolated {:?}", port.name, to.hairpin, to.isolated);
        self.transport.run(Verb::Change, RouteNetlinkMessage::NewLink(message), action)
    }

    /// Adds VLANs to a port.
    ///
    /// # Errors
    /// EOPNOTSUPP in a kernel without VLAN filtering.
    pub fn add_port_vlan(&self, port: &Link, vlan: PortVlan) -> Result<(), RouteError> {
        let message = RouteNetlinkMessage::SetLink(vlan_message(port, vlan));
        self.transport.run(Verb::Change, message, format_args!("add {vlan} to bridge port {}", port.name))
    }

    /// Removes VLANs from a port. A missing VLAN is not an error, because the kernel does not report it (br_vlan_info
    /// in net/bridge/br_netlink.c).
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if the link is gone.
    pub fn delete_port_vlan(&self, port: &Link, vlan: PortVlan) -> Result<(), RouteError> {
        let message = RouteNetlinkMessage::DelLink(vlan_message(port, vlan));
        self.transport.run(
            Verb::Change,
            message,
            format_args!("delete {vlan} from bridge port {}", port.name),
        )
    }

    /// The VLANs of a port, or of a bridge itself; consecutive ones with equal flags form one range.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn port_vlans(&self, port: &Link) -> Result<Vec<PortVlan>, RouteError> {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::BrvlanCompressed]));
        let lists = self.transport.list(
            RouteNetlinkMessage::GetLink(message),
            format_args!("list vlans of {}", port.name),
            |payload| decode_vlans(payload, port.index),
        )?;
        Ok(lists.into_iter().flatten().collect())
    }
}

fn vlan_message(port: &Link, vlan: PortVlan) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.interface_family = AddressFamily::Bridge;
    message.header.index = port.index;
    message.attributes.push(LinkAttribute::AfSpecBridge(vlan.entries()));
    message
}

pub(super) fn decode_vlans(payload: &[u8], wanted: u32) -> Result<Option<Vec<PortVlan>>, ReplyError> {
    let (header, rest) = payload.split_at_checked(IFINFOMSG).ok_or(ReplyError::NoHeader("a link"))?;
    if message::u32_of(&header[4..]) != wanted {
        return Ok(None);
    }
    let mut vlans = Vec::new();
    let mut begin = None;
    let lists = message::attributes(rest).filter(|(kind, _)| *kind == nix::libc::IFLA_AF_SPEC);
    for (kind, value) in lists.flat_map(|(_, list)| message::attributes(list)) {
        if kind != IFLA_BRIDGE_VLAN_INFO || value.len() < 4 {
            continue;
        }
        let flags = BridgeVlanInfoFlags::from_bits_retain(message::u16_of(value));
        let id = message::u16_of(&value[2..]);
        if flags.contains(BridgeVlanInfoFlags::RangeBegin) {
            begin = Some(id);
            continue;
        }
        let first =
            if flags.contains(BridgeVlanInfoFlags::RangeEnd) { begin.take().unwrap_or(id) } else { id };
        vlans.push(PortVlan {
            first,
            last: id,
            pvid: Switch::from_bool(flags.contains(BridgeVlanInfoFlags::Pvid)),
            untagged: Switch::from_bool(flags.contains(BridgeVlanInfoFlags::Untagged)),
        });
    }
    Ok(Some(vlans))
}
