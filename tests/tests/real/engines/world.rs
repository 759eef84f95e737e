// SPDX-License-Identifier: GPL-2.0-or-later

//! The node with its pods, flows that run on the node, and requests on every path.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use slipway_tests::system::System;
use slipway_tests::{
    Attach, Flow, Host, Node, Pod, Proto, Server, Space, Stop, addresses_of, host_local, within,
};

use super::{Chain, GUEST_PORT, Guest};

/// The published port, the port of the pods, and the port of the server outside.
const PORT: u16 = 8080;
const OWN: u16 = 80;
const FAR: u16 = 7000;

/// The time limit of a request that may be dropped.
const QUICK: Duration = Duration::from_millis(2000);
/// A flow that gets no reply for this time counts as ended.
const LIMIT: Duration = Duration::from_secs(5);
/// How long it takes until the outcome of a change can be observed. Running flows follow within a second, but a busy
/// machine takes longer.
const SETTLED: Duration = Duration::from_secs(7);
/// How many of these times to wait at most, because engines on a loaded machine need several.
const ROUNDS: usize = 8;
/// The interval of requests on each flow.
const PACE: Duration = Duration::from_millis(25);
/// The number of requests on a new flow, enough that the BPF programs carry the last ones.
const REQUESTS: usize = 12;

/// The backend of the pods' network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    Nftables,
    Ebpf,
}

/// A node with an outside host and the programs of the engines.
pub(super) struct World {
    pub(super) node: Node,
    pub(super) client: Host,
    pub(super) system: System,
    backend: Backend,
    _servers: Vec<Server>,
}

/// Two pods, one with a published port.
pub(super) struct Pods {
    web: Pod,
    other: Pod,
    web_ips: Vec<IpAddr>,
    _servers: Vec<Server>,
}

/// Starts servers for both protocols at each address.
pub(super) fn serve(space: &Space, ips: &[IpAddr], port: u16, who: &str) -> Vec<Server> {
    let all = ips.iter().flat_map(|ip| Proto::ALL.map(|proto| (SocketAddr::new(*ip, port), proto)));
    all.map(|(at, proto)| space.serve(proto, &at.to_string(), who)).collect()
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

impl World {
    pub(super) fn new(packages: &Path, backend: Backend) -> Self {
        let (node, client) = Node::with_client();
        node.cmd(&format!("ip route add default via {}", client.v4));
        node.cmd(&format!("ip -6 route add default via {}", client.v6));
        let system = System::start(&node, packages);
        let servers = serve(&client, &[client.v4.into(), client.v6.into()], FAR, "outside");
        Self { node, client, system, backend, _servers: servers }
    }

    fn node_ips(&self) -> [IpAddr; 2] {
        [self.client.node_v4.into(), self.client.node_v6.into()]
    }

    /// Attaches the pods.
    pub(super) fn pods(&self, chain: Chain) -> Pods {
        let backend = match self.backend {
            Backend::Nftables => "nftables",
            Backend::Ebpf => "ebpf",
        };
        let mut plugins = vec![
            json!({
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
                "ipam": host_local("10.88.1.0/24", "fd00:88:1::/64"),
            }),
            json!({"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}}),
        ];
        if chain == Chain::Firewall {
            plugins.push(json!({"type": "firewall"}));
        }
        let network = self.node.network(json!({"name": "pods", "plugins": plugins}));
        let (web, other) = (self.node.pod("web"), self.node.pod("other"));
        let attach = Attach::new(&web).port(Proto::Tcp, PORT, OWN).port(Proto::Udp, PORT, OWN);
        let result = network.add(&attach).expect("ADD");
        let web_ips = addresses_of(&result);
        assert_eq!(web_ips.len(), 2, "{result}");
        network.add(&Attach::new(&other)).expect("ADD");
        let servers = serve(&web, &web_ips, OWN, "web");
        Pods { web, other, web_ips, _servers: servers }
    }

    /// Waits until no engine writes rules any more, and changes can be observed.
    pub(super) fn settle(&self) {
        let rules = || self.node.cmd("nft --stateless list ruleset");
        let mut before = rules();
        for _ in 0..ROUNDS {
            thread::sleep(within(SETTLED));
            let now = rules();
            if now == before {
                return;
            }
            before = now;
        }
        panic!("the rules change without end");
    }

    /// The number of packets that the BPF programs have carried.
    pub(super) fn carried(&self) -> u64 {
        self.node.counted("carried_packets")
    }

    /// Sends requests on all paths, each on a new flow, and returns the outcomes.
    pub(super) fn probe(&self, pods: &Pods, guest: Option<&Guest>) -> BTreeMap<String, String> {
        let mut paths = Vec::new();
        for (index, ip) in self.node_ips().into_iter().enumerate() {
            let far = [IpAddr::from(self.client.v4), self.client.v6.into()][index];
            let published = SocketAddr::new(ip, PORT);
            paths.push(("host to published port", &*self.client, published));
            paths.push(("pod to published port", &*pods.other, published));
            paths.push(("node to published port", &*self.node, published));
            paths.push(("pod to host", &*pods.web, SocketAddr::new(far, FAR)));
            paths.push(("pod to pod", &*pods.other, SocketAddr::new(pods.web_ips[index], OWN)));
            let Some(guest) = guest else { continue };
            let Some(own) = guest.ips.get(index) else { continue };
            let own = SocketAddr::new(*own, GUEST_PORT);
            paths.push(("pod to guest", &*pods.web, own));
            paths.push(("node to guest", &*self.node, own));
            paths.push(("guest to published port", &guest.space, published));
            paths.push(("guest to host", &guest.space, SocketAddr::new(far, FAR)));
            if let Some(port) = guest.published {
                let to = SocketAddr::new(ip, port);
                paths.push(("host to guest's port", &*self.client, to));
                paths.push(("pod to guest's port", &*pods.web, to));
                paths.push(("node to guest's port", &*self.node, to));
            }
        }
        paths.push(("node to published port at 127.0.0.1", &*self.node, (Ipv4Addr::LOCALHOST, PORT).into()));
        thread::scope(|scope| {
            let ask = |(name, from, to): (&'static str, &Space, SocketAddr), proto: Proto| {
                let path = format!("{name}, {} {}", proto.name(), family(to.ip()));
                let from = from.clone();
                (path, scope.spawn(move || outcome(&from, proto, to)))
            };
            let asked: Vec<_> =
                paths.into_iter().flat_map(|path| Proto::ALL.map(|proto| ask(path, proto))).collect();
            asked.into_iter().map(|(path, run)| (path, run.join().expect("a request"))).collect()
        })
    }
}

/// The outcome of requests on a new flow. All errors count as the same, because they depend on the moment.
fn outcome(from: &Space, proto: Proto, to: SocketAddr) -> String {
    let Ok(mut flow) = from.dial(proto, None, to, within(QUICK)) else { return "no reply".to_owned() };
    let answers: Vec<_> = (0..REQUESTS).map_while(|_| flow.request().ok()).collect();
    match answers.last() {
        Some(last) => format!("{} of {REQUESTS}: {} sees {}", answers.len(), last.who, last.peer.ip()),
        None => "no reply".to_owned(),
    }
}

/// When a flow got its last reply, or none after the flow's end.
type Last = Arc<Mutex<Option<Instant>>>;

/// Flows that run until the value is dropped.
pub(super) struct Running {
    _stop: Stop,
    flows: Vec<(String, Last)>,
}

impl Running {
    /// Opens a flow on each path.
    pub(super) fn open(world: &World, pods: &Pods, guest: Option<&Guest>) -> Self {
        let mut paths: Vec<(&str, &Space, SocketAddr)> = Vec::new();
        for (index, ip) in world.node_ips().into_iter().enumerate() {
            let far = [IpAddr::from(world.client.v4), world.client.v6.into()][index];
            paths.push(("host to published port", &world.client, SocketAddr::new(ip, PORT)));
            paths.push(("pod to published port", &pods.other, SocketAddr::new(ip, PORT)));
            paths.push(("pod to host", &pods.web, SocketAddr::new(far, FAR)));
            let port = guest.and_then(|guest| guest.published.filter(|_| guest.ips.len() > index));
            paths.extend(port.map(|port| ("pod to guest's port", &*pods.web, SocketAddr::new(ip, port))));
        }
        let stop = Stop::default();
        let start = |(name, from, to): (&str, &Space, SocketAddr), proto: Proto| {
            let name = format!("running {name}, {} {}", proto.name(), family(to.ip()));
            let last = Last::default();
            if let Ok(flow) = from.dial(proto, None, to, within(LIMIT)) {
                *last.lock().expect("not poisoned") = Some(Instant::now());
                let (last, flag) = (Arc::clone(&last), stop.flag());
                thread::spawn(move || run(flow, &last, &flag));
            }
            (name, last)
        };
        let flows = thread::scope(|scope| {
            let all = paths.into_iter().flat_map(|path| Proto::ALL.map(|proto| (path, proto)));
            let start = &start;
            let opened: Vec<_> = all.map(|(path, proto)| scope.spawn(move || start(path, proto))).collect();
            opened.into_iter().map(|one| one.join().expect("a flow")).collect()
        });
        Self { _stop: stop, flows }
    }

    /// For each flow, whether it still runs or has ended.
    pub(super) fn alive(&self) -> BTreeMap<String, String> {
        let state = |last: &Last| match *last.lock().expect("not poisoned") {
            Some(at) if at.elapsed() < within(LIMIT) / 2 => "runs",
            _ => "has ended",
        };
        self.flows.iter().map(|(name, last)| (name.clone(), state(last).to_owned())).collect()
    }
}

/// Sends requests until one has no reply.
fn run(mut flow: Flow, last: &Last, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let reply = flow.request();
        *last.lock().expect("not poisoned") = reply.is_ok().then(Instant::now);
        if reply.is_err() {
            return;
        }
        thread::sleep(PACE);
    }
}
