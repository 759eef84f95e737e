// SPDX-License-Identifier: GPL-2.0-or-later

//! Plugins that are chained after an interface plugin.

use serde_json::{Value, json};

use super::{MACS, config, mac, mtu, of_all, of_protocol};
use crate::cases::{Key, Needs, Subject, key};

/// The configuration of a plugin that is chained after an interface plugin.
fn chained(plugin: &str, keys: Value) -> Value {
    let mut all = config(plugin, keys);
    all["prevResult"] = json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "vhost0", "mac": "02:11:22:33:00:03"},
            {"name": "eth0", "mac": "02:11:22:33:00:04", "sandbox": "/run/netns/pod"},
        ],
        "ips": [
            {"interface": 1, "address": "10.22.0.5/24", "gateway": "10.22.0.1"},
            {"interface": 1, "address": "fd00:22::5/64", "gateway": "fd00:22::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        "dns": {"nameservers": ["10.22.0.1"]},
    });
    all
}

fn of_chained() -> Vec<Key> {
    let mut keys = of_all();
    keys.extend([
        key("/prevResult", json!({}), json!([{"cniVersion": "0.4.0"}])),
        key("/prevResult/cniVersion", json!("1.1.0"), json!(["0.4.0", "1.0.0", "0.2.0"])),
        key("/prevResult/interfaces", json!([]), json!([])),
        key("/prevResult/interfaces/1/name", json!("eth0"), json!(["eth1"])),
        key("/prevResult/interfaces/1/sandbox", json!(""), json!(["/run/netns/other"])),
        key("/prevResult/ips", json!([]), json!([])),
        key("/prevResult/ips/0/interface", json!(1), json!([2])),
        key("/prevResult/ips/0/address", json!("10.22.0.5/24"), json!(["10.22.0.5", "10.22.0.5/32"])),
        key("/prevResult/ips/0/gateway", json!("10.22.0.1"), json!(["::1"])),
        key(
            "/prevResult/routes",
            json!([]),
            json!([[{"dst": "10.0.0.0/8", "gw": "10.22.0.9", "priority": 5}]]),
        ),
        key("/prevResult/dns", json!({}), json!([{"nameservers": []}])),
    ]);
    keys
}

pub(crate) fn bandwidth() -> Subject {
    let rates = ["/ingressRate", "/ingressBurst", "/egressRate", "/egressBurst"];
    let mut keys = of_chained();
    keys.extend(of_protocol());
    keys.extend(rates.map(|name| {
        key(name, json!(8_000_000), json!([7, 8, 8000, 34_359_738_352_u64, 34_359_738_368_u64]))
    }));
    let rates = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
    keys.push(key(
        "/runtimeConfig/bandwidth",
        json!({"ingressRate": 1_000_000, "ingressBurst": 80_000}),
        json!([{"IngressRate": 1_000_000, "IngressBurst": 80_000}, {"ingressRate": 0}]),
    ));
    Subject {
        plugin: "bandwidth",
        needs: Needs::Limits,
        base: chained(
            "bandwidth",
            json!(
                rates.map(|name| (name, 8_000_000)).into_iter().collect::<std::collections::BTreeMap<_, _>>()
            ),
        ),
        keys,
        sets: vec![
            json!({"/ingressRate": 0, "/ingressBurst": 0}),
            json!({"/egressRate": 0, "/egressBurst": 0}),
            json!({"/ingressRate": 0, "/ingressBurst": 0, "/egressRate": 0, "/egressBurst": 0}),
            json!({"/ingressRate": null, "/ingressBurst": null, "/egressRate": null, "/egressBurst": null,
                "/runtimeConfig/bandwidth": {"ingressRate": 1_000_000, "ingressBurst": 80_000}}),
            json!({"/ingressRate": 0, "/ingressBurst": 0, "/egressRate": 0, "/egressBurst": 0,
                "/runtimeConfig/bandwidth": {"ingressRate": 1_000_000, "ingressBurst": 80_000}}),
        ],
        args: &[],
    }
}

pub(crate) fn firewall() -> Subject {
    let mut keys = of_chained();
    keys.extend(of_protocol());
    keys.extend([
        key("/backend", json!("iptables"), json!(["nftables"])),
        key(
            "/iptablesAdminChainName",
            json!("ADMIN"),
            json!(["a b", "-j", "ACCEPT", "0123456789012345678901234567"]),
        ),
        key("/firewalldZone", json!("public"), json!([])),
        key("/ingressPolicy", json!("open"), json!(["same-bridge", "isolated", "Open"])),
    ]);
    Subject {
        plugin: "firewall",
        needs: Needs::Link,
        base: chained("firewall", json!({"backend": "iptables"})),
        keys,
        sets: vec![],
        args: &["FOO=1"],
    }
}

pub(crate) fn portmap() -> Subject {
    let mut keys = of_chained();
    keys.extend(of_protocol());
    keys.extend([
        key("/backend", json!("iptables"), json!(["IPTABLES"])),
        key("/snat", json!(false), json!([])),
        key("/masqAll", json!(true), json!([false])),
        key("/markMasqBit", json!(12), json!([13, 31, 32])),
        key("/externalSetMarkChain", json!("KUBE-MARK-MASQ"), json!(["a b", "-j"])),
        key("/conditionsV4", json!(["-s", "192.0.2.0/24"]), json!([["!", "-s", "192.0.2.0/24"], ["-j", "ACCEPT"], ["ip saddr 192.0.2.0/24"], [""]])),
        key("/conditionsV6", json!(["-s", "2001:db8::/32"]), json!([])),
        key("/runtimeConfig/portMappings", json!([]), json!([[{}],
            [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "TCP", "HostIP": ""}],
            [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}],
            [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8080, "containerPort": 81, "protocol": "tcp"}],
        ])),
        key("/runtimeConfig/portMappings/0/hostPort", json!(8080), json!([65_535, 65_536, "8080", 8080.0])),
        key("/runtimeConfig/portMappings/0/containerPort", json!(80), json!([65_535, 65_536])),
        key("/runtimeConfig/portMappings/0/protocol", json!("tcp"), json!(["udp", "sctp", "TCP", "icmp", "tcp4", " tcp"])),
        key("/runtimeConfig/portMappings/0/hostIP", json!("192.0.2.1"), json!(["0.0.0.0", "::", "127.0.0.1", "::1",
            "2001:db8::1", "[::1]", "::ffff:192.0.2.1", "fe80::1%eth0", "192.0.2.1/24", "192.0.2.01"])),
    ]);
    Subject {
        plugin: "portmap",
        needs: Needs::Link,
        base: chained(
            "portmap",
            json!({"backend": "iptables", "runtimeConfig": {"portMappings":
            [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}),
        ),
        keys,
        sets: vec![
            json!({"/markMasqBit": 12, "/externalSetMarkChain": "KUBE-MARK-MASQ"}),
            json!({"/snat": false, "/masqAll": true}),
            json!({"/snat": false, "/externalSetMarkChain": "KUBE-MARK-MASQ"}),
            json!({"/snat": null}),
            json!({"/prevResult/ips": [{"address": "10.22.0.5/24"}, {"address": "10.22.0.6/24"}]}),
            json!({"/prevResult/ips": [{"interface": 0, "address": "10.22.0.5/24"}]}),
        ],
        args: &["FOO=1"],
    }
}

pub(crate) fn sbr() -> Subject {
    let mut keys = of_chained();
    keys.extend([
        key("/table", json!(200), json!([254, 255, 4_294_967_295_u64])),
        key(
            "/gateways",
            json!(["10.22.0.9"]),
            json!([
                ["10.22.0.9", "fd00:22::9"],
                ["10.22.0.9", "10.22.0.8"],
                [""],
                ["192.0.2.77"],
                ["10.22.0.9", "fd00:22::9", "10.22.0.8"]
            ]),
        ),
        key("/addSourceHints", json!(true), json!([false])),
    ]);
    Subject {
        plugin: "sbr",
        needs: Needs::Link,
        base: chained("sbr", json!({})),
        keys,
        sets: vec![
            json!({"/table": 200, "/gateways": ["x"]}),
            json!({"/table": 200, "/addSourceHints": true}),
        ],
        args: &["FOO=1"],
    }
}

pub(crate) fn tuning() -> Subject {
    let mut keys = of_chained();
    keys.extend([
        key("/sysctl", json!({"net.core.somaxconn": "500"}), json!([{"net.core.somaxconn": 500}, {"net.core.somaxconn": ""},
            {"net.core.somaxconn": null}, {"kernel.x": "1"}, {"net.ipv4.conf.IFNAME.arp_notify": "1"}, {"net.x": "1"}, {"": "1"},
            {"net/core/somaxconn": "500"}, {"net..core.somaxconn": "500"}, {"net.core.somaxconn": " 500 "}, {"NET.core.somaxconn": "500"}])),
        key("/mac", json!("02:11:22:33:44:55"), mac()),
        key("/runtimeConfig/mac", json!("02:11:22:33:44:55"), mac()),
        key("/args/cni/mac", json!("02:11:22:33:44:55"), mac()),
        mtu(),
        key("/promisc", json!(true), json!([false])),
        key("/allmulti", json!(true), json!([false])),
        key("/txQLen", json!(500), json!([1000])),
        key("/dataDir", json!("/run/tuning"), json!(["/run/tuning/"])),
        key("/args/cni/sysctl", json!({"net.core.somaxconn": "600"}), json!([{}])),
        key("/args/cni/mtu", json!(1300), json!([])),
        key("/args/cni/promisc", json!(true), json!([false])),
        key("/args/cni/allmulti", json!(true), json!([false])),
        key("/args/cni/txQLen", json!(500), json!([])),
    ]);
    Subject {
        plugin: "tuning",
        needs: Needs::Link,
        base: chained("tuning", json!({"sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}})),
        keys,
        sets: vec![
            json!({"/mtu": 1400, "/args/cni/mtu": 0}),
            json!({"/promisc": true, "/args/cni/promisc": false}),
            json!({"/allmulti": true, "/args/cni/allmulti": false}),
            json!({"/allmulti": true, "/args/cni/allmulti": null}),
            json!({"/txQLen": 500, "/args/cni/txQLen": 0}),
            json!({"/mac": "02:11:22:33:44:55", "/runtimeConfig/mac": "02:11:22:33:44:56", "/args/cni/mac": "02:11:22:33:44:57"}),
            json!({"/mac": "02:11:22:33:44:55", "/runtimeConfig/mac": "", "/args/cni/mac": ""}),
            json!({"/mac": "02:11:22:33:00:04", "/mtu": 1500}),
        ],
        args: MACS,
    }
}

pub(crate) fn vrf() -> Subject {
    let mut keys = of_chained();
    keys.extend(of_protocol());
    keys.extend([
        key("/vrfname", json!("red"), json!(["0123456789abcdef0", "a b", "a/b"])),
        key("/table", json!(10), json!([254, 4_294_967_295_u64])),
    ]);
    Subject {
        plugin: "vrf",
        needs: Needs::Nothing,
        base: chained("vrf", json!({"vrfname": "blue"})),
        keys,
        sets: vec![],
        args: &["FOO=1"],
    }
}
