// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd run`: the options, and the agent that they set up.
//!
//! [`paths`] and [`garbage`] have the options that a deployment takes as well, [`agent`] puts the parts of the agent
//! together.

mod agent;
pub(super) mod conflict;
pub(super) mod garbage;
pub(super) mod paths;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use cni_kernel::sysctl;
use slipway_cli::Failure;
use slipwayd::cluster::access::{Access, NODE_NAME};
use slipwayd::cluster::node_name::NodeName;
use slipwayd::cluster::reconcile::Settings;
use slipwayd::cluster::taint::StartupTaint;
use slipwayd::garbage as collector;
use slipwayd::host::run_dir::{RunDir, RunDirError};
use slipwayd::observe::{SLIPWAY, server};
use slipwayd::repair::program::Program;

use super::values::{Prefixes, ValueError, WithWords, startup_taint};
use super::{Signals, block_on};
use crate::logging::LogFormat;
use conflict::ConflictError;
use paths::DeployedOptions;

const EXAMPLES: &str = "\
Examples:
  slipwayd run --node-name node-1 --kubeconfig /etc/kubernetes/slipwayd.conf --cluster-cidr 10.244.0.0/16 --service-cidr 10.96.0.0/12
  slipwayd run --node-name node-1 --cluster-cidr 10.244.0.0/16 --host-mounts --node-setup --sysctl-dir /host/proc/sys
  slipwayd run --node-name node-1 --cluster-cidr 10.244.0.0/16 --encrypt wireguard --path-mtu 1400
  slipwayd run --node-name node-1 --cri-socket /run/k3s/containerd/containerd.sock --log-format json";

/// Keep this node in a Kubernetes cluster's network, until a signal
///
/// Watches the Nodes of the cluster. Keeps routes to the pods of other nodes, by the link, VXLAN or WireGuard, the bridge of
/// this node's pods, and the configuration that the container runtime reads. What others change is restored, with
/// `slipway restore` the rules of published ports and masquerade. Attachments that the container runtime has left are
/// deleted. Routes of other programs are never touched. A signal ends it and leaves all in place.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The name of this node in Kubernetes
    #[arg(long, value_name = "NAME", env = NODE_NAME, hide_env_values = true, value_parser = node_name)]
    node_name: NodeName,
    /// How to reach the API server [env: KUBECONFIG]; otherwise as a pod does
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    kubeconfig: Option<PathBuf>,
    /// The addresses of this node's pods, where nothing allocates them
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pod_cidr: Vec<Prefixes>,
    #[command(flatten)]
    deployed: WithWords<DeployedOptions>,
    /// The bridge of the pods
    #[arg(long, value_name = "NAME", default_value = cni_state::agent::BRIDGE, value_parser = link_name)]
    bridge: String,
    /// The name of the pods' network
    #[arg(long, value_name = "NAME", default_value = "slipway")]
    network_name: String,
    /// The file to which the network's configuration is written
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/net.d/10-slipway.conflist", value_hint = clap::ValueHint::FilePath)]
    conflist: PathBuf,
    /// The file to which the node's subnets are written
    #[arg(long, value_name = "FILE", default_value = "/run/slipway/subnet.json", value_hint = clap::ValueHint::FilePath)]
    subnet_file: PathBuf,
    /// Also write the node's subnets for the plugin flannel, usually /run/flannel/subnet.env. The file names the cluster's
    /// network: it needs --cluster-cidr
    #[arg(long, value_name = "FILE", requires = "cluster_cidr", value_hint = clap::ValueHint::FilePath)]
    flannel_file: Option<PathBuf>,
    /// Accept the pods' packets where iptables' chain FORWARD drops by default (auto); never: delete such rules
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    forward_rules: ForwardRules,
    /// Raise the kernel's limits for the containers that the node's networks have room for, as `slipway node limits` does
    /// (auto); never: leave them
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    limits: Limits,
    /// The program that repairs rules and BPF programs, and counts ports and flows
    #[arg(long, value_name = "FILE", default_value = SLIPWAY, value_hint = clap::ValueHint::FilePath)]
    slipway: PathBuf,
    /// Run slipway and iptables in the mount namespace of process 1: for an agent in a container with the host's PIDs
    #[arg(long)]
    host_mounts: bool,
    /// Load the BPF programs, as `slipway node setup` does, and keep them
    #[arg(long)]
    node_setup: bool,
    /// The directory of the kernel's settings, for an agent in a container
    #[arg(long, value_name = "DIRECTORY", default_value = sysctl::DIRECTORY, value_hint = clap::ValueHint::DirPath)]
    sysctl_dir: PathBuf,
    /// A taint of this node's Node that is removed when the network is in place, once; any number of times
    #[arg(long, value_name = "KEY[:EFFECT]", value_parser = startup_taint)]
    remove_taint: Vec<StartupTaint>,
    /// Where /metrics, /healthz and /readyz are served
    #[arg(long, value_name = "ADDRESS:PORT|none", default_value = server::ADDRESS)]
    listen: Listen,
    /// Where /healthz and /readyz are served as well, apart from all other requests
    #[arg(long, value_name = "ADDRESS:PORT|none", default_value = server::PROBE_ADDRESS)]
    probe_listen: Listen,
    /// Remove the configuration at the end
    #[arg(long)]
    remove_conflist: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ForwardRules {
    Auto,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Limits {
    Auto,
    Never,
}

/// The address of the server; none without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Listen(Option<SocketAddr>);

impl FromStr for Listen {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "none" => Ok(Self(None)),
            address => address.parse().map(|address| Self(Some(address))).map_err(|_| ValueError::Listen),
        }
    }
}

fn node_name(text: &str) -> Result<NodeName, ValueError> {
    text.parse().map_err(|_| ValueError::NodeName)
}

/// A name as the kernel takes it for a link (`dev_valid_name`).
fn link_name(name: &str) -> Result<String, ValueError> {
    let is_free = !name.contains(['/', ':']) && !name.contains(char::is_whitespace);
    if (1..=15).contains(&name.len()) && is_free { Ok(name.to_owned()) } else { Err(ValueError::LinkName) }
}

/// The settings that the agent is started with.
#[derive(Debug)]
struct Start {
    settings: Settings,
    access: Access,
    program: Program,
    removes_conflist: bool,
    startup_taints: Vec<StartupTaint>,
    listen: Option<SocketAddr>,
    probe_listen: Option<SocketAddr>,
    /// None: the container runtime's garbage is left.
    garbage: Option<collector::Settings>,
}

impl Options {
    pub(super) fn log_format(&self) -> LogFormat {
        self.deployed.options.log_format
    }

    /// Checks that the options go together.
    ///
    /// # Errors
    /// [`ConflictError`] if they do not.
    fn start(self) -> Result<Start, ConflictError> {
        let paths = self.deployed.path_settings(Prefixes::all(&self.pod_cidr))?;
        let options = self.deployed.options;
        let mut without_masquerade = Prefixes::all(&options.paths.service_cidr);
        without_masquerade.extend(Prefixes::all(&options.paths.node_cidr));
        let limits = (self.limits == Limits::Auto).then(|| self.sysctl_dir.clone());
        let settings = Settings {
            node: self.node_name,
            paths,
            network: self.network_name,
            bridge: self.bridge,
            conflist: self.conflist,
            subnet_file: self.subnet_file,
            flannel_file: self.flannel_file,
            sysctl_dir: self.sysctl_dir,
            without_masquerade,
            accepts_forwarded: self.forward_rules == ForwardRules::Auto,
            in_host_mounts: self.host_mounts,
        };
        let program = Program {
            path: self.slipway,
            in_host_mounts: self.host_mounts,
            loads_programs: self.node_setup,
            limits,
            cache: None,
        };
        Ok(Start {
            garbage: options.garbage.settings(&settings)?,
            settings,
            access: Access::new(self.kubeconfig),
            program,
            removes_conflist: self.remove_conflist,
            startup_taints: self.remove_taint,
            listen: self.listen.0,
            probe_listen: self.probe_listen.0,
        })
    }
}

impl Start {
    /// Locks the agent's directory, which holds the file of subnets.
    ///
    /// # Errors
    /// [`RunDirError`] if another agent runs, or the directory cannot be made.
    fn lock(&self) -> Result<RunDir, RunDirError> {
        let dir = self.settings.subnet_file.parent().filter(|dir| !dir.as_os_str().is_empty());
        RunDir::lock(dir.unwrap_or(Path::new(".")))
    }
}

/// Runs the agent until a signal.
pub(super) fn execute(options: Options) -> Result<u8, Failure> {
    let start = options.start().map_err(Failure::usage)?;
    // The lock is taken before anything is read or changed, because two agents would undo each other's changes.
    let run_dir = start.lock().map_err(Failure::failed)?;
    block_on(async {
        let mut signals =
            Signals::new().map_err(|error| Failure::failed(format!("wait for signals: {error}")))?;
        agent::run(start, &run_dir, signals.next()).await.map_err(Failure::failed)?;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slipwayd::cluster::desired::Encryption;
    use slipwayd::garbage::cri::Runtimes;

    use super::*;
    use crate::commands::{Command, tests::parsed};

    fn start(words: &str) -> Result<Start, String> {
        match parsed(&format!("run --node-name a {words}"))? {
            Command::Run(options) => options.start().map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_server_listens_where_it_is_asked_to() {
        let listen = |words: &str| start(words).map(|start| start.listen.map(|address| address.to_string()));
        assert_eq!(listen(""), Ok(Some("127.0.0.1:9254".to_owned())));
        assert_eq!(listen("--listen none"), Ok(None));
        let probes = |words: &str| start(words).unwrap().probe_listen.map(|address| address.to_string());
        assert_eq!(probes("--listen none"), Some("127.0.0.1:9255".to_owned()));
        assert_eq!(probes("--probe-listen none"), None);
        assert_eq!(listen("--listen [::]:80"), Ok(Some("[::]:80".to_owned())));
        let error = listen("--listen localhost:80").unwrap_err();
        assert!(error.contains("ADDRESS:PORT or none"), "{error}");
    }

    #[test]
    fn encryption_has_its_port_and_excludes_other_paths() {
        let paths = |words: &str| start(words).map(|start| start.settings.paths);
        let plain = paths("--encrypt none --tunnel always --path-mtu 1400").unwrap();
        assert_eq!((plain.encryption, plain.path_mtu), (None, Some(1400)));
        let wireguard =
            |words: &str| paths(&format!("--encrypt wireguard --cluster-cidr 10.244.0.0/16 {words}"));
        let encryption = |port: u16| Some(Encryption { port: port.try_into().unwrap() });
        assert_eq!(wireguard("").unwrap().encryption, encryption(51820));
        assert_eq!(wireguard("--wireguard-port 7").unwrap().encryption, encryption(7));
        for option in ["--tunnel auto", "--vxlan-vni 1", "--vxlan-port 4789", "--node-cidr 192.168.50.0/24"] {
            let (name, error) = (option.split(' ').next().unwrap(), wireguard(option).unwrap_err());
            let expected = format!("{name} and --encrypt wireguard exclude each other: ");
            assert!(error.starts_with(&expected), "{error}");
        }
        for (words, want) in [
            ("--encrypt wireguard", "--encrypt wireguard needs --cluster-cidr"),
            ("--wireguard-port 7", "--wireguard-port is only for --encrypt wireguard"),
            ("--encrypt wireguard --cluster-cidr 10.0.0.0/8 --wireguard-port 0", "between 1 and 65535"),
            ("--path-mtu 575", "between 576 and 65535"),
            ("--path-mtu 65536", "between 576 and 65535"),
            ("--vxlan-vni 0", "between 1 and 16777215"),
            ("--vxlan-port 65536", "between 1 and 65535"),
            ("--flannel-file /run/subnet.env", "--cluster-cidr"),
            ("--bridge a:b", "a name that a link can have"),
        ] {
            let error = paths(words).unwrap_err();
            assert!(error.contains(want), "{words}: {error}");
        }
    }

    #[test]
    fn garbage_is_looked_for_at_its_runtimes() {
        let garbage = |words: &str| {
            start(words).map(|start| start.garbage.map(|garbage| (garbage.runtimes, garbage.grace)))
        };
        let seconds = Duration::from_secs;
        assert_eq!(garbage(""), Ok(Some((Runtimes::usual(), collector::GRACE))));
        assert_eq!(garbage("--cri-socket none --gc-grace 5m"), Ok(None));
        let two = Runtimes::at(vec!["/run/a.sock".into(), "/run/b.sock".into()]).below("/proc/1/root");
        let words = "--cri-socket /run/a.sock --cri-socket /run/b.sock --gc-grace 90s --host-mounts";
        assert_eq!(garbage(words), Ok(Some((two, seconds(90)))));
        for (words, want) in [
            ("--cri-socket none --cri-socket /a", "--cri-socket none and a path exclude each other"),
            ("--cri-socket a.sock", "an absolute path or none"),
            ("--gc-grace 0s", "a number with s, m or h, of at least 1s"),
        ] {
            let error = garbage(words).unwrap_err();
            assert!(error.contains(want), "{words}: {error}");
        }
    }

    #[test]
    fn the_lock_is_next_to_the_file_of_subnets() {
        let temp = tempfile::tempdir().unwrap();
        let start = || start(&format!("--subnet-file {}/run/a.json", temp.path().display())).unwrap();
        let held = start().lock().unwrap();
        assert_eq!(held.socket(), temp.path().join("run/slipwayd.sock"));
        assert!(matches!(start().lock(), Err(RunDirError::Running(_))));
    }
}
