//! The programs on a node: set up once, looked at, and taken away.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use cni_kernel::route::RouteSocket;
use slipway_ebpf_abi::{Config, Counter, LEFT, Reason, VERSION, maps};

use super::cgroup::{self, ControlGroup, Sockets};
use super::config::{
    configure, configured, is_set_up, knows_addresses, masquerade_ports, programs, programs_of_this_binary,
    refuse_abroad, refuse_another, without_masquerade,
};
use super::links::{self, Without, detach_index, is_ethernet};
use super::load::{Sizes, Wanted};
use super::other_versions::give_up_others;
use super::pins::Pins;
use super::tables::{self, Tables};
use super::{conntrack_export, entries, kube_proxy, load, netns_cookie, timeouts, uplinks};
use crate::iptables::Iptables;
use crate::nftables::Nftables;
use crate::reference::{Piece, Reference};
use crate::{Backend, Error, PortRange, PublishedPort};

/// What an administrator may set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Names of the interfaces that carry traffic from outside; empty: they are found by address and route.
    pub uplinks: Vec<String>,
    /// Where the programs at sockets are attached.
    pub cgroup: ControlGroup,
    /// The source ports that the programs masquerade with.
    pub masquerade_ports: PortRange,
    /// How many elements the maps take; when they are made, which is once.
    pub sizes: Sizes,
}

/// The programs on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether the programs are loaded and know the node.
    pub is_set_up: bool,
    /// Whether they are those of this binary.
    pub is_current: bool,
    /// The interfaces that carry traffic from outside, by name; a number where the interface is gone.
    pub uplinks: Vec<String>,
    /// Interfaces at which there are programs whose maps are not to be found from here.
    pub served_elsewhere: Vec<String>,
    /// Uplinks that have to have a program and have none.
    pub uplinks_without: Vec<Without>,
    /// What has become of the programs at the node's own sockets; none while nothing is set up.
    pub sockets: Option<Sockets>,
    /// The source ports that the programs masquerade with; none: nftables does it.
    pub masquerade_ports: Option<PortRange>,
    /// Why the ports that are set may not be used, if the node's own sockets may choose them, too.
    pub masquerade_clash: Option<String>,
    /// The engine that translates destinations in netfilter, which is why nftables masquerades.
    pub services: Option<String>,
    /// True if nftables serves the published ports, too, because of such an engine.
    pub ports_left: bool,
    /// How many containers the programs know.
    pub containers: usize,
    /// How many of them are left to nftables as a whole: limited in their rate, or kept apart from others.
    pub containers_left: usize,
    /// How many published ports.
    pub ports: usize,
    /// What they have counted, where it is not zero; what they have dropped is in `dropped`.
    pub counters: Vec<(Counter, u64)>,
    /// Packets that they have dropped, by reason, where it is not zero.
    pub dropped: Vec<(Counter, u64)>,
    /// Conversations, and packets without one, that they have left to the kernel's stack, by reason, where it is not zero.
    pub left: Vec<(Reason, u64)>,
}

/// The node as the programs have it, set up if it is not, or if somebody took a program from an uplink: the way of an
/// ADD. Where all is there, it opens two pinned maps, reads a few elements, and asks the kernel once for each uplink.
pub(super) fn ready(settings: &Settings) -> Result<Pins, Error> {
    let object = programs_of_this_binary()?;
    if let Some(pins) = Pins::find()
        && pins.programs(object).join(maps::programs::UPLINK_INGRESS).exists()
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

/// Loads the programs, tells them of the node, and attaches them; what is there is brought up to date: new
/// uplinks, new addresses, programs of another version. Flows are kept.
///
/// # Errors
/// What this kernel lacks, or what could not be attached.
pub fn setup_node(settings: &Settings) -> Result<Status, Error> {
    let (_, left) = set_up(settings)?;
    let mut status = status(settings)?;
    // Now it is known why.
    for one in &mut status.uplinks_without {
        if let Some(told) = left.iter().find(|told| told.name == one.name) {
            one.why.clone_from(&told.why);
        }
    }
    Ok(status)
}

pub(super) fn setup(settings: &Settings) -> Result<Pins, Error> {
    set_up(settings).map(|(pins, _)| pins)
}

/// As [`setup_node`], with the uplinks that were left.
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
    tell_addresses(&pins, if engine.is_some() { &NONE } else { &around.locals })?;
    let left = links::settle(&pins, &folder, &around)?;
    links::renew_containers(&pins, &folder)?;
    reserve_ports(&pins);
    let config = configuration(&pins, settings.masquerade_ports, engine);
    spare_ports(masquerade_ports(config));
    configure(&pins, config)?;
    // Without them nftables serves the node's own sockets.
    if let Err(error) = cgroup::attach(&folder, &settings.cgroup).and_then(|()| learn_cookie(&pins)) {
        log::warn!("the node's own sockets are left to nftables: {error}");
    }
    load::forget_others(&pins, &folder);
    if let Err(error) = give_up_others() {
        log::warn!("{error}");
    }
    Ok((pins, left))
}

/// The addresses that the programs know for the node's where nftables is to decide about what is addressed to it.
static NONE: BTreeMap<IpAddr, u32> = BTreeMap::new();

/// Ports that the node's own sockets may choose, too, are none to masquerade with: nftables does it then, as it does
/// beside an engine that translates Services.
fn configuration(pins: &Pins, ports: PortRange, engine: Option<String>) -> Config {
    let netns_cookie = match netns_cookie::of_this_namespace() {
        // What was learnt before holds until it is learnt again.
        0 => configured(pins).map_or(0, |config| config.netns_cookie),
        told => told,
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

/// Leaves published ports and masquerade to nftables once kube-proxy is there, which may come later than the programs.
/// Flows that they translate go on.
///
/// # Errors
/// The settings cannot be read or written.
pub(super) fn yield_to_services(pins: &Pins) -> Result<(), Error> {
    let config = configured(pins)?;
    if (masquerade_ports(config).is_some() || knows_addresses(pins)?)
        && let Some(why) = kube_proxy::kube_proxy()
    {
        log::warn!("published ports and masquerade are left to nftables: {why}");
        tell_addresses(pins, &NONE)?;
        configure(pins, without_masquerade(config))?;
    }
    Ok(())
}

/// Containers may be there that others serve: our table, the chains of iptables, the reference's rules.
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
            Err(error) => log::warn!("tell the BPF maps what others serve: {error}"),
        }
    }
}

/// Has the program at connect(2) note the cookie of this namespace where the kernel tells it to nobody else
/// (before Linux 5.14): it sees a socket here connect that it was told of.
fn learn_cookie(pins: &Pins) -> Result<(), Error> {
    if netns_cookie::of_this_namespace() != 0 {
        return Ok(());
    }
    let config = configured(pins)?;
    let Some((socket, teacher)) = netns_cookie::teacher() else { return Ok(()) };
    configure(pins, Config { teacher, ..config })?;
    // Whatever becomes of the call, nothing is sent. 9 is the port of discard (RFC 863).
    let _ = socket.connect((Ipv4Addr::LOCALHOST, 9));
    let netns_cookie = configured(pins)?.netns_cookie;
    configure(pins, Config { netns_cookie, ..config })
}

fn tell_addresses(pins: &Pins, wanted: &BTreeMap<IpAddr, u32>) -> Result<(), Error> {
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

/// Detaches the programs and takes away all that is pinned: nftables serves everything from then on, and conntrack has
/// the conversations that went on. Says whether there was anything.
///
/// # Errors
/// What could not be taken away; the rest was. With programs of another network namespace nothing is.
pub fn teardown_node() -> Result<bool, Error> {
    if let Some(pins) = Pins::find() {
        refuse_abroad(&pins)?;
    }
    let mut results = vec![give_up_others()];
    if let Some(pins) = Pins::find() {
        // Once more just before the pins go: a container may have come meanwhile.
        for _ in 0..2 {
            results.extend(let_all_go(&pins));
        }
    }
    let removed = Pins::remove_all();
    spare_ports(None);
    results.into_iter().collect::<Result<(), Error>>()?;
    removed
}

/// Has netfilter serve what the programs know, and takes them from where they are attached.
fn let_all_go(pins: &Pins) -> Vec<Result<(), Error>> {
    // Whatever container comes from here on begins nothing that only the program at an uplink can undo.
    let mut results = vec![links::withhold_addresses(pins)];
    // Before they are forgotten.
    let pods = Tables::open(pins).and_then(|tables| tables.pods.all());
    // What cannot be handed over ends, which is no reason to leave the programs where they are.
    if let Err(error) = hand_over(pins) {
        log::warn!("give conntrack what the BPF programs have: {error}");
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

/// Gives conntrack the conversations that the programs have.
fn hand_over(pins: &Pins) -> Result<(), Error> {
    if !is_set_up(pins) {
        return Ok(());
    }
    let mut tables = Tables::open(pins)?;
    let pods = tables.pods.all()?.into_iter().map(|(link, pod)| (link, pod.generation)).collect();
    let handed = conntrack_export::hand_over(pins, &mut tables, &pods)?;
    if handed.count > 0 {
        log::info!("{} conversations are conntrack's from now on", handed.count);
    }
    for (_, what) in handed.lost {
        log::warn!("a conversation could not be given to conntrack: {what}");
    }
    Ok(())
}

/// Whether anything of the programs is on this node.
#[must_use]
pub fn is_there() -> bool {
    Pins::is_there()
}

/// Looks at the programs of this node.
///
/// # Errors
/// What is pinned cannot be read, or is another network namespace's.
pub fn status(settings: &Settings) -> Result<Status, Error> {
    let Some(pins) = Pins::find() else {
        let around = uplinks::look(&settings.uplinks).map_err(|e| Error::kernel("look for uplinks", e))?;
        return Ok(Status { served_elsewhere: links::served_from_elsewhere(&around)?, ..Status::default() });
    };
    refuse_abroad(&pins)?;
    let tables = Tables::open(&pins)?;
    let socket = RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))?;
    let name = |index: u32| socket.link_by_index(index).map_or_else(|_| index.to_string(), |link| link.name);
    let mut uplinks: Vec<String> = tables::uplinks(&pins)?.all()?.into_iter().map(|(i, _)| name(i)).collect();
    uplinks.sort();
    let pods = tables.pods.all()?;
    let counted = tables::counters(&pins)?;
    let value = |index: usize| counted.get(index).copied().unwrap_or_default();
    let each = Counter::ALL.into_iter().map(|counter| (counter, value(counter as usize)));
    let left = Reason::ALL.into_iter().map(|reason| (reason, value(reason.fallback())));
    let (dropped, counters): (Vec<_>, Vec<_>) =
        each.filter(|(_, count)| *count != 0).partition(|(counter, _)| counter.is_drop());
    Ok(Status {
        is_set_up: is_set_up(&pins),
        is_current: programs(&pins).is_ok_and(|folder| folder.is_dir()),
        uplinks,
        served_elsewhere: Vec::new(),
        uplinks_without: links::without(&pins, &settings.uplinks)?,
        sockets: Some(sockets_of(&pins, settings)),
        masquerade_ports: configured(&pins).ok().and_then(masquerade_ports),
        masquerade_clash: settings.masquerade_ports.clash(),
        services: kube_proxy::engine(),
        ports_left: !knows_addresses(&pins)?,
        containers: pods.len(),
        containers_left: pods.iter().filter(|(_, pod)| pod.flags & LEFT != 0).count(),
        ports: tables.ports()?,
        counters,
        dropped,
        left: left.filter(|(_, count)| *count != 0).collect(),
    })
}

/// Netfilter's masquerade leaves the programs' ports alone before they take any.
fn spare_ports(ports: Option<PortRange>) {
    if let Err(error) = crate::nftables::spare_ports(ports) {
        log::warn!("the masquerade of nftables does not leave ports {ports:?} to the programs: {error}");
    }
}

fn sockets_of(pins: &Pins, settings: &Settings) -> Sockets {
    let found = match programs(pins) {
        Ok(folder) => cgroup::state(&folder, &settings.cgroup),
        Err(error) => return Sockets::Not(error.to_string()),
    };
    if matches!(found, Sockets::At(_)) && configured(pins).is_ok_and(|config| config.netns_cookie == 0) {
        let why = "attached, but this kernel did not tell the cookie of the node's network namespace";
        return Sockets::Not(why.to_owned());
    }
    found
}

/// Whether this kernel takes the programs of this binary, and has a place for them. Nothing is left.
///
/// # Errors
/// What is missing, or what the verifier says.
pub fn try_out() -> Result<(), Error> {
    Pins::mountable()?;
    load::try_object(programs_of_this_binary()?)
}
