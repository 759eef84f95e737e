//! The programs' places: uplinks, and the host's ends of containers' links.
//!
//! A pod's packet is masqueraded by a program only if the uplink that it leaves by is known with an address, and then
//! nobody but the program at that uplink can undo it. So the address is told when the program is there, and taken back
//! before it goes: without, netfilter has the conversations.

use std::path::Path;

use cni_kernel::route::{Link, RouteSocket};
use slipway_ebpf_abi::{Addr4, Addr6, LEFT, UPLINK_ETHERNET, Uplink, maps};

use super::attach::{self, Use};
use super::pins::Pins;
use super::pods;
use super::tables::{self, Table, Tables};
use super::uplinks::{self, Surroundings};
use crate::Error;

/// An interface that has to have a program and has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Without {
    /// Its name.
    pub name: String,
    /// Why, as far as that can be told.
    pub why: String,
}

const MEND: &str = "`slipway node setup` attaches it, or says why not";

/// Whether its packets begin with an Ethernet header.
pub(super) fn is_ethernet(uplink: &Uplink) -> bool {
    uplink.flags & UPLINK_ETHERNET != 0
}

fn socket() -> Result<RouteSocket, Error> {
    RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))
}

/// Gives the uplinks their program and tells the programs of them; lets go of those that are none any more. Returns
/// those that could not be given one.
///
/// # Errors
/// The maps cannot be read or written.
pub(super) fn settle(pins: &Pins, folder: &Path, around: &Surroundings) -> Result<Vec<Without>, Error> {
    let mut table = tables::uplinks(pins)?;
    let mut left = Vec::new();
    for (index, uplink) in table.all()? {
        if !around.uplinks.contains_key(&index) {
            let_go(&mut table, index, uplink)?;
        }
    }
    for (index, (name, uplink)) in &around.uplinks {
        if table.get(index)?.is_none() {
            table.put(*index, without_address(*uplink))?;
        }
        // Or else its packets begin with the IP header.
        let program =
            if is_ethernet(uplink) { maps::programs::UPLINK_INGRESS } else { maps::programs::UPLINK_L3 };
        match attach::attach(name, &folder.join(program), Use::None) {
            Ok(_) => table.put(*index, *uplink)?,
            Err(error) => {
                log::warn!("{name} is left to nftables: {error}");
                left.push(Without { name: name.clone(), why: error.to_string() });
                let_go(&mut table, *index, *uplink)?;
            }
        }
    }
    Ok(left)
}

fn without_address(uplink: Uplink) -> Uplink {
    Uplink { address4: Addr4::default(), address6: Addr6::default(), ..uplink }
}

/// Has the programs forget an uplink. It stays known without an address where its program does not go: with a program
/// and unknown, it would let in what gets no answer.
fn let_go(table: &mut Table<u32, Uplink>, index: u32, uplink: Uplink) -> Result<(), Error> {
    table.put(index, without_address(uplink))?;
    match detach_index(index) {
        Ok(_) => table.remove(&index).map(drop),
        Err(error) => {
            log::warn!("{error}");
            Ok(())
        }
    }
}

/// Has the programs masquerade nothing that begins from now on.
///
/// # Errors
/// The map cannot be read or written.
pub(super) fn withhold_addresses(pins: &Pins) -> Result<(), Error> {
    let mut table = tables::uplinks(pins)?;
    table.all()?.into_iter().try_for_each(|(index, uplink)| table.put(index, without_address(uplink)))
}

/// The names of uplinks whose program works with maps that are not pinned where this process looks: another one has
/// pinned them in its mount namespace.
///
/// # Errors
/// The kernel cannot be asked.
pub(super) fn served_from_elsewhere(around: &Surroundings) -> Result<Vec<String>, Error> {
    let socket = socket()?;
    let (mut known, mut found) = (None, Vec::new());
    for (index, (name, _)) in &around.uplinks {
        let Some(id) = attach::program_at(&socket, *index)? else { continue };
        let maps = attach::maps_of(id)?;
        let known = known.get_or_insert_with(Pins::map_ids);
        // One that is gone meanwhile has none.
        if !maps.is_empty() && maps.iter().all(|map| !known.contains(map)) {
            found.push(name.clone());
        }
    }
    Ok(found)
}

/// Refuses to take uplinks over from programs that work with other maps: what those know of containers would be lost,
/// and what this process tells its own maps nobody else would find.
///
/// # Errors
/// [`Error::NoEbpf`] with the interfaces, or the kernel cannot be asked.
pub(super) fn refuse_elsewhere(around: &Surroundings) -> Result<(), Error> {
    let found = served_from_elsewhere(around)?;
    let Some(first) = found.first() else { return Ok(()) };
    Err(Error::NoEbpf(format!(
        "programs whose maps are pinned in another mount namespace serve {}: the node's BPF file system has to be at \
         /sys/fs/bpf here, too (if those pins are gone, `tc filter del dev {first} ingress pref {}` lets go of one)",
        found.join(", "),
        attach::PRIORITY,
    )))
}

/// Whether all uplinks that the programs know have theirs: one question for each.
///
/// # Errors
/// The map cannot be read, or the kernel not be asked.
pub(super) fn are_whole(pins: &Pins) -> Result<bool, Error> {
    let socket = socket()?;
    for (index, _) in tables::uplinks(pins)?.all()? {
        if lacks(&socket, index)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The name of a link that has no program of ours; none if it has, or is not there.
fn lacks(socket: &RouteSocket, index: u32) -> Result<Option<String>, Error> {
    if attach::program_at(socket, index)?.is_some() {
        return Ok(None);
    }
    match socket.link_by_index(index) {
        Ok(link) => Ok(Some(link.name)),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(Error::kernel("look for an interface", e)),
    }
}

/// Looks for the programs that a container's conversations need: at the host's end of its links, and at each uplink. A
/// container that is unknown, or left to nftables, needs none.
///
/// # Errors
/// [`Error::Missing`] with the first that lacks its program.
pub(super) fn check(pins: &Pins, link: &Link) -> Result<(), Error> {
    if Tables::open(pins)?.pods.get(&link.index)?.is_none_or(|pod| pod.flags & LEFT != 0) {
        return Ok(());
    }
    let socket = socket()?;
    let uplinks = tables::uplinks(pins)?.all()?;
    for index in [link.index].into_iter().chain(uplinks.into_iter().map(|(index, _)| index)) {
        if let Some(name) = lacks(&socket, index)? {
            return Err(Error::Missing(format!("the BPF program at {name} is missing: {MEND}")));
        }
    }
    Ok(())
}

/// The interfaces that have to have a program and have none. `named` is what an administrator has set.
///
/// # Errors
/// The map cannot be read, or the kernel not be asked.
pub(super) fn without(pins: &Pins, named: &[String]) -> Result<Vec<Without>, Error> {
    let around = uplinks::look(named).map_err(|e| Error::kernel("look for uplinks", e))?;
    let (table, socket) = (tables::uplinks(pins)?, socket()?);
    let mut left = Vec::new();
    let is_there = |name: &&String| around.uplinks.values().any(|(there, _)| there == *name);
    for name in named.iter().filter(|name| !is_there(name)) {
        left.push(Without { name: name.clone(), why: "there is no such interface".to_owned() });
    }
    let known: Vec<u32> = table.all()?.into_iter().map(|(index, _)| index).collect();
    for index in &known {
        if let Some(name) = lacks(&socket, *index)? {
            left.push(Without { name, why: format!("its BPF program is gone: {MEND}") });
        }
    }
    for (_, (name, _)) in around.uplinks.into_iter().filter(|(index, _)| !known.contains(index)) {
        left.push(Without { name, why: format!("it has no BPF program: {MEND}") });
    }
    Ok(left)
}

/// Gives the links of containers this version's program; forgets containers whose link is gone, with all that is theirs.
///
/// # Errors
/// A program that cannot be attached, or the maps.
pub(super) fn renew_containers(pins: &Pins, folder: &Path) -> Result<(), Error> {
    let mut tables = Tables::open(pins)?;
    let socket = socket()?;
    for (index, pod) in tables.pods.all()? {
        match socket.link_by_index(index) {
            Ok(link) => {
                attach::attach(&link.name, &folder.join(maps::programs::POD_INGRESS), Use::Busy)?;
                pods::tell_router(&mut tables, &link, pod.generation)?;
            }
            Err(e) if e.is_not_found() => tables.forget_pod(index, pod.generation)?,
            Err(e) => return Err(Error::kernel("look for the link of a container", e)),
        }
    }
    tables.remove_unowned()
}

/// Takes our program from an interface, by its number; says whether there was one.
///
/// # Errors
/// The kernel's own.
pub(super) fn detach_index(index: u32) -> Result<bool, Error> {
    match socket()?.link_by_index(index) {
        Ok(link) => attach::detach(&link.name),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(Error::kernel("look for an interface", e)),
    }
}
