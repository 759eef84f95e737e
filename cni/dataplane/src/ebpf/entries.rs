//! What the programs are told of containers: written after the nftables elements that hold the ownership,
//! removed before they are.

use std::fmt;
use std::net::IpAddr;

use cni_kernel::route::RouteSocket;
use slipway_ebpf_abi::{HELD, LEFT, MASQUERADED, Pod, PodAddress, SPARES_LOOPBACK};

use super::pins::Pins;
use super::pods::{Hold, Pods, adopt, host_end};
use super::tables::{NOBODY, Published, Tables, Target};
use super::{config, conntrack_import, links, other_versions};
use crate::observer::{Entry, RulesetObserver};
use crate::owner::AttachmentHash;
use crate::{
    BackendName, Error, HostAddress, HostPorts, Listed, Loopback, MasqueradeRequest, Owner, PortRange,
    PortRequest, Protocol, PublishedPort, Snat, Withdrawal,
};

/// The most ports of one container that are put into the maps, one by one. A longer run is a single element
/// for nftables, which serves it.
pub(super) const MANY: usize = 4096;

/// Why a container is left to nftables although this backend was asked for.
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
    /// More ports than the maps are meant for.
    ManyPorts,
    /// The container's interface is no veth.
    NoVeth,
    /// Its rate is limited, or it is kept apart from others.
    Pod,
    /// All its ports are of SCTP.
    Sctp,
    /// Its network namespace is not known, and it cannot be found by its addresses.
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

/// Why a request is left to nftables for good; none: the programs can serve it.
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

/// Whether a mapping is for the programs: SCTP is not.
pub(super) fn is_served(host: &HostPorts) -> bool {
    host.protocol != Protocol::Sctp
}

/// What the programs are told of a mapping of this container.
pub(super) fn target(request: &PortRequest, port: &PublishedPort, pod: (u32, u32), to: u16) -> Target {
    let spares = request.loopback == Loopback::Spared && matches!(port.host.address, HostAddress::Any(_));
    let flags = if spares { SPARES_LOOPBACK } else { 0 };
    Target { pod: pod.0, generation: pod.1, address: port.container, port: to, flags }
}

/// The single ports of a mapping, each with the port of the container.
pub(super) fn single(port: &PublishedPort) -> impl Iterator<Item = (Published, u16)> {
    let (host, to) = (port.host, port.container_port);
    let one = move |number| Published { host: host.address, protocol: host.protocol, port: number };
    host.ports().map(move |number| (one(number), to.wrapping_add(number.wrapping_sub(host.first))))
}

/// Has the programs serve a container's ports.
///
/// # Errors
/// The kernel's own; what was written is taken back.
pub(super) fn publish(pins: &Pins, request: &PortRequest) -> Result<Option<Left>, Error> {
    let Some((link, inside)) = host_end(&request.netns, request.attachment.ifname())? else {
        reserve_ports(&mut Tables::open(pins)?, request)?;
        return Ok(Some(Left::NoVeth));
    };
    let mut tables = Tables::open(pins)?;
    let (who, how) = ((&request.attachment, &link), (None, Hold::needed(&inside)));
    let pod = adopt(pins, &mut tables, who, &request.networks, how)?;
    let own = (pod.link, pod.generation);
    let served = || request.ports.iter().filter(|port| is_served(&port.host));
    let write = |tables: &mut Tables| -> Result<(), Error> {
        let _lock = pins.lock();
        for port in served() {
            for (published, to) in single(port) {
                tables.put_port(&published, &target(request, port, own, to))?;
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

/// Has the programs masquerade a container's addresses.
///
/// # Errors
/// The kernel's own.
pub(super) fn masquerade(pins: &Pins, request: &MasqueradeRequest) -> Result<Option<Left>, Error> {
    let Some((link, inside)) = host_end(&request.netns, request.attachment.ifname())? else {
        return Ok(Some(Left::NoVeth));
    };
    let mut tables = Tables::open(pins)?;
    let (who, how) = ((&request.attachment, &link), (Some(MASQUERADED), Hold::needed(&inside)));
    let pod = adopt(pins, &mut tables, who, &request.addresses, how)?;
    conntrack_import::release(pins, &mut tables, &pod)?;
    Ok(None)
}

/// Leaves a container to nftables as a whole, by the number of the host's end of its links: its rate is about to be
/// limited. Its conversations that the programs have end.
pub fn leave_link(index: u32) {
    leave(|tables| leave_one(tables, index));
}

/// The same by its addresses: it is to be kept apart from others.
pub fn leave_addresses(addresses: impl IntoIterator<Item = IpAddr>) {
    leave(|tables| {
        addresses.into_iter().try_for_each(|address| match tables.address(address)? {
            Some(entry) => leave_one(tables, entry.pod),
            None => Ok(()),
        })
    });
}

fn leave_one(tables: &mut Tables, index: u32) -> Result<(), Error> {
    tables.change_pod(index, |known| known.map(|pod| Pod { flags: pod.flags | LEFT, ..pod }))
}

/// The BPF programs as observer of the ruleset. A node without programs pays one system call for each announcement.
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
                know(tables, &entry, &mut known)?;
            }
            if known.is_empty() || !is_unchanged()? {
                return Ok(());
            }
            known.iter().try_for_each(|one| forget_one(tables, one))
        });
    }

    fn nothing_held(&self, withdrawal: &Withdrawal<'_>) {
        forget_unheld(withdrawal);
    }

    fn collect(&self) {
        leave(sweep);
    }

    fn reserved_ports(&self) -> Option<PortRange> {
        config::reserved_ports()
    }
}

/// Makes the programs forget what is an attachment's although no element says so, as after a flush of the ruleset: what
/// the hints lead to, if its link is gone or is the attachment's own.
fn forget_unheld(withdrawal: &Withdrawal<'_>) {
    if withdrawal.ports.is_empty() && withdrawal.addresses.is_empty() {
        return;
    }
    leave(|tables| {
        let mut known = Vec::new();
        let ports = withdrawal.ports.iter().filter(|_| withdrawal.kinds.ports());
        for host in ports.filter(|host| is_served(host) && host.len() <= MANY) {
            for port in host.ports() {
                let published = Published { host: host.address, protocol: host.protocol, port };
                let found = tables.port(&published)?.filter(|found| found.pod != NOBODY);
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
                forget_one(tables, &one)?;
            }
        }
        Ok(())
    });
}

/// Whether a pod's link is gone, or names this attachment as its owner.
fn is_gone_or_of(tables: &Tables, pod: (u32, u32), own: AttachmentHash) -> Result<bool, Error> {
    if !tables.is_alive(pod)? {
        return Ok(true);
    }
    let failed = |e| Error::kernel("look for the link of a container", e);
    match RouteSocket::open().map_err(failed)?.link_by_index(pod.0) {
        Ok(link) => Ok(Owner::from_comment(&link.alias).is_some_and(|owner| owner.attachment_hash == own)),
        Err(e) if e.is_not_found() => Ok(true),
        Err(e) => Err(failed(e)),
    }
}

/// Takes away containers whose link is gone, and ports and addresses of containers that are unknown: a container is told
/// before they are.
fn sweep(tables: &mut Tables) -> Result<(), Error> {
    let failed = |e| Error::kernel("look for the links of containers", e);
    let socket = RouteSocket::open().map_err(failed)?;
    for (index, pod) in tables.pods.all()? {
        match socket.link_by_index(index) {
            Ok(_) => {}
            Err(e) if e.is_not_found() => tables.forget_pod(index, pod.generation)?,
            Err(e) => return Err(failed(e)),
        }
    }
    tables.remove_unowned()
}

/// Leaves a container to nftables as a whole: an earlier ADD may have asked for the programs. They see no packet of
/// what comes to its ports in, so that they would take its datagrams in answer for conversations of its own, and
/// masquerade them.
pub(crate) fn leave_ports(request: &PortRequest) {
    leave(|tables| {
        reserve_ports(tables, request)?;
        request.networks.iter().try_for_each(|network| forget_address(tables, network.addr(), MASQUERADED))
    });
}

/// Keeps the ports of a container that nftables serves from being taken for those of another one: a mapping
/// of that one for all addresses must not get what is for one address of this one.
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

/// Takes ports from these containers. They are told to be nobody's, which CHECK takes for what it is: somebody has
/// left them to nftables.
pub(super) fn withdraw_ports(tables: &mut Tables, request: &PortRequest, pods: &Pods) -> Result<(), Error> {
    for port in request.ports.iter().filter(|port| is_served(&port.host) && port.host.len() <= MANY) {
        for (published, _) in single(port) {
            let Some(found) = tables.port(&published)?.filter(|found| found.pod != NOBODY) else { continue };
            let is_theirs = pods.get(&found.pod) == Some(&found.generation);
            let is_alive = |pod: Pod| pod.generation == found.generation;
            if is_theirs || !tables.pods.get(&found.pod)?.is_some_and(is_alive) {
                reserve(tables, port, &published)?;
            }
        }
    }
    Ok(())
}

fn reserve(tables: &mut Tables, port: &PublishedPort, published: &Published) -> Result<(), Error> {
    tables.put_port(published, &nobody(port))
}

fn nobody(port: &PublishedPort) -> Target {
    Target { pod: NOBODY, generation: 0, address: port.container, port: 0, flags: 0 }
}

/// Names the programs as those who serve what they have been told of, of what nftables has.
///
/// # Errors
/// The maps cannot be read.
pub(crate) fn name_served(all: &mut [Listed]) -> Result<(), Error> {
    let Some(pins) = config::at_home() else { return Ok(()) };
    // Beside an engine that translates Services, nftables serves what is addressed to the node.
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

/// The same for all that others serve when the programs are set up.
///
/// # Errors
/// The kernel's own.
pub(super) fn reserve_all(pins: &Pins, ports: &[PublishedPort]) -> Result<(), Error> {
    let mut tables = Tables::open(pins)?;
    let of_one = |port: &&PublishedPort| {
        matches!(port.host.address, HostAddress::One(_)) && is_served(&port.host) && port.host.len() <= MANY
    };
    for port in ports.iter().filter(of_one) {
        for (published, _) in single(port) {
            // Its container's ADD may be about to tell of it, between a look and a write.
            tables.put_new_port(&published, &nobody(port))?;
        }
    }
    Ok(())
}

/// Leaves the masquerade to nftables.
pub(crate) fn leave_masquerade(request: &MasqueradeRequest) {
    leave(|tables| {
        let mut addresses = request.addresses.iter();
        addresses.try_for_each(|network| forget_address(tables, network.addr(), MASQUERADED))
    });
}

/// Tells the programs, if there are any, and if they are this network namespace's: to those of another one nothing here
/// is known, and what has the same number or address there is somebody else's.
fn leave(work: impl FnOnce(&mut Tables) -> Result<(), Error>) {
    let Some(pins) = Pins::find() else {
        // Programs whose maps this version cannot write to would go on as if nothing had changed.
        if let Err(error) = other_versions::give_up_others() {
            log::warn!("take away the BPF programs of another version: {error}");
        }
        return;
    };
    if !config::is_at_home(&pins) {
        return;
    }
    if let Err(error) = Tables::open(&pins).and_then(|mut tables| work(&mut tables)) {
        log::warn!("forget a container in the BPF maps: {error}");
    }
}

/// What the programs were found to know.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// A port, and where it led to.
    Port(Published, Target),
    /// A container's address, and what of its flags is to go with it.
    Address(IpAddr, PodAddress, u32),
}

impl Known {
    /// Whose it is: link and generation.
    fn pod(&self) -> (u32, u32) {
        match self {
            Self::Port(_, target) => (target.pod, target.generation),
            Self::Address(_, entry, _) => (entry.pod, entry.generation),
        }
    }
}

/// What the programs know of an element.
fn know(tables: &Tables, entry: &Entry, known: &mut Vec<Known>) -> Result<(), Error> {
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

/// Forgets it, if it is still what it was.
fn forget_one(tables: &mut Tables, known: &Known) -> Result<(), Error> {
    match *known {
        Known::Port(published, target) => tables.remove_port_if(&published, &target),
        Known::Address(address, entry, going) => {
            let is_same = |now: &PodAddress| (now.pod, now.generation) == (entry.pod, entry.generation);
            if tables.address(address)?.as_ref().is_some_and(is_same) {
                forget_address(tables, address, going)?;
            }
            Ok(())
        }
    }
}

/// Forgets a container with its address, unless something else is known of the address than what goes now:
/// a container without published ports may still be masqueraded.
fn forget_address(tables: &mut Tables, address: IpAddr, going: u32) -> Result<(), Error> {
    let Some(entry) = tables.address(address)? else { return Ok(()) };
    if entry.flags & !going != 0 {
        return Ok(());
    }
    tables.forget_pod(entry.pod, entry.generation)?;
    tables.remove_address(address).map(|_| ())
}

/// Compares what the programs know with what a request asks for.
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
                Some(Target { pod: NOBODY, .. }) => {}
                Some(found) if found != target(request, port, (found.pod, found.generation), to) => {
                    return missing("leads elsewhere");
                }
                Some(Target { pod, generation, .. }) => {
                    if tables.pods.get(&pod)?.is_none_or(|pod| pod.generation != generation) {
                        return missing("leads to a container that is unknown");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Compares what the programs know with what a request asks for.
///
/// # Errors
/// [`Error::Missing`] with the first difference.
pub(super) fn check_masquerade(pins: &Pins, request: &MasqueradeRequest) -> Result<(), Error> {
    let Some((link, _)) = host_end(&request.netns, request.attachment.ifname())? else { return Ok(()) };
    links::check(pins, &link)?;
    let tables = Tables::open(pins)?;
    for network in &request.addresses {
        // None: it was left to nftables as a whole.
        if tables.address(network.addr())?.is_some_and(|entry| entry.flags & MASQUERADED == 0) {
            let address = network.addr();
            return Err(Error::Missing(format!("masquerade of {address} is missing in the BPF maps")));
        }
    }
    Ok(())
}
