// SPDX-License-Identifier: GPL-2.0-or-later

//! Migrates running containers to the programs and away from them: the part of `crate::migrate` at their links.
//!
//! conntrack has every flow, so none moves.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use cni_kernel::netns::Netns;
use cni_kernel::route::{Link, LinkKind, RouteError, RouteSocket};
use cni_spec::Attachment;

use super::setup::{self, Settings};
use super::store::Store;
use super::{links, object};
use crate::{ContainerNetns, Error, MasqueradeRequest, PortRequest};

/// The reason why nftables serves a container although the eBPF backend was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The container's interface is no veth.
    NoVeth,
    /// Its network namespace is unknown, and its link cannot be found by its addresses.
    Nowhere,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoVeth => "its interface is no veth",
            Self::Nowhere => "its interface cannot be found",
        })
    }
}

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

/// The programs of this node.
#[derive(Debug)]
pub(crate) struct Programs {
    store: Store,
    finder: Finder,
}

impl Programs {
    /// Finds the programs, if this network namespace has any.
    pub(crate) fn find() -> Option<Self> {
        setup::find().map(Self::new)
    }

    /// Sets up or updates the node's programs.
    ///
    /// # Errors
    /// [`Error::NoEbpf`] or [`Error::Kernel`], as [`setup::setup_node`].
    pub(crate) fn set_up(settings: &Settings) -> Result<Self, Error> {
        setup::set_up(settings).map(|(store, _)| Self::new(store))
    }

    fn new(store: Store) -> Self {
        Self { store, finder: Finder::default() }
    }

    /// Finds the link of a container, as [`Finder::link`].
    ///
    /// # Errors
    /// [`Error::Kernel`] if links cannot be read.
    pub(crate) fn link(&self, things: &[Thing<'_>]) -> Result<Result<Link, Left>, Error> {
        self.finder.link(things)
    }

    /// True if the container's link has the programs.
    ///
    /// # Errors
    /// [`Error::Kernel`] if links cannot be read.
    pub(crate) fn serve(&self, thing: Thing<'_>) -> Result<bool, Error> {
        self.link(&[thing])?.map_or(Ok(false), |link| setup::has_programs(&link))
    }

    /// Has the programs serve a container.
    ///
    /// # Errors
    /// [`Error::Kernel`] if they cannot be attached.
    pub(crate) fn attach(&self, link: &Link) -> Result<(), Error> {
        setup::attach_link(&self.store, link)
    }

    /// Takes back [`Self::attach`] for a container that was removed concurrently.
    pub(crate) fn detach(&self, link: &Link) {
        links::detach(&link.name);
    }

    /// Has netfilter serve containers that the programs have served.
    ///
    /// # Errors
    /// [`Error::Kernel`] if a link cannot be read; another call continues.
    pub(crate) fn withdraw(&self, things: &[Thing<'_>]) -> Result<(), Error> {
        for thing in things {
            if let Ok(link) = self.link(&[*thing])? {
                links::detach(&link.name);
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
    pub(crate) fn link(&self, things: &[Thing<'_>]) -> Result<Result<Link, Left>, Error> {
        let Some(first) = things.first() else { return Ok(Err(Left::Nowhere)) };
        let (attachment, netns) = (first.attachment(), first.netns());
        if Netns::open(&netns.path).is_ok() {
            return Ok(links::host_end(netns, attachment.ifname())?.ok_or(Left::NoVeth));
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
    match Programs::find() {
        Some(_) => object::of_this_binary().map(drop),
        None => setup::served_in_other_namespace().map_or_else(setup::try_out, Err),
    }
}
