// SPDX-License-Identifier: MIT OR Apache-2.0

//! The namespaces of the traffic: a node, which has its own mount namespace, another host, and pods.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use xtask::sandbox::{self, in_thread};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, tool};

/// The other host's namespace, as the node names it.
const CLIENT: &str = "client";
/// The node's address (RFC 5737).
pub(super) const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The address of a pod that a veth pair joins to the other host, without a node (RFC 5737).
pub(super) const JOINED_POD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// The addresses to which pods connect. There are many of them, because masquerade has a limited number of ports for
/// each.
pub(super) fn outside() -> impl Iterator<Item = Ipv4Addr> {
    (1..=250).map(|last| Ipv4Addr::new(198, 51, 100, last))
}

/// Settings of the namespaces.
#[derive(Debug, Clone)]
pub(super) struct Habits {
    /// Bridged packets pass through netfilter on the node.
    pub(super) bridge_netfilter: bool,
    /// TCP's congestion control at both ends.
    pub(super) congestion: String,
}

/// A node, and a host for which the node is the router. Both end with the process.
#[derive(Debug)]
pub(super) struct Space {
    congestion: String,
    mnt: File,
    net: File,
    client: File,
}

impl Space {
    /// Makes both, with their link, without IPv6: neighbour discovery on thousands of links would disturb the
    /// measurement, which is of IPv4.
    pub(super) fn new(habits: &Habits) -> Result<Self> {
        let (mnt, net) = in_thread(make)?;
        let client = net.try_clone().map_err(|e| Error::system("duplicate a namespace", e))?;
        let congestion = habits.congestion.clone();
        let mut space = Self { congestion, mnt, net, client };
        space.client = space.run(|| {
            quiet(habits.bridge_netfilter, &habits.congestion)?;
            add_netns(CLIENT, &habits.congestion)
        })?;
        space.run(|| {
            ip("link set lo up\n\
                link add uplink0 type veth peer name eth0 netns client\n\
                addr add 192.0.2.1/24 dev uplink0\n\
                link set uplink0 up\n\
                route add default via 192.0.2.2\n")
        })?;
        in_net(&space.client, || {
            ip("link set lo up\n\
                addr add 192.0.2.2/24 dev eth0\n\
                addr add 198.51.100.1/24 dev lo\n\
                link set eth0 up\n\
                route add default via 192.0.2.1\n")
        })?;
        space.run(|| write("/proc/sys/net/ipv4/ip_forward", "1"))?;
        Ok(space)
    }

    /// Runs a function on a new thread on the node.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.run_in(&self.net, work)
    }

    /// The same in another network namespace, with the node's mounts.
    pub(super) fn run_in<T: Send>(&self, net: &File, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        in_thread(|| {
            // setns(2): to enter a mount namespace, a thread must not share its current directory.
            unshare(CloneFlags::CLONE_FS).map_err(|e| Error::system("leave the shared directory", e))?;
            setns(&self.mnt, CloneFlags::CLONE_NEWNS)
                .map_err(|e| Error::system("enter the node's mounts", e))?;
            setns(net, CloneFlags::CLONE_NEWNET).map_err(|e| Error::system("enter the namespace", e))?;
            work()
        })
    }

    /// The other host's namespace.
    pub(super) fn client(&self) -> &File {
        &self.client
    }

    /// An empty namespace at /run/netns/`name` of the node.
    pub(super) fn pod(&self, name: &str) -> Result<(PathBuf, File)> {
        let path = sandbox::netns_path(name);
        self.run(|| Ok((path, add_netns(name, &self.congestion)?)))
    }

    /// Like [`Self::pod`], joined by a veth pair to the other host; its address is [`JOINED_POD`].
    pub(super) fn join(&self, name: &str) -> Result<()> {
        let (_, pod) = self.pod(name)?;
        self.run(|| {
            ip(&format!(
                "link add joined0 type veth peer name eth0 netns {name}\n\
                 link set joined0 netns {CLIENT}\n"
            ))
        })?;
        in_net(&self.client, || ip("addr add 203.0.113.1/24 dev joined0\nlink set joined0 up\n"))?;
        in_net(&pod, || ip(&format!("addr add {JOINED_POD}/24 dev eth0\nlink set eth0 up\n")))
    }
}

/// Runs a function on a new thread in a network namespace.
pub(super) fn in_net<T: Send>(net: &File, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    in_thread(|| {
        setns(net, CloneFlags::CLONE_NEWNET).map_err(|e| Error::system("enter the namespace", e))?;
        work()
    })
}

/// Makes the node's namespaces; the calling thread stays there. The machine's BPF file system is hidden.
fn make() -> Result<(File, File)> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .map_err(|e| Error::system("make a node's namespaces", e))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|e| Error::system("make the mounts private", e))?;
    for (kind, folder) in [("tmpfs", "/run"), ("tmpfs", "/var/lib"), ("bpf", "/sys/fs/bpf")] {
        mounted(kind, folder)?;
    }
    fs::create_dir("/run/netns").map_err(|e| Error::file("create", Path::new("/run/netns"), e))?;
    let open = |path| File::open(path).map_err(|e| Error::file("open", Path::new(path), e));
    Ok((open("/proc/thread-self/ns/mnt")?, open("/proc/thread-self/ns/net")?))
}

fn mounted(kind: &str, on: &str) -> Result<()> {
    mount(Some("none"), on, Some(kind), MsFlags::MS_NOSUID, None::<&str>)
        .map_err(|e| Error::system(format!("mount a {kind} on {on}"), e))
}

fn add_netns(name: &str, congestion: &str) -> Result<File> {
    let path = sandbox::add_netns(name)?;
    let net = File::open(&path).map_err(|e| Error::file("open", &path, e))?;
    in_net(&net, || quiet(false, congestion))?;
    Ok(net)
}

/// Settings of a new network namespace.
fn quiet(bridge_netfilter: bool, congestion: &str) -> Result<()> {
    write("/proc/sys/net/ipv4/tcp_congestion_control", congestion)?;
    for scope in ["all", "default"] {
        unless_missing(&format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1")?;
    }
    for family in ["iptables", "ip6tables", "arptables"] {
        let value = if bridge_netfilter { "1" } else { "0" };
        unless_missing(&format!("/proc/sys/net/bridge/bridge-nf-call-{family}"), value)?;
    }
    // A client that opens thousands of connections per second reuses its ports within a minute.
    write("/proc/sys/net/ipv4/tcp_tw_reuse", "1")
}

/// Writes a setting, if the kernel has it.
fn unless_missing(path: &str, value: &str) -> Result<()> {
    if Path::new(path).exists() { write(path, value) } else { Ok(()) }
}

fn write(path: &str, value: &str) -> Result<()> {
    files::write(path, value)
}

fn ip(batch: &str) -> Result<()> {
    run::feed(&mut tool("ip", &["-batch", "-"]), batch).map(drop)
}
