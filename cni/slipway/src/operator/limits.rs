// SPDX-License-Identifier: GPL-2.0-or-later

//! Kernel limits that a node full of containers reaches, and the values that its networks need when they are full.
//!
//! The limits belong to the whole machine, so they are raised and never lowered: another program may need more.

use std::collections::BTreeMap;
use std::path::Path;

use cni_kernel::sysctl::{self, SysctlError};
use cni_plugins::capacity::{BRIDGE_PORTS, Capacity};
use cni_runtime::config::FileVerdict;
use cni_spec::NetConf;
use cni_state::documents::{KernelLimit, NetworkRoom};
use serde_json::Value;

/// Limits are raised for at most this number of containers: nobody plans to fill a /48 of IPv6 addresses.
const MOST_CONTAINERS: u64 = 65_536;

/// The networks of a node and the number of containers that fit into them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// In the order of their files.
    pub(super) networks: Vec<NetworkRoom>,
    /// The containers of all networks whose number is known.
    pub(super) containers: u64,
    /// The containers of the bridge that has room for the most.
    pub(super) on_one_bridge: u64,
}

/// A limit of the kernel.
struct Limit {
    /// The setting, with slashes.
    setting: &'static str,
    /// The number of containers for which a value is enough; none if nothing fails beyond the limit.
    enough_for: fn(u64) -> Option<u64>,
    /// The value for a node with this room.
    wanted: fn(&Room) -> u64,
    /// The consequence of exceeding the limit.
    consequence: &'static str,
}

/// A container and the host each have a neighbour entry for the other, in the table of the family, which all network
/// namespaces share. The limit is twice as high, for containers that talk to each other.
const LIMITS: &[Limit] = &[
    Limit {
        setting: "net/ipv4/neigh/default/gc_thresh3",
        enough_for: |value| Some(value / 2),
        wanted: |room| room.containers.saturating_mul(4),
        consequence: "neighbour table overflow: new IPv4 neighbours are not found",
    },
    Limit {
        setting: "net/ipv6/neigh/default/gc_thresh3",
        enough_for: |value| Some(value / 2),
        wanted: |room| room.containers.saturating_mul(4),
        consequence: "neighbour table overflow: new IPv6 neighbours are not found",
    },
    // While the table has more entries than this, the kernel searches all of it for entries to drop, every five seconds
    // (`neigh_alloc`). The value is half of the limit, as by default.
    Limit {
        setting: "net/ipv4/neigh/default/gc_thresh2",
        enough_for: |_| None,
        wanted: |room| room.containers.saturating_mul(2),
        consequence: "",
    },
    Limit {
        setting: "net/ipv6/neigh/default/gc_thresh2",
        enough_for: |_| None,
        wanted: |room| room.containers.saturating_mul(2),
        consequence: "",
    },
    // When a bridge floods a frame, it puts one packet per port into the backlog of a single processor.
    Limit {
        setting: "net/core/netdev_max_backlog",
        enough_for: |value| Some(value),
        wanted: |room| room.on_one_bridge.saturating_mul(4),
        consequence: "a frame that a bridge floods to all ports is dropped before some of them",
    },
];

impl Room {
    /// The room of the networks in these files. A file that a runtime cannot load counts as no network, and the room of
    /// a network to which no container can be added at the moment is unknown.
    pub(super) fn of(files: &[FileVerdict]) -> Self {
        let networks = files.iter().filter_map(|file| file.network.as_ref().ok());
        let capacities = networks.filter_map(|network| {
            let list = network.list();
            let mut first = list.plugins.first()?.clone();
            drop(first.insert("name".to_owned(), Value::from(network.name())));
            drop(first.insert("cniVersion".to_owned(), Value::from(network.version().as_str())));
            let config = NetConf::parse(Value::Object(first).to_string()).ok()?;
            // The file of flannel, for instance, may be missing or unreadable.
            let unknown = Capacity { addresses: None, bridge: None };
            Some((network.name().to_owned(), Capacity::of(&config).unwrap_or(unknown)))
        });
        Self::sum(capacities)
    }

    fn sum(capacities: impl Iterator<Item = (String, Capacity)>) -> Self {
        let mut room = Self::default();
        let mut on_bridges = BTreeMap::<String, u64>::new();
        let mut elsewhere = 0_u64;
        for (name, Capacity { addresses, bridge }) in capacities {
            let known = addresses.unwrap_or_default();
            match &bridge {
                None => elsewhere = elsewhere.saturating_add(known),
                Some(bridge) => {
                    let on_bridge = on_bridges.entry(bridge.clone()).or_default();
                    *on_bridge = on_bridge.saturating_add(known);
                }
            }
            room.networks.push(NetworkRoom { name, addresses, bridge });
        }
        let on_bridges = on_bridges.values().map(|containers| (*containers).min(BRIDGE_PORTS));
        room.on_one_bridge = on_bridges.clone().max().unwrap_or_default();
        room.containers = on_bridges.fold(elsewhere, u64::saturating_add);
        room
    }

    /// The networks in words: the number of addresses of each, and the bridges that have fewer ports than that.
    pub(super) fn words(&self) -> String {
        let network = |network: &NetworkRoom| match (network.addresses, &network.bridge) {
            (None, _) => format!("{}: unknown", network.name),
            (Some(addresses), Some(bridge)) if addresses > BRIDGE_PORTS => {
                format!("{}: {BRIDGE_PORTS} (the ports of bridge {bridge})", network.name)
            }
            (Some(addresses), _) => format!("{}: {addresses}", network.name),
        };
        let networks: Vec<String> = self.networks.iter().map(network).collect();
        networks.join(", ")
    }
}

/// The current limits. A limit that this namespace or kernel does not show is left out.
///
/// # Errors
/// [`SysctlError`] of the first that exists and cannot be read.
pub(super) fn read(settings: &Path, room: &Room) -> Result<Vec<KernelLimit>, SysctlError> {
    LIMITS.iter().filter_map(|limit| limit.read(settings, room).transpose()).collect()
}

/// Raises the limits that are too low, and returns them as they are afterwards.
///
/// # Errors
/// [`SysctlError`] of the first that cannot be read or written.
pub(super) fn raise(settings: &Path, room: &Room) -> Result<Vec<KernelLimit>, SysctlError> {
    for limit in LIMITS {
        // Inside a container, the kernel settings of the whole machine may be missing.
        let Some(KernelLimit { wanted, .. }) = limit.read(settings, room)? else { continue };
        if let Some(former) = sysctl::raise_below(settings, limit.setting, wanted)? {
            let (setting, containers) = (dotted(limit.setting), room.containers);
            log::info!("raised {setting} from {former} to {wanted}, for {containers} containers");
        }
    }
    read(settings, room)
}

/// The consequence of exceeding a limit.
pub(super) fn consequence(limit: &KernelLimit) -> &'static str {
    let known = LIMITS.iter().find(|known| dotted(known.setting) == limit.setting);
    known.map_or("", |known| known.consequence)
}

impl Limit {
    /// None if this namespace or kernel does not show the limit.
    fn read(&self, settings: &Path, room: &Room) -> Result<Option<KernelLimit>, SysctlError> {
        let value = match sysctl::get_below(settings, self.setting) {
            Err(error) if error.is_not_found() => return Ok(None),
            value => value?,
        };
        let Ok(value) = value.parse::<u64>() else { return Ok(None) };
        let bounded = Room {
            networks: Vec::new(),
            containers: room.containers.min(MOST_CONTAINERS),
            on_one_bridge: room.on_one_bridge,
        };
        let wanted = (self.wanted)(&bounded).next_power_of_two().max(value);
        Ok(Some(KernelLimit {
            setting: dotted(self.setting),
            value,
            wanted,
            enough_for: (self.enough_for)(value),
        }))
    }
}

fn dotted(setting: &str) -> String {
    setting.replace('/', ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(capacities: &[(&str, Option<u64>, Option<&str>)]) -> Room {
        let capacity = |(name, addresses, bridge): &(&str, Option<u64>, Option<&str>)| {
            (String::from(*name), Capacity { addresses: *addresses, bridge: bridge.map(str::to_owned) })
        };
        Room::sum(capacities.iter().map(capacity))
    }

    #[test]
    fn networks_of_one_bridge_share_its_ports() {
        let room = room(&[
            ("a", Some(800), Some("cni0")),
            ("b", Some(800), Some("cni0")),
            ("c", Some(253), Some("cni1")),
            ("d", Some(5000), None),
            ("e", None, Some("cni2")),
            ("f", Some(u64::MAX), Some("cni3")),
        ]);
        assert_eq!((room.containers, room.on_one_bridge), (1023 + 253 + 5000 + 1023, 1023));
        assert_eq!(
            room.words(),
            "a: 800, b: 800, c: 253, d: 5000, e: unknown, f: 1023 (the ports of bridge cni3)"
        );
    }

    #[test]
    fn limits_are_raised_for_the_networks_and_never_lowered() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        for (name, value) in [
            ("net/ipv4/neigh/default/gc_thresh2", 512),
            ("net/ipv4/neigh/default/gc_thresh3", 1024),
            ("net/core/netdev_max_backlog", 16384),
        ] {
            std::fs::create_dir_all(file(name).parent().unwrap()).unwrap();
            std::fs::write(file(name), format!("{value}\n")).unwrap();
        }
        let room = room(&[("a", Some(u64::MAX), Some("cni0"))]);
        let values = |limits: Vec<KernelLimit>| -> Vec<(String, u64, u64)> {
            limits.into_iter().map(|limit| (limit.setting, limit.value, limit.wanted)).collect()
        };
        let v4 = |name: &str| format!("net.ipv4.neigh.default.{name}");
        let backlog = "net.core.netdev_max_backlog".to_owned();
        assert_eq!(
            values(read(dir.path(), &room).unwrap()),
            [(v4("gc_thresh3"), 1024, 4096), (v4("gc_thresh2"), 512, 2048), (backlog.clone(), 16384, 16384)]
        );
        assert_eq!(
            values(raise(dir.path(), &room).unwrap()),
            [(v4("gc_thresh3"), 4096, 4096), (v4("gc_thresh2"), 2048, 2048), (backlog, 16384, 16384)]
        );
        let without = values(raise(dir.path(), &Room::default()).unwrap());
        assert_eq!(without[0], (v4("gc_thresh3"), 4096, 4096));
    }

    #[test]
    fn a_huge_range_of_ipv6_addresses_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("net/ipv6/neigh/default/gc_thresh3");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "1024\n").unwrap();
        let limits = read(dir.path(), &room(&[("a", Some(u64::MAX), None)])).unwrap();
        assert_eq!(limits[0].wanted, 4 * MOST_CONTAINERS);
    }

    #[test]
    fn a_limit_that_cannot_be_read_is_an_error_and_a_missing_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path(), &Room::default()).unwrap(), []);
        std::fs::create_dir_all(dir.path().join("net/core/netdev_max_backlog")).unwrap();
        read(dir.path(), &Room::default()).unwrap_err();
        raise(dir.path(), &Room::default()).unwrap_err();
    }
}
