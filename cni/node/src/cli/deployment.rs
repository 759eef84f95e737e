// SPDX-License-Identifier: GPL-3.0-or-later

//! The table's entry of `slipwayd render`.

use slipway_cli::{Argument, Command, Opt, Reader, Value};

use super::table::{
    CLUSTER_CIDR, CRI_SOCKET, ENCRYPT, GC_GRACE, LOG_FORMAT, NODE_CIDR, PATH_MTU, SERVICE_CIDR, TUNNEL,
    VXLAN_PORT, VXLAN_VNI, WIREGUARD_PORT,
};

const IMAGE: Opt = Opt::value("--image", Value::Text("IMAGE"), "the container image, needed for manifests");
const NAMESPACE: Opt =
    Opt::value("--namespace", Value::Text("NAME"), "the namespace of the pods (kube-system)");
const STARTUP_TAINT: Opt = Opt::value(
    "--startup-taint",
    Value::Text("KEY[:EFFECT]"),
    "a taint of new nodes that the agent removes when the network stands",
)
.many();
const OUTPUT_DIR: Opt = Opt::value("--output-dir", Value::Directory, "write all files into this directory");

pub(super) const RENDER: Command = Command {
    name: "render",
    summary: "print the files of a deployment in a cluster",
    about: "Prints the objects of Kubernetes (service account, rights, DaemonSet) as YAML, or another file: the \
            container file, a kustomize base, a configuration for kind, or a systemd unit for nodes without a \
            DaemonSet. Options of `slipwayd run` become arguments of the agent. Nothing is sent to a cluster.",
    arguments: &[Argument::new(
        Value::OneOf(&["manifests", "containerfile", "kustomization", "kind", "systemd"]),
        "the file to print; without it the manifests",
    )
    .optional()],
    options: &[
        IMAGE,
        NAMESPACE,
        CLUSTER_CIDR,
        SERVICE_CIDR,
        NODE_CIDR,
        TUNNEL,
        VXLAN_VNI,
        VXLAN_PORT,
        ENCRYPT,
        WIREGUARD_PORT,
        PATH_MTU,
        STARTUP_TAINT,
        CRI_SOCKET,
        GC_GRACE,
        LOG_FORMAT,
        OUTPUT_DIR,
    ],
    exit_codes: &[],
    examples: &[
        (
            "slipwayd render --image registry.example/slipway:1 --cluster-cidr 10.244.0.0/16 --service-cidr \
             10.96.0.0/12",
            "the manifests, for `kubectl apply --filename -`",
        ),
        (
            "slipwayd render --image registry.example/slipway:1 --namespace network --cluster-cidr 10.244.0.0/16 \
             --node-cidr 192.168.50.0/24 --tunnel always --vxlan-vni 7 --vxlan-port 8472 --startup-taint \
             node.example/starting:NoSchedule --output-dir deploy",
            "all files, with a kustomize base",
        ),
        (
            "slipwayd render --image registry.example/slipway:1 --cri-socket /run/k3s/containerd/containerd.sock \
             --gc-grace 20m --log-format json",
            "for k3s, with a log for programs",
        ),
        (
            "slipwayd render systemd --cluster-cidr 10.244.0.0/16 --encrypt wireguard --wireguard-port 51821 --path-mtu \
             1400",
            "a unit whose agent encrypts",
        ),
        ("slipwayd render kind --cluster-cidr 10.244.0.0/16", "a cluster on this machine, for a trial"),
    ],
    reader: Reader::Table,
};
