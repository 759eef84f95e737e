// SPDX-License-Identifier: GPL-2.0-or-later

//! A node with its own packages: a root file system, a PID namespace, and the plugins installed in it.
//!
//! The root is an overlay. The lower layer is the folder that `cargo xtask test --runtimes` has unpacked, the upper
//! layer a tmpfs that ends with the test. /run and /var/lib/cni are those of the [`Node`], so that the harness sees
//! what the runtime and the plugins leave there. All processes are in a PID namespace whose first process waits for the
//! end of its standard input, so they end however the test ends.

mod groups;
mod root;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::binaries::{is_peer, plugin_dir, slipway};
use crate::node::Node;
use crate::pace::within;
use crate::space::{CommandOutput, Space, quoted};
pub use groups::ControlGroups;
use root::{bind, make_dir};

/// The folder in the node's mount namespace in which the system's parts are mounted. Every Linux system has this
/// folder, and no programs are in it.
const PLACE: &str = "/mnt";

/// The system's root directory as the node sees it.
const ROOT: &str = "/mnt/root";

/// The shell of every system.
pub const SHELL: [&str; 2] = ["/bin/busybox", "sh"];

/// The time limit for a daemon to end, and for the kernel to release control groups.
const ENDING: Duration = Duration::from_secs(20);

/// The folder with a Debian suite's packages, if it contains `program` (a path in the folder).
pub fn unpacked(suite: &str, program: &str) -> Option<PathBuf> {
    let root = PathBuf::from(std::env::var_os("SLIPWAY_RUNTIMES")?).join(suite);
    root.join(program).is_file().then_some(root)
}

/// The root file system of a cluster's nodes, if it contains `program` (a path in it). `cargo xtask test` sets
/// `SLIPWAY_NODE_PACKAGES` to its path.
pub fn node_packages(program: &str) -> Option<PathBuf> {
    let root = PathBuf::from(std::env::var_os("SLIPWAY_NODE_PACKAGES")?);
    root.join(program).is_file().then_some(root)
}

/// A running system. Its processes end when the `System` is dropped.
#[derive(Debug)]
pub struct System {
    space: Space,
    init: Child,
    cgroup: String,
}

/// A program that runs until [`System::end`].
#[derive(Debug)]
pub struct Daemon {
    nsenter: Child,
    pid_file: String,
}

impl System {
    /// Starts a system with the packages in `packages` on `node`, which can have only one at a time.
    pub fn start(node: &Node, packages: &Path) -> Self {
        // Runtimes need the system's control groups, which are hidden from other nodes.
        node.try_cmd("umount /sys/fs/cgroup");
        node.run(|| root::make(packages));
        if is_peer() {
            let target = Path::new(ROOT).join("opt/cni/bin");
            node.run(|| bind(plugin_dir(), &target));
        } else {
            node.cmd(&format!("{} install --to {ROOT}/opt/cni/bin", quoted(slipway())));
        }
        let space = (**node).clone();
        let init = space.run(first_process);
        let system = Self { space, init, cgroup: groups::name() };
        system.wait_for("the first process", || system.exists("/proc/1/stat"));
        system
    }

    /// The node on which the system runs.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// A path in the system, as the node sees it.
    pub fn path(&self, inside: &str) -> PathBuf {
        Path::new(ROOT).join(inside.trim_start_matches('/'))
    }

    /// The control group for all processes of the system. It is separate from those of the machine's runtimes, so that
    /// it can be removed.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// Makes the control group in every hierarchy, as a kubelet needs it.
    pub fn make_cgroups(&self) {
        groups::make(&self.cgroup);
    }

    /// The system's version 2 control group as the system sees it, and a group for its daemons below, because inner
    /// groups may not have processes. None without version 2.
    pub fn unified_cgroup(&self) -> Option<(PathBuf, PathBuf)> {
        groups::unified(&self.cgroup)
    }

    pub fn run(&self, words: &[&str]) -> String {
        let output = self.try_run(words);
        assert!(output.code == Some(0), "{}: {output}", words.join(" "));
        output.stdout.trim_end().to_owned()
    }

    pub fn try_run(&self, words: &[&str]) -> CommandOutput {
        self.space.exec(self.command(words), b"")
    }

    /// Starts a program that keeps running and prints to /tmp/`name`.log.
    pub fn daemon(&self, name: &str, words: &[&str]) -> Daemon {
        let pid_file = self.path(&format!("/tmp/{name}.pid"));
        // The shell records its process ID, which the program keeps after exec.
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        let inside = format!("/tmp/{name}.pid");
        let mut command = self.command(&[&["/bin/busybox", "sh", "-c", script, &inside][..], words].concat());
        let log = self.path(&format!("/tmp/{name}.log"));
        let nsenter = self.space.run(|| {
            let _ = fs::remove_file(&pid_file);
            let log = File::options().create(true).append(true).open(&log).expect("open the log");
            let errors = log.try_clone().expect("duplicate the log's descriptor");
            command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("start nsenter")
        });
        self.wait_for(name, || self.exists(&inside));
        Daemon { nsenter, pid_file: inside }
    }

    /// Ends a daemon with a signal and waits until it is gone.
    pub fn end(&self, mut daemon: Daemon, signal: &str) {
        let pid = self.read(&daemon.pid_file);
        self.run(&["/bin/busybox", "kill", "-s", signal, pid.trim()]);
        self.wait_for("the daemon's end", || daemon.nsenter.try_wait().expect("wait for nsenter").is_some());
    }

    pub fn write(&self, inside: &str, content: impl AsRef<[u8]>) {
        let (path, content) = (self.path(inside), content.as_ref());
        self.space.run(|| {
            make_dir(path.parent().unwrap_or(Path::new(ROOT)));
            fs::write(&path, content).unwrap_or_else(|e| panic!("write {inside} in the system: {e}"));
        });
    }

    pub fn read(&self, inside: &str) -> String {
        let path = self.path(inside);
        self.space
            .run(|| fs::read_to_string(&path))
            .unwrap_or_else(|e| panic!("read {inside} in the system: {e}"))
    }

    pub fn exists(&self, inside: &str) -> bool {
        let path = self.path(inside);
        self.space.run(|| path.exists())
    }

    /// Asks until the answer is true, for at most twenty seconds.
    pub fn wait_for(&self, what: &str, mut question: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !question() {
            assert!(begin.elapsed() < within(ENDING), "{what}: waited for in vain");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cuts the power and starts the system again. Files on disk survive, but processes, namespaces, everything in
    /// /run, links and the ruleset do not.
    pub fn reboot(&mut self) {
        self.power_off();
        self.space.cmd("nft flush ruleset");
        // The links to the outside hosts are the system's hardware. Links to namespaces disappear with those, soon
        // after their processes have ended.
        self.wait_for("the links' end", || {
            let links = self.space.cmd("ip -json link");
            let links: serde_json::Value = serde_json::from_str(&links).expect("ip prints JSON");
            let names = links.as_array().into_iter().flatten().filter_map(|link| link["ifname"].as_str());
            let left: Vec<_> = names.filter(|name| *name != "lo" && !name.starts_with("out")).collect();
            for name in &left {
                self.space.try_cmd(&format!("ip link delete {name}"));
            }
            left.is_empty()
        });
        self.power_on(self.space.clone());
    }

    /// Cuts the power. Files on disk survive, but processes, mounts and everything in /run do not.
    pub fn power_off(&mut self) {
        self.end_all();
        self.space.run(root::forget);
    }

    /// Starts the system again in a space that has the same mount namespace.
    pub fn power_on(&mut self, space: Space) {
        self.space = space;
        self.init = self.space.run(first_process);
        self.wait_for("the first process", || self.exists("/proc/1/stat"));
    }

    /// Ends the first process and with it all others.
    fn end_all(&mut self) {
        drop(self.init.stdin.take());
        let begin = Instant::now();
        while begin.elapsed() < within(ENDING) && matches!(self.init.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
        // Because of --kill-child, nothing in the namespace outlives unshare.
        let _ = self.init.kill();
        let _ = self.init.wait();
        groups::remove_within(&self.cgroup, begin);
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--pid=/proc/{}/ns/pid_for_children", self.init.id()));
        command.args([format!("--root={ROOT}"), format!("--wd={ROOT}")]).arg("--").args(words);
        clean(&mut command);
        command
    }
}

impl Drop for System {
    fn drop(&mut self) {
        if thread::panicking() {
            self.space.run(show_logs);
        }
        self.end_all();
    }
}

/// The first process, which adopts orphans as an init does, and ends when this test does.
fn first_process() -> Child {
    let script = "busybox mount -t proc proc /proc && exec catatonit -- busybox cat";
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(format!("--root={ROOT}"));
    command.args(["/bin/busybox", "sh", "-c", script]);
    clean(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start unshare")
}

/// Leaves only the environment that a service of the system would have.
fn clean(command: &mut Command) {
    command.env_clear().current_dir("/");
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("HOME", "/root").env("LC_ALL", "C.UTF-8");
}

fn show_logs() {
    for entry in fs::read_dir(Path::new(ROOT).join("tmp")).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "log") {
            let text = fs::read(entry.path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("--- the end of {} ---\n{tail}", entry.path().display());
        }
    }
}
