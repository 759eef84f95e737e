// SPDX-License-Identifier: GPL-2.0-or-later

//! Sets up, inspects and removes the BPF programs of a node.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use cni_kernel::route::RouteSocket;
use slipway_ebpf_abi::carried::CarriedCounter;
use slipway_ebpf_abi::{Config, Counter, LEFT, Reason, VERSION, maps};

use super::cgroup::{self, ControlGroup, Sockets};
use super::config::{
    configure, configured, is_set_up, knows_addresses, masquerade_ports, programs, programs_of_this_binary,
    refuse_abroad, refuse_another, without_masquerade,
};
use super::fill::{self, Fill};
use super::links::{self, Without, detach_index, is_ethernet};
use super::load::{Sizes, Wanted};
use super::other_versions::give_up_others;
use super::pins::Pins;
use super::tables::{self, Tables};
use super::{carried, conntrack_export, entries, kube_proxy, load, netns_cookie, timeouts, uplinks};
use crate::iptables::Iptables;
use crate::nftables::Nftables;
use crate::reference::{Piece, Reference};
use crate::{Backend, Error, PortRange, PublishedPort};

/// The longest time that another process needs to make or remove the maps.
const CHANGE: Duration = Duration::from_secs(5);
/// The pause before the maps are read again.
const AGAIN: Duration = Duration::from_millis(20);

/// The decision about a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FlowSource {
    /// Netfilter decides; the BPF programs carry the packets that follow.
    #[default]
    Netfilter,
    /// The BPF programs decide at the first packet, without the node's other rules.
    Programs,
}

/// The administrator's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Names of the uplinks; empty: they are found by address and route.
    pub uplinks: Vec<String>,
    /// The control group of the programs at sockets.
    pub cgroup: ControlGroup,
    /// The source ports that the programs masquerade with.
    pub masquerade_ports: PortRange,
    /// Sizes of the maps, used once, when these are made.
    pub sizes: Sizes,
    /// The programs of a node's containers.
    pub flows: FlowSource,
}

/// The programs on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// True if the programs are loaded and configured.
    pub is_set_up: bool,
    /// True if they are the programs of this binary.
    pub is_current: bool,
    /// The uplinks by name, or by index if the interface is gone.
    pub uplinks: Vec<String>,
    /// Interfaces with programs whose maps are not pinned in this mount namespace.
    pub served_elsewhere: Vec<String>,
    /// Uplinks without the program that they need.
    pub uplinks_without: Vec<Without>,
    /// The programs at the node's own sockets; none before the set-up.
    pub sockets: Option<Sockets>,
    /// The source ports that the programs masquerade with; none if nftables masquerades.
    pub masquerade_ports: Option<PortRange>,
    /// The reason why the configured ports cannot be used, if the node's own sockets may choose them.
    pub masquerade_clash: Option<String>,
    /// The engine that translates destinations in netfilter, if there is one; nftables masquerades then.
    pub services: Option<String>,
    /// True if nftables serves the published ports because of such an engine.
    pub ports_left: bool,
    /// Number of containers in the maps.
    pub containers: usize,
    /// Number of those that are left to nftables: rate-limited or isolated.
    pub containers_left: usize,
    /// Number of published ports in the maps.
    pub ports: usize,
    /// The programs' counters that are not zero, without those of drops.
    pub counters: Vec<(Counter, u64)>,
    /// Numbers of dropped packets by reason, if not zero.
    pub dropped: Vec<(Counter, u64)>,
    /// Numbers of flows, and of packets without a flow, left to the kernel's stack by reason, if not zero.
    pub left: Vec<(Reason, u64)>,
    /// The elements of the maps that grow with containers, ports and flows.
    pub maps: Vec<Fill>,
    /// The programs that are loaded.
    pub flows: FlowSource,
    /// The counters of [`FlowSource::Netfilter`] that are not zero.
    pub carried: Vec<(CarriedCounter, u64)>,
}

/// Prepares the node for an ADD: sets the programs up if they are missing, or if an uplink has lost its
/// program. If all are in place, this opens two pinned maps, reads a few elements, and sends the kernel one
/// request for each uplink.
pub(super) fn ready(settings: &Settings) -> Result<Pins, Error> {
    programs_of_this_binary()?;
    if let Some(pins) = Pins::find()
        && pins.programs().join(maps::programs::UPLINK_INGRESS).exists()
        && let Ok(config) = configured(&pins)
        && config.version == VERSION
    {
        refuse_another(&config)?;
        if links::are_whole(&pins)? {
            return Ok(pins);
        }
    }
    setup(settings)
}

/// Loads, configures and attaches the programs, or updates them: new uplinks, new addresses, another version
/// of the programs. Flows are kept.
///
/// # Errors
/// [`Error::NoEbpf`] if this node cannot have the programs, [`Error::Kernel`] if one cannot be loaded or
/// attached.
pub fn setup_node(settings: &Settings) -> Result<Status, Error> {
    let left = match settings.flows {
        FlowSource::Programs => set_up(settings)?.1,
        FlowSource::Netfilter => carried::set_up(wanted(settings), &give_up_deciding()?)?.1,
    };
    let mut status = status(settings)?;
    // The set-up knows the reasons.
    for one in &mut status.uplinks_without {
        if let Some(known) = left.iter().find(|known| known.name == one.name) {
            one.why.clone_from(&known.why);
        }
    }
    Ok(status)
}

const fn wanted(settings: &Settings) -> carried::Wanted<'_> {
    carried::Wanted { uplinks: settings.uplinks.as_slice(), flows: settings.sizes.flows }
}

/// Prepares the node for an ADD with [`FlowSource::Netfilter`].
///
/// # Errors
/// As [`setup_node`].
pub(super) fn ready_to_carry(settings: &Settings) -> Result<carried::Store, Error> {
    match give_up_deciding()?.as_slice() {
        [] => carried::ready(wanted(settings)),
        pods => carried::set_up(wanted(settings), pods).map(|(store, _)| store),
    }
}

/// Sets up the programs of [`FlowSource::Netfilter`].
///
/// # Errors
/// As [`setup_node`].
pub(super) fn setup_to_carry(settings: &Settings) -> Result<carried::Store, Error> {
    carried::set_up(wanted(settings), &give_up_deciding()?).map(|(store, _)| store)
}

/// Removes the programs that decide, with their flows in conntrack. Returns the links of their containers: one system
/// call where there are no such programs.
fn give_up_deciding() -> Result<Vec<u32>, Error> {
    if !Pins::is_there() {
        return Ok(Vec::new());
    }
    let known = Pins::find().map(|pins| Tables::open(&pins).and_then(|tables| tables.pods.all()));
    // An interrupted set-up has made no maps.
    let pods = known.transpose().unwrap_or_default().unwrap_or_default();
    teardown_deciding()?;
    Ok(pods.into_iter().map(|(index, _)| index).collect())
}

pub(super) fn setup(settings: &Settings) -> Result<Pins, Error> {
    set_up(settings).map(|(pins, _)| pins)
}

/// As [`setup_node`], with the uplinks to which no program could be attached.
fn set_up(settings: &Settings) -> Result<(Pins, Vec<Without>), Error> {
    let object = programs_of_this_binary()?;
    let around = uplinks::look(&settings.uplinks).map_err(|e| Error::kernel("look for uplinks", e))?;
    links::refuse_elsewhere(&around)?;
    let pins = Pins::make()?;
    refuse_abroad(&pins)?;
    let all_ethernet = around.uplinks.values().all(|(_, uplink)| is_ethernet(uplink));
    let wanted = if all_ethernet { Wanted::Usual } else { Wanted::All };
    let folder =
        load::ensure(&pins, object, &settings.sizes, wanted).inspect_err(|_| pins.forget_if_empty())?;
    let engine = kube_proxy::engine();
    write_addresses(&pins, if engine.is_some() { &NONE } else { &around.locals })?;
    let left = links::settle(&pins, &folder, &around)?;
    links::renew_containers(&pins, &folder)?;
    reserve_ports(&pins);
    let config = configuration(&pins, settings.masquerade_ports, engine);
    spare_ports(masquerade_ports(config));
    configure(&pins, config)?;
    // Without these programs, nftables serves the node's own sockets.
    if let Err(error) = cgroup::attach(&folder, &settings.cgroup).and_then(|()| learn_cookie(&pins)) {
        log::warn!("the node's own sockets are left to nftables: {error}");
    }
    load::forget_others(&pins, &folder);
    if let Err(error) = give_up_others() {
        log::warn!("{error}");
    }
    if carried::remove()? {
        log::info!(
            "removed the BPF programs that carry flows: nftables serves their containers until the next ADD"
        );
    }
    Ok((pins, left))
}

/// The node's addresses for the programs if nftables is to handle packets to the node.
static NONE: BTreeMap<IpAddr, u32> = BTreeMap::new();

/// Builds the settings. nftables masquerades if the node's own sockets may choose the same ports, and next to
/// an engine that translates Services.
fn configuration(pins: &Pins, ports: PortRange, engine: Option<String>) -> Config {
    let netns_cookie = match netns_cookie::of_this_namespace() {
        // The value that was learnt before stays until it is learnt again.
        0 => configured(pins).map_or(0, |config| config.netns_cookie),
        cookie => cookie,
    };
    let config = Config { timeouts: timeouts::of_this_node(), ..Config::new(netns_cookie) };
    match ports.clash().or(engine) {
        None => Config { masquerade_first: ports.first, masquerade_last: ports.last, ..config },
        Some(why) => {
            log::warn!("masquerade is left to nftables: {why}");
            without_masquerade(config)
        }
    }
}

/// Leaves published ports and masquerade to nftables if kube-proxy runs, which may start later than the
/// programs. Their present flows continue.
///
/// # Errors
/// [`Error::Kernel`] if the settings cannot be read or written.
pub(super) fn yield_to_services(pins: &Pins) -> Result<(), Error> {
    let config = configured(pins)?;
    if (masquerade_ports(config).is_some() || knows_addresses(pins)?)
        && let Some(why) = kube_proxy::kube_proxy()
    {
        log::warn!("published ports and masquerade are left to nftables: {why}");
        write_addresses(pins, &NONE)?;
        configure(pins, without_masquerade(config))?;
    }
    Ok(())
}

/// Reserves the ports of containers that other backends serve: our table, the chains of iptables, the
/// reference's rules.
fn reserve_ports(pins: &Pins) {
    let listed = |backend: &dyn Backend| -> Result<Vec<PublishedPort>, Error> {
        Ok(backend.list()?.into_iter().map(|one| one.port).collect())
    };
    let reference = || match Reference::find()? {
        Some(found) => Ok(found.survey()?.into_iter().filter_map(Piece::into_ports).flatten().collect()),
        None => Ok(Vec::new()),
    };
    for found in [listed(&Nftables::new()), listed(&Iptables::new()), reference()] {
        match found.and_then(|ports| entries::reserve_all(pins, &ports)) {
            Ok(()) | Err(Error::NoNfTables(_)) => {}
            Err(error) => log::warn!("reserve the ports of other backends in the BPF maps: {error}"),
        }
    }
}

/// Has the program at connect(2) record the cookie of this network namespace, which kernels before Linux 5.14
/// do not return to processes: it recognises a socket of this namespace by the socket's cookie.
fn learn_cookie(pins: &Pins) -> Result<(), Error> {
    if netns_cookie::of_this_namespace() != 0 {
        return Ok(());
    }
    let config = configured(pins)?;
    let Some((socket, probe_socket)) = netns_cookie::probe_socket() else { return Ok(()) };
    configure(pins, Config { probe_socket, ..config })?;
    // No packet is sent, whether this succeeds or not. 9 is the port of discard (RFC 863).
    let _ = socket.connect((Ipv4Addr::LOCALHOST, 9));
    let netns_cookie = configured(pins)?.netns_cookie;
    configure(pins, Config { netns_cookie, ..config })
}

fn write_addresses(pins: &Pins, wanted: &BTreeMap<IpAddr, u32>) -> Result<(), Error> {
    let (mut v4, mut v6) = tables::locals(pins)?;
    for (address, _) in v4.all()? {
        if !wanted.contains_key(&IpAddr::V4(address.into())) {
            v4.remove(&address)?;
        }
    }
    for (address, _) in v6.all()? {
        if !wanted.contains_key(&IpAddr::V6(address.into())) {
            v6.remove(&address)?;
        }
    }
    for (address, interface) in wanted {
        match *address {
            IpAddr::V4(address) => v4.put(address.into(), *interface)?,
            IpAddr::V6(address) => v6.put(address.into(), *interface)?,
        }
    }
    Ok(())
}

/// Detaches the programs, exports their flows to conntrack, and removes all pins: nftables serves everything
/// from then on. Returns true if there was anything to remove.
///
/// # Errors
/// The first failure, after the rest was removed; [`Error::NoEbpf`] if the programs serve another network
/// namespace.
pub fn teardown_node() -> Result<bool, Error> {
    let (deciding, carrying) = (teardown_deciding(), carried::remove());
    Ok(deciding? | carrying?)
}

fn teardown_deciding() -> Result<bool, Error> {
    if let Some(pins) = Pins::find() {
        refuse_abroad(&pins)?;
    }
    let mut results = vec![give_up_others()];
    if let Some(pins) = Pins::find() {
        // Twice, as a container may be added concurrently.
        for _ in 0..2 {
            results.extend(detach_all(&pins));
        }
    }
    let removed = Pins::remove_all();
    spare_ports(None);
    results.into_iter().collect::<Result<(), Error>>()?;
    removed
}

/// Exports the flows of all containers to conntrack, and detaches the programs.
fn detach_all(pins: &Pins) -> Vec<Result<(), Error>> {
    // From here on, no container begins a flow whose replies only the program at an uplink can translate.
    let mut results = vec![links::withhold_addresses(pins)];
    // Before they are forgotten.
    let pods = Tables::open(pins).and_then(|tables| tables.pods.all());
    // Flows that conntrack refuses end; the programs are detached nevertheless.
    if let Err(error) = hand_over(pins) {
        log::warn!("export flows of the BPF programs to conntrack: {error}");
    }
    let uplinks = tables::uplinks(pins).and_then(|table| table.all());
    let indices = uplinks.map(|all| all.into_iter().map(|(index, _)| index).collect::<Vec<_>>());
    let pods = pods.map(|all| all.into_iter().map(|(index, _)| index).collect::<Vec<_>>());
    for found in [indices, pods] {
        match found {
            Ok(indices) => results.extend(indices.into_iter().map(|i| detach_index(i).map(|_| ()))),
            Err(e) => results.push(Err(e)),
        }
    }
    results
}

/// Exports the flows of all containers to conntrack.
fn hand_over(pins: &Pins) -> Result<(), Error> {
    if !is_set_up(pins) {
        return Ok(());
    }
    let mut tables = Tables::open(pins)?;
    let pods = tables.pods.all()?.into_iter().map(|(link, pod)| (link, pod.generation)).collect();
    let handed = conntrack_export::hand_over(pins, &mut tables, &pods)?;
    if handed.count > 0 {
        log::info!("exported {} flows to conntrack", handed.count);
    }
    for (_, what) in handed.lost {
        log::warn!("conntrack refused a flow: {what}");
    }
    Ok(())
}

/// True if this node has pins of the programs, of any version.
#[must_use]
pub fn is_there() -> bool {
    Pins::is_there() || carried::is_there()
}

/// The error if the programs serve another network namespace; none if there are no programs.
#[must_use]
pub fn served_in_other_namespace() -> Option<Error> {
    let deciding = Pins::find().and_then(|pins| refuse_abroad(&pins).err());
    deciding.or_else(|| carried::refuse_abroad().err())
}

/// Inspects the programs of this node.
///
/// # Errors
/// [`Error::Kernel`] if a pinned map cannot be read, [`Error::NoEbpf`] if the programs serve another network
/// namespace.
pub fn status(settings: &Settings) -> Result<Status, Error> {
    // After a change of the settings, the next set-up replaces the other programs.
    if (settings.flows == FlowSource::Netfilter || !Pins::is_there())
        && let Some(found) = carried::status(wanted(settings))?
    {
        return Ok(of_carrying(found));
    }
    let begun = Instant::now();
    loop {
        let Some(pins) = Pins::find() else {
            let around =
                uplinks::look(&settings.uplinks).map_err(|e| Error::kernel("look for uplinks", e))?;
            return Ok(Status {
                served_elsewhere: links::served_from_elsewhere(&around)?,
                ..Status::default()
            });
        };
        match status_by(&pins, settings) {
            // Set-up and teardown of another process pass here.
            Err(error) if !pins.has_all_maps() && begun.elapsed() < CHANGE => log::debug!("{error}"),
            status => return status,
        }
        std::thread::sleep(AGAIN);
    }
}

fn of_carrying(found: carried::Carrying) -> Status {
    Status {
        is_set_up: true,
        is_current: found.is_current,
        uplinks: found.uplinks,
        uplinks_without: found.uplinks_without,
        containers: found.pods,
        maps: found.maps,
        flows: FlowSource::Netfilter,
        carried: found.counters,
        ..Status::default()
    }
}

fn status_by(pins: &Pins, settings: &Settings) -> Result<Status, Error> {
    refuse_abroad(pins)?;
    let tables = Tables::open(pins)?;
    let socket = RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))?;
    let name = |index: u32| socket.link_by_index(index).map_or_else(|_| index.to_string(), |link| link.name);
    let mut uplinks: Vec<String> = tables::uplinks(pins)?.all()?.into_iter().map(|(i, _)| name(i)).collect();
    uplinks.sort();
    let pods = tables.pods.all()?;
    let counted = tables::counters(pins)?;
    let value = |index: usize| counted.get(index).copied().unwrap_or_default();
    let each = Counter::ALL.into_iter().map(|counter| (counter, value(counter as usize)));
    let left = Reason::ALL.into_iter().map(|reason| (reason, value(reason.fallback())));
    let (dropped, counters): (Vec<_>, Vec<_>) =
        each.filter(|(_, count)| *count != 0).partition(|(counter, _)| counter.is_drop());
    Ok(Status {
        is_set_up: is_set_up(pins),
        is_current: programs(pins).is_ok_and(|folder| folder.is_dir()),
        uplinks,
        served_elsewhere: Vec::new(),
        uplinks_without: links::without(pins, &settings.uplinks)?,
        sockets: Some(sockets_of(pins, settings)),
        masquerade_ports: configured(pins).ok().and_then(masquerade_ports),
        masquerade_clash: settings.masquerade_ports.clash(),
        services: kube_proxy::engine(),
        ports_left: !knows_addresses(pins)?,
        containers: pods.len(),
        containers_left: pods.iter().filter(|(_, pod)| pod.flags & LEFT != 0).count(),
        ports: fill::ports(pins, &tables)?,
        counters,
        dropped,
        left: left.filter(|(_, count)| *count != 0).collect(),
        maps: fill::all(pins),
        flows: FlowSource::Programs,
        carried: Vec::new(),
    })
}

/// Makes nftables' masquerade avoid the programs' ports, before the programs use any.
fn spare_ports(ports: Option<PortRange>) {
    if let Err(error) = crate::nftables::spare_ports(ports) {
        log::warn!("reserve the BPF programs' ports {ports:?} in nftables: {error}");
    }
}

fn sockets_of(pins: &Pins, settings: &Settings) -> Sockets {
    let found = match programs(pins) {
        Ok(folder) => cgroup::state(&folder, &settings.cgroup),
        Err(error) => return Sockets::Not(error.to_string()),
    };
    if matches!(found, Sockets::At(_)) && configured(pins).is_ok_and(|config| config.netns_cookie == 0) {
        let why = "attached, but this kernel did not return the cookie of the node's network namespace";
        return Sockets::Not(why.to_owned());
    }
    found
}

/// Checks that this kernel takes the programs of this binary and can mount a BPF file system. Nothing stays
/// loaded.
///
/// # Errors
/// [`Error::NoEbpf`] without programs, [`Error::Kernel`] if the kernel refuses one.
pub fn try_out() -> Result<(), Error> {
    Pins::mountable()?;
    load::try_object(programs_of_this_binary()?)
}
