// SPDX-License-Identifier: GPL-2.0-or-later

//! Runs a script on a new node, and compares the kernel's state with the model after each round.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Failure, Host, Network, Node, Pod, Proto, SHARED_IN_NFTABLES, Server, Snapshot, Space,
    host_local, usable,
};

use crate::Setting;
use crate::kernel::{Kernel, addresses};
use crate::script::{Event, Operation, PODS, Script, Step, WORKERS};

/// The names of the network, which is renamed while containers are attached.
const NAMES: [&str; 2] = ["net", "renamed"];
/// More than the number of addresses that other containers may have under the network's other name.
const ADDRESSES: usize = 64;

/// Fails with a reason, which is no panic, so that a script can be run again.
type Outcome<T = ()> = Result<T, String>;

/// What is known about a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Known {
    #[default]
    Detached,
    /// Attached with these addresses, under the network name with this index.
    Attached(Vec<IpAddr>, usize),
    /// A call under the network name with this index was killed, or its objects were flushed and nobody can restore them.
    Unsure(usize),
}

fn list(name: &str, setting: Setting) -> Value {
    json!({
        "name": name,
        "plugins": [
            {
                "type": setting.interface, "bridge": "br0", "isGateway": true, "hairpinMode": true, "ipMasq": true,
                "ipMasqBackend": setting.backend, "ipam": host_local("10.88.0.0/25", "fd00:88::/64"),
            },
            {"type": "portmap", "backend": setting.backend, "capabilities": {"portMappings": true}},
        ],
    })
}

/// The node, and what does not belong to one worker.
struct World {
    node: Node,
    client: Host,
    pods: Vec<Vec<Pod>>,
    _servers: Vec<Server>,
    setting: Setting,
}

struct Worker<'a> {
    world: &'a World,
    number: usize,
    /// The network under each of its names.
    networks: [Network<'a>; 2],
    /// The index of the network's current name.
    name: usize,
    known: Vec<Known>,
}

fn must<T>(result: Result<T, impl Display>, what: impl Display) -> Outcome<T> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn ensure(condition: bool, what: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(what()) }
}

impl World {
    fn new(setting: Setting) -> Self {
        let (node, client) = Node::with_client();
        for family in ["iptables", "ip6tables"] {
            // The sign of the variant. Without iptables, nobody looks for it.
            node.try_cmd(&format!("{family}-{} -t mangle -N KUBE-IPTABLES-HINT", setting.variant));
        }
        // The BPF programs are attached to the links of default routes.
        node.cmd(&format!("ip route add default via {}", client.v4));
        let pods: Vec<Vec<Pod>> = (0..WORKERS)
            .map(|worker| (0..PODS).map(|pod| node.pod(&format!("w{worker}p{pod}"))).collect())
            .collect();
        let servers = pods.iter().flatten().map(|pod| pod.serve(Proto::Tcp, "[::]:80", pod.name())).collect();
        Self { node, client, pods, _servers: servers, setting }
    }

    fn spaces(&self) -> Vec<&Space> {
        self.pods.iter().flatten().map(|pod| &**pod).collect()
    }

    fn attach(&self, worker: usize, pod: usize) -> Attach {
        let port = u16::try_from(20_000 + worker * 100 + pod).expect("a port");
        Attach::new(&self.pods[worker][pod]).port(Proto::Tcp, port, 80).port(Proto::Udp, port, 80)
    }

    fn flush(&self) {
        self.node.cmd("nft flush ruleset");
        for family in ["iptables", "ip6tables"] {
            if self.setting.variant == "legacy" {
                self.node.cmd(&format!("{family}-legacy -t nat -F"));
            } else {
                self.node.try_cmd(&format!("{family}-nft -t mangle -N KUBE-IPTABLES-HINT"));
            }
        }
    }

    /// Runs a command of slipway, which must end with one of these codes.
    fn slipway(&self, words: &str, codes: &[i32]) -> Outcome {
        let output = self.node.try_slipway(words);
        ensure(output.code.is_some_and(|code| codes.contains(&code)), || format!("{words}: {output}"))
    }

    fn happens(&self, event: Event) -> Outcome {
        match event {
            Event::Nothing => Ok(()),
            Event::Flush => {
                self.flush();
                Ok(())
            }
            Event::Restore => self.slipway("restore", &[0, 4]),
            Event::Migrate(to) => self.slipway(&format!("migrate --to {to}"), &[0, 4]),
            Event::Gc => {
                // All containers are valid, because each may be attached at any moment.
                let all = self
                    .pods
                    .iter()
                    .flatten()
                    .map(|pod| json!({"containerID": pod.name(), "ifname": "eth0"}));
                self.gc(&all.collect::<Vec<_>>().into())
            }
        }
    }

    fn gc(&self, valid: &Value) -> Outcome {
        NAMES.iter().try_for_each(|name| {
            let network = self.node.network(list(name, self.setting));
            network.gc_plugins(valid).map_err(|failures| format!("GC of {name}: {failures:?}"))
        })
    }

    fn read_kernel(&self) -> Kernel {
        Kernel::read(&self.node, self.setting.variant)
    }
}

impl Worker<'_> {
    fn pod(&self, pod: usize) -> &Pod {
        &self.world.pods[self.number][pod]
    }

    fn step(&mut self, step: Step, event: Event) -> Outcome {
        let is_flushed = event == Event::Flush;
        let Step { pod, operation } = step;
        let attach = self.world.attach(self.number, pod);
        let what = format!("{operation:?} of {}", attach.container);
        let known = self.known[pod].clone();
        self.known[pod] = match (known, operation) {
            // Containers remain attached under the name that they were attached with.
            (_, Operation::Rename) => {
                self.name = 1 - self.name;
                return Ok(());
            }
            // The next DEL and CHECK have no result, and nobody can restore what is flushed.
            (_, Operation::Forget) => {
                self.networks.iter().for_each(Network::forget);
                (0..PODS).for_each(|pod| self.drop_caches(&self.world.attach(self.number, pod)));
                return Ok(());
            }
            (_, Operation::Status) => {
                return must(self.networks[self.name].status(), what);
            }
            (Known::Detached, Operation::Add) => Known::Attached(self.add(&attach)?, self.name),
            (Known::Attached(_, name), Operation::Add) => {
                // Under another name, the namespace has the link of the first ADD.
                let Err(failure) = self.networks[self.name].add(&attach) else {
                    return Err(format!("{what}, which is attached as {}: it succeeded", NAMES[name]));
                };
                return ensure(failure.error.msg.contains("already exists"), || format!("{what}: {failure}"));
            }
            (Known::Attached(_, name), Operation::Check) => {
                if self.networks[name].cached(&attach).is_some() && !is_flushed {
                    must(self.networks[name].check(&attach), what)?;
                }
                return Ok(());
            }
            (Known::Detached, Operation::Kill(_, micros)) => {
                self.kill("ADD", &attach, (0, self.name), micros)
            }
            (Known::Attached(_, name), Operation::Kill(at, micros)) => {
                self.kill("DEL", &attach, (at, name), micros)
            }
            // The DEL uses the name of the killed call, because under another name nothing proves that what the call
            // has left does not belong to a living container.
            (Known::Unsure(name), _) => self.del(&attach, name)?,
            // Under another name the DEL gets no result, so it sets no mark that keeps a restoration from interfering.
            (Known::Attached(_, name), _) if event == Event::Restore => self.del(&attach, name)?,
            // DEL is also called for attachments that do not exist.
            _ => self.del(&attach, self.name)?,
        };
        Ok(())
    }

    /// Calls ADD, repeatedly if necessary, because a container that is attached under another name may have the first
    /// address that host-local chooses.
    fn add(&self, attach: &Attach) -> Outcome<Vec<IpAddr>> {
        let network = &self.networks[self.name];
        for _ in 0..ADDRESSES {
            match network.add(attach) {
                Ok(result) => {
                    network.write_cache(attach);
                    let mut all = slipway_tests::addresses_of(&result);
                    all.sort_unstable();
                    return Ok(all);
                }
                Err(Failure { error, .. }) if error.code == 11 && error.msg.contains("container address") => {
                    must(network.del(attach), format!("DEL of {} after a failed ADD", attach.container))?;
                }
                Err(failure) => return Err(format!("ADD of {}: {failure}", attach.container)),
            }
        }
        Err(format!("ADD of {}: every address is taken", attach.container))
    }

    fn del(&self, attach: &Attach, name: usize) -> Outcome<Known> {
        must(self.networks[name].del(attach), format!("DEL of {} as {}", attach.container, NAMES[name]))?;
        // As runtimes do, the cache goes last.
        self.drop_caches(attach);
        Ok(Known::Detached)
    }

    fn drop_caches(&self, attach: &Attach) {
        for network in &self.networks {
            let path = network.cache_path(attach);
            let _missing = self.world.node.run(|| std::fs::remove_file(&path));
        }
    }

    fn kill(&self, verb: &str, attach: &Attach, (at, name): (usize, usize), micros: u64) -> Known {
        let network = &self.networks[name];
        let mut config = network.configs(Some(attach)).swap_remove(at);
        if let (Some(result), "DEL") = (network.cached(attach), verb) {
            config["prevResult"] = result;
        }
        let mut running = network.prepare(verb, &config, Some(attach)).spawn();
        thread::sleep(Duration::from_micros(micros));
        running.kill();
        running.wait();
        Known::Unsure(name)
    }

    /// What the flush has taken from containers that the runtime's cache does not list is lost.
    fn after_flush(&mut self) {
        for pod in 0..PODS {
            let attach = self.world.attach(self.number, pod);
            if let Known::Attached(_, name) = self.known[pod]
                && self.networks[name].cached(&attach).is_none()
            {
                self.known[pod] = Known::Unsure(name);
            }
        }
    }

    /// Compares the kernel's state for this worker's containers with the model.
    fn compare(&self, kernel: &Kernel) -> Outcome {
        for (pod, known) in self.known.iter().enumerate() {
            let space = self.pod(pod);
            let id = space.name();
            let port = 20_000 + (self.number * 100 + pod) as u64;
            let published: BTreeSet<_> = kernel.ports.keys().filter(|(_, other, _)| *other == port).collect();
            let links = kernel.links.get(id).copied().unwrap_or_default();
            match known {
                Known::Attached(ips, name) => {
                    let found = addresses(space);
                    ensure(found.as_ref() == Some(ips), || format!("{id} has {found:?}, not {ips:?}"))?;
                    ensure(links == 1, || format!("{id} has {links} links on the node"))?;
                    for ip in ips {
                        let file =
                            self.world.node.read(&format!("/var/lib/cni/networks/{}/{ip}", NAMES[*name]));
                        ensure(file == Some(format!("{id}\r\neth0")), || {
                            format!("{id}: {ip} is of {file:?}")
                        })?;
                        for proto in ["tcp", "udp"] {
                            let key = (proto.to_owned(), port, *ip);
                            let places = kernel.ports.get(&key).copied().unwrap_or_default();
                            ensure(places == 1, || format!("{id}: {key:?} is published in {places} places"))?;
                        }
                        let places = kernel.masqueraded.get(ip).copied().unwrap_or_default();
                        ensure(places == 1, || format!("{id}: {ip} is masqueraded in {places} places"))?;
                    }
                    ensure(published.len() == 2 * ips.len(), || format!("{id} at {ips:?}: {published:?}"))?;
                    let node = usable([self.world.client.node_v4.into(), self.world.client.node_v6.into()]);
                    for ip in node {
                        let to = (ip, u16::try_from(port).expect("a port"));
                        let answer =
                            must(self.world.client.request(Proto::Tcp, to), format!("{id}: reach {to:?}"))?;
                        ensure(answer.who == id, || format!("{to:?} leads to {}, not to {id}", answer.who))?;
                    }
                }
                Known::Detached => {
                    ensure(published.is_empty(), || format!("{id} is detached: {published:?}"))?;
                    ensure(links == 0, || format!("{id} is detached and has {links} links on the node"))?;
                    let found = addresses(space);
                    ensure(found.is_none(), || format!("{id} is detached and has {found:?}"))?;
                }
                Known::Unsure(_) => {}
            }
        }
        Ok(())
    }
}

/// The reservations of all networks must be those of containers that are attached, or perhaps attached.
fn reservations(world: &World, workers: &[Worker<'_>]) -> Outcome {
    let all = || {
        workers
            .iter()
            .flat_map(|worker| (0..PODS).map(move |pod| (worker.pod(pod).name(), &worker.known[pod])))
    };
    let mut given = BTreeSet::new();
    for (id, known) in all() {
        if let Known::Attached(ips, _) = known {
            for ip in ips {
                ensure(given.insert(*ip), || format!("{ip} was given to two containers, one of them {id}"))?;
            }
        }
    }
    for (index, name) in NAMES.iter().enumerate() {
        for ip in world.node.reserved(name) {
            let file = world.node.read(&format!("/var/lib/cni/networks/{name}/{ip}")).unwrap_or_default();
            let owner = file.split(['\r', '\n']).next().unwrap_or_default();
            let known = all().find(|(id, _)| *id == owner).map(|(_, known)| known);
            let address: IpAddr = ip.parse().expect("an address");
            let is_right = match known {
                Some(Known::Attached(ips, name)) => *name == index && ips.contains(&address),
                Some(Known::Unsure(_)) => true,
                // A killed ADD has written no owner yet, and the next ADD that needs the address takes it.
                Some(Known::Detached) | None => owner.is_empty(),
            };
            ensure(is_right, || format!("{name} has reserved {ip} for {file:?}, which is {known:?}"))?;
        }
    }
    Ok(())
}

/// The message of a panic.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Runs a script on a new node. Fails with the first difference between the model and the kernel.
pub(crate) fn run(setting: Setting, script: &Script) -> Outcome {
    let world = World::new(setting);
    // The first container creates all shared objects, in each backend.
    for name in NAMES {
        let (network, first) = (world.node.network(list(name, setting)), world.attach(0, 0));
        must(network.add(&first), "the first ADD")?;
        for to in setting.migrations {
            world.slipway(&format!("migrate --to {to}"), &[0])?;
        }
        must(network.del(&first), "its DEL")?;
    }
    let state = || {
        Snapshot::take(&world.node, &world.spaces()).without(&[
            "last_reserved_ip",
            "networks/.slipway/",
            "folder /var/lib/cni/results",
        ])
    };
    let before = state();
    let mut workers: Vec<Worker<'_>> = (0..WORKERS)
        .map(|number| Worker {
            world: &world,
            number,
            networks: NAMES.map(|name| world.node.network(list(name, setting))),
            name: 0,
            known: vec![Known::default(); PODS],
        })
        .collect();
    for (number, round) in script.0.iter().enumerate() {
        let in_round = |reason| format!("round {number} with {:?}: {reason}", round.event);
        let is_flushed = round.event == Event::Flush;
        thread::scope(|scope| {
            let mut all = vec![scope.spawn(|| world.happens(round.event))];
            all.extend(workers.iter_mut().map(|worker| {
                let steps = &round.steps[worker.number];
                scope.spawn(move || steps.iter().try_for_each(|step| worker.step(*step, round.event)))
            }));
            let ended =
                all.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| Err(text_of(&*panic))));
            ended.collect::<Vec<_>>().into_iter().collect::<Outcome<()>>()
        })
        .map_err(in_round)?;
        if is_flushed {
            workers.iter_mut().for_each(Worker::after_flush);
            world.slipway("restore", &[0]).map_err(in_round)?;
        }
        let kernel = world.read_kernel();
        workers.iter().try_for_each(|worker| worker.compare(&kernel)).map_err(in_round)?;
        reservations(&world, &workers).map_err(in_round)?;
    }
    for worker in &workers {
        for pod in 0..PODS {
            let name = if let Known::Unsure(name) = worker.known[pod] { name } else { worker.name };
            worker.del(&world.attach(worker.number, pod), name)?;
        }
    }
    // A flush or a GC also takes shared objects, which come back with the next ADD that needs them.
    let unshared = |state: Snapshot| state.without(SHARED_IN_NFTABLES).without(&["CNI-HOSTPORT-"]);
    let changes = unshared(before).changes_in_the_end(|| unshared(state()));
    ensure(changes.is_empty(), || format!("left:\n{}", changes.join("\n")))
}
