// SPDX-License-Identifier: GPL-2.0-or-later

//! The tuning plugin chained to bridge, as in practice.

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Network, Node, Pod, Proto, Snapshot, host_local, is_peer, newest_version, peer_fails,
    slipway_only, with_keys,
};

const FILE: &str = "/run/cni/tuning/pod_eth0.json";
const MAC: &str = "02:00:00:00:00:07";

/// A network of bridge and tuning, the latter with these keys.
fn network<'a>(node: &'a Node, keys: &Value) -> Network<'a> {
    let tuning = with_keys(json!({"type": "tuning", "capabilities": {"mac": true}}), keys);
    let ipam = host_local("10.1.2.0/24", "fd00:1::/64");
    let bridge = json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": ipam});
    node.network(json!({"name": "net", "plugins": [bridge, tuning]}))
}

fn flag(pod: &Pod, name: &str) -> bool {
    pod.link("eth0")["flags"].as_array().expect("flags").contains(&name.into())
}

#[test]
fn attributes_are_set_and_restored() {
    let node = Node::new();
    let client = node.host("client");
    let pod = node.pod("pod");
    let keys = json!({"mac": MAC, "promisc": true, "mtu": 1300, "allmulti": true, "txQLen": 77});
    let network = network(&node, &keys);
    let attach = Attach::new(&pod);
    let previous = network.add_first(&attach);
    let before = Snapshot::take(&node, &[&pod]);
    let had = pod.link("eth0");

    let result = network.call_one(1, "ADD", &attach, &previous).ok();
    let mut expected = previous.clone();
    expected["interfaces"][2]["mac"] = MAC.into();
    assert_eq!(result, expected, "the result with the new address");
    let link = pod.link("eth0");
    assert_eq!((&link["address"], &link["mtu"], &link["txqlen"]), (&json!(MAC), &json!(1300), &json!(77)));
    assert!(flag(&pod, "PROMISC") && flag(&pod, "ALLMULTI"), "{link}");
    assert!(network.call_one(1, "CHECK", &attach, &result).ok().is_null());
    assert_eq!(node.cmd(&format!("stat -c %a {FILE}")), "600\n");
    // The routes are still there, and neighbours learn the new address.
    for proto in Proto::ALL {
        let server = pod.serve(proto, "0.0.0.0:80", "pod");
        client.expect(proto, ([10, 1, 2, 2], 80), "pod");
        drop(server);
        let server = pod.serve(proto, "[fd00:1::2]:80", "pod");
        client.expect(proto, ([0xfd00, 1, 0, 0, 0, 0, 0, 2], 80), "pod");
        drop(server);
    }

    assert!(network.call_one(1, "DEL", &attach, &result).ok().is_null());
    let link = pod.link("eth0");
    assert_eq!((&link["address"], &link["mtu"]), (&had["address"], &had["mtu"]));
    assert_eq!(link["txqlen"], had["txqlen"]);
    assert!(!flag(&pod, "PROMISC") && !flag(&pod, "ALLMULTI"), "{link}");
    assert_eq!(node.read(FILE), None);
    before.without(&["folder "]).assert_same(&Snapshot::take(&node, &[&pod]).without(&["folder "]));
    assert!(network.call_one(1, "DEL", &attach, &result).ok().is_null(), "a second time");
}

#[test]
fn only_root_can_read_the_folder() {
    peer_fails("the folder has no x for anybody", || {
        let (node, pod) = Node::with_pod();
        network(&node, &json!({"mtu": 1300})).add(&Attach::new(&pod)).expect("ADD");
        assert_eq!(node.cmd("stat -c %a /run/cni /run/cni/tuning"), "755\n700\n");
    });
}

#[test]
fn sysctls_of_the_container_are_set() {
    let (node, pod) = Node::with_pod();
    let network = network(
        &node,
        &json!({"sysctl": {
            "net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.ip_local_port_range": "20000 30000",
            "net/ipv4/conf/all/log_martians": "1",
        }}),
    );
    let attach = Attach::new(&pod);
    let nodes = node.sysctl_get("net/ipv4/ip_local_port_range");
    network.add(&attach).expect("ADD");
    assert_eq!(pod.sysctl_get("net/ipv4/conf/eth0/arp_filter").as_deref(), Some("1"));
    assert_eq!(pod.sysctl_get("net/ipv4/conf/all/log_martians").as_deref(), Some("1"));
    assert_eq!(pod.sysctl_get("net/ipv4/ip_local_port_range").as_deref(), Some("20000\t30000"));
    assert_eq!(node.sysctl_get("net/ipv4/ip_local_port_range"), nodes, "the node's own");
    peer_fails("it looks for a file called IFNAME, and for blanks", || {
        network.check(&attach).expect("CHECK");
    });
    network.del(&attach).expect("DEL");
}

#[test]
fn check_names_the_first_difference() {
    if newest_version() == "1.0.0" {
        return;
    }
    let (node, pod) = Node::with_pod();
    let keys = json!({
        "mac": MAC, "mtu": 1300, "allmulti": true, "txQLen": 77, "sysctl": {"net.ipv4.conf.all.log_martians": "1"},
    });
    let network = network(&node, &keys);
    let attach = Attach::new(&pod);
    network.add(&attach).expect("ADD");
    network.check(&attach).expect("CHECK");
    for (spoil, mend, msg) in [
        (
            "ip link set eth0 address 02:00:00:00:00:09",
            "ip link set eth0 address 02:00:00:00:00:07",
            "Error: Tuning configured Ethernet of eth0 is 02:00:00:00:00:07, current value is 02:00:00:00:00:09",
        ),
        (
            "ip link set eth0 mtu 1400",
            "ip link set eth0 mtu 1300",
            "Error: Tuning configured MTU of eth0 is 1300, current value is 1400",
        ),
        (
            "ip link set eth0 promisc on",
            "ip link set eth0 promisc off",
            "Error: Tuning link eth0 configured promisc is false, current value is 1",
        ),
        (
            "ip link set eth0 allmulticast off",
            "ip link set eth0 allmulticast on",
            "Error: Tuning configured all-multicast mode of eth0 is true, current value is false",
        ),
        (
            "ip link set eth0 txqueuelen 78",
            "ip link set eth0 txqueuelen 77",
            "Error: Tuning configured Transmit Queue Length of eth0 is 77, current value is 78",
        ),
    ] {
        pod.cmd(spoil);
        let failure = tuning_check(&network, &attach);
        if !is_peer() {
            assert_eq!(failure, msg, "{spoil}");
        }
        pod.cmd(mend);
    }
    pod.sysctl("net/ipv4/conf/all/log_martians", "0");
    let msg =
        "Error: Tuning configured value of /proc/sys/net/ipv4/conf/all/log_martians is 1, current value is 0";
    assert_eq!(tuning_check(&network, &attach), msg);
}

fn tuning_check(network: &Network<'_>, attach: &Attach) -> String {
    let previous = network.cached(attach).expect("a result");
    network.call_one(1, "CHECK", attach, &previous).error().msg
}

#[test]
fn an_administrators_list_limits_the_sysctls() {
    let node = Node::new();
    node.cmd("cp -a /etc /run/etc");
    node.cmd("mount --bind /run/etc /etc");
    node.write("/etc/cni/tuning/allowlist.conf", "^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\n\n  somaxconn\n");
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let yes = json!({"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "500"});
    let allowed = network(&node, &json!({"sysctl": yes}));
    allowed.add(&attach).expect("ADD");
    allowed.del(&attach).expect("DEL");
    let no = json!({"net.ipv4.conf.all.arp_filter": "1"});
    let refused = network(&node, &json!({"sysctl": no}));
    let before = Snapshot::take(&node, &[&pod]).without(&["folder ", "last_reserved_ip", "networks/", "br0"]);
    let error = refused.add(&attach).expect_err("not allowed").error;
    assert_eq!(
        error.msg,
        "Sysctl net.ipv4.conf.all.arp_filter is not allowed. Only the following sysctls are allowed: \
         [^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$ somaxconn]"
    );
    assert_eq!(pod.sysctl_get("net/ipv4/conf/all/arp_filter").as_deref(), Some("0"));
    refused.del(&attach).expect("DEL");
    before.assert_same(&Snapshot::take(&node, &[&pod]).without(&[
        "folder ",
        "last_reserved_ip",
        "networks/",
        "br0",
    ]));
    if !is_peer() {
        let unavailable = refused.status().expect_err("STATUS").error;
        assert_eq!(unavailable.code, 50, "{unavailable:?}");
        // An invalid list allows nothing.
        node.write("/etc/cni/tuning/allowlist.conf", "(");
        let error = allowed.add(&attach).expect_err("a wrong list").error;
        assert!(error.msg.starts_with("/etc/cni/tuning/allowlist.conf: "), "{error:?}");
        network(&node, &json!({"mtu": 1300}))
            .status()
            .expect("STATUS without sysctls does not need the list");
    }
}

/// The list may be a symbolic link, as in a mounted ConfigMap and in some distributions.
#[test]
fn the_administrators_list_may_be_a_symbolic_link() {
    let node = Node::new();
    node.own_etc();
    node.write("/etc/cni/tuning/..data/allowlist.conf", "^net\\.core\\.somaxconn$\n");
    node.cmd("ln -s ..data/allowlist.conf /etc/cni/tuning/allowlist.conf");
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let allowed = network(&node, &json!({"sysctl": {"net.core.somaxconn": "500"}}));
    let refused = network(&node, &json!({"sysctl": {"net.ipv4.ip_forward": "1"}}));
    allowed.add(&attach).expect("ADD");
    allowed.check(&attach).expect("CHECK");
    allowed.del(&attach).expect("DEL");
    let why = "Sysctl net.ipv4.ip_forward is not allowed. ";
    let error = refused.add(&attach).expect_err("not allowed").error;
    assert!(error.msg.starts_with(why), "{error:?}");
    refused.del(&attach).expect("DEL");
    slipway_only!();
    allowed.status().expect("STATUS");
    let error = refused.status().expect_err("STATUS").error;
    assert!(error.code == 50 && error.msg.starts_with(why), "{error:?}");
    // A dangling link does not count as a missing list, because a missing list would allow everything.
    let tuning = "/etc/cni/tuning";
    for gone in [
        vec![format!("mv {tuning}/..data /run/data")],
        vec![format!("mv {tuning} /run/list"), format!("ln -s none {tuning}")],
    ] {
        gone.iter().for_each(|line| drop(node.cmd(line)));
        let error = allowed.add(&attach).expect_err("nothing is allowed").error;
        assert_eq!(error.code, 5, "{error:?}");
        assert!(error.msg.contains("open /etc/cni/tuning/allowlist.conf: "), "{error:?}");
        assert_eq!(allowed.status().expect_err("STATUS").error.code, 50);
        allowed.del(&attach).expect("DEL");
    }
}

#[test]
fn nothing_outside_of_net_is_written() {
    let (node, _pod, attach) = Node::with_attachment();
    let hostname = node.sysctl_get("kernel/hostname");
    for key in
        ["kernel.hostname", "net/../kernel/hostname", "net.ipv4.IFNAME./../../kernel/hostname", "/etc/passwd"]
    {
        let network = network(&node, &json!({"sysctl": {key: "taken"}}));
        let previous = network.add_first(&attach);
        let error = network.call_one(1, "ADD", &attach, &previous).error();
        if !is_peer() {
            assert_eq!((error.code, error.msg.as_str()), (7, &*format!("invalid net sysctl key: {key:?}")));
        }
        network.del(&attach).expect("DEL");
    }
    assert_eq!(node.sysctl_get("kernel/hostname"), hostname);
}

#[test]
fn a_repeated_key_is_refused() {
    let (node, pod) = Node::with_pod();
    let network = network(&node, &json!({}));
    let attach = Attach::new(&pod);
    let previous = network.add_first(&attach);
    let mut config = network.configs(Some(&attach)).swap_remove(1);
    config["prevResult"] = previous;
    let text = config.to_string();
    let sysctl = r#""sysctl":{"net.core.somaxconn":"1","net.core.somaxconn":"2"},"#;
    let text = text.replacen('{', &format!("{{{sysctl}"), 1);
    let error = node.plugin("tuning").command("ADD").for_pod(&pod).stdin(text).run().error();
    assert_eq!(error.msg, "duplicated sysctl keys are not allowed");
}

#[test]
fn the_runtime_and_the_arguments_override_the_configuration() {
    let (node, _pod, attach) = Node::with_attachment();
    let mac = |network: &Network<'_>, attach: &Attach| {
        let result = network.add(attach).expect("ADD");
        network.del(attach).expect("DEL");
        result["interfaces"][2]["mac"].as_str().expect("a MAC address").to_owned()
    };
    let own = network(&node, &json!({"mac": MAC}));
    assert_eq!(mac(&own, &attach), MAC);
    let [env, runtime, args] = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"];
    let attach = attach.args(&format!("IgnoreUnknown=1;MAC={env}"));
    // bridge uses the address as well, so both plugins set the same one.
    assert_eq!(mac(&own, &attach), env);
    let attach = attach.capability("mac", json!(runtime));
    assert_eq!(mac(&own, &attach), runtime);
    let own = network(&node, &json!({"mac": MAC, "args": {"cni": {"mac": args}}}));
    assert_eq!(mac(&own, &attach), args);
}

#[test]
fn sysctls_may_come_from_the_arguments_only() {
    peer_fails("it crashes", || {
        let (node, pod) = Node::with_pod();
        let network =
            network(&node, &json!({"args": {"cni": {"sysctl": {"net.ipv4.conf.all.log_martians": "1"}}}}));
        network.add(&Attach::new(&pod)).expect("ADD");
        assert_eq!(pod.sysctl_get("net/ipv4/conf/all/log_martians").as_deref(), Some("1"));
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    peer_fails("what was set stays", || {
        let (node, pod, attach) = Node::with_attachment();
        let good = network(&node, &json!({}));
        let previous = good.add_first(&attach);
        let state = || {
            let own = Snapshot::take(&node, &[&pod]).without(&["folder "]);
            (own, pod.sysctl_get("net/ipv4/conf/all/log_martians"), pod.sysctl_get("net/core/somaxconn"))
        };
        let before = state();
        for keys in [
            json!({"sysctl": {"net.core.somaxconn": "77", "net.ipv4.conf.all.no_such": "1"}}),
            json!({"sysctl": {"net.core.somaxconn": "77", "net.ipv4.conf.all.log_martians": "much"}}),
            json!({"sysctl": {"net.core.somaxconn": "77"}, "mac": MAC, "promisc": true, "mtu": 70_000}),
            json!({"sysctl": {"net.core.somaxconn": "77"}, "mtu": 1300, "dataDir": "/run/netns/pod/x"}),
        ] {
            let network = network(&node, &keys);
            let _ = network.call_one(1, "ADD", &attach, &previous).error();
            let after = state();
            before.0.assert_same(&after.0);
            assert_eq!((&before.1, &before.2), (&after.1, &after.2), "{keys}");
        }
    });
}

/// DEL restores the values that the first ADD found.
#[test]
fn a_repeated_add_keeps_the_first_backup() {
    peer_fails("the second ADD takes the first one's work for the original", || {
        let (node, pod, attach) = Node::with_attachment();
        let network = network(&node, &json!({"mac": MAC, "mtu": 1300}));
        let previous = network.add_first(&attach);
        let had = pod.link("eth0");
        for _ in 0..2 {
            let _ = network.call_one(1, "ADD", &attach, &previous).ok();
        }
        let _ = network.call_one(1, "DEL", &attach, &previous).ok();
        let has = pod.link("eth0");
        assert_eq!((&has["address"], &has["mtu"]), (&had["address"], &had["mtu"]));
    });
}

#[test]
fn a_del_needs_neither_an_add_nor_a_namespace() {
    let (node, _pod, attach) = Node::with_attachment();
    let network = network(&node, &json!({"mtu": 1300}));
    // DEL succeeds although nothing was ever added.
    assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null());
    network.add(&attach).expect("ADD");
    assert!(node.read(FILE).is_some());
    for netns in ["", "/run/netns/gone"] {
        assert!(network.call_one(1, "DEL", &attach.clone().netns(netns), &Value::Null).ok().is_null());
    }
    if !is_peer() {
        assert_eq!(node.read(FILE), None, "the backup is not needed any more");
    }
    // DEL also succeeds with an invalid backup file, and with a folder in its place.
    node.write(FILE, "{");
    assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null());
    node.cmd("rm -rf /run/cni/tuning");
    node.write("/run/cni/tuning", "");
    assert!(network.call_one(1, "DEL", &attach, &Value::Null).ok().is_null());
}

/// The backup file of the reference plugin, as version 1.9.1 writes it.
#[test]
fn changes_by_the_reference_are_restored() {
    let (node, pod, attach) = Node::with_attachment();
    let network = network(&node, &json!({"mtu": 1300}));
    let previous = network.add_first(&attach);
    pod.cmd("ip link set eth0 mtu 1300 promisc on");
    node.write(FILE, "{\n \"promisc\": false,\n \"mtu\": 1454,\n \"txQLen\": 999\n}");
    assert!(network.call_one(1, "DEL", &attach, &previous).ok().is_null());
    let link = pod.link("eth0");
    assert_eq!((&link["mtu"], &link["txqlen"]), (&json!(1454), &json!(999)));
    assert!(!flag(&pod, "PROMISC"));
    assert_eq!(node.read(FILE), None);
}

#[test]
fn gc_removes_the_backups_of_stale_attachments() {
    peer_fails("it does nothing", || {
        let node = Node::new();
        let (one, two) = (node.pod("one"), node.pod("two"));
        let network = network(&node, &json!({"mtu": 1300}));
        for pod in [&one, &two] {
            network.add(&Attach::new(pod)).expect("ADD");
        }
        node.write("/run/cni/tuning/others_eth0.json", "{\"mtu\": 1500}");
        network.forget();
        let files = || node.list("/run/cni/tuning");
        network.gc_plugins(&json!([{"containerID": "two", "ifname": "eth0"}])).expect("GC");
        assert_eq!(files(), ["others_eth0.json", "two_eth0.json"]);
        network.gc_plugins(&Value::Null).expect("GC");
        assert_eq!(files(), ["others_eth0.json"]);
        network.gc_plugins(&Value::Null).expect("GC again");
    });
}

#[test]
fn tuning_must_be_chained() {
    let (node, pod) = Node::with_pod();
    let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "tuning"});
    for verb in ["ADD", "CHECK"] {
        let error = node.plugin("tuning").command(verb).for_pod(&pod).config(&config).run().error();
        assert_eq!(error.msg, "Required prevResult missing");
    }
}
