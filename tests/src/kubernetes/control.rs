// SPDX-License-Identifier: GPL-2.0-or-later

//! The control plane next to the API server: controllers and scheduler, and the users of all components.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::{POD_CIDRS, SERVICE_CIDRS};
use crate::cluster::Member;
use crate::daemon::Daemon;
use crate::kube::ApiServer;
use crate::plugin::slipwayd;

/// The logs of the two programs, as the control plane's namespace sees them.
pub(super) const LOGS: [&str; 2] = ["/run/kube/kube-controller-manager.log", "/run/kube/kube-scheduler.log"];

/// The token of kube-proxy on all nodes.
pub(super) const PROXY_TOKEN: &str = "kube-proxy";
const CONTROLLERS_TOKEN: &str = "kube-controller-manager";
const SCHEDULER_TOKEN: &str = "kube-scheduler";

/// The token of a node's kubelet.
pub(super) fn kubelet_token(node: &str) -> String {
    format!("kubelet-{node}")
}

/// The name of a node, by its number from 1.
pub(super) fn node_name(number: u8) -> String {
    format!("node-{number}")
}

/// The users of a cluster: lines of the API server's file of tokens.
pub(super) fn tokens(nodes: u8) -> String {
    // The controllers' own accounts (--use-service-account-credentials) need an admission plugin that is off here; with
    // the rights of this group they need none.
    let mut lines = format!(
        "{CONTROLLERS_TOKEN},system:kube-controller-manager,2,system:masters\n\
         {SCHEDULER_TOKEN},system:kube-scheduler,3\n\
         {PROXY_TOKEN},system:kube-proxy,4\n"
    );
    for name in (1..=nodes).map(node_name) {
        lines += &format!("{},system:node:{name},{name},system:nodes\n", kubelet_token(&name));
    }
    lines
}

/// Starts both programs.
pub(super) fn start(programs: &Path, server: &ApiServer<'_>, control: &Member) -> [Daemon; 2] {
    let config = |token: &str| {
        let path = format!("/run/kube/{token}.conf");
        let content = server.kubeconfig_of(&json!({ "token": token }));
        control.run(|| std::fs::write(&path, content)).expect("write a kubeconfig");
        format!("--kubeconfig={path}")
    };
    let controllers = [
        config(CONTROLLERS_TOKEN),
        "--leader-elect=false".to_owned(),
        "--allocate-node-cidrs".to_owned(),
        format!("--cluster-cidr={POD_CIDRS}"),
        "--node-cidr-mask-size-ipv4=24".to_owned(),
        "--node-cidr-mask-size-ipv6=64".to_owned(),
        format!("--service-cluster-ip-range={SERVICE_CIDRS}"),
        "--configure-cloud-routes=false".to_owned(),
        "--feature-gates=IPv6DualStack=true".to_owned(),
    ];
    let scheduler = [config(SCHEDULER_TOKEN), "--leader-elect=false".to_owned()];
    let start = |name: &str, words: &[String], log: &str| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        control.daemon(programs.join(name), &words, log)
    };
    [start("kube-controller-manager", &controllers, LOGS[0]), start("kube-scheduler", &scheduler, LOGS[1])]
}

/// Creates the service account of slipwayd with its rights, as `slipwayd render` prints them; returns its token.
pub(super) fn agent_account(server: &ApiServer<'_>) -> String {
    let mut command = Command::new(slipwayd());
    command.args(["render", "--image", "registry.example/slipway:1", "--cluster-cidr", POD_CIDRS]);
    let output = command.output().expect("run slipwayd render");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let manifests = String::from_utf8(output.stdout).expect("UTF-8");
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for (kind, collection) in [
        ("ServiceAccount", "/api/v1/namespaces/kube-system/serviceaccounts".to_owned()),
        ("ClusterRole", format!("{rbac}/clusterroles")),
        ("ClusterRoleBinding", format!("{rbac}/clusterrolebindings")),
    ] {
        // A line of its own, without indentation: the object's kind, not that of a reference in it.
        let is_kind = |text: &&str| text.lines().any(|line| line == format!("kind: {kind}"));
        let object = manifests.split("---\n").find(is_kind);
        server.create_yaml(&collection, object.unwrap_or_else(|| panic!("no {kind}:\n{manifests}")));
    }
    server.token("kube-system", "slipwayd")
}
