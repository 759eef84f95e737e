// SPDX-License-Identifier: GPL-3.0-or-later

//! The addresses of networks, used and free: host-local's ranges in the configurations, and its reservations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_runtime::config;
use cni_spec::text::parse_net;
use cni_state::documents::Pool;
use cni_state::host_local::{Range, RawRange, canonical, number};
use cni_state::subnet_file::SubnetFile;
use serde_json::{Map, Value};

use crate::host::reservations::{DIRECTORY, Reservations};

/// A range of addresses that host-local gives out, with its name in the view.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedRange {
    name: String,
    range: Range,
}

impl NamedRange {
    /// Reads the keys `subnet`, `rangeStart`, `rangeEnd` and `gateway`; none if the plugin would refuse them.
    fn read(keys: &Map<String, Value>) -> Option<Self> {
        let text = |key: &str| keys.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let address = |key| text(key).map(str::parse).transpose().ok().map(|parsed| parsed.map(canonical));
        Self::of(&RawRange {
            subnet: Some(parse_net(text("subnet")?)?),
            first: address("rangeStart")?,
            last: address("rangeEnd")?,
            gateway: address("gateway")?,
        })
    }

    fn of(raw: &RawRange) -> Option<Self> {
        let range = raw.resolve().ok()?;
        let name = match (raw.first, raw.last) {
            (None, None) => range.subnet.to_string(),
            (first, last) => {
                let shown = |address: Option<IpAddr>| address.map(|one| one.to_string()).unwrap_or_default();
                format!("{}-{} of {}", shown(first), shown(last), range.subnet)
            }
        };
        Some(Self { name, range })
    }

    fn pool(&self, network: &str, reserved: &[IpAddr]) -> Pool {
        let Self { name, range } = self;
        let used = reserved.iter().filter(|address| range.contains(**address)).count() as u64;
        let without_gateway = u128::from(range.contains(range.gateway));
        let all = (number(range.last) - number(range.first)).saturating_add(1) - without_gateway;
        let free = u64::try_from(all).unwrap_or(u64::MAX).saturating_sub(used);
        Pool { network: network.to_owned(), range: Some(name.clone()), used, free: Some(free) }
    }
}

/// The ranges of an `ipam` object, and the directory of its reservations; none if it is not host-local's.
fn ranges(ipam: &Value, troubles: &mut Vec<String>) -> Option<(PathBuf, Vec<NamedRange>)> {
    let keys =
        ipam.as_object().filter(|keys| keys.get("type").and_then(Value::as_str) == Some("host-local"))?;
    let text = |key: &str| keys.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let sets = keys.get("ranges").and_then(Value::as_array).into_iter().flatten();
    let listed = sets.filter_map(Value::as_array).flatten().filter_map(Value::as_object);
    let mut found: Vec<NamedRange> =
        std::iter::once(keys).chain(listed).filter_map(NamedRange::read).collect();
    if let Some(path) = text("subnetFile") {
        match SubnetFile::read(Path::new(path)) {
            Ok(file) => {
                found.extend(file.subnets.iter().filter_map(|subnet| {
                    NamedRange::of(&RawRange { subnet: Some(*subnet), ..RawRange::default() })
                }));
            }
            Err(error) => troubles.push(error.to_string()),
        }
    }
    Some((text("dataDir").unwrap_or(DIRECTORY).into(), found))
}

/// Reads the pools of all networks, by name. A network that has reservations and no configuration any more is among
/// them.
#[must_use]
pub fn read(config_dir: &Path, troubles: &mut Vec<String>) -> Vec<Pool> {
    let mut networks = BTreeMap::<(String, PathBuf), Vec<NamedRange>>::new();
    match config::load_all(config_dir) {
        Ok(files) => {
            for network in files.into_iter().filter_map(|file| file.network.ok()) {
                for ipam in network.list().plugins.iter().filter_map(|plugin| plugin.get("ipam")) {
                    let Some((directory, found)) = ranges(ipam, troubles) else { continue };
                    let known = networks.entry((network.name().to_owned(), directory)).or_default();
                    known.extend(found);
                }
            }
        }
        Err(error) => troubles.push(error.to_string()),
    }
    for entry in std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().ok().filter(|name| cni_spec::check_network(name).is_ok());
        if let Some(name) = name.filter(|name| !name.starts_with('.')) {
            networks.entry((name, DIRECTORY.into())).or_default();
        }
    }
    networks
        .iter()
        .flat_map(|((name, directory), ranges)| of_network(name, directory, ranges, troubles))
        .collect()
}

fn of_network(name: &str, directory: &Path, ranges: &[NamedRange], troubles: &mut Vec<String>) -> Vec<Pool> {
    let reserved = Reservations::open(directory, name)
        .and_then(|found| found.map_or(Ok(Vec::new()), |found| found.addresses()));
    let reserved = match reserved {
        Ok(reserved) => reserved,
        Err(error) => {
            troubles.push(error.to_string());
            return Vec::new();
        }
    };
    let mut pools: Vec<Pool> = ranges.iter().map(|range| range.pool(name, &reserved)).collect();
    let outside: BTreeSet<_> =
        reserved.iter().filter(|address| !ranges.iter().any(|one| one.range.contains(**address))).collect();
    if !outside.is_empty() {
        pools.push(Pool { network: name.to_owned(), range: None, used: outside.len() as u64, free: None });
    }
    pools
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pools(ipam: &Value, reserved: &[&str]) -> Vec<(String, u64, Option<u64>)> {
        let reserved: Vec<IpAddr> = reserved.iter().map(|address| address.parse().unwrap()).collect();
        let (_, ranges) = ranges(ipam, &mut Vec::new()).unwrap();
        let pools = ranges.iter().map(|range| range.pool("pods", &reserved));
        pools.map(|pool| (pool.range.unwrap(), pool.used, pool.free)).collect()
    }

    #[test]
    fn ranges_have_the_addresses_that_host_local_gives_out() {
        let one = |ipam: Value, reserved: &[&str]| pools(&ipam, reserved).remove(0);
        let subnet = json!({"type": "host-local", "subnet": "10.22.0.0/24"});
        assert_eq!(one(subnet, &["10.22.0.2", "10.23.0.2"]), ("10.22.0.0/24".to_owned(), 1, Some(252)));
        let part = json!({
            "type": "host-local", "subnet": "10.22.0.0/24", "rangeStart": "10.22.0.10", "rangeEnd": "10.22.0.19",
        });
        let name = "10.22.0.10-10.22.0.19 of 10.22.0.0/24".to_owned();
        assert_eq!(one(part, &["10.22.0.10", "10.22.0.9"]), (name, 1, Some(9)));
        let sets =
            json!({"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/30"}], [{"subnet": "fd00::/64"}]]});
        let expected =
            [("10.0.0.0/30".to_owned(), 0, Some(1)), ("fd00::/64".to_owned(), 1, Some(u64::MAX - 2))];
        // 2^64 addresses without the network's and the gateway's.
        assert_eq!(pools(&sets, &["fd00::2"]), expected);
    }

    #[test]
    fn hostile_configurations_have_no_ranges() {
        for ipam in [
            json!({"type": "host-local"}),
            json!({"type": "host-local", "subnet": "nonsense", "ranges": [[], null, [{"subnet": 1}]]}),
            json!({"type": "host-local", "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"}),
            json!({"type": "host-local", "ranges": {}}),
            json!({"type": "host-local", "subnet": "255.255.255.255/32"}),
            // host-local refuses these.
            json!({"type": "host-local", "subnet": "::/0"}),
            json!({"type": "host-local", "subnet": "10.0.0.1/24"}),
            json!({"type": "host-local", "subnet": "10.0.0.0/24", "rangeEnd": "10.0.1.9"}),
            json!({"type": "host-local", "subnet": "10.0.0.0/24", "gateway": "nonsense"}),
        ] {
            assert_eq!(pools(&ipam, &["10.0.0.2"]), [], "{ipam}");
        }
        assert!(ranges(&json!({"type": "static"}), &mut Vec::new()).is_none());
        assert!(ranges(&json!("host-local"), &mut Vec::new()).is_none());
    }
}
