// SPDX-License-Identifier: GPL-2.0-or-later

//! Random ADDs, DELs and CHECKs by several workers, compared with a model. Some calls are killed. In between, the
//! network is renamed, ADDs are repeated, and the runtime loses its cache.
//!
//! `SLIPWAY_SOAK_SECONDS` sets the duration (default 10) and `SLIPWAY_SEED` the seed of the choices, while the
//! scheduler decides the order of the workers. A failure prints the seed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod, Proto, Random, Snapshot, host_local};

const WORKERS: u64 = 4;
const PODS: usize = 5;

/// The names of the network, which is renamed while containers are attached.
const NAMES: [&str; 2] = ["net", "renamed"];

fn list(name: &str, interface: &str) -> Value {
    json!({
        "name": name,
        "plugins": [
            {
                "type": interface, "bridge": "br0", "isGateway": true, "ipMasq": true,
                "ipam": host_local("10.88.0.0/26", "fd00:88::/64"),
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn number(key: &str, default: u64) -> u64 {
    std::env::var(key).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// What a worker knows about one of its pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Known {
    #[default]
    Detached,
    /// Attached with these addresses, under the network name with this index.
    Attached(Vec<String>, usize),
    /// A call under the network name with this index was killed.
    Unsure(usize),
}

struct Worker<'a> {
    node: &'a Node,
    /// The network under each of its names.
    networks: [Network<'a>; 2],
    /// The index of the network's current name.
    name: usize,
    pods: &'a [Pod],
    known: Vec<Known>,
    random: Random,
    number: u64,
    calls: u64,
}

impl Worker<'_> {
    fn attach(&self, pod: usize) -> Attach {
        let port = u16::try_from(20_000 + self.number * 100 + pod as u64).expect("a port");
        Attach::new(&self.pods[pod]).port(Proto::Tcp, port, 80).port(Proto::Udp, port, 80)
    }

    fn step(&mut self) {
        let pod = usize::try_from(self.random.below(PODS as u64)).expect("small");
        let attach = self.attach(pod);
        let choice = self.random.below(13);
        self.calls += 1;
        let known = self.known[pod].clone();
        self.known[pod] = match (known, choice) {
            // The network is renamed. Containers remain attached under the name that they were attached with.
            (_, 10) => {
                self.name = 1 - self.name;
                return;
            }
            // The runtime loses its cache, so the next DEL has no result.
            (_, 11) => {
                self.networks.iter().for_each(Network::forget);
                return;
            }
            (Known::Detached, 0..6 | 12) => Known::Attached(self.add(pod, &attach), self.name),
            (Known::Detached, 6) => self.kill("ADD", &attach, 0),
            (Known::Attached(_, name), 0..3) => {
                if self.networks[name].cached(&attach).is_some() {
                    self.networks[name].check(&attach).unwrap_or_else(|e| panic!("CHECK of {pod}: {e}"));
                }
                return;
            }
            (Known::Attached(_, name), 3) if name == self.name => {
                let at = usize::try_from(self.random.below(2)).expect("small");
                self.kill("DEL", &attach, at)
            }
            (Known::Attached(..), 12) => {
                let failure = self.networks[self.name].add(&attach).expect_err("it is attached");
                assert!(failure.error.msg.contains("already exists"), "ADD of {pod} again: {failure}");
                return;
            }
            // The DEL uses the name of the killed call, because under another name nothing proves that what the call
            // has left does not belong to a living container.
            (Known::Unsure(name), _) => self.del(pod, &attach, name),
            // DEL is also called for attachments that do not exist.
            _ => self.del(pod, &attach, self.name),
        };
    }

    /// Calls ADD, repeatedly if necessary, because a container that is attached under another name may have the first
    /// address that host-local chooses.
    fn add(&self, pod: usize, attach: &Attach) -> Vec<String> {
        const ADDRESSES: usize = 64;
        let network = &self.networks[self.name];
        for _ in 0..ADDRESSES {
            match network.add(attach) {
                Ok(result) => {
                    let ips = result["ips"].as_array().expect("addresses");
                    return ips.iter().map(|ip| ip["address"].as_str().expect("a text").into()).collect();
                }
                Err(failure) if failure.error.msg.contains("container address") => {
                    assert_eq!(failure.error.code, 11, "ADD of {pod}: {failure}");
                    network.del(attach).unwrap_or_else(|e| panic!("DEL of {pod} after its ADD failed: {e}"));
                }
                Err(failure) => panic!("ADD of {pod}: {failure}"),
            }
        }
        panic!("ADD of {pod}: every address is taken");
    }

    fn del(&self, pod: usize, attach: &Attach, name: usize) -> Known {
        self.networks[name].del(attach).unwrap_or_else(|e| panic!("DEL of {pod}: {e}"));
        Known::Detached
    }

    fn kill(&mut self, verb: &str, attach: &Attach, at: usize) -> Known {
        let network = &self.networks[self.name];
        let config = network.configs(Some(attach)).swap_remove(at);
        let mut running = network.prepare(verb, &config, Some(attach)).spawn();
        std::thread::sleep(Duration::from_micros(self.random.below(30_000)));
        running.kill();
        running.wait();
        Known::Unsure(self.name)
    }

    /// Asserts that the node's state for this worker's pods is the expected one.
    fn compare(&self, ports: &str) {
        for (pod, known) in self.known.iter().enumerate() {
            let id = self.pods[pod].name();
            let published =
                ports.lines().filter(|line| line.split_whitespace().any(|word| word == id)).count();
            match known {
                Known::Attached(addresses, name) => {
                    for address in addresses {
                        let ip = address.split('/').next().expect("an address");
                        let file = self.node.read(&format!("/var/lib/cni/networks/{}/{ip}", NAMES[*name]));
                        assert_eq!(file, Some(format!("{id}\r\neth0")), "{address}");
                    }
                    assert_eq!(published, 4, "ports of {id}:\n{ports}");
                }
                Known::Detached => assert_eq!(published, 0, "ports of {id}:\n{ports}"),
                Known::Unsure(_) => {}
            }
        }
    }
}

#[test]
fn concurrent_containers_on_a_bridge_leak_nothing_and_share_nothing() {
    soak("bridge");
}

#[test]
fn concurrent_containers_without_a_bridge_leak_nothing_and_share_nothing() {
    soak("ptp");
}

fn soak(interface: &str) {
    let seed = number("SLIPWAY_SEED", 1);
    eprintln!("SLIPWAY_SEED={seed}");
    let node = Node::without_bridge_netfilter();
    let pods: Vec<Vec<Pod>> =
        (0..WORKERS).map(|w| (0..PODS).map(|p| node.pod(&format!("w{w}p{p}"))).collect()).collect();
    // A first pod creates all shared objects.
    let first = Attach::new(&pods[0][0]).port(Proto::Tcp, 8080, 80);
    for name in NAMES {
        node.network(list(name, interface)).add(&first).expect("the first ADD");
        node.network(list(name, interface)).del(&first).expect("its DEL");
    }
    let spaces: Vec<&slipway_tests::Space> = pods.iter().flatten().map(|pod| &**pod).collect();
    let state = || Snapshot::take(&node, &spaces).without(&["last_reserved_ip", "networks/.slipway/"]);
    let before = state();
    let end = Instant::now() + Duration::from_secs(number("SLIPWAY_SOAK_SECONDS", 10));
    let mut workers: Vec<Worker<'_>> = (pods.iter().zip(0..))
        .map(|(pods, number)| Worker {
            node: &node,
            networks: NAMES.map(|name| node.network(list(name, interface))),
            name: 0,
            pods,
            known: vec![Known::default(); PODS],
            random: Random::new(seed.wrapping_mul(1000) + number),
            number,
            calls: 0,
        })
        .collect();
    std::thread::scope(|scope| {
        for worker in &mut workers {
            scope.spawn(|| {
                while Instant::now() < end {
                    worker.step();
                }
            });
        }
    });
    let ports = node.slipway("ports");
    workers.iter().for_each(|worker| worker.compare(&ports));
    let attached = workers.iter().flat_map(|worker| &worker.known);
    let addresses: Vec<&String> = attached
        .filter_map(|known| if let Known::Attached(ips, _) = known { Some(ips) } else { None })
        .flatten()
        .collect();
    assert_eq!(addresses.iter().collect::<BTreeSet<_>>().len(), addresses.len(), "one address, one pod");
    assert!(workers.iter().map(|worker| worker.calls).sum::<u64>() > 20, "something was done");
    for worker in &workers {
        for pod in 0..PODS {
            let name = if let Known::Unsure(name) = worker.known[pod] { name } else { worker.name };
            let _detached = worker.del(pod, &worker.attach(pod), name);
        }
    }
    before.assert_same(&state());
}
