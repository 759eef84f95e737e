// SPDX-License-Identifier: GPL-2.0-or-later

//! The objects of a test on the node: their names, and their removal, also of what a killed test left.
//!
//! All names are constants, and a lock keeps a second test away. The network and the ports are written to a file
//! before the first plugin is called, so that a later call can detach the containers.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_dataplane::Protocol;
use cni_kernel::AddressFamily;
use cni_kernel::dir::{DirError, DurableDir};
use cni_kernel::lock::{FileLock, LockError};
use cni_kernel::named_netns::{self, NamedNetnsError};
use cni_kernel::netns::{Netns, NetnsError};
use cni_kernel::route::{
    DuplicateDetection, Existing, Link, LinkChange, MAIN_TABLE, NewVeth, Route, RouteError, RouteSocket,
};
use cni_runtime::config::LoadError;
use cni_runtime::{CallOptions, Container, Network, NetworkError, Runtime};
use cni_spec::{AddResult, CniError, ListError};
use ipnet::{IpNet, PrefixLenError};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The directory of a test: its lock, its record, the runtime's cache.
const DIRECTORY: &str = "/run/slipway/connectivity-test";
const LOCK: &str = "lock";
const RECORD: &str = "test.json";
/// The link to the namespace that stands for another host.
pub(super) const LINK: &str = "slipway-test";
/// The interface in each namespace.
pub(super) const IFNAME: &str = "eth0";
/// The time limit of a plugin's call.
const CALL: Duration = Duration::from_secs(30);

/// A namespace of a test; also a container's ID and a server's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Member {
    /// Stands for another host.
    Outside,
    /// Has the published ports.
    Pod,
    /// Another container.
    Other,
    /// Replaces [`Self::Pod`].
    Next,
}

impl Member {
    pub(super) const ALL: [Self; 4] = [Self::Outside, Self::Pod, Self::Other, Self::Next];
    const CONTAINERS: [Self; 3] = [Self::Pod, Self::Other, Self::Next];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Outside => "slipway-test-outside",
            Self::Pod => "slipway-test-pod",
            Self::Other => "slipway-test-other",
            Self::Next => "slipway-test-next",
        }
    }
}

/// The test cannot run.
#[derive(Debug, thiserror::Error)]
pub(super) enum LabError {
    #[error("another connectivity-test runs: {0}")]
    Lock(#[from] LockError),
    #[error(transparent)]
    Directory(#[from] DirError),
    #[error(transparent)]
    Named(#[from] NamedNetnsError),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error("{verb} of container {container}: {error}")]
    Call { verb: &'static str, container: &'static str, error: Box<NetworkError> },
    #[error("{DIRECTORY}/{RECORD}: {0}")]
    Record(#[from] ListError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Config(#[from] LoadError),
    #[error("no network in {}", .0.display())]
    NoNetwork(PathBuf),
    #[error("network {0} publishes no ports: no plugin in it has the capability portMappings")]
    NoPortMappings(String),
    #[error("no port is free")]
    NoPort,
    #[error("serve port {port} in {}: {error}", .member.name())]
    Serve { port: u16, member: Member, error: Box<LabError> },
    #[error("no namespace {}", .0.name())]
    NoNetns(Member),
    #[error("{0}: {1}")]
    Prefix(IpAddr, PrefixLenError),
    #[error("all addresses that a test may use are in use: {}", .0.join(", "))]
    NoAddresses(&'static [&'static str]),
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    /// The error of the plugin whose call failed.
    pub(super) fn plugin_error(&self) -> Option<CniError> {
        let Self::Call { error, .. } = self else { return None };
        error.calls().first().map(|error| error.to_cni())
    }
}

/// The file from which a later test removes what a killed one has left.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    network: String,
    plugin_dirs: Vec<String>,
    port: u16,
}

/// The containers' network and its plugins.
#[derive(Debug)]
pub(super) struct Attacher {
    pub(super) network: Network,
    runtime: Runtime,
    port: u16,
}

impl Attacher {
    pub(super) fn new(network: Network, plugin_dirs: &[PathBuf], port: u16) -> Self {
        let runtime = Runtime::builder()
            .plugin_dirs(plugin_dirs.to_vec())
            .cache(Path::new(DIRECTORY).join("cache"))
            .options(CallOptions::new().limit(CALL))
            .undo_failed_add()
            .keep_deleting()
            .build();
        Self { network, runtime, port }
    }

    fn container(&self, member: Member) -> Container {
        let path = named_netns::path_of(member.name()).display().to_string();
        let container = Container::new(member.name(), IFNAME).netns(path);
        if member == Member::Other {
            return container;
        }
        let mapping = |protocol: Protocol| json!({"hostPort": self.port, "containerPort": super::SERVED, "protocol": protocol.as_str()});
        container.capability("portMappings", json!([mapping(Protocol::Tcp), mapping(Protocol::Udp)]))
    }

    pub(super) fn add(&self, member: Member) -> Result<AddResult, LabError> {
        let failed = |error| LabError::Call { verb: "ADD", container: member.name(), error: Box::new(error) };
        self.runtime.add(&self.network, &self.container(member)).map_err(failed)
    }

    pub(super) fn del(&self, member: Member) -> Result<(), LabError> {
        let failed = |error| LabError::Call { verb: "DEL", container: member.name(), error: Box::new(error) };
        self.runtime.del(&self.network, &self.container(member)).map_err(failed)
    }

    /// Calls STATUS, if the plugins' version of the specification has it, so that plugins forget the link's addresses.
    fn settle(&self) {
        if let Err(error) = self.runtime.status(&self.network) {
            log::info!("STATUS: {error}");
        }
    }

    fn record(&self) -> Record {
        let dirs = self.runtime.plugin_dirs().iter().map(|dir| dir.display().to_string());
        Record {
            network: String::from_utf8_lossy(self.network.bytes()).into_owned(),
            plugin_dirs: dirs.collect(),
            port: self.port,
        }
    }

    fn of_record(bytes: &[u8]) -> Result<Self, LabError> {
        // A record that cannot be read yields no network, and is then refused.
        let Record { network, plugin_dirs, port } = serde_json::from_slice(bytes).unwrap_or_default();
        let dirs: Vec<PathBuf> = plugin_dirs.into_iter().map(PathBuf::from).collect();
        Ok(Self::new(Network::from_bytes(network)?, &dirs, port))
    }
}

/// The right to run a test on this node.
#[derive(Debug)]
pub(super) struct Site {
    directory: DurableDir,
    _lock: FileLock,
}

impl Site {
    /// Takes the lock and removes what an earlier test left. Returns what was removed, too.
    pub(super) fn enter() -> Result<(Self, Vec<String>), LabError> {
        let directory = DurableDir::create(Path::new(DIRECTORY), 0o700)?;
        let lock = FileLock::acquire(&directory, LOCK, 0o600, Duration::from_millis(100))?;
        let site = Self { directory, _lock: lock };
        let left = site.left()?;
        if !left.is_empty() {
            site.clean()?;
        }
        Ok((site, left))
    }

    /// The objects of a test that exist.
    fn left(&self) -> Result<Vec<String>, LabError> {
        let mut left = Vec::new();
        if self.directory.exists(RECORD)? {
            left.push("containers".to_owned());
        }
        let names = Member::ALL.map(Member::name).into_iter();
        left.extend(
            names.filter(|name| named_netns::path_of(name).exists()).map(|name| format!("namespace {name}")),
        );
        if RouteSocket::open()?.find_link(LINK)?.is_some() {
            left.push(format!("link {LINK}"));
        }
        Ok(left)
    }

    /// Writes the record, before the first plugin is called.
    pub(super) fn record(&self, attacher: &Attacher) -> Result<(), LabError> {
        Ok(self.directory.replace(RECORD, cni_spec::text::compact(&attacher.record()).as_bytes(), 0o600)?)
    }

    /// Removes everything. Continues after a failure, and returns the first.
    pub(super) fn clean(&self) -> Result<(), LabError> {
        const LARGEST: usize = 16 << 20;
        let mut first = Ok(());
        let mut note = |done: Result<(), LabError>| {
            if first.is_ok() {
                first = done;
            } else if let Err(error) = done {
                log::warn!("{error}");
            }
        };
        let attacher = match self.directory.read(RECORD, LARGEST) {
            Ok(Some(bytes)) => Attacher::of_record(&bytes).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.into()),
        };
        // A record that cannot be read at the moment stays for the next attempt, and so do the containers.
        if let Err(LabError::Directory(error)) = &attacher
            && error.is_transient()
        {
            return attacher.map(drop);
        }
        let mut is_detached = true;
        let attacher = attacher.unwrap_or_else(|error| {
            note(Err(error));
            None
        });
        for member in Member::CONTAINERS {
            if let Some(attacher) = &attacher {
                let done = attacher.del(member);
                is_detached &= done.is_ok();
                note(done);
            }
        }
        note(remove_link());
        for member in Member::ALL {
            note(named_netns::delete(member.name()).map_err(LabError::from));
        }
        if let Some(attacher) = &attacher {
            attacher.settle();
        }
        // The record of containers that could not be detached stays for the next attempt.
        if is_detached {
            note(self.directory.remove(RECORD).map(|_| ()).map_err(LabError::from));
            drop(fs::remove_dir_all(Path::new(DIRECTORY).join("cache")));
        }
        first
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if !Path::new(DIRECTORY).join(RECORD).exists() {
            // The lock is held. A process that waits for it will find the file deleted, and make a new one.
            drop(self.directory.remove(LOCK));
            drop(fs::remove_dir(DIRECTORY));
        }
    }
}

fn remove_link() -> Result<(), LabError> {
    let route = RouteSocket::open()?;
    match route.find_link(LINK)? {
        Some(link) => Ok(route.delete_link(&link)?),
        None => Ok(()),
    }
}

/// The addresses of the link to the namespace outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) node: IpAddr,
    pub(super) outside: IpAddr,
    length: u8,
}

/// The namespaces, and the link to the one outside.
#[derive(Debug)]
pub(super) struct Spaces {
    netns: Vec<(Member, Netns)>,
    /// One of each family that the node has.
    pub(super) ends: Vec<Ends>,
}

impl Spaces {
    /// Makes the namespaces and the link.
    pub(super) fn make() -> Result<Self, LabError> {
        let route = RouteSocket::open()?;
        let ends = AddressFamily::BOTH.into_iter().filter_map(|family| free_ends(&route, family).transpose());
        let ends: Vec<Ends> = ends.collect::<Result<_, _>>()?;
        let mut netns = Vec::new();
        for member in Member::ALL {
            let made = Netns::open(&named_netns::create(member.name())?)?;
            let inside = RouteSocket::open_in(&made)?;
            inside.change_link(&inside.link("lo")?, &LinkChange::new().up())?;
            netns.push((member, made));
        }
        let mut all = Self { netns, ends };
        let outside = all.netns(Member::Outside)?;
        route.create_veth(&NewVeth {
            name: LINK,
            mac: None,
            peer_name: IFNAME,
            peer_mac: None,
            peer_netns: outside,
            mtu: None,
        })?;
        let inside = RouteSocket::open_in(outside)?;
        let (near, far) = (route.link(LINK)?, inside.link(IFNAME)?);
        for (socket, link) in [(&route, &near), (&inside, &far)] {
            socket.change_link(link, &LinkChange::new().up())?;
        }
        let mut made = Vec::new();
        for end in &all.ends {
            match link_up(&route, &near, &inside, &far, *end) {
                Ok(()) => made.push(*end),
                // A node without IPv6.
                Err(error) if end.node.is_ipv6() => log::info!("{error}"),
                Err(error) => return Err(error),
            }
        }
        all.ends = made;
        Ok(all)
    }

    pub(super) fn netns(&self, member: Member) -> Result<&Netns, LabError> {
        let found = self.netns.iter().find(|(one, _)| *one == member);
        found.map(|(_, netns)| netns).ok_or(LabError::NoNetns(member))
    }

    pub(super) fn ends(&self, family: AddressFamily) -> Option<Ends> {
        self.ends.iter().copied().find(|end| AddressFamily::of(end.node) == family)
    }
}

fn link_up(
    route: &RouteSocket,
    near: &Link,
    inside: &RouteSocket,
    far: &Link,
    end: Ends,
) -> Result<(), LabError> {
    let net =
        |address: IpAddr| IpNet::new(address, end.length).map_err(|error| LabError::Prefix(address, error));
    route.add_address(near, net(end.node)?, DuplicateDetection::Skip)?;
    inside.add_address(far, net(end.outside)?, DuplicateDetection::Skip)?;
    let default = Route::default_of(AddressFamily::of(end.node));
    let by = Route { gateway: Some(end.node), link: Some(far.index), ..default };
    Ok(inside.add_route(&by, Existing::Refuse)?)
}

/// Chooses addresses that the node neither has nor routes, out of ranges that no network uses (RFC 5737, RFC
/// 2544, RFC 3849, RFC 4193).
fn free_ends(route: &RouteSocket, family: AddressFamily) -> Result<Option<Ends>, LabError> {
    let candidates: &'static [&'static str] = match family {
        AddressFamily::V4 => {
            &["203.0.113.252/30", "198.51.100.252/30", "192.0.2.252/30", "198.19.255.252/30"]
        }
        AddressFamily::V6 => &["2001:db8:5117:77::/126", "fd51:1707:77::/126"],
    };
    let addresses = route.all_addresses()?;
    let routes = route.routes(family, MAIN_TABLE)?;
    for candidate in candidates.iter().filter_map(|text| text.parse::<IpNet>().ok()) {
        let overlaps = |net: &IpNet| net.contains(&candidate) || candidate.contains(net);
        let is_taken = addresses.iter().any(|one| overlaps(&one.net.trunc()))
            || routes.iter().any(|one| !one.is_default() && overlaps(&one.dst));
        let mut hosts = candidate.hosts().skip(usize::from(candidate.addr().is_ipv6()));
        if let (false, Some(node), Some(outside)) = (is_taken, hosts.next(), hosts.next()) {
            return Ok(Some(Ends { node, outside, length: candidate.prefix_len() }));
        }
    }
    Err(LabError::NoAddresses(candidates))
}
