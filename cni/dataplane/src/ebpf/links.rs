// SPDX-License-Identifier: GPL-2.0-or-later

//! The programs at interfaces: at uplinks, and at the host ends of containers' links.
//!
//! A program masquerades a pod's packet only if the map has the packet's uplink with an address. Only the
//! program at that uplink can translate the reply. So the address is written after that program is attached,
//! and removed before it is detached: without an address, netfilter masquerades.

use std::path::Path;

use cni_kernel::route::{Link, RouteSocket};
use slipway_ebpf_abi::{Addr4, Addr6, LEFT, UPLINK_ETHERNET, Uplink, maps};

use super::attach::{self, Use};
use super::pins::Pins;
use super::pods;
use super::tables::{self, PodId, Table, Tables};
use super::uplinks::{self, Surroundings};
use crate::Error;

/// An interface without the program that it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Without {
    /// Its name.
    pub name: String,
    /// The reason, if known.
    pub why: String,
}

const FIX: &str = "`slipway node setup` attaches it or prints why it cannot";

/// True if an uplink's packets begin with an Ethernet header.
pub(super) fn is_ethernet(uplink: &Uplink) -> bool {
    uplink.flags & UPLINK_ETHERNET != 0
}

fn socket() -> Result<RouteSocket, Error> {
    RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))
}

/// Attaches the programs to the uplinks and writes the uplinks to the map; removes former uplinks. Returns
/// the uplinks to which no program could be attached.
///
/// # Errors
/// [`Error::Kernel`] if the map cannot be read or written.
pub(super) fn settle(pins: &Pins, folder: &Path, around: &Surroundings) -> Result<Vec<Without>, Error> {
    let mut table = tables::uplinks(pins)?;
    let mut left = Vec::new();
    for (index, uplink) in table.all()? {
        if !around.uplinks.contains_key(&index) {
            remove_uplink(&mut table, index, uplink)?;
        }
    }
    for (index, (name, uplink)) in &around.uplinks {
        if table.get(index)?.is_none() {
            table.put(*index, without_address(*uplink))?;
        }
        // Without Ethernet, packets begin with the IP header.
        let program =
            if is_ethernet(uplink) { maps::programs::UPLINK_INGRESS } else { maps::programs::UPLINK_L3 };
        match attach::attach(name, &folder.join(program), Use::None) {
            Ok(_) => table.put(*index, *uplink)?,
            Err(error) => {
                log::warn!("{name} is left to nftables: {error}");
                left.push(Without { name: name.clone(), why: error.to_string() });
                remove_uplink(&mut table, *index, *uplink)?;
            }
        }
    }
    Ok(left)
}

fn without_address(uplink: Uplink) -> Uplink {
    Uplink { address4: Addr4::default(), address6: Addr6::default(), ..uplink }
}

/// Removes an uplink. If its program cannot be detached, it stays in the map without an address: a program at
/// an unknown uplink would let in packets whose replies it does not translate.
fn remove_uplink(table: &mut Table<u32, Uplink>, index: u32, uplink: Uplink) -> Result<(), Error> {
    table.put(index, without_address(uplink))?;
    match detach_index(index) {
        Ok(_) => table.remove(&index).map(drop),
        Err(error) => {
            log::warn!("{error}");
            Ok(())
        }
    }
}

/// Stops the programs from masquerading new flows.
///
/// # Errors
/// [`Error::Kernel`] if the map cannot be read or written.
pub(super) fn withhold_addresses(pins: &Pins) -> Result<(), Error> {
    let mut table = tables::uplinks(pins)?;
    table.all()?.into_iter().try_for_each(|(index, uplink)| table.put(index, without_address(uplink)))
}

/// The names of uplinks whose program has maps that are not pinned in this mount namespace: another process
/// has pinned them in its own.
///
/// # Errors
/// [`Error::Kernel`] if interfaces or programs cannot be read.
pub(super) fn served_from_elsewhere(around: &Surroundings) -> Result<Vec<String>, Error> {
    let socket = socket()?;
    let (mut known, mut found) = (None, Vec::new());
    for (index, (name, _)) in &around.uplinks {
        let Some(id) = attach::program_at(&socket, *index)? else { continue };
        let maps = attach::maps_of(id)?;
        let known = known.get_or_insert_with(Pins::map_ids);
        // A program that was detached concurrently has no maps.
        if !maps.is_empty() && maps.iter().all(|map| !known.contains(map)) {
            found.push(name.clone());
        }
    }
    Ok(found)
}

/// Refuses to replace programs at uplinks that have other maps: their containers would be lost, and no other
/// process would find the entries of this one.
///
/// # Errors
/// [`Error::NoEbpf`] with the interfaces.
pub(super) fn refuse_elsewhere(around: &Surroundings) -> Result<(), Error> {
    let found = served_from_elsewhere(around)?;
    let Some(first) = found.first() else { return Ok(()) };
    Err(Error::NoEbpf(format!(
        "programs whose maps are pinned in another mount namespace serve {}: mount the node's BPF file system at \
         /sys/fs/bpf here, too (if those pins are gone, `tc filter del dev {first} ingress pref {}` detaches a program)",
        found.join(", "),
        attach::PRIORITY,
    )))
}

/// True if all uplinks in the map have their program: one request for each.
///
/// # Errors
/// [`Error::Kernel`] if the map or an interface cannot be read.
pub(super) fn are_whole(pins: &Pins) -> Result<bool, Error> {
    let socket = socket()?;
    for (index, _) in tables::uplinks(pins)?.all()? {
        if lacks(&socket, index)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The name of a link without a program of ours; none if it has one, or is gone.
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

/// Checks the programs that a container's flows need: at its link's host end, and at each uplink. A container
/// that is unknown or left to nftables needs none.
///
/// # Errors
/// [`Error::Missing`] with the first interface without its program.
pub(super) fn check(pins: &Pins, link: &Link) -> Result<(), Error> {
    if Tables::open(pins)?.pods.get(&link.index)?.is_none_or(|pod| pod.flags & LEFT != 0) {
        return Ok(());
    }
    let socket = socket()?;
    let uplinks = tables::uplinks(pins)?.all()?;
    for index in [link.index].into_iter().chain(uplinks.into_iter().map(|(index, _)| index)) {
        if let Some(name) = lacks(&socket, index)? {
            return Err(Error::Missing(format!("the BPF program at {name} is missing: {FIX}")));
        }
    }
    Ok(())
}

/// Lists the interfaces without the program that they need. `named` are the administrator's uplinks.
///
/// # Errors
/// [`Error::Kernel`] if the map or an interface cannot be read.
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
            left.push(Without { name, why: format!("its BPF program is gone: {FIX}") });
        }
    }
    for (_, (name, _)) in around.uplinks.into_iter().filter(|(index, _)| !known.contains(index)) {
        left.push(Without { name, why: format!("it has no BPF program: {FIX}") });
    }
    Ok(left)
}

/// Attaches this version's program to the links of containers; removes containers whose link is gone, with
/// their entries.
///
/// # Errors
/// [`Error::Kernel`] if a program cannot be attached, or a map cannot be written.
pub(super) fn renew_containers(pins: &Pins, folder: &Path) -> Result<(), Error> {
    let mut tables = Tables::open(pins)?;
    let socket = socket()?;
    for (index, pod) in tables.pods.all()? {
        match socket.link_by_index(index) {
            Ok(link) => {
                attach::attach(&link.name, &folder.join(maps::programs::POD_INGRESS), Use::Busy)?;
                pods::put_router(&mut tables, &link, pod.generation)?;
            }
            Err(e) if e.is_not_found() => {
                tables.forget_pod(PodId { link: index, generation: pod.generation })?;
            }
            Err(e) => return Err(Error::kernel("look for the link of a container", e)),
        }
    }
    tables.remove_unowned()
}

/// Detaches our program from an interface; true if there was one.
///
/// # Errors
/// [`Error::Kernel`] if the kernel refuses.
pub(super) fn detach_index(index: u32) -> Result<bool, Error> {
    match socket()?.link_by_index(index) {
        Ok(link) => attach::detach(&link.name),
        Err(e) if e.is_not_found() => Ok(false),
        Err(e) => Err(Error::kernel("look for an interface", e)),
    }
}
