// SPDX-License-Identifier: GPL-2.0-or-later

//! The node under test, the hosts around it, and the pods on it.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::binaries::bin_dir;
use crate::concealment::conceal;
use crate::family::has_ipv6;
use crate::seen_ports::without_seen_ports;
use crate::space::{Journal, Space};

/// A node: a network namespace, and a mount namespace with its own, initially empty /run and /var/lib.
///
/// A new node has its loopback up and nothing else: no forwarding, no addresses, no ruleset. Duplicate address
/// detection is off by default for new interfaces, because it would take a second per address. A test about it sets
/// `net/ipv6/conf/default/accept_dad` back to 1.
#[derive(Debug)]
pub struct Node {
    space: Space,
    places: Mutex<Vec<(String, Weak<File>)>>,
    hosts: Mutex<u8>,
    bin: PathBuf,
}

/// A machine outside the node, joined to it by a veth pair: `eth0` on the host, `out<n>` on the node.
///
/// Each host has a documentation prefix (RFC 5737, RFC 3849) for itself, and the node is its default router. In a
/// kernel without IPv6, the addresses of that family exist only in this struct.
#[derive(Debug)]
pub struct Host {
    space: Space,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    pub node_v4: Ipv4Addr,
    pub node_v6: Ipv6Addr,
    pub node_link: String,
}

/// An empty network namespace with a path, as a runtime makes one before it calls the plugins.
#[derive(Debug)]
pub struct Pod {
    space: Space,
    path: PathBuf,
}

/// The variants of iptables, as they appear in the names of their programs.
const VARIANTS: [&str; 2] = ["nft", "legacy"];

impl Node {
    pub fn new() -> Self {
        let bin = bin_dir();
        let (net, mnt) = thread::scope(|scope| scope.spawn(make_node).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let space = Space {
            name: "node".to_owned(),
            net: Arc::new(net),
            mnt: Arc::new(mnt),
            journal: Arc::new(Journal::default()),
        };
        space.cmd("ip link set lo up");
        space.sysctl("net/ipv6/conf/default/accept_dad", "0");
        let places = Mutex::new(vec![("node".to_owned(), Arc::downgrade(&space.net))]);
        Self { space, places, hosts: Mutex::new(0), bin }
    }

    /// The folder that CNI_PATH names.
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// An empty namespace at /run/netns/`name`.
    pub fn pod(&self, name: &str) -> Pod {
        let (net, path) = self.make_netns(name);
        let space = Space { name: name.to_owned(), net: Arc::new(net), ..self.space.clone() };
        self.remember(&space);
        Pod { space, path }
    }

    /// A machine outside, linked to the node. A node can have three at most.
    pub fn host(&self, name: &str) -> Host {
        let number = {
            let mut hosts = self.hosts.lock().expect("not poisoned");
            *hosts += 1;
            *hosts - 1
        };
        let prefix = [[192, 0, 2], [198, 51, 100], [203, 0, 113]][usize::from(number)];
        let v4 = |last| Ipv4Addr::new(prefix[0], prefix[1], prefix[2], last);
        let v6 = |last| Ipv6Addr::new(0x2001, 0xdb8, u16::from(number), 0, 0, 0, 0, last);
        let link = format!("out{number}");
        let (net, _) = self.make_netns(name);
        let space = Space { name: name.to_owned(), net: Arc::new(net), ..self.space.clone() };
        self.remember(&space);
        let host =
            Host { space, v4: v4(2), v6: v6(2), node_v4: v4(1), node_v6: v6(1), node_link: link.clone() };
        // One kernel worker handles the addresses of all namespaces. Addresses of a host need no probe, so they do not
        // add to its work.
        host.sysctl("net/ipv6/conf/default/accept_dad", "0");
        // Lines about IPv6 are left out in a kernel without it.
        let six = |line: String| if has_ipv6() { line } else { String::new() };
        self.cmd_input(
            "ip -batch -",
            &format!(
                "link add {link} type veth peer name eth0 netns {name}\n\
                 address add {}/24 dev {link}\n\
                 {}link set {link} up\n",
                host.node_v4,
                six(format!("address add {}/64 dev {link} nodad\n", host.node_v6))
            ),
        );
        host.cmd_input(
            "ip -batch -",
            &format!(
                "link set lo up\n\
                 address add {}/24 dev eth0\n\
                 {}link set eth0 up\n\
                 route add default via {}\n{}",
                host.v4,
                six(format!("address add {}/64 dev eth0 nodad\n", host.v6)),
                host.node_v4,
                six(format!("route add default via {}\n", host.node_v6))
            ),
        );
        // Until the kernel has noticed the carrier, the queue of a new link swallows packets.
        self.wait_up(&host.node_link);
        host.wait_up("eth0");
        host
    }

    /// A node, and the pod `pod`.
    pub fn with_pod() -> (Self, Pod) {
        let node = Self::new();
        let pod = node.pod("pod");
        (node, pod)
    }

    /// A node whose bridges' packets bypass netfilter.
    pub fn without_bridge_netfilter() -> Self {
        let node = Self::new();
        node.bridge_netfilter(BridgeNetfilter::Off);
        node
    }

    /// A node that has one outside host, and whose bridged packets bypass netfilter.
    pub fn with_client() -> (Self, Host) {
        let node = Self::without_bridge_netfilter();
        let client = node.host("client");
        (node, client)
    }

    /// Switches forwarding on in both families, as on a router. The bridge plugin does the same with isGateway; this
    /// method is for tests that must not depend on that.
    pub fn forward(&self) {
        self.sysctl("net/ipv4/ip_forward", "1");
        self.sysctl("net/ipv6/conf/all/forwarding", "1");
    }

    /// Sets bridge-nf-call-iptables and -ip6tables, which are 1 in a new namespace. Returns false if the kernel has no
    /// br_netfilter, which has the same effect as "off".
    pub fn bridge_netfilter(&self, switch: BridgeNetfilter) -> bool {
        let value = match switch {
            BridgeNetfilter::On => "1",
            BridgeNetfilter::Off => "0",
        };
        if self.sysctl_get("net/bridge/bridge-nf-call-iptables").is_none() {
            return false;
        }
        self.sysctl("net/bridge/bridge-nf-call-iptables", value);
        self.sysctl("net/bridge/bridge-nf-call-ip6tables", value);
        true
    }

    /// Writes a file, creating its folders, at a path as the node sees it. The node has its own /run and /var/lib.
    /// Panics if the path leads to the machine's root file system.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let content = content.as_ref();
        let result = self.run(|| {
            let there = Path::new(path).ancestors().skip(1).find(|folder| folder.exists());
            let device = |of: &Path| of.metadata().map(|meta| meta.dev());
            let place = device(there.unwrap_or(Path::new("/")))?;
            assert_ne!(place, device(Path::new("/"))?, "{path} is the machine's own, not the node's");
            if let Some(folder) = Path::new(path).parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(path, content)
        });
        result.unwrap_or_else(|error| panic!("write {path}: {error}"));
    }

    /// Gives the node an /etc for itself, a copy of the machine's.
    pub fn own_etc(&self) {
        if self.read("/run/etc/passwd").is_some() {
            return;
        }
        self.cmd("cp -a /etc /run/etc");
        self.cmd("mount --bind /run/etc /etc");
        self.cmd("mkdir -p /etc/cni");
    }

    /// Reads a file as the node sees it. None if the file does not exist or is not text.
    pub fn read(&self, path: &str) -> Option<String> {
        self.run(|| std::fs::read_to_string(path)).ok()
    }

    /// The names in a folder as the node sees it, sorted. Empty if the folder does not exist.
    pub fn list(&self, path: &str) -> Vec<String> {
        self.run(|| {
            let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
            let mut names: Vec<_> =
                entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        })
    }

    /// The addresses that host-local has reserved for a network, sorted as strings.
    pub fn reserved(&self, network: &str) -> Vec<String> {
        let names = self.list(&format!("/var/lib/cni/networks/{network}"));
        names.into_iter().filter(|name| name.parse::<IpAddr>().is_ok()).collect()
    }

    /// Hides the programs of these variants of iptables. Each variant's other program names are links to the one hidden
    /// file.
    pub fn hide_programs(&self, variants: &[&str]) {
        // A device cannot be executed.
        variants.iter().for_each(|variant| self.replace_program(variant, "/dev/null"));
    }

    pub fn hide_iptables(&self) {
        self.hide_programs(&VARIANTS);
    }

    /// Shows the programs that [`Self::hide_iptables`] has hidden.
    pub fn show_iptables(&self) {
        for program in VARIANTS.iter().filter_map(|variant| self.program_of(variant)) {
            self.cmd(&format!("umount {program}"));
        }
    }

    /// Puts another program in the place of a variant's programs, if the variant is installed.
    pub fn replace_program(&self, variant: &str, by: &str) {
        if let Some(program) = self.program_of(variant) {
            self.cmd(&format!("mount --bind {by} {program}"));
        }
    }

    /// The file to which all names of a variant's programs lead.
    fn program_of(&self, variant: &str) -> Option<String> {
        let name = format!("/usr/sbin/iptables-{variant}-restore");
        let found = self.try_run(&["readlink", "-e", &name])?.stdout.trim().to_owned();
        (!found.is_empty()).then_some(found)
    }

    /// Hides a folder of the machine behind an empty one that belongs to the node.
    pub fn own_folder(&self, folder: &str) {
        self.run(|| conceal(Path::new(folder)));
    }

    /// The whole ruleset as nft prints it, [without the record of UDP flows](crate::without_seen_ports).
    pub fn ruleset(&self) -> String {
        without_seen_ports(&self.cmd("nft list ruleset"))
    }

    /// Gives the node a new network namespace. The old one ends when no process and no clone uses it any more.
    pub(crate) fn replace_network(&mut self, net: File) {
        self.space.net = Arc::new(net);
        let mut places = self.places.lock().expect("not poisoned");
        places.retain(|(name, _)| *name != self.space.name);
        places.push((self.space.name.clone(), Arc::downgrade(&self.space.net)));
    }

    fn remember(&self, space: &Space) {
        let mut places = self.places.lock().expect("not poisoned");
        places.push((space.name.clone(), Arc::downgrade(&space.net)));
    }

    /// Makes a namespace and binds it to a name, as ip-netns(8) does.
    fn make_netns(&self, name: &str) -> (File, PathBuf) {
        let path = Path::new("/run/netns").join(name);
        let file = self.run(|| {
            File::create_new(&path).unwrap_or_else(|e| panic!("make {}: {e}", path.display()));
            unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace");
            let own = Path::new("/proc/thread-self/ns/net");
            mount(Some(own), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .unwrap_or_else(|e| panic!("bind the namespace to {}: {e}", path.display()));
            File::open(own).expect("open the new namespace")
        });
        (file, path)
    }

    /// All commands that were run, and the state of all spaces.
    fn report(&self) -> String {
        let mut text = String::from("\n=== what was run ===\n");
        for entry in self.space.journal.entries() {
            text.push_str(&entry);
            text.push('\n');
        }
        text.push_str("=== state when the test failed ===\n");
        let places = self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        for (name, net) in places {
            if let Some(net) = net.upgrade() {
                text.push_str(&Space { name, net, ..self.space.clone() }.describe());
            }
        }
        text
    }
}

/// The settings of bridge-nf-call-iptables, which decides whether bridged packets pass the netfilter hooks of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BridgeNetfilter {
    /// Bridged packets pass the hooks, which is the kernel's default where br_netfilter is loaded.
    On,
    /// Bridged packets bypass the hooks.
    Off,
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.report());
        }
    }
}

impl Pod {
    /// The namespace's path, the value of CNI_NETNS.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the path, as a runtime does when the pod is gone. The namespace itself ends as soon as no socket (of a
    /// [`crate::Server`], for instance) and no clone of the space keeps it alive.
    pub fn remove(self) {
        let path = &self.path;
        self.space.run(|| {
            umount2(path, MntFlags::MNT_DETACH).unwrap_or_else(|e| panic!("unmount {}: {e}", path.display()));
            std::fs::remove_file(path).unwrap_or_else(|e| panic!("remove {}: {e}", path.display()));
        });
    }
}

impl Deref for Node {
    type Target = Space;
    fn deref(&self) -> &Space {
        &self.space
    }
}

impl Deref for Host {
    type Target = Space;
    fn deref(&self) -> &Space {
        &self.space
    }
}

impl Deref for Pod {
    type Target = Space;
    fn deref(&self) -> &Space {
        &self.space
    }
}

/// Makes the namespaces of a node. The calling thread must end afterwards, so that only the descriptors keep them
/// alive.
fn make_node() -> (File, File) {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
        .expect("make a network and a mount namespace (the network tests need root)");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .expect("keep mounts private");
    // A machine that runs containers has a network configuration and plugins, which a node must not find.
    let foreign = ["/etc/cni", "/opt/cni"].into_iter().filter(|folder| Path::new(folder).is_dir());
    for folder in ["/run", "/var/lib"].into_iter().chain(foreign) {
        conceal(Path::new(folder));
    }
    std::fs::create_dir("/run/netns").expect("make /run/netns");
    // The machine's own mount at this path is shared by all nodes, so a node must not attach or pin anything there.
    if Path::new("/sys/fs/cgroup").is_dir() {
        mount(Some("none"), "/sys/fs/cgroup", Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=0755"))
            .expect("hide the machine's control groups");
    }
    if statfs("/sys/fs/bpf").is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
        mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::MS_NOSUID, Some("mode=0700"))
            .expect("hide the machine's BPF file system");
    }
    let open = |path| File::open(path).unwrap_or_else(|e| panic!("open {path}: {e}"));
    (open("/proc/thread-self/ns/net"), open("/proc/thread-self/ns/mnt"))
}
