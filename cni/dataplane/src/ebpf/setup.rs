// SPDX-License-Identifier: GPL-2.0-or-later

//! Sets up, inspects and removes the programs of a node.

use std::collections::BTreeMap;

use cni_kernel::route::Link;
use slipway_ebpf_abi::{Counter, maps};

use super::fill::Fill;
use super::foreign_filter::{self, ForeignFilter};
use super::links::{self, HostEnd, Kind, UnservedLink, socket};
use super::rules::{self, Extent, HoldingRule};
use super::store::{self, Store};
use super::uplinks::{self, Uplink};
use super::{conntrack, containers, error, file_system, load, object};
use crate::{ContainerNetns, Error};

const FIX: &str = "`slipway node setup` attaches them";

/// The administrator's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Names of the uplinks. If empty, the uplinks are found by addresses and routes.
    pub uplinks: Vec<String>,
    /// The size of the maps of flows, which need two elements for each flow. Used only when the maps are created.
    pub flows: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { uplinks: Vec::new(), flows: maps::CARRIED_SIZE }
    }
}

/// The programs on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// True if any version is loaded.
    pub is_set_up: bool,
    /// True if the loaded version is the one of this binary.
    pub is_current: bool,
    /// Names of the uplinks with the programs.
    pub uplinks: Vec<String>,
    pub uplinks_without: Vec<UnservedLink>,
    /// The filters of other programs that come before ours.
    pub foreign_filters: Vec<ForeignFilter>,
    /// The rules that decide about single packets, so that the flows that match them stay with netfilter.
    pub holding_rules: Vec<HoldingRule>,
    /// Containers for which every packet takes the queue of the link, because something there has to see every
    /// packet.
    pub containers_with_queue: Vec<UnservedLink>,
    /// Number of containers' links with the programs.
    pub containers: usize,
    /// Containers' links that lost their programs because those of this version could not be attached. Only the
    /// set-up can tell.
    pub containers_without: Vec<UnservedLink>,
    /// The counters that are not zero.
    pub counters: Vec<(Counter, u64)>,
    /// The elements of the maps of flows.
    pub maps: Vec<Fill>,
}

fn find_uplinks(settings: &Settings) -> Result<BTreeMap<u32, Uplink>, Error> {
    uplinks::find(&settings.uplinks).map_err(|e| Error::kernel("look for uplinks", e))
}

/// Prepares the node for an ADD by setting the programs up if they are missing, or if an uplink has lost its
/// programs. If everything is in place, this opens three pinned maps and sends the kernel one request for each
/// uplink.
pub(super) fn ready(settings: &Settings) -> Result<Store, Error> {
    let store = Store::own();
    if store.is_whole()? {
        store.refuse_abroad()?;
        if store.is_set_up()? && are_whole(&store)? {
            rules::follow(&store, Extent::Small)?;
            return Ok(store);
        }
    }
    set_up(settings).map(|(store, _)| store)
}

/// Links without programs.
#[derive(Debug, Default)]
pub(super) struct UnservedLinks {
    uplinks: Vec<UnservedLink>,
    containers: Vec<UnservedLink>,
}

impl UnservedLink {
    /// Logs a failure to attach the programs, and records it.
    fn new(name: &str, error: &Error) -> Self {
        log::warn!("{name} is left to nftables: {error}");
        Self { name: name.to_owned(), why: error.to_string() }
    }
}

/// True if all uplinks in the list have the programs.
fn are_whole(store: &Store) -> Result<bool, Error> {
    let socket = socket()?;
    for index in store.uplinks()? {
        if !links::has_programs(&socket, index)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Loads the programs, and attaches them to the uplinks and to the containers' links that have another version. Also
/// returns the links to which they could not be attached.
pub(super) fn set_up(settings: &Settings) -> Result<(Store, UnservedLinks), Error> {
    let object = object::of_this_binary()?;
    store::refuse_abroad()?;
    let (store, uplinks, socket) = (Store::own(), find_uplinks(settings)?, socket()?);
    conntrack::prepare()?;
    if !store.is_whole()? {
        store.load(object, settings.flows)?;
    }
    let mut left = UnservedLinks::default();
    for (index, Uplink { name, is_ethernet }) in &uplinks {
        let kind = if *is_ethernet { Kind::Uplink } else { Kind::UplinkL3 };
        // The uplink is listed first: if the set-up is killed in between, the next ADD finds a listed uplink without
        // programs and repeats the set-up. An uplink that is not listed would learn no flows.
        store.list_uplink(*index, true)?;
        if let Err(error) = links::attach(&store, name, kind) {
            // The first of the two may be attached. Programs of another version would use maps that nobody updates.
            links::detach(name)?;
            // Otherwise every ADD would try again.
            store.list_uplink(*index, false)?;
            left.uplinks.push(UnservedLink::new(name, &error));
        }
    }
    let gone: Vec<u32> = store.uplinks()?.into_iter().filter(|index| !uplinks.contains_key(index)).collect();
    for link in socket.links().map_err(|e| Error::kernel("list the links with BPF programs", e))? {
        if gone.contains(&link.index) {
            links::detach(&link.name)?;
        } else if !uplinks.contains_key(&link.index) && links::has_programs(&socket, link.index)? {
            let attached = Kind::of_pod(&link).and_then(|kind| links::attach(&store, &link.name, kind));
            let attached = attached.and_then(|()| containers::write(&store, &socket, &link));
            if let Err(error) = attached {
                // The link may be gone, or another filter may have our preference.
                links::detach(&link.name)?;
                left.containers.push(UnservedLink::new(&link.name, &error));
            }
        }
    }
    // The uplinks that are gone are listed as long as they have the programs, so that a later set-up does not take them
    // for links of containers.
    for index in &gone {
        store.list_uplink(*index, false)?;
    }
    store.remove_others();
    rules::follow(&store, Extent::Whole)?;
    // The epoch is written last, so that the next ADD repeats a set-up that was killed.
    store.start()?;
    Ok((store, left))
}

/// Loads and attaches the programs. Later calls attach them to new uplinks, or replace another version.
pub fn setup_node(settings: &Settings) -> Result<Status, Error> {
    let (_, left) = set_up(settings)?;
    let mut status = status(settings)?;
    // Only the set-up knows the reasons.
    for one in &mut status.uplinks_without {
        if let Some(known) = left.uplinks.iter().find(|known| known.name == one.name) {
            one.why.clone_from(&known.why);
        }
    }
    status.containers_without = left.containers;
    Ok(status)
}

/// Attaches the programs to a container's link. Returns false if its interface is not a veth.
pub(super) fn attach(store: &Store, netns: &ContainerNetns, ifname: &str) -> Result<bool, Error> {
    let link = match links::host_end(netns, ifname)? {
        HostEnd::Link(link) => link,
        HostEnd::NoVeth => return Ok(false),
        HostEnd::NoInterface(error) => return Err(error),
    };
    // An ADD calls this twice, for the masquerade and for the ports.
    if !has_programs(&link)? {
        return attach_link(store, &link).map(|()| true);
    }
    containers::write(store, &socket()?, &link)?;
    store::next_epoch().map(|()| true)
}

/// Attaches the programs to the host end of a container's link.
pub(super) fn attach_link(store: &Store, link: &Link) -> Result<(), Error> {
    conntrack::prepare()?;
    containers::write(store, &socket()?, link)?;
    links::attach(store, &link.name, Kind::of_pod(link)?)?;
    store::next_epoch()
}

/// The programs of this binary, if they are loaded for this network namespace and this process may use bpf(2).
pub(super) fn find() -> Result<Option<Store>, Error> {
    let store = Store::own();
    if !store.is_whole()? {
        return Ok(None);
    }
    match store.refuse_abroad() {
        Ok(()) => Ok(Some(store)),
        Err(Error::NoEbpf(_)) => Ok(None),
        Err(error) if error::is_forbidden(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if a container's link has the programs.
pub(super) fn has_programs(link: &Link) -> Result<bool, Error> {
    links::has_programs(&socket()?, link.index)
}

/// Makes packets to a container pass the queueing discipline at the host end of its link (`index`), because a rate
/// limit is about to be set there. A failure is logged.
pub fn limit_link(index: u32) {
    let limited = || {
        let (store, socket) = (Store::own(), socket()?);
        if !store.is_whole()? || !links::has_programs(&socket, index)? {
            return Ok(());
        }
        let link =
            socket.link_by_index(index).map_err(|e| Error::kernel("look for the link of a container", e))?;
        links::attach(&store, &link.name, Kind::LimitedPod)?;
        store::next_epoch()
    };
    if let Err(error) = limited() {
        log::warn!("{error}");
    }
}

/// Makes netfilter check every carried flow again, because rules have changed. A failure is only logged, because the
/// flows are checked again soon anyway.
pub(crate) fn rules_changed() {
    if let Err(error) = store::next_epoch() {
        log::warn!("{error}");
    }
}

/// True if this node has pins of the programs, of any version.
///
/// # Errors
/// [`Error::Kernel`] if the BPF file system cannot be read.
pub fn is_there() -> Result<bool, Error> {
    store::is_there()
}

/// The error if the programs serve another network namespace. None if there are no programs.
#[must_use]
pub fn served_in_other_namespace() -> Option<Error> {
    store::refuse_abroad().err()
}

/// Checks that this kernel accepts the programs of this binary and has a mount point for the BPF file system. Nothing
/// stays loaded.
pub fn try_out() -> Result<(), Error> {
    file_system::mountable()?;
    load::try_object(object::of_this_binary()?)
}

/// Reads the state of the programs on this node.
pub fn status(settings: &Settings) -> Result<Status, Error> {
    if !store::is_loaded()? {
        return Ok(Status::default());
    }
    store::refuse_abroad()?;
    let (store, mut uplinks, socket) = (Store::own(), find_uplinks(settings)?, socket()?);
    let mut found = Status { is_set_up: true, is_current: store.is_whole()?, ..Status::default() };
    let is_there = |name: &&String| uplinks.values().any(|uplink| uplink.name == **name);
    for name in settings.uplinks.iter().filter(|name| !is_there(name)) {
        let why = match socket.find_link(name) {
            Ok(Some(link)) if link.is_external => {
                "it is a tunnel in `external` mode, whose remote comes from routes"
            }
            _ => "there is no such interface",
        };
        found.uplinks_without.push(UnservedLink { name: name.clone(), why: why.to_owned() });
    }
    let with_programs = links::with_programs(&socket)?;
    found.holding_rules = rules::holding()?;
    let of_containers = with_programs.iter().filter(|link| !uplinks.contains_key(&link.index));
    found.containers_with_queue = containers::with_queue(&socket, of_containers)?;
    for link in with_programs {
        found.foreign_filters.extend(foreign_filter::at(&socket, &link)?);
        match uplinks.remove(&link.index) {
            Some(uplink) => found.uplinks.push(uplink.name),
            None => found.containers += 1,
        }
    }
    found.uplinks.sort();
    for Uplink { name, .. } in uplinks.into_values() {
        found.uplinks_without.push(UnservedLink { name, why: format!("it has no BPF programs: {FIX}") });
    }
    if found.is_current {
        found.counters = store.counters()?;
        let fill = |name| Fill::of(&store.path(name), name).inspect_err(|error| log::warn!("{error}")).ok();
        found.maps = [maps::CARRIED4, maps::CARRIED6].into_iter().filter_map(fill).collect();
    }
    Ok(found)
}

/// Detaches the programs from all links and removes them. Returns true if there were any. No flow ends, because
/// conntrack has every flow. The sysctls of conntrack stay as they are.
pub fn teardown_node() -> Result<bool, Error> {
    if !is_there()? {
        return Ok(false);
    }
    store::refuse_abroad()?;
    // A process that was killed may have attached only the program at egress.
    for link in socket()?.links().map_err(|e| Error::kernel("list the links with BPF programs", e))? {
        // Without their pins, no later call could tell the programs that rules have changed.
        links::detach(&link.name)?;
    }
    store::remove_all()?;
    Ok(true)
}
