// SPDX-License-Identifier: GPL-2.0-or-later

//! Sets up, inspects and removes the programs of a node.

use cni_kernel::route::{Link, RouteSocket};
use slipway_ebpf_abi::carried::{self, CarriedCounter};

use super::super::fill::{self, Fill};
use super::super::links::{Without, is_ethernet};
use super::super::uplinks::{self, Surroundings};
use super::super::{config, pods};
use super::conntrack;
use super::links::{self, Kind};
use super::store::{self, Carriage, Store};
use crate::{ContainerNetns, Error, Owner};

const FIX: &str = "`slipway node setup` attaches them";

/// The administrator's settings, as far as these programs have some.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Wanted<'a> {
    /// Names of the uplinks; empty: they are found by address and route.
    pub(in super::super) uplinks: &'a [String],
    /// The size of the maps of flows.
    pub(in super::super) flows: u32,
}

/// The programs on this node.
#[derive(Debug, Default)]
pub(in super::super) struct Carrying {
    /// True if this binary's version is loaded, and not another one.
    pub(in super::super) is_current: bool,
    /// Names of the uplinks with the programs.
    pub(in super::super) uplinks: Vec<String>,
    /// The uplinks without.
    pub(in super::super) uplinks_without: Vec<Without>,
    /// Number of other links with the programs: those of pods.
    pub(in super::super) pods: usize,
    /// The counters that are not zero.
    pub(in super::super) counters: Vec<(CarriedCounter, u64)>,
    /// The elements of the maps of flows.
    pub(in super::super) maps: Vec<Fill>,
}

fn socket() -> Result<RouteSocket, Error> {
    RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))
}

fn look(wanted: Wanted<'_>) -> Result<Surroundings, Error> {
    uplinks::look(wanted.uplinks).map_err(|e| Error::kernel("look for uplinks", e))
}

/// Prepares the node for an ADD: sets the programs up if they are missing, or if an uplink has lost its own. If all
/// are in place, this opens three pinned maps, and sends the kernel one request for each uplink.
///
/// # Errors
/// As [`set_up`].
pub(in super::super) fn ready(wanted: Wanted<'_>) -> Result<Store, Error> {
    let store = Store::own();
    if store.is_whole() {
        store.refuse_abroad()?;
        if store.is_set_up()? && are_whole(&store)? {
            return Ok(store);
        }
    }
    set_up(wanted, &[]).map(|(store, _)| store)
}

/// True if all listed uplinks have the programs.
fn are_whole(store: &Store) -> Result<bool, Error> {
    let socket = socket()?;
    for index in store.uplinks()? {
        if !links::has_programs(&socket, index)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Loads the programs, and attaches them to the uplinks, to the links of pods that have another version, and to
/// `pods`, links by index. Returns the uplinks without programs, too.
///
/// # Errors
/// [`Error::NoEbpf`] if this node cannot have the programs, [`Error::Kernel`] if one cannot be loaded, or links
/// cannot be listed.
pub(in super::super) fn set_up(wanted: Wanted<'_>, pods: &[u32]) -> Result<(Store, Vec<Without>), Error> {
    let object = config::programs_of_this_binary()?;
    store::refuse_abroad()?;
    let (store, around, socket) = (Store::own(), look(wanted)?, socket()?);
    conntrack::prepare()?;
    if !store.is_whole() {
        store.load(object, wanted.flows)?;
    }
    let mut without = Vec::new();
    for (index, (name, uplink)) in &around.uplinks {
        let kind = if is_ethernet(uplink) { Kind::Uplink } else { Kind::UplinkL3 };
        match links::attach(&store, name, kind) {
            Ok(()) => store.list_uplink(*index, true)?,
            Err(error) => {
                log::warn!("{name} is left to nftables: {error}");
                without.push(Without { name: name.clone(), why: error.to_string() });
            }
        }
    }
    let former: Vec<u32> =
        store.uplinks()?.into_iter().filter(|index| !around.uplinks.contains_key(index)).collect();
    for index in &former {
        store.list_uplink(*index, false)?;
    }
    for link in socket.links().map_err(|e| Error::kernel("list the links with BPF programs", e))? {
        if former.contains(&link.index) {
            links::detach(&link.name);
        } else if !around.uplinks.contains_key(&link.index)
            && (pods.contains(&link.index) || links::has_programs(&socket, link.index)?)
        {
            links::attach(&store, &link.name, Kind::of_pod(&link)?)?;
        }
    }
    store.remove_others();
    // Last: a set-up that was killed before is begun again by the next ADD.
    store.start()?;
    Ok((store, without))
}

/// Attaches the programs to a container's link. Returns false if its interface is no veth.
///
/// # Errors
/// [`Error::Kernel`] if the interface cannot be found, or the programs cannot be attached.
pub(in super::super) fn attach(store: &Store, netns: &ContainerNetns, ifname: &str) -> Result<bool, Error> {
    let Some((link, _)) = pods::host_end(netns, ifname)? else { return Ok(false) };
    // An ADD attaches twice: for masquerade, and for ports.
    if !links::has_programs(&socket()?, link.index)? {
        conntrack::prepare()?;
        links::attach(store, &link.name, Kind::of_pod(&link)?)?;
    }
    store::next_epoch().map(|()| true)
}

/// The programs of this binary, if they are loaded for this network namespace.
pub(in super::super) fn find() -> Option<Store> {
    Some(Store::own()).filter(|store| store.is_whole() && store.refuse_abroad().is_ok())
}

/// The carried directions of flows.
///
/// # Errors
/// [`Error::Kernel`] if the maps cannot be read.
pub(in super::super) fn directions() -> Result<Vec<Carriage>, Error> {
    Store::own().directions()
}

/// Attaches the programs to the link of a container that runs.
///
/// # Errors
/// [`Error::Kernel`] if they cannot be attached.
pub(in super::super) fn attach_link(store: &Store, link: &Link) -> Result<(), Error> {
    conntrack::prepare()?;
    links::attach(store, &link.name, Kind::of_pod(link)?)?;
    store::next_epoch()
}

/// Detaches the programs from a container's link.
pub(in super::super) fn detach_link(link: &Link) {
    links::detach(&link.name);
}

/// True if a container's link has the programs.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses.
pub(in super::super) fn has_programs(link: &Link) -> Result<bool, Error> {
    links::has_programs(&socket()?, link.index)
}

/// The owners of links with the programs, as the links' aliases name them.
///
/// # Errors
/// [`Error::Kernel`] if links or their programs cannot be listed.
pub(in super::super) fn owners() -> Result<Vec<Owner>, Error> {
    let links = links::with_programs(&socket()?)?;
    Ok(links.into_iter().filter_map(|link| Owner::from_comment(&link.alias)).collect())
}

/// Has packets to a pod pass the queueing discipline of its link's host end, by the index of that.
///
/// # Errors
/// [`Error::Kernel`] if the program cannot be attached.
pub(in super::super) fn withhold_peer(index: u32) -> Result<(), Error> {
    let (store, socket) = (Store::own(), socket()?);
    if !store.is_whole() || !links::has_programs(&socket, index)? {
        return Ok(());
    }
    let link =
        socket.link_by_index(index).map_err(|e| Error::kernel("look for the link of a container", e))?;
    links::attach(&store, &link.name, Kind::LimitedPod)?;
    store::next_epoch()
}

/// Inspects the programs; none if no version is loaded.
///
/// # Errors
/// [`Error::Kernel`] if links or maps cannot be read, [`Error::NoEbpf`] in another network namespace.
pub(in super::super) fn status(wanted: Wanted<'_>) -> Result<Option<Carrying>, Error> {
    if !store::is_there() {
        return Ok(None);
    }
    store::refuse_abroad()?;
    let (store, around, socket) = (Store::own(), look(wanted)?, socket()?);
    let mut found = Carrying { is_current: store.is_whole(), ..Carrying::default() };
    for link in links::with_programs(&socket)? {
        match around.uplinks.get(&link.index) {
            Some((name, _)) => found.uplinks.push(name.clone()),
            None => found.pods += 1,
        }
    }
    found.uplinks.sort();
    for (name, _) in around.uplinks.into_values().filter(|(name, _)| !found.uplinks.contains(name)) {
        found.uplinks_without.push(Without { name, why: format!("it has no BPF programs: {FIX}") });
    }
    let is_there = |name: &&String| {
        found.uplinks.contains(name) || found.uplinks_without.iter().any(|one| one.name == **name)
    };
    let missing: Vec<_> = wanted.uplinks.iter().filter(|name| !is_there(name)).cloned().collect();
    let why = || "there is no such interface".to_owned();
    found.uplinks_without.extend(missing.into_iter().map(|name| Without { name, why: why() }));
    if found.is_current {
        found.counters = store.counters()?;
        found.maps = [carried::CARRIED4, carried::CARRIED6]
            .into_iter()
            .filter_map(|name| {
                fill::of(&store.path(name), name).inspect_err(|error| log::warn!("{error}")).ok()
            })
            .collect();
    }
    Ok(Some(found))
}

/// Detaches the programs from all links, and removes them; true if they were loaded. conntrack has every flow, so none
/// ends; its settings stay.
///
/// # Errors
/// [`Error::Kernel`] if the links cannot be listed, or a pin cannot be removed; [`Error::NoEbpf`] in another network
/// namespace.
pub(in super::super) fn remove() -> Result<bool, Error> {
    if !store::is_there() {
        return Ok(false);
    }
    store::refuse_abroad()?;
    // A killed process may have attached the program at egress alone.
    for link in socket()?.links().map_err(|e| Error::kernel("list the links with BPF programs", e))? {
        links::detach(&link.name);
    }
    store::remove_all().map(|()| true)
}
