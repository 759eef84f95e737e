// SPDX-License-Identifier: GPL-2.0-or-later

//! The IPAM plugins.

use serde_json::json;

use super::{config, of_all, of_protocol, of_routes, static_ipam};
use crate::cases::{Key, Needs, Subject, key};

pub(crate) fn dhcp() -> Subject {
    let mut keys = of_all();
    keys.extend([
        key("/ipam", json!({}), json!([])),
        key("/ipam/daemonSocketPath", json!("/run/cni/none.sock"), json!([])),
        key("/ipam/priority", json!(7), json!([])),
        key(
            "/ipam/request",
            json!([{"skipDefault": true}]),
            json!([[{"option": "routers"}], [{"option": "x"}]]),
        ),
        key(
            "/ipam/provide",
            json!([{"option": "12", "value": "x"}]),
            json!([[{"option": "x", "value": "x"}]]),
        ),
    ]);
    Subject {
        plugin: "dhcp",
        needs: Needs::Files,
        base: config("bridge", json!({"ipam": {"type": "dhcp"}})),
        keys,
        sets: vec![],
        args: &[],
    }
}

fn of_ranges(keys: &mut Vec<Key>) {
    keys.extend([
        key(
            "/ipam/ranges",
            json!([]),
            json!([[[]], [[{}]], [[{"subnet": "10.22.0.0/24"}, {"subnet": "10.23.0.0/24"}]],
            [[{"subnet": "10.22.0.0/24"}], [{"subnet": "10.22.0.0/24"}]],
            [[{"subnet": "10.22.0.0/24"}], [{"subnet": "10.23.0.0/24"}]],
            [[{"subnet": "10.22.0.0/24"}, {"subnet": "fd00:22::/64"}]]]),
        ),
        key(
            "/ipam/ranges/0/0/subnet",
            json!("10.22.0.0/24"),
            json!([
                "10.22.0.5/24",
                "10.22.0.0",
                "10.22.0.0/30",
                "10.22.0.0/31",
                "10.22.0.0/32",
                "fd00::/126",
                "fd00::/127",
                "0.0.0.0/0",
                "010.22.0.0/24",
                "::ffff:10.22.0.0/120"
            ]),
        ),
        key(
            "/ipam/ranges/0/0/rangeStart",
            json!("10.22.0.10"),
            json!([
                "10.22.0.0",
                "10.22.0.255",
                "10.23.0.1",
                "10.22.0.1",
                "fd00::1",
                "::ffff:10.22.0.10",
                "10.22.0.010"
            ]),
        ),
        key(
            "/ipam/ranges/0/0/rangeEnd",
            json!("10.22.0.20"),
            json!(["10.22.0.0", "10.22.0.255", "10.23.0.1", "10.22.0.1", "fd00::1"]),
        ),
        key(
            "/ipam/ranges/0/0/gateway",
            json!("10.22.0.2"),
            json!(["10.23.0.1", "10.22.0.254", "fd00::1", "10.22.0.0", "::ffff:10.22.0.2"]),
        ),
        key("/ipam/subnet", json!("10.24.0.0/24"), json!(["10.24.0.5/24", "10.24.0.0", "10.22.0.0/24"])),
        key("/ipam/rangeStart", json!("10.24.0.10"), json!(["10.24.0.0"])),
        key("/ipam/rangeEnd", json!("10.24.0.10"), json!(["10.24.0.0"])),
        key("/ipam/gateway", json!("10.24.0.10"), json!(["10.24.0.0"])),
        key("/ipam/dataDir", json!("/run/ipam"), json!(["/run/ipam/", "/run/netns/pod"])),
        key("/ipam/resolvConf", json!("/run/none"), json!(["/dev/null"])),
        key("/runtimeConfig/ipRanges", json!([[{"subnet": "10.25.0.0/24"}]]), json!([[[]], [[{}]]])),
        key(
            "/runtimeConfig/ips",
            json!(["10.22.0.77"]),
            json!([
                ["10.22.0.77/16"],
                ["10.22.0.1"],
                ["10.99.0.1"],
                [""],
                ["10.22.0.77", "10.22.0.77"],
                ["10.22.0.77", "10.22.0.78"],
                ["10.22.0.0"],
                ["10.22.0.255"],
                ["fd00:22::9", "10.22.0.77"]
            ]),
        ),
        key("/args/cni/ips", json!(["10.22.0.77"]), json!([["10.22.0.77/16"], ["10.22.0.1"]])),
    ]);
}

const IPS: &[&str] = &[
    "IP=10.22.0.77",
    "IP=10.22.0.77/16",
    "IP=",
    "IP=x",
    "IP=10.22.0.77,10.22.0.78",
    "ip=10.22.0.77",
    "FOO=1",
    "IgnoreUnknown=1;FOO=1",
    "IP=10.22.0.1",
    "IP=10.22.0.0",
    "IP=fd00:22::9",
    "GATEWAY=10.22.0.9",
    "MAC=02:11:22:33:44:66",
    "IP=10.22.0.77/24",
    "IP=10.22.0.77/24;GATEWAY=10.22.0.9",
    "IP=10.22.0.77/24,fd00:22::9/64",
    "GATEWAY=x",
    "GATEWAY=",
    "GATEWAY=192.0.2.9",
];

pub(crate) fn host_local() -> Subject {
    let mut keys = of_all();
    keys.push(key("/ipam", json!({}), json!([{"type": "host-local"}])));
    keys.push(key("/ipam/type", json!("x"), json!([])));
    of_ranges(&mut keys);
    keys.extend(of_routes());
    Subject {
        plugin: "host-local",
        needs: Needs::Files,
        base: config(
            "bridge",
            json!({"ipam": {
                "type": "host-local", "ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]],
                "routes": [{"dst": "203.0.113.0/24"}],
            }}),
        ),
        keys,
        sets: vec![
            json!({"/ipam": {"type": "host-local", "subnet": "10.22.0.0/24"}}),
            json!({"/ipam": {"type": "host-local", "subnet": "10.22.0.0/24", "ranges": []}}),
            json!({"/ipam": {"type": "host-local", "subnet": "", "ranges": [[{"subnet": "10.22.0.0/24"}]]}}),
            json!({"/ipam": {"type": "host-local", "rangeStart": "10.22.0.5", "ranges": [[{"subnet": "10.22.0.0/24"}]]}}),
            json!({"/ipam": {"type": "host-local", "subnet": "10.22.0.0/24", "rangeStart": "10.22.0.9", "rangeEnd": "10.22.0.5"}}),
            json!({"/ipam": {"type": "host-local", "subnet": "10.22.0.0/24", "rangeStart": "10.22.0.9", "rangeEnd": "10.22.0.9", "gateway": "10.22.0.9"}}),
            json!({"/ipam/ranges/0/0/rangeStart": "10.22.0.2", "/ipam/ranges/0/0/rangeEnd": "10.22.0.2"}),
            json!({"/cniVersion": "0.2.0", "/ipam/ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "10.23.0.0/24"}]]}),
            json!({"/cniVersion": "", "/ipam/ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "10.23.0.0/24"}]]}),
            json!({"/runtimeConfig/ips": ["10.22.0.77"], "/args/cni/ips": ["10.22.0.78"]}),
        ],
        args: IPS,
    }
}

pub(crate) fn addresses() -> Subject {
    let mut keys = of_all();
    keys.extend(of_protocol());
    keys.extend([
        key("/ipam", json!({}), json!([{"type": "static"}])),
        key(
            "/ipam/addresses",
            json!([]),
            json!([[{}], [{"address": "10.22.0.5/24"}, {"address": "10.22.0.5/24"}],
            [{"address": "10.22.0.5/24", "gateway": null}]]),
        ),
        key(
            "/ipam/addresses/0/address",
            json!("10.22.0.5/24"),
            json!(["10.22.0.5", "10.22.0.5/33", "::ffff:10.22.0.5/120", "0.0.0.0/0", "10.22.0.05/24"]),
        ),
        key("/ipam/addresses/0/gateway", json!("10.22.0.1"), json!(["10.22.0.1/24", "fd00::1", "10.23.0.1"])),
        key("/ipam/dns", json!({"nameservers": ["192.0.2.53"]}), json!([{"search": []}])),
        key("/ipam/dns/nameservers", json!(["192.0.2.53"]), json!([["x"]])),
        key("/ipam/dns/domain", json!("example.org"), json!([])),
        key("/ipam/dns/search", json!(["example.org"]), json!([])),
        key("/ipam/dns/options", json!(["ndots:5"]), json!([])),
        key(
            "/runtimeConfig/ips",
            json!(["10.22.0.77/24"]),
            json!([["10.22.0.77"], [""], ["10.22.0.77/24", "fd00:22::9/64"]]),
        ),
        key("/args/cni/ips", json!(["10.22.0.77/24"]), json!([["10.22.0.77"], [""]])),
    ]);
    keys.extend(of_routes());
    Subject {
        plugin: "static",
        needs: Needs::Files,
        base: config("bridge", json!({"ipam": static_ipam()})),
        keys,
        sets: vec![
            json!({"/runtimeConfig/ips": ["10.22.0.77/24"], "/args/cni/ips": ["10.22.0.78/24"]}),
            json!({"/runtimeConfig/ips": [], "/args/cni/ips": ["10.22.0.78/24"]}),
            json!({"/cniVersion": "0.2.0", "/ipam/addresses": [{"address": "10.22.0.5/24"}, {"address": "10.22.0.6/24"}]}),
            json!({"/cniVersion": "0.2.0", "/ipam/addresses": []}),
            json!({"/cniVersion": "0.2.0", "/ipam/addresses": [], "/ipam/routes": []}),
        ],
        args: IPS,
    }
}
