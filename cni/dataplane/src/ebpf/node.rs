//! The programs on a node: set up once, looked at, and taken away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use cni_kernel::route::RouteSocket;
use slipway_ebpf_abi::{Config, Counter, LEFT, Reason, VERSION, maps};

use super::links::{self, Without, detach_index, is_ethernet};
use super::load::{Sizes, Wanted};
use super::place::Place;
use super::sockets::{self, ControlGroup, Sockets};
use super::tables::{self, Tables};
use super::{attach, cookie, entries, handover, load, object, services, timeouts, uplinks};
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

/// The programs that this binary has.
pub(super) fn programs_of_this_binary() -> Result<&'static [u8], Error> {
    object().ok_or_else(|| Error::NoEbpf("this binary was built without the BPF programs".to_owned()))
}

/// The folder of this binary's programs.
pub(super) fn programs(place: &Place) -> Result<PathBuf, Error> {
    Ok(place.programs(programs_of_this_binary()?))
}

/// The node as the programs have it, set up if it is not, or if somebody took a program from an uplink: the way of an
/// ADD. Where all is there, it opens two pinned maps, reads a few elements, and asks the kernel once for each uplink.
pub(super) fn ready(settings: &Settings) -> Result<Place, Error> {
    let object = programs_of_this_binary()?;
    if let Some(place) = Place::find()
        && place.programs(object).join(maps::programs::UPLINK_INGRESS).exists()
        && let Ok(config) = configured(&place)
        && config.version == VERSION
    {
        refuse_another(&config)?;
        if links::are_whole(&place)? {
            return Ok(place);
        }
    }
    setup(settings)
}

pub(super) fn is_set_up(place: &Place) -> bool {
    configured(place).is_ok_and(|config| config.version == VERSION)
}

/// Whether the programs are those of this network namespace: in another one, with the same BPF file system, no link of
/// a container is to be found. Where the kernel does not tell, it is taken for this one.
pub(super) fn is_at_home(place: &Place) -> bool {
    refuse_abroad(place).is_ok()
}

/// The maps, if there are any and they are this network namespace's.
pub(super) fn at_home() -> Option<Place> {
    Place::find().filter(is_at_home)
}

/// Refuses what is not for those to do who are not [at home](is_at_home): the maps name links by their numbers, and
/// containers by their addresses, and both are something else here.
///
/// # Errors
/// [`Error::NoEbpf`] with what can be done.
pub(super) fn refuse_abroad(place: &Place) -> Result<(), Error> {
    configured(place).map_or(Ok(()), |config| refuse_another(&config))
}

fn refuse_another(config: &Config) -> Result<(), Error> {
    let here = cookie::of_this_namespace();
    if here == 0 || config.netns_cookie == 0 || here == config.netns_cookie {
        return Ok(());
    }
    Err(Error::NoEbpf(format!(
        "the BPF programs serve another network namespace, from which they have to be looked after (if that one is \
         gone, `rm -r {}` takes away what it has left)",
        Place::all().display(),
    )))
}

/// Why the programs are not this network namespace's; none if they are, or there are none.
#[must_use]
pub fn served_abroad() -> Option<Error> {
    Place::find().and_then(|place| refuse_abroad(&place).err())
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

pub(super) fn setup(settings: &Settings) -> Result<Place, Error> {
    set_up(settings).map(|(place, _)| place)
}

/// As [`setup_node`], with the uplinks that were left.
fn set_up(settings: &Settings) -> Result<(Place, Vec<Without>), Error> {
    let object = programs_of_this_binary()?;
    let around = uplinks::look(&settings.uplinks).map_err(|e| Error::kernel("look for uplinks", e))?;
    links::refuse_elsewhere(&around)?;
    let place = Place::make()?;
    refuse_abroad(&place)?;
    let all_ethernet = around.uplinks.values().all(|(_, uplink)| is_ethernet(uplink));
    let wanted = if all_ethernet { Wanted::Usual } else { Wanted::All };
    let folder =
        load::ensure(&place, object, &settings.sizes, wanted).inspect_err(|_| place.forget_if_empty())?;
    let engine = services::engine();
    tell_addresses(&place, if engine.is_some() { &NONE } else { &around.locals })?;
    let left = links::settle(&place, &folder, &around)?;
    links::renew_containers(&place, &folder)?;
    reserve_ports(&place);
    let config = configuration(&place, settings.masquerade_ports, engine);
    spare_ports(masquerade_ports(config));
    configure(&place, config)?;
    // Without them nftables serves the node's own sockets.
    if let Err(error) = sockets::attach(&folder, &settings.cgroup).and_then(|()| learn_cookie(&place)) {
        log::warn!("the node's own sockets are left to nftables: {error}");
    }
    load::forget_others(&place, &folder);
    if let Err(error) = give_up_others() {
        log::warn!("{error}");
    }
    Ok((place, left))
}

/// Takes away what a version with another layout of the maps has left: its programs, wherever they were not
/// replaced by this version's. Containers that only they knew are nftables' from now on.
///
/// # Errors
/// What could not be taken away.
pub(super) fn give_up_others() -> Result<(), Error> {
    if !Place::has_others() {
        return Ok(());
    }
    let mut known = BTreeSet::new();
    if let Some(place) = Place::find() {
        known.extend(tables::uplinks(&place)?.all()?.into_iter().map(|(index, _)| index));
        known.extend(Tables::open(&place)?.pods.all()?.into_iter().map(|(index, _)| index));
    }
    let failed = |e| Error::kernel("look for links with programs of another version", e);
    let links = RouteSocket::open().and_then(|socket| socket.links()).map_err(failed)?;
    let mut left = Vec::new();
    for link in links.into_iter().filter(|link| !known.contains(&link.index)) {
        match attach::detach(&link.name) {
            Ok(true) => left.push(link.name),
            Ok(false) => {}
            // A link may go at any time.
            Err(error) => log::debug!("{error}"),
        }
    }
    if !left.is_empty() {
        log::warn!("the programs of another version were at {}: nftables serves there", left.join(", "));
    }
    Place::remove_others()
}

/// The addresses that the programs know for the node's where nftables is to decide about what is addressed to it.
static NONE: BTreeMap<IpAddr, u32> = BTreeMap::new();

/// Ports that the node's own sockets may choose, too, are none to masquerade with: nftables does it then, as it does
/// beside an engine that translates Services.
fn configuration(place: &Place, ports: PortRange, engine: Option<String>) -> Config {
    let netns_cookie = match cookie::of_this_namespace() {
        // What was learnt before holds until it is learnt again.
        0 => configured(place).map_or(0, |config| config.netns_cookie),
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

fn without_masquerade(config: Config) -> Config {
    Config { masquerade_first: u16::MAX, masquerade_last: 0, ..config }
}

/// Leaves published ports and masquerade to nftables once kube-proxy is there, which may come later than the programs.
/// Flows that they translate go on.
///
/// # Errors
/// The settings cannot be read or written.
pub(super) fn yield_to_services(place: &Place) -> Result<(), Error> {
    let config = configured(place)?;
    if (masquerade_ports(config).is_some() || knows_addresses(place)?)
        && let Some(why) = services::kube_proxy()
    {
        log::warn!("published ports and masquerade are left to nftables: {why}");
        tell_addresses(place, &NONE)?;
        configure(place, without_masquerade(config))?;
    }
    Ok(())
}

/// True if the programs know the node's addresses, without which they translate nothing that is addressed to it.
pub(super) fn knows_addresses(place: &Place) -> Result<bool, Error> {
    let (v4, v6) = tables::locals(place)?;
    Ok(!v4.all()?.is_empty() || !v6.all()?.is_empty())
}

fn configure(place: &Place, config: Config) -> Result<(), Error> {
    tables::config(place)?.set(0, config, 0).map_err(|e| Error::kernel("write to the BPF map config", e))
}

pub(super) fn configured(place: &Place) -> Result<Config, Error> {
    tables::config(place)?.get(&0, 0).map_err(|e| Error::kernel("read the BPF map config", e))
}

/// Containers may be there that others serve: our table, the chains of iptables, the reference's rules.
fn reserve_ports(place: &Place) {
    let listed = |backend: &dyn Backend| -> Result<Vec<PublishedPort>, Error> {
        Ok(backend.list()?.into_iter().map(|one| one.port).collect())
    };
    let reference = || match Reference::find()? {
        Some(found) => Ok(found.survey()?.into_iter().filter_map(Piece::into_ports).flatten().collect()),
        None => Ok(Vec::new()),
    };
    for found in [listed(&Nftables::new()), listed(&Iptables::new()), reference()] {
        match found.and_then(|ports| entries::reserve_all(place, &ports)) {
            Ok(()) | Err(Error::NoNfTables(_)) => {}
            Err(error) => log::warn!("tell the BPF maps what others serve: {error}"),
        }
    }
}

/// Has the program at connect(2) note the cookie of this namespace where the kernel tells it to nobody else
/// (before Linux 5.14): it sees a socket here connect that it was told of.
fn learn_cookie(place: &Place) -> Result<(), Error> {
    if cookie::of_this_namespace() != 0 {
        return Ok(());
    }
    let config = configured(place)?;
    let Some((socket, teacher)) = cookie::teacher() else { return Ok(()) };
    configure(place, Config { teacher, ..config })?;
    // Whatever becomes of the call, nothing is sent. 9 is the port of discard (RFC 863).
    let _ = socket.connect((Ipv4Addr::LOCALHOST, 9));
    let netns_cookie = configured(place)?.netns_cookie;
    configure(place, Config { netns_cookie, ..config })
}

fn tell_addresses(place: &Place, wanted: &BTreeMap<IpAddr, u32>) -> Result<(), Error> {
    let (mut v4, mut v6) = tables::locals(place)?;
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
    if let Some(place) = Place::find() {
        refuse_abroad(&place)?;
    }
    let mut results = vec![give_up_others()];
    if let Some(place) = Place::find() {
        // Once more just before the pins go: a container may have come meanwhile.
        for _ in 0..2 {
            results.extend(let_all_go(&place));
        }
    }
    let removed = Place::remove_all();
    spare_ports(None);
    results.into_iter().collect::<Result<(), Error>>()?;
    removed
}

/// Has netfilter serve what the programs know, and takes them from where they are attached.
fn let_all_go(place: &Place) -> Vec<Result<(), Error>> {
    // Whatever container comes from here on begins nothing that only the program at an uplink can undo.
    let mut results = vec![links::withhold_addresses(place)];
    // Before they are forgotten.
    let pods = Tables::open(place).and_then(|tables| tables.pods.all());
    // What cannot be handed over ends, which is no reason to leave the programs where they are.
    if let Err(error) = hand_over(place) {
        log::warn!("give conntrack what the BPF programs have: {error}");
    }
    let uplinks = tables::uplinks(place).and_then(|table| table.all());
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
fn hand_over(place: &Place) -> Result<(), Error> {
    if !is_set_up(place) {
        return Ok(());
    }
    let mut tables = Tables::open(place)?;
    let pods = tables.pods.all()?.into_iter().map(|(link, pod)| (link, pod.generation)).collect();
    let handed = handover::hand_over(place, &mut tables, &pods)?;
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
    Place::is_there()
}

/// Looks at the programs of this node.
///
/// # Errors
/// What is pinned cannot be read, or is another network namespace's.
pub fn status(settings: &Settings) -> Result<Status, Error> {
    let Some(place) = Place::find() else {
        let around = uplinks::look(&settings.uplinks).map_err(|e| Error::kernel("look for uplinks", e))?;
        return Ok(Status { served_elsewhere: links::served_from_elsewhere(&around)?, ..Status::default() });
    };
    refuse_abroad(&place)?;
    let tables = Tables::open(&place)?;
    let socket = RouteSocket::open().map_err(|e| Error::kernel("reach rtnetlink", e))?;
    let name = |index: u32| socket.link_by_index(index).map_or_else(|_| index.to_string(), |link| link.name);
    let mut uplinks: Vec<String> =
        tables::uplinks(&place)?.all()?.into_iter().map(|(i, _)| name(i)).collect();
    uplinks.sort();
    let pods = tables.pods.all()?;
    let counted = tables::counters(&place)?;
    let value = |index: usize| counted.get(index).copied().unwrap_or_default();
    let each = Counter::ALL.into_iter().map(|counter| (counter, value(counter as usize)));
    let left = Reason::ALL.into_iter().map(|reason| (reason, value(reason.fallback())));
    let (dropped, counters): (Vec<_>, Vec<_>) =
        each.filter(|(_, count)| *count != 0).partition(|(counter, _)| counter.is_drop());
    Ok(Status {
        is_set_up: is_set_up(&place),
        is_current: programs(&place).is_ok_and(|folder| folder.is_dir()),
        uplinks,
        served_elsewhere: Vec::new(),
        uplinks_without: links::without(&place, &settings.uplinks)?,
        sockets: Some(sockets_of(&place, settings)),
        masquerade_ports: configured(&place).ok().and_then(masquerade_ports),
        masquerade_clash: settings.masquerade_ports.clash(),
        services: services::engine(),
        ports_left: !knows_addresses(&place)?,
        containers: pods.len(),
        containers_left: pods.iter().filter(|(_, pod)| pod.flags & LEFT != 0).count(),
        ports: tables.ports()?,
        counters,
        dropped,
        left: left.filter(|(_, count)| *count != 0).collect(),
    })
}

/// The ports that only the programs may masquerade with, if there are programs on this node: one system call
/// where there are none.
pub(super) fn reserved_ports() -> Option<PortRange> {
    configured(&at_home()?).ok().and_then(masquerade_ports)
}

/// Netfilter's masquerade leaves the programs' ports alone before they take any.
fn spare_ports(ports: Option<PortRange>) {
    if let Err(error) = crate::nftables::spare_ports(ports) {
        log::warn!("the masquerade of nftables does not leave ports {ports:?} to the programs: {error}");
    }
}

fn masquerade_ports(config: Config) -> Option<PortRange> {
    let (first, last) = (config.masquerade_first, config.masquerade_last);
    (first <= last).then_some(PortRange { first, last })
}

fn sockets_of(place: &Place, settings: &Settings) -> Sockets {
    let found = match programs(place) {
        Ok(folder) => sockets::state(&folder, &settings.cgroup),
        Err(error) => return Sockets::Not(error.to_string()),
    };
    if matches!(found, Sockets::At(_)) && configured(place).is_ok_and(|config| config.netns_cookie == 0) {
        let why = "attached, but this kernel did not tell the cookie of the node's network namespace";
        return Sockets::Not(why.to_owned());
    }
    found
}
