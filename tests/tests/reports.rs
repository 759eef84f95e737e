// SPDX-License-Identifier: GPL-2.0-or-later

//! Reports of plugins to the node's agent. If the agent does not read them, calls neither wait nor fail.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cni_state::report::{LIMIT, Report, SOCKET, Verb};
use serde_json::json;
use slipway_tests::{Attach, Daemon, Network, Node, Proto, Stop, comes, slipwayd};

/// The number of rounds in a measurement.
const ROUNDS: usize = 100;
const STATES: [&str; 4] = ["no agent", "an agent", "a full queue", "a suspended agent"];

/// Where the socket of a state is kept while another one has the usual path. The first state has no socket.
fn place(state: usize) -> String {
    format!("{SOCKET}.{state}")
}

/// A node with a socket for each state except the first.
struct Stage {
    node: Node,
    _agent: Daemon,
    _full: UnixDatagram,
    _reader: Stop,
}

impl Stage {
    fn new() -> Self {
        let node = Node::without_bridge_netfilter();
        node.cmd("mkdir -p /run/slipway");
        let agent = suspended_agent(&node);
        let reader = Stop::default();
        let seen = reader.flag();
        let listening = node.run(|| UnixDatagram::bind(place(1))).expect("a socket");
        listening.set_read_timeout(Some(Duration::from_millis(20))).expect("a time limit");
        thread::spawn(move || {
            let mut buffer = [0; LIMIT];
            while !seen.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = listening.recv(&mut buffer);
            }
        });
        let full = node.run(|| UnixDatagram::bind(place(2))).expect("a socket");
        fill(&node, &place(2));
        Self { node, _agent: agent, _full: full, _reader: reader }
    }

    fn network(&self) -> Network<'_> {
        self.node.network(json!({
            "name": "net",
            "plugins": [
                {
                    "type": "bridge", "isGateway": true, "ipMasq": true,
                    "ipam": {"type": "host-local", "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
                },
                {"type": "portmap", "capabilities": {"portMappings": true}},
            ],
        }))
    }

    /// Moves the socket of a state to the usual path during `body`.
    fn during<T>(&self, state: usize, body: impl FnOnce() -> T) -> T {
        let rename = |from: &str, to: &str| {
            if state > 0 {
                self.node.run(|| std::fs::rename(from, to)).expect("rename a socket");
            }
        };
        rename(&place(state), SOCKET);
        let value = body();
        rename(SOCKET, &place(state));
        value
    }
}

/// Starts an agent without an API server, suspends it and fills its queue.
fn suspended_agent(node: &Node) -> Daemon {
    node.write("/run/kube/config", "{}");
    let words = "run --node-name node-1 --kubeconfig /run/kube/config --listen none --conflist /run/none.conflist \
                 --slipway /run/none";
    let words: Vec<&str> = words.split_whitespace().collect();
    let agent = node.daemon(slipwayd(), &words, "/run/slipwayd.log");
    assert!(comes(|| node.run(|| Path::new(SOCKET).exists())), "{:?}", node.read("/run/slipwayd.log"));
    agent.suspend();
    fill(node, SOCKET);
    node.cmd(&format!("mv {SOCKET} {}", place(3)));
    agent
}

/// Sends reports until the queue is full.
fn fill(node: &Node, socket: &str) {
    let report = Report {
        plugin: "bridge".to_owned(),
        verb: Verb::Add,
        network: "net".to_owned(),
        took: Duration::ZERO,
        code: None,
    };
    let queue = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").expect("the queue's length");
    let queue: usize = queue.trim().parse().expect("a number");
    node.run(|| (0..queue + 10).for_each(|_| report.send_to(Path::new(socket))));
}

#[test]
fn no_call_waits_for_an_agent_or_fails() {
    let stage = Stage::new();
    let network = stage.network();
    for (state, name) in STATES.iter().enumerate() {
        let pod = stage.node.pod(&format!("pod{state}"));
        let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
        stage.during(state, || {
            network.add(&attach).unwrap_or_else(|error| panic!("ADD with {name}: {error}"));
            network.check(&attach).unwrap_or_else(|error| panic!("CHECK with {name}: {error}"));
            network.del(&attach).unwrap_or_else(|error| panic!("DEL with {name}: {error}"));
        });
    }
}

/// Prints how long ADD and DEL of bridge with portmap (two processes each) take in each state of the agent: `cargo test
/// --release -p slipway-tests --test reports -- --ignored --nocapture cost_of_reports`.
#[test]
#[ignore = "a measurement"]
fn cost_of_reports() {
    let stage = Stage::new();
    let network = stage.network();
    let pod = stage.node.pod("pod");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    let mut times: [[Vec<Duration>; 2]; 4] = Default::default();
    for round in 0..=ROUNDS {
        for offset in 0..STATES.len() {
            let state = (round + offset) % STATES.len();
            let [add, del] = stage.during(state, || {
                let begun = Instant::now();
                network.add(&attach).expect("ADD");
                let added = Instant::now();
                network.del(&attach).expect("DEL");
                [added - begun, added.elapsed()]
            });
            // The first round does not count, because it creates the shared objects.
            if round > 0 {
                times[state][0].push(add);
                times[state][1].push(del);
            }
        }
    }
    for (name, times) in STATES.iter().zip(times) {
        for (verb, mut times) in ["ADD", "DEL"].into_iter().zip(times) {
            times.sort();
            let at = |part: usize| times[times.len() * part / 4].as_micros();
            println!("{name}, {verb}: {} us, the middle half {} to {}", at(2), at(1), at(3));
        }
    }
}
