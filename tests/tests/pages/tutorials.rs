// SPDX-License-Identifier: GPL-2.0-or-later

//! The tutorials, each followed on a fresh node. The scene imitates programs that the test machine lacks (crictl,
//! kubectl); see [`Reader::plays`].

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slipway_tests::{
    API_SERVER, ApiServer, Attach, Cluster, ClusterNode, Daemon, Proto, api_server_programs, pages,
    record_skip, slipwayd, until,
};

use crate::node::{called, with_reference};
use crate::reader::Reader;
use crate::world::{NETWORKS, PLUGINS, Web, World};

/// The ID of a sandbox as container runtimes generate it.
const SANDBOX: &str = "3f29c1b07de14f5b9a6c2f61c8b4d7e05a9be1d2f3c4b5a69788796a5b4c3d2e";

/// Serves empty documents until the test process ends.
pub(crate) fn serve_http(web: &Web) {
    let listener = web.pod.bind(|| TcpListener::bind("[::]:80")).expect("a listener");
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
}

/// The list that a page shows.
fn list_of(page: &str) -> Value {
    let blocks = pages::blocks(page);
    let list = blocks
        .iter()
        .find(|block| block.language == "json" && !block.words.iter().any(|word| word.contains('=')));
    serde_json::from_str(&list.expect("a configuration").text()).expect("JSON")
}

pub(crate) fn containerd(page: &mut Reader) {
    let mut world = World::bare();
    world.node.cmd(&format!("rm {NETWORKS}/10-pods.conflist"));
    world.node.cmd("/opt/sbin/slipway install");
    page.types(&world.node, "slipway check-node");
    world.list = list_of("docs/tutorials/containerd.md");
    world.node.write("/root/10-slipway.conflist", world.list.to_string());
    page.types(&world.node, "cp /root/10-slipway.conflist");
    page.types(&world.node, "mv /etc/cni/net.d/");
    page.plays("crictl run");
    let web = world.pod(SANDBOX);
    serve_http(&web);
    for begin in ["curl", "slipway ports", "nft list map", "slipway explain"] {
        page.types(&world.node, begin);
    }
    page.plays("crictl rmp");
    world.delete(&web);
    page.types(&world.node, "slipway ports");
}

pub(crate) fn kubernetes(page: &mut Reader) {
    let world = World::bare();
    page.plays("kubectl drain");
    world.node.cmd("/opt/sbin/slipway install");
    page.types(&world.node, "slipway check-node");
    let settings = pages::file("docs/tutorials/kubernetes.md", "/etc/cni/slipway.json");
    world.node.write("/etc/cni/slipway.json", settings);
    page.plays("kubectl uncordon");
    page.plays("kubectl run");
    let web = world.pod(SANDBOX);
    serve_http(&web);
    // The route that the cluster would have to the other node's pods.
    world.node.cmd(&format!("ip route add 10.244.2.0/24 via {}", world.client.v4));
    for begin in ["curl", "slipway ports", "slipway explain"] {
        page.types(&world.node, begin);
    }
    let late = world.node.pod("late");
    let refused = world.network().add(&Attach::new(&late).port(Proto::Tcp, 8080, 80));
    let refused = refused.expect_err("the port is taken").error.msg;
    let blocks = pages::blocks("docs/tutorials/kubernetes.md");
    let shown = blocks.iter().find(|block| block.language == "text").expect("the message").text();
    let (begin, end) = shown.trim_end().split_once('…').expect("a gap");
    assert!(refused.starts_with(begin) && refused.ends_with(end), "{refused}");
}

pub(crate) fn from_the_reference(page: &mut Reader) {
    let Some(mut world) = with_reference("pages::tutorial_from_the_reference") else { return page.leaves() };
    let ipam = &mut world.list["plugins"][0]["ipam"];
    ipam["ranges"] = json!([ipam["ranges"][0]]);
    let pod = world.node.pod("web1");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    let network = world.network();
    network.remember(&attach, called(&world, &network, "ADD", &attach, Value::Null));
    network.write_cache(&attach);
    let web = Web { pod, attach, server: None };
    serve_http(&web);
    world.node.cmd("cp -L /opt/sbin/slipway /root/slipway");
    for begin in [
        "iptables -t nat -S",
        "cd /root",
        "slipway ports",
        "slipway migrate",
        "slipway migrate",
        "slipway ports",
        "curl",
    ] {
        page.types(&world.node, begin);
    }
    let settings = pages::file("docs/tutorials/from-the-reference.md", "/etc/cni/slipway.json");
    world.node.write("/etc/cni/slipway.json", settings);
    for begin in ["slipway migrate", "cp -L", "slipway uninstall", "curl"] {
        page.types(&world.node, begin);
    }
    assert!(world.node.list(PLUGINS).contains(&"portmap".to_owned()));
}

/// Two nodes with an API server. The agents run as programs on the nodes instead of in pods, with the options of the
/// DaemonSet.
pub(crate) fn cluster(page: &mut Reader) {
    let Some(programs) = api_server_programs() else {
        record_skip("pages::tutorial_cluster", API_SERVER);
        return page.leaves();
    };
    let cluster = Cluster::without_pod_routes(2, |node| prepare(node));
    let node = &cluster.nodes[0];
    page.types_in(node, "/root", "slipwayd render");
    page.plays("cp target/dist");
    page.plays("podman build");
    let server = ApiServer::start(&programs, &cluster.control);
    server.wait();
    page.plays("kubectl apply");
    let agents: Vec<Daemon> = cluster.nodes.iter().map(|node| join(&server, node)).collect();
    page.plays("kubectl --namespace kube-system rollout status");
    page.plays("kubectl get nodes");
    until(Duration::from_secs(60), "a route", || node.cmd("ip route").contains("10.244.2.0/24"));
    until(Duration::from_secs(60), "a ready node", || {
        node.try_cmd("/opt/sbin/slipwayd status").stdout.contains("ready         yes")
    });
    for begin in ["slipwayd status", "ip route show", "cat", "ip route flush", "sleep", "ip route show"] {
        page.types(node, begin);
    }
    assert!(agents.iter().all(Daemon::runs));
}

/// A node with the plugins, and with its own folders in place of the machine's.
fn prepare(node: &slipway_tests::Node) {
    node.own_etc();
    for folder in ["/opt", "/root"] {
        node.own_folder(folder);
    }
    node.cmd(&format!("mkdir -p /opt/sbin {PLUGINS} {NETWORKS} /run/kube"));
    node.run(|| {
        for (program, name) in [(slipwayd(), "slipwayd"), (slipway_tests::slipway(), "slipway")] {
            std::os::unix::fs::symlink(program, format!("/opt/sbin/{name}")).expect("link a program");
        }
    });
    node.cmd("/opt/sbin/slipway install");
}

/// Registers the node as kubelet and the controllers would, and starts its agent.
fn join(server: &ApiServer<'_>, node: &ClusterNode) -> Daemon {
    let (name, cidr) = (format!("node-{}", node.number), format!("10.244.{}.0/24", node.number));
    server.create(
        "/api/v1/nodes",
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
            "status": { "addresses": [{ "type": "InternalIP", "address": node.addresses[0] }] },
        }),
    );
    node.write("/run/kube/config", server.kubeconfig());
    let options = ["--cluster-cidr", "10.244.0.0/16", "--service-cidr", "10.96.0.0/12"];
    let words = ["run", "--node-name", &name, "--kubeconfig", "/run/kube/config"];
    node.daemon(slipwayd(), &[&words[..], &options].concat(), "/run/slipwayd.log")
}
