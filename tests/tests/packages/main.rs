// SPDX-License-Identifier: GPL-2.0-or-later

//! The packages of `cargo xtask dist` on Debian systems: installed, upgraded, removed and purged, with the reference
//! plugins' package and without it. The rpm packages are tested with Debian's rpm.
//!
//! `cargo xtask test --runtimes` builds the packages, fetches the systems, and names the folder in `SLIPWAY_PACKAGES`.
//! Without the variable, every test here is skipped. Only the systems for [`services`] have systemd.

mod debian;
mod rpm;
mod services;
mod systemd;
mod upgrade;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use slipway_tests::{CommandOutput, Node, Output, Pod, quoted};
use systemd::Init;

/// The system's root directory as the node sees it.
const ROOT: &str = "/mnt/root";
/// The folder with the packages in the system.
const PACKAGES: &str = "/mnt";
/// The folder in which Debian's runtimes look for plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// The folder with packages and systems, if there is one.
fn folder() -> Option<PathBuf> {
    std::env::var_os("SLIPWAY_PACKAGES").map(PathBuf::from)
}

/// A node with the root file system of a Debian system. Both end together.
struct Machine {
    /// The first process of the system, if it has a PID namespace.
    init: Option<Init>,
    node: Node,
}

impl Machine {
    /// Starts the system with this name, which is a file that lists the lower folders of an overlay.
    fn start(folder: &Path, system: &str) -> Self {
        let node = Node::new();
        let lower = std::fs::read_to_string(folder.join(system)).expect("read the system's folders");
        let script = format!(
            "mount -t tmpfs tmpfs /mnt\n\
             mkdir /mnt/upper /mnt/work {ROOT}\n\
             mount -t overlay overlay -o lowerdir={},upperdir=/mnt/upper,workdir=/mnt/work {ROOT}\n\
             mkdir -p {ROOT}/var/lib/cni\n\
             rmdir {ROOT}/var/lib/cni\n\
             mount --bind {} {ROOT}{PACKAGES}\n\
             mount --rbind /dev {ROOT}/dev\n\
             mount --make-shared /run\n\
             mount --rbind /run {ROOT}/run\n\
             mount --rbind /sys {ROOT}/sys\n\
             mount -t proc proc {ROOT}/proc\n",
            quoted(lower.trim()),
            quoted(folder),
        );
        node.cmd_input("sh -e", &script);
        Self { init: None, node }
    }

    /// Runs a script in the system.
    fn run(&self, script: &str) -> String {
        let output = self.try_run(script);
        assert_eq!(output.code, Some(0), "{script}: {output}");
        output.stdout
    }

    fn try_run(&self, script: &str) -> CommandOutput {
        let mut command = self.init.as_ref().map_or_else(
            || {
                let mut chroot = Command::new("chroot");
                chroot.arg(ROOT);
                chroot
            },
            Init::enter,
        );
        command.args(["/bin/sh", "-e", "-c", script]).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8").env("HOME", "/root");
        self.node.exec(command, b"")
    }

    /// All files of the system with their types, modes and link targets, except the records of dpkg, apt and rpm.
    fn files(&self) -> BTreeSet<String> {
        let pruned = [
            "dev",
            "proc",
            "run",
            "sys",
            "tmp",
            "mnt",
            "var/cache",
            "var/log",
            "var/lib/dpkg",
            "var/lib/rpm",
        ];
        let pruned: Vec<String> = pruned.iter().map(|path| format!("-path {ROOT}/{path}")).collect();
        let list = format!("find {ROOT} -xdev ( {} ) -prune -o -printf %y,%m,%P,%l\\n", pruned.join(" -o "));
        self.node.cmd(&list).lines().map(str::to_owned).collect()
    }

    /// Asserts that the system has the same files as before.
    #[track_caller]
    fn assert_same_files(&self, before: &BTreeSet<String>) {
        let now = self.files();
        let left: Vec<_> = now.difference(before).collect();
        let lost: Vec<_> = before.difference(&now).collect();
        assert!(left.is_empty() && lost.is_empty(), "left: {left:#?}; lost: {lost:#?}");
    }

    /// Calls a plugin that is installed in the system for a pod.
    fn call(&self, verb: &str, config: &Value, pod: &Pod) -> Output {
        let program = Path::new(PLUGINS).join(config["type"].as_str().expect("a type"));
        let call = self.node.plugin("bridge").through(&["chroot", ROOT]).instead(&program).command(verb);
        call.for_pod(pod).env("CNI_PATH", PLUGINS).config(config).run()
    }
}
