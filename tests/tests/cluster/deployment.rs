// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipwayd render`: the API server accepts the objects as they are, and their pods have exactly the rights that they
//! need.

use std::path::Path;

use serde_json::{Value, json};
use slipway_tests::kubernetes::objects;
use slipway_tests::{
    API_SERVER, ApiServer, Attach, ClusterNode, Container, Daemon, Node, Proto, api_server_programs, at,
    capabilities, confined, daemon_set, first_process, pod_of, render, skip, slipway,
};
use slipwayd::cluster::desired::TunnelMode;

use crate::repairs::until;
use crate::{CONFLIST, Lab, all_reach_each_other};

const NODES: &str = "/api/v1/nodes";
pub(crate) const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/slipwayd";
const LOG: &str = "/run/slipwayd.log";
const TAINT: &str = "node.example/starting";
/// The version of the API server that the test uses.
const VERSION: &str = "1.20";

pub(crate) fn rendered(file: &str) -> String {
    let taint = format!("{TAINT}:NoSchedule");
    let more = ["--tunnel", "always", "--startup-taint", &taint, "--kubernetes-version", VERSION];
    let image = ["--image", "registry.example/slipway:1", "--cluster-cidr", "10.244.0.0/16"];
    render(file, &[&image[..], &more].concat())
}

/// Collects the paths of fields that were sent and not returned.
fn lost(sent: &Value, returned: &Value, path: &str, found: &mut Vec<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match (sent, returned) {
        (Value::Object(sent), _) => {
            for (name, value) in sent {
                lost(value, &returned[name], &below(name), found);
            }
        }
        (Value::Array(sent), Value::Array(back)) if sent.len() == back.len() => {
            for (index, (one, other)) in sent.iter().zip(back).enumerate() {
                lost(one, other, &below(&index.to_string()), found);
            }
        }
        _ if sent == returned => {}
        _ => found.push(path.to_owned()),
    }
    // An object of which nothing was returned counts as a single loss.
    if returned.is_null() && sent.is_object() {
        found.retain(|other| !other.starts_with(&format!("{path}.")));
        found.push(path.to_owned());
    }
}

#[test]
fn a_lost_field_is_found() {
    let sent = json!({ "a": { "b": [1, { "c": "d" }], "e": { "f": 1 } } });
    let losses = |returned: Value| {
        let mut found = Vec::new();
        lost(&sent, &returned, "", &mut found);
        found
    };
    assert_eq!(losses(json!({ "a": { "b": [1, { "c": "d", "more": 1 }], "e": { "f": 1 } } })), [""; 0]);
    assert_eq!(losses(json!({ "a": { "b": [1, {}] } })), ["a.b.1.c", "a.e"]);
    assert_eq!(losses(json!({ "a": { "b": [1], "e": { "f": 2 } } })), ["a.b", "a.e.f"]);
}

/// Creates each object, and checks that the server stores all of its fields.
pub(crate) fn create(server: &ApiServer<'_>, manifests: &str) {
    let mut all_lost = Vec::new();
    for text in manifests.split("---\n") {
        let object: Value = serde_saphyr::from_str(text).expect("YAML");
        let collection = objects::collection(&object);
        server.create_yaml(&collection, text);
        let name = object["metadata"]["name"].as_str().expect("a name");
        lost(&object, &server.get(&format!("{collection}/{name}")), "", &mut all_lost);
    }
    assert_eq!(all_lost, [""; 0]);
}

/// Creates the Node object as a kubelet registers it, with its pod CIDR and taints.
fn register(server: &ApiServer<'_>, node: &ClusterNode) {
    let (name, cidr) = (format!("node-{}", node.number), format!("10.244.{}.0/24", node.number));
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "spec": { "podCIDR": cidr, "podCIDRs": [cidr], "taints": taints() },
        "status": { "addresses": [{ "type": "InternalIP", "address": node.addresses[0] }] },
    });
    server.create(NODES, &node);
}

/// The startup taint and others: one with the same key and another effect, and one of another program.
fn taints() -> Value {
    json!([
        { "key": "other.example/kept", "effect": "NoExecute", "value": "yes" },
        { "key": TAINT, "effect": "NoSchedule" },
        { "key": TAINT, "effect": "PreferNoSchedule" },
    ])
}

/// The keys and effects of a Node's taints.
fn shown_taints(server: &ApiServer<'_>, node: u8) -> Vec<String> {
    let object = server.get(&format!("{NODES}/node-{node}"));
    let taints = object["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let text = |taint: &Value| {
        format!("{}:{}", taint["key"].as_str().expect("a key"), taint["effect"].as_str().expect("an effect"))
    };
    taints.iter().map(text).filter(|taint| !taint.starts_with("node.kubernetes.io/")).collect()
}

/// The agents' pods on all nodes.
struct Pods<'a> {
    lab: &'a Lab,
    server: &'a ApiServer<'a>,
    pod: &'a Value,
    containerfile: String,
    token: String,
}

impl Pods<'_> {
    fn start(&self, number: u8) -> Daemon {
        let node = self.lab.node(number);
        let container = Container::new(node, Path::new("/"), &self.containerfile, self.pod, false);
        let (host, port) = self.server.url.trim_start_matches("https://").rsplit_once(':').expect("a port");
        container.account((host, port), &self.token, &self.server.certificate()).start(LOG)
    }

    fn log(&self, number: u8) -> String {
        self.lab.node(number).read(LOG).unwrap_or_default()
    }

    /// Asks the server whether the account has a right.
    fn may(&self, verb: &str, resource: &str, subresource: &str) -> bool {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": "system:serviceaccount:kube-system:slipwayd",
                "resourceAttributes": {
                    "verb": verb, "resource": resource, "subresource": subresource,
                    "namespace": if resource == "events" { "default" } else { "" },
                },
            },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        self.server.create(path, &review)["status"]["allowed"] == true
    }
}

#[test]
fn the_rendered_objects_make_the_network_and_need_each_of_their_rights() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let lab = Lab::new(2, TunnelMode::Always);
    let server = ApiServer::start_with_roles(&programs, &lab.cluster.control);
    server.wait();
    until("the namespace", || server.has("/api/v1/namespaces/kube-system"));
    let manifests = rendered("manifests");
    create(&server, &manifests);
    let daemon_set = daemon_set(&manifests);
    let token = server.token("kube-system", "slipwayd");
    let pods = Pods {
        lab: &lab,
        server: &server,
        pod: pod_of(&daemon_set),
        containerfile: rendered("containerfile"),
        token,
    };
    the_pods_make_the_network(&pods);
    a_trouble_is_an_event(&pods);
    each_right_is_needed(&pods);
}

fn the_pods_make_the_network(pods: &Pods<'_>) {
    let (lab, server) = (pods.lab, pods.server);
    for node in &lab.cluster.nodes {
        node.sysctl("net/ipv4/ip_forward", "0");
        register(server, node);
    }
    let agents: Vec<Daemon> = [1, 2].map(|number| pods.start(number)).into();
    for number in [1, 2] {
        let other = format!("10.244.{}.0/24", 3 - number);
        until("routes", || lab.node(number).cmd("ip route show").contains(&other));
        until("the configuration", || lab.node(number).read(CONFLIST).is_some());
        assert_eq!(lab.node(number).sysctl_get("net/ipv4/ip_forward").as_deref(), Some("1"));
        let kept = ["other.example/kept:NoExecute".to_owned(), format!("{TAINT}:PreferNoSchedule")];
        until("the taints", || shown_taints(server, number) == kept);
    }
    all_reach_each_other(&[1, 2].map(|number| (number, lab.pod(number, "web"))).into());
    for number in [1, 2] {
        let log = pods.log(number);
        assert!(
            !log.contains("forbidden") && log.contains(&format!("removed the taint {TAINT}:NoSchedule")),
            "{log}"
        );
    }
    // A patch with an outdated version is refused, so a taint that was added in between is not lost.
    let old = json!({ "metadata": { "resourceVersion": "1" }, "spec": { "taints": [] } });
    let reply = server.refused_patch(&format!("{NODES}/node-1"), &old);
    assert!(reply.contains("the object has been modified"), "{reply}");
    // The agent removes the taint only once. If the taint returns, it stays until the agent starts again.
    server.patch(&format!("{NODES}/node-1"), &json!({ "spec": { "taints": taints() } }));
    let tainted = shown_taints(server, 1);
    std::thread::sleep(slipway_tests::within(std::time::Duration::from_secs(1)));
    assert_eq!((shown_taints(server, 1), tainted.len()), (tainted, 3));
    assert!(agents.iter().all(Daemon::runs));
}

/// If a Node has the pod CIDR of an older Node, the agent of the oldest one reports it.
fn a_trouble_is_an_event(pods: &Pods<'_>) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-7" },
        "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"] },
        "status": { "addresses": [{ "type": "InternalIP", "address": "192.168.50.77" }] },
    });
    pods.server.create(NODES, &node);
    let _agents = [1, 2].map(|number| pods.start(number));
    let events = |reason: &str| {
        let all = pods.server.get("/api/v1/namespaces/default/events")["items"].clone();
        let all = all.as_array().expect("a list").clone().into_iter();
        let ours =
            all.filter(|event| event["source"]["component"] == "slipwayd" && event["reason"] == reason);
        ours.collect::<Vec<Value>>()
    };
    until("the Event", || !events("Overlap").is_empty());
    let seen = events("Overlap");
    let [event] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(event["involvedObject"]["name"], "node-7");
    let expected = "node node-7: pod CIDR 10.244.1.0/24 overlaps pod CIDR 10.244.1.0/24 of node node-1";
    assert_eq!((&event["message"], &event["source"]["host"]), (&json!(expected), &json!("node-1")));
    // The plugins are not installed here, so each agent reports its own node.
    let of = |name: &str| {
        let is_of =
            |event: &Value| event["involvedObject"]["name"] == name && event["source"]["host"] == name;
        events("RepairFailed").iter().any(is_of)
    };
    until("the failed repairs", || of("node-1") && of("node-2"));
}

fn each_right_is_needed(pods: &Pods<'_>) {
    let rules = pods.server.get(ROLE)["rules"].clone();
    let mut tried = Vec::new();
    for (index, rule) in rules.as_array().expect("rules").iter().enumerate() {
        let resource = rule["resources"][0].as_str().expect("a resource");
        let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        for verb in rule["verbs"].as_array().expect("verbs") {
            let mut fewer = rules.clone();
            fewer[index]["verbs"].as_array_mut().expect("verbs").retain(|other| other != verb);
            // A rule without verbs is not valid.
            fewer.as_array_mut().expect("rules").retain(|rule| rule["verbs"] != json!([]));
            let verb = verb.as_str().expect("a verb");
            pods.server.patch(ROLE, &json!({ "rules": fewer }));
            until("the role", || !pods.may(verb, plural, subresource));
            // The agent's work is undone, so that it has to use all of its rights again.
            let gone = json!({ "slipway.internal/vxlan-mac": null, "slipway.internal/vxlan-port": null });
            let node = json!({ "metadata": { "annotations": gone }, "spec": { "taints": taints() } });
            pods.server.patch(&format!("{NODES}/node-1"), &node);
            let agent = pods.start(1);
            let refused = format!("cannot {verb} resource \"{resource}\"");
            until(&refused, || {
                // Quotes are escaped in some lines.
                let log = pods.log(1).replace('\\', "");
                log.contains("forbidden") && log.contains(&refused)
            });
            drop(agent);
            pods.server.patch(ROLE, &json!({ "rules": rules }));
            until("the role", || pods.may(verb, plural, subresource));
            tried.push(format!("{verb} {resource}"));
        }
    }
    tried.sort();
    let all =
        ["create events", "get nodes", "list nodes", "patch nodes", "patch nodes/status", "watch nodes"];
    assert_eq!(tried, all);
}

/// The init container installs the plugins in a directory that belongs to a user, as after unpacking an archive, and
/// keeps the files that it replaces.
#[test]
fn the_init_container_installs_the_plugins() {
    let lab = Lab::new(1, TunnelMode::Never);
    let node = lab.node(1);
    node.cmd("mkdir -p /run/bin");
    node.write("/run/bin/bridge", "#!/bin/sh\n");
    node.cmd("chown -R 1001:1001 /run/bin");
    let daemon_set = daemon_set(&rendered("manifests"));
    let install = Container::new(node, Path::new("/"), &rendered("containerfile"), pod_of(&daemon_set), true);
    let refused = install.run(Some("DAC_OVERRIDE"));
    assert!(refused.code != Some(0) && refused.stderr.contains("Permission denied"), "{refused}");
    assert_eq!(node.list("/run/bin"), ["bridge"]);
    let done = install.run(None);
    assert_eq!(done.code, Some(0), "{done}");
    assert_eq!(node.read("/run/bin/.slipway-replaced/bridge").as_deref(), Some("#!/bin/sh\n"));
    assert!(node.cmd("/run/bin/slipway plugins --names").contains("portmap"));
    assert_eq!(node.run(|| std::fs::read_link("/run/bin/bridge").ok()), Some("slipway".into()));
}

/// Repairs run `slipway restore` in the mount namespace of process 1, with nftables or with legacy iptables.
#[test]
fn each_capability_of_the_agent_is_needed() {
    let daemon_set = daemon_set(&rendered("manifests"));
    let all = capabilities(&pod_of(&daemon_set)["containers"][0]);
    for variant in ["nft", "legacy"] {
        let node = Node::without_bridge_netfilter();
        if node.try_cmd(&format!("iptables-{variant} -t nat -S")).code != Some(0) {
            skip!("legacy iptables");
        }
        for family in ["iptables", "ip6tables"] {
            node.cmd(&format!("{family}-{variant} -t mangle -N KUBE-IPTABLES-HINT"));
        }
        let host = node.host("client");
        let backend = if variant == "nft" { "nftables" } else { "iptables" };
        let network = node.network(json!({ "name": "pods", "plugins": [
            {
                "type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
                "ipam": { "type": "host-local", "subnet": "10.88.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }] },
            },
            { "type": "portmap", "backend": backend, "capabilities": { "portMappings": true } },
        ]}));
        let pod = node.pod("web");
        let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
        network.add(&attach).expect("ADD");
        network.write_cache(&attach);
        let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
        let (_first, pid) = first_process(&node);
        let restore = |capabilities: &[String]| {
            let enter = ["nsenter".to_owned(), format!("--mount=/proc/{pid}/ns/mnt"), "--".to_owned()];
            let call = [slipway().display().to_string(), "restore".to_owned()];
            let mut command = std::process::Command::new("unshare");
            command.arg("--mount").args(confined(capabilities)).args(enter).args(call);
            node.exec(command, b"")
        };
        let flush = || match variant {
            "nft" => drop(node.cmd("nft flush ruleset")),
            _ => drop(node.cmd("iptables-legacy -t nat -F")),
        };
        // Only before Linux 5.11 is the memory of BPF maps limited.
        let needed = all.iter().filter(|name| match name.as_str() {
            "SYS_RESOURCE" => false,
            "NET_RAW" => variant == "legacy",
            _ => true,
        });
        for name in needed {
            flush();
            let kept: Vec<String> = all.iter().filter(|other| *other != name).cloned().collect();
            let output = restore(&kept);
            assert_ne!(output.code, Some(0), "{variant} without {name}: {output}");
        }
        let output = restore(&all);
        assert_eq!(output.code, Some(0), "{variant}: {output}");
        host.expect(Proto::Tcp, at(host.node_v4, 8080), "web");
    }
}
