// SPDX-License-Identifier: GPL-2.0-or-later

//! The pins of the programs. Each version has a folder: `/sys/fs/bpf/slipway-flows/<version>/<map or program>`.
//!
//! A new version starts with empty maps. Netfilter handles each flow until the programs have learnt it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::Pod as Plain;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use cni_kernel::lock::FileLock;
use cni_kernel::netns::own_cookie;
use nix::time::{ClockId, clock_gettime};
use slipway_ebpf_abi::maps::{self, PENDING_CPUS, PENDING_EACH, programs};
use slipway_ebpf_abi::{Addr4, Addr6, COUNTERS, Container, Counter, Entry, FlowKey, KEYS, Port};

use super::{error, file_system, load, object};
use crate::{EbpfLack, Error};

const FOLDER: &str = "/sys/fs/bpf/slipway-flows";
/// How often loading is attempted, because concurrent first ADDs pin the same maps.
const ATTEMPTS: usize = 8;
/// How long to wait for another process that is drawing the keys of the hash.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// The program that is pinned last, so that its pin marks a version as complete.
const LAST: &str = programs::EGRESS_L3;

/// One direction of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CarriedFlow {
    /// IP protocol number.
    pub(super) protocol: u8,
    /// Source and destination with which its packets arrive.
    pub(super) before: (SocketAddr, SocketAddr),
    /// Source and destination after translation.
    pub(super) after: (SocketAddr, SocketAddr),
    pub(super) packets: u64,
    /// The bytes of these packets, from the link-layer header on.
    pub(super) bytes: u64,
}

impl CarriedFlow {
    fn new<A: Copy + Into<IpAddr>>(key: &FlowKey<A>, entry: &Entry<A>) -> Self {
        let at = |address: A, port: Port| SocketAddr::new(address.into(), port.number());
        let way = &entry.way;
        Self {
            // Cannot fail, because the map contains only TCP and UDP.
            protocol: u8::try_from(key.protocol).unwrap_or_default(),
            before: (at(key.source, key.source_port), at(key.destination, key.destination_port)),
            after: (at(way.source, way.source_port), at(way.destination, way.destination_port)),
            packets: entry.packets,
            bytes: entry.bytes,
        }
    }
}

/// Seconds since the boot.
fn uptime() -> Result<u64, Error> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_err(|e| Error::kernel("read the clock", e))?;
    Ok(now.tv_sec().try_into().unwrap_or_default())
}

/// The result of looking for pins. None if there are none, because nothing is at the path, or if this process may not
/// see them. After any other error, there may be some.
fn if_there<T>(result: io::Result<T>, path: &Path) -> Result<Option<T>, Error> {
    const NONE: [ErrorKind; 3] = [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::PermissionDenied];
    match result {
        Err(e) if NONE.contains(&e.kind()) => Ok(None),
        other => other.map(Some).map_err(|e| Error::kernel(format!("look for {}", path.display()), e)),
    }
}

/// The pins of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    /// The pins of the version that this binary carries.
    pub(super) fn own() -> Self {
        Self { folder: Path::new(FOLDER).join(object::version()) }
    }

    /// All versions below a folder.
    fn all(folder: &Path) -> Result<Vec<Self>, Error> {
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = if_there(entries, folder)?.unwrap_or_default();
        Ok(entries.into_iter().map(|entry| Self { folder: entry.path() }).collect())
    }

    /// The versions on this node that have this pin.
    fn with(name: &str) -> Result<Vec<Self>, Error> {
        let mut found = Vec::new();
        for store in Self::all(Path::new(FOLDER))? {
            if store.has(name)? {
                found.push(store);
            }
        }
        Ok(found)
    }

    /// True if there is such a pin.
    fn has(&self, name: &str) -> Result<bool, Error> {
        let path = self.path(name);
        Ok(if_there(path.metadata(), &path)?.is_some())
    }

    /// True if this version is loaded completely.
    pub(super) fn is_whole(&self) -> Result<bool, Error> {
        self.has(LAST)
    }

    /// The path of a pin.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Loads and pins whatever is missing. `flows` is the size of the maps of flows.
    pub(super) fn load(&self, object: &[u8], flows: u32) -> Result<(), Error> {
        file_system::make(&self.folder)?;
        let mut loader = load::loader();
        for name in maps::ALL {
            loader.map_pin_path(name, self.path(name));
        }
        for name in [maps::CARRIED4, maps::CARRIED6] {
            loader.map_max_entries(name, flows);
        }
        // Enough records for the processors of this machine, because the BPF programs number them modulo
        // `PENDING_CPUS`.
        let processors = aya::util::nr_cpus().ok().and_then(|count| u32::try_from(count).ok());
        let processors = processors.map_or(PENDING_CPUS, |count| count.min(PENDING_CPUS));
        for name in [maps::PENDING4, maps::PENDING6] {
            loader.map_max_entries(name, PENDING_EACH * processors);
        }
        let mut attempt = 0;
        let mut ebpf = loop {
            attempt += 1;
            match loader.load(object) {
                Ok(ebpf) => break ebpf,
                Err(e) if attempt < ATTEMPTS && load::is_in_the_way(&e) => {}
                Err(e) => return Err(Error::kernel("load the BPF programs", load::refused(&e))),
            }
        };
        self.write_home()?;
        self.write_hash_keys()?;
        for name in programs::ALL {
            let program = ebpf.program_mut(name).ok_or(EbpfLack::Program(name))?;
            load::load_one(program)
                .map_err(|e| Error::kernel(format!("load the BPF program {name}"), load::explain(&e)))?;
            match program.pin(self.path(name)) {
                Ok(()) => {}
                Err(e) if load::pin_exists(&e) => {}
                Err(e) => return Err(error::failed(format!("pin the BPF program {name}"), e)),
            }
        }
        Ok(())
    }

    fn map(&self, name: &str) -> Result<Map, Error> {
        let path = self.path(name);
        MapData::from_pin(&path)
            .and_then(Map::from_map_data)
            .map_err(|e| error::failed(format!("open the BPF map {}", path.display()), e))
    }

    fn array<V: Plain>(&self, name: &str) -> Result<Array<MapData, V>, Error> {
        Array::try_from(self.map(name)?).map_err(|e| error::failed(format!("open the BPF map {name}"), e))
    }

    fn write_home(&self) -> Result<(), Error> {
        let failed = |e: MapError| error::failed("write the network namespace's cookie", e);
        self.array::<u64>(maps::HOME)?.set(0, here()?, 0).map_err(failed)
    }

    /// Draws the keys of the hash, unless another process has already done so. Two different sets of keys would make
    /// the programs count the TCP entries in other slots and miss the existing ones, so processes that set up
    /// concurrently take turns.
    fn write_hash_keys(&self) -> Result<(), Error> {
        const WHAT: &str = "write the keys of the BPF programs' hash";
        let failed = |e: MapError| error::failed(WHAT, e);
        let folder = File::open(&self.folder).map_err(|e| error::failed(WHAT, e))?;
        let _lock = FileLock::on(&folder, &self.folder, LOCK_PATIENCE).map_err(|e| error::failed(WHAT, e))?;
        let mut map = self.array::<[u64; KEYS]>(maps::HASH_KEYS)?;
        if map.get(&0, 0).map_err(failed)? != [0; KEYS] {
            return Ok(());
        }
        // The keys are hashes of small numbers, made with a key that the operating system has drawn.
        let state = RandomState::new();
        map.set(0, std::array::from_fn(|index| state.hash_one(index)), 0).map_err(failed)
    }

    /// Records the container at a link. Returns false if the record is already the same.
    pub(super) fn write_container(&self, link: u32, container: Container) -> Result<bool, Error> {
        let failed = |e: MapError| error::failed("write the address of a container's interface", e);
        let name = maps::CONTAINERS;
        let mut map = HashMap::<_, u32, Container>::try_from(self.map(name)?).map_err(failed)?;
        if map.get(&link, 0).is_ok_and(|known| known == container) {
            return Ok(false);
        }
        map.insert(link, container, 0).map_err(failed)?;
        Ok(true)
    }

    /// Records which flows stay with netfilter. Returns false if the record is already the same.
    pub(super) fn write_held(&self, flows: u32, ports: &BTreeSet<u32>) -> Result<bool, Error> {
        let failed = |e: MapError| error::failed("write the flows that stay with netfilter", e);
        let name = maps::PORTS;
        let mut map = HashMap::<_, u32, u32>::try_from(self.map(name)?).map_err(failed)?;
        let known: BTreeSet<u32> = map.keys().filter_map(Result::ok).collect();
        for port in ports.difference(&known) {
            map.insert(port, 1, 0).map_err(failed)?;
        }
        for port in known.difference(ports) {
            // Another process may have removed it already.
            let _ = map.remove(port);
        }
        let bits = flows | if ports.is_empty() { 0 } else { maps::HELD_PORTS };
        let mut array = self.array::<u32>(maps::EPOCH)?;
        let is_known = known == *ports && array.get(&maps::HELD_AT, 0).map_err(failed)? == bits;
        array.set(maps::HELD_AT, bits, 0).map_err(failed)?;
        Ok(!is_known)
    }

    /// The ruleset's generation that was read last.
    pub(super) fn generation_read(&self) -> Result<u32, Error> {
        self.rules_read(maps::GENERATION_AT).map(|generation| u32::try_from(generation).unwrap_or_default())
    }

    pub(super) fn write_generation_read(&self, generation: u32) -> Result<(), Error> {
        self.write_rules_read(maps::GENERATION_AT, generation.into())
    }

    /// True if slipwayd has read the rules within the last `seconds`.
    pub(super) fn is_followed(&self, seconds: u64) -> Result<bool, Error> {
        let last = self.rules_read(maps::FOLLOWED_AT)?;
        Ok(last != 0 && uptime()?.saturating_sub(last) <= seconds)
    }

    pub(super) fn write_followed(&self) -> Result<(), Error> {
        self.write_rules_read(maps::FOLLOWED_AT, uptime()?.max(1))
    }

    fn rules_read(&self, at: u32) -> Result<u64, Error> {
        let read = self.array::<u64>(maps::RULES_READ)?.get(&at, 0);
        read.map_err(|e| error::failed("read when the rules were read", e))
    }

    fn write_rules_read(&self, at: u32, value: u64) -> Result<(), Error> {
        let written = self.array::<u64>(maps::RULES_READ)?.set(at, value, 0);
        written.map_err(|e| error::failed("write when the rules were read", e))
    }

    /// Refuses to work in another network namespace, because the maps identify links by their index.
    pub(super) fn refuse_abroad(&self) -> Result<(), Error> {
        let home = self.array::<u64>(maps::HOME)?.get(&0, 0);
        let home = home.map_err(|e| error::failed("read the network namespace's cookie", e))?;
        let here = here()?;
        if here == 0 || home == 0 || here == home {
            return Ok(());
        }
        Err(EbpfLack::OtherNamespace { folder: FOLDER }.into())
    }

    /// The indices of the uplinks with programs.
    pub(super) fn uplinks(&self) -> Result<Vec<u32>, Error> {
        let failed = |e: MapError| error::failed("read the uplinks with BPF programs", e);
        self.uplink_map()?.keys().collect::<Result<_, _>>().map_err(failed)
    }

    fn uplink_map(&self) -> Result<HashMap<MapData, u32, u32>, Error> {
        let name = maps::UPLINKS;
        HashMap::try_from(self.map(name)?).map_err(|e| error::failed(format!("open the BPF map {name}"), e))
    }

    /// Adds an uplink to the list, or removes it from the list.
    pub(super) fn list_uplink(&self, index: u32, is_uplink: bool) -> Result<(), Error> {
        let mut map = self.uplink_map()?;
        let result = if is_uplink { map.insert(index, 1, 0) } else { map.remove(&index) };
        match result {
            Ok(()) => Ok(()),
            // The uplink was not listed.
            Err(MapError::SyscallError(e)) if e.io_error.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(error::failed("write the uplinks with BPF programs", e)),
        }
    }

    /// The counters that are not zero.
    pub(super) fn counters(&self) -> Result<Vec<(Counter, u64)>, Error> {
        let failed = |e: MapError| error::failed("read the BPF programs' counters", e);
        let map = PerCpuArray::<_, [u64; COUNTERS]>::try_from(self.map(maps::COUNTS)?);
        let each = map.map_err(failed)?.get(&0, 0).map_err(failed)?;
        let sum = |counter: Counter| {
            each.iter()
                .filter_map(|counts| counts.get(counter as usize))
                .fold(0, |a: u64, b| a.wrapping_add(*b))
        };
        Ok(Counter::ALL.map(|one| (one, sum(one))).into_iter().filter(|(_, sum)| *sum != 0).collect())
    }

    /// The flow directions of one family that are carried.
    fn directions_of<A: Copy + Into<IpAddr>>(&self, name: &str) -> Result<Vec<CarriedFlow>, Error>
    where
        FlowKey<A>: Plain,
        Entry<A>: Plain,
    {
        let failed = |e: MapError| error::failed(format!("read the BPF map {name}"), e);
        let map = HashMap::<_, FlowKey<A>, Entry<A>>::try_from(self.map(name)?).map_err(failed)?;
        // An element may be evicted while the map is read.
        Ok(map.iter().filter_map(Result::ok).map(|(key, entry)| CarriedFlow::new(&key, &entry)).collect())
    }

    pub(super) fn directions(&self) -> Result<Vec<CarriedFlow>, Error> {
        let mut all = self.directions_of::<Addr4>(maps::CARRIED4)?;
        all.extend(self.directions_of::<Addr6>(maps::CARRIED6)?);
        Ok(all)
    }

    fn epoch(&self) -> Result<u32, Error> {
        let failed = |e: MapError| error::failed("read the epoch", e);
        self.array::<u32>(maps::EPOCH)?.get(&maps::EPOCH_AT, 0).map_err(failed)
    }

    /// True if the set-up is complete. Until then, the BPF programs carry nothing.
    pub(super) fn is_set_up(&self) -> Result<bool, Error> {
        Ok(self.epoch()? != 0)
    }

    /// Makes the BPF programs start carrying, or makes netfilter check every flow again.
    pub(super) fn start(&self) -> Result<(), Error> {
        let failed = |e: MapError| error::failed("write the epoch", e);
        // The epoch is a random number. If concurrent processes counted up instead, the last one could write a number
        // that was used before.
        let bytes = RandomState::new().build_hasher().finish().to_ne_bytes();
        let next = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).max(1);
        self.array::<u32>(maps::EPOCH)?.set(maps::EPOCH_AT, next, 0).map_err(failed)
    }

    /// Makes netfilter check every flow again, if any flows are carried.
    pub(super) fn next_epoch(&self) -> Result<(), Error> {
        if self.is_set_up()? { self.start() } else { Ok(()) }
    }

    /// Removes the pins of other versions. Their programs stay loaded, as long as they are attached, until they are
    /// replaced.
    pub(super) fn remove_others(&self) {
        let all = Self::all(Path::new(FOLDER)).inspect_err(|error| log::warn!("{error}")).unwrap_or_default();
        for other in all.into_iter().filter(|other| other != self) {
            if let Err(e) = fs::remove_dir_all(&other.folder) {
                log::warn!("remove {}: {e}", other.folder.display());
            }
        }
    }
}

/// The cookie of this network namespace, or 0 if the kernel has no cookies. A namespace whose cookie is only unknown
/// must not get 0, which would pass for every namespace.
fn here() -> Result<u64, Error> {
    let cookie = own_cookie().map_err(|e| Error::kernel("read the network namespace's cookie", e))?;
    Ok(cookie.unwrap_or_default())
}

/// True if any version is loaded.
pub(super) fn is_loaded() -> Result<bool, Error> {
    Store::with(LAST).map(|found| !found.is_empty())
}

/// True if there are pins of any version. A set-up that failed or was killed may have left some of them.
pub(super) fn is_there() -> Result<bool, Error> {
    let folder = Path::new(FOLDER);
    Ok(if_there(folder.metadata(), folder)?.is_some_and(|found| found.is_dir()))
}

/// Refuses to work in another network namespace than that of the programs.
pub(super) fn refuse_abroad() -> Result<(), Error> {
    // A version without this pin serves nothing.
    Store::with(maps::HOME)?.iter().try_for_each(Store::refuse_abroad)
}

/// Makes netfilter check every flow again. Does nothing on a node without the programs.
pub(super) fn next_epoch() -> Result<(), Error> {
    Store::with(maps::EPOCH)?.iter().try_for_each(Store::next_epoch)
}

/// Removes the pins of all versions.
pub(super) fn remove_all() -> Result<(), Error> {
    match fs::remove_dir_all(FOLDER) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::kernel(format!("remove {FOLDER}"), e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_not_taken_for_missing() {
        let temp = tempfile::tempdir().unwrap();
        let here = |name: &str| temp.path().join(name);
        fs::create_dir_all(here("folder/0.1")).unwrap();
        fs::write(here("folder/0.1").join(LAST), "").unwrap();
        std::os::unix::fs::symlink(here("loop"), here("loop")).unwrap();
        let found = Store::all(&here("folder")).unwrap();
        assert_eq!(found, [Store { folder: here("folder/0.1") }]);
        assert!(found[0].is_whole().unwrap() && !found[0].has(maps::HOME).unwrap());
        // Nothing is there, or a file where a folder should be.
        for folder in [here("none"), here("folder/0.1").join(LAST)] {
            assert!(Store::all(&folder).unwrap().is_empty());
            assert!(!Store { folder }.is_whole().unwrap());
        }
        assert!(Store::all(&here("loop")).is_err());
        assert!(Store { folder: here("loop") }.is_whole().is_err());
    }
}
