// SPDX-License-Identifier: GPL-2.0-or-later

//! The promises of the contract, each tried with real packets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use cni_dataplane::explain::{Origin, Packet};
use cni_dataplane::{AddressFamily, BackendName, Protocol};
use cni_kernel::netns::Netns;
use cni_kernel::packet::PacketSocket;
use cni_kernel::route::RouteSocket;
use cni_kernel::sysctl;
use cni_spec::AddResult;

use super::super::explain as explanation;
use super::super::trace;
use super::lab::{Ends, LINK, LabError, Member, Spaces};
use super::row::{Row, State};
use super::traffic::{self, Client, Reply, Server};
use super::{Plan, SERVED};

/// The time in which a client of UDP must reach the new container.
const REPLACED: Duration = Duration::from_secs(5);
/// The time in which a packet that must not arrive would have.
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

/// A request, and what is promised about its reply.
struct Promise<'a> {
    from: Sender,
    protocol: Protocol,
    to: SocketAddr,
    /// The address as the contract names it.
    what: &'a str,
    server: Member,
    /// The source that the server must see; none for any.
    source: Option<IpAddr>,
    page: &'static str,
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

impl Stage<'_> {
    fn push(&mut self, row: Row) -> Result<(), LabError> {
        (self.progress)(&row)?;
        self.rows.push(row);
        Ok(())
    }

    /// All promises about one family but the replacement of the container.
    pub(super) fn family(&mut self, family: AddressFamily, server: &Server) -> Result<(), LabError> {
        let (Some(ends), Some((pod, gateway))) = (self.spaces.ends(family), address(self.pod, family)) else {
            return Ok(());
        };
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            self.published(protocol, ends, gateway)?;
            self.loopback(protocol, family)?;
            self.containers(protocol, ends, pod)?;
        }
        self.own_flow(ends)?;
        match (ends.node, ends.outside) {
            (IpAddr::V4(node), IpAddr::V4(outside)) => self.guard(node, outside, server),
            _ => Ok(()),
        }
    }

    /// Sender outside and from the node to its addresses.
    fn published(&mut self, protocol: Protocol, ends: Ends, gateway: Option<IpAddr>) -> Result<(), LabError> {
        let family = AddressFamily::of(ends.node);
        let port = self.plan.port;
        let mut targets = vec![(ends.node, "the node's address (the test's)")];
        targets.extend(self.plan.node_address(family).map(|own| (own, "the node's own address")));
        for (ip, what) in targets {
            let to = SocketAddr::new(ip, port);
            let promise = |from, source| Promise {
                from,
                protocol,
                to,
                what,
                server: Member::Pod,
                source,
                page: CONTRACT,
            };
            self.request(&promise(Sender::In(Member::Outside), Some(ends.outside)))?;
            self.request(&promise(Sender::Node, None))?;
            let at_bridge = if self.plan.has_bridge() { gateway } else { None };
            self.request(&promise(Sender::In(Member::Other), at_bridge))?;
            let itself = Promise { page: BRIDGE, ..promise(Sender::In(Member::Pod), at_bridge) };
            self.request(&itself)?;
        }
        if let Some(gateway) = gateway {
            let to = SocketAddr::new(gateway, port);
            let (from, what) = (Sender::In(Member::Other), "the bridge's address");
            let source = if self.plan.has_bridge() { Some(gateway) } else { None };
            self.request(&Promise { from, protocol, to, what, server: Member::Pod, source, page: CONTRACT })?;
        }
        Ok(())
    }

    /// Sender the node to its loopback.
    fn loopback(&mut self, protocol: Protocol, family: AddressFamily) -> Result<(), LabError> {
        let targets: &[IpAddr] = match family {
            AddressFamily::V4 => &[IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::new(127, 1, 2, 3))],
            AddressFamily::V6 => &[IpAddr::V6(Ipv6Addr::LOCALHOST)],
        };
        for ip in targets {
            let to = SocketAddr::new(*ip, self.plan.port);
            let (from, what, page) = (Sender::Node, "the node's loopback", LOOPBACK);
            if let Some((why, page)) = self.exception(*ip) {
                let mut row = Row::new(from.words(), what, protocol, Some(to), page);
                row.state = State::Skipped;
                row.why = Some(why.to_owned());
                self.push(row)?;
                continue;
            }
            self.request(&Promise { from, protocol, to, what, server: Member::Pod, source: None, page })?;
        }
        Ok(())
    }

    /// The documented exception for an address of the loopback, with its page.
    fn exception(&self, ip: IpAddr) -> Option<(&'static str, &'static str)> {
        const NETFILTER: &str = "net/bridge/bridge-nf-call-ip6tables";
        if ip.is_ipv4() {
            return None;
        }
        if self.backend == Some(BackendName::Iptables.as_str()) {
            return Some((
                "[::1]:port does not answer with the chains of iptables",
                "docs/dataplane/iptables.md",
            ));
        }
        let at_bridge = self.plan.has_bridge() && sysctl::get(NETFILTER).is_ok_and(|value| value == "1");
        at_bridge.then_some((
            "[::1]:port does not answer while net.bridge.bridge-nf-call-ip6tables is 1",
            LOOPBACK,
        ))
    }

    /// Container to container, forwarded packets, masquerade.
    fn containers(&mut self, protocol: Protocol, ends: Ends, pod: IpAddr) -> Result<(), LabError> {
        let Some((other, _)) = address(self.other, AddressFamily::of(pod)) else { return Ok(()) };
        let source = Some(other);
        self.request(&Promise {
            from: Sender::In(Member::Other),
            protocol,
            to: SocketAddr::new(pod, SERVED),
            what: "the container's own address",
            server: Member::Pod,
            source,
            page: CONTRACT,
        })?;
        self.request(&Promise {
            from: Sender::In(Member::Outside),
            protocol,
            to: SocketAddr::new(other, self.plan.port),
            what: "an address that the node only forwards",
            server: Member::Other,
            source: Some(ends.outside),
            page: CONTRACT,
        })?;
        let (what, source) = match self.plan.masquerades() {
            true => ("outside, masqueraded", ends.node),
            false => ("outside, not masqueraded", other),
        };
        self.request(&Promise {
            from: Sender::In(Member::Other),
            protocol,
            to: SocketAddr::new(ends.outside, SERVED),
            what,
            server: Member::Outside,
            source: Some(source),
            page: BRIDGE,
        })
    }

    fn request(&mut self, promise: &Promise<'_>) -> Result<(), LabError> {
        let netns = match promise.from {
            Sender::Node => None,
            Sender::In(member) => Some(self.spaces.netns(member)?),
        };
        let got = traffic::request(netns, promise.protocol, promise.to);
        let mut row =
            Row::new(promise.from.words(), promise.what, promise.protocol, Some(promise.to), promise.page);
        let verdict = promise.verdict(&got);
        row.saw = shown(&got);
        if let Err(why) = verdict {
            row.state = State::Failed;
            row.why = Some(why);
            row.cause = cause(netns, promise);
        }
        self.push(row)
    }

    /// A flow of the node from a local port that is published is left alone.
    fn own_flow(&mut self, ends: Ends) -> Result<(), LabError> {
        let to = SocketAddr::new(ends.outside, SERVED);
        let got = Client::new(to, self.plan.port).and_then(|client| client.request());
        let what = "outside, from the published port";
        let mut row = Row::new("the node", what, Protocol::Udp, Some(to), CONTRACT);
        row.saw = shown(&got);
        let kept = |reply: &Reply| reply.source == SocketAddr::new(ends.node, self.plan.port);
        if !got.as_ref().is_ok_and(kept) {
            row.state = State::Failed;
            row.why = Some(format!("the source should be {}", SocketAddr::new(ends.node, self.plan.port)));
        }
        self.push(row)
    }

    /// The node's 127/8 is closed to others: a datagram for it, written by hand, is dropped. One for the node's
    /// address shows that such datagrams arrive.
    fn guard(&mut self, node: Ipv4Addr, outside: Ipv4Addr, server: &Server) -> Result<(), LabError> {
        let port = self.plan.port;
        let near = RouteSocket::open()?.link(LINK)?.mac;
        let far = self.spaces.netns(Member::Outside)?;
        let send = |to: Ipv4Addr, text: &str| -> io::Result<()> {
            let packet = traffic::datagram((outside, 40000), (to, port), text);
            let work = || {
                let link =
                    RouteSocket::open().and_then(|route| route.link("eth0")).map_err(io::Error::other)?;
                let socket = PacketSocket::open(link.index, 0)?;
                socket.send(&packet, near.ok_or(io::ErrorKind::NotFound)?)?;
                Ok(())
            };
            far.run(work).map_err(io::Error::other)?
        };
        send(node, "control")?;
        send(Ipv4Addr::LOCALHOST, "guarded")?;
        std::thread::sleep(ARRIVAL);
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let mut row = Row::new("outside", "the node's loopback", Protocol::Udp, Some(to), LOOPBACK);
        match (server.got("control"), server.got("guarded")) {
            (_, true) => {
                row.state = State::Failed;
                row.why = Some(
                    "the datagram reached the container: the node's 127/8 is open to its links".to_owned(),
                );
                row.cause = Some("route_localnet without a guard (CVE-2020-8558)".to_owned());
            }
            (true, false) => "dropped".clone_into(&mut row.saw),
            (false, false) => {
                row.state = State::Skipped;
                row.why = Some(
                    "a datagram written by hand does not arrive at the node's address either".to_owned(),
                );
            }
        }
        self.push(row)
    }

    /// A UDP client that continues while the container is replaced.
    pub(super) fn replaced(
        &mut self,
        ends: Ends,
        replace: impl FnOnce() -> Result<Server, LabError>,
    ) -> Result<Server, LabError> {
        let to = SocketAddr::new(ends.node, self.plan.port);
        let client = Client::inside(self.spaces.netns(Member::Outside)?, to)?;
        let before = client.request();
        let server = replace()?;
        let end = Instant::now() + REPLACED;
        let mut after = client.once();
        while !after.as_ref().is_ok_and(|reply| reply.server == Member::Next.name()) && Instant::now() < end {
            after = client.once();
        }
        let what = "a container that is replaced";
        let mut row = Row::new("outside", what, Protocol::Udp, Some(to), CONTRACT);
        row.saw = shown(&after);
        let is_from = |reply: &io::Result<Reply>, member: Member| {
            reply.as_ref().is_ok_and(|reply| reply.server == member.name())
        };
        if !is_from(&before, Member::Pod) || !is_from(&after, Member::Next) {
            row.state = State::Failed;
            row.why = Some(format!("before: {}; after: {}", shown(&before), shown(&after)));
        }
        self.push(row)?;
        Ok(server)
    }
}

impl Promise<'_> {
    fn verdict(&self, got: &io::Result<Reply>) -> Result<(), String> {
        let reply = got.as_ref().map_err(|error| format!("no reply: {error}"))?;
        if reply.server != self.server.name() {
            return Err(format!("{} replied instead of {}", reply.server, self.server.name()));
        }
        match self.source {
            Some(source) if source != reply.source.ip() => {
                Err(format!("the server saw {} instead of {source}", reply.source.ip()))
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
    let again = || traffic::knock(netns, promise.protocol, promise.to);
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
