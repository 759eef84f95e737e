// SPDX-License-Identifier: MIT OR Apache-2.0

//! The namespaces of the traffic: a node, which has its own mount namespace, another host, and pods.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::gettid;

use xtask::error::{Error, Result};
use xtask::run::{self, tool};
use xtask::sandbox;

/// The other host's namespace, as the node names it.
const CLIENT: &str = "client";
/// The node's address (RFC 5737).
pub(super) const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The address of a pod that a veth pair joins to the other host, without a node (RFC 5737).
pub(super) const JOINED_POD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// The addresses to which pods connect. They are many, as masquerade has a limited number of ports for each.
pub(super) fn outside() -> impl Iterator<Item = Ipv4Addr> {
    (1..=250).map(|last| Ipv4Addr::new(198, 51, 100, last))
}

/// Settings of the namespaces.
#[derive(Debug, Clone)]
pub(super) struct Habits {
    /// Bridged packets pass through netfilter on the node.
    pub(super) bridge_netfilter: bool,
    /// The node has a control group of its own, for [`Space::in_group`].
    pub(super) group: bool,
    /// TCP's congestion control at both ends.
    pub(super) congestion: String,
}

/// A node, and a host for which it is the router. They end with the process.
#[derive(Debug)]
pub(super) struct Space {
    congestion: String,
    mnt: File,
    net: File,
    client: File,
    group: Option<ControlGroup>,
}

impl Space {
    /// Makes both, with their link, without IPv6: neighbour discovery on thousands of links would disturb the
    /// measurement, which is of IPv4.
    ///
    /// # Errors
    /// A system call or a command fails.
    pub(super) fn new(habits: &Habits) -> Result<Self> {
        let group = if habits.group { Some(ControlGroup::new()?) } else { None };
        let below = group.as_ref().map(|group| group.below_root.clone());
        let (mnt, net) = in_thread(move || make(below.as_deref()))?;
        let client = net.try_clone().map_err(|e| Error::system("duplicate a namespace", e))?;
        let congestion = habits.congestion.clone();
        let mut space = Self { congestion, mnt, net, client, group };
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
    ///
    /// # Errors
    /// Those of the function, or the namespaces cannot be entered.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.run_in(&self.net, work)
    }

    /// The same in another network namespace, with the node's mounts.
    ///
    /// # Errors
    /// As [`Self::run`].
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

    /// Runs a function on a thread in the node's namespace and control group.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(super) fn in_group<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        in_net(&self.net, || {
            self.group.as_ref().map_or(Ok(()), ControlGroup::enter)?;
            work()
        })
    }

    /// The other host's namespace.
    pub(super) fn client(&self) -> &File {
        &self.client
    }

    /// An empty namespace at /run/netns/`name` of the node.
    ///
    /// # Errors
    /// A system call fails.
    pub(super) fn pod(&self, name: &str) -> Result<(PathBuf, File)> {
        let path = sandbox::netns_path(name);
        self.run(|| Ok((path, add_netns(name, &self.congestion)?)))
    }

    /// Like [`Self::pod`], joined by a veth pair to the other host; its address is [`JOINED_POD`].
    ///
    /// # Errors
    /// As [`Self::pod`].
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
///
/// # Errors
/// Those of the function, or the namespace cannot be entered.
pub(super) fn in_net<T: Send>(net: &File, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    in_thread(|| {
        setns(net, CloneFlags::CLONE_NEWNET).map_err(|e| Error::system("enter the namespace", e))?;
        work()
    })
}

fn in_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(Error::Failed("a thread ended with a panic".to_owned())))
}

/// Makes the node's namespaces; the calling thread stays there. The machine's BPF file system and control
/// groups are hidden.
fn make(group: Option<&Path>) -> Result<(File, File)> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .map_err(|e| Error::system("make a node's namespaces", e))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|e| Error::system("make the mounts private", e))?;
    for (kind, folder) in [("tmpfs", "/run"), ("tmpfs", "/var/lib"), ("bpf", "/sys/fs/bpf")] {
        mounted(kind, folder)?;
    }
    fs::create_dir("/run/netns").map_err(|e| Error::file("create", Path::new("/run/netns"), e))?;
    mounted("tmpfs", "/sys/fs/cgroup")?;
    if let Some(below) = group {
        let all = Path::new("/run/cgroups");
        fs::create_dir(all).map_err(|e| Error::file("create", all, e))?;
        mounted("cgroup2", "/run/cgroups")?;
        mount(Some(&all.join(below)), "/sys/fs/cgroup", none, MsFlags::MS_BIND, none)
            .map_err(|e| Error::system("mount the node's control group", e))?;
        umount2(all, MntFlags::MNT_DETACH).map_err(|e| Error::file("unmount", all, e))?;
    }
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
    fs::write(path, value).map_err(|e| Error::file("write", Path::new(path), e))
}

fn ip(batch: &str) -> Result<()> {
    run::feed(&mut tool("ip", &["-batch", "-"]), batch).map(drop)
}

/// A control group below that of this process, for single threads. It is removed at the end; if a run is
/// killed, by the next one.
#[derive(Debug)]
struct ControlGroup {
    path: PathBuf,
    below_root: PathBuf,
}

/// The prefix of their names, before the PID.
const GROUP: &str = "slipway-bench-";

impl ControlGroup {
    fn new() -> Result<Self> {
        let (root, own) = hierarchy().ok_or_else(|| {
            Error::Failed("the node's own traffic needs control groups of version 2".to_owned())
        })?;
        remove_stale(&root.join(&own));
        let below_root = own.join(format!("{GROUP}{}-{}", std::process::id(), gettid()));
        let path = root.join(&below_root);
        fs::create_dir_all(&path).map_err(|e| Error::file("create", &path, e))?;
        let made = Self { path, below_root };
        let kind = made.path.join("cgroup.type");
        fs::write(&kind, "threaded").map_err(|e| Error::file("write", &kind, e))?;
        Ok(made)
    }

    /// Moves the calling thread there.
    fn enter(&self) -> Result<()> {
        let file = self.path.join("cgroup.threads");
        fs::write(&file, gettid().to_string()).map_err(|e| Error::file("write", &file, e))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The next run removes one that is in use.
        let _ = fs::remove_dir(&self.path);
    }
}

/// A group that is in use cannot be removed.
fn remove_stale(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(GROUP).and_then(|rest| rest.split('-').next().map(str::to_owned));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The mount point of the version 2 hierarchy, and this process's group in it.
fn hierarchy() -> Option<(PathBuf, PathBuf)> {
    // proc_pid_mountinfo(5): the fifth field is the mount point; the type comes after a dash.
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some((PathBuf::from(line.split(' ').nth(4)?), PathBuf::from(own)))
}
