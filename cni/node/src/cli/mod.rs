// SPDX-License-Identifier: GPL-3.0-or-later

//! The command line: [`table`] describes the commands, and the options become what the commands need.

mod deployment;
mod parameters;
mod table;

use std::path::PathBuf;

use cni_runtime::pods::{Attach, Parameters, Pod};
use cni_runtime::{cache, config};
use slipwayd::network_plugin::KubeletOptions;

pub(crate) use table::PROGRAM;

/// Options that the network plugins of kubelet have no use for.
const WITHOUT_PLUGIN: [&str; 6] = ["--ip", "--mac", "--alias", "--cgroup-path", "--uid", "--default-network"];

/// Options of the network plugins of kubelet.
const WITH_PLUGIN: [&str; 5] =
    ["--network-plugin-dir", "--network-plugin-mtu", "--hairpin-mode", "--non-masquerade-cidr", "--pod-cidr"];

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Up,
    Down,
    Status,
    List,
    Gc,
    Networks,
}

use Command::{Down, Gc, List, Networks, Status, Up};

/// The commands of this program alone, with their names.
pub(crate) const COMMANDS: [(Command, &str); 6] = [
    (Up, "pod up"),
    (Down, "pod down"),
    (Status, "pod status"),
    (List, "pod list"),
    (Gc, "pod gc"),
    (Networks, "networks"),
];

/// The arguments of a command.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) command: Command,
    /// Without a name and a sandbox for commands on no pod.
    pub(crate) pod: Pod,
    pub(crate) create_netns: bool,
    pub(crate) keep: Vec<String>,
    pub(crate) all: bool,
    pub(crate) watch: bool,
    pub(crate) json: bool,
    pub(crate) plugin_dirs: Vec<PathBuf>,
    pub(crate) config_dir: PathBuf,
    pub(crate) cache_dir: PathBuf,
    pub(crate) default_network: Option<String>,
    pub(crate) kubelet: KubeletOptions,
}

impl Given {
    /// Takes the options of a command, in their order.
    ///
    /// # Errors
    /// The options or their values do not go together or are invalid, in words.
    pub(crate) fn new(command: Command, words: &slipway_cli::Given) -> Result<Self, String> {
        let mut given = Self {
            command,
            pod: Pod::default(),
            create_netns: false,
            keep: Vec::new(),
            all: false,
            watch: false,
            json: false,
            plugin_dirs: Vec::new(),
            config_dir: config::DIRECTORY.into(),
            cache_dir: cache::DIRECTORIES[0].into(),
            default_network: None,
            kubelet: KubeletOptions::default(),
        };
        if let Some(text) = words.arguments().first() {
            (given.pod.namespace, given.pod.name) =
                pair(text, '/').ok_or_else(|| format!("{text:?} is not NAMESPACE/NAME"))?;
        }
        // Parameters before the first --network.
        let mut first = Parameters::default();
        for (name, value) in words.options() {
            let parameters =
                given.pod.networks.last_mut().map_or(&mut first, |attach| &mut attach.parameters);
            let bad = |error: String| format!("{name} {value:?}: {error}");
            if !parameters::set(parameters, name, value).map_err(bad)? {
                set(&mut given, name, value.to_owned()).map_err(bad)?;
            }
        }
        match given.pod.networks.first_mut() {
            Some(attach) if first != Parameters::default() => {
                parameters::merge(&mut attach.parameters, first);
            }
            // The default network with parameters; `down` and `status` have none.
            None if given.command == Up => {
                given.pod.networks.push(Attach { parameters: first, ..Attach::default() });
            }
            _ => {}
        }
        check_plugin(words)?;
        check(given)
    }

    /// The plugin directories.
    pub(crate) fn plugin_dirs(&self) -> Vec<PathBuf> {
        if self.plugin_dirs.is_empty() { config::plugin_directories() } else { self.plugin_dirs.clone() }
    }
}

/// Refuses options that would be ignored, with `--network-plugin` or without it.
fn check_plugin(words: &slipway_cli::Given) -> Result<(), String> {
    let first_of = |names: &[&'static str]| names.iter().find(|name| words.has(name)).copied();
    match (words.value("--network-plugin"), first_of(&WITHOUT_PLUGIN), first_of(&WITH_PLUGIN)) {
        (Some(_), Some(name), _) => Err(format!(
            "{name} and --network-plugin exclude each other: kubelet's network plugins do not get it"
        )),
        (None, _, Some(name)) => Err(format!("{name} is only for --network-plugin")),
        _ => Ok(()),
    }
}

fn check(given: Given) -> Result<Given, String> {
    let missing = |what: &str| Err(format!("{what} is missing"));
    let Given { command, pod, create_netns, keep, all, kubelet, .. } = &given;
    let is_named = |attach: &Attach| attach.network.is_some();
    let is_of_pod = matches!(command, Up | Down) || *command == Status && !pod.name.is_empty();
    match command {
        Up | Down if pod.name.is_empty() => missing("NAMESPACE/NAME"),
        _ if is_of_pod && pod.sandbox.is_empty() => missing("--sandbox"),
        Status if !is_of_pod && *pod != Pod::default() => missing("NAMESPACE/NAME"),
        Up if pod.netns.is_empty() && !create_netns => missing("--netns or --create-netns"),
        Up if !pod.netns.is_empty() && *create_netns => {
            Err("--netns and --create-netns exclude each other".to_owned())
        }
        _ if !kubelet.network_plugin.is_empty() && pod.networks.iter().any(is_named) => {
            Err("--network and --network-plugin exclude each other".to_owned())
        }
        Gc if keep.is_empty() && !all => missing("--keep or --all"),
        Gc if !keep.is_empty() && *all => Err("--keep and --all exclude each other".to_owned()),
        _ => Ok(given),
    }
}

/// Sets another option.
fn set(given: &mut Given, name: &str, value: String) -> Result<(), String> {
    let pod = &mut given.pod;
    match name {
        "--sandbox" => pod.sandbox = value,
        "--uid" => pod.uid = value,
        "--netns" => pod.netns = value,
        "--create-netns" => given.create_netns = true,
        "--network" => {
            let (network, ifname) = match value.split_once('=') {
                Some((network, ifname)) => (network.to_owned(), Some(ifname.to_owned())),
                None => (value, None),
            };
            pod.networks.push(Attach { ifname, ..Attach::to(network) });
        }
        "--keep" => given.keep.push(value),
        "--all" => given.all = true,
        "--watch" => given.watch = true,
        "--cni-bin-dir" => given.plugin_dirs.push(value.into()),
        "--cni-conf-dir" => given.config_dir = value.into(),
        "--cache-dir" => given.cache_dir = value.into(),
        "--default-network" => given.default_network = Some(value),
        "--output" => given.json = value == "json",
        _ => {
            let set = given.kubelet.set(name.trim_start_matches('-'), &value);
            return set.map(|_is_kubelets| ()).map_err(|error| error.to_string());
        }
    }
    Ok(())
}

/// The two parts of a text, none of them empty.
fn pair(text: &str, separator: char) -> Option<(String, String)> {
    let (one, other) = text.split_once(separator)?;
    (!one.is_empty() && !other.is_empty()).then(|| (one.to_owned(), other.to_owned()))
}

#[cfg(test)]
mod tests {
    use cni_runtime::pods::BURST;
    use cni_spec::{Bandwidth, PortMapping};

    use super::*;

    /// Reads a command line as `main` does, without the program's name.
    fn parsed(line: &str) -> Result<Given, String> {
        let (command, name) = COMMANDS.into_iter().find(|(_, name)| line.starts_with(name)).unwrap();
        let args: Vec<String> = line[name.len()..].split_whitespace().map(str::to_owned).collect();
        match slipway_cli::parse(PROGRAM.find(name).unwrap(), &args) {
            Ok(words) => Given::new(command, &words),
            Err(stop) => Err(format!("{stop:?}")),
        }
    }

    #[test]
    fn parameters_are_for_the_network_before_them() {
        let given = parsed(
            "pod up shop/web --sandbox s --netns /n --alias www --network a --port 8080:80 --network b=net1 \
             --port [2001:db8::1]:53:5353/udp --bandwidth 10M:0 --ip 10.0.0.9 --annotation x=y=z",
        )
        .unwrap();
        let [a, b] = given.pod.networks.as_slice() else { panic!("{:?}", given.pod) };
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
        assert_eq!((ingress_rate, ingress_burst, egress_rate, egress_burst), (10_000_000, BURST, 0, 0));
        assert_eq!(b.parameters.annotations["x"], "y=z");
        let default = parsed("pod up shop/web --sandbox s --create-netns --port 8080:80/sctp").unwrap();
        assert_eq!(default.pod.networks[0].network, None);
        assert_eq!(default.pod.networks[0].parameters.port_mappings[0].protocol, "sctp");
        // All attachments of the sandbox.
        assert_eq!(parsed("pod down shop/web --sandbox s").unwrap().pod.networks, []);
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, want) in [
            ("pod up", "NAMESPACE/NAME is missing"),
            ("pod up web --sandbox s", "\"web\" is not NAMESPACE/NAME"),
            ("pod up shop/web --netns /n", "--sandbox ID is missing"),
            ("pod up shop/web --sandbox s", "--netns or --create-netns is missing"),
            ("pod up a/b c/d --sandbox s --netns /n", "unexpected argument \\\"c/d\\\""),
            ("pod up a/b --sandbox s --netns /n --port 1", "--port \"1\": not [IP:]HOST:POD[/PROTOCOL]"),
            ("pod up a/b --sandbox s --netns /n --port 1:2/icmp", "--port \"1:2/icmp\": not [IP:]"),
            ("pod up a/b --sandbox s --netns /n --bandwidth fast", "--bandwidth \"fast\": \"fast\" is not"),
            ("pod down a/b --sandbox s --port 1:2", "unknown option --port"),
            ("pod status --sandbox s", "NAMESPACE/NAME is missing"),
            ("pod status a/b", "--sandbox is missing"),
            ("pod gc", "--keep or --all is missing"),
            ("pod gc --keep s --all", "--keep and --all exclude each other"),
            (
                "pod up a/b --sandbox s --netns /n --network-plugin cni --network a",
                "--network and --network-plugin exclude each other",
            ),
            (
                "pod up a/b --sandbox s --netns /n --hairpin-mode veth",
                "--hairpin-mode must be promiscuous-bridge, hairpin-veth or none, not",
            ),
            (
                "pod up a/b --sandbox s --netns /n --network-plugin kubenet --network-plugin-mtu x",
                "--network-plugin-mtu \"x\": invalid digit",
            ),
            ("pod list --output yaml", "--output must be table or json, not"),
            ("networks --watch --sandbox s", "unknown option --sandbox"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.trim_start_matches("Usage(\"").starts_with(want), "{line}: {error}");
        }
    }

    /// An option that does nothing is an error.
    #[test]
    fn options_that_the_network_plugin_does_not_get_are_refused() {
        let up = "pod up a/b --sandbox s --netns /n";
        for option in [
            "--ip 10.0.0.9",
            "--mac 02:00:00:00:00:09",
            "--alias www",
            "--cgroup-path /a",
            "--uid u",
            "--default-network pods",
        ] {
            let name = option.split(' ').next().unwrap();
            for plugin in ["cni", "kubenet", "mycompany/sdn"] {
                let error = parsed(&format!("{up} {option} --network-plugin {plugin}")).unwrap_err();
                assert!(
                    error.starts_with(&format!("{name} and --network-plugin exclude each other: ")),
                    "{error}"
                );
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
            let name = option.split(' ').next().unwrap();
            assert_eq!(
                parsed(&format!("{up} {option}")).unwrap_err(),
                format!("{name} is only for --network-plugin")
            );
            parsed(&format!("{up} {option} --network-plugin kubenet")).unwrap();
        }
        // Those it gets.
        let given = "--port 8080:80 --bandwidth 10M --annotation a=b --cni-bin-dir /a --cni-conf-dir /b --cache-dir /c";
        parsed(&format!("{up} {given} --network-plugin kubenet")).unwrap();
    }

    #[test]
    fn the_examples_of_the_help_are_valid() {
        for (command, name) in COMMANDS {
            for (line, _) in PROGRAM.find(name).unwrap().examples {
                let given = parsed(line.strip_prefix("slipwayd ").unwrap());
                assert_eq!(given.map(|given| given.command), Ok(command), "{line}");
            }
        }
    }
}
