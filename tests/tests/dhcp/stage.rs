// SPDX-License-Identifier: GPL-2.0-or-later

//! A node with a bridge, a DHCP server and the daemon.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod, Space, slipway, within};

/// The daemon's folder with the leases.
pub(crate) const STATE: &str = "/var/lib/cni/dhcp";
pub(crate) const SOCKET: &str = "/run/cni/dhcp.sock";
/// A real DHCP server.
pub(crate) const DNSMASQ: &str = "/usr/sbin/dnsmasq";
/// dnsmasq's log.
const LOG: &str = "/run/dnsmasq.log";

/// The node and its programs, which are killed on drop.
pub(crate) struct Stage {
    pub(crate) node: Node,
    programs: Mutex<BTreeMap<&'static str, Child>>,
}

impl Stage {
    /// Creates a node with the bridge `lan0`, which has the address 10.77.0.1.
    pub(crate) fn new() -> Self {
        let node = Node::without_bridge_netfilter();
        node.cmd("ip link add lan0 type bridge");
        node.cmd("ip address add 10.77.0.1/24 dev lan0");
        node.cmd("ip link set lan0 up");
        Self { node, programs: Mutex::default() }
    }

    /// Creates a node on which dnsmasq and a daemon run.
    pub(crate) fn with_dnsmasq(options: &[&str]) -> Self {
        let stage = Self::new();
        stage.start_dnsmasq(&stage.node, "lan0", options);
        stage.start_daemon(&[]);
        stage
    }

    /// Starts a program in a namespace.
    pub(crate) fn start(&self, name: &'static str, space: &Space, mut command: Command) {
        let errors = format!("/run/{name}.err");
        let child = space.run(|| {
            let errors = File::options().create(true).append(true).open(&errors).expect("a file for errors");
            // The program gets a new process group. If the tests' group is orphaned, as in a VM, the kernel sends
            // SIGHUP to the whole group when one of its members (such as a daemon) is stopped and another one exits.
            command.process_group(0);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn()
        });
        let child = child.unwrap_or_else(|e| panic!("start {name}: {e}"));
        let before = self.programs.lock().expect("not poisoned").insert(name, child);
        assert!(before.is_none(), "{name} runs already");
    }

    /// Sends a signal to a program and waits until it exits.
    pub(crate) fn stop(&self, name: &str, signal: Signal) {
        let child = self.programs.lock().expect("not poisoned").remove(name);
        let mut child = child.unwrap_or_else(|| panic!("{name} does not run"));
        kill_traced(child.id());
        kill(Pid::from_raw(i32::try_from(child.id()).expect("a process ID")), signal).expect("send a signal");
        child.wait().expect("a child");
    }

    /// True if a program has exited by itself, in which case it is removed from the list.
    pub(crate) fn has_ended(&self, name: &str) -> bool {
        let mut programs = self.programs.lock().expect("not poisoned");
        let ended = programs.get_mut(name).is_none_or(|child| child.try_wait().expect("a child").is_some());
        if ended {
            programs.remove(name);
        }
        ended
    }

    /// Returns the process ID of a program.
    pub(crate) fn pid(&self, name: &str) -> u32 {
        self.programs.lock().expect("not poisoned")[name].id()
    }

    /// Starts dnsmasq on a link with an address of 10.77.0.0/24.
    pub(crate) fn start_dnsmasq(&self, space: &Space, link: &str, options: &[&str]) {
        let mut command = Command::new(DNSMASQ);
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--bind-interfaces"]);
        command.args(["--user=root", "--leasefile-ro", "--no-ping", "--log-dhcp", "--pid-file="]);
        command.arg(format!("--log-facility={LOG}")).arg(format!("--interface={link}"));
        command.args(["--dhcp-range=10.77.0.50,10.77.0.99,2m", "--dhcp-authoritative"]).args(options);
        let before = self.logged("DHCP, IP range");
        self.start("dnsmasq", space, command);
        self.wait("dnsmasq serves", || self.logged("DHCP, IP range") > before);
    }

    /// Starts the daemon with additional flags.
    pub(crate) fn start_daemon(&self, flags: &[&str]) {
        let mut command = Command::new(slipway());
        // The usual time-out, which lets a lease succeed on a slow machine.
        command.args(["dhcp", "daemon", "-timeout", "10s"]).args(flags);
        self.start("daemon", &self.node, command);
        self.wait_for_daemon();
    }

    pub(crate) fn wait_for_daemon(&self) {
        self.wait("the daemon answers", || self.network(&json!({})).status().is_ok());
    }

    /// Returns dnsmasq's log.
    pub(crate) fn log(&self) -> String {
        self.node.read(LOG).unwrap_or_default()
    }

    pub(crate) fn daemon_log(&self) -> String {
        self.node.read("/run/daemon.err").unwrap_or_default()
    }

    /// How often a text occurs in dnsmasq's log.
    pub(crate) fn logged(&self, what: &str) -> usize {
        self.log().matches(what).count()
    }

    /// A pod, the network without additional keys, and the pod's attachment.
    pub(crate) fn pod(&self) -> (Pod, Network<'_>, Attach) {
        let pod = self.node.pod("pod");
        let attach = Attach::new(&pod);
        (pod, self.network(&json!({})), attach)
    }

    /// Returns a network with bridge on `lan0`, and these IPAM keys.
    pub(crate) fn network(&self, ipam: &Value) -> Network<'_> {
        self.network_of(json!({"type": "bridge", "bridge": "lan0"}), ipam)
    }

    /// Returns a network with another plugin, and these IPAM keys.
    pub(crate) fn network_of(&self, mut plugin: Value, ipam: &Value) -> Network<'_> {
        plugin["ipam"] = ipam.clone();
        plugin["ipam"]["type"] = "dhcp".into();
        self.node.network(json!({"name": "lan", "plugins": [plugin]}))
    }

    /// Returns the names of the lease files.
    pub(crate) fn leases(&self) -> Vec<String> {
        let names = self.node.list(STATE).into_iter();
        names.filter(|name| name != "lock").collect()
    }

    pub(crate) fn has_socket(&self) -> bool {
        self.node.run(|| std::fs::symlink_metadata(SOCKET).is_ok_and(|data| data.file_type().is_socket()))
    }

    #[track_caller]
    pub(crate) fn wait(&self, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + within(Duration::from_secs(90));
        while !done() {
            let (server, daemon) = (self.log(), self.daemon_log());
            assert!(Instant::now() < end, "time-out: {what}\n{server}\n{daemon}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("dnsmasq:\n{}\ndaemon:\n{}", self.log(), self.daemon_log());
        }
        for child in self.programs.lock().expect("not poisoned").values_mut() {
            kill_traced(child.id());
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Kills the child of a program. If the program is strace, the daemon that it traces would outlive it otherwise.
fn kill_traced(parent: u32) {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    for pid in children.unwrap_or_default().split_whitespace() {
        let _gone = kill(Pid::from_raw(pid.parse().expect("a process ID")), Signal::SIGKILL);
    }
}

/// True if a container's link is up.
pub(crate) fn is_up(pod: &Pod) -> bool {
    pod.link("eth0")["flags"].as_array().expect("flags").contains(&"UP".into())
}

/// Returns the first address of a result, without its prefix length.
pub(crate) fn address(result: &Value) -> String {
    let text = result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("an address in {result}"));
    text.split('/').next().expect("an address").to_owned()
}

/// True if dnsmasq is installed.
pub(crate) fn has_dnsmasq() -> bool {
    Path::new(DNSMASQ).exists()
}
