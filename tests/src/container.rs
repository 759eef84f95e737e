// SPDX-License-Identifier: GPL-2.0-or-later

//! Runs containers of a pod that `slipwayd render` prints, without a container runtime. A container gets a root that
//! the container file builds on top of a Debian system's programs, the pod's mounts, a read-only `/proc/sys`, its
//! capabilities and no new privileges. Seccomp, AppArmor and SELinux profiles are the runtime's, so they are not
//! applied.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::binaries::{slipway, slipwayd};
use crate::cluster::ClusterNode;
use crate::daemon::Daemon;
use crate::space::{CommandOutput, Space, quoted};

/// Where the node's directories lie in the test. Those below /run belong to the node; at their usual paths they would
/// be the machine's.
const ELSEWHERE: [(&str, &str); 2] = [("/opt/cni/bin", "/run/bin"), ("/etc/cni/net.d", "/run/net.d")];
/// The files of a service account in a pod.
const ACCOUNT: &str = "var/run/secrets/kubernetes.io/serviceaccount";

/// The capabilities that rendered objects ask for, with their numbers from capabilities(7).
const CAPABILITIES: [(&str, u32); 7] = [
    ("DAC_OVERRIDE", 1),
    ("NET_ADMIN", 12),
    ("NET_RAW", 13),
    ("SYS_CHROOT", 18),
    ("SYS_PTRACE", 19),
    ("SYS_ADMIN", 21),
    ("SYS_RESOURCE", 24),
];

/// The output of `slipwayd render FILE` with these options.
pub fn render(file: &str, options: &[&str]) -> String {
    let output =
        Command::new(slipwayd()).args(["render", file]).args(options).output().expect("run slipwayd");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

pub fn daemon_set(manifests: &str) -> Value {
    let all: Vec<Value> = serde_saphyr::from_multiple(manifests).expect("YAML");
    all.into_iter().find(|object| object["kind"] == "DaemonSet").expect("a DaemonSet")
}

pub fn pod_of(daemon_set: &Value) -> &Value {
    &daemon_set["spec"]["template"]["spec"]
}

/// A container of a pod on a node, with its root file system already made.
#[derive(Debug)]
pub struct Container<'a> {
    node: &'a ClusterNode,
    root: String,
    spec: &'a Value,
    environment: BTreeMap<String, String>,
}

impl<'a> Container<'a> {
    /// Makes the root of a container, either the init container or the agent, with the programs of the system in
    /// `base`.
    pub fn new(node: &'a ClusterNode, base: &Path, containerfile: &str, pod: &'a Value, init: bool) -> Self {
        let kind = if init { "initContainers" } else { "containers" };
        let all = pod[kind].as_array().expect("containers");
        let [spec] = all.as_slice() else { panic!("{kind}: {all:?}") };
        let root = format!("/run/containers/{}", spec["name"].as_str().expect("a name"));
        let container = Self { node, root, spec, environment: environment(node, spec) };
        if !node.run(|| Path::new(&container.root).exists()) {
            container.make_root(base, containerfile, pod);
        }
        container
    }

    fn make_root(&self, base: &Path, containerfile: &str, pod: &Value) {
        let root = &self.root;
        let base = quoted(base.to_string_lossy().trim_end_matches('/'));
        let mut script = format!(
            "mkdir -p {root}\n\
             mount -t tmpfs tmpfs {root}\n\
             cd {root}\n\
             mkdir -p proc sys dev tmp {ACCOUNT}\n\
             for name in usr/bin usr/sbin usr/lib usr/lib64 bin sbin lib lib64; do\n\
                 if [ -L {base}/$name ]; then cp -P {base}/$name $name\n\
                 elif [ -d {base}/$name ]; then\n\
                     mkdir -p $name; mount --bind {base}/$name $name; mount -o remount,bind,ro $name\n\
                 fi\n\
             done\n\
             mount --rbind /dev dev\n\
             mount -t sysfs -o ro sysfs sys\n\
             mount -t proc proc proc\n\
             mount --bind proc/sys proc/sys\n\
             mount -o remount,bind,ro proc/sys\n"
        );
        script += &steps(containerfile, root);
        let volumes = pod["volumes"].as_array().expect("volumes");
        for mount in self.spec["volumeMounts"].as_array().expect("mounts") {
            let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("a volume");
            let path = volume["hostPath"]["path"].as_str().expect("a path");
            let path = ELSEWHERE.iter().find(|(there, _)| *there == path).map_or(path, |(_, here)| *here);
            if volume["hostPath"]["type"] == "DirectoryOrCreate" {
                script += &format!("mkdir -p {path}\n");
            }
            let inside = mount["mountPath"].as_str().expect("a path").trim_start_matches('/');
            script += &format!("mkdir -p {inside}\nmount --bind {path} {inside}\n");
            if mount["readOnly"] == true {
                script += &format!("mount -o remount,bind,ro {inside}\n");
            }
        }
        assert_eq!(self.spec["securityContext"]["readOnlyRootFilesystem"], true);
        script += &format!("mount --bind {ACCOUNT} {ACCOUNT}\nmount -o remount,bind,ro {root}\n");
        self.node.cmd_input("sh -e", &script);
    }

    /// Gives the container the files of a service account and the API server's address.
    pub fn account(mut self, server: (&str, &str), token: &str, certificate: &str) -> Self {
        for (name, content) in [("token", token), ("ca.crt", certificate), ("namespace", "kube-system")] {
            let path = format!("{}/{ACCOUNT}/{name}", self.root);
            self.node.run(|| std::fs::write(path, content)).expect("write the service account");
        }
        let (host, port) = server;
        self.environment.insert("KUBERNETES_SERVICE_HOST".to_owned(), host.to_owned());
        self.environment.insert("KUBERNETES_SERVICE_PORT".to_owned(), port.to_owned());
        self
    }

    pub fn start(&self, log: &str) -> Daemon {
        let words = self.words(&capabilities(self.spec));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.node.daemon("chroot", &words, log)
    }

    /// Runs the container to its end, without one of its capabilities if `without` names one.
    pub fn run(&self, without: Option<&str>) -> CommandOutput {
        let mut kept = capabilities(self.spec);
        if let Some(without) = without {
            assert!(kept.iter().any(|name| name == without), "{kept:?}");
            kept.retain(|name| name != without);
        }
        let mut command = Command::new("chroot");
        command.args(self.words(&kept));
        self.node.exec(command, b"")
    }

    fn words(&self, capabilities: &[String]) -> Vec<String> {
        let security = &self.spec["securityContext"];
        assert!(security["runAsUser"] == 0 && security["runAsGroup"] == 0, "{security}");
        assert_eq!(security["allowPrivilegeEscalation"], false);
        let mut words = vec![self.root.clone()];
        words.extend(confined(capabilities));
        words.extend(["env".to_owned(), "-i".to_owned()]);
        words.extend(self.environment.iter().map(|(name, value)| format!("{name}={value}")));
        for part in ["command", "args"] {
            let all = self.spec[part].as_array().expect("words").iter();
            // Process 1 is the machine's here rather than the node's. The suite `damage` covers a process 1 of the
            // node.
            let all = all.map(|word| word.as_str().expect("a word")).filter(|word| *word != "--host-mounts");
            words.extend(all.map(str::to_owned));
        }
        words
    }
}

/// The capabilities that a container adds after it has dropped all.
pub fn capabilities(container: &Value) -> Vec<String> {
    let of = &container["securityContext"]["capabilities"];
    assert_eq!(of["drop"], serde_json::json!(["ALL"]));
    let names = of["add"].as_array().expect("capabilities").iter();
    names.map(|name| name.as_str().expect("a name").to_owned()).collect()
}

/// A capability as a bit of the capability sets in `/proc/PID/status`.
pub fn capability_bit(name: &str) -> u64 {
    let (_, number) = CAPABILITIES.iter().find(|(known, _)| *known == name).expect("a known capability");
    1 << number
}

/// True if this process, and thus the processes of its nodes, may have a capability at all: its bounding set has it.
pub(crate) fn may_have(capability: &str) -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("read the thread's state");
    let bounds = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).expect("a bounding set");
    let bounds = u64::from_str_radix(bounds.trim(), 16).expect("hexadecimal digits");
    bounds & capability_bit(capability) != 0
}

/// The words to put before a command so that it runs with these capabilities only and cannot gain privileges.
pub fn confined(capabilities: &[String]) -> Vec<String> {
    let kept: String = capabilities.iter().map(|name| format!(",+{}", name.to_lowercase())).collect();
    let words = ["setpriv", "--bounding-set", &format!("-all{kept}"), "--inh-caps=-all", "--no-new-privs"];
    words.map(str::to_owned).into()
}

/// The environment variables of a container. The only field of the downward API that is supported is the node's name.
fn environment(node: &ClusterNode, container: &Value) -> BTreeMap<String, String> {
    let variables = container["env"].as_array().into_iter().flatten();
    variables
        .map(|variable| {
            assert_eq!(variable["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName", "{variable}");
            let name = variable["name"].as_str().expect("a name").to_owned();
            (name, format!("node-{}", node.number))
        })
        .collect()
}

/// Translates the container file's commands into a script for a shell in the root. Files are bound instead of copied.
fn steps(containerfile: &str, root: &str) -> String {
    let mut script = String::new();
    for line in containerfile.lines().filter(|line| !line.starts_with('#')) {
        let (word, rest) = line.split_once(' ').expect("a command");
        match word {
            "FROM" | "LABEL" | "ENTRYPOINT" => {}
            "COPY" => {
                let words: Vec<&str> = rest.split(' ').filter(|word| !word.starts_with("--")).collect();
                let (into, files) = words.split_last().expect("a directory");
                let into = into.trim_start_matches('/');
                script += &format!("mkdir -p {into}\n");
                for name in files {
                    let program = match *name {
                        "slipway" => slipway(),
                        "slipwayd" => slipwayd(),
                        other => panic!("{other} is no program"),
                    };
                    let file = format!("{into}{name}");
                    script += &format!(": > {file}\nmount --bind {} {file}\n", quoted(&program));
                }
            }
            "RUN" => {
                let words: Vec<String> = serde_json::from_str(rest).expect("a list of words");
                script += &format!("chroot {root} {}\n", words.join(" "));
            }
            other => panic!("{other} is not tried"),
        }
    }
    script
}

/// A process in the node's mount namespace that has all capabilities, as process 1 of a real node has.
pub fn first_process(space: &Space) -> (Daemon, u32) {
    let daemon = space.daemon("sh", &["-c", "echo $$; exec sleep infinity"], "/run/first.log");
    let begun = std::time::Instant::now();
    loop {
        let log = space.run(|| std::fs::read_to_string("/run/first.log")).unwrap_or_default();
        if let Ok(pid) = log.trim().parse() {
            return (daemon, pid);
        }
        assert!(begun.elapsed() < crate::pace::patience(), "no process");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
