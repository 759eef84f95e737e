// SPDX-License-Identifier: GPL-2.0-or-later

//! Flows that netfilter checks and the BPF programs carry.

mod attacks;
mod boot;
mod certain;
mod cost;
mod engines;
mod filters;
mod flows;
mod iptables;
mod left;
#[path = "../ebpf/list.rs"]
mod list;
mod long;
mod many;
mod property;
mod setup;
mod verifier;
mod xdp;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData, PerCpuArray};
use serde_json::{Value, json};
use slipway_ebpf_abi::maps::{CARRIED4, CONTAINERS, COUNTS};
use slipway_ebpf_abi::{COUNTERS, Container, Counter, Entry4, FlowKey4};
use slipway_tests::{Attach, Host, Network, Node, Pod, Proto, Space, address_of, patience};

/// The folder with the pinned objects.
const PINS: &str = "/sys/fs/bpf/slipway-flows";
/// The published port.
const PORT: u16 = 8080;
/// The port of servers outside.
const FAR: u16 = 7000;

/// Which engine forwards the pods' packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Nftables,
    Carried,
}

struct Stage {
    node: Node,
    client: Host,
    engine: Engine,
}

impl Stage {
    fn new(engine: Engine) -> Self {
        let (node, client) = Node::with_client();
        node.cmd(&format!("ip route add default via {}", client.v4));
        node.cmd(&format!("ip -6 route add default via {}", client.v6));
        node.own_etc();
        Self { node, client, engine }
    }

    fn list(&self) -> Value {
        list::list(match self.engine {
            Engine::Nftables => "nftables",
            Engine::Carried => "ebpf",
        })
    }

    fn network(&self) -> Network<'_> {
        self.node.network(self.list())
    }

    /// Attaches a pod that publishes [`PORT`].
    fn pod(&self, name: &str) -> (Pod, [IpAddr; 2]) {
        self.pod_at(name, PORT)
    }

    fn pod_at(&self, name: &str, port: u16) -> (Pod, [IpAddr; 2]) {
        self.pod_in(&self.network(), name, port)
    }

    /// Attaches a pod with a rate limit that no test reaches.
    fn limited_pod(&self, port: u16) -> (Pod, [IpAddr; 2]) {
        let mut list = self.list();
        list["plugins"].as_array_mut().expect("plugins").push(json!({
            "type": "bandwidth", "ingressRate": 1_000_000_000, "ingressBurst": 1_000_000_000,
        }));
        self.pod_in(&self.node.network(list), &format!("limited{port}"), port)
    }

    fn pod_in(&self, network: &Network<'_>, name: &str, port: u16) -> (Pod, [IpAddr; 2]) {
        let pod = self.node.pod(name);
        let attach = Attach::new(&pod).port(Proto::Tcp, port, 80).port(Proto::Udp, port, 80);
        let result = network.add(&attach).expect("ADD");
        (pod, [0, 1].map(|index| address_of(&result, index)))
    }

    fn node_ips(&self) -> [IpAddr; 2] {
        [self.client.node_v4.into(), self.client.node_v6.into()]
    }

    /// Connects to the published port of a pod with these addresses.
    fn connect(&self, pod: &Pod, own: [IpAddr; 2]) -> Connection {
        let to = (self.node_ips()[0], PORT).into();
        Connection::new(&self.client, to, pod, (own[0], 80).into()).expect("a connection")
    }

    fn client_ips(&self) -> [IpAddr; 2] {
        [self.client.v4.into(), self.client.v6.into()]
    }

    fn map(&self, name: &str) -> MapData {
        let path = self.pin(name);
        self.node.run(|| MapData::from_pin(&path)).unwrap_or_else(|e| panic!("open {path}: {e}"))
    }

    /// The path of a pinned object. Fails unless a single version is pinned.
    fn pin(&self, name: &str) -> String {
        let versions = self.node.list(PINS);
        assert_eq!(versions.len(), 1, "{versions:?}");
        format!("{PINS}/{}/{name}", versions[0])
    }

    fn count(&self, counter: Counter) -> u64 {
        if self.engine == Engine::Nftables {
            return 0;
        }
        let map = PerCpuArray::<_, [u64; COUNTERS]>::try_from(Map::PerCpuArray(self.map(COUNTS)))
            .expect("a per-CPU array");
        map.get(&0, 0).expect("the counters").iter().map(|one| one[counter as usize]).sum()
    }

    fn counts(&self) -> [u64; COUNTERS] {
        use Counter as C;
        [C::Carried, C::Asked, C::Checked, C::Unlike, C::DroppedFar, C::DroppedWrite, C::Copied]
            .map(|one| self.count(one))
    }

    fn carried4(&self) -> Vec<(FlowKey4, Entry4)> {
        let map = HashMap::<_, FlowKey4, Entry4>::try_from(Map::LruHashMap(self.map(CARRIED4)));
        map.expect("a hash map").iter().map(|one| one.expect("an element")).collect()
    }

    /// The number of flows with an entry, 0 without the programs.
    fn carried_now(&self) -> usize {
        if self.engine == Engine::Nftables { 0 } else { self.carried4().len() }
    }

    /// Removes all entries, as if they had been evicted.
    fn forget(&self) {
        self.empty::<FlowKey4, Entry4>(CARRIED4);
    }

    /// Removes what is known about containers, as if it had been evicted.
    fn forget_containers(&self) {
        self.empty::<u32, Container>(CONTAINERS);
    }

    fn empty<K: aya::Pod, V: aya::Pod>(&self, name: &str) {
        let map = HashMap::<_, K, V>::try_from(Map::LruHashMap(self.map(name)));
        let mut map = map.expect("a hash map");
        let keys: Vec<_> = map.keys().map(|key| key.expect("a key")).collect();
        keys.iter().for_each(|key| map.remove(key).expect("remove"));
    }

    /// The lines of conntrack's table, with packet counters.
    fn conntrack(&self) -> Vec<String> {
        let text = self.node.cmd("cat /proc/thread-self/net/nf_conntrack");
        text.lines().map(str::to_owned).collect()
    }
}

/// A TCP connection between two spaces, whose server returns what it receives.
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

impl Connection {
    /// Connects `from` to `to`, which a server at `at` in another space accepts.
    fn new(from: &Space, to: SocketAddr, server: &Space, at: SocketAddr) -> std::io::Result<Self> {
        let listener = server.bind(|| TcpListener::bind(at)).expect("listen");
        Self::to(from, to, &listener)
    }

    fn to(from: &Space, to: SocketAddr, listener: &TcpListener) -> std::io::Result<Self> {
        let client = from.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(3)))?;
        let (server, _) = listener.accept()?;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(patience()))?;
            stream.set_nodelay(true)?;
        }
        Ok(Self { client, server })
    }

    /// Sends requests of one byte each and waits for the replies.
    fn requests(&mut self, number: usize) -> std::io::Result<()> {
        let mut byte = [0];
        for _ in 0..number {
            self.client.write_all(b"?")?;
            self.server.read_exact(&mut byte)?;
            self.server.write_all(b"!")?;
            self.client.read_exact(&mut byte)?;
        }
        Ok(())
    }

    /// Sends `amount` bytes from the client to the server.
    fn stream(&mut self, amount: usize) {
        thread::scope(|scope| {
            let (client, server) = (&mut self.client, &mut self.server);
            scope.spawn(move || {
                let block = vec![7; 1 << 16];
                (0..amount >> 16).for_each(|_| client.write_all(&block).expect("write"));
            });
            let mut block = vec![0; 1 << 16];
            (0..amount >> 16).for_each(|_| server.read_exact(&mut block).expect("read"));
        });
    }
}
