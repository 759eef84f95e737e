// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd pod`: a file for each command, and the options that several of them share.
//!
//! [`attachments`] reads networks with their parameters, [`plugin`] runs the commands by a network plugin of kubelet,
//! [`netns`] makes named network namespaces, and [`tables`] prints.

mod attachments;
mod down;
mod gc;
mod list;
mod netns;
mod plugin;
mod status;
mod tables;
mod up;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Subcommand, ValueHint};
use cni_runtime::kubelet::{BoxError, HookError, SelectErrors};
use cni_runtime::pods::{Attach, Builder, Manager, Pod, PodError, parse_args};
use cni_runtime::{CallOptions, Cancel, Runtime, cache, config};
use cni_spec::check_container_id;
use slipwayd::network_plugin::KubeletOptions;

use super::Signals;
use super::values::ValueError;
use netns::NetnsError;
use slipway_cli::{Failure, Output};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(up::Options),
    Down(down::Options),
    Status(status::Options),
    List(list::Options),
    Gc(gc::Options),
}

/// A failed command on pods or networks.
#[derive(Debug, thiserror::Error)]
pub(super) enum PodFailure {
    #[error(transparent)]
    Pod(#[from] PodError),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error("wait for signals: {0}")]
    Signals(io::Error),
    #[error("write the output: {0}")]
    Output(io::Error),
    #[error(transparent)]
    Start(#[from] SelectErrors),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error("{0}")]
    Plugin(BoxError),
    #[error("cancelled")]
    Cancelled,
}

impl From<PodFailure> for Failure {
    fn from(failure: PodFailure) -> Self {
        match failure {
            PodFailure::Output(error) => Self::Report(error),
            other => Self::failed(other),
        }
    }
}

impl Command {
    /// Runs the command. A signal cancels it: a set-up is undone.
    pub(super) async fn execute(self) -> Result<(), PodFailure> {
        let mut signals = Signals::new().map_err(PodFailure::Signals)?;
        let cancel = Cancel::new().map_err(PodFailure::Signals)?;
        let work = async {
            match &self {
                Self::Up(options) => up::execute(options, &cancel).await,
                Self::Down(options) => down::execute(options, &cancel).await,
                Self::Status(options) => status::execute(options, &cancel).await,
                Self::List(options) => list::execute(options).await,
                Self::Gc(options) => gc::execute(options, &cancel).await,
            }
        };
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = signals.next() => cancel.cancel(),
            }
        }
    }
}

/// The namespace and the name of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodName {
    namespace: String,
    name: String,
}

impl FromStr for PodName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(ValueError::PodName),
        }
    }
}

/// The attached pod of `pod down` and `pod status`.
#[derive(Debug, Clone, Args)]
struct PodOptions {
    /// The UID of the pod
    #[arg(long, value_name = "UID")]
    uid: Option<String>,
    /// The network namespace of the pod
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    netns: Option<String>,
    /// A network, and the interface's name; without it all networks of the pod; any number of times
    #[arg(long, value_name = "NAME[=IFNAME]", value_parser = attachments::network)]
    network: Vec<Attach>,
}

/// The ID of the pod's sandbox, which becomes a part of paths.
fn sandbox_id(text: &str) -> Result<String, ValueError> {
    check_container_id(text).map(|()| text.to_owned()).map_err(|_| ValueError::Sandbox)
}

impl PodOptions {
    /// The pod, with the namespace of `--create-netns` unless another one is given.
    fn pod(&self, name: &PodName, sandbox: &str) -> Pod {
        let PodName { namespace, name } = name.clone();
        let own = netns::path_of(sandbox);
        let found = || own.exists().then(|| own.display().to_string());
        Pod {
            namespace,
            name,
            sandbox: sandbox.to_owned(),
            uid: self.uid.clone().unwrap_or_default(),
            netns: self.netns.clone().or_else(found).unwrap_or_default(),
            networks: self.network.clone(),
        }
    }
}

#[derive(Debug, Clone, Args)]
struct CacheOptions {
    /// The cache of attachments
    #[arg(long, value_name = "DIRECTORY", default_value = cache::DIRECTORIES[0], value_hint = ValueHint::DirPath)]
    cache_dir: PathBuf,
}

/// The directories of plugins, configurations and the cache.
#[derive(Debug, Clone, Args)]
pub(super) struct RuntimeOptions {
    /// Plugin directories [default: those of CNI_PATH, else /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni and
    /// /usr/lib/slipway/cni]; any number of times
    #[arg(long, value_name = "DIRECTORY[,DIRECTORY]", value_hint = ValueHint::DirPath)]
    cni_bin_dir: Vec<String>,
    /// The configuration directory [default: /etc/cni/net.d]
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    cni_conf_dir: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheOptions,
}

#[derive(Debug, Clone, Args)]
pub(super) struct DefaultNetwork {
    /// The default network; otherwise the first valid one
    #[arg(long = "default-network", id = "default_network", value_name = "NAME")]
    name: Option<String>,
}

impl RuntimeOptions {
    fn plugin_dirs(&self) -> Vec<PathBuf> {
        // kubelet ignores empty parts, too.
        let named = self.cni_bin_dir.iter().flat_map(|list| list.split(',')).filter(|path| !path.is_empty());
        let named: Vec<PathBuf> = named.map(PathBuf::from).collect();
        if named.is_empty() { config::plugin_directories() } else { named }
    }

    pub(super) fn builder(&self, default_network: &DefaultNetwork) -> Builder {
        let runtime = Runtime::builder().plugin_dirs(self.plugin_dirs()).cache(&self.cache.cache_dir);
        let args = std::env::var("CNI_ARGS").unwrap_or_default();
        let directory = self.cni_conf_dir.as_deref().unwrap_or(Path::new(config::DIRECTORY));
        let builder = Manager::builder(runtime).config_dir(directory).args(parse_args(&args));
        match &default_network.name {
            Some(name) => builder.default_network(name),
            None => builder,
        }
    }
}

/// The options of commands on one pod, besides the pod itself: CNI's directories or a network plugin of kubelet, and the output.
#[derive(Debug, Clone, Args)]
struct CallerOptions {
    #[command(flatten)]
    runtime: RuntimeOptions,
    #[command(flatten)]
    default_network: DefaultNetwork,
    #[command(flatten)]
    kubelet: KubeletOptions,
    #[command(flatten)]
    output: Output,
}

impl CallerOptions {
    fn manager(&self) -> Manager {
        self.runtime.builder(&self.default_network).open()
    }

    /// True if a network plugin of kubelet is called.
    fn is_by_plugin(&self) -> bool {
        self.kubelet.network_plugin.is_some()
    }
}

fn call_options(cancel: &Cancel) -> CallOptions {
    CallOptions::new().cancel(cancel.clone())
}

/// The sandboxes with attachments, cached or pending.
async fn attached_sandboxes(manager: &Manager) -> Result<BTreeSet<String>, PodFailure> {
    let (pending, cached) = (manager.pending().await?, manager.attachments().await?);
    let cached = cached.into_iter().map(|one| one.attachment.container_id().to_owned());
    Ok(pending.into_iter().map(|one| one.container.id).chain(cached).collect())
}

#[cfg(test)]
mod tests {
    use cni_spec::{Bandwidth, PortMapping};

    use super::*;
    use crate::commands::Command as Any;
    use crate::commands::tests::parsed;

    /// The pod of `pod up`.
    fn up(words: &str) -> Pod {
        match parsed(&format!("pod up shop/web --sandbox s {words}")).unwrap() {
            Any::Pod(Command::Up(options)) => options.pod(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn parameters_are_for_the_network_before_them() {
        let pod = up("--netns /n --alias www --network a --port 8080:80 --network b=net1 \
                      --port [2001:db8::1]:53:5353/udp --bandwidth 10M:0 --ip 10.0.0.9 --annotation x=y=z");
        let [a, b] = pod.networks.as_slice() else { panic!("{pod:?}") };
        assert_eq!((a.network.as_deref(), a.ifname.as_deref()), (Some("a"), None));
        assert_eq!(a.parameters.aliases, ["www"]);
        assert_eq!(
            (a.parameters.port_mappings[0].host_port, a.parameters.port_mappings[0].container_port),
            (8080, 80)
        );
        assert_eq!((b.network.as_deref(), b.ifname.as_deref()), (Some("b"), Some("net1")));
        let PortMapping { host_port, container_port, protocol, host_ip } = &b.parameters.port_mappings[0];
        assert_eq!((*host_port, *container_port), (53, 5353));
        assert_eq!((protocol.as_str(), host_ip.as_str()), ("udp", "2001:db8::1"));
        let Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst } =
            b.parameters.bandwidth.unwrap();
        assert_eq!((ingress_rate, ingress_burst, egress_rate, egress_burst), (10_000_000, 1_250_000, 0, 0));
        assert_eq!(b.parameters.annotations["x"], "y=z");
        let default = up("--create-netns --port 8080:80/sctp");
        assert_eq!(default.networks[0].network, None);
        assert_eq!(default.networks[0].parameters.port_mappings[0].protocol, "sctp");
    }

    #[test]
    fn a_burst_is_for_the_rates_of_its_network() {
        let limits = |words: &str| {
            let pod = up(&format!("--netns /n {words}"));
            let limits = |attach: &Attach| attach.parameters.bandwidth;
            pod.networks.iter().map(limits).collect::<Vec<_>>()
        };
        let of = |ingress_rate, ingress_burst, egress_rate, egress_burst| {
            Some(Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst })
        };
        let fast = "--bandwidth 1G:400G";
        assert_eq!(limits(fast), [of(1_000_000_000, 125_000_000, 400_000_000_000, 34_359_738_352)]);
        assert_eq!(limits("--bandwidth 10M"), [of(10_000_000, 1_250_000, 10_000_000, 1_250_000)]);
        assert_eq!(limits("--bandwidth 1k"), [of(1000, 1 << 20, 1000, 1 << 20)]);
        // The options may be in any order, and a direction without a limit gets no burst.
        let mixed = "--network a --burst 4M --bandwidth 10M:0 --network b --bandwidth 1M --burst 2M:3M";
        assert_eq!(
            limits(mixed),
            [of(10_000_000, 4_000_000, 0, 0), of(1_000_000, 2_000_000, 1_000_000, 3_000_000)]
        );
    }

    #[test]
    fn directories_are_separated_by_commas() {
        let directories = |words: &str| match parsed(&format!("pod gc --all {words}")).unwrap() {
            Any::Pod(Command::Gc(options)) => options.runtime().plugin_dirs(),
            other => panic!("{other:?}"),
        };
        let wanted: Vec<PathBuf> = ["/a", "/b", "/c"].map(PathBuf::from).into();
        assert_eq!(directories("--cni-bin-dir /a,/b,,/c,"), wanted);
        assert_eq!(directories("--cni-bin-dir /a,/b --cni-bin-dir /c"), wanted);
        assert_eq!(directories("--cni-bin-dir ,"), config::plugin_directories());
    }

    #[test]
    fn all_attachments_of_the_sandbox_are_detached_unless_networks_are_named() {
        let networks = |words: &str| match parsed(&format!("pod down shop/web --sandbox s {words}")).unwrap()
        {
            Any::Pod(Command::Down(options)) => options.pod().networks,
            other => panic!("{other:?}"),
        };
        assert_eq!(networks(""), []);
        assert_eq!(networks("--network a=net1")[0].ifname.as_deref(), Some("net1"));
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, want) in [
            ("pod up", "--sandbox, --netns and NAMESPACE/NAME are missing"),
            ("pod up web --sandbox s --netns /n", "must be NAMESPACE/NAME, not \"web\""),
            ("pod up shop/web --netns /n", "--sandbox is missing"),
            ("pod up shop/web --sandbox s", "--netns"),
            ("pod up shop/web --sandbox s --netns /n --create-netns", "--create-netns"),
            ("pod up shop/web --sandbox ../s --netns /n", "--sandbox must be an ID"),
            ("pod up a/b c/d --sandbox s --netns /n", "unexpected argument \"c/d\""),
            ("pod up a/b --sandbox s --netns /n --port 1", "--port must be [IP:]HOST:POD[/PROTOCOL]"),
            ("pod up a/b --sandbox s --netns /n --port 1:2/icmp", "--port must be [IP:]"),
            ("pod up a/b --sandbox s --netns /n --bandwidth fast", "--bandwidth must be RATE"),
            (
                "pod up a/b --sandbox s --netns /n --bandwidth 1M --burst 0",
                "--burst must be BITS or BITS:BITS",
            ),
            ("pod up a/b --sandbox s --netns /n --bandwidth 1M --burst 35G", "from 8 to 34359738352, not"),
            ("pod up a/b --sandbox s --netns /n --burst 1M", "--bandwidth is missing"),
            (
                "pod up a/b --sandbox s --netns /n --network a --bandwidth 1M --network b --burst 1M",
                "--burst is for the --bandwidth of the same network",
            ),
            ("pod up a/b --sandbox s --netns /n --ip x", "--ip must be an IP address, not \"x\""),
            ("pod down a/b --sandbox s --port 1:2", "unknown option --port"),
            ("pod status --sandbox s", "NAMESPACE/NAME"),
            ("pod status --uid u", "NAMESPACE/NAME"),
            ("pod status --network a", "NAMESPACE/NAME"),
            ("pod status a/b", "--sandbox is missing"),
            ("pod gc", "--keep"),
            ("pod gc --keep s --all", "--all"),
            ("pod up a/b --sandbox s --netns /n --network-plugin cni --network a", "--network"),
            (
                "pod up a/b --sandbox s --netns /n --hairpin-mode veth",
                "promiscuous-bridge, hairpin-veth or none",
            ),
            (
                "pod up a/b --sandbox s --netns /n --network-plugin kubenet --network-plugin-mtu x",
                "--network-plugin-mtu must be a number between 0 and 65535, not \"x\"",
            ),
            (
                "pod up a/b --sandbox s --netns /n --network-plugin kubenet --network-plugin-mtu -1",
                "--network-plugin-mtu must be a number between 0 and 65535, not \"-1\"",
            ),
            ("pod up a/b --sandbox s --netns= --port 1:2", "--netns needs a value"),
            ("top --interval -1s", "--interval must be a number with s, m or h, of at least 1s, not \"-1s\""),
            ("pod list --output yaml", "--output must be table or json, not"),
            ("networks --watch --sandbox s", "unknown option --sandbox"),
        ] {
            let error = parsed(line).map(drop).unwrap_err();
            assert!(error.contains(want), "{line}: {error}");
            assert!(error.ends_with(" --help`)\n") && error.lines().count() == 1, "{line}: {error}");
        }
    }

    /// An option that does nothing is an error.
    #[test]
    fn options_that_the_network_plugin_does_not_get_are_refused() {
        let up = "pod up a/b --sandbox s --netns /n";
        let refused = |line: &str| parsed(line).map(drop).unwrap_err();
        for option in [
            "--ip 10.0.0.9",
            "--mac 02:00:00:00:00:09",
            "--alias www",
            "--bandwidth 1M --burst 1M",
            "--cgroup-path /a",
            "--uid u",
            "--default-network pods",
        ] {
            let name = option.rsplit("--").next().unwrap().split(' ').next().unwrap();
            for plugin in ["cni", "kubenet", "mycompany/sdn"] {
                let error = refused(&format!("{up} {option} --network-plugin {plugin}"));
                assert!(error.contains(name) && error.contains("--network-plugin"), "{error}");
            }
            parsed(&format!("{up} {option}")).unwrap();
        }
        for option in [
            "--network-plugin-dir /a",
            "--network-plugin-mtu 1400",
            "--hairpin-mode none",
            "--non-masquerade-cidr 10.0.0.0/8",
            "--pod-cidr 10.1.0.0/24",
        ] {
            let error = refused(&format!("{up} {option}"));
            assert!(error.contains("--network-plugin is missing"), "{error}");
            parsed(&format!("{up} {option} --network-plugin kubenet")).unwrap();
        }
        // The network plugin gets these options.
        let given = "--port 8080:80 --bandwidth 10M --annotation a=b --cni-bin-dir /a --cni-conf-dir /b --cache-dir /c";
        parsed(&format!("{up} {given} --network-plugin kubenet")).unwrap();
    }
}
