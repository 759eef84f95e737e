// SPDX-License-Identifier: MIT OR Apache-2.0

//! A plugin set to measure, with its own node.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::measure::{self, Cost};
use super::trace::{self, Trace};
use xtask::cni::{Chain, Pod, SYSTEM_PATH, container_id};
use xtask::sandbox;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, tool};
use xtask_base::workspace;

/// Pods per bridge. A bridge holds 1,023 ports (`BR_MAX_PORTS` in net/bridge/br_private.h).
const PODS_PER_BRIDGE: u32 = 500;
/// Published ports per pod.
const PORTS: u32 = 3;
/// The first port of the pods that are present, and that of the measured one.
const FIRST_PORT: u32 = 2_000;
const MEASURED_PORT: u32 = 40_000;

/// The backend of ports and masquerade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    /// The plugins' default.
    Default,
    /// `"backend": "nftables"`.
    Nftables,
    /// `"backend": "iptables"`.
    Iptables,
    /// `"backend": "ebpf"`.
    Ebpf,
}

impl Backend {
    fn key(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::Nftables => Some("nftables"),
            Self::Iptables => Some("iptables"),
            Self::Ebpf => Some("ebpf"),
        }
    }

    /// A node that uses only nftables has no iptables: the reference's DEL would look there, too, and might
    /// fail on what iptables prints about a chain that was never made.
    pub(super) fn path(self, iptables: &str) -> Result<String> {
        if self == Self::Nftables {
            return links("only-nft", &[("nft".to_owned(), "nft".to_owned())]);
        }
        let names = ["iptables", "ip6tables"].into_iter().flat_map(|family| {
            ["", "-save", "-restore"]
                .map(|tool| (format!("{family}{tool}"), format!("{family}-{iptables}{tool}")))
        });
        let own = links(&format!("iptables-{iptables}"), &names.collect::<Vec<_>>())?;
        Ok(format!("{own}:{SYSTEM_PATH}"))
    }
}

/// A folder with links of these names to these programs.
fn links(folder: &str, links: &[(String, String)]) -> Result<String> {
    let dir = workspace::scratch("bench")?.join(folder);
    files::create_dir(&dir)?;
    for (name, program) in links {
        let (program, link) = (run::which(program).unwrap_or_default(), dir.join(name));
        match symlink(&program, &link) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::file("make the link", &link, e));
            }
            _ => {}
        }
    }
    Ok(dir.to_string_lossy().into_owned())
}

/// A plugin set.
#[derive(Debug)]
pub(super) struct Contender {
    /// The contender's name in tables and files.
    pub(super) name: String,
    /// The directory of the contender's plugins.
    pub(super) dir: PathBuf,
    backend: Backend,
    path: String,
    node: PathBuf,
    chains: Vec<Chain>,
    /// Published ports per pod.
    ports: u32,
    present: u32,
    next: u32,
}

/// The cost of each plugin in an ADD and two DELs of the whole list, in the order of the calls.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) add: Vec<Cost>,
    pub(super) del: Vec<Cost>,
    /// The second DEL, which finds no attachment. It has no result, because the first DEL has emptied the runtime's
    /// cache.
    pub(super) gone: Vec<Cost>,
}

impl Sample {
    /// All calls, in their order.
    pub(super) fn calls(&self) -> impl Iterator<Item = &Cost> {
        self.add.iter().chain(&self.del).chain(&self.gone)
    }
}

/// An attached pod.
#[derive(Debug)]
pub(super) struct Attached {
    pod: Pod,
    bridge: u32,
    ports: Value,
    result: Value,
}

impl Contender {
    /// Makes the contender's node: a namespace with an uplink, through which masqueraded packets would leave.
    pub(super) fn new(name: &str, dir: &Path, backend: Backend, iptables: &str) -> Result<Self> {
        let node = make_node(name)?;
        let (name, dir, path) = (name.to_owned(), dir.to_owned(), backend.path(iptables)?);
        Ok(Self { name, dir, backend, path, node, chains: Vec::new(), ports: PORTS, present: 0, next: 0 })
    }

    /// Publishes one TCP port for each pod instead of three ports.
    pub(super) fn publish_one_port(&mut self) {
        self.ports = 1;
    }

    /// The network namespace of the contender's node.
    pub(super) fn node(&self) -> &Path {
        &self.node
    }

    /// The list of plugins for the first bridge.
    pub(super) fn first_chain(&mut self) -> &Chain {
        self.chain(0)
    }

    /// Pods with port mappings for a burst, with namespaces of their own.
    pub(super) fn burst(&mut self, count: u32) -> Result<Vec<(Pod, Value)>> {
        let pod = |number: u32| Ok((self.pod()?, ports(MEASURED_PORT + number, 1)));
        (0..count).map(pod).collect()
    }

    /// False if the plugin set was asked for nftables and has made no table there, because versions without that
    /// backend ignore the key.
    pub(super) fn knows_its_backend(&mut self) -> Result<bool> {
        let attached = self.attach_untimed(MEASURED_PORT)?;
        let tables = run::capture(&mut tool("nft", &["list", "tables"]))?;
        self.detach(&attached)?;
        Ok(self.backend != Backend::Nftables || tables.contains("cni_hostport"))
    }

    /// Attaches pods until `count` are present, by real ADDs.
    pub(super) fn fill(&mut self, count: u32, mut each: impl FnMut(u32)) -> Result<()> {
        while self.present < count {
            self.attach_untimed(FIRST_PORT + self.present * self.ports)?;
            self.present += 1;
            each(self.present);
        }
        Ok(())
    }

    /// Loads rules of another engine on the contender's node.
    pub(super) fn restore(&self, iptables: &str, rules: &str) -> Result<()> {
        sandbox::switch_to(&self.node)?;
        let program = format!("iptables-{iptables}-restore");
        run::feed(&mut tool(&program, &["--noflush"]), rules).map(drop)
    }

    fn attach_untimed(&mut self, first_port: u32) -> Result<Attached> {
        let bridge = self.present / PODS_PER_BRIDGE;
        let pod = self.pod()?;
        self.attach(pod, bridge, first_port).map(|(_, attached)| attached)
    }

    /// An ADD and two DELs of a new pod on the first bridge.
    pub(super) fn sample(&mut self, pause: impl Fn()) -> Result<Sample> {
        let pod = self.pod()?;
        pause();
        let (add, attached) = self.attach(pod, 0, MEASURED_PORT)?;
        pause();
        let del = self.detach(&attached)?;
        pause();
        let gone = self.detach(&Attached { result: Value::Null, ..attached })?;
        Ok(Sample { add, del, gone })
    }

    /// Makes the same calls under ptrace(2), which counts started programs and memory for ADD and DEL.
    pub(super) fn trace(&mut self) -> Result<(Trace, Trace)> {
        let (pod, ports) = (self.pod()?, ports(MEASURED_PORT, self.ports));
        sandbox::switch_to(&self.node)?;
        let chain = self.chain(0);
        let (mut add, mut del, mut result) = (Trace::default(), Trace::default(), Value::Null);
        for index in 0..chain.plugins.len() {
            let traced = trace::run(chain.call(index, "ADD", &pod, &ports, &result))?;
            result = decode(&traced.output)?;
            add.add(&traced);
        }
        for index in (0..chain.plugins.len()).rev() {
            del.add(&trace::run(chain.call(index, "DEL", &pod, &ports, &result))?);
        }
        Ok((add, del))
    }

    fn attach(&mut self, pod: Pod, bridge: u32, first_port: u32) -> Result<(Vec<Cost>, Attached)> {
        let ports = ports(first_port, self.ports);
        sandbox::switch_to(&self.node)?;
        let chain = self.chain(bridge);
        let (mut cost, mut result) = (Vec::new(), Value::Null);
        for index in 0..chain.plugins.len() {
            let (one, output) = measure::call(chain.call(index, "ADD", &pod, &ports, &result))?;
            cost.push(one);
            result = decode(&output)?;
        }
        Ok((cost, Attached { pod, bridge, ports, result }))
    }

    fn detach(&mut self, attached: &Attached) -> Result<Vec<Cost>> {
        sandbox::switch_to(&self.node)?;
        let chain = self.chain(attached.bridge);
        let mut cost = Vec::new();
        for index in (0..chain.plugins.len()).rev() {
            cost.push(
                measure::call(chain.call(index, "DEL", &attached.pod, &attached.ports, &attached.result))?.0,
            );
        }
        Ok(cost)
    }

    /// A pod with an empty namespace. Namespaces stay until the end: the removal of one
    /// holds locks for which the next measurement would wait.
    fn pod(&mut self) -> Result<Pod> {
        self.next += 1;
        let netns = sandbox::add_netns(&format!("{}-{}", self.name, self.next))?;
        Ok(Pod { id: container_id(self.next), netns })
    }

    fn chain(&mut self, bridge: u32) -> &Chain {
        let index = usize::try_from(bridge).unwrap_or(0);
        while self.chains.len() <= index {
            let chain = self.new_chain(self.chains.len());
            self.chains.push(chain);
        }
        &self.chains[index]
    }

    /// The measured list, for the bridge with a number.
    fn new_chain(&self, number: usize) -> Chain {
        let mut bridge = json!({
            "type": "bridge",
            "bridge": format!("cni{number}"),
            "isDefaultGateway": true,
            "ipMasq": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": format!("/var/lib/cni/{}", self.name),
                "ranges": [[{ "subnet": format!("10.{}.0.0/16", 100 + number) }]],
            },
        });
        let mut portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
        if let Some(key) = self.backend.key() {
            bridge["ipMasqBackend"] = json!(key);
            portmap["backend"] = json!(key);
        }
        Chain {
            dir: self.dir.clone(),
            network: format!("net{number}"),
            version: "1.0.0",
            path: self.path.clone(),
            plugins: vec![bridge, portmap],
        }
    }
}

/// Makes a namespace with an uplink, through which masqueraded packets would leave, and moves the calling thread there.
pub(super) fn make_node(name: &str) -> Result<PathBuf> {
    let node = sandbox::add_netns(&format!("node-{name}"))?;
    sandbox::switch_to(&node)?;
    for words in [
        "link set lo up",
        "link add uplink0 type veth peer name uplink1",
        "addr add 192.0.2.1/24 dev uplink0",
        "link set uplink0 up",
        "link set uplink1 up",
        "route add default via 192.0.2.254",
    ] {
        run::capture(&mut tool("ip", &words.split(' ').collect::<Vec<_>>()))?;
    }
    Ok(node)
}

fn ports(first: u32, count: u32) -> Value {
    let mapping = |n| json!({ "hostPort": first + n, "containerPort": 80 + n, "protocol": if n == 2 { "udp" } else { "tcp" } });
    Value::Array((0..count).map(mapping).collect())
}

fn decode(output: &str) -> Result<Value> {
    serde_json::from_str(output)
        .map_err(|e| Error::Failed(format!("a plugin printed no JSON ({e}): {output}")))
}
