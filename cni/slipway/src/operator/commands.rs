// SPDX-License-Identifier: GPL-2.0-or-later

//! The table of commands: data for dispatch, help, manual pages and completions.

use slipway_cli::{Argument, Command, OUTPUT, Opt, Program, Reader, Value};

use cni_plugins::registry;

const NAME: Value = Value::Text("NAME");

const NETWORK: Opt = Opt::value("--network", NAME, "only those of this network");
const CONTAINER: Opt =
    Opt::value("--container", Value::Text("ID"), "only those of this container: its ID or a prefix of it");
const CACHE_DIR: Opt = Opt::value(
    "--cache-dir",
    Value::Directory,
    "the cache, if it is neither /var/lib/cni, /var/lib/cni/cache nor /run/slipway/netavark; its files are in DIR/results",
)
.many();
const PLUGIN_DIR: Opt = Opt::value(
    "--plugin-dir",
    Value::Directory,
    "a plugin directory (those of CNI_PATH, else /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni and /usr/lib/slipway/cni)",
);
const TO: Opt = Opt::value("--to", Value::Directory, "the plugin directory (/opt/cni/bin)");
const SHARE_DIR: Opt = Opt::value(
    "--share-dir",
    Value::Directory,
    "also write manual pages and completions below it, as /usr/local/share; `uninstall` removes them",
);

/// All commands, in the order of the help text.
pub(crate) static COMMANDS: &[Command] = &[
    Command {
        name: "ports",
        summary: "list published ports, their owners and connections",
        about: "Packets and bytes are those that conntrack or the BPF programs have counted; `-` where \
                nothing counts. CONNECTIONS is the number of flows that exist now. `slipwayd top` shows rates.",
        arguments: &[],
        options: &[NETWORK, CONTAINER, OUTPUT],
        exit_codes: &[],
        examples: &[
            ("slipway ports --network pods", "the ports of one network"),
            ("slipway ports --container 3f29 --output json", "those of one container, for a program"),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "check-node",
        summary: "check the kernel and the host for missing features and conflicts",
        about: "Probes the kernel in a network namespace of its own and changes nothing on the node. Each \
                finding that needs attention has a reason and a fix.",
        arguments: &[],
        options: &[OUTPUT],
        exit_codes: &[(1, "something required is missing")],
        examples: &[
            ("slipway check-node", "before the first container"),
            ("slipway check-node --output json", "for a program"),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "node",
        summary: "load, show or remove the BPF programs of the eBPF backend",
        about: "All three print the status. The first container with the eBPF backend loads the programs, \
                too. After `teardown` nftables serves everything. With the key udpGroForwarding in \
                /etc/cni/slipway.json, `setup` switches UDP GRO forwarding at the uplinks.",
        arguments: &[Argument::new(
            Value::OneOf(&["setup", "teardown", "status"]),
            "load and attach the BPF programs, remove them, or only print the status",
        )],
        options: &[OUTPUT],
        exit_codes: &[],
        examples: &[
            ("slipway node setup", "after a change of uplinks or of /etc/cni/slipway.json"),
            ("slipway node status --output json", "for monitoring"),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "explain",
        summary: "follow the first packet of a connection through the node's rules",
        about: "Makes the kernel's lookups one by one and prints each step with its reason. No packet is \
                sent. Without --from and --iif the packet comes from another host, or from the node itself \
                if it goes to a loopback address. The exit code is 0 whatever becomes of the packet.",
        arguments: &[
            Argument::new(Value::OneOf(&["tcp", "udp", "sctp"]), "the protocol"),
            Argument::new(Value::Text("ADDRESS:PORT"), "the destination; IPv6 as [2001:db8::2]:8080"),
            Argument::new(Value::Text("from"), "").hidden(),
            Argument::new(Value::Text("ADDRESS"), "").hidden(),
        ],
        options: &[
            Opt::value("--from", Value::Text("ADDRESS"), "the source"),
            Opt::value(
                "--iif",
                Value::Text("LINK"),
                "the link that the packet arrives on; lo: the node sends it",
            ),
            OUTPUT,
        ],
        exit_codes: &[],
        examples: &[
            ("slipway explain tcp 192.0.2.2:8080", "from another host"),
            (
                "slipway explain udp 192.0.2.2:53 --from 10.22.0.7 --iif cni0 -o json",
                "from a container, for a program",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "trace",
        summary: "show real packets to a port, hook by hook through the node's rules",
        about: "Has the kernel trace packets to this address and port, a few a second at most, and \
                prints what each chain did with them, also chains of other programs. The rule for this ends \
                with the command, even if it is killed. No packet is sent. Packets that BPF programs carry \
                past netfilter are counted only; rules of iptables-legacy are not shown.",
        arguments: &[
            Argument::new(Value::OneOf(&["tcp", "udp", "sctp"]), "the protocol"),
            Argument::new(Value::Text("ADDRESS:PORT"), "the destination; IPv6 as [2001:db8::2]:8080"),
        ],
        options: &[
            Opt::value("--for", Value::Text("TIME"), "the time after which it ends, 10m at most (10s)"),
            Opt::value("--count", Value::Text("NUMBER"), "the packets after which it ends, 1000 at most (10)"),
            OUTPUT,
        ],
        exit_codes: &[],
        examples: &[
            ("slipway trace tcp 192.0.2.2:8080", "while a client tries to connect"),
            ("slipway trace udp 192.0.2.2:53 --for 1m --count 3 --output json", "for a program"),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "connectivity-test",
        summary: "try a network's published ports and masquerade with real packets",
        about: "Attaches network namespaces as containers, publishes a free port for one of them, and sends \
                requests from it, from another one, from the node and from a namespace that stands for another \
                host. Packets go to addresses that the test made, and to the published port. Everything is \
                removed at the end; what a killed test left, the next call removes.",
        arguments: &[],
        options: &[
            Opt::value("--network", NAME, "the network (the first one, which a runtime takes)"),
            Opt::value("--config", Value::File, "the network's configuration, in place of --network"),
            Opt::value("--config-dir", Value::Directory, "the networks' configurations (/etc/cni/net.d)"),
            PLUGIN_DIR.many(),
            Opt::switch("--clean", "only remove what a killed test left"),
            OUTPUT,
        ],
        exit_codes: &[(1, "the test could not run"), (3, "a check failed; the reason is printed")],
        examples: &[
            ("slipway connectivity-test", "the first network of /etc/cni/net.d"),
            ("slipway connectivity-test --network pods --config-dir /etc/containers/cni --output json", "for a program"),
            (
                "slipway connectivity-test --config /tmp/new.conflist --plugin-dir /usr/lib/cni",
                "a configuration that no runtime has yet, with other plugins",
            ),
            ("slipway connectivity-test --clean", "after a kill"),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "restore",
        summary: "put back what running containers lost when the ruleset was flushed",
        about: "Restores published ports, masquerade and the guard against spoofed addresses of each \
                container that is in a runtime's cache and that the kernel shows to be running. Does \
                nothing where nothing is missing.",
        arguments: &[],
        options: &[Opt::switch("--dry-run", "only report what is missing"), CACHE_DIR, OUTPUT],
        exit_codes: &[
            (1, "something could not be read or restored; everything else was restored"),
            (3, "with --dry-run: something is missing"),
        ],
        examples: &[
            ("slipway restore", "after `nft flush ruleset`"),
            ("slipway restore --dry-run --output json", "from monitoring"),
            ("slipway restore --cache-dir /var/lib/containers/cni", "with a cache in another place"),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "detach",
        summary: "detach a container from a network, in place of its runtime",
        about: "Calls DEL of the network's plugins with what the runtime's cache has of the attachment, and deletes that. \
                For a container that its runtime no longer knows: a running one loses its network.",
        arguments: &[
            Argument::new(Value::Text("NETWORK"), "the network's name"),
            Argument::new(Value::Text("CONTAINER"), "the container's ID"),
            Argument::new(Value::Text("IFNAME"), "the interface in the container"),
        ],
        options: &[
            Opt::value(
                "--only-if",
                Value::OneOf(&["gone", "unused"]),
                "only a pod's sandbox whose namespace is gone, or with unused also one without a process",
            ),
            Opt::value(
                "--conflist",
                Value::File,
                "the network's configuration, for an attachment that no cache has",
            ),
            CACHE_DIR,
            PLUGIN_DIR.many(),
            OUTPUT,
        ],
        exit_codes: &[(3, "with --only-if: it was left alone, for the reason that is printed")],
        examples: &[
            ("slipway detach pods 3f29 eth0", "remove what a deleted container has left"),
            (
                "slipway detach pods 3f29 eth0 --only-if unused --conflist /etc/cni/net.d/10-pods.conflist \
                 --output json",
                "unless it runs, for a program",
            ),
            (
                "slipway detach pods 3f29 eth0 --cache-dir /var/lib/containers/cni --plugin-dir /usr/lib/cni",
                "with other directories",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "migrate",
        summary: "move running containers from one backend to another",
        about: "Published ports and masquerade move, container by container, while they serve. Connections \
                survive.",
        arguments: &[],
        options: &[
            Opt::value("--to", Value::OneOf(&["nftables", "iptables", "ebpf"]), "the backend to move to")
                .required(),
            Opt::value(
                "--from",
                Value::OneOf(&["nftables", "iptables", "reference", "ebpf", "all"]),
                "the backend to move from (all); reference: the nftables backend of the reference plugins",
            )
            .many(),
            Opt::value("--network", NAME, "only containers of this network").many(),
            Opt::switch("--dry-run", "only report what would move"),
            CACHE_DIR,
            Opt::value("--data-dir", Value::Directory, "host-local's reservations (/var/lib/cni/networks)")
                .many(),
            OUTPUT,
        ],
        exit_codes: &[
            (1, "something failed"),
            (3, "with --dry-run: something would move"),
            (4, "something was skipped; the reasons are printed"),
        ],
        examples: &[
            ("slipway migrate --to nftables --from iptables --dry-run", "what would move"),
            ("slipway migrate --to ebpf --network pods --output json", "one network, for a program"),
            (
                "slipway migrate --to nftables --cache-dir /var/lib/containers/cni --data-dir /srv/cni/networks",
                "with state in other places",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "support-bundle",
        summary: "collect what a bug report needs into one tar file",
        about: "Changes nothing on the node. Only the owner can read the file; one that exists is not \
                overwritten. Of configurations it has the values of known keys; of all other values only \
                the type and the length. Review it before you share it.",
        arguments: &[],
        options: &[
            Opt::value("--file", Value::File, "the file to write (slipway-support-TIME.tar)")
                .short('o')
                .older("--output"),
            Opt::value("--config-dir", Value::Directory, "the networks' configurations (/etc/cni/net.d)"),
            PLUGIN_DIR,
        ],
        exit_codes: &[],
        examples: &[
            ("slipway support-bundle --file slipway-support.tar", "into a file of this name"),
            (
                "slipway support-bundle --config-dir /etc/containers/cni --plugin-dir /usr/lib/cni",
                "with other directories",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "install",
        summary: "install this binary and a link per plugin into a plugin directory",
        about: "Each name changes by one rename, so that a runtime finds a whole plugin at any moment. \
                Nothing is changed if a name is taken and --replace is not given.",
        arguments: &[],
        options: &[
            TO,
            Opt::switch("--replace", "replace plugins of other sets; `uninstall` brings them back"),
            SHARE_DIR,
            Opt::switch("--dry-run", "only report what would be done"),
        ],
        exit_codes: &[],
        examples: &[
            ("slipway install --replace --dry-run", "what would change in /opt/cni/bin"),
            (
                "slipway install --to /usr/lib/cni --share-dir /usr/local/share",
                "with manual pages and completions",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "uninstall",
        summary: "remove the plugins and what they left, and bring back what was replaced",
        about: "Removes only what Slipway made and no container uses; what stays is printed with the reason. \
                Refuses while containers use Slipway's tables.",
        arguments: &[],
        options: &[
            TO,
            Opt::value("--data-dir", Value::Directory, "host-local's reservations (/var/lib/cni/networks)"),
            Opt::switch("--keep-state", "remove the plugins only: tables, bridges and files stay"),
            Opt::switch(
                "--force",
                "remove the tables although containers use them: their ports and masquerade end",
            ),
            Opt::switch("--dry-run", "only report what would be done"),
        ],
        exit_codes: &[(1, "something failed, or a container was added while the plugins were removed")],
        examples: &[
            ("slipway uninstall --dry-run", "what would be removed"),
            ("slipway uninstall --to /usr/lib/cni --keep-state", "before another plugin set takes over"),
            (
                "slipway uninstall --data-dir /srv/cni/networks --force",
                "with another reservation directory, even if containers use the tables",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "dhcp",
        summary: "keep the DHCP leases of containers",
        about: "Runs until it is killed, normally by systemd. Options have one dash or two, as those of the \
                reference plugin's daemon.",
        arguments: &[Argument::new(Value::OneOf(&["daemon"]), "the one task")],
        options: &[
            Opt::value("-pidfile", Value::File, "write the process ID to this file"),
            Opt::value(
                "-hostprefix",
                Value::Directory,
                "the host's root directory, if the daemon is in a container",
            ),
            Opt::value("-socketpath", Value::File, "the socket that plugins call (/run/cni/dhcp.sock)"),
            Opt::value("-statedir", Value::Directory, "the leases on disk (/var/lib/cni/dhcp)"),
            Opt::value("-timeout", Value::Text("TIME"), "the time to wait for a server's reply (10s)"),
            Opt::value("-resendmax", Value::Text("TIME"), "the longest time between two requests (62s)"),
            Opt::value("-resendtimeout", Value::Text("TIME"), "the time after which an ADD fails (208s)"),
            Opt::switch("-broadcast", "ask servers to reply by broadcast"),
        ],
        exit_codes: &[],
        examples: &[
            ("slipway dhcp daemon -pidfile /run/cni/dhcp.pid -socketpath /run/cni/dhcp.sock", "by hand"),
            (
                "slipway dhcp daemon -hostprefix /host -statedir /var/lib/cni/dhcp -broadcast",
                "in a container",
            ),
            ("slipway dhcp daemon -timeout 5s -resendmax 30s -resendtimeout 2m", "with a slow server"),
        ],
        reader: Reader::Command,
    },
    Command {
        name: "cnitool",
        summary: "attach a network namespace to a network by hand, as a runtime does",
        about: "Reads the environment of the CNI project's tool of this name: CNI_PATH (directories of \
                plugins, with colons between them), NETCONFPATH (directory of networks, /etc/cni/net.d), \
                CAP_ARGS (the runtime's configuration by capability, a JSON object), CNI_ARGS \
                (KEY=VALUE;KEY=VALUE), CNI_IFNAME (eth0). `cnitool` is a link to the same command.",
        arguments: &[
            Argument::new(
                Value::OneOf(&["add", "check", "del", "gc", "status", "validate"]),
                "the CNI command; validate asks each plugin for its versions",
            ),
            Argument::new(Value::Text("NETWORK"), "the network's name"),
            Argument::new(Value::Text("NETNS"), "the path of the network namespace, for add, check and del")
                .optional(),
        ],
        options: &[
            Opt::value(
                "--ifname",
                Value::Text("IFNAME"),
                "the interface in the namespace; overrides CNI_IFNAME",
            )
            .short('i'),
            Opt::value(
                "--capability",
                Value::Text("NAME=VALUE"),
                "capability argument: port=8080:80/tcp, bandwidth=ingressRate:10M,..., ips=ADDRESS,... or mac=ADDRESS",
            )
            .many(),
            Opt::value(
                OUTPUT.name,
                Value::OneOf(&["table", "json"]),
                "print a table, or JSON; without it add prints JSON, and check, del, gc and status nothing",
            )
            .short('o'),
        ],
        exit_codes: &[(1, "failure, or wrong arguments"), (2, "")],
        examples: &[
            ("CNI_PATH=/opt/cni/bin slipway cnitool add pods /run/netns/web", "attach"),
            ("CNI_PATH=/opt/cni/bin slipway cnitool del pods /run/netns/web --ifname eth1", "detach"),
            (
                "CNI_PATH=/opt/cni/bin slipway cnitool add pods /run/netns/web --capability port=8080:80/tcp",
                "attach and publish a port",
            ),
            ("CNI_PATH=/opt/cni/bin slipway cnitool validate pods --output json", "for a program"),
        ],
        reader: Reader::Command,
    },
    Command {
        name: "plugins",
        summary: "list the plugins of this binary and the versions that they speak",
        about: "",
        arguments: &[],
        options: &[Opt::switch("--names", "print the names only"), OUTPUT],
        exit_codes: &[],
        examples: &[
            ("slipway plugins --names", "for a script"),
            ("slipway plugins --output json", "for a program"),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "plugin",
        summary: "run a plugin by its name, without a link",
        about: "The request is in the environment and on standard input, as the CNI specification defines them.",
        arguments: &[Argument::new(Value::Text("PLUGIN"), "the plugin's name")],
        options: &[],
        exit_codes: &[(1, "the plugin failed; the error is on standard output")],
        examples: &[("CNI_COMMAND=VERSION slipway plugin bridge", "the versions of one plugin")],
        reader: Reader::Table,
    },
    slipway_cli::completions(
        "`slipway install --share-dir` installs them for all three shells.",
        &[("slipway completions bash", "to be read by `source <(slipway completions bash)`")],
    ),
    slipway_cli::manual(&[
        ("slipway manual target/manual", "for a package"),
        ("slipway manual /usr/local/share --remove", "without `slipway uninstall`"),
    ]),
    slipway_cli::version(&[("slipway version --output json", "for a program")]),
    slipway_cli::help(&[("slipway help ports", "the same as `slipway ports --help`")]),
];

/// The program.
pub(super) static PROGRAM: Program = Program {
    name: "slipway",
    version: env!("CARGO_PKG_VERSION"),
    summary: "CNI plugins for nodes with many containers",
    about: || {
        format!(
            "One program is all CNI plugins of a node. Called by the name of a plugin, it is that plugin: {}. Called \
             as slipway, it runs a command of the node's operator.",
            registry::names().join(", ")
        )
    },
    commands: COMMANDS,
    environment: &[
        (
            "SLIPWAY_LOG",
            "the level of the log on standard error: error, warn, info, debug, trace, or levels by module",
        ),
        (
            "CNI_PATH",
            "the plugin directories of `cnitool`, and of `connectivity-test`, `detach` and `support-bundle` without --plugin-dir, with colons between them",
        ),
    ],
    files: &[
        ("/opt/cni/bin", "the plugin directory"),
        ("/etc/cni/net.d", "the networks"),
        ("/etc/cni/slipway.json", "the node's settings"),
    ],
    words: |name| if name == "PLUGIN" { registry::names() } else { Vec::new() },
};

/// The command of that name.
pub(super) fn find(name: &str) -> Option<&'static Command> {
    PROGRAM.find(name)
}

#[cfg(test)]
mod tests {
    use slipway_cli::{Stop, checks, parse};

    use super::*;

    #[test]
    fn help_manual_and_completions_have_everything() {
        checks::assert_complete(&PROGRAM);
    }

    #[test]
    fn all_that_print_data_print_json() {
        let with: Vec<&str> = COMMANDS
            .iter()
            .filter(|c| c.options.iter().any(|o| o.name == OUTPUT.name))
            .map(|c| c.name)
            .collect();
        assert_eq!(
            with,
            [
                "ports",
                "check-node",
                "node",
                "explain",
                "trace",
                "connectivity-test",
                "restore",
                "detach",
                "migrate",
                "cnitool",
                "plugins",
                "version"
            ]
        );
    }

    #[test]
    fn each_command_has_help() {
        for command in COMMANDS {
            assert_eq!(parse(command, &["--help".to_owned()]), Err(Stop::Help), "{}", command.name);
        }
    }
}
