// SPDX-License-Identifier: GPL-2.0-or-later

//! The subjects: for each plugin a configuration that works, and the keys. This file has the plugins that make or move
//! links.

mod chained;
mod ipam;

use serde_json::{Value, json};

pub(crate) use self::chained::{bandwidth, firewall, portmap, sbr, tuning, vrf};
pub(crate) use self::ipam::{addresses, dhcp, host_local};
use crate::cases::{Key, Needs, Subject, key};

fn config(plugin: &str, keys: Value) -> Value {
    let mut all = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin});
    let object = all.as_object_mut().expect("an object");
    object.extend(keys.as_object().cloned().unwrap_or_default());
    all
}

fn host_local_ipam() -> Value {
    json!({
        "type": "host-local",
        "ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd00:22::/64"}]],
    })
}

/// For kinds of links that not every kernel supports. Only refusals are compared, and no link is made.
fn no_ipam() -> Value {
    json!({"type": "none"})
}

fn static_ipam() -> Value {
    json!({
        "type": "static",
        "addresses": [
            {"address": "10.22.0.5/24", "gateway": "10.22.0.1"},
            {"address": "fd00:22::5/64", "gateway": "fd00:22::1"},
        ],
        "routes": [{"dst": "203.0.113.0/24"}],
    })
}

/// The keys that the protocol itself reads, in the same way for all plugins.
fn of_protocol() -> Vec<Key> {
    vec![
        key(
            "/cniVersion",
            json!("1.0.0"),
            json!(["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "9.9.9"]),
        ),
        key("/name", json!("net"), json!(["a b", "-net", "a/b"])),
    ]
}

/// The keys that all plugins have.
fn of_all() -> Vec<Key> {
    vec![
        key("/capabilities", json!({"portMappings": true}), json!([{"x": "y"}])),
        key("/args", json!({"cni": {}}), json!([{"cni": null}, {"cni": []}, {"cni": "x"}])),
        key("/runtimeConfig", json!({}), json!([{"x": 1}])),
    ]
}

fn of_interfaces() -> Vec<Key> {
    let mut keys = of_all();
    keys.extend([
        key("/ipam", json!({}), json!([{"type": "static"}, {"type": "none"}])),
        key("/ipam/type", json!("static"), json!(["none", "a/b"])),
        key("/dns", json!({"nameservers": ["192.0.2.53"]}), json!([{"nameservers": []}, {"search": [""]}])),
        key("/dns/nameservers", json!(["192.0.2.53"]), json!([[""], ["x", "y"]])),
    ]);
    keys
}

fn mac() -> Value {
    json!([
        "02:11:22:33:44:55",
        "02-11-22-33-44-56",
        "0211.2233.4457",
        "01:00:5e:00:00:01",
        "00:00:00:00:00:00",
        "02:11:22:33:44",
        "02:11:22:33:44:55:66:77",
        "ff:ff:ff:ff:ff:ff"
    ])
}

fn mtu() -> Key {
    key(
        "/mtu",
        json!(1400),
        json!([67, 68, 576, 1279, 1280, 1500, 1501, 9000, 65_535, 65_536, "1400", 1400.0]),
    )
}

fn bridge_keys() -> Vec<Key> {
    let mut keys = of_interfaces();
    keys.extend(of_protocol());
    keys.extend([
        key("/dns/domain", json!("example.org"), json!([])),
        key("/dns/search", json!(["example.org"]), json!([["a", "b"]])),
        key("/dns/options", json!(["ndots:5"]), json!([])),
        key("/bridge", json!("br9"), json!(["0123456789abcdef", "a b", "a/b", ".", "up0", "lo"])),
        key("/isGateway", json!(true), json!([false])),
        key("/isDefaultGateway", json!(true), json!([false])),
        key("/forceAddress", json!(true), json!([false])),
        key("/ipMasq", json!(true), json!([false])),
        key("/ipMasqBackend", json!("iptables"), json!(["IPTABLES"])),
        mtu(),
        key("/hairpinMode", json!(true), json!([false])),
        key("/promiscMode", json!(true), json!([false])),
        key("/enabledad", json!(false), json!([])),
        key("/disableContainerInterface", json!(true), json!([false])),
        key("/portIsolation", json!(true), json!([false])),
        key("/runtimeConfig/mac", json!("02:11:22:33:44:55"), mac()),
        key("/args/cni/mac", json!("02:11:22:33:44:55"), mac()),
        key("/macspoofchk", json!(false), json!([])),
    ]);
    keys
}

const MACS: &[&str] = &[
    "MAC=02:11:22:33:44:66",
    "MAC=",
    "MAC=x",
    "mac=02:11:22:33:44:66",
    "FOO=1",
    "IgnoreUnknown=1;FOO=1",
    "IgnoreUnknown=x",
    "IgnoreUnknown=TRUE;FOO=1",
    "IgnoreUnknown=1;MAC=02:11:22:33:44:66",
    "IgnoreUnknown=1;MAC=",
    "MAC=02:11:22:33:44:66;",
    ";",
    "MAC",
    "IgnoreUnknown=1;K8S_POD_NAME=a=b",
];

pub(crate) fn bridge() -> Subject {
    Subject {
        plugin: "bridge",
        needs: Needs::Bridge,
        base: config(
            "bridge",
            json!({"isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables", "ipam": host_local_ipam()}),
        ),
        keys: bridge_keys(),
        sets: vec![
            json!({"/hairpinMode": true, "/promiscMode": true}),
            json!({"/ipam": {}, "/disableContainerInterface": true}),
            json!({"/ipam": null, "/disableContainerInterface": true}),
            json!({"/ipam": {}, "/isDefaultGateway": true}),
            json!({"/ipMasq": false, "/ipMasqBackend": "x"}),
            json!({"/ipMasqBackend": "x", "/ipam": {}}),
            json!({"/isDefaultGateway": true, "/isGateway": false}),
            json!({"/isDefaultGateway": true, "/ipam/routes": [{"dst": "0.0.0.0/0", "gw": "10.22.0.9"}]}),
            json!({"/isDefaultGateway": true, "/ipam/routes": [{"dst": "192.0.2.0/24"}]}),
            json!({"/isGateway": false, "/ipMasq": false}),
            json!({"/isGateway": false, "/ipam/routes": [{"dst": "0.0.0.0/0"}]}),
            json!({"/runtimeConfig/mac": "02:11:22:33:44:55", "/args/cni/mac": "02:11:22:33:44:56"}),
            json!({"/runtimeConfig/mac": "", "/args/cni/mac": "02:11:22:33:44:56"}),
            json!({"/cniVersion": "0.2.0", "/ipam": {}}),
        ],
        args: MACS,
    }
}

/// The keys of routes that host-local and static have.
fn of_routes() -> Vec<Key> {
    vec![
        key(
            "/ipam/routes",
            json!([]),
            json!([[{"dst": "0.0.0.0/0"}], [{"dst": "::/0"}], [{}],
            [{"dst": "192.0.2.7/24"}], [{"dst": "203.0.113.0/24"}, {"dst": "203.0.113.0/24"}]]),
        ),
        key(
            "/ipam/routes/0/dst",
            json!("203.0.113.0/24"),
            json!(["203.0.113.0", "::/0", "203.0.113.9/24", "0.0.0.0/0"]),
        ),
        key("/ipam/routes/0/gw", json!("10.22.0.9"), json!(["10.22.0.1", "fd00:22::9", "10.22.0.9/24"])),
        key("/ipam/routes/0/mtu", json!(1400), json!([])),
        key("/ipam/routes/0/advmss", json!(1300), json!([])),
        key("/ipam/routes/0/priority", json!(100), json!([4_294_967_295_u64])),
        key("/ipam/routes/0/table", json!(100), json!([254, 255])),
        key("/ipam/routes/0/scope", json!(0), json!([253, 254, 255, 256])),
    ]
}

/// The bridges of some kernels do not support VLANs, so no link is made.
pub(crate) fn bridge_vlan() -> Subject {
    Subject {
        plugin: "bridge",
        needs: Needs::Bridge,
        base: config("bridge", json!({"isGateway": true, "ipam": no_ipam()})),
        keys: vec![
            key("/vlan", json!(100), json!([1, 4094, 4095, 65_636])),
            key(
                "/vlanTrunk",
                json!([{"id": 101}]),
                json!([
                        [{"minID": 200, "maxID": 210}], [{"minID": 210, "maxID": 200}], [{"minID": 200}], [{"maxID": 200}],
                        [{"minID": 0, "maxID": 5}], [{"id": 0}], [{"id": 4095}], [{"id": 1}], [{"id": "x"}], [{"id": null}],
                        [{"minID": 200, "maxID": 210, "id": 300}], [{"id": 101}, {"id": 101}],
                        [{"minID": 1, "maxID": 4094}], [{"minID": 5, "maxID": 4095}],
                ]),
            ),
            key("/preserveDefaultVlan", json!(true), json!([false])),
        ],
        sets: vec![
            json!({"/vlan": 100, "/isGateway": false}),
            json!({"/vlan": 100, "/preserveDefaultVlan": true}),
            json!({"/vlan": 100, "/vlanTrunk": [{"minID": 90, "maxID": 110}]}),
            json!({"/vlan": 1}),
            json!({"/vlan": 0, "/vlanTrunk": [{"id": 7}]}),
        ],
        args: &[],
    }
}

pub(crate) fn bridge_ipam() -> Subject {
    Subject {
        plugin: "bridge",
        needs: Needs::Bridge,
        base: config("bridge", json!({"isGateway": true, "ipam": static_ipam()})),
        keys: of_routes(),
        sets: vec![
            json!({"/ipam/addresses": []}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/24"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/32"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/31"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/0"}]}),
            json!({"/ipam/addresses": [{"address": "0.0.0.0/24"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.0/24"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.255/24"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/24", "gateway": "192.0.2.77"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/24"}, {"address": "10.22.0.6/24"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/24"}, {"address": "10.23.0.6/24"}], "/forceAddress": true}),
            json!({"/ipam/routes": [{"dst": "0.0.0.0/0", "mtu": 1400}]}),
            json!({"/ipam/routes": [{"dst": "203.0.113.0/24", "gw": "10.22.0.9"}, {"dst": "203.0.113.0/24", "gw": "10.22.0.8"}]}),
            json!({"/ipam/routes": [{"dst": "203.0.113.0/24", "table": 100}, {"dst": "0.0.0.0/0", "table": 100}]}),
            json!({"/ipam/dns": {"nameservers": ["192.0.2.53"]}}),
            json!({"/ipam/dns": {"nameservers": ["192.0.2.53"]}, "/dns": {"nameservers": []}}),
            json!({"/ipam/dns": {"nameservers": ["192.0.2.53"]}, "/dns": {"domain": "example.org"}}),
        ],
        args: &[],
    }
}

pub(crate) fn dummy() -> Subject {
    Subject {
        plugin: "dummy",
        needs: Needs::Nothing,
        base: config("dummy", json!({"ipam": no_ipam()})),
        keys: of_interfaces(),
        sets: vec![],
        args: &["FOO=1"],
    }
}

pub(crate) fn host_device() -> Subject {
    let mut keys = of_interfaces();
    keys.extend([
        key("/device", json!("up0"), json!(["none", "lo", "0123456789abcdef0"])),
        key("/hwaddr", json!("02:11:22:33:00:01"), mac()),
        key("/kernelpath", json!("/sys/devices/virtual/net/up0"), json!(["/sys/x", "/sys/devices/../x"])),
        key("/pciBusID", json!("0000:00:1f.6"), json!(["../x"])),
        key("/runtimeConfig/deviceID", json!("0000:00:1f.6"), json!(["../x"])),
    ]);
    Subject {
        plugin: "host-device",
        needs: Needs::Nothing,
        base: config("host-device", json!({"device": "up0", "ipam": static_ipam()})),
        keys,
        sets: vec![
            json!({"/device": "", "/hwaddr": "02:11:22:33:00:01"}),
            json!({"/device": "", "/hwaddr": "02-11-22-33-00-01"}),
            json!({"/device": "", "/hwaddr": "02:11:22:33:00:99"}),
            json!({"/device": null, "/hwaddr": "02:11:22:33:00:01"}),
            json!({"/device": "", "/kernelpath": "/sys/devices/virtual/net/up0"}),
            json!({"/device": "", "/pciBusID": "0000:00:1f.6"}),
            json!({"/device": "up0", "/runtimeConfig/deviceID": "x"}),
            json!({"/ipam": {}}),
            json!({"/ipam": {}, "/cniVersion": "0.2.0"}),
        ],
        args: &["FOO=1"],
    }
}

pub(crate) fn ipvlan() -> Subject {
    let mut keys = of_interfaces();
    keys.extend([
        key("/master", json!("up0"), json!(["none", "0123456789abcdef0"])),
        key("/mode", json!("l3"), json!(["l2", "l3s", "L2"])),
        mtu(),
        key("/linkInContainer", json!(true), json!([false])),
    ]);
    Subject {
        plugin: "ipvlan",
        needs: Needs::Nothing,
        base: config("ipvlan", json!({"master": "up0", "ipam": no_ipam()})),
        keys,
        sets: vec![],
        args: &["FOO=1"],
    }
}

pub(crate) fn loopback() -> Subject {
    let mut keys = of_all();
    keys.extend(of_protocol());
    keys.extend([
        key("/ipam", json!({}), json!([])),
        key("/prevResult", json!({}), json!([{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.1/8"}]}])),
    ]);
    Subject {
        plugin: "loopback",
        needs: Needs::Nothing,
        base: config("loopback", json!({})),
        keys,
        sets: vec![],
        args: &["FOO=1"],
    }
}

pub(crate) fn macvlan() -> Subject {
    let mut keys = of_interfaces();
    keys.extend([
        key("/master", json!("up0"), json!(["none", "0123456789abcdef0", "lo"])),
        key("/mode", json!("bridge"), json!(["private", "vepa", "passthru", "Bridge", "source"])),
        mtu(),
        key("/mac", json!("02:11:22:33:44:55"), mac()),
        key("/runtimeConfig/mac", json!("02:11:22:33:44:55"), mac()),
        key("/args/cni/mac", json!("02:11:22:33:44:55"), json!([])),
        key("/linkInContainer", json!(true), json!([false])),
        key("/bcqueuelen", json!(2000), json!([1])),
    ]);
    Subject {
        plugin: "macvlan",
        needs: Needs::Nothing,
        base: config("macvlan", json!({"master": "up0", "ipam": static_ipam()})),
        keys,
        sets: vec![
            json!({"/mac": "02:11:22:33:44:55", "/runtimeConfig/mac": "02:11:22:33:44:56"}),
            json!({"/ipam": {}, "/dns": {"nameservers": ["192.0.2.53"]}}),
            json!({"/ipam": {}, "/cniVersion": "0.2.0"}),
            json!({"/ipam/dns": {"nameservers": ["192.0.2.53"]}}),
            json!({"/ipam/addresses": []}),
        ],
        args: MACS,
    }
}

pub(crate) fn ptp() -> Subject {
    let mut keys = of_interfaces();
    keys.extend([
        key("/ipMasq", json!(true), json!([false])),
        key("/ipMasqBackend", json!("iptables"), json!(["IPTABLES"])),
        mtu(),
    ]);
    keys.extend(of_routes());
    Subject {
        plugin: "ptp",
        needs: Needs::Nothing,
        base: config("ptp", json!({"ipMasq": true, "ipMasqBackend": "iptables", "ipam": static_ipam()})),
        keys,
        sets: vec![
            json!({"/ipam/addresses": []}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/24"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/31", "gateway": "10.22.0.4"}]}),
            json!({"/ipam/addresses": [{"address": "10.22.0.5/24", "gateway": "192.0.2.77"}]}),
            json!({"/ipMasq": false, "/ipMasqBackend": "x"}),
            json!({"/ipam/dns": {"nameservers": ["192.0.2.53"]}}),
        ],
        args: &["FOO=1"],
    }
}

pub(crate) fn tap() -> Subject {
    let mut keys = of_interfaces();
    keys.extend([
        key("/multiQueue", json!(true), json!([false])),
        mtu(),
        key("/mac", json!("02:11:22:33:44:55"), mac()),
        key("/runtimeConfig/mac", json!("02:11:22:33:44:55"), mac()),
        key("/owner", json!(1000), json!([4_294_967_295_u64])),
        key("/group", json!(1000), json!([4_294_967_295_u64])),
        key("/selinuxContext", json!(""), json!([])),
        key("/bridge", json!(""), json!(["none", "lo"])),
    ]);
    Subject {
        plugin: "tap",
        needs: Needs::Nothing,
        base: config("tap", json!({"ipam": {"type": "static", "addresses": [{"address": "10.22.0.5/24"}]}})),
        keys,
        sets: vec![
            json!({"/owner": 0, "/group": 0}),
            json!({"/owner": 1000, "/group": 1000, "/multiQueue": true}),
        ],
        args: MACS,
    }
}

pub(crate) fn vlan() -> Subject {
    let mut keys = of_interfaces();
    keys.extend([
        key("/master", json!("up0"), json!(["none", "0123456789abcdef0"])),
        key("/vlanId", json!(100), json!([1, 4094, 4095, 65_636])),
        mtu(),
        key("/linkInContainer", json!(true), json!([false])),
    ]);
    Subject {
        plugin: "vlan",
        needs: Needs::Nothing,
        base: config("vlan", json!({"master": "up0", "vlanId": 100, "ipam": no_ipam()})),
        keys,
        sets: vec![],
        args: &["FOO=1"],
    }
}
