// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds rules of other programs that translate packets to a published port before our table sees these packets.
//!
//! The kernel calls the chains of type nat in the order of their priority, and the first chain that translates a
//! connection decides. Our chain comes just after the usual priority, so Services take precedence. For the same
//! reason, so does a rule that a program has left behind for a container that is gone.

mod legacy;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use cni_kernel::route::{RouteKind, RouteSocket};
pub use cni_nftables::Hook;
pub use cni_nftables::probe::Probe;
use cni_nftables::probe::{self, Action, Data, EncodedRule, Surroundings, Unknown};
use cni_nftables::{
    ChainInfo, ChainKind, Error as NftError, Family, SetInfo, Socket, TableId, TableInfo, Verdict,
};
use cni_spec::text::shell_word;

use crate::nftables::schema;
use crate::{AddressFamily, Error, HostAddress, HostPorts, PublishedPort};
use legacy::LegacyNat;

/// How deeply jumps between chains can be nested (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;
/// How many rules are followed for one port at most, because a service proxy may have a hundred thousand.
const MOST_RULES: usize = 20_000;
/// The same for an ADD, which must not become slower.
const MOST_RULES_OF_ADD: usize = 500;
/// An ADD lists the chains of other programs only if all tables together have at most this many objects.
const MOST_OBJECTS_OF_ADD: u32 = 1000;
/// Tables in which an ADD finds the base chain by its name. The table of kube-proxy is left out.
const KNOWN: [(&str, &str); 3] =
    [("nat", "PREROUTING"), ("docker-bridges", "nat-PREROUTING"), ("netavark", "PREROUTING")];
const SERVICES: &str = "kube-proxy";
/// The tables of iptables that contain no translations.
const WITHOUT_NAT: [&str; 4] = ["filter", "mangle", "raw", "security"];
/// The prefix of a container's chain, ours or the reference plugin's, in the tables of iptables.
const OWN: &str = "CNI-DN-";

/// The program that manages a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    KubeProxy,
    Docker,
    Netavark,
    Other,
}

impl Engine {
    /// The program's name, or none for another program.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::KubeProxy => Some("kube-proxy"),
            Self::Docker => Some("Docker"),
            Self::Netavark => Some("netavark"),
            Self::Other => None,
        }
    }

    fn of(table: &TableId, path: &[String]) -> Self {
        match table.name.as_str() {
            "kube-proxy" => Self::KubeProxy,
            "docker-bridges" => Self::Docker,
            "netavark" => Self::Netavark,
            _ => Self::of_chains(path),
        }
    }

    /// Recognises the program by the names of the chains that led to a rule.
    fn of_chains(path: &[String]) -> Self {
        let any = |begin: &str| path.iter().any(|chain| chain.starts_with(begin));
        match () {
            () if any("KUBE-") => Self::KubeProxy,
            () if any("DOCKER") => Self::Docker,
            () if any("NETAVARK") => Self::Netavark,
            () => Self::Other,
        }
    }
}

/// Where a rule is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Table {
        table: TableId,
        handle: u64,
        /// The map element that contains the target, as the map and the key in nft's syntax.
        element: Option<(String, String)>,
    },
    /// In the legacy nat table: the rule's number in its chain.
    Legacy(AddressFamily, usize),
}

/// A rule that translates packets before ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Translation {
    pub place: Place,
    pub chain: String,
    /// The base chain, and its priority.
    pub base: String,
    pub priority: i32,
    pub engine: Engine,
    /// The address that packets are translated to. None if it is an address of the node, or unknown.
    pub to: Option<IpAddr>,
    /// The port that packets are translated to. None if the port is kept.
    pub port: Option<u16>,
    /// False if the translation depends on an unknown part of the packet.
    pub is_certain: bool,
}

impl Translation {
    /// Describes the place of the rule for people.
    #[must_use]
    pub fn rule(&self) -> String {
        match &self.place {
            Place::Table { table, handle, .. } => {
                format!("the rule with handle {handle} in chain {} of table {table}", self.chain)
            }
            Place::Legacy(family, number) => {
                format!("rule {number} in chain {} of `{}`", self.chain, legacy::command(*family))
            }
        }
    }

    /// Describes the base chain for people.
    #[must_use]
    pub fn base_chain(&self) -> String {
        match &self.place {
            Place::Table { table, .. } => format!("chain {} of table {table}", self.base),
            Place::Legacy(family, _) => format!("chain {} of `{}`", self.base, legacy::command(*family)),
        }
    }

    /// Describes the target for people.
    #[must_use]
    pub fn target(&self) -> String {
        match (self.to, self.port) {
            (Some(to), Some(port)) => SocketAddr::new(to, port).to_string(),
            (Some(to), None) => to.to_string(),
            (None, Some(port)) => format!("port {port} of the node"),
            (None, None) => "an unknown address".to_owned(),
        }
    }

    /// The command that deletes the rule, or the map element for the port. The names in it were chosen by other
    /// programs.
    #[must_use]
    pub fn deletion(&self) -> String {
        let chain = shell_word(&self.chain);
        let name = |table: &TableId| format!("{} {}", table.family, shell_word(&table.name));
        match &self.place {
            Place::Table { table, element: Some((map, key)), .. } => {
                format!("nft delete element {} {} {{ {key} }}", name(table), shell_word(map))
            }
            Place::Table { table, handle, element: None } => {
                format!("nft delete rule {} {chain} handle {handle}", name(table))
            }
            Place::Legacy(family, number) => {
                format!("{} --delete {chain} {number}", legacy::command(*family))
            }
        }
    }
}

impl fmt::Display for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} translates it to {}", self.rule(), self.target())
    }
}

/// Rules that were read, by table and chain.
type Rules = BTreeMap<(TableId, String), Rc<Vec<EncodedRule>>>;

/// Reads the chains of other programs.
#[derive(Debug)]
pub struct ForeignNat {
    /// None if the kernel has no nf_tables.
    socket: Option<Socket>,
    bases: Vec<ChainInfo>,
    legacy: Vec<LegacyNat>,
    most_rules: usize,
    /// True if the chains of a service proxy are followed, too.
    follows_services: bool,
    rules: RefCell<Rules>,
    sets: RefCell<BTreeMap<(TableId, String), Option<SetInfo>>>,
}

/// True if a base chain may translate packets before ours.
fn is_earlier(chain: &ChainInfo, hook: Hook) -> bool {
    chain.table != schema::table()
        && chain.base.is_some_and(|base| {
            base.kind == ChainKind::Nat && base.hook == hook && base.priority < schema::BEHIND_DSTNAT
        })
}

impl ForeignNat {
    /// Reads the base chains of other programs that come before ours at a hook. None if there are no such chains.
    ///
    /// # Errors
    /// nf_tables or the legacy tables cannot be read.
    pub fn open(hook: Hook) -> Result<Option<Self>, Error> {
        let socket = match Socket::open() {
            Err(error) if error.unsupported().is_some() => None,
            other => Some(other.map_err(|e| Error::kernel("reach nf_tables", e))?),
        };
        let chains = socket.as_ref().map_or_else(|| Ok(Vec::new()), Socket::all_chains);
        let chains = chains.map_err(|e| Error::kernel("list all chains", e))?;
        let bases = chains.into_iter().filter(|chain| is_earlier(chain, hook)).collect();
        Ok(Self::of(socket, bases, legacy::read(hook, MOST_RULES)?))
    }

    fn of(socket: Option<Socket>, mut bases: Vec<ChainInfo>, legacy: Vec<LegacyNat>) -> Option<Self> {
        // The kernel lists tables by age, and calls the newer one of two chains with the same priority first.
        bases.reverse();
        bases.sort_by_key(|chain| chain.base.map(|base| base.priority));
        let (rules, sets) = (RefCell::default(), RefCell::default());
        let all = Self { socket, bases, legacy, most_rules: MOST_RULES, follows_services: true, rules, sets };
        (!all.bases.is_empty() || !all.legacy.is_empty()).then_some(all)
    }

    /// Like [`Self::open`] for the hook of received packets, but finds the chains by the names of the node's tables,
    /// with few requests to the kernel.
    fn by_tables(tables: &[TableInfo]) -> Result<Option<Self>, Error> {
        let legacy = legacy::read(Hook::Prerouting, MOST_RULES_OF_ADD)?;
        let candidates: Vec<&TableInfo> = tables.iter().filter(|table| may_translate(&table.id)).collect();
        let (socket, bases) = match candidates.is_empty() {
            true => (None, Vec::new()),
            false => {
                let socket = Socket::open().map_err(|e| Error::kernel("reach nf_tables", e))?;
                let bases = base_chains(&socket, tables, &candidates);
                (Some(socket), bases.map_err(|e| Error::kernel("list chains", e))?)
            }
        };
        let all = Self::of(socket, bases, legacy);
        Ok(all.map(|all| Self { most_rules: MOST_RULES_OF_ADD, follows_services: false, ..all }))
    }

    fn rules(&self, table: &TableId, chain: &str) -> Result<Rc<Vec<EncodedRule>>, Error> {
        let key = (table.clone(), chain.to_owned());
        if let Some(known) = self.rules.borrow().get(&key) {
            return Ok(Rc::clone(known));
        }
        let Some(socket) = &self.socket else { return Ok(Rc::default()) };
        let read = socket.encoded_rules(table, chain);
        let read =
            Rc::new(read.map_err(|e| Error::kernel(format!("list rules of chain {table} {chain}"), e))?);
        self.rules.borrow_mut().insert(key, Rc::clone(&read));
        Ok(read)
    }

    /// Describes a packet to a published port.
    #[must_use]
    pub fn probe(host: &HostPorts, port: u16) -> Probe {
        let to = match host.address {
            HostAddress::One(address) => Some(address),
            HostAddress::Any(_) => None,
        };
        let (family, protocol) = (host.address.family(), host.protocol.number());
        Probe { family, protocol, to, port, from: None, link: None }
    }

    /// Finds the first rule that translates a packet. A rule that may or may not apply is returned only if no rule
    /// certainly applies.
    ///
    /// # Errors
    /// nf_tables cannot be read.
    pub fn first(&self, probe: &Probe) -> Result<Option<Translation>, Error> {
        let mut walk = Walk { all: self, probe, left: self.most_rules, uncertain: None };
        for base in &self.bases {
            let fits = match base.table.family {
                Family::Ip => probe.family == AddressFamily::V4,
                Family::Ip6 => probe.family == AddressFamily::V6,
                _ => true,
            };
            let Some(hooked) = base.base.filter(|_| fits) else { continue };
            let mut path = Vec::new();
            let found = walk.chain(&base.table, &base.name, &mut path, true)?;
            let finish = |found: Translation| Translation {
                base: base.name.clone(),
                priority: hooked.priority,
                ..found
            };
            walk.uncertain =
                walk.uncertain.take().map(|held| if held.base.is_empty() { finish(held) } else { held });
            match found {
                After::Translated(found) => return Ok(Some(finish(*found))),
                After::Ours => return Ok(walk.uncertain),
                After::Returned | After::Ended => {}
            }
        }
        for legacy in self.legacy.iter().filter(|legacy| legacy.family == probe.family) {
            let found = legacy.first(probe, self.follows_services, &is_local);
            if let Some(found) = found.filter(|found| found.is_certain || walk.uncertain.is_none()) {
                return Ok(Some(found));
            }
        }
        Ok(walk.uncertain)
    }
}

/// How the processing of a chain ends.
enum After {
    /// The packet continues in the calling chain.
    Returned,
    /// The processing of the base chain ends.
    Ended,
    /// A chain of iptables with a container's mappings has translated the packet.
    Ours,
    Translated(Box<Translation>),
}

/// The base chains for received packets in tables of other programs, looked up by name where the names are known.
fn base_chains(
    socket: &Socket,
    tables: &[TableInfo],
    candidates: &[&TableInfo],
) -> Result<Vec<ChainInfo>, NftError> {
    let mut bases = Vec::new();
    let mut are_all_known = true;
    for table in candidates {
        let known = KNOWN.iter().find(|(name, _)| *name == table.id.name);
        let chain = known.map_or(Ok(None), |(_, chain)| socket.chain(&table.id, chain))?;
        are_all_known &= chain.is_some();
        bases.extend(chain);
    }
    if !are_all_known {
        let objects: u32 = tables.iter().map(|table| table.uses).sum();
        if objects > MOST_OBJECTS_OF_ADD {
            log::debug!("too many chains to look for other programs' translations");
        } else {
            bases = socket.all_chains()?;
        }
    }
    bases.retain(|chain| is_earlier(chain, Hook::Prerouting) && chain.table.name != SERVICES);
    Ok(bases)
}

/// True if this table of another program may contain chains that translate.
fn may_translate(table: &TableId) -> bool {
    let of_iptables =
        matches!(table.family, Family::Ip | Family::Ip6) && WITHOUT_NAT.contains(&table.name.as_str());
    let translates = matches!(table.family, Family::Ip | Family::Ip6 | Family::Inet);
    translates && !of_iptables && !table.name.starts_with(schema::DEFINITION.name) && table.name != SERVICES
}

/// Warns about rules of other programs that translate packets to these ports before ours. `tables` returns the node's
/// tables.
pub(crate) fn warn(ports: &[PublishedPort], tables: impl FnOnce() -> Vec<TableInfo>) {
    if !log::log_enabled!(log::Level::Warn) {
        return;
    }
    let found = match ForeignNat::by_tables(&tables()) {
        Ok(None) => return,
        Ok(Some(found)) => found,
        Err(error) => return log::debug!("look for other programs' translations: {error}"),
    };
    for port in ports {
        match found.first(&ForeignNat::probe(&port.host, port.host.first)) {
            Ok(Some(first)) if first.is_certain || first.to.is_some() => {
                let translates = if first.is_certain { "translates" } else { "may translate" };
                let target = first.target();
                log::warn!(
                    "host port {}: {} comes before and {translates} it to {target}: `slipway check-node` says more",
                    port.host,
                    first.rule()
                );
            }
            Ok(_) => {}
            Err(error) => return log::debug!("look for other programs' translations: {error}"),
        }
    }
}

/// Follows one packet through the chains.
struct Walk<'a> {
    all: &'a ForeignNat,
    probe: &'a Probe,
    /// How many more rules may be read.
    left: usize,
    /// The first rule that may translate the packet.
    uncertain: Option<Translation>,
}

impl Walk<'_> {
    fn chain(
        &mut self,
        table: &TableId,
        name: &str,
        path: &mut Vec<String>,
        is_certain: bool,
    ) -> Result<After, Error> {
        if path.len() >= DEEPEST || self.left == 0 {
            return Ok(After::Returned);
        }
        if name.starts_with("KUBE-") && !self.all.follows_services {
            return Ok(After::Returned);
        }
        path.push(name.to_owned());
        let rules = self.all.rules(table, name)?;
        self.left = self.left.saturating_sub(rules.len());
        let mut after = After::Returned;
        let surroundings = Sets { all: self.all, table, found: RefCell::default() };
        for rule in rules.iter() {
            surroundings.found.take();
            let Some(effect) = probe::effect(&rule.expressions, self.probe, &surroundings) else { continue };
            let sure = is_certain && effect.is_certain;
            let (to, port) = match effect.action {
                Action::Continue => continue,
                Action::Translate(to, port) => (to, port),
                Action::Redirect(port) => (None, Some(port.unwrap_or(self.probe.port))),
                Action::Verdict(verdict) => match self.verdict(verdict, table, path, sure)? {
                    None => continue,
                    Some(ends) => {
                        after = ends;
                        break;
                    }
                },
            };
            if name.starts_with(OWN) {
                after = if sure { After::Ours } else { continue };
                break;
            }
            let (engine, element) = (Engine::of(table, path), surroundings.found.take());
            let place = Place::Table { table: table.clone(), handle: rule.handle, element };
            let (chain, base, priority, is_certain) = (name.to_owned(), String::new(), 0, sure);
            let found = Translation { place, chain, base, priority, engine, to, port, is_certain };
            if sure {
                after = After::Translated(Box::new(found));
                break;
            }
            self.uncertain.get_or_insert(found);
        }
        path.pop();
        Ok(after)
    }

    /// How a verdict ends the chain with the rule, or none if the chain continues. A verdict that the packet may not
    /// reach ends nothing.
    fn verdict(
        &mut self,
        verdict: Verdict,
        table: &TableId,
        path: &mut Vec<String>,
        sure: bool,
    ) -> Result<Option<After>, Error> {
        let (next, returns) = match verdict {
            Verdict::Jump(next) => (next, true),
            Verdict::Goto(next) => (next, false),
            Verdict::Return => return Ok(sure.then_some(After::Returned)),
            Verdict::Accept | Verdict::Drop => return Ok(sure.then_some(After::Ended)),
            Verdict::Continue => return Ok(None),
        };
        Ok(match self.chain(table, &next, path, sure)? {
            After::Returned if returns || !sure => None,
            After::Ended | After::Ours if !sure => None,
            after => Some(after),
        })
    }
}

/// The sets and maps of a table.
struct Sets<'a> {
    all: &'a ForeignNat,
    table: &'a TableId,
    /// The last map element that was found, as the map and the key in nft's syntax.
    found: RefCell<Option<(String, String)>>,
}

impl Sets<'_> {
    fn set(&self, name: &str) -> Option<SetInfo> {
        let key = (self.table.clone(), name.to_owned());
        let mut known = self.all.sets.borrow_mut();
        let read = || self.all.socket.as_ref()?.set(self.table, name).ok().flatten();
        known.entry(key).or_insert_with(read).clone()
    }
}

impl Surroundings for Sets<'_> {
    fn element(&self, set: &str, key: &dyn Fn(usize) -> Option<Vec<u8>>) -> Result<Option<Data>, Unknown> {
        let info = self.set(set).ok_or(Unknown)?;
        let len = usize::try_from(info.key_len).map_err(|_| Unknown)?;
        let socket = self.all.socket.as_ref().ok_or(Unknown)?;
        let found = socket.element_by_bytes(self.table, &info, &key(len).ok_or(Unknown)?)?;
        Ok(found.map(|(key, data)| {
            if matches!(&data, Data::Bytes(bytes) if !bytes.is_empty()) {
                self.found.replace(Some((set.to_owned(), key)));
            }
            data
        }))
    }

    fn is_local(&self, address: IpAddr) -> bool {
        is_local(address)
    }
}

/// True for an address of the node.
fn is_local(address: IpAddr) -> bool {
    let route = RouteSocket::open().and_then(|socket| socket.route_to(address));
    route.is_ok_and(|route| route.kind == RouteKind::Local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_another_program_chose_is_one_word_of_the_command() {
        let table = TableId { family: Family::Ip, name: "a;reboot".to_owned() };
        let of = |place| Translation {
            place,
            chain: "x`id`".to_owned(),
            base: "PREROUTING".to_owned(),
            priority: -100,
            engine: Engine::Other,
            to: None,
            port: None,
            is_certain: true,
        };
        let rule = of(Place::Table { table, handle: 7, element: None });
        assert_eq!(rule.deletion(), "nft delete rule ip 'a;reboot' 'x`id`' handle 7");
        let legacy = of(Place::Legacy(AddressFamily::V6, 2));
        assert_eq!(legacy.deletion(), "ip6tables-legacy --table nat --delete 'x`id`' 2");
    }
}
