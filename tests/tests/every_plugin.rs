// SPDX-License-Identifier: GPL-2.0-or-later

//! One ADD, CHECK and DEL of every plugin in the binary: a small suite for many kernels. The last test fails if the
//! table below lacks a registered plugin.

use serde_json::{Value, json};
#[path = "dhcp/stage.rs"]
#[expect(dead_code, reason = "the suite dhcp uses the rest")]
mod stage;

use slipway_tests::{
    Attach, FLANNEL_ENV, Node, PROGRAMS, Proto, Snapshot, fixed, has_programs, lacks, limited, needs, skip,
    slipway_only, tuned,
};

/// Generates a test for each plugin, given as a list and an interface name.
macro_rules! every_plugin {
    ($($test:ident: $name:literal for $ifname:literal in $list:expr;)*) => {
        const PLUGINS: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                if let Some(feature) = lacks($name) {
                    skip!(feature);
                }
                add_check_and_del($name, $ifname, &$list);
            }
        )*
    };
}

every_plugin! {
    bandwidth: "bandwidth" for "eth0" in json!([bridged(), published(), limited()]);
    bridge: "bridge" for "eth0" in json!([bridged()]);
    dummy: "dummy" for "eth0" in json!([{"type": "dummy", "ipam": ipam()}]);
    firewall: "firewall" for "eth0" in json!([bridged(), published(), firewalled()]);
    flannel: "flannel" for "eth0" in json!([{"type": "flannel", "delegate": {"isDefaultGateway": true}}, published()]);
    host_device: "host-device" for "eth0" in json!([{"type": "host-device", "device": "dev0", "ipam": ipam()}]);
    host_local: "host-local" for "eth0" in json!([{"type": "host-local", "ipam": ipam()}]);
    ipvlan: "ipvlan" for "eth0" in json!([{"type": "ipvlan", "master": "out0", "ipam": ipam()}]);
    loopback: "loopback" for "lo" in json!([{"type": "loopback"}]);
    macvlan: "macvlan" for "eth0" in json!([{"type": "macvlan", "master": "out0", "ipam": ipam()}]);
    noop: "noop" for "eth0" in json!([{"type": "ptp", "ipam": ipam()}, {"type": "noop"}]);
    portmap: "portmap" for "eth0" in json!([bridged(), published()]);
    ptp: "ptp" for "eth0" in json!([{"type": "ptp", "ipMasq": true, "ipam": ipam()}, published()]);
    sbr: "sbr" for "eth0" in json!([bridged(), {"type": "sbr"}]);
    r#static: "static" for "eth0" in json!([{"type": "ptp", "ipam": fixed()}, published()]);
    tap: "tap" for "eth0" in json!([{"type": "tap", "ipam": ipam()}]);
    tuning: "tuning" for "eth0" in json!([bridged(), published(), tuned()]);
    vlan: "vlan" for "eth0" in json!([{"type": "vlan", "master": "out0", "vlanId": 5, "ipam": ipam()}]);
    vrf: "vrf" for "eth0" in json!([{"type": "ptp", "ipam": ipam()}, {"type": "vrf", "vrfname": "blue"}]);
}

fn bridged() -> Value {
    json!({"type": "bridge", "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": ipam()})
}

fn firewalled() -> Value {
    json!({"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"})
}

fn published() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}})
}

fn ipam() -> Value {
    slipway_tests::host_local("10.88.0.0/24", "fd00:88::/64")
}

/// Runs ADD, CHECK and DEL twice. The first cycle creates the objects that all containers share, so the second must
/// leave nothing behind.
#[track_caller]
fn add_check_and_del(plugin: &str, ifname: &str, plugins: &Value) {
    let (node, client) = Node::with_client();
    // The device that host-device moves.
    node.cmd("ip link add dev0 type veth peer name wire0 netns client");
    let pod = node.pod("pod");
    node.write("/run/flannel/subnet.env", FLANNEL_ENV);
    let network = node.network(json!({"name": "net", "plugins": plugins}));
    let attach = Attach::new(&pod).ifname(ifname).port(Proto::Tcp, 8080, 80).port(Proto::Udp, 8080, 80);
    // The state leaves out host-local's index of reservations and its last reserved address, which a cycle changes.
    let state = || Snapshot::take(&node, &[&pod]).without(&["networks/.slipway/", "last_reserved_ip"]);
    let cycle = || {
        let before = state();
        let result = network.add(&attach).expect("ADD");
        assert!(!before.changes(&state()).is_empty(), "{plugin} made nothing");
        network.check(&attach).expect("CHECK");
        if plugins.as_array().expect("plugins").iter().any(|one| one["type"] == "portmap") {
            for proto in [Proto::Tcp, Proto::Udp] {
                let _server = pod.serve(proto, "0.0.0.0:80", "pod");
                client.expect(proto, (client.node_v4, 8080), "pod");
            }
        }
        network.del(&attach).expect("DEL");
        result
    };
    let first = cycle();
    assert_eq!(first["cniVersion"], slipway_tests::newest_version());
    let before = state();
    cycle();
    before.assert_same(&state());
    network.del(&attach).expect("a second DEL");
}

/// The verifier of this kernel accepts the BPF programs, and a port can be published with them.
#[test]
fn the_bpf_programs_load_and_publish_a_port() {
    if !has_programs() {
        skip!(PROGRAMS);
    }
    let (node, client) = Node::with_client();
    let pod = node.pod("pod");
    let bridge = json!({
        "type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": "ebpf", "ipam": ipam(),
    });
    let portmap = json!({"type": "portmap", "backend": "ebpf", "capabilities": {"portMappings": true}});
    let network = node.network(json!({"name": "net", "plugins": [bridge, portmap]}));
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    network.add(&attach).expect("ADD");
    network.check(&attach).expect("CHECK");
    assert_eq!(node.programs()["containers"], 1);
    let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "pod");
    client.expect(Proto::Tcp, (client.node_v4, 8080), "pod");
    network.del(&attach).expect("DEL");
    assert_eq!(node.programs()["containers"], 0);
}

/// dhcp also needs a server.
#[test]
fn dhcp() {
    slipway_only!();
    needs!(stage::has_dnsmasq(), "dnsmasq");
    let stage = stage::Stage::with_dnsmasq(&[]);
    let network = stage.network(&json!({}));
    let pod = stage.node.pod("pod");
    let attach = Attach::new(&pod);
    let cycle = || {
        let result = network.add(&attach).expect("ADD");
        assert_eq!(result["ips"][0]["gateway"], "10.77.0.1");
        assert_eq!(stage.leases().len(), 1);
        network.check(&attach).expect("CHECK");
        let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "pod");
        let address: std::net::IpAddr = stage::address(&result).parse().expect("an address");
        stage.node.expect(Proto::Tcp, (address, 80), "pod");
        network.del(&attach).expect("DEL");
        assert_eq!(stage.leases(), Vec::<String>::new());
    };
    // The first cycle gives the bridge its first port, and with that its MAC address.
    cycle();
    let state = || Snapshot::take(&stage.node, &[&pod]).without(&["/run/dnsmasq.log", "/run/daemon.err"]);
    let before = state();
    cycle();
    before.assert_same(&state());
    network.del(&attach).expect("a second DEL");
}

#[test]
fn the_table_has_every_plugin() {
    slipway_only!();
    // The command prints a line per plugin, which begins with the name.
    let table = Node::new().slipway("plugins");
    let registered: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let mut all = [PLUGINS, &["dhcp"]].concat();
    all.sort_unstable();
    assert_eq!(registered, all);
}
