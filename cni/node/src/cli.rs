// SPDX-License-Identifier: GPL-2.0-or-later

//! The command line: a table of commands and options, the reader of arguments, and help.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

use cni_runtime::pods::{Attach, BURST, Parameters, Pod, quantity};
use cni_runtime::{cache, config};
use cni_spec::{Bandwidth, PortMapping};
use lexopt::{Arg, Parser, ValueExt as _};
use slipwayd::kubelet_command::KubeletOptions;

/// The plugin directory without `--cni-bin-dir`.
const PLUGINS: &str = "/opt/cni/bin";

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

/// The reason to end before a command runs.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Help or the version was requested.
    Print(String),
    /// The arguments are wrong. `command` begins with a blank, or is empty.
    Usage { command: String, text: String },
}

struct About {
    command: Command,
    /// The arguments, without options.
    arguments: &'static str,
    summary: &'static str,
    text: &'static str,
    examples: &'static [(&'static str, &'static str)],
}

struct Opt {
    name: &'static str,
    /// The name of its value; empty for a switch.
    value: &'static str,
    commands: &'static [Command],
    help: &'static str,
}

const COMMANDS: [About; 6] = [
    About {
        command: Up,
        arguments: "NAMESPACE/NAME",
        summary: "Attach a pod to its networks.",
        text: "Sets the loopback up and attaches the pod to its networks in order. If one fails, what was made is \
               removed. A parameter such as --port is for the network that is named before it, else for the first one.",
        examples: &[
            (
                "slipwayd pod up shop/web-0 --sandbox 8f3a --create-netns --port 8080:80/tcp",
                "make a namespace, attach it to the default network, publish a port",
            ),
            (
                "slipwayd pod up shop/web-0 --sandbox 8f3a --create-netns --network-plugin kubenet --pod-cidr 10.1.0.0/24",
                "make a namespace, attach it to kubenet's bridge",
            ),
            (
                "slipwayd pod up shop/db-0 --sandbox 91c0 --netns /run/netns/db --network pods --network storage=net1",
                "attach a namespace to two networks, the second as net1",
            ),
        ],
    },
    About {
        command: Down,
        arguments: "NAMESPACE/NAME",
        summary: "Detach a pod from its networks.",
        text: "Uses the configuration and parameters of the set-up, from the cache, else the configuration directory. \
               Succeeds if nothing is left to remove. Deletes a namespace of --create-netns. After a set-up that was \
               killed, repeat its --network options.",
        examples: &[("slipwayd pod down shop/web-0 --sandbox 8f3a", "remove all attachments of the sandbox")],
    },
    About {
        command: Status,
        arguments: "[NAMESPACE/NAME]",
        summary: "Check a pod, or the node.",
        text: "Calls CHECK of the plugins and prints the pod's addresses. Without a pod it succeeds if the default \
               network can take one: its configuration is valid, and STATUS of its plugins succeeds.",
        examples: &[
            ("slipwayd pod status shop/web-0 --sandbox 8f3a --output json", "check a pod"),
            ("slipwayd pod status", "check that the next pod can be set up"),
        ],
    },
    About {
        command: List,
        arguments: "",
        summary: "List the attachments of all pods, from the cache.",
        text: "",
        examples: &[("slipwayd pod list --output json", "as JSON")],
    },
    About {
        command: Gc,
        arguments: "",
        summary: "Remove what belongs to no valid pod.",
        text: "Removes the cached attachments of other sandboxes, calls GC of all networks' plugins, and deletes \
               namespaces of --create-netns. No other command on pods runs concurrently.",
        examples: &[
            ("slipwayd pod gc --keep 8f3a --keep 91c0", "keep two sandboxes"),
            ("slipwayd pod gc --all", "keep none"),
        ],
    },
    About {
        command: Networks,
        arguments: "",
        summary: "Show the configuration files, with their networks or the reason why they are skipped.",
        text: "",
        examples: &[("slipwayd networks --watch", "print them again after each change, until a signal")],
    },
];

const POD: &[Command] = &[Up, Down, Status];
const CONFIGURED: &[Command] = &[Up, Down, Status, Gc, Networks];
const ALL: &[Command] = &[Up, Down, Status, List, Gc, Networks];

const OPTIONS: [Opt; 27] = [
    Opt {
        name: "sandbox",
        value: "ID",
        commands: POD,
        help: "ID of the pod's sandbox, CNI_CONTAINERID; required",
    },
    Opt { name: "uid", value: "UID", commands: POD, help: "UID of the pod" },
    Opt { name: "netns", value: "PATH", commands: POD, help: "Network namespace of the pod" },
    Opt {
        name: "create-netns",
        value: "",
        commands: &[Up],
        help: "Make a namespace, /run/netns/slipwayd-<sandbox>",
    },
    Opt {
        name: "network",
        value: "NAME[=IFNAME]",
        commands: POD,
        help: "A network, and the interface's name; repeatable. Without it the default network",
    },
    Opt { name: "ip", value: "ADDRESS", commands: &[Up], help: "Address to request" },
    Opt { name: "mac", value: "ADDRESS", commands: &[Up], help: "Ethernet address to request" },
    Opt {
        name: "port",
        value: "[IP:]HOST:POD[/PROTOCOL]",
        commands: &[Up],
        help: "Port to publish, with tcp (default), udp or sctp; repeatable",
    },
    Opt {
        name: "bandwidth",
        value: "RATE[:RATE]",
        commands: &[Up],
        help: "Limit in bits per second, such as 10M, into the pod and out of it",
    },
    Opt {
        name: "annotation",
        value: "KEY=VALUE",
        commands: &[Up],
        help: "Annotation of the pod; repeatable. kubernetes.io/ingress-bandwidth and egress-bandwidth limit it",
    },
    Opt { name: "alias", value: "NAME", commands: &[Up], help: "Further name of the pod; repeatable" },
    Opt {
        name: "cgroup-path",
        value: "PATH",
        commands: &[Up],
        help: "The pod's cgroup below its mount point",
    },
    Opt { name: "keep", value: "ID", commands: &[Gc], help: "Sandbox of a valid pod; repeatable" },
    Opt { name: "all", value: "", commands: &[Gc], help: "No pod is valid" },
    Opt { name: "watch", value: "", commands: &[Networks], help: "Print again after each change" },
    Opt {
        name: "cni-bin-dir",
        value: "DIR",
        commands: CONFIGURED,
        help: "Plugin directory (/opt/cni/bin); repeatable",
    },
    Opt {
        name: "cni-conf-dir",
        value: "DIR",
        commands: CONFIGURED,
        help: "Configuration directory (/etc/cni/net.d)",
    },
    Opt { name: "cache-dir", value: "DIR", commands: ALL, help: "Cache of attachments (/var/lib/cni)" },
    Opt {
        name: "default-network",
        value: "NAME",
        commands: CONFIGURED,
        help: "The default network; otherwise the first valid one",
    },
    Opt {
        name: "network-plugin",
        value: "NAME",
        commands: POD,
        help: "Call this network plugin of kubelet instead: cni, kubenet, or the name of a program",
    },
    Opt {
        name: "network-plugin-dir",
        value: "DIR",
        commands: POD,
        help: "Programs of network plugins (/usr/libexec/kubernetes/kubelet-plugins/net/exec); kubenet's second directory",
    },
    Opt {
        name: "network-plugin-mtu",
        value: "BYTES",
        commands: POD,
        help: "MTU of kubenet's pods; 0: the least of the node's links (0)",
    },
    Opt {
        name: "hairpin-mode",
        value: "MODE",
        commands: POD,
        help: "promiscuous-bridge, hairpin-veth or none (promiscuous-bridge)",
    },
    Opt {
        name: "non-masquerade-cidr",
        value: "CIDR[,CIDR]",
        commands: POD,
        help: "Destinations to which kubenet's pods keep their addresses (10.0.0.0/8)",
    },
    Opt {
        name: "pod-cidr",
        value: "CIDR[,CIDR]",
        commands: POD,
        help: "Addresses of the node's pods, for kubenet and for networks with ipRanges",
    },
    Opt { name: "output", value: "table|json", commands: ALL, help: "Form of the output (table)" },
    Opt { name: "help", value: "", commands: ALL, help: "Print this help" },
];

impl Command {
    /// The words that call it.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Up => "pod up",
            Down => "pod down",
            Status => "pod status",
            List => "pod list",
            Gc => "pod gc",
            Networks => "networks",
        }
    }
}

/// Reads the command line, without the program's name.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Given, Stop> {
    let mut words: Vec<String> = Vec::new();
    let mut rest = args.into_iter().peekable();
    // Two words name a command of `pod`.
    while words.is_empty() || words == ["pod"] {
        match rest.peek().and_then(|word| word.to_str()) {
            Some(word) if !word.starts_with('-') => words.push(word.to_owned()),
            _ => break,
        }
        rest.next();
    }
    let name = words.join(" ");
    let Some(about) = COMMANDS.iter().find(|about| about.command.words() == name) else {
        return Err(match (name.as_str(), rest.next().as_deref().and_then(|word| word.to_str())) {
            ("" | "pod", None | Some("-h" | "--help")) | ("help", _) => Stop::Print(overview()),
            ("", Some("-V" | "--version")) | ("version", _) => {
                Stop::Print(format!("slipwayd {}\n", env!("CARGO_PKG_VERSION")))
            }
            ("" | "pod", Some(option)) => {
                Stop::Usage { command: String::new(), text: format!("{option} before the command") }
            }
            _ => Stop::Usage { command: String::new(), text: format!("unknown command {name:?}") },
        });
    };
    let usage = |text| Stop::Usage { command: format!(" {name}"), text };
    read(about, rest).and_then(|given| check(given).map_err(usage)).map_err(|stop| match stop {
        Stop::Usage { text, .. } => usage(text),
        stop @ Stop::Print(_) => stop,
    })
}

fn read(about: &About, args: impl Iterator<Item = OsString>) -> Result<Given, Stop> {
    let mut given = Given {
        command: about.command,
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
    let usage = |text: String| Stop::Usage { command: String::new(), text };
    let wrong = |error: lexopt::Error| usage(error.to_string());
    // Parameters before the first --network.
    let mut first = Parameters::default();
    let mut parser = Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(wrong)? {
        let name = match arg {
            Arg::Long(name) => name.to_owned(),
            Arg::Short('h') => "help".to_owned(),
            Arg::Value(value) if !about.arguments.is_empty() && given.pod.name.is_empty() => {
                let text = value.string().map_err(wrong)?;
                let (namespace, name) =
                    pair(&text, '/').ok_or_else(|| usage(format!("{text:?} is not NAMESPACE/NAME")))?;
                (given.pod.namespace, given.pod.name) = (namespace, name);
                continue;
            }
            other => return Err(wrong(other.unexpected())),
        };
        let Some(opt) = OPTIONS.iter().find(|opt| opt.name == name && opt.commands.contains(&about.command))
        else {
            return Err(usage(format!("unknown option --{name}")));
        };
        if opt.name == "help" {
            return Err(Stop::Print(help(about)));
        }
        let value = if opt.value.is_empty() {
            String::new()
        } else {
            parser.value().map_err(wrong)?.string().map_err(wrong)?
        };
        let parameters = given.pod.networks.last_mut().map_or(&mut first, |attach| &mut attach.parameters);
        if !set_parameter(parameters, opt.name, &value).map_err(|error| bad(opt, &value, &error))? {
            set(&mut given, opt.name, value.clone()).map_err(|error| bad(opt, &value, &error))?;
        }
    }
    match given.pod.networks.first_mut() {
        Some(attach) if first != Parameters::default() => merge(&mut attach.parameters, first),
        // The default network with parameters; `down` and `status` have none.
        None if given.command == Up => {
            given.pod.networks.push(Attach { parameters: first, ..Attach::default() });
        }
        _ => {}
    }
    Ok(given)
}

fn bad(opt: &Opt, value: &str, error: &str) -> Stop {
    let text = format!("--{} {value:?}: {error}", opt.name);
    Stop::Usage { command: String::new(), text }
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

/// Sets a parameter of a network. False if the option is no parameter.
fn set_parameter(parameters: &mut Parameters, name: &str, value: &str) -> Result<bool, String> {
    match name {
        "ip" => parameters.ip = Some(value.parse::<IpAddr>().map_err(|e| e.to_string())?),
        "mac" => parameters.mac = Some(value.parse().map_err(|e| format!("{e}"))?),
        "port" => parameters.port_mappings.push(port(value).ok_or("not [IP:]HOST:POD[/PROTOCOL]")?),
        "bandwidth" => parameters.bandwidth = Some(bandwidth(value)?),
        "annotation" => {
            let (key, value) = value.split_once('=').ok_or("not KEY=VALUE")?;
            parameters.annotations.insert(key.to_owned(), value.to_owned());
        }
        "alias" => parameters.aliases.push(value.to_owned()),
        "cgroup-path" => value.clone_into(&mut parameters.cgroup_path),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Sets another option.
fn set(given: &mut Given, name: &str, value: String) -> Result<(), String> {
    let pod = &mut given.pod;
    match name {
        "sandbox" => pod.sandbox = value,
        "uid" => pod.uid = value,
        "netns" => pod.netns = value,
        "create-netns" => given.create_netns = true,
        "network" => {
            let (network, ifname) = match value.split_once('=') {
                Some((network, ifname)) => (network.to_owned(), Some(ifname.to_owned())),
                None => (value, None),
            };
            pod.networks.push(Attach { ifname, ..Attach::to(network) });
        }
        "keep" => given.keep.push(value),
        "all" => given.all = true,
        "watch" => given.watch = true,
        "cni-bin-dir" => given.plugin_dirs.push(value.into()),
        "cni-conf-dir" => given.config_dir = value.into(),
        "cache-dir" => given.cache_dir = value.into(),
        "default-network" => given.default_network = Some(value),
        "output" => {
            given.json = match value.as_str() {
                "table" => false,
                "json" => true,
                _ => return Err("neither table nor json".to_owned()),
            }
        }
        _ => drop(given.kubelet.set(name, &value).map_err(|error| error.to_string())?),
    }
    Ok(())
}

/// Adds the parameters that were given before the first network.
fn merge(parameters: &mut Parameters, first: Parameters) {
    let Parameters { ip, mac, port_mappings, bandwidth, ip_ranges, aliases, cgroup_path, annotations } =
        first;
    parameters.ip = parameters.ip.or(ip);
    parameters.mac = parameters.mac.or(mac);
    parameters.bandwidth = parameters.bandwidth.or(bandwidth);
    parameters.port_mappings.splice(0..0, port_mappings);
    parameters.ip_ranges.splice(0..0, ip_ranges);
    parameters.aliases.splice(0..0, aliases);
    parameters.annotations.extend(annotations);
    if parameters.cgroup_path.is_empty() {
        parameters.cgroup_path = cgroup_path;
    }
}

/// The two parts of a text, none of them empty.
fn pair(text: &str, separator: char) -> Option<(String, String)> {
    let (one, other) = text.split_once(separator)?;
    (!one.is_empty() && !other.is_empty()).then(|| (one.to_owned(), other.to_owned()))
}

/// `[IP:]HOST:POD[/PROTOCOL]`; an IPv6 address is in brackets.
fn port(text: &str) -> Option<PortMapping> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let (rest, container_port) = ports.rsplit_once(':')?;
    let (host_ip, host_port) = rest.rsplit_once(':').unwrap_or(("", rest));
    let host_ip = host_ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(host_ip);
    if !host_ip.is_empty() && host_ip.parse::<IpAddr>().is_err()
        || !["tcp", "udp", "sctp"].contains(&protocol)
    {
        return None;
    }
    Some(PortMapping {
        host_port: host_port.parse().ok()?,
        container_port: container_port.parse().ok()?,
        protocol: protocol.to_owned(),
        host_ip: host_ip.to_owned(),
    })
}

/// `RATE` for both directions, or `RATE:RATE`.
fn bandwidth(text: &str) -> Result<Bandwidth, String> {
    let rate = |text: &str| {
        let rate = quantity(text).map_err(|e| e.to_string())?;
        u64::try_from(rate).map_err(|_| format!("{text} is negative"))
    };
    let (ingress, egress) = text.split_once(':').unwrap_or((text, text));
    let (ingress_rate, egress_rate) = (rate(ingress)?, rate(egress)?);
    let burst = |rate: u64| if rate == 0 { 0 } else { BURST };
    let (ingress_burst, egress_burst) = (burst(ingress_rate), burst(egress_rate));
    Ok(Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst })
}

impl Given {
    /// The plugin directories.
    pub(crate) fn plugin_dirs(&self) -> Vec<PathBuf> {
        if self.plugin_dirs.is_empty() { vec![PLUGINS.into()] } else { self.plugin_dirs.clone() }
    }
}

fn overview() -> String {
    let mut text =
        "slipwayd: the node's agent\n\nUsage: slipwayd COMMAND [OPTIONS]\n\nCommands:\n".to_owned();
    for About { command, summary, .. } in &COMMANDS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<12}{summary}", command.words());
    }
    text.push_str(
        "\n`slipwayd COMMAND --help` explains a command. SLIPWAY_LOG (warn, info, debug) sets the log on standard \
         error.\nExit codes: 0 success, 1 failure, 2 wrong arguments.\n",
    );
    text
}

fn help(about: &About) -> String {
    let About { command, arguments, summary, text, examples } = about;
    let words = command.words();
    let blank = if arguments.is_empty() { "" } else { " " };
    let mut all =
        format!("slipwayd {words}: {summary}\n\nUsage: slipwayd {words}{blank}{arguments} [OPTIONS]\n");
    if !text.is_empty() {
        let _ = writeln!(all, "\n{text}");
    }
    all.push_str("\nOptions:\n");
    for opt in OPTIONS.iter().filter(|opt| opt.commands.contains(command)) {
        let shown = format!("--{} {}", opt.name, opt.value);
        let _ = writeln!(all, "  {:<34}{}", shown.trim_end(), opt.help);
    }
    all.push_str("\nExamples:\n");
    for (line, meaning) in *examples {
        let _ = writeln!(all, "  {line}\n      {meaning}");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Given, String> {
        match parse(line.split_whitespace().map(OsString::from).collect()) {
            Ok(given) => Ok(given),
            Err(Stop::Usage { command, text }) => Err(format!("{command}: {text}")),
            Err(Stop::Print(text)) => Err(text),
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
            ("pod up", " pod up: NAMESPACE/NAME is missing"),
            ("pod up web --sandbox s", " pod up: \"web\" is not NAMESPACE/NAME"),
            ("pod up shop/web --netns /n", " pod up: --sandbox is missing"),
            ("pod up shop/web --sandbox s", " pod up: --netns or --create-netns is missing"),
            ("pod up a/b c/d --sandbox s --netns /n", " pod up: unexpected argument \"c/d\""),
            (
                "pod up a/b --sandbox s --netns /n --port 1",
                " pod up: --port \"1\": not [IP:]HOST:POD[/PROTOCOL]",
            ),
            ("pod up a/b --sandbox s --netns /n --port 1:2/icmp", " pod up: --port \"1:2/icmp\": not [IP:]"),
            (
                "pod up a/b --sandbox s --netns /n --bandwidth fast",
                " pod up: --bandwidth \"fast\": \"fast\" is not",
            ),
            ("pod down a/b --sandbox s --port 1:2", " pod down: unknown option --port"),
            ("pod status --sandbox s", " pod status: NAMESPACE/NAME is missing"),
            ("pod gc", " pod gc: --keep or --all is missing"),
            (
                "pod up a/b --sandbox s --netns /n --network-plugin cni --network a",
                " pod up: --network and --network-plugin exclude each other",
            ),
            (
                "pod up a/b --sandbox s --netns /n --hairpin-mode veth",
                " pod up: --hairpin-mode \"veth\": unknown value: \"veth\"",
            ),
            ("pod list --output yaml", " pod list: --output \"yaml\": neither table nor json"),
            ("pod ups", ": unknown command \"pod ups\""),
            ("--watch networks", ": --watch before the command"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.starts_with(want), "{line}: {error}");
        }
    }

    #[test]
    fn every_command_has_help_with_examples_that_are_read() {
        for about in &COMMANDS {
            let help = parsed(&format!("{} --help", about.command.words())).unwrap_err();
            assert!(help.starts_with(&format!("slipwayd {}: ", about.command.words())), "{help}");
            assert!(!about.examples.is_empty());
            for (line, _) in about.examples {
                let given = parsed(line.strip_prefix("slipwayd ").unwrap()).unwrap();
                assert_eq!(given.command, about.command);
            }
        }
        for line in ["", "pod", "--help", "-h", "help", "pod --help"] {
            assert!(parsed(line).unwrap_err().starts_with("slipwayd: the node's agent"), "{line}");
        }
        assert!(parsed("--version").unwrap_err().starts_with("slipwayd 0."));
    }
}
