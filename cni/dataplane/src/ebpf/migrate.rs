// SPDX-License-Identifier: GPL-2.0-or-later

//! Migrates running containers to the programs and away from them: the part of `crate::migrate` in the maps.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_kernel::netns::Netns;
use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket};
use cni_spec::Attachment;
use slipway_ebpf_abi::{HELD, LEFT, MASQUERADED};

use super::conntrack_export::{self, Handed};
use super::entries::Left;
use super::entries::{self, is_served, single, target, unserved};
use super::node::{self, FlowSource, Settings};
use super::pins::Pins;
use super::pods::{self, Adopted, Adoption, Hold, Pods};
use super::tables::{PodId, RESERVED, Tables};
use super::{attach, carried, config, conntrack_import};
use crate::{ContainerNetns, Error, MasqueradeRequest, PortRequest};

/// Ports or masquerade of an attachment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Thing<'a> {
    /// Published ports.
    Ports(&'a PortRequest),
    /// Masquerade.
    Masquerade(&'a MasqueradeRequest),
}

impl Thing<'_> {
    fn attachment(&self) -> &Attachment {
        match self {
            Self::Ports(request) => &request.attachment,
            Self::Masquerade(request) => &request.attachment,
        }
    }

    fn netns(&self) -> &ContainerNetns {
        match self {
            Self::Ports(request) => &request.netns,
            Self::Masquerade(request) => &request.netns,
        }
    }

    pub(crate) fn addresses(&self) -> Vec<ipnet::IpNet> {
        match self {
            Self::Ports(request) => request.networks.clone(),
            Self::Masquerade(request) => request.addresses.clone(),
        }
    }
}

/// The extent to which the programs serve something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Not in the maps, or left to netfilter.
    No,
    /// In part, or only for earlier flows.
    Partly,
    /// As far as they can.
    Yes,
}

/// A container's link.
#[derive(Debug)]
pub(crate) struct Spot {
    link: Link,
}

/// A container that the programs are to serve.
#[derive(Debug)]
pub(crate) struct Begun {
    /// The held container in the maps of the programs that decide.
    pod: Option<Adopted>,
}

/// The programs of this node.
#[derive(Debug)]
pub(crate) enum Moving {
    /// Those that decide, by their maps.
    Deciding(Box<Deciding>),
    /// Those that carry what netfilter has checked. A container needs its link's programs only, and no flow moves.
    Carrying(carried::Store),
}

impl Moving {
    /// Finds the programs, if this network namespace has any.
    ///
    /// # Errors
    /// [`Error::Kernel`] if maps cannot be opened.
    pub(crate) fn find() -> Result<Option<Self>, Error> {
        match carried::find() {
            Some(store) => Ok(Some(Self::Carrying(store))),
            None => Ok(Deciding::find()?.map(|maps| Self::Deciding(Box::new(maps)))),
        }
    }

    /// Sets up or updates the node's programs.
    ///
    /// # Errors
    /// [`Error::NoEbpf`] or [`Error::Kernel`], as [`node::setup_node`].
    pub(crate) fn set_up(settings: &Settings) -> Result<Self, Error> {
        Ok(match settings.flows {
            FlowSource::Programs => Self::Deciding(Box::new(Deciding::set_up(settings)?)),
            FlowSource::Netfilter => Self::Carrying(node::setup_to_carry(settings)?),
        })
    }

    /// Looks how far the programs serve this.
    ///
    /// # Errors
    /// [`Error::Kernel`] if maps or links cannot be read.
    pub(crate) fn knows(&self, thing: Thing<'_>) -> Result<Known, Error> {
        match self {
            Self::Deciding(maps) => maps.knows(thing),
            Self::Carrying(_) => Ok(match link_of(thing)? {
                Some(link) if carried::has_programs(&link)? => Known::Yes,
                _ => Known::No,
            }),
        }
    }

    /// True if a container is left to nftables.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the maps cannot be read.
    pub(crate) fn leaves(&self, spot: &Spot) -> Result<bool, Error> {
        match self {
            Self::Deciding(maps) => maps.leaves(spot),
            Self::Carrying(_) => Ok(false),
        }
    }

    /// Prepares the programs for a container that another backend serves. Its new flows are left to netfilter until
    /// [`Self::finish`].
    ///
    /// # Errors
    /// [`Error::Kernel`] if a program cannot be attached or a map written. [`Self::give_up`] removes what was
    /// written.
    pub(crate) fn begin(&mut self, spot: &Spot, things: &[Thing<'_>]) -> Result<Begun, Error> {
        match self {
            Self::Deciding(maps) => maps.begin(spot, things).map(|pod| Begun { pod: Some(pod) }),
            Self::Carrying(store) => carried::attach_link(store, &spot.link).map(|()| Begun { pod: None }),
        }
    }

    /// Imports conntrack's flows of these containers. Returns their number.
    ///
    /// # Errors
    /// [`Error::Kernel`] if conntrack cannot be read, or a map cannot be written.
    pub(crate) fn note_earlier(&self, all: &[&Begun]) -> Result<usize, Error> {
        match self {
            Self::Deciding(maps) => {
                let pods: Vec<Adopted> = all.iter().filter_map(|begun| begun.pod.clone()).collect();
                conntrack_import::import(&maps.pins, &pods)
            }
            Self::Carrying(_) => Ok(0),
        }
    }

    /// Has the programs serve a container.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map cannot be written.
    pub(crate) fn finish(&mut self, begun: &Begun) -> Result<(), Error> {
        match (self, &begun.pod) {
            (Self::Deciding(maps), Some(pod)) => pods::release(&mut maps.tables, pod),
            _ => Ok(()),
        }
    }

    /// Takes back what [`Self::begin`] did for a container that was removed concurrently.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a map cannot be read or written.
    pub(crate) fn give_up(&mut self, spot: &Spot, things: &[Thing<'_>]) -> Result<(), Error> {
        match self {
            Self::Deciding(maps) => maps.give_up(spot, things),
            Self::Carrying(_) => {
                carried::detach_link(&spot.link);
                Ok(())
            }
        }
    }

    /// Has netfilter serve containers that the programs have served, with their flows.
    ///
    /// # Errors
    /// [`Error::Kernel`] if conntrack, a map or a link cannot be changed; another call continues.
    pub(crate) fn withdraw(&mut self, things: &[Thing<'_>]) -> Result<Handed, Error> {
        match self {
            Self::Deciding(maps) => maps.withdraw(things),
            Self::Carrying(_) => {
                for thing in things {
                    if let Some(link) = link_of(*thing)? {
                        carried::detach_link(&link);
                    }
                }
                Ok(Handed::default())
            }
        }
    }
}

/// The host's end of the link of a container whose namespace is known.
fn link_of(thing: Thing<'_>) -> Result<Option<Link>, Error> {
    let netns = thing.netns();
    if Netns::open(&netns.path).is_err() {
        return Ok(None);
    }
    Ok(pods::host_end(netns, thing.attachment().ifname())?.map(|(link, _)| link))
}

/// The maps of the programs that decide.
#[derive(Debug)]
pub(crate) struct Deciding {
    pins: Pins,
    tables: Tables,
}

impl Deciding {
    /// Opens the maps, if this network namespace has any.
    fn find() -> Result<Option<Self>, Error> {
        let Some(pins) = config::at_home() else { return Ok(None) };
        // An interrupted set-up has made no maps.
        if !config::is_set_up(&pins) {
            return Ok(None);
        }
        Ok(Some(Self { tables: Tables::open(&pins)?, pins }))
    }

    fn set_up(settings: &Settings) -> Result<Self, Error> {
        let pins = node::setup(settings)?;
        Ok(Self { tables: Tables::open(&pins)?, pins })
    }

    fn knows(&self, thing: Thing<'_>) -> Result<Known, Error> {
        let (mut all, mut any, mut left) = (true, false, false);
        let mut look = |pod: Option<PodId>| -> Result<(), Error> {
            let live = match pod {
                Some(PodId { link, generation }) => {
                    self.tables.pods.get(&link)?.filter(|pod| pod.generation == generation)
                }
                None => None,
            };
            left |= live.is_some_and(|pod| pod.flags & LEFT != 0);
            any |= pod.is_some();
            all &= live.is_some_and(|pod| pod.flags & HELD == 0);
            Ok(())
        };
        match thing {
            Thing::Ports(request) => {
                let served = request.ports.iter().filter(|port| is_served(&port.host));
                for port in served.filter(|port| port.host.len() <= entries::MANY) {
                    for (published, to) in single(port) {
                        let found = self.tables.port(&published)?.filter(|found| found.pod != RESERVED);
                        let own =
                            |found: &super::tables::Target| *found == target(request, port, found.id(), to);
                        look(found.filter(own).map(|found| found.id()))?;
                    }
                }
            }
            Thing::Masquerade(request) => {
                for network in &request.addresses {
                    let found = self.tables.address(network.addr())?;
                    let found = found.filter(|entry| entry.flags & MASQUERADED != 0);
                    look(found.as_ref().map(PodId::from))?;
                }
            }
        }
        Ok(match (any && !left, all) {
            (false, _) => Known::No,
            (true, false) => Known::Partly,
            (true, true) => Known::Yes,
        })
    }

    fn leaves(&self, spot: &Spot) -> Result<bool, Error> {
        Ok(self.tables.pods.get(&spot.link.index)?.is_some_and(|pod| pod.flags & LEFT != 0))
    }

    /// Writes a container to the maps that another backend serves, and holds it. Ports of live containers stay
    /// theirs.
    fn begin(&mut self, spot: &Spot, things: &[Thing<'_>]) -> Result<Adopted, Error> {
        let mut pod = None;
        for thing in things {
            let adoption = Adoption {
                attachment: thing.attachment(),
                link: &spot.link,
                addresses: &thing.addresses(),
                masquerade: match thing {
                    Thing::Masquerade(request) => Some(request),
                    Thing::Ports(_) => None,
                },
                hold: Hold::Yes,
            };
            let adopted = pods::adopt(&self.pins, &mut self.tables, adoption)?;
            let before: &mut Adopted = pod.get_or_insert_with(|| adopted.clone());
            let new = adopted.addresses.iter().filter(|address| !before.addresses.contains(address));
            let new: Vec<IpAddr> = new.copied().collect();
            before.addresses.extend(new);
            if let Thing::Ports(request) = thing {
                self.publish(request, adopted.id)?;
            }
        }
        let nothing = Adopted {
            id: PodId { link: spot.link.index, generation: 0 },
            addresses: Vec::new(),
            is_held: false,
        };
        Ok(pod.unwrap_or(nothing))
    }

    fn publish(&mut self, request: &PortRequest, pod: PodId) -> Result<(), Error> {
        for port in request.ports.iter().filter(|port| is_served(&port.host)) {
            for (published, to) in single(port) {
                let there = self.tables.port(&published)?.map(|found| found.id());
                let alive = match there.filter(|there| *there != pod) {
                    Some(there) => self.tables.is_alive(there)?,
                    None => false,
                };
                if !alive {
                    self.tables.put_port(&published, &target(request, port, pod, to))?;
                }
            }
        }
        Ok(())
    }

    /// Removes the entries of a container that was removed concurrently, and no other one's.
    fn give_up(&mut self, spot: &Spot, things: &[Thing<'_>]) -> Result<(), Error> {
        let pods = self.pods_of(things)?;
        for (link, generation) in pods.iter().filter(|(link, _)| **link == spot.link.index) {
            self.tables.forget_pod(PodId { link: *link, generation: *generation })?;
        }
        self.forget(things, &pods)?;
        // A removed link has no program any more.
        if let Err(error) = attach::detach(&spot.link.name) {
            log::debug!("{error}");
        }
        Ok(())
    }

    fn withdraw(&mut self, things: &[Thing<'_>]) -> Result<Handed, Error> {
        let pods = self.pods_of(things)?;
        let handed = conntrack_export::hand_over(&self.pins, &mut self.tables, &pods)?;
        self.forget(things, &pods)?;
        let failed = |e| Error::kernel("look for the links of containers", e);
        let socket = RouteSocket::open().map_err(failed)?;
        for link in pods.keys() {
            match socket.link_by_index(*link) {
                Ok(link) => drop(attach::detach(&link.name)?),
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(failed(e)),
            }
        }
        Ok(handed)
    }

    /// The pods of these things in the maps.
    fn pods_of(&self, things: &[Thing<'_>]) -> Result<Pods, Error> {
        let mut pods = BTreeMap::new();
        for thing in things {
            for network in thing.addresses() {
                pods.extend(self.tables.address(network.addr())?.map(|entry| (entry.pod, entry.generation)));
            }
        }
        Ok(pods)
    }

    /// Removes addresses of these containers, and reserves their ports of single addresses: another
    /// container's mapping of all addresses must not get their packets.
    fn forget(&mut self, things: &[Thing<'_>], pods: &Pods) -> Result<(), Error> {
        for thing in things {
            if let Thing::Ports(request) = thing {
                entries::withdraw_ports(&mut self.tables, request, pods)?;
            }
            for network in thing.addresses() {
                let entry = self.tables.address(network.addr())?;
                if entry.is_some_and(|entry| pods.get(&entry.pod) == Some(&entry.generation)) {
                    self.tables.remove_address(network.addr())?;
                }
            }
        }
        Ok(())
    }
}

/// Finds the links of containers by their namespace, or by their addresses if it is unknown.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    /// The host ends of veths, by the addresses of the other ends.
    by_address: OnceCell<BTreeMap<IpAddr, Vec<Link>>>,
}

impl Finder {
    /// Finds the link of a container, or the reason why the programs cannot serve it.
    ///
    /// # Errors
    /// [`Error::Kernel`] if links cannot be read.
    pub(crate) fn spot(&self, flows: FlowSource, things: &[Thing<'_>]) -> Result<Result<Spot, Left>, Error> {
        if flows == FlowSource::Netfilter {
            return Ok(self.link(things)?.map(|link| Spot { link }));
        }
        for thing in things {
            if let Thing::Ports(request) = thing
                && let Some(left) = unserved(request)
            {
                return Ok(Err(left));
            }
        }
        let Some(attachment) = things.first().map(Thing::attachment) else { return Ok(Err(Left::Nowhere)) };
        if pods::is_isolated(attachment)? {
            return Ok(Err(Left::Pod));
        }
        match self.link(things)? {
            Ok(link) if pods::is_limited(&link)? => Ok(Err(Left::Pod)),
            found => Ok(found.map(|link| Spot { link })),
        }
    }

    fn link(&self, things: &[Thing<'_>]) -> Result<Result<Link, Left>, Error> {
        let Some(first) = things.first() else { return Ok(Err(Left::Nowhere)) };
        let (attachment, netns) = (first.attachment(), first.netns());
        if Netns::open(&netns.path).is_ok() {
            return Ok(pods::host_end(netns, attachment.ifname())?.map(|(link, _)| link).ok_or(Left::NoVeth));
        }
        Ok(self.by_addresses(things)?.ok_or(Left::Nowhere))
    }

    /// The only veth whose other end has one of the addresses.
    fn by_addresses(&self, things: &[Thing<'_>]) -> Result<Option<Link>, Error> {
        if self.by_address.get().is_none() {
            let read = Self::read().map_err(|e| Error::kernel("look for the links of containers", e))?;
            // It is not set: this is the only thread.
            let _ = self.by_address.set(read);
        }
        let Some(by_address) = self.by_address.get() else { return Ok(None) };
        let networks = things.iter().flat_map(Thing::addresses);
        let mut links: BTreeMap<u32, &Link> = BTreeMap::new();
        for link in networks.filter_map(|network| by_address.get(&network.addr())).flatten() {
            links.insert(link.index, link);
        }
        let mut links = links.into_values();
        Ok(links.next().filter(|_| links.next().is_none()).cloned())
    }

    fn read() -> Result<BTreeMap<IpAddr, Vec<Link>>, RouteError> {
        let socket = RouteSocket::open()?;
        let mut all: BTreeMap<IpAddr, Vec<Link>> = BTreeMap::new();
        for link in socket.links()?.into_iter().filter(|link| link.kind == LinkKind::Veth) {
            for address in socket.peer_addresses(&link)?.into_iter().filter(|address| address.global) {
                all.entry(address.net.addr()).or_default().push(link.clone());
            }
        }
        Ok(all)
    }
}

/// Checks that the programs are set up or can be.
///
/// # Errors
/// [`Error::NoEbpf`] or [`Error::Kernel`] with the obstacle.
pub(crate) fn possible() -> Result<(), Error> {
    match Moving::find()? {
        Some(_) => config::programs_of_this_binary().map(drop),
        None => node::served_in_other_namespace().map_or_else(node::try_out, Err),
    }
}
