// SPDX-License-Identifier: GPL-2.0-or-later

//! podman 4.3 with `network_backend = "cni"`, the last version in Debian that supports CNI.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use serde_json::{Value, json};
use slipway_tests::image::{self, ARCHIVE, WEB, expect, expect_closed};
use slipway_tests::system::{System, unpacked};
use slipway_tests::{Node, Proto, Space, is_peer, pages, skip};

use crate::state;

const SUITE: &str = "bookworm";
const PROGRAM: &str = "usr/bin/podman";
const NEEDED: &str = "podman of Debian bookworm";

/// Debian's folder with the reference plugins, on which podman depends.
const REFERENCE: &str = "/usr/lib/cni";

/// Configures the node as podman's manual pages describe: containers.conf(5), containers-storage.conf(5).
fn configure(system: &System, plugin_dirs: &[&str]) {
    const PATH: &str = "/etc/containers/containers.conf";
    // The configuration comes from the documentation, with other plugin directories.
    let page = pages::file("docs/runtimes.md", PATH);
    let network = page.replace(r#"["/opt/cni/bin", "/usr/lib/cni"]"#, &format!("{plugin_dirs:?}"));
    system.write(
        PATH,
        format!(
            "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n\
             {network}\
             [containers]\nlog_driver = \"k8s-file\"\n"
        ),
    );
    system.write(
        "/etc/containers/storage.conf",
        "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\n\
         graphroot = \"/var/lib/containers/storage\"\n",
    );
    image::make(system);
    system.run(&["podman", "load", "--quiet", "--input", ARCHIVE]);
}

/// podman's default network, without the plugins that are not under test.
fn default_network(system: &System) {
    let list = json!({
        "cniVersion": "0.4.0", "name": "podman",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                    "ranges": [[{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}], [{"subnet": "fd00:88::/64"}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    // The configuration in podman's package has the same name.
    system.write("/etc/cni/net.d/87-podman-bridge.conflist", list.to_string());
}

/// Starts the web server with `podman run --detach`. The server answers with the name `name`.
fn run_web(system: &System, name: &str, options: &[&str]) -> String {
    let who = format!("WHO={name}");
    let words =
        ["podman", "run", "--detach", "--name", name, "--env", &who, "--cgroup-parent", system.cgroup()];
    system.run(&[&words[..], options, &[WEB]].concat())
}

fn inspect(system: &System, name: &str) -> Value {
    let text = system.run(&["podman", "inspect", name]);
    let list: Value = serde_json::from_str(&text).expect("podman inspect prints JSON");
    list[0]["NetworkSettings"].clone()
}

fn address(system: &System, name: &str) -> IpAddr {
    let settings = inspect(system, name);
    settings["Networks"]["podman"]["IPAddress"].as_str().and_then(|ip| ip.parse().ok()).expect("an address")
}

/// The backend for ports and masquerade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    /// The default of the plugins.
    Usual,
    /// iptables, as the node's setting.
    Iptables,
}

impl Backend {
    fn choose(self, system: &System) {
        if self == Self::Iptables {
            system.write("/etc/cni/slipway.json", r#"{"backend": "iptables", "ipMasqBackend": "iptables"}"#);
        }
    }

    /// True if this backend is in use, as long as a port is published. The reference plugins make other chains.
    fn is_used(self, node: &Node) -> bool {
        is_peer() || node.ruleset().contains("CNI-DN-") == (self == Self::Iptables)
    }
}

#[test]
fn a_published_port_from_run_to_removal() {
    let Some(packages) = unpacked(SUITE, PROGRAM) else { skip!(NEEDED) };
    from_run_to_removal(&packages, Backend::Usual);
}

#[test]
fn a_published_port_with_iptables() {
    let Some(packages) = unpacked(SUITE, PROGRAM) else { skip!(NEEDED) };
    from_run_to_removal(&packages, Backend::Iptables);
}

/// The network namespace of the container `web`.
fn inside(system: &System) -> Space {
    let path = inspect(system, "web")["SandboxKey"].as_str().expect("a namespace").to_owned();
    system.space().namespace("web", &system.path(&path))
}

fn from_run_to_removal(packages: &Path, backend: Backend) {
    let (node, client) = Node::with_client();
    let system = System::start(&node, packages);
    backend.choose(&system);
    configure(&system, &["/opt/cni/bin"]);
    default_network(&system);
    let options = ["--publish", "8080:80", "--publish", "5353:53/udp"];

    // A first container is started and removed, which creates the bridge and the tables.
    run_web(&system, "first", &options);
    system.run(&["podman", "rm", "--force", "first"]);
    let before = state(&node);

    run_web(&system, "web", &options);
    let open = || {
        // The container sees other hosts' own addresses.
        assert_eq!(expect(&client, (client.node_v4, 8080), "web"), client.v4);
        assert_eq!(expect(&client, (client.node_v6, 8080), "web"), client.v6);
        expect(&node, ([127, 0, 0, 1], 8080), "web");
        expect(&node, (client.node_v4, 8080), "web");
        if !is_peer() && backend == Backend::Usual {
            expect(&node, (IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), 8080), "web");
        }
    };
    let closed = || {
        expect_closed(&client, (client.node_v4, 8080));
        expect_closed(&client, (client.node_v6, 8080));
        expect_closed(&node, ([127, 0, 0, 1], 8080));
        assert!(node.reserved("podman").is_empty(), "an address is left");
    };
    open();
    assert!(backend.is_used(&node), "{}", node.ruleset());
    {
        let inside = inside(&system);
        let server = inside.serve(Proto::Udp, &format!("{}:53", address(&system, "web")), "dns");
        client.expect(Proto::Udp, (client.node_v4, 5353), "dns");
        drop(server);
    }

    // Another container uses the published port, and so does the container itself.
    let request = image::request(client.node_v4, 8080);
    let run = ["podman", "run", "--rm", "--cgroup-parent", system.cgroup(), WEB, "sh", "-c", &request];
    assert_eq!(image::answer(&system.run(&run)).0, "web");
    // `podman exec` is not used, because in a chroot it would run the host's shell.
    expect(&inside(&system), (client.node_v4, 8080), "web");
    assert_eq!(node.reserved("podman").len(), 2, "one address of each family");

    system.run(&["podman", "restart", "web"]);
    open();
    assert_eq!(node.reserved("podman").len(), 2, "the addresses of before the restart are free");
    system.run(&["podman", "stop", "web"]);
    closed();
    system.run(&["podman", "start", "web"]);
    open();
    // conmon cleans up after a container that ends by itself.
    system.run(&["podman", "kill", "web"]);
    system.wait_for("the clean-up", || node.reserved("podman").is_empty());
    system.run(&["podman", "wait", "web"]);
    closed();
    system.run(&["podman", "start", "web"]);
    open();
    system.run(&["podman", "rm", "--force", "web"]);
    closed();
    before.assert_same(&state(&node));
}

/// The network in Debian's package and those that podman makes have firewall and tuning in their lists. These two
/// plugins are the reference plugins, from a second plugin directory.
#[test]
fn networks_of_podmans_own_making() {
    let Some(packages) = unpacked(SUITE, PROGRAM) else { skip!(NEEDED) };
    networks(&packages, Backend::Usual);
}

#[test]
fn networks_of_podmans_own_making_with_iptables() {
    let Some(packages) = unpacked(SUITE, PROGRAM) else { skip!(NEEDED) };
    networks(&packages, Backend::Iptables);
}

fn networks(packages: &Path, backend: Backend) {
    let (node, client) = Node::with_client();
    let system = System::start(&node, packages);
    backend.choose(&system);
    configure(&system, &["/opt/cni/bin", REFERENCE]);
    system.run(&[
        "podman",
        "network",
        "create",
        "--subnet",
        "10.99.0.0/24",
        "--ipv6",
        "--subnet",
        "fd00:99::/64",
        "blue",
    ]);
    let options = ["--publish", "8080:80", "--mac-address", "02:00:00:00:88:01"];
    run_web(&system, "first", &options);
    system.run(&["podman", "network", "connect", "blue", "first"]);
    system.run(&["podman", "rm", "--force", "first"]);
    let before = state(&node);

    run_web(&system, "web", &options);
    assert_eq!(expect(&client, (client.node_v4, 8080), "web"), client.v4);
    assert!(backend.is_used(&node), "{}", node.ruleset());
    assert_eq!(inspect(&system, "web")["Networks"]["podman"]["MacAddress"], "02:00:00:00:88:01");

    // A second interface is connected while the container is running, and disconnected again.
    system.run(&["podman", "network", "connect", "--ip", "10.99.0.77", "blue", "web"]);
    assert_eq!(inspect(&system, "web")["Networks"]["blue"]["IPAddress"], "10.99.0.77");
    assert_eq!(expect(&node, (Ipv4Addr::new(10, 99, 0, 77), 80), "web"), Ipv4Addr::new(10, 99, 0, 1));
    expect(&client, (client.node_v4, 8080), "web");
    system.run(&["podman", "network", "disconnect", "blue", "web"]);
    assert!(node.reserved("blue").is_empty(), "the second network's addresses are left");
    assert_eq!(expect(&client, (client.node_v4, 8080), "web"), client.v4);

    // The ruleset is flushed, and `podman network reload` restores it. In between, podman itself accepts connections
    // without answering.
    node.cmd("nft flush ruleset");
    system.run(&["podman", "network", "reload", "web"]);
    assert_eq!(expect(&client, (client.node_v4, 8080), "web"), client.v4);
    system.run(&["podman", "rm", "--force", "web"]);
    expect_closed(&client, (client.node_v4, 8080));

    // The container is on both networks from the start. podman joins them in no fixed order.
    for _ in 0..3 {
        let networks = ["--publish", "8080:80", "--network", "podman", "--network", "blue"];
        run_web(&system, "both", &networks);
        for _ in 0..2 {
            assert_eq!(expect(&client, (client.node_v4, 8080), "both"), client.v4);
            system.run(&["podman", "restart", "both"]);
        }
        system.run(&["podman", "rm", "--force", "both"]);
        expect_closed(&client, (client.node_v4, 8080));
    }
    // The chains of the networks, used alone and together, remain. Which of them exist depends on that order.
    let without_chains = |state: slipway_tests::Snapshot| state.without(&["inet slipway hairpin-"]);
    without_chains(before).assert_same(&without_chains(state(&node)));
}

/// Two containers publish the same port, each on a different address. A third one cannot have it on either.
#[test]
fn one_port_on_two_addresses() {
    let Some(packages) = unpacked(SUITE, PROGRAM) else { skip!(NEEDED) };
    let node = Node::without_bridge_netfilter();
    let (inner, outer) = (node.host("inner"), node.host("outer"));
    let system = System::start(&node, &packages);
    configure(&system, &["/opt/cni/bin"]);
    default_network(&system);
    run_web(&system, "first", &["--publish", "8080:80"]);
    system.run(&["podman", "rm", "--force", "first"]);
    run_web(&system, "one", &["--publish", &format!("{}:8080:80", inner.node_v4)]);
    run_web(&system, "two", &["--publish", &format!("{}:8080:80", outer.node_v4)]);
    let before = state(&node);
    let who =
        ["podman", "run", "--rm", "--cgroup-parent", system.cgroup(), "--publish", "8080:80", WEB, "true"];
    let refused = system.try_run(&who);
    assert_ne!(refused.code, Some(0), "a port that others have: {refused}");
    eprintln!("REFUSED {refused}");
    before.assert_same(&state(&node));
    for _ in 0..2 {
        assert_eq!(expect(&inner, (inner.node_v4, 8080), "one"), inner.v4);
        assert_eq!(expect(&outer, (outer.node_v4, 8080), "two"), outer.v4);
        system.run(&["podman", "restart", "one", "two"]);
    }
    system.run(&["podman", "rm", "--force", "one"]);
    expect_closed(&inner, (inner.node_v4, 8080));
    assert_eq!(expect(&outer, (outer.node_v4, 8080), "two"), outer.v4);
    system.run(&["podman", "rm", "--force", "two"]);
    assert!(node.reserved("podman").is_empty());
}

/// The power fails, and files on disk survive, except the reservations. podman's package has those removed at boot
/// (`/usr/lib/tmpfiles.d/podman.conf`), because DEL was not called for any container.
#[test]
fn containers_of_podman_come_back_after_a_reboot() {
    let Some(packages) = unpacked(SUITE, PROGRAM) else { skip!(NEEDED) };
    let (node, client) = Node::with_client();
    let mut system = System::start(&node, &packages);
    configure(&system, &["/opt/cni/bin"]);
    default_network(&system);
    for (name, ports) in [("web", "8080:80"), ("other", "8081:80")] {
        run_web(&system, name, &["--publish", ports]);
    }
    for round in 0..3 {
        expect(&client, (client.node_v4, 8080), "web");
        expect(&client, (client.node_v4, 8081), "other");
        system.reboot();
        assert!(system.read("/usr/lib/tmpfiles.d/podman.conf").contains("\nD! /var/lib/cni/networks\n"));
        node.run(|| std::fs::remove_dir_all("/var/lib/cni/networks")).expect("remove the reservations");
        expect_closed(&client, (client.node_v4, 8080));
        system.run(&["podman", "start", "web", "other"]);
        assert_eq!(expect(&client, (client.node_v4, 8080), "web"), client.v4);
        assert_eq!(node.reserved("podman").len(), 4, "one of each family for each, round {round}");
    }
    system.run(&["podman", "rm", "--force", "web", "other"]);
    assert!(node.reserved("podman").is_empty());
    expect_closed(&client, (client.node_v4, 8080));
}
