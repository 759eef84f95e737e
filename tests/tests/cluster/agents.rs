// SPDX-License-Identifier: GPL-2.0-or-later

//! Running agents of two nodes, which tests kill and disturb, with pods on both nodes and flows between them.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    ApiServer, Attach, ClusterNode, Daemon, Deliveries, Network, Pod, Proto, Server, Space, SteadyFlow, Stop,
    addresses_of, at, dropped_by_processors, is_slow, patience, pod_ranges, slipwayd, wait_until_ready,
};

use crate::api::{KUBECONFIG, LOG, NODES, words};
use crate::{CONFLIST, Lab};

/// The port of a pod's servers.
pub(crate) const SERVED: u16 = 80;
/// If a sender woke up later than this, the host is too busy for the test to tell a lost segment from a late one,
/// because TCP first resends a segment after 200 ms.
const STARVED: Duration = Duration::from_millis(100);

/// The agents of two nodes.
pub(crate) struct Agents<'a> {
    lab: &'a Lab,
    words: [Vec<String>; 2],
    running: [Option<Daemon>; 2],
}

impl<'a> Agents<'a> {
    /// Registers both nodes, starts their agents and waits for the network.
    pub(crate) fn start(
        lab: &'a Lab,
        server: &ApiServer<'_>,
        kubeconfig: &str,
        tunnel: &str,
        options: &[&str],
    ) -> Self {
        for node in &lab.cluster.nodes {
            node.cmd("mkdir -p /run/kube");
            node.write(KUBECONFIG, kubeconfig);
            server.create(NODES, &object(node));
        }
        let of_node = |number: u8| {
            let mut words = words(lab.node(number), tunnel);
            words
                .extend(["--cluster-cidr", "fd44::/32"].iter().chain(options).map(|word| (*word).to_owned()));
            words
        };
        let mut agents = Self { lab, words: [1, 2].map(of_node), running: [None, None] };
        for number in [1, 2] {
            agents.resume(number);
        }
        for number in [1, 2] {
            let node = lab.node(number);
            let [v4, v6] = pod_ranges(3 - number);
            let agent = agents.running[usize::from(number) - 1].as_ref().expect("an agent");
            wait_until_ready("slipwayd", node, LOG, agent, || {
                node.cmd("ip route show").contains(&v4)
                    && node.cmd("ip -6 route show").contains(&v6)
                    && node.read(CONFLIST).is_some()
            });
        }
        agents
    }

    /// Starts the agent of a node.
    pub(crate) fn resume(&mut self, number: u8) {
        let index = usize::from(number) - 1;
        let words: Vec<&str> = self.words[index].iter().map(String::as_str).collect();
        self.running[index] = Some(self.lab.node(number).daemon(slipwayd(), &words, LOG));
    }

    /// Kills the agent of a node with SIGKILL.
    pub(crate) fn kill(&mut self, number: u8) {
        let agent = self.running[usize::from(number) - 1].take().expect("an agent");
        assert!(agent.runs(), "the agent of node {number} ended: {}", self.log(number));
        drop(agent);
    }

    /// Fails if an agent has ended.
    pub(crate) fn assert_running(&self) {
        for number in [1, 2] {
            let agent = self.running[usize::from(number) - 1].as_ref();
            assert!(
                agent.is_some_and(Daemon::runs),
                "the agent of node {number} ended: {}",
                self.log(number)
            );
        }
    }

    /// What a node's agent has logged since its last start.
    pub(crate) fn log(&self, number: u8) -> String {
        self.lab.node(number).read(LOG).unwrap_or_default()
    }
}

/// The Node object of a node, with pod CIDRs and addresses of both families.
pub(crate) fn object(node: &ClusterNode) -> Value {
    let ranges = pod_ranges(node.number);
    of(&format!("node-{}", node.number), &[&ranges[0], &ranges[1]], &node.addresses)
}

pub(crate) fn of(name: &str, pod_cidrs: &[&str], addresses: &[IpAddr]) -> Value {
    let addresses: Vec<Value> =
        addresses.iter().map(|ip| json!({ "type": "InternalIP", "address": ip })).collect();
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "spec": { "podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs },
        "status": { "addresses": addresses },
    })
}

/// A pod with a published port that is in the runtime's cache.
pub(crate) struct Web {
    pub(crate) pod: Pod,
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    _servers: [Server; 2],
}

impl Web {
    pub(crate) fn new(node: &ClusterNode, network: &Network<'_>, name: &str, port: u16) -> Self {
        let pod = node.pod(name);
        let attach = Attach::new(&pod).port(Proto::Tcp, port, SERVED).port(Proto::Udp, port, SERVED);
        let result = network.add(&attach).unwrap_or_else(|error| panic!("ADD {name}: {error}"));
        network.write_cache(&attach);
        let addresses = addresses_of(&result);
        let servers = Proto::ALL.map(|proto| pod.serve(proto, &format!("[::]:{SERVED}"), name));
        Self { pod, name: name.to_owned(), addresses, _servers: servers }
    }
}

/// Flows between the pods of both nodes and to a published port of each node, which run until [`Flows::assert_whole`].
pub(crate) struct Flows {
    datagrams: Vec<SteadyFlow>,
    exchanges: Vec<Exchange>,
    counts: Vec<Count>,
    dropped: u64,
}

/// A counter of a space, and its value when the flows began.
struct Count {
    space: Space,
    group: &'static str,
    name: &'static str,
    before: u64,
}

impl Count {
    fn new(space: &Space, group: &'static str, name: &'static str) -> Self {
        Self { space: space.clone(), group, name, before: space.counter(group, name) }
    }

    fn change(&self) -> u64 {
        self.space.counter(self.group, self.name) - self.before
    }
}

impl Flows {
    /// Starts the flows: one datagram per interval, and over TCP a new request after each reply.
    pub(crate) fn start(lab: &Lab, webs: [&Web; 2], port: u16, interval: Duration) -> Self {
        let outside: &Space = &lab.cluster.outside;
        let pods: [&Space; 2] = webs.map(|web| &*web.pod as &Space);
        let mut ways: Vec<(&Space, SocketAddr, &str)> = Vec::new();
        for (index, web) in webs.iter().enumerate() {
            let other = pods[1 - index];
            ways.extend(web.addresses.iter().map(|ip| (other, at(*ip, SERVED), web.name.as_str())));
            let of_node = lab.cluster.nodes[index].addresses;
            ways.extend(of_node.map(|ip| (outside, at(ip, port), web.name.as_str())));
        }
        let spaces = [outside, pods[0], pods[1]];
        let counts = spaces.iter().flat_map(|space| {
            [("Tcp", "RetransSegs"), ("Udp", "RcvbufErrors"), ("Udp6", "RcvbufErrors")]
                .map(|(group, name)| Count::new(space, group, name))
        });
        Self {
            counts: counts.collect(),
            dropped: dropped_by_processors(),
            exchanges: ways.iter().map(|(from, to, _)| Exchange::start(from, *to, interval)).collect(),
            datagrams: ways.iter().map(|(from, to, who)| from.steady(*to, who, interval)).collect(),
        }
    }

    /// Ends the flows. Fails if a packet was lost, except where a queue of this host overflowed.
    pub(crate) fn assert_whole(self) {
        let ended: Vec<Deliveries> = self.datagrams.into_iter().map(SteadyFlow::stop).collect();
        let requests: Vec<usize> = self.exchanges.into_iter().map(Exchange::stop).collect();
        eprintln!("{ended:#?}, requests over TCP: {requests:?}");
        assert!(ended.iter().all(|one| one.sent() > 20), "too few datagrams to mean anything: {ended:#?}");
        assert!(requests.iter().all(|count| *count > 20), "too few requests to mean anything: {requests:?}");
        let late = ended.iter().map(|one| one.late).max().unwrap_or_default();
        let changes = |name: &str| -> u64 {
            self.counts.iter().filter(|count| count.name == name).map(Count::change).sum()
        };
        let overflowed = changes("RcvbufErrors") > 0 || dropped_by_processors() > self.dropped;
        let lost: usize = ended.iter().map(Deliveries::lost).sum();
        assert!(lost == 0 || overflowed, "datagrams were lost: {ended:#?}");
        let again = changes("RetransSegs");
        let proves_nothing = overflowed || is_slow() || late > STARVED;
        assert!(again == 0 || proves_nothing, "{again} segments were sent again; late: {late:?}");
        if overflowed || again > 0 {
            eprintln!(
                "a queue of this host overflowed: {overflowed}; {again} segments sent again; late: {late:?}"
            );
        }
    }
}

/// A TCP connection over which requests are sent until it is stopped.
struct Exchange {
    stop: Stop,
    thread: thread::JoinHandle<usize>,
}

impl Exchange {
    fn start(from: &Space, to: SocketAddr, interval: Duration) -> Self {
        let name = from.name().to_owned();
        let mut flow = from.dial(Proto::Tcp, None, to, patience()).expect("a connection");
        let stop = Stop::default();
        let seen = stop.flag();
        let thread = thread::spawn(move || {
            let mut count = 0;
            while !seen.load(Ordering::Relaxed) {
                flow.request().unwrap_or_else(|error| panic!("tcp {to} from {name}: {error}"));
                count += 1;
                thread::sleep(interval);
            }
            count
        });
        Self { stop, thread }
    }

    /// Ends the connection and returns the number of requests.
    fn stop(self) -> usize {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
