// SPDX-License-Identifier: GPL-2.0-or-later

//! The lists of networks that are exempt from masquerade, in the BPF maps.
//!
//! A list has a number, which is in the entries of its pods' addresses. Pods with the same networks have the
//! same list, so that the maps do not grow with the number of pods. A list is never changed: a pod with other
//! networks gets another number. GC removes the lists that no address has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use aya::Pod as Plain;
use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData, MapError};
use ipnet::IpNet;
use slipway_ebpf_abi::{Addr4, Addr6, ExemptKey, maps};

use super::error;
use super::pins::Pins;
use crate::{AddressFamily, Error};

/// The largest number of a list: 16 bits of an address's flags.
const LAST: u32 = u16::MAX as u32;

/// The networks of each list of a family, by its number.
type Lists = BTreeMap<u32, BTreeSet<IpNet>>;

/// The lists of both families.
#[derive(Debug)]
pub(super) struct Exempt {
    v4: Trie<Addr4>,
    v6: Trie<Addr6>,
}

#[derive(Debug)]
struct Trie<A> {
    name: &'static str,
    map: LpmTrie<MapData, ExemptKey<A>, u32>,
}

impl Exempt {
    /// Opens the maps; none if an earlier version has made the others: its programs do not read these.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map has another layout.
    pub(super) fn open(pins: &Pins) -> Result<Option<Self>, Error> {
        if !pins.map(maps::EXEMPT4).exists() || !pins.map(maps::EXEMPT6).exists() {
            return Ok(None);
        }
        Ok(Some(Self { v4: Trie::open(pins, maps::EXEMPT4)?, v6: Trie::open(pins, maps::EXEMPT6)? }))
    }

    /// The number of the list with exactly these networks, which is made if it is missing; 0 for no networks.
    /// The caller holds the lock until the number is written to an address's entry: until then the list
    /// counts as unused.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map is full or all numbers are in use.
    pub(super) fn number(&mut self, family: AddressFamily, networks: &[IpNet]) -> Result<u32, Error> {
        if networks.is_empty() {
            return Ok(0);
        }
        let (lists, wanted) = (self.lists(family)?, networks.iter().copied().collect());
        if let Some((number, _)) = lists.iter().find(|(_, has)| **has == wanted) {
            return Ok(*number);
        }
        let free = (1..=LAST).find(|number| !lists.contains_key(number));
        let free =
            free.ok_or_else(|| Error::kernel("number a list of networks", "all numbers are in use"))?;
        for network in networks {
            match network {
                IpNet::V4(net) => self.v4.put(free, net.addr().into(), net.prefix_len())?,
                IpNet::V6(net) => self.v6.put(free, net.addr().into(), net.prefix_len())?,
            }
        }
        Ok(free)
    }

    /// The networks of a list, sorted.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map cannot be read.
    pub(super) fn networks(&self, family: AddressFamily, number: u32) -> Result<Vec<IpNet>, Error> {
        let networks = self.lists(family)?.remove(&number).unwrap_or_default();
        Ok(networks.into_iter().collect())
    }

    /// Removes the lists of a family that have none of these numbers. The caller holds the lock since it read
    /// the numbers.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map cannot be read or written.
    pub(super) fn retain(&mut self, family: AddressFamily, used: &BTreeSet<u32>) -> Result<(), Error> {
        match family {
            AddressFamily::V4 => self.v4.retain(used),
            AddressFamily::V6 => self.v6.retain(used),
        }
    }

    fn lists(&self, family: AddressFamily) -> Result<Lists, Error> {
        match family {
            AddressFamily::V4 => self.v4.lists(),
            AddressFamily::V6 => self.v6.lists(),
        }
    }
}

impl<A: Plain + Into<IpAddr>> Trie<A>
where
    ExemptKey<A>: Plain,
{
    fn open(pins: &Pins, name: &'static str) -> Result<Self, Error> {
        let path = pins.map(name);
        let opened = MapData::from_pin(&path)
            .and_then(Map::from_map_data)
            .and_then(LpmTrie::<MapData, ExemptKey<A>, u32>::try_from);
        let map = opened.map_err(|e| error::failed(format!("open the BPF map {}", path.display()), e))?;
        Ok(Self { name, map })
    }

    fn put(&mut self, list: u32, address: A, prefix: u8) -> Result<(), Error> {
        let key = Key::new(ExemptKey::<A>::LIST_BITS + u32::from(prefix), ExemptKey { list, address });
        let put = self.map.insert(&key, 1, 0);
        put.map_err(|e| error::failed(format!("write to the BPF map {}", self.name), e))
    }

    fn keys(&self) -> Result<Vec<Key<ExemptKey<A>>>, Error> {
        let read: Result<Vec<_>, _> = self.map.keys().collect();
        read.map_err(|e| error::failed(format!("read the BPF map {}", self.name), e))
    }

    fn lists(&self) -> Result<Lists, Error> {
        let mut lists = Lists::new();
        for key in self.keys()? {
            let ExemptKey { list, address } = key.data();
            let prefix = key.prefix_len().saturating_sub(ExemptKey::<A>::LIST_BITS);
            let network = u8::try_from(prefix).ok().and_then(|bits| IpNet::new(address.into(), bits).ok());
            lists.entry(list).or_default().extend(network);
        }
        Ok(lists)
    }

    fn retain(&mut self, used: &BTreeSet<u32>) -> Result<(), Error> {
        for key in self.keys()?.into_iter().filter(|key| !used.contains(&key.data().list)) {
            match self.map.remove(&key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(MapError::SyscallError(e)) if e.io_error.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(error::failed(format!("remove from the BPF map {}", self.name), e)),
            }
        }
        Ok(())
    }
}
