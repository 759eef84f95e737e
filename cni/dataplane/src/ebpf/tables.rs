// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF maps, opened by their pins.

use std::fmt;
use std::net::IpAddr;

use aya::Pod as Plain;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use ipnet::IpNet;
use slipway_ebpf_abi::{
    Addr4, Addr6, Config, Counters, Pod, PodAddress, Port, PortKey, PortKey4, PortKey6, PortTarget,
    PortTarget4, PortTarget6, Router, Uplink, maps,
};

use super::error;
use super::exempt::Exempt;
use super::pins::Pins;
use crate::{AddressFamily, Error, HostAddress, Protocol};

/// A BPF hash map, with its name for errors.
pub(super) struct Table<K, V> {
    name: &'static str,
    map: HashMap<MapData, K, V>,
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.name).finish()
    }
}

impl<K: Plain, V: Plain> Table<K, V> {
    /// Opens the map.
    ///
    /// # Errors
    /// [`Error::Kernel`] if it is not pinned, or has another layout.
    pub(super) fn open(pins: &Pins, name: &'static str) -> Result<Self, Error> {
        let path = pins.map(name);
        let opened = MapData::from_pin(&path)
            .and_then(Map::from_map_data)
            .and_then(HashMap::<MapData, K, V>::try_from);
        let map = opened.map_err(|e| error::failed(format!("open the BPF map {}", path.display()), e))?;
        Ok(Self { name, map })
    }

    /// Reads an element.
    pub(super) fn get(&self, key: &K) -> Result<Option<V>, Error> {
        match self.map.get(key, 0) {
            Ok(value) => Ok(Some(value)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(e) => Err(error::failed(format!("read from the BPF map {}", self.name), e)),
        }
    }

    /// Writes an element.
    ///
    /// # Errors
    /// [`Error::Kernel`], with E2BIG if the map is full.
    pub(super) fn put(&mut self, key: K, value: V) -> Result<(), Error> {
        let put = self.map.insert(key, value, 0);
        put.map_err(|e| error::failed(format!("write to the BPF map {}", self.name), e))
    }

    /// Writes an element if there is none, in one step.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub(super) fn put_new(&mut self, key: K, value: V) -> Result<(), Error> {
        /// `BPF_NOEXIST` of linux/bpf.h.
        const ONLY_NEW: u64 = 1;
        match self.map.insert(key, value, ONLY_NEW) {
            Ok(()) => Ok(()),
            Err(MapError::SyscallError(e)) if e.io_error.kind() == std::io::ErrorKind::AlreadyExists => {
                Ok(())
            }
            Err(e) => Err(error::failed(format!("write to the BPF map {}", self.name), e)),
        }
    }

    /// Removes an element; true if there was one.
    pub(super) fn remove(&mut self, key: &K) -> Result<bool, Error> {
        match self.map.remove(key) {
            Ok(()) => Ok(true),
            Err(MapError::KeyNotFound) => Ok(false),
            Err(MapError::SyscallError(e)) if e.io_error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(error::failed(format!("remove from the BPF map {}", self.name), e)),
        }
    }

    /// As [`Self::all`], at most so many: concurrent changes by a program may restart the walk.
    pub(super) fn some(&self, most: usize) -> Result<Vec<(K, V)>, Error> {
        let read: Result<Vec<_>, _> = self.map.iter().take(most).collect();
        read.map_err(|e| error::failed(format!("read the BPF map {}", self.name), e))
    }

    /// Reads all elements, in no order. Concurrently changed ones may be missing or appear twice.
    pub(super) fn all(&self) -> Result<Vec<(K, V)>, Error> {
        let read: Result<Vec<_>, _> = self.map.iter().collect();
        read.map_err(|e| error::failed(format!("read the BPF map {}", self.name), e))
    }

    /// Counts the elements, `most` at most, as [`Self::some`] does.
    pub(super) fn count(&self, most: u32) -> Result<u32, Error> {
        let counted = self.map.keys().take(most as usize).try_fold(0, |count, key| key.map(|_| count + 1));
        counted.map_err(|e| error::failed(format!("read the BPF map {}", self.name), e))
    }

    /// Removes matching elements; re-checks each one under the lock.
    fn remove_where(
        &mut self,
        pins: &Pins,
        is_to_go: impl Fn(&V) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        for (key, value) in self.all()? {
            if !is_to_go(&value)? {
                continue;
            }
            let _lock = pins.lock_or_log();
            if let Some(value) = self.get(&key)?
                && is_to_go(&value)?
            {
                self.remove(&key)?;
            }
        }
        Ok(())
    }
}

/// The treatment of a port's earlier entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Existing {
    Replace,
    Keep,
}

/// The maps of pods and their published ports.
#[derive(Debug)]
pub(super) struct Tables {
    pins: Pins,
    pub(super) pods: Table<u32, Pod>,
    /// None if an earlier version has made the maps: its programs do not read this one.
    routers: Option<Table<u32, Router>>,
    pub(super) addresses4: Table<Addr4, PodAddress>,
    pub(super) addresses6: Table<Addr6, PodAddress>,
    exempt: Option<Exempt>,
    pub(super) ports4: Table<PortKey4, PortTarget4>,
    pub(super) ports6: Table<PortKey6, PortTarget6>,
}

/// A published port as the programs look it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) host: HostAddress,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
}

/// [`Target::pod`] of a port that is reserved: the programs leave it to nftables.
pub(super) const RESERVED: u32 = 0;

/// A pod in the maps. The generation distinguishes it from earlier pods whose link had the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodId {
    /// The index of its link's host end.
    pub(super) link: u32,
    pub(super) generation: u32,
}

impl From<&PodAddress> for PodId {
    fn from(entry: &PodAddress) -> Self {
        Self { link: entry.pod, generation: entry.generation }
    }
}

/// The target of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// The index of the pod's link, or [`RESERVED`].
    pub(super) pod: u32,
    pub(super) generation: u32,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    /// See [`PortTarget::flags`].
    pub(super) flags: u16,
}

impl Target {
    pub(super) fn id(&self) -> PodId {
        PodId { link: self.pod, generation: self.generation }
    }
}

impl<A: Into<IpAddr>> From<PortTarget<A>> for Target {
    fn from(target: PortTarget<A>) -> Self {
        let PortTarget { pod, generation, address, port, flags } = target;
        Self { pod, generation, address: address.into(), port: port.number(), flags }
    }
}

impl Tables {
    /// Opens the maps.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub(super) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            pins: pins.clone(),
            pods: Table::open(pins, maps::PODS)?,
            routers: pins
                .map(maps::ROUTERS)
                .exists()
                .then(|| Table::open(pins, maps::ROUTERS))
                .transpose()?,
            addresses4: Table::open(pins, maps::POD_ADDRESSES4)?,
            addresses6: Table::open(pins, maps::POD_ADDRESSES6)?,
            exempt: Exempt::open(pins)?,
            ports4: Table::open(pins, maps::PORTS4)?,
            ports6: Table::open(pins, maps::PORTS6)?,
        })
    }

    /// Adds or changes the pod of a link, under the lock: without it, a process that reads before another
    /// one's write and writes after it would lose that one's flags.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the lock is not available, or the map cannot be written.
    pub(super) fn change_pod(
        &mut self,
        link: u32,
        change: impl FnOnce(Option<Pod>) -> Option<Pod>,
    ) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        self.write_pod(link, change)
    }

    /// As [`Self::change_pod`], for a change by which the programs serve less: also without the lock.
    pub(super) fn restrict_pod(
        &mut self,
        link: u32,
        change: impl FnOnce(Option<Pod>) -> Option<Pod>,
    ) -> Result<(), Error> {
        let _lock = self.pins.lock_or_log();
        self.write_pod(link, change)
    }

    fn write_pod(&mut self, link: u32, change: impl FnOnce(Option<Pod>) -> Option<Pod>) -> Result<(), Error> {
        let known = self.pods.get(&link)?;
        match change(known) {
            wanted if wanted == known => Ok(()),
            Some(pod) => self.pods.put(link, pod),
            None => self.pods.remove(&link).map(drop),
        }
    }

    /// Removes the pod of a link, unless the link is another pod's now.
    pub(super) fn forget_pod(&mut self, PodId { link, generation }: PodId) -> Result<(), Error> {
        self.restrict_pod(link, |known| known.filter(|pod| pod.generation != generation))?;
        match &mut self.routers {
            // The programs ignore one of another generation.
            Some(routers) if routers.get(&link)?.is_some_and(|router| router.generation == generation) => {
                routers.remove(&link).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Writes the link-layer address of frames that the node forwards for a pod.
    pub(super) fn put_router(&mut self, link: u32, router: Router) -> Result<(), Error> {
        self.routers.as_mut().map_or(Ok(()), |routers| routers.put(link, router))
    }

    /// Reads the entry of a pod's address.
    pub(super) fn address(&self, address: IpAddr) -> Result<Option<PodAddress>, Error> {
        match address {
            IpAddr::V4(address) => self.addresses4.get(&address.into()),
            IpAddr::V6(address) => self.addresses6.get(&address.into()),
        }
    }

    /// Writes the entry of a pod's address.
    pub(super) fn put_address(&mut self, address: IpAddr, value: PodAddress) -> Result<(), Error> {
        match address {
            IpAddr::V4(address) => self.addresses4.put(address.into(), value),
            IpAddr::V6(address) => self.addresses6.put(address.into(), value),
        }
    }

    /// Removes the entry of a pod's address; true if there was one.
    pub(super) fn remove_address(&mut self, address: IpAddr) -> Result<bool, Error> {
        match address {
            IpAddr::V4(address) => self.addresses4.remove(&address.into()),
            IpAddr::V6(address) => self.addresses6.remove(&address.into()),
        }
    }

    /// The number of the list with these networks, which are exempt from masquerade. The caller holds the
    /// lock until the number is in an address.
    pub(super) fn exempt_list(&mut self, family: AddressFamily, networks: &[IpNet]) -> Result<u32, Error> {
        match &mut self.exempt {
            Some(exempt) => exempt.number(family, networks),
            None if networks.is_empty() => Ok(0),
            None => Err(Error::NoEbpf("the loaded programs do not know nonMasqueradeCIDRs".to_owned())),
        }
    }

    /// Reads the networks that are exempt from masquerade of a pod's address.
    pub(super) fn exempt_networks(
        &self,
        family: AddressFamily,
        entry: &PodAddress,
    ) -> Result<Vec<IpNet>, Error> {
        let list = (entry.exempt_list() != 0).then_some(entry.exempt_list());
        match self.exempt.as_ref().zip(list) {
            Some((exempt, list)) => exempt.networks(family, list),
            None => Ok(Vec::new()),
        }
    }

    /// Removes the lists of exempt networks that no address has.
    pub(super) fn remove_unused_lists(&mut self) -> Result<(), Error> {
        let Some(exempt) = &mut self.exempt else { return Ok(()) };
        let _lock = self.pins.lock();
        let used = |all: Vec<PodAddress>| all.iter().map(PodAddress::exempt_list).collect();
        let values4 = self.addresses4.all()?.into_iter().map(|(_, entry)| entry).collect();
        let values6 = self.addresses6.all()?.into_iter().map(|(_, entry)| entry).collect();
        exempt.retain(AddressFamily::V4, &used(values4))?;
        exempt.retain(AddressFamily::V6, &used(values6))
    }

    /// Reads the target of a port.
    pub(super) fn port(&self, port: &Published) -> Result<Option<Target>, Error> {
        Ok(match port.keys() {
            Keys::V4(key) => self.ports4.get(&key)?.map(Target::from),
            Keys::V6(key) => self.ports6.get(&key)?.map(Target::from),
        })
    }

    /// Counts the ports that lead to a pod.
    pub(super) fn ports(&self) -> Result<usize, Error> {
        let v4 = self.ports4.all()?.iter().filter(|(_, target)| target.pod != RESERVED).count();
        let v6 = self.ports6.all()?.iter().filter(|(_, target)| target.pod != RESERVED).count();
        Ok(v4 + v6)
    }

    /// Writes the target of a port. A target of the other address family changes nothing.
    pub(super) fn put_port(&mut self, port: &Published, target: &Target) -> Result<(), Error> {
        self.write_port(port, target, Existing::Replace)
    }

    /// As [`Self::put_port`], unless the port has an entry: a concurrent writer takes precedence.
    pub(super) fn put_new_port(&mut self, port: &Published, target: &Target) -> Result<(), Error> {
        self.write_port(port, target, Existing::Keep)
    }

    fn write_port(&mut self, port: &Published, target: &Target, existing: Existing) -> Result<(), Error> {
        let Target { pod, generation, flags, .. } = *target;
        let to = Port::new(target.port);
        match (port.keys(), target.address) {
            (Keys::V4(key), IpAddr::V4(address)) => {
                let target = PortTarget { pod, generation, address: address.into(), port: to, flags };
                match existing {
                    Existing::Replace => self.ports4.put(key, target),
                    Existing::Keep => self.ports4.put_new(key, target),
                }
            }
            (Keys::V6(key), IpAddr::V6(address)) => {
                let target = PortTarget { pod, generation, address: address.into(), port: to, flags };
                match existing {
                    Existing::Replace => self.ports6.put(key, target),
                    Existing::Keep => self.ports6.put_new(key, target),
                }
            }
            _ => Ok(()),
        }
    }

    /// Removes a port's entry if its target has not changed.
    pub(super) fn remove_port_if(&mut self, port: &Published, target: &Target) -> Result<(), Error> {
        let _lock = self.pins.lock_or_log();
        if self.port(port)?.as_ref() == Some(target) {
            self.remove_port(port)?;
        }
        Ok(())
    }

    /// True if the link's pod has this generation.
    pub(super) fn is_alive(&self, PodId { link, generation }: PodId) -> Result<bool, Error> {
        Ok(self.pods.get(&link)?.is_some_and(|pod| pod.generation == generation))
    }

    /// Removes addresses and ports of unknown pods. Reserved ports stay.
    pub(super) fn remove_unowned(&mut self) -> Result<(), Error> {
        let Self { pins, pods, addresses4, addresses6, ports4, ports6, .. } = self;
        let pins = &*pins;
        addresses4.remove_where(pins, |entry| is_unowned(pods, entry.into()))?;
        addresses6.remove_where(pins, |entry| is_unowned(pods, entry.into()))?;
        ports4.remove_where(pins, |target| {
            is_unowned(pods, PodId { link: target.pod, generation: target.generation })
        })?;
        ports6.remove_where(pins, |target| {
            is_unowned(pods, PodId { link: target.pod, generation: target.generation })
        })
    }

    /// Removes a port's entry; true if there was one.
    pub(super) fn remove_port(&mut self, port: &Published) -> Result<bool, Error> {
        match port.keys() {
            Keys::V4(key) => self.ports4.remove(&key),
            Keys::V6(key) => self.ports6.remove(&key),
        }
    }
}

fn is_unowned(pods: &Table<u32, Pod>, PodId { link, generation }: PodId) -> Result<bool, Error> {
    Ok(link != RESERVED && pods.get(&link)?.is_none_or(|pod| pod.generation != generation))
}

enum Keys {
    V4(PortKey4),
    V6(PortKey6),
}

impl Published {
    fn keys(&self) -> Keys {
        let (port, protocol) = (Port::new(self.port), self.protocol.number());
        let v4 = |address| Keys::V4(PortKey { address, port, protocol, pad: 0 });
        let v6 = |address| Keys::V6(PortKey { address, port, protocol, pad: 0 });
        match self.host {
            HostAddress::Any(crate::AddressFamily::V4) => v4(Addr4::default()),
            HostAddress::Any(crate::AddressFamily::V6) => v6(Addr6::default()),
            HostAddress::One(IpAddr::V4(address)) => v4(address.into()),
            HostAddress::One(IpAddr::V6(address)) => v6(address.into()),
        }
    }
}

/// Opens the map of uplinks.
///
/// # Errors
/// As [`Table::open`].
pub(super) fn uplinks(pins: &Pins) -> Result<Table<u32, Uplink>, Error> {
    Table::open(pins, maps::UPLINKS)
}

/// The node's addresses of one family; the value is always 1.
type Locals<A> = Table<A, u32>;

/// Opens the maps of the node's addresses.
///
/// # Errors
/// As [`Table::open`].
pub(super) fn locals(pins: &Pins) -> Result<(Locals<Addr4>, Locals<Addr6>), Error> {
    Ok((Table::open(pins, maps::LOCALS4)?, Table::open(pins, maps::LOCALS6)?))
}

fn array(pins: &Pins, name: &str) -> Result<Map, Error> {
    let path = pins.map(name);
    MapData::from_pin(&path)
        .and_then(Map::from_map_data)
        .map_err(|e| error::failed(format!("open the BPF map {}", path.display()), e))
}

/// The settings that the programs read.
///
/// # Errors
/// As [`Table::open`].
pub(super) fn config(pins: &Pins) -> Result<Array<MapData, Config>, Error> {
    let map = array(pins, maps::CONFIG)?;
    Array::try_from(map).map_err(|e| error::failed("open the BPF map config", e))
}

/// Reads the programs' counters, summed over the processors.
///
/// # Errors
/// As [`Table::open`].
pub(super) fn counters(pins: &Pins) -> Result<Counters, Error> {
    let map = array(pins, maps::COUNTERS)?;
    let read = PerCpuArray::<_, Counters>::try_from(map).and_then(|map| map.get(&0, 0));
    let each = read.map_err(|e| error::failed("read the BPF map counters", e))?;
    let mut sum = [0; slipway_ebpf_abi::COUNTERS];
    for counters in each.iter() {
        for (total, count) in sum.iter_mut().zip(counters) {
            *total += *count;
        }
    }
    Ok(sum)
}
