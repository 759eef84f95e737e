// SPDX-License-Identifier: GPL-2.0-or-later

//! The default backend. Everything is in the maps of one table, `inet slipway`. Publishing and withdrawing change
//! only elements, and the cost of a packet, an ADD and a DEL does not grow with the number of containers.

pub mod addresses;
pub mod conditions;
pub(crate) mod conntrack;
pub mod exempt;
pub(crate) mod liveness;
pub(crate) mod migration;
mod migration_state;
pub(crate) mod network_chains;
pub(crate) mod networks;
pub mod offload;
pub(crate) mod owner_entry;
pub(crate) mod plan;
pub(crate) mod publish;
pub(crate) mod schema;
pub(crate) mod session;
pub(crate) mod state;
#[cfg(test)]
mod tests;
pub(crate) mod udp_flows;
mod withdraw;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use cni_nftables::ElementData;
use cni_nftables::conntrack::{Conntrack, Filter, Flow};
use cni_spec::Attachment;
use ipnet::IpNet;

use crate::owned_table::unless_no_nf_tables;
use crate::{
    Backend, BackendName, Before, Error, Flows, Kinds, Listed, MasqueradeRequest, PortRequest, Protocol,
    PublishedFlow, PublishedPort, Withdrawal,
};
use conntrack::{Selection, Target};
use offload::Offload;
use publish::{Job, Made};
use schema::{Layout, Map, Protocols};
use session::{Listing, OwnedElement, Session};
use state::State;
pub use udp_flows::FlowSearch;

/// The nftables backend, which acts on the network namespace of the calling thread.
///
/// The process must be in the mount namespace of the runtime, because the paths of network namespaces are valid
/// there.
#[derive(Debug, Default)]
pub struct Nftables {
    offload: Offload,
    search: FlowSearch,
}

impl Nftables {
    /// Makes the backend, without opening anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how established flows are handled, from the next call that publishes or masquerades on.
    #[must_use]
    pub fn offload(mut self, offload: Offload) -> Self {
        self.offload = offload;
        self
    }

    /// Sets when conntrack is searched for flows of published UDP ports.
    #[must_use]
    pub fn flow_search(self, search: FlowSearch) -> Self {
        Self { search, ..self }
    }

    /// Updates the flowtable. A failure is only logged, because every packet then goes through the chains.
    fn settle(&self, session: &Session, containers: impl Iterator<Item = IpAddr>) {
        if let Err(error) = offload::settle(session, &self.offload, &containers.collect::<Vec<_>>()) {
            log::warn!("established flows are not offloaded: {error}");
        }
    }

    /// Removes what the withdrawal names. If nothing was written, returns the socket, so that the caller can use it
    /// for the next read.
    pub(crate) fn take_away(&self, withdrawal: &Withdrawal<'_>) -> Result<Option<Session>, Error> {
        let withdrawn = Session::open().and_then(|session| {
            let gone = withdraw::withdraw(&session, withdrawal)?;
            Ok(Some((session, gone)))
        });
        let Some((session, gone)) = unless_no_nf_tables(withdrawn)? else { return Ok(None) };
        if gone.is_empty() {
            return Ok(Some(session));
        }
        end_flows(session, &gone, withdrawal.has_vanished);
        Ok(None)
    }

    /// Reads the flows through these mappings from conntrack. All are counted, and `most` of them are returned.
    pub(crate) fn flows(&self, ports: &[Listed], most: usize) -> Result<Flows, Error> {
        let conntrack = Conntrack::open().map_err(|e| Error::kernel("reach conntrack", e))?;
        let mut index = BTreeMap::<_, Vec<usize>>::new();
        for (i, listed) in ports.iter().enumerate() {
            index.entry((listed.port.host.protocol.number(), listed.port.container)).or_default().push(i);
        }
        let mut found = Flows::to(ports.len());
        let count = |flow: &Flow| {
            let through = index.get(&(flow.original.protocol, flow.reply.source)).into_iter().flatten();
            for i in through.filter(|i| ports.get(**i).is_some_and(|listed| goes_through(flow, &listed.port)))
            {
                found.add(flow_to(*i, flow), most);
            }
        };
        conntrack.for_each(&Filter::all(None), count).map_err(|e| Error::kernel("list the flows", e))?;
        Ok(found)
    }
}

/// Describes a flow through the mapping with this index.
fn flow_to(port: usize, flow: &Flow) -> PublishedFlow {
    let to = flow.original;
    PublishedFlow {
        port,
        protocol: to.protocol,
        client: SocketAddr::new(to.source, to.source_port),
        host: SocketAddr::new(to.destination, to.destination_port),
        counted: flow.counted,
        is_carried: false,
    }
}

fn goes_through(flow: &Flow, port: &PublishedPort) -> bool {
    let to = flow.original;
    let offset = to.destination_port.wrapping_sub(port.host.first);
    flow.is_dnat()
        && (port.host.first..=port.host.last).contains(&to.destination_port)
        && flow.reply.source_port == port.container_port.wrapping_add(offset)
        && match port.host.address {
            crate::HostAddress::One(address) => address == to.destination,
            crate::HostAddress::Any(_) => true,
        }
}

pub(crate) fn ports_job(request: &PortRequest) -> Result<Job, Error> {
    let plan = plan::ports(request)?;
    let mut rules = Vec::new();
    for family in &plan.own_chains {
        let conditions = conditions::parse(request.nftables.conditions.of(*family), *family)?;
        let named: Vec<PublishedPort> = request.on_loopback(*family).copied().collect();
        let named: Vec<_> = plan::collapse(&named).iter().map(|port| port.host).collect();
        let except = request.spares_loopback(*family).then_some(named.as_slice());
        rules.push((*family, schema::own_chain_rules(&conditions, except, request.mark_bit, *family)));
    }
    let job = Job::new(schema::KIND_PORTS, &request.attachment, &request.netns, plan);
    Ok(job.with_own_rules(rules))
}

pub(crate) fn masquerade_job(request: &MasqueradeRequest) -> Job {
    let plan = plan::masquerade(request);
    Job::new(schema::KIND_MASQUERADE, &request.attachment, &request.netns, plan)
}

/// Like [`end_flows`], for the elements of dead owners that an ADD has removed.
pub(crate) fn end_flows_of_the_dead(gone: &[OwnedElement]) {
    if gone.is_empty() {
        return;
    }
    match Session::open() {
        Ok(session) => end_flows(session, gone, true),
        Err(error) => log::warn!("look for the flows of a dead container: {error}"),
    }
}

/// Removes the flows of these elements, after the elements have been removed. Flows that [`conntrack`] describes and
/// offloaded flows would otherwise last, and lead to the container that gets the address next. A failure is logged.
fn end_flows(session: Session, gone: &[OwnedElement], has_vanished: bool) {
    if gone.is_empty() {
        return;
    }
    let ports = gone.iter().filter_map(published);
    let ports: Vec<_> =
        ports.map(|port| (port.host, Selection::withdrawn(port.container, has_vanished))).collect();
    let offloaded = match session.layout() {
        Ok(Layout { offloading: Some(Protocols::TcpAndUdp), .. }) => {
            gone.iter().filter_map(container).collect()
        }
        Ok(_) => BTreeSet::new(),
        Err(error) => {
            log::warn!("look for a flowtable: {error}");
            BTreeSet::new()
        }
    };
    let udp_may_flow = udp_flows::may_be_there(&session, &ports);
    drop(session);
    let may_flow = |(host, _): &&Target| host.protocol != Protocol::Udp || udp_may_flow;
    or_warn(conntrack::flush(ports.iter().filter(may_flow)));
    offload::cut(&offloaded);
}

/// Logs a failure to remove flows. This is not an error, because idle flows end by themselves.
fn or_warn<T>(flushed: Result<T, Error>) {
    if let Err(e) = flushed {
        log::warn!("{e}");
    }
}

impl Backend for Nftables {
    fn publish(&self, request: &PortRequest) -> Result<Before, Error> {
        let session = Session::open()?;
        let Made { before, gone } = ports_job(request)?.run(&session)?;
        end_flows_of_the_dead(&gone);
        addresses::settle_or_warn(&session);
        self.settle(&session, request.networks.iter().map(IpNet::addr));
        let ports = plan::collapse(&request.ports);
        let ports: Vec<_> = ports.iter().map(|port| (port.host, Selection::NotTo(port.container))).collect();
        or_warn(udp_flows::flush(&session, self.search, &ports));
        or_warn(conntrack::flush(conntrack::of(Protocol::Sctp, &ports)));
        Ok(before)
    }

    fn masquerade(&self, request: &MasqueradeRequest) -> Result<Before, Error> {
        let session = Session::open()?;
        let Made { before, gone } = masquerade_job(request).run(&session)?;
        end_flows_of_the_dead(&gone);
        addresses::settle_or_warn(&session);
        self.settle(&session, request.addresses.iter().map(IpNet::addr));
        Ok(before)
    }

    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error> {
        self.take_away(withdrawal).map(drop)
    }

    fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        ports_job(request)?.check(&Session::open()?)
    }

    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        masquerade_job(request).check(&Session::open()?)
    }

    fn retain(&self, network: &str, valid: &[Attachment], kinds: Kinds) -> Result<(), Error> {
        let kinds = withdraw::kinds(kinds);
        unless_no_nf_tables(Session::open().and_then(|session| {
            let mut gone = Vec::new();
            let done = withdraw::retain(&session, (network, valid), &kinds, &mut gone);
            end_flows(session, &gone, true);
            done
        }))
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        let session = Session::open()?;
        let mut all: Vec<Listed> = session
            .list(Listing::Changing, Map::with_ports(), |_| true)?
            .into_iter()
            .filter_map(|held| {
                published(&held).map(|port| Listed {
                    owner: held.owner,
                    port,
                    backend: BackendName::Nftables,
                })
            })
            .collect();
        all.sort_by(|a, b| (a.port, &a.owner).cmp(&(b.port, &b.owner)));
        Ok(all)
    }

    fn status(&self) -> Result<(), Error> {
        let session = Session::open()?;
        session.generation()?;
        match session.state()? {
            // The node's addresses can change without an ADD.
            State::Ready => {
                addresses::settle_or_warn(&session);
                Ok(())
            }
            State::Damaged(_) => Ok(()),
            // Only the kernel can tell whether it has every expression that the table needs.
            State::Missing => {
                match session.socket.dry_run(&addresses::bootstrap()?) {
                    // An ADD has made the table meanwhile.
                    Err(e) if e.is_exists() => Ok(()),
                    tried => tried.map_err(|e| Error::kernel(format!("make table {}", schema::TABLE), e)),
                }
            }
        }
    }
}

/// Lists the owners in the table. None if there is no table.
pub(crate) fn owners() -> Result<Option<Vec<crate::Owner>>, Error> {
    let session = Session::open()?;
    if session.schema()?.is_none() {
        return Ok(None);
    }
    let entries = session.list(Listing::Changing, [Map::Owners], |_| true)?;
    Ok(Some(entries.into_iter().filter_map(|entry| entry.owner).collect()))
}

/// Opens a socket. None if the kernel has no nf_tables.
pub(crate) fn socket() -> Result<Option<cni_nftables::Socket>, Error> {
    unless_no_nf_tables(Session::open().map(|session| Some(session.into_socket())))
}

/// The container's address that is an element's key.
fn container(held: &OwnedElement) -> Option<IpAddr> {
    match held.map {
        Map::Published(_) | Map::Masqueraded(_) => held.address(),
        _ => None,
    }
}

/// The mapping that an element represents, if it represents one.
pub(crate) fn published(held: &OwnedElement) -> Option<PublishedPort> {
    match &held.data {
        ElementData::Values(data) => plan::published(held.map, &held.key, held.end.as_deref(), data),
        _ => None,
    }
}
