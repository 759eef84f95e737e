// SPDX-License-Identifier: GPL-2.0-or-later

//! Mutated configurations and environments for each plugin; see [`slipway_tests::garbage`]. For dhcp, which needs a
//! daemon and a server, the suite `dhcp` contains such a test.

use serde_json::{Value, json};
use slipway_tests::garbage::feed;
use slipway_tests::{FLANNEL_ENV, Node, lacks, skip};

fn bridge() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true,
        "isDefaultGateway": true, "ipMasq": true, "mtu": 1400, "hairpinMode": true, "promiscMode": false,
        "forceAddress": false, "macspoofchk": true, "portIsolation": false, "enabledad": false,
        "ipMasqBackend": "nftables", "disableContainerInterface": false,
        "args": { "cni": { "mac": "02:00:00:00:00:07", "ips": [] } },
        "runtimeConfig": { "mac": "02:00:00:00:00:08", "ips": ["10.88.0.9/24"] },
        "dns": { "nameservers": ["10.0.0.1"], "domain": "a.test", "search": ["a.test"], "options": ["ndots:5"] },
        "ipam": host_local()["ipam"],
    })
}

fn ptp() -> Value {
    let mut config = bridge();
    config["type"] = "ptp".into();
    let routes = config["ipam"]["routes"].as_array_mut().expect("a list");
    routes.push(json!({ "dst": "10.88.0.0/24" }));
    config
}

fn host_local() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "host-local",
        "runtimeConfig": { "ips": ["10.88.0.9/24"], "ipRanges": [[{ "subnet": "10.89.0.0/24" }]] },
        "args": { "cni": { "ips": ["fd00:88::7"] } },
        "ipam": {
            "type": "host-local", "resolvConf": "/etc/hostname", "subnetFile": null,
            "ranges": [
                [{ "subnet": "10.88.0.0/24", "rangeStart": "10.88.0.5", "rangeEnd": "10.88.0.50", "gateway": "10.88.0.1" },
                 { "subnet": "10.87.0.0/24" }],
                [{ "subnet": "fd00:88::/64" }],
            ],
            "routes": [
                { "dst": "0.0.0.0/0" },
                { "dst": "10.99.0.0/16", "gw": "10.88.0.1", "mtu": 1300, "advmss": 1200, "priority": 7, "table": 100, "scope": 0 },
            ],
        },
    })
}

fn portmap() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "portmap", "backend": "nftables", "snat": true,
        "excludeLoopback": true,
        "masqAll": false, "markMasqBit": 13, "conditionsV4": ["ip saddr 10.0.0.0/8"], "conditionsV6": [],
        "capabilities": { "portMappings": true },
        "runtimeConfig": { "portMappings": [
            { "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "" },
            { "HostPort": 53, "ContainerPort": 53, "Protocol": "udp", "HostIP": "127.0.0.1" },
        ] },
        "prevResult": {
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "br0" }, { "name": "eth0", "sandbox": "/run/netns/pod" }],
            "ips": [{ "address": "10.88.0.9/24", "interface": 1, "gateway": "10.88.0.1" },
                    { "address": "fd00:88::9/64", "interface": 1 }],
            "routes": [{ "dst": "0.0.0.0/0" }], "dns": {},
        },
    })
}

/// The `prevResult` of a chained plugin.
fn previous() -> Value {
    portmap()["prevResult"].clone()
}

fn firewall() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "iptables",
        "ingressPolicy": "isolated", "firewalldZone": "public", "prevResult": previous(),
    })
}

fn bandwidth() -> Value {
    // The previous result names the node's end of the link, because bandwidth cannot limit anything without it.
    let mut previous = previous();
    previous["interfaces"][0]["name"] = "veth0".into();
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bandwidth", "ingressRate": 8_000_000,
        "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000,
        "runtimeConfig": { "bandwidth": { "IngressRate": 8000, "IngressBurst": 8000 } },
        "prevResult": previous,
    })
}

fn tuning() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "tuning", "mac": "02:00:00:00:00:07", "promisc": true,
        "mtu": 1400, "allmulti": true, "txQLen": 77,
        "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.conf.all.log_martians": "1" },
        "args": { "cni": { "mac": "02:00:00:00:00:08", "mtu": 1300, "sysctl": { "net.core.somaxconn": "7" } } },
        "runtimeConfig": { "mac": "02:00:00:00:00:09" },
        "prevResult": previous(),
    })
}

fn sbr() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "sbr", "gateways": ["10.88.0.1"],
        "addSourceHints": true, "prevResult": previous(),
    })
}

fn loopback() -> Value {
    json!({ "cniVersion": "1.1.0", "name": "net", "type": "loopback", "prevResult": portmap()["prevResult"] })
}

fn fixed() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "static",
        "runtimeConfig": { "ips": ["10.88.0.9/24"] }, "args": { "cni": { "ips": ["fd00:88::7/64"] } },
        "prevResult": portmap()["prevResult"],
        "ipam": {
            "type": "static", "addresses": [{ "address": "10.88.0.8/24", "gateway": "10.88.0.1" }],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.99.0.0/16", "gw": "10.88.0.1", "mtu": 1300 }],
            "dns": { "nameservers": ["10.0.0.1"], "domain": "a.test", "search": ["a.test"], "options": [] },
        },
    })
}

fn flannel() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "flannel", "subnetFile": "/run/flannel/subnet.env",
        "delegate": { "type": "bridge", "bridge": "br0", "ipMasq": true, "mtu": 1400, "isDefaultGateway": true },
        "ipam": { "type": "host-local", "routes": [{ "dst": "10.99.0.0/16", "gw": "10.88.0.1" }] },
        "runtimeConfig": { "mac": "02:00:00:00:00:08" }, "prevResult": portmap()["prevResult"],
    })
}

fn noop() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "noop", "debugFile": "/run/debug",
        "prevResult": portmap()["prevResult"],
    })
}

/// A configuration with the keys of all plugins that create or move a single link.
fn link(plugin: &str) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": plugin, "master": "up0", "mtu": 1400,
        "linkInContainer": false, "mode": if plugin == "ipvlan" { "l2" } else { "bridge" }, "vlanId": 7,
        "bcqueuelen": 100, "mac": "02:00:00:00:00:07", "multiQueue": false, "owner": 1, "group": 2,
        "selinuxContext": "", "device": "dev0", "hwaddr": "", "kernelpath": "", "pciBusID": "",
        "runtimeConfig": { "mac": "02:00:00:00:00:08", "ips": ["10.88.0.9/24"] },
        "dns": { "nameservers": ["10.0.0.1"], "domain": "a.test", "search": ["a.test"], "options": ["ndots:5"] },
        "ipam": host_local()["ipam"],
    })
}

fn run(plugin: &'static str, config: &Value) {
    run_with(plugin, config, |_| {});
}

/// Runs a chained plugin with `eth0` in the pod, which has the addresses of [`previous`].
fn run_chained(plugin: &'static str, config: &Value) {
    run_with(plugin, config, |node| {
        node.cmd("ip link add veth0 up type veth peer name eth0 netns pod");
        let pod = node.namespace("pod", std::path::Path::new("/run/netns/pod"));
        for command in [
            "ip link set lo up",
            "ip link set eth0 up",
            "ip address add 10.88.0.9/24 dev eth0",
            "ip address add fd00:88::9/64 dev eth0 nodad",
            "ip route add default via 10.88.0.1",
        ] {
            pod.cmd(command);
        }
    });
}

fn run_with(plugin: &'static str, config: &Value, prepare: impl Fn(&Node)) {
    let node = Node::without_bridge_netfilter();
    node.write("/run/flannel/subnet.env", FLANNEL_ENV);
    node.write("/run/debug", "{\"ReportResult\": \"{}\"}");
    // Creates a master link and a device to move.
    for (link, peer) in [("up0", "up1"), ("dev0", "wire0")] {
        node.cmd(&format!("ip link add {link} type veth peer name {peer}"));
    }
    // All links have a carrier, because an address on a link without one is probed until the plugin's time is over.
    for link in ["up0", "up1", "wire0"] {
        node.cmd(&format!("ip link set {link} up"));
    }
    let pod = node.pod("pod");
    // Probing is off, because it takes a second for each address.
    pod.sysctl("net/ipv6/conf/default/accept_dad", "0");
    prepare(&node);
    // noop writes each call to its debug file, which is its purpose.
    feed(plugin, config, &node, &pod, &["/run/debug"]);
}

/// Generates a test for each plugin from the function that runs it and its configuration.
macro_rules! survive_garbage {
    ($($test:ident: $name:literal $run:ident $config:expr;)*) => {
        $(
            #[test]
            fn $test() {
                if let Some(feature) = lacks($name) {
                    skip!(feature);
                }
                $run($name, &$config);
            }
        )*
    };
}

survive_garbage! {
    bandwidth_survives_garbage: "bandwidth" run_chained bandwidth();
    bridge_survives_garbage: "bridge" run bridge();
    dummy_survives_garbage: "dummy" run link("dummy");
    firewall_survives_garbage: "firewall" run_chained firewall();
    flannel_survives_garbage: "flannel" run flannel();
    host_device_survives_garbage: "host-device" run link("host-device");
    host_local_survives_garbage: "host-local" run host_local();
    ipvlan_survives_garbage: "ipvlan" run link("ipvlan");
    loopback_survives_garbage: "loopback" run loopback();
    macvlan_survives_garbage: "macvlan" run link("macvlan");
    noop_survives_garbage: "noop" run noop();
    portmap_survives_garbage: "portmap" run portmap();
    ptp_survives_garbage: "ptp" run ptp();
    sbr_survives_garbage: "sbr" run_chained sbr();
    static_survives_garbage: "static" run fixed();
    tap_survives_garbage: "tap" run link("tap");
    tuning_survives_garbage: "tuning" run_chained tuning();
    vlan_survives_garbage: "vlan" run link("vlan");
}
