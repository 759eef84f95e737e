// SPDX-License-Identifier: GPL-2.0-or-later

//! Addresses that an ADD passes over because a living container of another network on the node has them. A network that
//! was renamed begins without reservations, while its containers live on under the former name.
//!
//! Two networks may also have the same range on purpose, each on a bridge of its own. Therefore an address of another
//! network is passed over only if its owner may be on the same bridge. If no other address is left, it is given out
//! nevertheless, and the check on the bridge decides. Once such an address has been found, all addresses that the other
//! network has reserved are passed over at once, as its index lists them.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use cni_dataplane::namespace_record;
use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_kernel::route::{Link, RouteError, RouteSocket};
use cni_spec::{Attachment, NetConf};
use cni_state::host_local::Range;
use serde::Deserialize;

use super::index::Index;
use super::other_networks::{Holder, OtherNetworks};
use super::owner;
use super::range::RangeSet;
use super::search::{Bits, Block, next_free};
use super::store::StoreError;
use crate::interface::shared::host::host_names;

/// The number of free addresses that are looked at one by one.
const LOOKS: usize = 1024;

/// The addresses that other networks have.
pub(super) struct Avoidance {
    others: Option<OtherNetworks>,
    /// The name of the configuration's bridge; none if the network has another plugin.
    bridge: Option<String>,
    route: OnceCell<Option<RouteSocket>>,
    /// The reservations of networks that have an address in the way.
    networks: BTreeMap<usize, Taken>,
    /// Single addresses that are in the way.
    single: BTreeMap<Block, Bits>,
}

/// The taken addresses of a network.
enum Taken {
    Indexed(Index),
    Listed(BTreeMap<Block, Bits>),
}

/// The keys of the interface plugin that name the segment of the network.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Segment {
    #[serde(rename = "type")]
    plugin: String,
    bridge: String,
    vlan: i64,
    vlan_trunk: Vec<serde_json::Value>,
}

impl Avoidance {
    /// Lists the other networks in the directory of reservations. If the configuration has a VLAN, no other network
    /// counts, because another VLAN of the same bridge may have the same addresses.
    pub(super) fn of(data_dir: &Path, config: &NetConf) -> Self {
        let segment: Segment = config.decode().unwrap_or_default();
        let is_divided = segment.vlan != 0 || !segment.vlan_trunk.is_empty();
        let others = match is_divided {
            true => None,
            false => OtherNetworks::beside(data_dir, &config.name)
                .inspect_err(|error| log::debug!("other networks: {error}"))
                .ok(),
        };
        let named = if segment.bridge.is_empty() { "cni0".to_owned() } else { segment.bridge };
        Self {
            others: others.filter(|others| !others.names().is_empty()),
            bridge: (segment.plugin == "bridge").then_some(named),
            route: OnceCell::new(),
            networks: BTreeMap::new(),
            single: BTreeMap::new(),
        }
    }

    /// Finds the next free address of a set as [`next_free`] does, and passes over those that are in the way.
    pub(super) fn next_free<'a>(
        &mut self,
        set: &'a RangeSet,
        last: Option<IpAddr>,
        never: &[IpAddr],
        mut taken: impl FnMut(Block) -> Result<Bits, StoreError>,
    ) -> Result<Option<(IpAddr, &'a Range)>, StoreError> {
        let mut are_listed_skipped = true;
        for _ in 0..LOOKS {
            let found = next_free(set, last, never, |block| {
                let own = taken(block)?;
                Ok::<Bits, StoreError>(own | self.bits(block, are_listed_skipped))
            })?;
            match found {
                // Some reservations of the other networks may belong to containers that are gone, so they are looked at
                // one by one.
                None if are_listed_skipped && !self.networks.is_empty() => are_listed_skipped = false,
                None => return Ok(None),
                Some((address, _)) => match self.in_the_way(address) {
                    None => return Ok(found),
                    Some(network) => self.avoid(network, address),
                },
            }
        }
        Ok(None)
    }

    fn bits(&self, block: Block, are_listed_skipped: bool) -> Bits {
        let single = self.single.get(&block).copied().unwrap_or_default();
        let listed = self.networks.values().filter(|_| are_listed_skipped).map(|network| match network {
            Taken::Indexed(index) => index.taken(block).unwrap_or_default(),
            Taken::Listed(blocks) => blocks.get(&block).copied().unwrap_or_default(),
        });
        listed.fold(single, |all, bits| all | bits)
    }

    fn avoid(&mut self, network: usize, address: IpAddr) {
        let (block, place) = Block::of(address);
        self.single.entry(block).or_default().set(place);
        if !self.networks.contains_key(&network)
            && let Some(taken) = self.others.as_ref().and_then(|others| taken_of(others, network))
        {
            self.networks.insert(network, taken);
        }
    }

    /// The index of the network in which a container that may be alive has the address.
    fn in_the_way(&self, address: IpAddr) -> Option<usize> {
        let mut holders = self.others.as_ref()?.numbered_holders(address);
        // A reservation that cannot be read may be of a container that is alive.
        let is_in_the_way = |holder: &Result<Holder, StoreError>| {
            holder.as_ref().map_or(true, |holder| self.is_in_the_way(holder))
        };
        holders.find(|(_, holder)| is_in_the_way(holder)).map(|(network, _)| network)
    }

    fn is_in_the_way(&self, holder: &Holder) -> bool {
        let may_live = || holder.namespace.as_ref().is_some_and(|record| !namespace_record::is_gone(record));
        let route = self.route.get_or_init(|| {
            RouteSocket::open().inspect_err(|error| log::debug!("links of other networks: {error}")).ok()
        });
        let Some(route) = route else { return true };
        let Ok(host_end) = host_end(route, &holder.owner) else { return true };
        match (host_end, &self.bridge) {
            // The link exists as long as its namespace does, even if the path is gone. A link that has not joined a
            // bridge yet may join any.
            (Some(Link { master: Some(index), .. }), Some(bridge)) => match route.link_by_index(index) {
                Ok(master) => master.name == *bridge,
                Err(error) => !error.is_not_found(),
            },
            (Some(_), _) => true,
            (None, _) => may_live(),
        }
    }
}

/// The node's end of an attachment's pair, by the owner in its alias.
fn host_end(route: &RouteSocket, attachment: &Attachment) -> Result<Option<Link>, RouteError> {
    let hash = AttachmentHash::of(attachment);
    let is_its =
        |link: &Link| Owner::from_comment(&link.alias).is_some_and(|owner| owner.attachment_hash == hash);
    for name in host_names(attachment) {
        if let Some(link) = route.find_link(&name)?.filter(is_its) {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

fn taken_of(others: &OtherNetworks, network: usize) -> Option<Taken> {
    let store = others.store(network)?;
    let indexed = || Index::open(store.present_index()?, &store.stamp().ok()?);
    if let Some(index) = indexed() {
        return Some(Taken::Indexed(index));
    }
    let mut blocks = BTreeMap::<Block, Bits>::new();
    for name in store.dir.list().ok()? {
        let Some(address) = name.to_str().and_then(owner::address) else { continue };
        let (block, place) = Block::of(address);
        blocks.entry(block).or_default().set(place);
    }
    Some(Taken::Listed(blocks))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::PathBuf;

    use cni_kernel::xattr;
    use cni_state::host_local::RawRange;
    use serde_json::{Value, json};

    use super::super::mark;
    use super::super::store::{Store, boot_id};
    use super::*;

    /// The network `old` has the addresses 10.1.2.2 to 10.1.2.6.
    struct Renamed {
        temp: tempfile::TempDir,
    }

    impl Renamed {
        /// None without the privileges for extended attributes, or if the file system does not support them.
        fn new() -> Option<Self> {
            let renamed = Self { temp: tempfile::tempdir().unwrap() };
            Store::create(renamed.temp.path(), "old").unwrap();
            for last in 2..=6 {
                let netns = renamed.netns(last);
                fs::write(&netns, "").unwrap();
                let record = mark::record(&boot_id(), Some(&netns)).unwrap();
                let path = renamed.temp.path().join(format!("old/10.1.2.{last}"));
                fs::write(&path, format!("c{last}\r\neth0")).unwrap();
                let file = File::options().write(true).open(&path).unwrap();
                xattr::set(&file, mark::ATTRIBUTE, &record).ok()?;
            }
            Some(renamed)
        }

        fn netns(&self, last: u8) -> PathBuf {
            self.temp.path().join(format!("netns-{last}"))
        }

        fn end(&self, lasts: impl IntoIterator<Item = u8>) {
            lasts.into_iter().for_each(|last| fs::remove_file(self.netns(last)).unwrap());
        }

        /// The address that an ADD to the network `new` gets, if `taken` are those of its own.
        fn next(&self, subnet: &str, keys: &Value, taken: &[&str]) -> Option<String> {
            let mut config = json!({"name": "new", "type": "bridge"});
            config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            let config = NetConf::parse(config.to_string()).unwrap();
            let range = RawRange { subnet: subnet.parse().ok(), ..RawRange::default() }.resolve().unwrap();
            let never = [range.gateway];
            let set = RangeSet::new(vec![range]).unwrap();
            let own = |block: Block| {
                let mut bits = Bits::default();
                for (its_block, place) in taken.iter().map(|one| Block::of(one.parse().unwrap())) {
                    if its_block == block {
                        bits.set(place);
                    }
                }
                Ok(bits)
            };
            let found = Avoidance::of(self.temp.path(), &config).next_free(&set, None, &never, own);
            found.unwrap().map(|(address, _)| address.to_string())
        }
    }

    #[test]
    fn addresses_of_living_containers_of_a_renamed_network_are_passed_over() {
        let Some(renamed) = Renamed::new() else { return };
        let next = |taken: &[&str]| renamed.next("10.1.2.0/24", &json!({}), taken);
        assert_eq!(next(&[]).as_deref(), Some("10.1.2.7"));
        assert_eq!(next(&["10.1.2.7", "10.1.2.8"]).as_deref(), Some("10.1.2.9"));
        // A single living container is enough, because the other addresses are looked at only if no other address is
        // left.
        renamed.end(3..=6);
        assert_eq!(next(&[]).as_deref(), Some("10.1.2.7"));
        renamed.end([2]);
        assert_eq!(next(&[]).as_deref(), Some("10.1.2.2"), "no container lives");
    }

    #[test]
    fn addresses_of_ended_containers_are_given_out_if_no_other_is_left() {
        let Some(renamed) = Renamed::new() else { return };
        let next = |taken: &[&str]| renamed.next("10.1.2.0/29", &json!({}), taken);
        assert_eq!(next(&[]), None, "all containers live");
        renamed.end([4]);
        assert_eq!(next(&[]).as_deref(), Some("10.1.2.4"));
        assert_eq!(next(&["10.1.2.4"]), None);
    }

    #[test]
    fn a_full_range_is_searched_once_if_no_other_network_has_an_address_in_it() {
        let temp = tempfile::tempdir().unwrap();
        let config = NetConf::parse(r#"{"name": "new", "type": "bridge"}"#).unwrap();
        let range = RawRange { subnet: "10.1.2.0/24".parse().ok(), ..RawRange::default() }.resolve().unwrap();
        let set = RangeSet::new(vec![range]).unwrap();
        let mut asked = 0;
        let found = Avoidance::of(temp.path(), &config).next_free(&set, None, &[], |_| {
            asked += 1;
            Ok(Bits([u64::MAX; 4]))
        });
        assert_eq!((found.unwrap(), asked), (None, 1));
    }

    #[test]
    fn vlans_of_one_bridge_may_have_the_same_addresses() {
        let Some(renamed) = Renamed::new() else { return };
        for (keys, expected) in [
            (json!({"vlan": 0, "vlanTrunk": []}), "10.1.2.7"),
            (json!({"vlan": 7}), "10.1.2.2"),
            (json!({"vlanTrunk": [{"id": 7}]}), "10.1.2.2"),
        ] {
            assert_eq!(renamed.next("10.1.2.0/24", &keys, &[]).as_deref(), Some(expected), "{keys}");
        }
    }
}
