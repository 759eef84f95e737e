// SPDX-License-Identifier: GPL-2.0-or-later

//! containerd: pods that are started through the Container Runtime Interface, as kubelet does it, and `ctr run --cni`.

use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};
use slipway_tests::image::{self, ARCHIVE, PAUSE, WEB, expect, expect_closed};
use slipway_tests::system::{Daemon, System};
use slipway_tests::{Node, Proto, is_peer, pages, peer_fails};

use crate::agents_list::the_agents_list;
use crate::cri::{Cri, PodConfig, Port};
use crate::garbage::{a_leak, a_long_add};
use crate::state;

pub(crate) const LIST: &str = "/etc/cni/net.d/10-pods.conflist";

const CONFIGURATION: &str = "/etc/containerd/config.toml";

/// Generates each test for the containerd of each Debian suite, with the newest version of the specification that it
/// supports.
macro_rules! on {
    ($($module:ident $specification:literal: $($test:ident)*;)*) => {$(
        mod $module {
            use slipway_tests::system::unpacked;
            $(#[test]
            fn $test() {
                let suite = stringify!($module);
                let Some(packages) = unpacked(suite, "usr/bin/containerd") else {
                    slipway_tests::skip!(concat!("containerd of Debian ", stringify!($module)))
                };
                super::$test(&packages, $specification);
            })*
        }
    )*};
}

// At the time of writing, these are the versions 1.6, 1.7 and 2.1.
on! {
    bookworm "1.0.0": a_pod_and_a_restart a_crash_of_containerd a_reboot a_port_of_another_pod ctr_run a_leak
        a_long_add the_agents_list;
    trixie "1.0.0": a_pod_and_a_restart a_crash_of_containerd a_reboot a_port_of_another_pod ctr_run a_leak
        a_long_add the_agents_list;
    unstable "1.1.0": a_pod_and_a_restart a_crash_of_containerd a_reboot a_port_of_another_pod ctr_run a_leak
        a_long_add the_agents_list status;
}

pub(crate) fn list(specification: &str) -> Value {
    json!({
        "cniVersion": specification, "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.22.0.0/16"}], [{"subnet": "fd00:22::/64"}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// Writes the network configuration, starts the daemon and imports the images.
pub(crate) fn start(system: &System, list: &Value) -> Daemon {
    system.write(LIST, list.to_string());
    start_with_its_list(system)
}

/// Does the same with the network configuration that already exists.
pub(crate) fn start_with_its_list(system: &System) -> Daemon {
    system.write(CONFIGURATION, configuration(system));
    image::make(system);
    let daemon = restart(system);
    // From 2.0 on, the daemon itself would unpack images, for the snapshotter of another configuration.
    let help = system.run(&["ctr", "images", "import", "--help"]);
    let local: &[&str] = if help.contains("--local") { &["--local"] } else { &[] };
    let import = ["ctr", "--namespace", "k8s.io", "images", "import", "--snapshotter", "native"];
    system.run(&[&import, local, &[ARCHIVE]].concat());
    system.wait_for("the images", || Cri(system.space()).has_images());
    daemon
}

/// The documentation's configuration for this version of containerd, and what the test machine requires in addition.
fn configuration(system: &System) -> String {
    let [old, new] = [0, 1].map(|at| {
        let mut blocks = pages::blocks("docs/runtimes.md").into_iter();
        let shown = blocks.by_ref().filter(|block| block.value("file") == Some(CONFIGURATION)).nth(at);
        shown.expect("the page shows a configuration for both forms").text()
    });
    let knows_a_list = system.run(&["containerd", "config", "default"]).contains("bin_dirs");
    let (version, cni) = if knows_a_list { &new } else { &old }.split_once('\n').expect("two lines");
    let options =
        "disable_apparmor = true\nrestrict_oom_score_adj = true\ntolerate_missing_hugetlb_controller = true";
    let runc = "runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"";
    if knows_a_list {
        let (images, runtime) = ("io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime");
        format!(
            "{version}\n[plugins.\"{images}\"]\nsnapshotter = \"native\"\n\
             [plugins.\"{images}\".pinned_images]\nsandbox = \"{PAUSE}\"\n\
             [plugins.\"{runtime}\"]\n{options}\n[plugins.\"{runtime}\".containerd.{runc}\n{cni}"
        )
    } else {
        let cri = "io.containerd.grpc.v1.cri";
        format!(
            "{version}\n[plugins.\"{cri}\"]\nsandbox_image = \"{PAUSE}\"\n{options}\n\
             [plugins.\"{cri}\".containerd]\nsnapshotter = \"native\"\n[plugins.\"{cri}\".containerd.{runc}\n{cni}"
        )
    }
}

pub(crate) fn restart(system: &System) -> Daemon {
    let daemon = system.daemon("containerd", &["containerd"]);
    system.wait_for("containerd", || matches!(Cri(system.space()).network_trouble(), Ok(None)));
    daemon
}

pub(crate) fn pod(system: &System, name: &str, ports: &[Port]) -> PodConfig {
    PodConfig { name: name.to_owned(), attempt: 0, ports: ports.to_vec(), cgroup: system.cgroup().to_owned() }
}

pub(crate) fn tcp(host: u16) -> Port {
    Port { udp: false, host, container: 80, host_ip: "" }
}

/// Adds and deletes a pod, which creates all shared objects.
fn warm_up(system: &System) {
    let cri = Cri(system.space());
    let id = cri.run_pod(&pod(system, "first", &[tcp(8080)])).unwrap();
    cri.stop_pod(&id).unwrap();
    cri.remove_pod(&id).unwrap();
}

fn a_pod_and_a_restart(packages: &Path, specification: &str) {
    let (node, client) = Node::with_client();
    let system = System::start(&node, packages);
    let daemon = start(&system, &list(specification));
    let cri = Cri(&node);
    warm_up(&system);
    let before = state(&node);

    let udp = Port { udp: true, host: 5353, container: 53, host_ip: "192.0.2.1" };
    let web = pod(&system, "web", &[tcp(8080), udp]);
    let id = cri.run_pod(&web).unwrap();
    cri.start_web(&web, &id, "web").unwrap();
    let status = cri.pod_status(&id).unwrap();
    assert!(status.ready, "{status:?}");
    assert_eq!(status.ips.len(), 2, "one address of each family: {status:?}");
    let open = || {
        assert_eq!(expect(&client, (client.node_v4, 8080), "web"), client.v4);
        assert_eq!(expect(&client, (client.node_v6, 8080), "web"), client.v6);
        expect(&node, ([127, 0, 0, 1], 8080), "web");
        if !is_peer() {
            expect(&node, (IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), 8080), "web");
        }
    };
    open();
    {
        let name =
            node.list("/run/netns").into_iter().find(|name| name.starts_with("cni-")).expect("a namespace");
        let inside = node.namespace("web", &system.path(&format!("/run/netns/{name}")));
        let server = inside.serve(Proto::Udp, &format!("{}:53", status.ips[0]), "dns");
        client.expect(Proto::Udp, (client.node_v4, 5353), "dns");
        drop(server);
    }

    system.end(daemon, "TERM");
    open();
    let daemon = restart(&system);
    open();
    assert_eq!(cri.pod_status(&id).unwrap(), status, "the restarted daemon knows the pod");
    let other = pod(&system, "other", &[tcp(8081)]);
    let second = cri.run_pod(&other).unwrap();
    cri.start_web(&other, &second, "other").unwrap();
    assert_eq!(expect(&client, (client.node_v4, 8081), "other"), client.v4);
    open();

    cri.stop_pod(&id).unwrap();
    expect_closed(&client, (client.node_v4, 8080));
    expect_closed(&node, ([127, 0, 0, 1], 8080));
    assert!(!cri.pod_status(&id).unwrap().ready);
    assert_eq!(expect(&client, (client.node_v4, 8081), "other"), client.v4);
    cri.stop_pod(&id).expect("kubelet stops a pod more than once");
    cri.remove_pod(&id).unwrap();
    // Removing a running pod stops it.
    cri.stop_pod(&second).unwrap();
    cri.remove_pod(&second).unwrap();
    expect_closed(&client, (client.node_v4, 8081));
    assert!(cri.pods().unwrap().is_empty());
    before.assert_same(&state(&node));
    system.end(daemon, "TERM");
}

fn a_crash_of_containerd(packages: &Path, specification: &str) {
    peer_fails("the masquerade of a pod whose namespace is gone stays", || {
        let (node, client) = Node::with_client();
        let system = System::start(&node, packages);
        let daemon = start(&system, &list(specification));
        let cri = Cri(&node);
        warm_up(&system);
        let before = state(&node);
        let web = pod(&system, "web", &[tcp(8080)]);
        let id = cri.run_pod(&web).unwrap();
        cri.start_web(&web, &id, "web").unwrap();
        expect(&client, (client.node_v4, 8080), "web");
        system.end(daemon, "KILL");
        assert_eq!(
            expect(&client, (client.node_v4, 8080), "web"),
            client.v4,
            "a published port needs no running daemon"
        );
        let _daemon = restart(&system);
        // The pod's network disappears without containerd: the namespace is gone, and with it the link.
        let name =
            node.list("/run/netns").into_iter().find(|name| name.starts_with("cni-")).expect("a namespace");
        system.run(&["/bin/busybox", "umount", "-l", &format!("/run/netns/{name}")]);
        cri.stop_pod(&id).unwrap();
        cri.remove_pod(&id).unwrap();
        expect_closed(&client, (client.node_v4, 8080));
        assert!(node.reserved("pods").is_empty());
        before.assert_same(&state(&node));
    });
}

/// After a power failure, containerd finds pods without processes and namespaces, and kubelet removes them after it has
/// started new ones.
fn a_reboot(packages: &Path, specification: &str) {
    let (node, client) = Node::with_client();
    let mut system = System::start(&node, packages);
    let _daemon = start(&system, &list(specification));
    let web = pod(&system, "web", &[tcp(8080)]);
    let old = Cri(&node).run_pod(&web).unwrap();
    system.reboot();
    let _daemon = restart(&system);
    let cri = Cri(&node);
    assert!(!cri.pod_status(&old).unwrap().ready);
    assert_eq!(node.reserved("pods").len(), 2, "the old pod's addresses are on disk");
    cri.stop_pod(&old).unwrap();
    assert!(node.reserved("pods").is_empty());
    let again = PodConfig { attempt: 1, ..web };
    let new = cri.run_pod(&again).unwrap();
    cri.start_web(&again, &new, "web").unwrap();
    assert_eq!(expect(&client, (client.node_v4, 8080), "web"), client.v4);
    cri.remove_pod(&old).unwrap();
    assert_eq!(expect(&client, (client.node_v4, 8080), "web"), client.v4);
    assert_eq!(node.reserved("pods").len(), 2);
    cri.stop_pod(&new).unwrap();
    cri.remove_pod(&new).unwrap();
    assert!(node.reserved("pods").is_empty());
}

fn a_port_of_another_pod(packages: &Path, specification: &str) {
    peer_fails("the second pod gets the port, and one of the two the packets", || {
        let (node, client) = Node::with_client();
        let system = System::start(&node, packages);
        let _daemon = start(&system, &list(specification));
        let cri = Cri(&node);
        let web = pod(&system, "web", &[tcp(8080)]);
        let id = cri.run_pod(&web).unwrap();
        cri.start_web(&web, &id, "web").unwrap();
        let before = state(&node);
        let refused =
            cri.run_pod(&pod(&system, "thief", &[tcp(8081), tcp(8080)])).expect_err("8080 is taken");
        // The comment has no room for the whole ID.
        let owner = format!("host port tcp/0.0.0.0:8080 is taken by network pods, container {}", &id[..50]);
        assert!(refused.contains(&owner), "{refused}");
        before.assert_same(&state(&node));
        assert_eq!(expect(&client, (client.node_v4, 8080), "web"), client.v4);
        // Once the owner is gone, another pod can get the port.
        cri.stop_pod(&id).unwrap();
        let thief = pod(&system, "thief", &[tcp(8081), tcp(8080)]);
        let second = cri.run_pod(&thief).unwrap();
        cri.start_web(&thief, &second, "thief").unwrap();
        cri.remove_pod(&id).unwrap();
        for port in [8080, 8081] {
            assert_eq!(expect(&client, (client.node_v4, port), "thief"), client.v4);
        }
    });
}

/// Without `--detach`, ctr removes what it has added. With it, ctr 1.6 never calls DEL, so GC has to remove it.
fn ctr_run(packages: &Path, specification: &str) {
    peer_fails("the masquerade of a container whose namespace is gone stays", || {
        let (node, client) = Node::with_client();
        let system = System::start(&node, packages);
        let list = list(specification);
        let _daemon = start(&system, &list);
        warm_up(&system);
        let before = state(&node);
        let ctr = |words: &[&str]| system.run(&[&["ctr", "--namespace", "k8s.io"], words].concat());
        let (group, snapshotter) = (format!("{}/ctr", system.cgroup()), ["--snapshotter", "native"]);
        let run = ["run", "--cni", "--cgroup", &group, "--env", "WHO=web"];

        let asked = client.serve(Proto::Tcp, &format!("{}:9000", client.v4), "outside");
        let ask = format!("echo hello | nc -w 4 {} 9000", client.v4);
        let answer = ctr(&[&run[..], &snapshotter, &["--rm", WEB, "short", "sh", "-c", &ask]].concat());
        drop(asked);
        let seen = format!("outside|{}:", client.node_v4);
        assert!(answer.starts_with(&seen) && answer.ends_with("|hello"), "not masqueraded: {answer}");
        before.assert_same(&state(&node));

        ctr(&[&run[..], &snapshotter, &["--detach", WEB, "long"]].concat());
        let reserved = node.reserved("pods");
        assert_eq!(reserved.len(), 2, "{reserved:?}");
        for ip in reserved.iter().map(|ip| ip.parse::<IpAddr>().expect("an address")) {
            expect(&client, (ip, 80), "web");
        }
        ctr(&["tasks", "kill", "--signal", "SIGKILL", "long"]);
        system.wait_for("the task's end", || ctr(&["tasks", "list"]).contains("STOPPED"));
        ctr(&["tasks", "delete", "long"]);
        ctr(&["containers", "delete", "long"]);
        // Calls GC as a runtime does, without valid attachments.
        for plugin in list["plugins"].as_array().expect("a list") {
            let mut config = plugin.clone();
            config["cniVersion"] = "1.1.0".into();
            config["name"] = list["name"].clone();
            config["cni.dev/valid-attachments"] = json!([]);
            node.plugin(plugin["type"].as_str().expect("a name")).command("GC").config(&config).run().ok();
        }
        // libcni would remove this file of its own in a DEL.
        node.run(|| drop(std::fs::remove_file("/var/lib/cni/results/pods-k8s.io-long-eth0")));
        // GC also removes chains to which no element refers.
        let elements = |state: slipway_tests::Snapshot| {
            state.without(&["nft chain inet slipway", "nft rule inet slipway"])
        };
        elements(before).assert_same(&elements(state(&node)));
    });
}

/// From 2.0 on, containerd calls STATUS and reports the result to kubelet.
fn status(packages: &Path, specification: &str) {
    peer_fails("STATUS does not look at what ADD needs", || {
        let node = Node::without_bridge_netfilter();
        let system = System::start(&node, packages);
        let _daemon = start(&system, &list(specification));
        let cri = Cri(&node);
        assert_eq!(cri.network_trouble(), Ok(None));
        let mut broken = list(specification);
        broken["plugins"][0]["ipam"]["dataDir"] = "/etc/passwd".into();
        system.write(LIST, broken.to_string());
        // containerd watches this folder.
        system.wait_for("the new configuration", || matches!(cri.network_trouble(), Ok(Some(_))));
        let trouble = cri.network_trouble().unwrap().expect("trouble");
        assert!(trouble.contains("/etc/passwd"), "{trouble}");
        let refused = cri.run_pod(&pod(&system, "web", &[])).expect_err("no network");
        assert!(refused.contains("/etc/passwd"), "{refused}");
        system.write(LIST, list(specification).to_string());
        system.wait_for("the fixed configuration", || matches!(cri.network_trouble(), Ok(None)));
    });
}
