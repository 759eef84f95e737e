// SPDX-License-Identifier: GPL-2.0-or-later

//! Objects for the API server: pods with the test's web server, the controllers that create them, and Services.

use serde_json::{Value, json};

use crate::image::{DRAIN, WEB};

/// The namespace of all objects that tests create.
pub const NAMESPACE: &str = "/api/v1/namespaces/default";

/// The port of the web server in its container.
pub const WEB_PORT: u16 = 80;

/// A published port: the protocol (`TCP` or `UDP`), the node's port, the container's port.
pub type HostPort = (&'static str, u16, u16);

/// The path of the collection in which an object is created.
pub fn collection(object: &Value) -> String {
    let plural = match object["kind"].as_str() {
        Some("Pod") => "pods",
        Some("Service") => "services",
        Some("ServiceAccount") => "serviceaccounts",
        Some("Deployment") => "deployments",
        Some("DaemonSet") => "daemonsets",
        Some("ClusterRole") => "clusterroles",
        Some("ClusterRoleBinding") => "clusterrolebindings",
        other => panic!("objects of kind {other:?} are not used"),
    };
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let root = if version.contains('/') { "apis" } else { "api" };
    if plural.starts_with("cluster") {
        return format!("/{root}/{version}/{plural}");
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    format!("/{root}/{version}/namespaces/{namespace}/{plural}")
}

pub fn path(object: &Value) -> String {
    format!("{}/{}", collection(object), object["metadata"]["name"].as_str().unwrap_or_default())
}

/// The specification of a pod with the web server, which answers with the pod's name.
pub fn web(ports: &[HostPort]) -> Value {
    let ports: Vec<Value> = ports
        .iter()
        .map(|(protocol, host, container)| {
            json!({ "protocol": protocol, "hostPort": host, "containerPort": container })
        })
        .collect();
    json!({
        // The cluster has no name server.
        "dnsPolicy": "Default",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "web", "image": WEB, "imagePullPolicy": "Never", "ports": ports,
            "env": [{ "name": "WHO", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
        }],
    })
}

pub fn pod(app: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": app } }, "spec": spec,
    })
}

/// The specification of a pod that is ready when its web server answers, and stays ready on a busy machine. By default
/// a probe has one second, within which possibly no pod of an app answers, and its Service would then refuse
/// connections.
fn ready_with_answer(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["containers"][0]["readinessProbe"] = json!({
        "httpGet": { "path": "/cgi-bin/who", "port": WEB_PORT }, "periodSeconds": 1, "timeoutSeconds": 15,
    });
    spec
}

/// A Deployment. During an update, each old pod stays until a new one is ready, and keeps answering until the
/// kube-proxies have removed it from their rules.
pub fn deployment(app: &str, replicas: usize, spec: &Value) -> Value {
    let mut spec = ready_with_answer(spec);
    spec["containers"][0]["lifecycle"] =
        json!({ "preStop": { "httpGet": { "path": "/cgi-bin/drain", "port": WEB_PORT } } });
    spec["terminationGracePeriodSeconds"] = (DRAIN.as_secs() + 2).into();
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": app },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": app } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
            "template": { "metadata": { "labels": { "app": app } }, "spec": spec },
        },
    })
}

/// A DaemonSet. Two of its pods never run on a node at once, because they have the same hostPorts. A pod with a changed
/// template only replaces one that a test deletes: the controller of Kubernetes 1.20 counts a terminating pod as
/// available, and might delete two at once.
pub fn daemon_set(app: &str, spec: &Value) -> Value {
    let spec = ready_with_answer(spec);
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": app },
        "spec": {
            "selector": { "matchLabels": { "app": app } },
            "updateStrategy": { "type": "OnDelete" },
            "template": { "metadata": { "labels": { "app": app } }, "spec": spec },
        },
    })
}

/// A Service of type NodePort with an address of each family.
pub fn service(app: &str, port: u16, node_port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": app },
        "spec": {
            "type": "NodePort", "ipFamilyPolicy": "PreferDualStack", "selector": { "app": app },
            "ports": [{ "protocol": "TCP", "port": port, "targetPort": WEB_PORT, "nodePort": node_port }],
        },
    })
}

/// A patch of a Deployment or DaemonSet that replaces all of its pods.
pub fn update(version: &str) -> Value {
    json!({ "spec": { "template": { "metadata": { "annotations": { "test/version": version } } } } })
}
