//! Random ADD, DEL, CHECK and GC from several workers at once, compared with a model.
//!
//! `SLIPWAY_SEED` repeats a run's choices (the order between workers stays the scheduler's),
//! `SLIPWAY_SOAK_SECONDS` makes it longer; the seed is part of every failure's message.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{Attach, BridgeNetfilter, Host, Network, Node, Pod, Proto, Server, at, is_peer};

const WORKERS: u64 = 6;
const SECONDS: u64 = 10;
/// Few enough that workers want the same ones.
const PORTS: std::ops::Range<u16> = 8000..8024;
/// How many pods one worker keeps at most.
const PODS: usize = 8;

/// A small generator (xorshift64*, Vigna 2016): the same seed, the same choices.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(value).unwrap_or(0) % limit
    }
}

/// One attachment that ADD made and no DEL has removed.
struct Member {
    pod: Pod,
    attach: Attach,
    network: usize,
    ip: String,
    result: Value,
    ports: BTreeSet<(&'static str, u16)>,
}

/// What the workers share.
struct Stage<'a> {
    node: &'a Node,
    networks: [Network<'a>; 2],
    /// Address to container, for every attachment between a successful ADD and its DEL.
    addresses: Mutex<HashMap<String, String>>,
    /// A runtime lets no ADD run beside GC: GC's list would not have it.
    world: RwLock<()>,
    /// Attachments whose worker lives, for GC.
    valid: Mutex<BTreeMap<String, (usize, Attach)>>,
    conflicts: Mutex<usize>,
}

fn list(number: usize) -> Value {
    json!({
        "name": format!("net{number}"),
        "plugins": [
            {
                "type": "bridge", "bridge": format!("br{number}"), "isGateway": true, "ipMasq": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": format!("10.88.{number}.0/24")}], [{"subnet": format!("fd00:88:{number}::/64")}]],
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn worker(stage: &Stage<'_>, number: u64, seed: u64, end: Instant) -> Vec<Member> {
    let mut random = Random(seed.wrapping_mul(1_000_003).wrapping_add(number) | 1);
    let mut members: Vec<Member> = Vec::new();
    let mut count = 0;
    while Instant::now() < end {
        match random.below(10) {
            0..=4 if members.len() < PODS => {
                count += 1;
                members.extend(add(stage, &mut random, &format!("w{number}-{count}")));
            }
            5..=7 if !members.is_empty() => {
                let member = members.swap_remove(random.below(members.len()));
                del(stage, &mut random, member);
            }
            8 if !members.is_empty() => {
                let _calm = stage.world.read().expect("not poisoned");
                let member = &members[random.below(members.len())];
                stage.networks[member.network].check(&member.attach).unwrap_or_else(|e| panic!("CHECK: {e}"));
            }
            9 if random.below(4) == 0 => gc(stage, random.below(2)),
            _ => {}
        }
    }
    members
}

fn add(stage: &Stage<'_>, random: &mut Random, name: &str) -> Option<Member> {
    let _calm = stage.world.read().expect("not poisoned");
    let pod = stage.node.pod(name);
    let network = random.below(2);
    let mut ports = BTreeSet::new();
    let mut attach = Attach::new(&pod);
    for _ in 0..random.below(4) {
        let proto = Proto::ALL[random.below(2)];
        let port = PORTS.start + u16::try_from(random.below(PORTS.len())).expect("small");
        if ports.insert((proto.name(), port)) {
            attach = attach.port(proto, port, 80);
        }
    }
    match stage.networks[network].add(&attach) {
        Ok(result) => {
            let ip = result["ips"][0]["address"].as_str().expect("an address");
            let ip = ip.split('/').next().expect("an address").to_owned();
            let before = stage.addresses.lock().expect("not poisoned").insert(ip.clone(), name.to_owned());
            assert_eq!(before, None, "{ip} was given to {name} too");
            let mut valid = stage.valid.lock().expect("not poisoned");
            valid.insert(name.to_owned(), (network, attach.clone()));
            Some(Member { pod, attach, network, ip, result, ports })
        }
        Err(failure) => {
            // Only a port that somebody else holds may be a reason.
            assert_eq!((failure.plugin.as_str(), failure.error.code), ("portmap", 11), "{name}: {failure}");
            assert!(!ports.is_empty(), "{name} wanted no port: {failure}");
            *stage.conflicts.lock().expect("not poisoned") += 1;
            stage.networks[network].del(&attach).unwrap_or_else(|e| panic!("DEL of {name}: {e}"));
            pod.remove();
            None
        }
    }
}

/// In one of the ways that runtimes have: in order, after the namespace is gone, twice, without a cache.
fn del(stage: &Stage<'_>, random: &mut Random, member: Member) {
    let _calm = stage.world.read().expect("not poisoned");
    let network = &stage.networks[member.network];
    stage.addresses.lock().expect("not poisoned").remove(&member.ip);
    stage.valid.lock().expect("not poisoned").remove(&member.attach.container);
    let early = random.below(2) == 0;
    let mut pod = Some(member.pod);
    if early {
        pod.take().expect("not yet removed").remove();
    }
    let failed = |e| panic!("DEL of {}: {e}", member.attach.container);
    network.del(&member.attach).unwrap_or_else(failed);
    if random.below(3) == 0 {
        network.del(&member.attach.clone().netns("")).unwrap_or_else(failed);
    }
    if let Some(pod) = pod {
        pod.remove();
    }
}

fn gc(stage: &Stage<'_>, network: usize) {
    let _alone = stage.world.write().expect("not poisoned");
    let valid = stage.valid.lock().expect("not poisoned");
    let list: Value = valid
        .values()
        .filter(|(of, _)| *of == network)
        .map(|(_, attach)| json!({"containerID": attach.container, "ifname": attach.ifname}))
        .collect();
    stage.networks[network].gc_plugins(&list).unwrap_or_else(|e| panic!("GC: {e:?}"));
}

/// What `slipway ports` says, as (protocol, host port) to container.
fn published(node: &Node) -> BTreeMap<(String, u16), BTreeSet<String>> {
    let text = node.slipway("ports --output json");
    let ports: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for port in ports.as_array().unwrap_or_else(|| panic!("no list: {text}")) {
        let text = |key: &str| port[key].as_str().unwrap_or_else(|| panic!("no {key}: {port}")).to_owned();
        let (protocol, owner) = (text("protocol"), text("container"));
        let number = port["hostPort"].as_u64().and_then(|number| u16::try_from(number).ok());
        let number = number.unwrap_or_else(|| panic!("no hostPort: {port}"));
        found.entry((protocol, number)).or_default().insert(owner);
    }
    found
}

/// Every pod answers at its ports, and nothing else is published or reserved.
fn compare(stage: &Stage<'_>, client: &Host, members: &[Member]) {
    let mut expected: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for member in members {
        let name = &member.attach.container;
        stage.networks[member.network].check(&member.attach).unwrap_or_else(|e| panic!("CHECK {name}: {e}"));
        let ips = member.result["ips"].as_array().expect("addresses");
        let servers: Vec<Server> = ips
            .iter()
            .filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse::<IpAddr>().ok())
            .flat_map(|ip| Proto::ALL.map(|proto| (proto, at(ip, 80))))
            .map(|(proto, address)| member.pod.serve(proto, &address.to_string(), name))
            .collect();
        for &(protocol, port) in &member.ports {
            let proto = if protocol == "tcp" { Proto::Tcp } else { Proto::Udp };
            client.expect(proto, (client.node_v4, port), name);
            client.expect(proto, (client.node_v6, port), name);
            let owners = expected.entry((protocol.to_owned(), port)).or_default();
            assert!(owners.insert(name.clone()) && owners.len() == 1, "{protocol} {port} twice: {owners:?}");
        }
        drop(servers);
    }
    assert_eq!(published(stage.node), expected);
    let reserved: BTreeSet<String> = (0..2)
        .flat_map(|number| stage.node.list(&format!("/var/lib/cni/networks/net{number}")))
        .filter(|name| name.starts_with("10.88."))
        .collect();
    let wanted: BTreeSet<String> = members.iter().map(|member| member.ip.clone()).collect();
    assert_eq!(reserved, wanted);
}

#[test]
fn nothing_is_leaked_lost_or_given_twice() {
    if is_peer() {
        // Conflicts are silent there: the model would not hold.
        return;
    }
    let number = |key: &str| std::env::var(key).ok().and_then(|value| value.parse::<u64>().ok());
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = number("SLIPWAY_SEED").unwrap_or(u64::from(clock.subsec_nanos()));
    let seconds = number("SLIPWAY_SOAK_SECONDS").unwrap_or(SECONDS);
    eprintln!("SLIPWAY_SEED={seed}");
    let node = Node::new();
    node.bridge_netfilter(BridgeNetfilter::Off);
    let client = node.host("client");
    let stage = Stage {
        node: &node,
        networks: [0, 1].map(|number| node.network(list(number))),
        addresses: Mutex::default(),
        world: RwLock::default(),
        valid: Mutex::default(),
        conflicts: Mutex::default(),
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    let members: Vec<Member> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                scope.spawn({
                    let stage = &stage;
                    move || worker(stage, number, seed, end)
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        assert!(ended.iter().all(Result::is_ok), "SLIPWAY_SEED={seed}: a worker failed, see above");
        ended.into_iter().flatten().flatten().collect()
    });
    compare(&stage, &client, &members);
    let conflicts = *stage.conflicts.lock().expect("not poisoned");
    assert!(conflicts > 0, "the workers never wanted the same port");
    // A crash: all pods are gone, the cache too. GC leaves nothing.
    for member in members {
        member.pod.remove();
    }
    for network in &stage.networks {
        network.forget();
        network.gc(&[]).unwrap_or_else(|e| panic!("GC: {e:?}"));
    }
    compare(&stage, &client, &[]);
    let rules = node.ruleset();
    assert!(!rules.contains("slipway1"), "{rules}");
}
