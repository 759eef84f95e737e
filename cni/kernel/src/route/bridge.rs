//! Bridges, their ports and the VLANs of their ports.

use rtnetlink::packet_route::link::{
    AfSpecBridge, BridgeVlanInfo, BridgeVlanInfoFlags, InfoBridge, InfoBridgePort, InfoData, InfoKind,
    InfoPortData, InfoPortKind, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::error::RouteError;
use super::link::{IFINFOMSG, Link};
use super::transport::Verb;
use super::{RouteSocket, wire};
use crate::mac::Mac;

/// A bridge to be made.
#[derive(Debug)]
pub struct NewBridge<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its address. A bridge that is given one keeps it; one that is not follows the lowest address
    /// of its ports.
    pub mac: Option<Mac>,
    /// Its MTU in bytes; none for the kernel's default, which then follows the smallest of its
    /// ports.
    pub mtu: Option<u32>,
    /// Whether it keeps VLANs apart.
    pub vlan_filtering: VlanFiltering,
}

/// Whether a bridge keeps VLANs apart (`IFLA_BR_VLAN_FILTERING`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VlanFiltering {
    /// It does.
    On,
    /// It does not look at VLANs.
    Off,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl Switch {
    /// On for true.
    #[must_use]
    pub fn from_bool(on: bool) -> Self {
        if on { Self::On } else { Self::Off }
    }

    /// True for on.
    #[must_use]
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// What a port of a bridge is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSettings {
    /// Whether packets may leave by the port they came from.
    pub hairpin: Switch,
    /// Whether the port is kept from all other isolated ports (since Linux 4.18).
    pub isolated: Switch,
}

/// VLANs of a port: all from `first` to `last`, with the same flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortVlan {
    /// The first VLAN ID, 1–4094.
    pub first: u16,
    /// The last VLAN ID, not below the first.
    pub last: u16,
    /// Untagged packets that come in belong to this VLAN. For a single ID only.
    pub pvid: Switch,
    /// Packets leave without their tag.
    pub untagged: Switch,
}

impl PortVlan {
    /// One VLAN whose packets come and go untagged.
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

    /// A range is two entries, marked as begin and end.
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

// linux/if_link.h; the kernel calls hairpin the port's mode.
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_BRPORT_ISOLATED: u16 = 33;
// linux/if_bridge.h
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;

impl PortSettings {
    pub(super) fn decode(data: &[u8]) -> Self {
        let mut settings = Self { hairpin: Switch::Off, isolated: Switch::Off };
        for (kind, value) in wire::attributes(data) {
            let switch = Switch::from_bool(wire::u8_of(value) != 0);
            match kind {
                IFLA_BRPORT_MODE => settings.hairpin = switch,
                IFLA_BRPORT_ISOLATED => settings.isolated = switch,
                _ => {}
            }
        }
        settings
    }
}

impl RouteSocket {
    /// Makes a bridge and switches it on.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] when the name is taken; EOPNOTSUPP with VLAN filtering on a
    /// kernel that was built without it.
    pub fn create_bridge(&self, new: &NewBridge<'_>) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.push(LinkAttribute::IfName(new.name.to_owned()));
        if let Some(mtu) = new.mtu {
            message.attributes.push(LinkAttribute::Mtu(mtu));
        }
        if let Some(mac) = new.mac {
            message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        }
        let mut info = vec![LinkInfo::Kind(InfoKind::Bridge)];
        if new.vlan_filtering == VlanFiltering::On {
            info.push(LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::VlanFiltering(true)])));
        }
        message.attributes.push(LinkAttribute::LinkInfo(info));
        let action = format_args!("create bridge {}", new.name);
        self.transport.run(Verb::Create, RouteNetlinkMessage::NewLink(message), action)
    }

    /// Switches VLAN filtering on or off.
    ///
    /// # Errors
    /// Names the bridge; EOPNOTSUPP on a kernel that was built without it.
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

    /// Sets what a port of a bridge does. Only what differs from `from` is sent, so that a kernel
    /// without a setting serves those who leave it alone.
    ///
    /// # Errors
    /// Names the port.
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

    /// Lets a port take part in VLANs.
    ///
    /// # Errors
    /// Names the port and the VLANs; EOPNOTSUPP on a kernel without VLAN filtering.
    pub fn add_port_vlan(&self, port: &Link, vlan: PortVlan) -> Result<(), RouteError> {
        let message = RouteNetlinkMessage::SetLink(vlan_message(port, vlan));
        self.transport.run(Verb::Change, message, format_args!("add {vlan} to bridge port {}", port.name))
    }

    /// Takes a port out of VLANs. One that it is not in is no error: the kernel does not tell
    /// (br_vlan_info in net/bridge/br_netlink.c).
    ///
    /// # Errors
    /// Names the port and the VLANs.
    pub fn delete_port_vlan(&self, port: &Link, vlan: PortVlan) -> Result<(), RouteError> {
        let message = RouteNetlinkMessage::DelLink(vlan_message(port, vlan));
        self.transport.run(
            Verb::Change,
            message,
            format_args!("delete {vlan} from bridge port {}", port.name),
        )
    }

    /// The VLANs of a port, or of a bridge itself; neighbouring ones with equal flags as one range.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn port_vlans(&self, port: &Link) -> Result<Vec<PortVlan>, RouteError> {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::BrvlanCompressed]));
        let lists = self.transport.list(
            &RouteNetlinkMessage::GetLink(message),
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

fn decode_vlans(payload: &[u8], wanted: u32) -> Result<Option<Vec<PortVlan>>, String> {
    let (header, rest) = payload.split_at_checked(IFINFOMSG).ok_or("a link without a header")?;
    if wire::u32_of(&header[4..]) != wanted {
        return Ok(None);
    }
    let mut vlans = Vec::new();
    let mut begin = None;
    let lists = wire::attributes(rest).filter(|(kind, _)| *kind == nix::libc::IFLA_AF_SPEC);
    for (kind, value) in lists.flat_map(|(_, list)| wire::attributes(list)) {
        if kind != IFLA_BRIDGE_VLAN_INFO || value.len() < 4 {
            continue;
        }
        let flags = BridgeVlanInfoFlags::from_bits_retain(wire::u16_of(value));
        let id = wire::u16_of(&value[2..]);
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
