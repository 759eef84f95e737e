// SPDX-License-Identifier: MIT OR Apache-2.0

//! A contender: a way from the client to a pod, with its own node.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::cost::Spent;
use super::load::{self, Client, Pin, Target, Work};
use super::plan::{self, PER_POD, Ports};
use super::shape::{Identity, Place, Shape, Tool};
use super::space::{Habits, JOINED_POD, NODE_ADDRESS, Space, in_net, outside};
use crate::contender::Backend;
use xtask::cni::{self, Chain, Family, Pod};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, tool};

const PODS_PER_BRIDGE: usize = 250;
/// The first address of pods that have only rules, and no interface.
const BULK: u32 = u32::from_be_bytes([10, 250, 0, 0]);

/// The way of packets through a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// No node: a veth pair joins client and pod. The cost of both ends alone.
    Direct,
    /// No translation: the client connects to the pod's address. There are no rules and no connection
    /// tracking.
    Routed,
    /// The same on a node that tracks connections.
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
    /// The name in tables and on the command line.
    pub(crate) fn name(self) -> &'static str {
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
        // Without iptables, no plugin can use it.
        let only_nft = matches!(self, Self::ReferenceNftables | Self::Nftables | Self::Ebpf);
        if only_nft { Backend::Nftables } else { Backend::Iptables }.path(iptables)
    }
}

/// Client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// Another host connects to a published port of the node.
    Port,
    /// A pod connects to another host.
    Masquerade,
    /// The node connects to its own published port.
    Node,
    /// The node connects to the pod's address.
    NodeDirect,
}

impl Way {
    /// The name in tables and on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Masquerade => "masquerade",
            Self::Node => "node",
            Self::NodeDirect => "node-direct",
        }
    }
}

/// The conditions of all contenders of a run.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) own: PathBuf,
    pub(super) peer: PathBuf,
    pub(super) iptables: String,
    pub(super) peer_live: u32,
    pub(super) habits: Habits,
    pub(super) pin: Pin,
    /// The protocol of all published ports.
    pub(super) protocol: &'static str,
}

/// Published ports by how their rules were made.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Pods that a real ADD attached, and their ports.
    pub(super) live_pods: u32,
    pub(super) live_ports: u32,
    /// Pods whose rules were loaded as text, and their ports.
    pub(super) bulk_pods: u32,
    pub(super) bulk_ports: u32,
}

#[derive(Debug)]
pub(super) struct Contender {
    pub(super) kind: Kind,
    pub(super) count: Count,
    pub(super) space: Space,
    setting: Setting,
    path: String,
    planned: usize,
    /// The addresses of attached pods, and the first port of each.
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

    /// Reads what real ADDs write, on a node that is not used again.
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
                    "{}: {} rules translate {count} ports: these plugins do not match the name",
                    self.kind.name(),
                    shape.translations()
                )));
            }
            self.shapes.push((count, shape));
        }
        Ok(())
    }

    /// Publishes ports up to a number.
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

    /// Starts the server in the middle pod.
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

    /// Makes traffic for a time.
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
            Way::Node => self.space.run(|| client.run(work, &published, time, pin)),
            Way::NodeDirect => self.space.run(|| client.run(work, &direct, time, pin)),
            Way::Masquerade => {
                let outside = Target { addresses: outside().collect(), port: load::PORT };
                in_net(&measured.net, || client.run(work, &outside, time, pin))
            }
        }
        .map_err(failed)
    }

    /// The directory of its plugins.
    pub(super) fn dir(&self) -> &Path {
        if self.kind.is_peer() { &self.setting.peer } else { &self.setting.own }
    }

    /// A real ADD of the next pod; returns its ID and address.
    fn attach(&mut self, ports: Ports) -> Result<(String, Ipv4Addr)> {
        let index = self.live.len();
        let (netns, _) = self.space.pod(&name(index))?;
        let pod = Pod { id: cni::container_id(u32::try_from(index + 1).unwrap_or(0)), netns };
        let mappings = (0..ports.count).map(
            |n| json!({ "hostPort": ports.first + n, "containerPort": plan::INSIDE + n, "protocol": self.setting.protocol }),
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

    /// The number of connections that the node's kernel tracks.
    pub(super) fn tracked(&self) -> Result<u64> {
        let path = Path::new("/proc/sys/net/netfilter/nf_conntrack_count");
        self.space.run(|| {
            let text = files::read(path)?;
            text.trim().parse().map_err(|e| Error::Failed(format!("{}: {e}", path.display())))
        })
    }

    /// The output of `slipway node status` with the BPF programs' counters; null if nothing is pinned.
    pub(super) fn programs(&self) -> Result<Value> {
        let pinned = self.space.run(|| Ok(Path::new("/sys/fs/bpf/slipway-flows").exists()))?;
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

    /// The names of nftables' tables on the node. With many rules nft is slow, whatever it lists.
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
