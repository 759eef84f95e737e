// SPDX-License-Identifier: GPL-3.0-or-later

//! The table of commands: data for dispatch, help, manual pages and completions.

use slipway_cli::{Argument, Command, OUTPUT, Opt, Program, Reader, Value};

use super::deployment::RENDER;

const PODS_NAME: &str = "the pod's namespace and name in Kubernetes";
const POD: &[Argument] = &[Argument::new(Value::Text("NAMESPACE/NAME"), PODS_NAME)];
const OPTIONAL_POD: &[Argument] = &[Argument::new(Value::Text("NAMESPACE/NAME"), PODS_NAME).optional()];

const SANDBOX: Opt =
    Opt::value("--sandbox", Value::Text("ID"), "the ID of the pod's sandbox, CNI_CONTAINERID");
const UID: Opt = Opt::value("--uid", Value::Text("UID"), "the UID of the pod");
const NETNS: Opt = Opt::value("--netns", Value::File, "the network namespace of the pod");
const CREATE_NETNS: Opt =
    Opt::switch("--create-netns", "make a namespace, /run/netns/slipwayd-SANDBOX; `pod down` deletes it");
const NETWORK: Opt = Opt::value(
    "--network",
    Value::Text("NAME[=IFNAME]"),
    "a network, and the interface's name; without it the default network",
)
.many();
const IP: Opt = Opt::value("--ip", Value::Text("ADDRESS"), "the address to request");
const MAC: Opt = Opt::value("--mac", Value::Text("ADDRESS"), "the Ethernet address to request");
const PORT: Opt = Opt::value(
    "--port",
    Value::Text("[IP:]HOST:POD[/PROTOCOL]"),
    "a port to publish, with tcp (default), udp or sctp",
)
.many();
const BANDWIDTH: Opt = Opt::value(
    "--bandwidth",
    Value::Text("RATE[:RATE]"),
    "the limit in bits per second, such as 10M, into the pod and out of it",
);
const ANNOTATION: Opt = Opt::value(
    "--annotation",
    Value::Text("KEY=VALUE"),
    "an annotation of the pod; kubernetes.io/ingress-bandwidth and egress-bandwidth limit it",
)
.many();
const ALIAS: Opt = Opt::value("--alias", Value::Text("NAME"), "a further name of the pod").many();
const CGROUP_PATH: Opt =
    Opt::value("--cgroup-path", Value::Text("PATH"), "the pod's cgroup below its mount point");
const KEEP: Opt = Opt::value("--keep", Value::Text("ID"), "the sandbox of a valid pod").many();
const ALL: Opt = Opt::switch("--all", "no pod is valid");
const WATCH: Opt = Opt::switch("--watch", "print again after each change");
const PLUGINS: Opt = Opt::value(
    "--cni-bin-dir",
    Value::Directory,
    "a plugin directory (those of CNI_PATH, else /opt/cni/bin, /usr/lib/cni, /usr/libexec/cni and /usr/lib/slipway/cni)",
)
.many();
const CONFIGURATIONS: Opt =
    Opt::value("--cni-conf-dir", Value::Directory, "the configuration directory (/etc/cni/net.d)");
const CACHE: Opt = Opt::value("--cache-dir", Value::Directory, "the cache of attachments (/var/lib/cni)");
const DEFAULT_NETWORK: Opt = Opt::value(
    "--default-network",
    Value::Text("NAME"),
    "the default network; otherwise the first valid one",
);
const NETWORK_PLUGIN: Opt = Opt::value(
    "--network-plugin",
    Value::Text("NETWORK-PLUGIN"),
    "call this network plugin of kubelet instead: cni, kubenet, or the name of a program",
);
const NETWORK_PLUGIN_DIR: Opt = Opt::value(
    "--network-plugin-dir",
    Value::Directory,
    "the programs of network plugins (/usr/libexec/kubernetes/kubelet-plugins/net/exec)",
);
const NETWORK_PLUGIN_MTU: Opt = Opt::value(
    "--network-plugin-mtu",
    Value::Text("BYTES"),
    "the MTU of kubenet's pods; 0: the least of the node's links (0)",
);
const HAIRPIN_MODE: Opt = Opt::value(
    "--hairpin-mode",
    Value::OneOf(&["promiscuous-bridge", "hairpin-veth", "none"]),
    "how kubenet's pods reach themselves by their Service (promiscuous-bridge)",
);
const NON_MASQUERADE_CIDR: Opt = Opt::value(
    "--non-masquerade-cidr",
    Value::Text("CIDR[,CIDR]"),
    "destinations to which kubenet's pods keep their addresses (10.0.0.0/8)",
);
const POD_CIDR: Opt = Opt::value(
    "--pod-cidr",
    Value::Text("CIDR[,CIDR]"),
    "the addresses of the node's pods, for kubenet and for networks with ipRanges",
);

const NODE_NAME: Opt =
    Opt::value("--node-name", Value::Text("NAME"), "the name of this node in Kubernetes ($NODE_NAME)");
const KUBECONFIG: Opt = Opt::value(
    "--kubeconfig",
    Value::File,
    "how to reach the API server ($KUBECONFIG); otherwise as a pod does",
);
const OWN_POD_CIDR: Opt = Opt::value(
    "--pod-cidr",
    Value::Text("CIDR[,CIDR]"),
    "the addresses of this node's pods, where nothing allocates them",
);
pub(super) const CLUSTER_CIDR: Opt =
    Opt::value("--cluster-cidr", Value::Text("CIDR"), "addresses of all pods, which are not masqueraded")
        .many();
pub(super) const SERVICE_CIDR: Opt =
    Opt::value("--service-cidr", Value::Text("CIDR"), "addresses of Services, to which pods keep theirs")
        .many();
pub(super) const NODE_CIDR: Opt = Opt::value(
    "--node-cidr",
    Value::Text("CIDR"),
    "addresses of nodes, to which pods keep theirs: only if all hosts there know the way to pods",
)
.many();
pub(super) const TUNNEL: Opt = Opt::value(
    "--tunnel",
    Value::OneOf(&["auto", "always", "never"]),
    "VXLAN: to nodes that are not on a link of this one (auto), to all, or to none",
);
pub(super) const VXLAN_VNI: Opt =
    Opt::value("--vxlan-vni", Value::Text("VNI"), "the VXLAN network identifier (1)");
pub(super) const VXLAN_PORT: Opt =
    Opt::value("--vxlan-port", Value::Text("PORT"), "the UDP port of VXLAN (4789)");
pub(super) const ENCRYPT: Opt = Opt::value(
    "--encrypt",
    Value::OneOf(&["none", "wireguard"]),
    "encrypt all traffic between pods of different nodes, and refuse what cannot be encrypted (none)",
);
pub(super) const WIREGUARD_PORT: Opt =
    Opt::value("--wireguard-port", Value::Text("PORT"), "the UDP port of WireGuard (51820)");
pub(super) const PATH_MTU: Opt = Opt::value(
    "--path-mtu",
    Value::Text("BYTES"),
    "the largest packet between nodes, if a link between them carries less than the nodes' own links",
);
const BRIDGE: Opt = Opt::value("--bridge", Value::Text("NAME"), "the bridge of the pods (slipway0)");
const NETWORK_NAME: Opt =
    Opt::value("--network-name", Value::Text("NAME"), "the name of the pods' network (slipway)");
const CONFLIST: Opt = Opt::value(
    "--conflist",
    Value::File,
    "the configuration that is written (/etc/cni/net.d/10-slipway.conflist)",
);
const SUBNET_FILE: Opt =
    Opt::value("--subnet-file", Value::File, "the node's subnets, written (/run/slipway/subnet.json)");
const FORWARD_RULES: Opt = Opt::value(
    "--forward-rules",
    Value::OneOf(&["auto", "never"]),
    "accept the pods' packets where iptables' chain FORWARD drops by default (auto); never: delete such rules",
);
const FLANNEL_FILE: Opt = Opt::value(
    "--flannel-file",
    Value::File,
    "also write the node's subnets for the plugin flannel, usually /run/flannel/subnet.env",
);
const LISTEN: Opt = Opt::value(
    "--listen",
    Value::Text("ADDRESS:PORT|none"),
    "where /metrics, /healthz and /readyz are served (127.0.0.1:9254)",
);
const SLIPWAY: Opt = Opt::value(
    "--slipway",
    Value::File,
    "the program that repairs rules and BPF programs, and counts ports and flows (/opt/cni/bin/slipway)",
);
const HOST_MOUNTS: Opt = Opt::switch(
    "--host-mounts",
    "run it and iptables in the mount namespace of process 1: for a container with the host's PIDs",
);
const NODE_SETUP: Opt =
    Opt::switch("--node-setup", "load the BPF programs, as `slipway node setup` does, and keep them");
const SYSCTL_DIR: Opt =
    Opt::value("--sysctl-dir", Value::Directory, "the kernel's settings, for a container (/proc/sys)");
const REMOVE_TAINT: Opt = Opt::value(
    "--remove-taint",
    Value::Text("KEY[:EFFECT]"),
    "a taint of this node's Node that is removed when the network stands, once",
)
.many();
pub(super) const CRI_SOCKET: Opt = Opt::value(
    "--cri-socket",
    Value::Text("PATH|none"),
    "a socket of the container runtime (those of containerd and CRI-O that exist); none: leave its garbage",
)
.many();
pub(super) const GC_GRACE: Opt = Opt::value(
    "--gc-grace",
    Value::Text("TIME"),
    "how long the runtime must not list a pod before its attachment is garbage, as 90s or 10m (10m)",
);
pub(super) const LOG_FORMAT: Opt = Opt::value(
    "--log-format",
    Value::OneOf(&["text", "json"]),
    "the form of the log: text (default), or one JSON object per line",
);
const SOCKET: Opt =
    Opt::value("--socket", Value::File, "the socket of the agent (/run/slipway/slipwayd.sock)");
const INTERVAL: Opt =
    Opt::value("--interval", Value::Text("TIME"), "the time between two samples, as 1s or 1m (2s)");
const ONCE: Opt = Opt::switch("--once", "print one sample; with --interval, the rates of that time");
const REMOVE: Opt = Opt::switch("--remove-conflist", "remove the configuration at the end");

/// All commands, in the order of the help text.
static COMMANDS: &[Command] = &[
    Command {
        name: "run",
        summary: "keep this node in a Kubernetes cluster's network, until a signal",
        about: "Watches the Nodes of the cluster. Keeps routes to the pods of other nodes, by the link, VXLAN or WireGuard, the \
                bridge of this node's pods, and the configuration that the container runtime reads. What others change \
                is restored, with `slipway restore` the rules of published ports and masquerade. Attachments that the container \
                runtime has left are deleted. Routes of other programs are never touched. A signal ends it and leaves all in \
                place.",
        arguments: &[],
        options: &[
            NODE_NAME,
            KUBECONFIG,
            OWN_POD_CIDR,
            CLUSTER_CIDR,
            SERVICE_CIDR,
            NODE_CIDR,
            TUNNEL,
            VXLAN_VNI,
            VXLAN_PORT,
            ENCRYPT,
            WIREGUARD_PORT,
            PATH_MTU,
            BRIDGE,
            NETWORK_NAME,
            CONFLIST,
            SUBNET_FILE,
            FLANNEL_FILE,
            FORWARD_RULES,
            SLIPWAY,
            HOST_MOUNTS,
            NODE_SETUP,
            SYSCTL_DIR,
            REMOVE_TAINT,
            LISTEN,
            CRI_SOCKET,
            GC_GRACE,
            LOG_FORMAT,
            REMOVE,
        ],
        exit_codes: &[],
        examples: &[
            (
                "slipwayd run --node-name node-1 --kubeconfig /etc/kubernetes/slipwayd.conf --cluster-cidr 10.244.0.0/16 \
                 --service-cidr 10.96.0.0/12",
                "on a node, as a service",
            ),
            (
                "slipwayd run --cluster-cidr 10.244.0.0/16 --node-cidr 192.168.50.0/24 --tunnel always --vxlan-vni 7 \
                 --vxlan-port 8472 --host-mounts --node-setup --sysctl-dir /host/proc/sys --remove-taint \
                 node.example/starting:NoSchedule",
                "in a pod, with NODE_NAME in its environment; all traffic between nodes by VXLAN",
            ),
            (
                "slipwayd run --cluster-cidr 10.244.0.0/16 --encrypt wireguard --wireguard-port 51821 --path-mtu 1400",
                "with encryption, across a link that carries packets of 1400 bytes",
            ),
            (
                "slipwayd run --cluster-cidr 10.244.0.0/16 --flannel-file /run/flannel/subnet.env",
                "with a network of the plugin flannel as well",
            ),
            (
                "slipwayd run --node-name node-1 --cri-socket /run/k3s/containerd/containerd.sock --gc-grace 20m \
                 --log-format json",
                "on k3s, with a longer grace, and a log for programs",
            ),
            (
                "slipwayd run --node-name node-1 --listen 192.168.50.11:9254 --slipway /usr/lib/cni/slipway",
                "for a Prometheus on another host, with the plugins in another directory",
            ),
            (
                "slipwayd run --pod-cidr 10.244.3.0/24 --bridge pods0 --network-name pods --conflist \
                 /etc/cni/net.d/20-pods.conflist --subnet-file /run/slipway/pods.json --slipway /usr/lib/cni/slipway \
                 --forward-rules never --remove-conflist",
                "with own names, where nothing allocates pod CIDRs",
            ),
        ],
        reader: Reader::Table,
    },
    RENDER,
    Command {
        name: "status",
        summary: "print the state of the agent that runs on this node",
        about: "Prints whether the node's network is ready, else the reason; its subnets with used and free addresses, \
                its routes and tunnel, and the troubles of the last comparison.",
        arguments: &[],
        options: &[SOCKET, OUTPUT],
        exit_codes: &[],
        examples: &[
            ("slipwayd status", "a table"),
            (
                "slipwayd status --socket /run/pods/slipwayd.sock --output json",
                "of an agent with another directory",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "top",
        summary: "show a live view of this node",
        about: "Shows published ports and their flows with rates, dropped packets, conntrack, used and free addresses of \
                networks; and from the running agent the last ADD and DEL of plugins and repairs. The key h shows \
                the keys. Without a terminal, with TERM=dumb or JSON it prints a sample after each interval. It changes \
                nothing.",
        arguments: &[],
        options: &[INTERVAL, ONCE, SOCKET, CONFIGURATIONS, OUTPUT],
        exit_codes: &[],
        examples: &[
            ("slipwayd top --interval 5s", "with a sample every five seconds"),
            ("slipwayd top --once --output json", "one sample for a program, without rates"),
            (
                "slipwayd top --once --interval 10s --socket /run/pods/slipwayd.sock --cni-conf-dir /etc/net.d",
                "one sample with the rates of ten seconds, of an agent and networks in other directories",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "pod up",
        summary: "attach a pod to its networks",
        about: "Sets the loopback up and attaches the pod to its networks in order. If one fails, what was made is \
                removed. A parameter such as --port is for the network that is named before it, else for the first \
                one.",
        arguments: POD,
        options: &[
            SANDBOX.required(),
            UID,
            NETNS,
            CREATE_NETNS,
            NETWORK,
            IP,
            MAC,
            PORT,
            BANDWIDTH,
            ANNOTATION,
            ALIAS,
            CGROUP_PATH,
            PLUGINS,
            CONFIGURATIONS,
            CACHE,
            DEFAULT_NETWORK,
            NETWORK_PLUGIN,
            NETWORK_PLUGIN_DIR,
            NETWORK_PLUGIN_MTU,
            HAIRPIN_MODE,
            NON_MASQUERADE_CIDR,
            POD_CIDR,
            OUTPUT,
        ],
        exit_codes: &[],
        examples: &[
            (
                "slipwayd pod up shop/web-0 --sandbox 8f3a --create-netns --port 8080:80/tcp",
                "make a namespace, attach it to the default network, publish a port",
            ),
            (
                "slipwayd pod up shop/db-0 --sandbox 91c0 --netns /run/netns/db --network pods --network storage=net1",
                "attach a namespace to two networks, the second as net1",
            ),
            (
                "slipwayd pod up shop/web-1 --sandbox 8f3b --create-netns --default-network pods --ip 10.22.0.9 --mac \
                 02:00:00:00:00:09 --bandwidth 10M:20M --alias web --output json",
                "request addresses and limit the traffic; print JSON",
            ),
            (
                "slipwayd pod up shop/web-2 --sandbox 8f3c --uid 5d1e --create-netns --annotation \
                 kubernetes.io/ingress-bandwidth=10M --cgroup-path /kubepods/pod5d1e",
                "with what Kubernetes knows of the pod",
            ),
            (
                "slipwayd pod up shop/web-0 --sandbox 8f3a --create-netns --cni-bin-dir /usr/lib/cni --cni-conf-dir \
                 /etc/net.d --cache-dir /srv/cni",
                "with other directories",
            ),
            (
                "slipwayd pod up shop/web-0 --sandbox 8f3a --create-netns --network-plugin kubenet --pod-cidr \
                 10.1.0.0/24 --hairpin-mode hairpin-veth --non-masquerade-cidr 10.0.0.0/8 --network-plugin-mtu 1400",
                "make a namespace, attach it to kubenet's bridge",
            ),
            (
                "slipwayd pod up shop/web-0 --sandbox 8f3a --create-netns --network-plugin mycompany/sdn \
                 --network-plugin-dir /opt/sdn",
                "attach it by a program",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "pod down",
        summary: "detach a pod from its networks",
        about: "Uses the configuration and parameters of the set-up, from the cache, else the configuration \
                directory. Succeeds if nothing is left to remove. Deletes a namespace of --create-netns when its \
                last network is detached. After a set-up that was killed it removes what that had made.",
        arguments: POD,
        options: &[
            SANDBOX.required(),
            UID,
            NETNS,
            NETWORK,
            PLUGINS,
            CONFIGURATIONS,
            CACHE,
            DEFAULT_NETWORK,
            NETWORK_PLUGIN,
            NETWORK_PLUGIN_DIR,
            NETWORK_PLUGIN_MTU,
            HAIRPIN_MODE,
            NON_MASQUERADE_CIDR,
            POD_CIDR,
            OUTPUT,
        ],
        exit_codes: &[],
        examples: &[
            ("slipwayd pod down shop/web-0 --sandbox 8f3a", "remove all attachments of the sandbox"),
            (
                "slipwayd pod down shop/web-0 --sandbox 8f3a --uid 5d1e --netns /run/netns/web --network pods \
                 --default-network pods",
                "detach one network of a pod",
            ),
            (
                "slipwayd pod down shop/web-0 --sandbox 8f3a --cni-bin-dir /usr/lib/cni --cni-conf-dir /etc/net.d \
                 --cache-dir /srv/cni --output json",
                "with other directories",
            ),
            (
                "slipwayd pod down shop/web-0 --sandbox 8f3a --network-plugin kubenet --pod-cidr 10.1.0.0/24 \
                 --hairpin-mode hairpin-veth --non-masquerade-cidr 10.0.0.0/8 --network-plugin-mtu 1400",
                "detach it from kubenet's bridge",
            ),
            (
                "slipwayd pod down shop/web-0 --sandbox 8f3a --network-plugin mycompany/sdn --network-plugin-dir \
                 /opt/sdn",
                "detach it by a program",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "pod status",
        summary: "check a pod, or the node",
        about: "Calls CHECK of the plugins and prints the pod's addresses. Without a pod it succeeds if the default \
                network can take one: its configuration is valid, and STATUS of its plugins succeeds.",
        arguments: OPTIONAL_POD,
        options: &[
            SANDBOX,
            UID,
            NETNS,
            NETWORK,
            PLUGINS,
            CONFIGURATIONS,
            CACHE,
            DEFAULT_NETWORK,
            NETWORK_PLUGIN,
            NETWORK_PLUGIN_DIR,
            NETWORK_PLUGIN_MTU,
            HAIRPIN_MODE,
            NON_MASQUERADE_CIDR,
            POD_CIDR,
            OUTPUT,
        ],
        exit_codes: &[],
        examples: &[
            ("slipwayd pod status shop/web-0 --sandbox 8f3a --output json", "check a pod"),
            ("slipwayd pod status --default-network pods", "check that the next pod can be set up"),
            (
                "slipwayd pod status shop/web-0 --sandbox 8f3a --uid 5d1e --netns /run/netns/web --network pods",
                "check one network of a pod",
            ),
            (
                "slipwayd pod status --cni-bin-dir /usr/lib/cni --cni-conf-dir /etc/net.d --cache-dir /srv/cni",
                "with other directories",
            ),
            (
                "slipwayd pod status --network-plugin kubenet --pod-cidr 10.1.0.0/24 --hairpin-mode hairpin-veth \
                 --non-masquerade-cidr 10.0.0.0/8 --network-plugin-mtu 1400",
                "check that kubenet is ready",
            ),
            (
                "slipwayd pod status --network-plugin mycompany/sdn --network-plugin-dir /opt/sdn",
                "check that a program is ready",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "pod list",
        summary: "list the attachments of all pods, from the cache",
        about: "",
        arguments: &[],
        options: &[CACHE, OUTPUT],
        exit_codes: &[],
        examples: &[("slipwayd pod list --cache-dir /srv/cni --output json", "as JSON")],
        reader: Reader::Table,
    },
    Command {
        name: "pod gc",
        summary: "remove what belongs to no valid pod",
        about: "Removes the cached attachments of other sandboxes, calls GC of all networks' plugins, and deletes \
                namespaces of --create-netns. No other command on pods runs concurrently.",
        arguments: &[],
        options: &[KEEP, ALL, PLUGINS, CONFIGURATIONS, CACHE, DEFAULT_NETWORK, OUTPUT],
        exit_codes: &[],
        examples: &[
            ("slipwayd pod gc --keep 8f3a --keep 91c0", "keep two sandboxes"),
            ("slipwayd pod gc --all", "keep none"),
            (
                "slipwayd pod gc --all --cni-bin-dir /usr/lib/cni --cni-conf-dir /etc/net.d --cache-dir /srv/cni \
                 --default-network pods --output json",
                "with other directories",
            ),
        ],
        reader: Reader::Table,
    },
    Command {
        name: "networks",
        summary: "show the configuration files, with their networks or the reason why they are skipped",
        about: "",
        arguments: &[],
        options: &[WATCH, PLUGINS, CONFIGURATIONS, CACHE, DEFAULT_NETWORK, OUTPUT],
        exit_codes: &[],
        examples: &[
            ("slipwayd networks --watch", "print them again after each change, until a signal"),
            (
                "slipwayd networks --cni-bin-dir /usr/lib/cni --cni-conf-dir /etc/net.d --cache-dir /srv/cni \
                 --default-network pods --output json",
                "with other directories, for a program",
            ),
        ],
        reader: Reader::Table,
    },
    slipway_cli::completions(
        "`cargo xtask install --share-dir` installs them for all three shells.",
        &[("slipwayd completions bash", "to be read by `source <(slipwayd completions bash)`")],
    ),
    slipway_cli::manual(&[
        ("slipwayd manual /usr/local/share", "for a package"),
        ("slipwayd manual /usr/local/share --remove", "remove them"),
    ]),
    slipway_cli::version(&[("slipwayd version --output json", "for a program")]),
    slipway_cli::help(&[("slipwayd help pod up", "the same as `slipwayd pod up --help`")]),
];

/// The program.
pub(crate) static PROGRAM: Program = Program {
    name: "slipwayd",
    version: env!("CARGO_PKG_VERSION"),
    summary: "the node's agent",
    about: || {
        "`slipwayd run` keeps a node in the network of a Kubernetes cluster. The other commands attach pods to several \
         networks together, by CNI plugins or a network plugin of kubelet, and detach them; each does its work and \
         ends."
            .to_owned()
    },
    commands: COMMANDS,
    environment: &[
        (
            "SLIPWAY_LOG",
            "the level of the log on standard error: error, warn (default), info, debug, trace, or levels by module",
        ),
        ("NODE_NAME", "the name of this node, for `slipwayd run`"),
        ("KUBECONFIG", "how to reach the API server, for `slipwayd run`"),
        ("NO_COLOR", "`slipwayd top` uses no colours"),
        ("TERM", "the terminal; with `dumb`, `slipwayd top` prints tables"),
        ("CNI_PATH", "the plugin directories without --cni-bin-dir, with colons between them"),
        ("CNI_ARGS", "further arguments for the plugins, KEY=VALUE;KEY=VALUE"),
    ],
    files: &[
        ("/opt/cni/bin", "the plugins"),
        ("/etc/cni/net.d", "the networks"),
        ("/var/lib/cni", "the cache of attachments, and the locks of sandboxes"),
        ("/run/slipway/subnet.json", "the subnets of this node's pods, of `slipwayd run`"),
        ("/run/slipway/wireguard.key", "this node's private key, of `slipwayd run --encrypt wireguard`"),
        ("/run/slipway/slipwayd.lock", "locked by `slipwayd run`: one agent per node"),
        ("/run/slipway/slipwayd.sock", "the socket that `slipwayd status` and `top` read from"),
        ("/run/slipway/reports.sock", "the socket to which plugins report their calls"),
        ("/run/netns", "the namespaces of --create-netns, as slipwayd-SANDBOX"),
    ],
    words: |name| if name == "NETWORK-PLUGIN" { vec!["cni", "kubenet"] } else { Vec::new() },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_manual_and_completions_have_everything() {
        slipway_cli::checks::assert_complete(&PROGRAM);
    }
}
