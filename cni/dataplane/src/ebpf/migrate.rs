// SPDX-License-Identifier: GPL-2.0-or-later

//! Moves running containers to the BPF programs and back: the part of `crate::migrate` that concerns their links.
//!
//! No flow has to be moved, because conntrack keeps every flow.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::IpAddr;

use cni_kernel::netns::Netns;
use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket};

use super::links::HostEnd;
use super::setup::{self, Settings};
use super::store::Store;
use super::{links, object};
use crate::{Error, Request};

/// Why a container's link does not get the programs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("its interface is not a veth")]
    NoVeth,
    /// The container has no such interface. Or its network namespace is unknown, and its addresses match no link or
    /// several.
    #[error("its interface cannot be found")]
    NotFound,
    #[error(transparent)]
    Dataplane(#[from] Error),
}

/// The programs of this node.
#[derive(Debug)]
pub(crate) struct Programs {
    store: Store,
    finder: LinkFinder,
}

impl Programs {
    /// Finds the programs, if this network namespace has any.
    ///
    /// # Errors
    /// [`Error::Kernel`] if they cannot be looked for.
    pub(crate) fn find() -> Result<Option<Self>, Error> {
        Ok(setup::find()?.map(Self::new))
    }

    /// Sets up or updates the node's programs.
    pub(crate) fn set_up(settings: &Settings) -> Result<Self, Error> {
        setup::set_up(settings).map(|(store, _)| Self::new(store))
    }

    fn new(store: Store) -> Self {
        Self { store, finder: LinkFinder::default() }
    }

    /// Finds the link of a container like [`LinkFinder::link`].
    pub(crate) fn link(&self, requests: &[&Request]) -> Result<Link, LinkError> {
        self.finder.link(requests)
    }

    /// True if the container's link has the programs.
    pub(crate) fn serve(&self, request: &Request) -> Result<bool, Error> {
        match self.link(&[request]) {
            Ok(link) => setup::has_programs(&link),
            Err(LinkError::NoVeth | LinkError::NotFound) => Ok(false),
            Err(LinkError::Dataplane(error)) => Err(error),
        }
    }

    /// Attaches the BPF programs to a container's link.
    pub(crate) fn attach(&self, link: &Link) -> Result<(), Error> {
        setup::attach_link(&self.store, link)
    }

    /// Undoes [`Self::attach`] for a container that was removed concurrently.
    pub(crate) fn detach(&self, link: &Link) -> Result<(), Error> {
        links::detach(&link.name)
    }

    /// Detaches the BPF programs from containers' links, so that only netfilter serves these containers.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a link cannot be read or keeps the programs. Another call continues where this one ended.
    pub(crate) fn withdraw(&self, requests: &[&Request]) -> Result<(), Error> {
        for request in requests {
            match self.link(&[*request]) {
                Ok(link) => links::detach(&link.name)?,
                Err(LinkError::NoVeth | LinkError::NotFound) => {}
                Err(LinkError::Dataplane(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Finds the links of containers by their namespace or, if that is unknown, by their addresses.
#[derive(Debug, Default)]
pub(crate) struct LinkFinder {
    /// The host ends of veths, by the addresses of their peers.
    by_address: OnceCell<BTreeMap<IpAddr, Vec<Link>>>,
}

impl LinkFinder {
    /// Finds the link of the container that these requests are for.
    pub(crate) fn link(&self, requests: &[&Request]) -> Result<Link, LinkError> {
        let first = requests.first().ok_or(LinkError::NotFound)?;
        let netns = first.netns();
        if Netns::open(&netns.path).is_ok() {
            return match links::host_end(netns, first.attachment().ifname())? {
                HostEnd::Link(link) => Ok(link),
                HostEnd::NoVeth => Err(LinkError::NoVeth),
                // The container may have been deleted meanwhile, which must not keep the others from being moved.
                HostEnd::NoInterface(_) => Err(LinkError::NotFound),
            };
        }
        self.by_addresses(requests)?.ok_or(LinkError::NotFound)
    }

    /// The only veth whose peer has one of the addresses.
    fn by_addresses(&self, requests: &[&Request]) -> Result<Option<Link>, Error> {
        if self.by_address.get().is_none() {
            let read = Self::read().map_err(|e| Error::kernel("look for the links of containers", e))?;
            // Cannot fail, because only this thread uses the cell.
            let _ = self.by_address.set(read);
        }
        let Some(by_address) = self.by_address.get() else { return Ok(None) };
        let networks = requests.iter().flat_map(|request| request.addresses());
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
pub(crate) fn possible() -> Result<(), Error> {
    match Programs::find()? {
        Some(_) => object::of_this_binary().map(drop),
        None => setup::served_in_other_namespace().map_or_else(setup::try_out, Err),
    }
}
