// SPDX-License-Identifier: GPL-2.0-or-later

//! The entries of containers in the BPF maps: written after the nftables elements that hold the ownership,
//! removed before them.

use std::fmt;
use std::net::IpAddr;

use cni_kernel::route::RouteSocket;
use slipway_ebpf_abi::{EXEMPT_SHIFT, HELD, LEFT, MASQUERADED, NOT_LOOPBACK, Pod, PodAddress};

use super::pins::Pins;
use super::pods::{Adoption, Hold, Pods, adopt, host_end};
use super::tables::{PodId, Published, RESERVED, Tables, Target};
use super::{carried, config, conntrack_import, links, other_versions};
use crate::observer::{Entry, RulesetObserver};
use crate::owner::AttachmentHash;
use crate::{
    AddressFamily, BackendName, Error, HostAddress, HostPorts, Listed, Loopback, MasqueradeRequest, Owner,
    PortRange, PortRequest, Protocol, PublishedPort, Snat, Withdrawal,
};

/// The flags of an address.
const FLAGS: u32 = (1 << EXEMPT_SHIFT) - 1;

/// Most ports of one container in the maps, which have one entry per port. nftables serves a longer run by a
/// single element.
pub(super) const MANY: usize = 4096;

/// The reason why nftables serves a container although the eBPF backend was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// `conditionsV4` or `conditionsV6`.
    Conditions,
    /// `externalSetMarkChain`.
    MarkChain,
    /// `masqAll`.
    MasqueradeAll,
    /// `snat: false`.
    NoMasquerade,
    /// More than 4,096 ports.
    ManyPorts,
    /// The container's interface is no veth.
    NoVeth,
    /// Its rate is limited, or the firewall plugin isolates it.
    Pod,
    /// All its ports are of SCTP.
    Sctp,
    /// Its network namespace is unknown, and its link cannot be found by its addresses.
    Nowhere,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conditions => "it has conditions",
            Self::MarkChain => "it has externalSetMarkChain",
            Self::MasqueradeAll => "it has masqAll",
            Self::NoMasquerade => "it has snat: false",
            Self::ManyPorts => "it has more than 4,096 ports",
            Self::NoVeth => "its interface is no veth",
            Self::Pod => "its rate is limited, or it is kept apart from others",
            Self::Sctp => "the programs do not know SCTP",
            Self::Nowhere => "its interface cannot be found",
        })
    }
}

/// The reason why the programs can never serve a request; none if they can.
pub(super) fn unserved(request: &PortRequest) -> Option<Left> {
    let ports = request.ports.iter().map(|port| port.host.len()).sum::<usize>();
    match request {
        _ if !request.nftables.conditions.is_empty() => Some(Left::Conditions),
        _ if request.iptables.set_mark_chain.is_some() => Some(Left::MarkChain),
        PortRequest { snat: Snat::Always, .. } => Some(Left::MasqueradeAll),
        PortRequest { snat: Snat::Never, .. } => Some(Left::NoMasquerade),
        _ if ports > MANY => Some(Left::ManyPorts),
        _ => None,
    }
}

/// True if the programs can serve a mapping: they do not know SCTP.
pub(super) fn is_served(host: &HostPorts) -> bool {
    host.protocol != Protocol::Sctp
}

/// The map entry of a mapping.
pub(super) fn target(request: &PortRequest, port: &PublishedPort, pod: PodId, to: u16) -> Target {
    let spares = request.loopback == Loopback::Spared && matches!(port.host.address, HostAddress::Any(_));
    let flags = if spares { NOT_LOOPBACK } else { 0 };
    Target { pod: pod.link, generation: pod.generation, address: port.container, port: to, flags }
}

/// The single ports of a mapping, each with the port of the container.
pub(super) fn single(port: &PublishedPort) -> impl Iterator<Item = (Published, u16)> {
    let (host, to) = (port.host, port.container_port);
    let one = move |number| Published { host: host.address, protocol: host.protocol, port: number };
    host.ports().map(move |number| (one(number), to.wrapping_add(number.wrapping_sub(host.first))))
}

/// Writes a container's ports to the maps. Returns the reason if the programs cannot serve them.
///
/// # Errors
/// [`Error::Kernel`] if a map or the container's link cannot be read or written; written entries are removed.
pub(super) fn publish(pins: &Pins, request: &PortRequest) -> Result<Option<Left>, Error> {
    let Some((link, inside)) = host_end(&request.netns, request.attachment.ifname())? else {
        reserve_ports(&mut Tables::open(pins)?, request)?;
        return Ok(Some(Left::NoVeth));
    };
    let mut tables = Tables::open(pins)?;
    let (attachment, hold) = (&request.attachment, Hold::needed(&inside));
    let adoption = Adoption { attachment, link: &link, addresses: &request.networks, masquerade: None, hold };
    let pod = adopt(pins, &mut tables, adoption)?;
    let served = || request.ports.iter().filter(|port| is_served(&port.host));
    let write = |tables: &mut Tables| -> Result<(), Error> {
        let _lock = pins.lock()?;
        for port in served() {
            for (published, to) in single(port) {
                tables.put_port(&published, &target(request, port, pod.id, to))?;
            }
        }
        Ok(())
    };
    if let Err(error) = write(&mut tables) {
        for published in served().flat_map(single).map(|(published, _)| published) {
            let _ = tables.remove_port(&published);
        }
        return Err(error);
    }
    conntrack_import::release(pins, &mut tables, &pod)?;
    Ok(None)
}

/// Has the programs masquerade a container's addresses. Returns the reason if they cannot.
///
/// # Errors
/// [`Error::Kernel`] if the container's link or a map cannot be read or written; [`Error::NoEbpf`] if this
/// binary has no programs.
pub(super) fn masquerade(pins: &Pins, request: &MasqueradeRequest) -> Result<Option<Left>, Error> {
    let Some((link, inside)) = host_end(&request.netns, request.attachment.ifname())? else {
        return Ok(Some(Left::NoVeth));
    };
    let mut tables = Tables::open(pins)?;
    let (attachment, hold) = (&request.attachment, Hold::needed(&inside));
    let (addresses, masquerade) = (&request.addresses, Some(request));
    let adoption = Adoption { attachment, link: &link, addresses, masquerade, hold };
    let pod = adopt(pins, &mut tables, adoption)?;
    conntrack_import::release(pins, &mut tables, &pod)?;
    Ok(None)
}

/// Leaves a container to nftables, by the index of its link's host end: its rate is about to be limited. Its
/// flows that the programs translate end.
pub fn leave_link(index: u32) {
    leave(|tables| leave_one(tables, index));
    if let Err(error) = carried::withhold_peer(index) {
        log::warn!("{error}");
    }
}

/// Leaves a container to nftables, by its addresses: the firewall plugin is about to isolate it.
pub fn leave_addresses(addresses: impl IntoIterator<Item = IpAddr>) {
    leave(|tables| {
        addresses.into_iter().try_for_each(|address| match tables.address(address)? {
            Some(entry) => leave_one(tables, entry.pod),
            None => Ok(()),
        })
    });
}

fn leave_one(tables: &mut Tables, index: u32) -> Result<(), Error> {
    tables.restrict_pod(index, |known| known.map(|pod| Pod { flags: pod.flags | LEFT, ..pod }))
}

/// The BPF programs as observer of the ruleset. A node without programs pays one system call for each
/// announcement.
#[derive(Debug)]
pub(crate) struct Programs;

impl RulesetObserver for Programs {
    fn before_delete(
        &self,
        entries: &mut dyn Iterator<Item = Entry>,
        is_unchanged: &dyn Fn() -> Result<bool, Error>,
    ) {
        leave(|tables| {
            let mut known = Vec::new();
            for entry in entries {
                read_entries(tables, &entry, &mut known)?;
            }
            if known.is_empty() || !is_unchanged()? {
                return Ok(());
            }
            known.iter().try_for_each(|one| remove_entry(tables, one))
        });
    }

    fn deleted(&self) {
        // Soon the flows are checked anyway.
        if let Err(error) = carried::next_epoch() {
            log::warn!("{error}");
        }
    }

    fn nothing_held(&self, withdrawal: &Withdrawal<'_>) {
        remove_unheld(withdrawal);
    }

    fn collect(&self) {
        leave(sweep);
    }

    fn reserved_ports(&self) -> Option<PortRange> {
        config::reserved_ports()
    }
}

/// Removes entries that the hints lead to although the attachment has no element, as after a flush of the
/// ruleset: if the container's link is gone or names the attachment as its owner.
fn remove_unheld(withdrawal: &Withdrawal<'_>) {
    if withdrawal.ports.is_empty() && withdrawal.addresses.is_empty() {
        return;
    }
    leave(|tables| {
        let mut known = Vec::new();
        let ports = withdrawal.ports.iter().filter(|_| withdrawal.kinds.ports());
        for host in ports.filter(|host| is_served(host) && host.len() <= MANY) {
            for port in host.ports() {
                let published = Published { host: host.address, protocol: host.protocol, port };
                let found = tables.port(&published)?.filter(|found| found.pod != RESERVED);
                known.extend(found.map(|found| Known::Port(published, found)));
            }
        }
        let going = if withdrawal.kinds.masquerade() { MASQUERADED } else { 0 };
        for address in withdrawal.addresses {
            let found = tables.address(*address)?;
            known.extend(found.map(|found| Known::Address(*address, found, going)));
        }
        if known.is_empty() {
            return Ok(());
        }
        let own = AttachmentHash::of(withdrawal.attachment);
        for one in known {
            if is_gone_or_of(tables, one.pod(), own)? {
                remove_entry(tables, &one)?;
            }
        }
        Ok(())
    });
}

/// True if a pod's link is gone, or names this attachment as its owner.
fn is_gone_or_of(tables: &Tables, pod: PodId, own: AttachmentHash) -> Result<bool, Error> {
    if !tables.is_alive(pod)? {
        return Ok(true);
    }
    let failed = |e| Error::kernel("look for the link of a container", e);
    match RouteSocket::open().map_err(failed)?.link_by_index(pod.link) {
        Ok(link) => Ok(Owner::from_comment(&link.alias).is_some_and(|owner| owner.attachment_hash == own)),
        Err(e) if e.is_not_found() => Ok(true),
        Err(e) => Err(failed(e)),
    }
}

/// Removes pods whose link is gone, and ports and addresses of unknown pods: a pod is written before its
/// ports and addresses.
fn sweep(tables: &mut Tables) -> Result<(), Error> {
    let failed = |e| Error::kernel("look for the links of containers", e);
    let socket = RouteSocket::open().map_err(failed)?;
    for (index, pod) in tables.pods.all()? {
        match socket.link_by_index(index) {
            Ok(_) => {}
            Err(e) if e.is_not_found() => {
                tables.forget_pod(PodId { link: index, generation: pod.generation })?;
            }
            Err(e) => return Err(failed(e)),
        }
    }
    tables.remove_unowned()?;
    tables.remove_unused_lists()
}

/// Leaves a container to nftables: an earlier ADD may have chosen the eBPF backend. The programs do not see
/// the requests to its ports then: they would take its replies over UDP for flows that it begins, and
/// masquerade them.
pub(crate) fn leave_ports(request: &PortRequest) {
    leave(|tables| {
        reserve_ports(tables, request)?;
        request.networks.iter().try_for_each(|network| remove_address_of(tables, network.addr(), MASQUERADED))
    });
}

/// Reserves the ports of a container that nftables serves: another container's mapping of all addresses must
/// not get packets to a single address of this one.
fn reserve_ports(tables: &mut Tables, request: &PortRequest) -> Result<(), Error> {
    request.ports.iter().try_for_each(|port| {
        single(port).filter(|_| is_served(&port.host)).try_for_each(|(published, _)| {
            match port.host.address {
                HostAddress::One(_) => reserve(tables, port, &published),
                HostAddress::Any(_) => tables.remove_port(&published).map(|_| ()),
            }
        })
    })
}

/// Turns the ports of these containers into reserved ones, which CHECK accepts as left to nftables.
pub(super) fn withdraw_ports(tables: &mut Tables, request: &PortRequest, pods: &Pods) -> Result<(), Error> {
    for port in request.ports.iter().filter(|port| is_served(&port.host) && port.host.len() <= MANY) {
        for (published, _) in single(port) {
            let Some(found) = tables.port(&published)?.filter(|found| found.pod != RESERVED) else {
                continue;
            };
            let is_theirs = pods.get(&found.pod) == Some(&found.generation);
            if is_theirs || !tables.is_alive(found.id())? {
                reserve(tables, port, &published)?;
            }
        }
    }
    Ok(())
}

fn reserve(tables: &mut Tables, port: &PublishedPort, published: &Published) -> Result<(), Error> {
    tables.put_port(published, &reserved(port))
}

fn reserved(port: &PublishedPort) -> Target {
    Target { pod: RESERVED, generation: 0, address: port.container, port: 0, flags: 0 }
}

/// Sets the backend of listed ports to eBPF where the programs serve them.
///
/// # Errors
/// [`Error::Kernel`] if the maps cannot be read.
pub(crate) fn name_served(all: &mut [Listed]) -> Result<(), Error> {
    if carried::find().is_some() {
        let owners = carried::owners()?;
        for one in all.iter_mut().filter(|one| one.backend == BackendName::Nftables) {
            if one.owner.as_ref().is_some_and(|owner| owners.contains(owner)) {
                one.backend = BackendName::Ebpf;
            }
        }
        return Ok(());
    }
    let Some(pins) = config::at_home() else { return Ok(()) };
    // Next to an engine that translates Services, nftables serves packets to the node.
    if !config::knows_addresses(&pins)? {
        return Ok(());
    }
    let tables = Tables::open(&pins)?;
    let in_tables = all.iter_mut().filter(|one| one.backend == BackendName::Nftables);
    for one in in_tables.filter(|one| is_served(&one.port.host)) {
        let Some((first, _)) = single(&one.port).next() else { continue };
        let Some(target) = tables.port(&first)? else { continue };
        if tables.pods.get(&target.pod)?.is_some_and(|pod| pod.flags & (LEFT | HELD) == 0) {
            one.backend = BackendName::Ebpf;
        }
    }
    Ok(())
}

/// Reserves the ports of single addresses that other backends serve when the programs are set up.
///
/// # Errors
/// [`Error::Kernel`] if a map cannot be written.
pub(super) fn reserve_all(pins: &Pins, ports: &[PublishedPort]) -> Result<(), Error> {
    let mut tables = Tables::open(pins)?;
    let of_one = |port: &&PublishedPort| {
        matches!(port.host.address, HostAddress::One(_)) && is_served(&port.host) && port.host.len() <= MANY
    };
    for port in ports.iter().filter(of_one) {
        for (published, _) in single(port) {
            // Only if there is no entry: the ADD of its container may write it concurrently.
            tables.put_new_port(&published, &reserved(port))?;
        }
    }
    Ok(())
}

/// Leaves a container's masquerade to nftables.
pub(crate) fn leave_masquerade(request: &MasqueradeRequest) {
    leave(|tables| {
        let mut addresses = request.addresses.iter();
        addresses.try_for_each(|network| remove_address_of(tables, network.addr(), MASQUERADED))
    });
}

/// Changes the maps, if there are programs and they serve this network namespace: in another one, the same
/// index or address identifies another container. A failure is logged.
fn leave(work: impl FnOnce(&mut Tables) -> Result<(), Error>) {
    let Some(pins) = Pins::find() else {
        // Programs whose maps this version cannot write would keep serving what is removed.
        if let Err(error) = other_versions::give_up_others() {
            log::warn!("remove the BPF programs of another version: {error}");
        }
        return;
    };
    if !config::is_at_home(&pins) {
        return;
    }
    if let Err(error) = Tables::open(&pins).and_then(|mut tables| work(&mut tables)) {
        log::warn!("remove a container from the BPF maps: {error}");
    }
}

/// An entry as it was read.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// A port and its target.
    Port(Published, Target),
    /// A container's address, its entry, and the flag that is being removed.
    Address(IpAddr, PodAddress, u32),
}

impl Known {
    /// The pod.
    fn pod(&self) -> PodId {
        match self {
            Self::Port(_, target) => target.id(),
            Self::Address(_, entry, _) => entry.into(),
        }
    }
}

/// Reads the entries of an element.
fn read_entries(tables: &Tables, entry: &Entry, known: &mut Vec<Known>) -> Result<(), Error> {
    let mut address = |address, going| -> Result<(), Error> {
        let entry = tables.address(address)?;
        known.extend(entry.map(|entry| Known::Address(address, entry, going)));
        Ok(())
    };
    match entry {
        Entry::Container(container) => address(*container, 0),
        Entry::Masqueraded(container) => address(*container, MASQUERADED),
        Entry::Port(port) if port.host.len() <= MANY && is_served(&port.host) => {
            for (published, _) in single(port) {
                known.extend(tables.port(&published)?.map(|target| Known::Port(published, target)));
            }
            Ok(())
        }
        Entry::Port(_) => Ok(()),
    }
}

/// Removes an entry if it has not changed.
fn remove_entry(tables: &mut Tables, known: &Known) -> Result<(), Error> {
    match *known {
        Known::Port(published, target) => tables.remove_port_if(&published, &target),
        Known::Address(address, entry, going) => {
            let is_same = |now: &PodAddress| PodId::from(now) == PodId::from(&entry);
            if tables.address(address)?.as_ref().is_some_and(is_same) {
                remove_address_of(tables, address, going)?;
            }
            Ok(())
        }
    }
}

/// Removes an address with its pod, unless the address has another flag than the one that is being removed: a
/// container without published ports may still be masqueraded.
fn remove_address_of(tables: &mut Tables, address: IpAddr, going: u32) -> Result<(), Error> {
    let Some(entry) = tables.address(address)? else { return Ok(()) };
    if entry.flags & FLAGS & !going != 0 {
        return Ok(());
    }
    tables.forget_pod((&entry).into())?;
    tables.remove_address(address).map(|_| ())
}

/// Compares the maps with a request.
///
/// # Errors
/// [`Error::Missing`] with the first difference.
pub(super) fn check_ports(pins: &Pins, request: &PortRequest) -> Result<(), Error> {
    let Some((link, _)) = host_end(&request.netns, request.attachment.ifname())? else { return Ok(()) };
    links::check(pins, &link)?;
    let tables = Tables::open(pins)?;
    for port in request.ports.iter().filter(|port| is_served(&port.host)) {
        for (published, to) in single(port) {
            let name = format!("{} port {} of {}", published.protocol, published.port, request.attachment);
            let missing = |what: &str| Err(Error::Missing(format!("{name} {what} in the BPF maps")));
            match tables.port(&published)? {
                None => return missing("is missing"),
                Some(Target { pod: RESERVED, .. }) => {}
                Some(found) if found != target(request, port, found.id(), to) => {
                    return missing("leads elsewhere");
                }
                Some(found) if !tables.is_alive(found.id())? => {
                    return missing("leads to a container that is unknown");
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// Compares the maps with a request.
///
/// # Errors
/// [`Error::Missing`] with the first difference.
pub(super) fn check_masquerade(pins: &Pins, request: &MasqueradeRequest) -> Result<(), Error> {
    let Some((link, _)) = host_end(&request.netns, request.attachment.ifname())? else { return Ok(()) };
    links::check(pins, &link)?;
    let tables = Tables::open(pins)?;
    for network in &request.addresses {
        // Without an entry, the container is left to nftables.
        let address = network.addr();
        let Some(entry) = tables.address(address)? else { continue };
        if entry.flags & MASQUERADED == 0 {
            return Err(Error::Missing(format!("masquerade of {address} is missing in the BPF maps")));
        }
        let family = AddressFamily::of(address);
        let (wanted, found) = (request.exempt_of(family), tables.exempt_networks(family, &entry)?);
        if wanted != found {
            let differs = wanted.iter().find(|net| !found.contains(net)).or(found.first());
            let network = differs.map(ToString::to_string).unwrap_or_default();
            let text = format!("nonMasqueradeCIDRs of {address} differ in the BPF maps: {network}");
            return Err(Error::Missing(text));
        }
    }
    Ok(())
}
