// SPDX-License-Identifier: GPL-2.0-or-later

//! The promises of the contract, each tried with real packets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use cni_dataplane::explain::{Origin, Packet};
use cni_dataplane::{AddressFamily, BackendName, Protocol};
use cni_kernel::mac::Mac;
use cni_kernel::netns::Netns;
use cni_kernel::packet::PacketSocket;
use cni_kernel::route::RouteSocket;
use cni_kernel::sysctl;
use cni_spec::{AddResult, ErrorCode};

use super::super::explain as explanation;
use super::super::trace;
use super::lab::{Ends, IFNAME, LINK, LabError, Member, Spaces};
use super::row::Row;
use super::traffic::{self, Client, Reply, Server};
use super::{Plan, SERVED};

/// The time in which a client of UDP must reach the new container.
const REPLACED: Duration = Duration::from_secs(5);
/// The time within which a packet that must not arrive would have arrived.
const ARRIVAL: Duration = Duration::from_millis(400);

/// The place that a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Node,
    In(Member),
}

impl Sender {
    const fn words(self) -> &'static str {
        match self {
            Self::Node => "the node",
            Self::In(Member::Outside) => "outside",
            Self::In(Member::Other) => "another container",
            Self::In(_) => "the container itself",
        }
    }
}

/// A request, and the promise about its reply.
struct Promise<'a> {
    from: Sender,
    /// The port to send from, 0 for any.
    from_port: u16,
    protocol: Protocol,
    to: SocketAddr,
    /// The address as the contract names it.
    what: &'a str,
    server: Member,
    /// The source that the server must see; none for any.
    source: Option<IpAddr>,
    page: &'static str,
}

/// How a reply differs from the promise.
#[derive(Debug, thiserror::Error)]
enum Breach<'a> {
    #[error("no reply: {0}")]
    NoReply(&'a io::Error),
    #[error("{got} replied instead of {wanted}")]
    Server { got: &'a str, wanted: &'static str },
    #[error("the server saw {got} instead of {wanted}")]
    Source { got: IpAddr, wanted: IpAddr },
    #[error("the server saw port {got} instead of {wanted}")]
    Port { got: u16, wanted: u16 },
}

/// The containers while the checks run.
pub(super) struct Stage<'a> {
    pub(super) spaces: &'a Spaces,
    pub(super) plan: &'a Plan,
    pub(super) pod: &'a AddResult,
    pub(super) other: &'a AddResult,
    pub(super) backend: Option<&'static str>,
    pub(super) rows: Vec<Row>,
    pub(super) progress: &'a mut dyn FnMut(&Row) -> Result<(), LabError>,
}

/// An address of a family in a result, with its gateway.
pub(super) fn address(result: &AddResult, family: AddressFamily) -> Option<(IpAddr, Option<IpAddr>)> {
    let found = result.ips.iter().find(|one| AddressFamily::of(one.address.addr()) == family);
    found.map(|one| (one.address.addr(), one.gateway))
}

const CONTRACT: &str = "docs/dataplane.md#the-contract";
const LOOPBACK: &str = "docs/dataplane.md#the-nodes-loopback";
const BRIDGE: &str = "docs/plugins/bridge.md";
const OWN_ADDRESS: &str = "the node's own address";
const NODES_LOOPBACK: &str = "the node's loopback";

impl Stage<'_> {
    fn push(&mut self, row: Row) -> Result<(), LabError> {
        (self.progress)(&row)?;
        self.rows.push(row);
        Ok(())
    }

    /// All promises about one family except the replacement of the container.
    pub(super) fn family(&mut self, family: AddressFamily, server: &Server) -> Result<(), LabError> {
        let (Some(ends), Some((pod, gateway))) = (self.spaces.ends(family), address(self.pod, family)) else {
            return Ok(());
        };
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            self.published(protocol, ends, gateway)?;
            self.loopback(protocol, family)?;
            self.containers(protocol, ends, pod)?;
            self.own_flow(protocol, ends)?;
        }
        let IpAddr::V4(node) = ends.node else { return Ok(()) };
        let near = RouteSocket::open()?.link(LINK)?.mac;
        self.guard(Member::Outside, ends.outside, node, near, server)?;
        // The first interface of the host is the bridge, or the only link.
        let near = self.other.interfaces.iter().find(|one| one.sandbox.is_empty());
        let near = near.and_then(|one| one.mac.parse().ok());
        match address(self.other, family) {
            Some((other, _)) => self.guard(Member::Other, other, node, near, server),
            None => Ok(()),
        }
    }

    /// Checks requests to the node's addresses from outside, from the node and from containers.
    fn published(&mut self, protocol: Protocol, ends: Ends, gateway: Option<IpAddr>) -> Result<(), LabError> {
        let family = AddressFamily::of(ends.node);
        let port = self.plan.port;
        let mut targets = vec![(ends.node, "the node's address (the test's)")];
        match self.plan.node_address(family) {
            Some(own) => targets.push((own, OWN_ADDRESS)),
            None => {
                let row = Row::new("outside", OWN_ADDRESS, protocol, None, CONTRACT);
                self.push(row.skipped("the node has no default route of this family, by which it is found"))?;
            }
        }
        for (ip, what) in targets {
            let to = SocketAddr::new(ip, port);
            let promise = |from, source| Promise { source, ..Promise::new(from, protocol, to, what) };
            let at_bridge = if self.plan.has_bridge() { gateway } else { None };
            let outside = if self.plan.masquerades_clients() { at_bridge } else { Some(ends.outside) };
            self.request(&promise(Sender::In(Member::Outside), outside))?;
            self.request(&promise(Sender::Node, None))?;
            self.request(&promise(Sender::In(Member::Other), at_bridge))?;
            let itself = Promise { page: BRIDGE, ..promise(Sender::In(Member::Pod), at_bridge) };
            self.request(&itself)?;
        }
        if let Some(gateway) = gateway {
            let to = SocketAddr::new(gateway, port);
            let (from, what) = (Sender::In(Member::Other), "the bridge's address");
            let source = if self.plan.has_bridge() { Some(gateway) } else { None };
            self.request(&Promise { source, ..Promise::new(from, protocol, to, what) })?;
        }
        Ok(())
    }

    /// Checks requests from the node to its loopback addresses.
    fn loopback(&mut self, protocol: Protocol, family: AddressFamily) -> Result<(), LabError> {
        let targets: &[IpAddr] = match family {
            AddressFamily::V4 => &[IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::new(127, 1, 2, 3))],
            AddressFamily::V6 => &[IpAddr::V6(Ipv6Addr::LOCALHOST)],
        };
        for ip in targets {
            let to = SocketAddr::new(*ip, self.plan.port);
            let promise = Promise::new(Sender::Node, protocol, to, NODES_LOOPBACK);
            self.request(&Promise { page: LOOPBACK, ..promise })?;
        }
        Ok(())
    }

    /// The documented reason for which a request gets no reply, with its page.
    fn exception(&self, promise: &Promise<'_>) -> Option<(&'static str, &'static str)> {
        const PORTMAP: &str = "docs/plugins/portmap.md";
        let ip = promise.to.ip();
        let (at_loopback, at_bridge) = (ip.is_loopback(), self.plan.has_bridge());
        if promise.server != Member::Pod || promise.to.port() != self.plan.port {
            return None;
        }
        let setting = if ip.is_ipv4() { "iptables" } else { "ip6tables" };
        let through_netfilter = || {
            let setting = format!("net/bridge/bridge-nf-call-{setting}");
            at_bridge && sysctl::get(&setting).is_ok_and(|value| value == "1")
        };
        let comes_back = match promise.from {
            Sender::Node => at_loopback,
            Sender::In(Member::Outside) => false,
            Sender::In(Member::Pod) => true,
            Sender::In(_) => at_bridge,
        };
        if at_loopback && self.plan.portmap_has("excludeLoopback", true) {
            return Some(("excludeLoopback: the port is not published on the node's loopback", PORTMAP));
        }
        if comes_back && self.plan.portmap_has("snat", false) {
            return Some(("snat is false: the reply does not come back by the node", PORTMAP));
        }
        if at_loopback && ip.is_ipv6() && self.backend == Some(BackendName::Iptables.as_str()) {
            let why = "[::1]:port does not answer with the chains of iptables";
            return Some((why, "docs/dataplane/iptables.md"));
        }
        if at_loopback && ip.is_ipv6() && through_netfilter() {
            let why = "[::1]:port does not answer while net.bridge.bridge-nf-call-ip6tables is 1";
            return Some((why, LOOPBACK));
        }
        let reflects = self.plan.is("hairpinMode", &true.into());
        if promise.from == Sender::In(Member::Pod) && !reflects && through_netfilter() {
            return Some(("hairpinMode is needed while net.bridge.bridge-nf-call-* is 1", CONTRACT));
        }
        None
    }

    /// Checks requests between containers, forwarded packets and masquerade.
    fn containers(&mut self, protocol: Protocol, ends: Ends, pod: IpAddr) -> Result<(), LabError> {
        let Some((other, _)) = address(self.other, AddressFamily::of(pod)) else { return Ok(()) };
        let (near, far) = (Sender::In(Member::Other), Sender::In(Member::Outside));
        let to = SocketAddr::new(pod, SERVED);
        let direct = Promise::new(near, protocol, to, "the container's own address");
        self.request(&Promise { source: Some(other), ..direct })?;
        let to = SocketAddr::new(other, self.plan.port);
        let forwarded = Promise::new(far, protocol, to, "an address that the node only forwards");
        self.request(&Promise { server: Member::Other, source: Some(ends.outside), ..forwarded })?;
        let (what, source) = match self.plan.masquerades() {
            true => ("outside, masqueraded", ends.node),
            false => ("outside, not masqueraded", other),
        };
        let outward = Promise::new(near, protocol, SocketAddr::new(ends.outside, SERVED), what);
        self.request(&Promise { server: Member::Outside, source: Some(source), page: BRIDGE, ..outward })
    }

    fn request(&mut self, promise: &Promise<'_>) -> Result<(), LabError> {
        let row = promise.row();
        if let Some((why, page)) = self.exception(promise) {
            return self.push(Row { page, ..row.skipped(why) });
        }
        let netns = match promise.from {
            Sender::Node => None,
            Sender::In(member) => Some(self.spaces.netns(member)?),
        };
        let got = traffic::request(netns, promise.protocol, promise.to, promise.from_port);
        let row = Row { saw: shown(&got), ..row };
        self.push(match promise.verdict(&got) {
            Ok(()) => row,
            Err(why) => Row { cause: cause(netns, promise), ..row.failed(why.to_string()) },
        })
    }

    /// Checks that a flow of the node is left alone although its local port is published.
    fn own_flow(&mut self, protocol: Protocol, ends: Ends) -> Result<(), LabError> {
        let to = SocketAddr::new(ends.outside, SERVED);
        let promise = Promise::new(Sender::Node, protocol, to, "outside, from the published port");
        let (from_port, server, source) = (self.plan.port, Member::Outside, Some(ends.node));
        self.request(&Promise { from_port, server, source, ..promise })
    }

    /// Checks that the node's 127/8 is closed to others: a hand-made datagram for it must be dropped, while one for the
    /// node's address shows that such datagrams arrive. `near` is the address of the node's end of the link.
    fn guard(
        &mut self,
        from: Member,
        source: IpAddr,
        node: Ipv4Addr,
        near: Option<Mac>,
        server: &Server,
    ) -> Result<(), LabError> {
        let port = self.plan.port;
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let words = Sender::In(from).words();
        let row = Row::new(words, NODES_LOOPBACK, Protocol::Udp, Some(to), LOOPBACK);
        let (IpAddr::V4(source), Some(near)) = (source, near) else {
            return self.push(row.skipped("the node's end of the link has no known address"));
        };
        let text = |what: &str| format!("{what} of {words}");
        let send = |to: Ipv4Addr, text: &str| -> io::Result<()> {
            let packet = traffic::datagram((source, 40000), (to, port), text);
            let work = || {
                let link =
                    RouteSocket::open().and_then(|route| route.link(IFNAME)).map_err(io::Error::other)?;
                PacketSocket::open(link.index, 0)?.send(&packet, near)?;
                Ok(())
            };
            self.spaces.netns(from).and_then(|netns| Ok(netns.run(work)?)).map_err(io::Error::other)?
        };
        send(node, &text("control"))?;
        send(Ipv4Addr::LOCALHOST, &text("guarded"))?;
        std::thread::sleep(ARRIVAL);
        let row = match (server.got(&text("control")), server.got(&text("guarded"))) {
            (_, true) => Row {
                cause: Some("route_localnet without a guard (CVE-2020-8558)".to_owned()),
                ..row.failed("the datagram reached the container: the node's 127/8 is open to its links")
            },
            (true, false) => Row { saw: "dropped".to_owned(), ..row },
            (false, false) => {
                row.skipped("a datagram written by hand does not arrive at the node's address either")
            }
        };
        self.push(row)
    }

    /// Checks that a second container cannot publish the same port, and that its error names the owner.
    pub(super) fn taken(&mut self, second: Result<AddResult, LabError>) -> Result<(), LabError> {
        let row = Row::about("ADD", "a port of another container", None, CONTRACT);
        if self.backend.is_none() {
            return self.push(row.skipped("the errors of another plugin set need not name the owner"));
        }
        let owner = Member::Pod.name();
        let row = match second {
            Ok(_) => row.failed("a second container got the port"),
            Err(error) => match error.plugin_error() {
                Some(refused) if refused.code == ErrorCode::TryAgainLater && refused.msg.contains(owner) => {
                    Row { saw: "refused".to_owned(), ..row }
                }
                Some(other) => row.failed(format!("not code 11 with the owner {owner}: {other}")),
                None => return Err(error),
            },
        };
        self.push(row)
    }

    /// Checks that UDP clients continue while the container is replaced, with one client for each family.
    pub(super) fn replaced(
        &mut self,
        replace: impl FnOnce() -> Result<Server, LabError>,
    ) -> Result<Server, LabError> {
        let outside = self.spaces.netns(Member::Outside)?;
        let mut clients = Vec::new();
        for ends in &self.spaces.ends {
            if address(self.pod, AddressFamily::of(ends.node)).is_none() {
                continue;
            }
            let to = SocketAddr::new(ends.node, self.plan.port);
            let client = Client::inside(outside, to)?;
            clients.push((to, client.request(), client));
        }
        let server = replace()?;
        for (to, before, client) in clients {
            let end = Instant::now() + REPLACED;
            let is_of = |reply: &io::Result<Reply>, member: Member| {
                reply.as_ref().is_ok_and(|reply| reply.server == member.name())
            };
            let mut after = client.once();
            while !is_of(&after, Member::Next) && Instant::now() < end {
                after = client.once();
            }
            let from = Sender::In(Member::Outside);
            let promise = Promise::new(from, Protocol::Udp, to, "a container that is replaced");
            let promise = Promise { server: Member::Next, ..promise };
            let row = Row { saw: shown(&after), ..promise.row() };
            self.push(if is_of(&before, Member::Pod) && is_of(&after, Member::Next) {
                row
            } else {
                let cause = cause(Some(outside), &promise);
                Row { cause, ..row.failed(format!("before: {}; after: {}", shown(&before), shown(&after))) }
            })?;
        }
        Ok(server)
    }
}

impl<'a> Promise<'a> {
    /// A promise of the contract about the container with the published port, from any port and seen from any source.
    const fn new(from: Sender, protocol: Protocol, to: SocketAddr, what: &'a str) -> Self {
        Self { from, from_port: 0, protocol, to, what, server: Member::Pod, source: None, page: CONTRACT }
    }

    /// The row of the table for a promise that is kept.
    fn row(&self) -> Row {
        Row::new(self.from.words(), self.what, self.protocol, Some(self.to), self.page)
    }

    fn verdict<'r>(&self, got: &'r io::Result<Reply>) -> Result<(), Breach<'r>> {
        let reply = got.as_ref().map_err(Breach::NoReply)?;
        if reply.server != self.server.name() {
            return Err(Breach::Server { got: &reply.server, wanted: self.server.name() });
        }
        let seen = reply.source;
        match self.source {
            Some(wanted) if wanted != seen.ip() => Err(Breach::Source { got: seen.ip(), wanted }),
            _ if self.from_port != 0 && self.from_port != seen.port() => {
                Err(Breach::Port { got: seen.port(), wanted: self.from_port })
            }
            _ => Ok(()),
        }
    }
}

fn shown(got: &io::Result<Reply>) -> String {
    match got {
        Ok(reply) => {
            format!("{} saw {}", reply.server.trim_start_matches("slipway-test-"), reply.source.ip())
        }
        Err(_) => "no reply".to_owned(),
    }
}

/// The reason of a failure: the rule or chain that drops the packet when the request is made once more, else what
/// the node's rules do with it.
fn cause(netns: Option<&Netns>, promise: &Promise<'_>) -> Option<String> {
    let again = || traffic::knock(netns, promise.protocol, promise.to, promise.from_port);
    match trace::during(promise.protocol, promise.to, again) {
        Ok(caught) => {
            if let Some(dropped) = caught.into_iter().find(|one| one.dropped) {
                return Some(dropped.outcome);
            }
        }
        Err(error) => log::info!("{error}"),
    }
    let (from, origin) = match promise.from {
        Sender::Node => (None, Origin::Node),
        Sender::In(_) => (promise.source_address(netns), Origin::Elsewhere(None)),
    };
    let packet = Packet { protocol: promise.protocol, to: promise.to, from, origin };
    explanation::end(packet)
}

impl Promise<'_> {
    /// The address that the client sends from.
    fn source_address(&self, netns: Option<&Netns>) -> Option<IpAddr> {
        let to = self.to;
        let bound = netns?.run(|| Client::new(to, 0).and_then(|client| client.local()));
        bound.ok()?.ok().map(|address| address.ip())
    }
}
