// SPDX-License-Identifier: GPL-2.0-or-later

//! The rest of the control plane: controllers and scheduler, and the users of all components.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{POD_CIDRS, SERVICE_CIDRS, objects};
use crate::cluster::Member;
use crate::container::{may_have, render};
use crate::daemon::Daemon;
use crate::image::AGENT;
use crate::kube::{ApiServer, CERTIFICATE};
use crate::pace::within;

/// The logs of the two programs, as the control plane's namespace sees them.
pub(super) const LOGS: [&str; 2] = ["/run/kube/kube-controller-manager.log", "/run/kube/kube-scheduler.log"];

/// The time after which the agents delete state that the container runtime has forgotten. It is longer than a pod
/// usually takes to start on a busy machine.
const GRACE: Duration = Duration::from_secs(40);

/// The token of kube-proxy on all nodes.
pub(super) const PROXY_TOKEN: &str = "kube-proxy";
const CONTROLLERS_TOKEN: &str = "kube-controller-manager";
const SCHEDULER_TOKEN: &str = "kube-scheduler";

pub(super) fn kubelet_token(node: &str) -> String {
    format!("kubelet-{node}")
}

pub(super) fn node_name(number: u8) -> String {
    format!("node-{number}")
}

/// The users of a cluster, as lines of the API server's token file.
pub(super) fn tokens(nodes: u8) -> String {
    // With the rights of this group, the controllers do not need separate accounts (--use-service-account-credentials).
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
        // Pods get the certificate together with their tokens.
        format!("--root-ca-file={CERTIFICATE}"),
        "--feature-gates=IPv6DualStack=true".to_owned(),
    ];
    let scheduler = [config(SCHEDULER_TOKEN), "--leader-elect=false".to_owned()];
    let start = |name: &str, words: &[String], log: &str| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        control.daemon(programs.join(name), &words, log)
    };
    [start("kube-controller-manager", &controllers, LOGS[0]), start("kube-scheduler", &scheduler, LOGS[1])]
}

/// The objects that `slipwayd render` prints for this network, without capabilities that no process on this machine can
/// have, because runc would refuse them.
pub(super) fn agent_objects(tunnel: &str) -> Vec<Value> {
    let (tunnel, services) = (format!("--tunnel={tunnel}"), format!("--service-cidr={SERVICE_CIDRS}"));
    let grace = format!("{}s", within(GRACE).as_secs());
    let version = ["--kubernetes-version", "1.20"];
    let options = ["--image", AGENT, "--cluster-cidr", POD_CIDRS, &services, &tunnel, "--gc-grace", &grace];
    let options = [&version[..], &options].concat();
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(&render("manifests", &options)).expect("YAML");
    for object in objects.iter_mut().filter(|object| object["kind"] == "DaemonSet") {
        let containers = object["spec"]["template"]["spec"]["containers"].as_array_mut();
        for container in containers.into_iter().flatten() {
            let names = container["securityContext"]["capabilities"]["add"].as_array_mut();
            names.expect("capabilities").retain(|name| name.as_str().is_none_or(may_have));
        }
    }
    objects
}

/// Creates the service account of slipwayd with its rights, as `slipwayd render` prints them, but not the DaemonSet.
/// Returns the account's token.
pub(super) fn agent_account(server: &ApiServer<'_>, tunnel: &str) -> String {
    for object in agent_objects(tunnel).iter().filter(|object| object["kind"] != "DaemonSet") {
        server.create(&objects::collection(object), object);
    }
    server.token("kube-system", "slipwayd")
}
