//! One way from the client to a pod, with a node of its own.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::load::{self, Client, Pin, Spent, Target, Work};
use super::plan::{self, PER_POD, Ports};
use super::shape::{Identity, Place, Shape, Tool};
use super::space::{Habits, JOINED_POD, NODE_ADDRESS, Space, in_net, outside};
use crate::contender::Backend;
use xtask::cni::{self, Chain, Family, Pod};
use xtask::error::{Error, Result};
use xtask::run::{self, tool};

/// Pods on one bridge.
const PODS_PER_BRIDGE: usize = 250;
/// The first address of pods that are rules only, and have no interface.
const BULK: u32 = u32::from_be_bytes([10, 250, 0, 0]);

/// What a node uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// No node in between: one pair of links from the client to the pod. What both ends cost by themselves.
    Direct,
    /// No translation: the client asks the pod's own address. Nobody has rules here, nothing tracks
    /// connections.
    Routed,
    /// Likewise, on a node that tracks connections.
    Tracked,
    /// The reference's portmap and bridge with iptables.
    ReferenceIptables,
    /// Likewise with nftables.
    ReferenceNftables,
    /// Ours with iptables.
    Iptables,
    /// Ours with nftables.
    Nftables,
    /// Ours with the BPF programs.
    Ebpf,
}

impl Kind {
    /// As it is written in tables and on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Routed => "routed",
            Self::Tracked => "tracked",
            Self::ReferenceIptables => "reference-iptables",
            Self::ReferenceNftables => "reference-nftables",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ebpf => "ebpf",
        }
    }

    pub(super) fn is_peer(self) -> bool {
        matches!(self, Self::ReferenceIptables | Self::ReferenceNftables)
    }

    /// The value of the plugins' keys; none for a node without portmap and masquerade.
    fn backend(self) -> Option<&'static str> {
        match self {
            Self::Direct | Self::Routed | Self::Tracked => None,
            Self::ReferenceIptables | Self::Iptables => Some("iptables"),
            Self::ReferenceNftables | Self::Nftables => Some("nftables"),
            Self::Ebpf => Some("ebpf"),
        }
    }

    fn shape_tool(self) -> Tool {
        if self == Self::ReferenceIptables { Tool::Iptables } else { Tool::Nft }
    }

    fn path(self, iptables: &str) -> Result<String> {
        // Nothing can be done with iptables where there is none.
        let only_nft = matches!(self, Self::ReferenceNftables | Self::Nftables | Self::Ebpf);
        if only_nft { Backend::Nftables } else { Backend::Iptables }.path(iptables)
    }
}

/// Who asks whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    /// Another host asks a published port of the node.
    Port,
    /// A pod asks another host.
    Masquerade,
    /// The node itself asks its published port.
    Node,
    /// The node itself asks the pod's own address.
    NodeDirect,
}

impl Way {
    /// As it is written in tables and on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Masquerade => "masquerade",
            Self::Node => "node",
            Self::NodeDirect => "node-direct",
        }
    }
}

/// What all contenders of a run have in common.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) own: PathBuf,
    pub(super) peer: PathBuf,
    pub(super) iptables: String,
    pub(super) peer_live: u32,
    pub(super) habits: Habits,
    pub(super) pin: Pin,
}

/// How many ports are which.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Count {
    /// Pods that were attached by a real ADD, and their ports.
    pub(super) live_pods: u32,
    pub(super) live_ports: u32,
    /// Pods whose rules were loaded as text, and their ports.
    pub(super) bulk_pods: u32,
    pub(super) bulk_ports: u32,
}

/// A contender.
#[derive(Debug)]
pub(super) struct Contender {
    pub(super) kind: Kind,
    pub(super) count: Count,
    pub(super) space: Space,
    setting: Setting,
    path: String,
    planned: usize,
    /// The addresses of the pods that are there, and the first port of each.
    live: Vec<(Ipv4Addr, u16)>,
    shapes: Vec<(u16, Shape)>,
    measured: Option<Measured>,
    clients: [Client; 4],
}

/// The pod at the other end.
#[derive(Debug)]
struct Measured {
    index: usize,
    net: File,
}

impl Contender {
    /// Makes its node.
    ///
    /// # Errors
    /// The namespaces cannot be made.
    pub(super) fn new(kind: Kind, setting: &Setting) -> Result<Self> {
        let space = Space::new(&setting.habits)?;
        let contender = Self {
            kind,
            space,
            setting: setting.clone(),
            path: kind.path(&setting.iptables)?,
            count: Count::default(),
            planned: 0,
            live: Vec::new(),
            shapes: Vec::new(),
            measured: None,
            clients: [const { Client::new() }; 4],
        };
        load::serve(contender.space.client(), setting.pin)?;
        if kind == Kind::Tracked {
            contender.space.run(|| {
                run::feed(
                    &mut tool("nft", &["-f", "-"]),
                    "table inet tracked {\n chain prerouting {\n  type filter hook prerouting priority 0;\n\
                     \x20 ct state invalid counter\n }\n}\n",
                )
            })?;
        }
        Ok(contender)
    }

    /// Looks at what real ADDs write, on a node that is given up afterwards.
    ///
    /// # Errors
    /// An ADD failed, or wrote something else than its name says.
    pub(super) fn learn(&mut self) -> Result<()> {
        if !self.kind.is_peer() {
            return Ok(());
        }
        let mut other = Self::new(self.kind, &self.setting)?;
        other.attach(Ports { first: 1_000, count: 1 })?;
        for (count, first) in [(1, 2_000), (PER_POD, 3_000)] {
            let ports = Ports { first, count };
            let before = other.dump()?;
            let (id, address) = other.attach(ports)?;
            let shape =
                Shape::new(self.kind.shape_tool(), &before, &other.dump()?, Identity { id, address, ports });
            if shape.translations() != usize::from(count) {
                return Err(Error::Failed(format!(
                    "{}: {} rules translate {count} ports: these plugins do not do what the name says",
                    self.kind.name(),
                    shape.translations()
                )));
            }
            self.shapes.push((count, shape));
        }
        Ok(())
    }

    /// Publishes ports until there are so many.
    ///
    /// # Errors
    /// An ADD failed, or rules that cannot be loaded.
    pub(super) fn fill(&mut self, ports: u32) -> Result<()> {
        if self.kind == Kind::Direct {
            if self.live.is_empty() {
                self.space.join(&name(0))?;
                self.live.push((JOINED_POD, load::PORT));
            }
            return self.choose(1);
        }
        let pods = plan::pods(ports)?;
        let mut bulk = Vec::new();
        for ports in pods.iter().skip(self.planned) {
            let count = u32::from(ports.count);
            if self.kind.is_peer() && (count > 1 || self.count.live_pods >= self.setting.peer_live) {
                let number = self.count.bulk_pods;
                let address = Ipv4Addr::from(BULK + number);
                let place = if number.is_multiple_of(2) { Place::Front } else { Place::End };
                bulk.push((Identity { id: format!("bulk{number}"), address, ports: *ports }, place));
                self.count.bulk_pods += 1;
                self.count.bulk_ports += count;
            } else {
                self.attach(*ports)?;
                self.count.live_pods += 1;
                self.count.live_ports += count;
            }
        }
        self.planned = self.planned.max(pods.len());
        self.load(&bulk)?;
        self.choose(pods.len())
    }

    /// Has the pod in the middle answer.
    fn choose(&mut self, pods: usize) -> Result<()> {
        let index = plan::measured(pods.min(self.live.len()));
        if self.measured.as_ref().is_some_and(|measured| measured.index == index) {
            return Ok(());
        }
        let path = xtask::sandbox::netns_path(&name(index));
        let net = self.space.run(|| File::open(&path).map_err(|e| Error::file("open", &path, e)))?;
        load::serve(&net, self.setting.pin)?;
        self.measured = Some(Measured { index, net });
        Ok(())
    }

    /// Works for a time.
    ///
    /// # Errors
    /// The traffic does not come through.
    pub(super) fn sample(&mut self, way: Way, work: Work, time: Duration) -> Result<Spent> {
        let failed = |e| Error::Failed(format!("{}, {}: {e}", self.kind.name(), way.name()));
        let Some(measured) = &self.measured else {
            return Err(Error::Failed("nothing is attached".to_owned()));
        };
        let (address, port) = self.live[measured.index];
        let direct = Target { addresses: vec![address], port: load::PORT };
        let published = match self.kind.backend() {
            None => direct.clone(),
            Some(_) => Target { addresses: vec![NODE_ADDRESS], port },
        };
        let (pin, client) = (self.setting.pin, &mut self.clients[way as usize]);
        match way {
            Way::Port => in_net(self.space.client(), || client.run(work, &published, time, pin)),
            Way::Node => self.space.in_group(|| client.run(work, &published, time, pin)),
            Way::NodeDirect => self.space.in_group(|| client.run(work, &direct, time, pin)),
            Way::Masquerade => {
                let outside = Target { addresses: outside().collect(), port: load::PORT };
                in_net(&measured.net, || client.run(work, &outside, time, pin))
            }
        }
        .map_err(failed)
    }

    /// Where its plugins are.
    pub(super) fn dir(&self) -> &Path {
        if self.kind.is_peer() { &self.setting.peer } else { &self.setting.own }
    }

    /// A real ADD of the next pod; returns its ID and address.
    fn attach(&mut self, ports: Ports) -> Result<(String, Ipv4Addr)> {
        let index = self.live.len();
        let (netns, _) = self.space.pod(&name(index))?;
        // 64 hexadecimal digits, different from the first one on.
        let number = u32::try_from(index + 1).unwrap_or(0);
        let pod = Pod { id: format!("{:08x}", number.wrapping_mul(0x9e37_79b1)).repeat(8), netns };
        let mappings = (0..ports.count).map(
            |n| json!({ "hostPort": ports.first + n, "containerPort": plan::INSIDE + n, "protocol": "tcp" }),
        );
        let mappings = Value::Array(mappings.collect());
        let chain = self.chain(index / PODS_PER_BRIDGE);
        let result = self.space.run(|| chain.add(&pod, &mappings))?;
        let text = cni::address(&result, Family::V4).unwrap_or_default();
        let address = parse(&text)?;
        self.live.push((address, ports.first));
        Ok((pod.id, address))
    }

    fn chain(&self, number: usize) -> Chain {
        let backend = self.kind.backend();
        let mut bridge = json!({
            "type": "bridge",
            "bridge": format!("cni{number}"),
            "isDefaultGateway": true,
            "ipMasq": backend.is_some(),
            "hairpinMode": true,
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": format!("10.{}.0.0/16", 100 + number) }]] },
        });
        let mut plugins = Vec::new();
        if let Some(backend) = backend {
            bridge["ipMasqBackend"] = json!(backend);
            plugins.push(json!({
                "type": "portmap", "backend": backend, "capabilities": { "portMappings": true },
            }));
        }
        plugins.insert(0, bridge);
        let (dir, path) = (self.dir().to_owned(), self.path.clone());
        Chain { dir, network: format!("net{number}"), version: "1.0.0", path, plugins }
    }

    fn dump(&self) -> Result<String> {
        self.space.run(|| match self.kind.shape_tool() {
            Tool::Iptables => {
                let save = format!("iptables-{}-save", self.setting.iptables);
                run::capture(&mut tool(&save, &["-t", "nat"]))
            }
            Tool::Nft => run::capture(&mut tool("nft", &["list", "ruleset"])),
        })
    }

    fn load(&self, bulk: &[(Identity, Place)]) -> Result<()> {
        let restore = format!("iptables-{}-restore", self.setting.iptables);
        for (count, shape) in &self.shapes {
            let of_shape = |pod: &&(Identity, Place)| pod.0.ports.count == *count;
            let pods: Vec<_> = bulk.iter().filter(of_shape).cloned().collect();
            if pods.is_empty() {
                continue;
            }
            let script = shape.script(&pods);
            let mut command = match self.kind.shape_tool() {
                Tool::Iptables => tool(&restore, &["--noflush"]),
                Tool::Nft => tool("nft", &["-f", "-"]),
            };
            self.space.run(|| run::feed(&mut command, &script))?;
        }
        Ok(())
    }

    /// How many connections the node's kernel tracks.
    ///
    /// # Errors
    /// It does not say.
    pub(super) fn tracked(&self) -> Result<u64> {
        let path = Path::new("/proc/sys/net/netfilter/nf_conntrack_count");
        self.space.run(|| {
            let text = fs::read_to_string(path).map_err(|e| Error::file("read", path, e))?;
            text.trim().parse().map_err(|e| Error::Failed(format!("{}: {e}", path.display())))
        })
    }

    /// What the BPF programs have counted on this node, and the rest of `slipway node status`; null where
    /// nothing is pinned.
    ///
    /// # Errors
    /// It failed.
    pub(super) fn programs(&self) -> Result<Value> {
        let pinned = self.space.run(|| Ok(Path::new("/sys/fs/bpf/slipway").exists()))?;
        if !pinned {
            return Ok(Value::Null);
        }
        let mut command = Command::new(self.setting.own.join("slipway"));
        command.args(["node", "status", "--output", "json"]);
        self.space.run(|| {
            let text = run::capture(&mut command)?;
            serde_json::from_str(&text)
                .map_err(|e| Error::Failed(format!("`slipway node status` printed no JSON ({e}): {text}")))
        })
    }

    /// The tables of nftables on the node. Of many rules nft takes its time to read, whatever it is asked
    /// for.
    ///
    /// # Errors
    /// nft failed.
    pub(super) fn tables(&self) -> Result<String> {
        self.space.run(|| run::capture(&mut tool("nft", &["list", "tables"])))
    }
}

fn name(index: usize) -> String {
    format!("pod-{index}")
}

fn parse(address: &str) -> Result<Ipv4Addr> {
    address.parse().map_err(|e| Error::Failed(format!("the address {address:?}: {e}")))
}
