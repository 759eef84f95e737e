// SPDX-License-Identifier: GPL-2.0-or-later

//! flannel delegates to bridge and ptp, with addresses from the node's subnet of the cluster network.

use serde_json::{Value, json};
use slipway_tests::{Attach, Network, Node, Pod, Proto, Snapshot, at, is_peer, lacks, skip, slipway_only};

const ENV: &str = "/run/flannel/subnet.env";
const DIR: &str = "/var/lib/cni/flannel";

/// Returns a node with flanneld's file.
fn node() -> Node {
    let node = Node::without_bridge_netfilter();
    node.write(ENV, env("false"));
    node
}

fn env(masquerades: &str) -> String {
    format!(
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_IPV6_NETWORK=fd00:244::/56\n\
         FLANNEL_IPV6_SUBNET=fd00:244:0:3::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ={masquerades}\n"
    )
}

fn network<'n>(node: &'n Node, flannel: Value) -> Network<'n> {
    let mut flannel = flannel;
    flannel["type"] = "flannel".into();
    node.network(json!({"name": "cbr0", "plugins": [
        flannel, {"type": "portmap", "capabilities": {"portMappings": true}},
    ]}))
}

fn state(node: &Node) -> Snapshot {
    let shared = [
        "last_reserved_ip",
        "networks/.slipway/",
        "folder ",
        "/lock",
        " cni0 ",
        "\"cni0\"",
        "nft chain",
        "nft rule",
    ];
    Snapshot::take(node, &[]).without(&shared)
}

/// Containers reach each other, the node, and other hosts, which see the node's address.
#[test]
fn containers_of_a_dual_stack_cluster_reach_each_other_and_the_outside() {
    slipway_only!();
    let node = node();
    let client = node.host("client");
    let network = network(&node, json!({"delegate": {"hairpinMode": true, "isDefaultGateway": true}}));
    network.status().expect("STATUS");
    // The first container of the node creates the tables.
    let first = node.pod("first");
    network.add(&Attach::new(&first).port(Proto::Udp, 53, 53)).expect("ADD");
    network.del(&Attach::new(&first)).expect("DEL");
    first.remove();
    let before = state(&node);
    let (one, two) = (node.pod("one"), node.pod("two"));
    let attach = Attach::new(&one).port(Proto::Tcp, 8080, 80);
    let result = network.add(&attach).expect("ADD");
    assert_eq!(result["ips"][0]["address"], "10.244.3.3/24");
    assert_eq!(result["ips"][1]["address"], "fd00:244:0:3::3/64");
    let routes: Vec<&Value> =
        result["routes"].as_array().expect("routes").iter().map(|r| &r["dst"]).collect();
    assert!(
        routes.contains(&&json!("10.244.0.0/16")) && routes.contains(&&json!("fd00:244::/56")),
        "{routes:?}"
    );
    assert_eq!(one.link("eth0")["mtu"], 1450);
    network.add(&Attach::new(&two)).expect("ADD");
    let _server = one.serve(Proto::Tcp, "0.0.0.0:80", "one");
    two.expect(Proto::Tcp, at([10, 244, 3, 3], 80), "one");
    client.expect(Proto::Tcp, (client.node_v4, 8080), "one");
    // flanneld does not masquerade here, so the delegate does.
    let _outside = client.serve(Proto::Tcp, "0.0.0.0:90", "client");
    let seen = two.expect(Proto::Tcp, (client.v4, 90), "client").peer;
    assert_eq!(seen.ip(), client.node_v4);
    network.check(&attach).expect("CHECK");
    assert_eq!(node.list(DIR), [".slipway", "one", "two"]);
    one.cmd("ip address flush dev eth0 scope global");
    network.check(&attach).expect_err("CHECK of a container without its address");
    network.del(&attach).expect("DEL");
    network.del(&attach).expect("DEL again");
    network.del(&Attach::new(&two).netns("")).expect("DEL without a namespace");
    two.remove();
    one.remove();
    before.assert_same(&state(&node));
    assert_eq!(node.list(DIR), [".slipway"]);
}

/// The delegate's configuration comes from flanneld's file; keys of `delegate` take precedence.
#[test]
fn keys_of_delegate_take_precedence_over_the_file() {
    let node = node();
    node.write(ENV, env("true"));
    let pod = node.pod("pod");
    let network = network(&node, json!({"delegate": {"type": "ptp", "mtu": 1400}, "dataDir": "/run/saved"}));
    network.add(&Attach::new(&pod)).expect("ADD");
    assert_eq!(pod.link("eth0")["mtu"], 1400);
    let saved: Value =
        serde_json::from_str(&node.read("/run/saved/pod").expect("the saved file")).expect("JSON");
    assert_eq!(
        (&saved["type"], &saved["ipMasq"], &saved["name"]),
        (&json!("ptp"), &json!(false), &json!("cbr0"))
    );
    assert!(saved["isGateway"].is_null());
    network.del(&Attach::new(&pod)).expect("DEL");
    assert_eq!(node.read("/run/saved/pod"), None);
}

/// ipvlan in mode l3 routes between the nodes' containers, without a bridge.
#[test]
fn ipvlan_can_be_the_delegate() {
    if let Some(feature) = lacks("ipvlan") {
        skip!(feature);
    }
    let node = node();
    let client = node.host("client");
    // The client acts as another node with a container's address, since containers have a route to flannel's
    // network only.
    client.cmd("ip address add 10.244.9.1/32 dev lo");
    client.cmd(&format!("ip route replace 10.244.3.0/24 via {} src 10.244.9.1", client.node_v4));
    node.cmd(&format!("ip route add 10.244.9.0/24 via {}", client.v4));
    let delegate = json!({"type": "ipvlan", "master": client.node_link, "mode": "l3"});
    let network =
        node.network(json!({"name": "cbr0", "plugins": [{"type": "flannel", "delegate": delegate}]}));
    let (one, two) = (node.pod("one"), node.pod("two"));
    let result = network.add(&Attach::new(&one)).expect("ADD");
    assert_eq!(result["ips"][0]["address"], "10.244.3.2/24");
    network.add(&Attach::new(&two)).expect("ADD");
    let data = &one.link("eth0")["linkinfo"];
    assert_eq!((&data["info_kind"], &data["info_data"]["mode"]), (&json!("ipvlan"), &json!("l3")));
    assert_eq!(one.link("eth0")["mtu"], 1450);
    let _server = one.serve(Proto::Tcp, "0.0.0.0:80", "one");
    two.expect(Proto::Tcp, at([10, 244, 3, 2], 80), "one");
    client.expect(Proto::Tcp, at([10, 244, 3, 2], 80), "one");
    network.check(&Attach::new(&one)).expect("CHECK");
    network.del(&Attach::new(&one)).expect("DEL");
    assert!(!one.has_link("eth0"));
    network.del(&Attach::new(&two).netns("")).expect("DEL without a namespace");
    assert_eq!(node.list(DIR), [".slipway"]);
}

/// A repeated ADD fails, and the container keeps its interface and addresses.
#[test]
fn a_second_add_leaves_the_first_alone() {
    slipway_only!();
    let node = node();
    let pod = node.pod("pod");
    let network = network(&node, json!({}));
    let attach = Attach::new(&pod);
    network.add(&attach).expect("ADD");
    let before = Snapshot::take(&node, &[&pod]);
    let again =
        node.network(json!({"name": "cbr0", "plugins": [{"type": "flannel", "delegate": {"mtu": 1300}}]}));
    let failure = again.add(&attach).expect_err("a second ADD");
    assert!(failure.error.msg.contains("already exists"), "{failure}");
    before.assert_same(&Snapshot::take(&node, &[&pod]));
    network.check(&attach).expect("CHECK");
    network.del(&attach).expect("DEL");
    assert!(!pod.has_link("eth0"));
}

/// The reference plugin deletes its saved configuration even if the delegate's DEL fails.
#[test]
fn a_failed_del_can_be_repeated() {
    let node = node();
    let pod = node.pod("pod");
    let network = network(&node, json!({}));
    let attach = Attach::new(&pod);
    network.add(&attach).expect("ADD");
    let reserved = || node.list("/var/lib/cni/networks/cbr0").contains(&"10.244.3.2".to_owned());
    assert!(reserved());
    // The saved IPAM plugin does not exist, so DEL fails.
    let config = network.configs(Some(&attach)).remove(0);
    let intact: Value = {
        let text = node.read(&format!("{DIR}/pod")).expect("the saved file");
        let mut saved: Value = serde_json::from_str(&text).expect("JSON");
        saved["ipam"]["type"] = "absent".into();
        for name in [format!("{DIR}/pod"), format!("{DIR}/.slipway/pod:eth0")] {
            node.write(&name, saved.to_string());
        }
        serde_json::from_str(&text).expect("JSON")
    };
    let error = network.call("DEL", &config, Some(&attach)).error();
    assert!(error.msg.contains("absent"), "{error:?}");
    assert!(node.read(&format!("{DIR}/pod")).is_some() && reserved());
    for name in [format!("{DIR}/pod"), format!("{DIR}/.slipway/pod:eth0")] {
        node.write(&name, intact.to_string());
    }
    network.del(&attach).expect("DEL");
    assert!(node.read(&format!("{DIR}/pod")).is_none() && !reserved());
}

/// DEL of an attachment made by the reference plugin reads that plugin's file. DEL of one of a container's two
/// attachments keeps the other's file.
#[test]
fn files_are_shared_with_the_reference() {
    let node = node();
    let pod = node.pod("pod");
    let network = network(&node, json!({}));
    let (first, second) = (Attach::new(&pod), Attach::new(&pod).ifname("eth1"));
    network.add(&first).expect("ADD");
    node.cmd(&format!("rm {DIR}/.slipway/pod:eth0"));
    network.del(&first).expect("DEL of the reference's attachment");
    assert_eq!(node.list(DIR), [".slipway"]);
    network.add(&first).expect("ADD");
    network.add(&second).expect("ADD");
    network.del(&first).expect("DEL");
    assert!(node.read(&format!("{DIR}/pod")).is_some());
    network.check(&second).expect("CHECK");
    network.del(&second).expect("DEL");
    assert_eq!(
        (node.list(DIR), node.list(&format!("{DIR}/.slipway"))),
        (vec![".slipway".to_owned()], vec![])
    );
}

#[test]
fn gc_removes_stale_attachments() {
    let node = node();
    let network = network(&node, json!({}));
    let pods = ["one", "two", "three"].map(|name| node.pod(name));
    let attach: Vec<Attach> = pods.iter().map(Attach::new).collect();
    for one in &attach {
        network.add(one).expect("ADD");
    }
    // GC keeps files of other networks.
    node.write(&format!("{DIR}/foreign"), r#"{"name":"other","type":"bridge"}"#);
    network.forget();
    // GC works without flanneld's file.
    node.cmd(&format!("rm {ENV}"));
    network.gc(&[&attach[0]]).expect("GC");
    assert_eq!(node.list(DIR), [".slipway", "foreign", "one"]);
    let reserved = node.list("/var/lib/cni/networks/cbr0");
    assert!(
        reserved.contains(&"10.244.3.2".to_owned()) && !reserved.contains(&"10.244.3.3".to_owned()),
        "{reserved:?}"
    );
}

/// GC also deletes attachments that were made with another configuration or by the reference plugin.
#[test]
fn gc_uses_the_saved_configuration() {
    slipway_only!();
    let node = node();
    let earlier = earlier(&node);
    let by_ptp = network(&node, json!({"delegate": {"type": "ptp"}}));
    let today = network(&node, json!({}));
    let pods = ["one", "two", "three", "four"].map(|name| node.pod(name));
    let [one, two, three, four] = pods.each_ref().map(Attach::new);
    for attach in [&one, &two, &three] {
        earlier.add(attach).expect("ADD");
    }
    by_ptp.add(&four).expect("ADD");
    // The reference plugin's file does not name the interface.
    node.cmd(&format!("rm {DIR}/.slipway/two:eth0"));
    pods.into_iter().filter(|pod| pod.name() != "three").for_each(Pod::remove);
    today.gc(&[&three]).expect("GC");
    assert_eq!(node.list(DIR), [".slipway", "three"]);
    assert_eq!(node.list(&format!("{DIR}/.slipway")), ["three:eth0"]);
    assert_eq!(reservations(&node, "/run/elsewhere/cbr0"), ["10.244.4.4"]);
    assert_eq!(reservations(&node, "/var/lib/cni/networks/cbr0"), Vec::<String>::new());
    earlier.check(&three).expect("CHECK of the valid attachment");
    earlier.del(&three).expect("DEL");
}

/// Returns the network with an earlier configuration.
fn earlier(node: &Node) -> Network<'_> {
    node.write("/run/elsewhere.env", env("false").replace("244.3.1", "244.4.1").replace(":3::1", ":4::1"));
    let (delegate, ipam) = (json!({"bridge": "cni1"}), json!({"dataDir": "/run/elsewhere"}));
    network(node, json!({"subnetFile": "/run/elsewhere.env", "delegate": delegate, "ipam": ipam}))
}

fn reservations(node: &Node, dir: &str) -> Vec<String> {
    node.list(dir).into_iter().filter(|name| name.starts_with("10.")).collect()
}

/// GC keeps the saved configuration of an attachment that it cannot delete, and deletes all others.
#[test]
fn gc_continues_after_an_error() {
    slipway_only!();
    let node = node();
    let earlier = earlier(&node);
    let pods = ["one", "two", "three"].map(|name| node.pod(name));
    let attach: Vec<Attach> = pods.iter().map(Attach::new).collect();
    for one in &attach[..2] {
        earlier.add(one).expect("ADD");
    }
    network(&node, json!({})).add(&attach[2]).expect("ADD");
    let file = format!("{DIR}/.slipway/one:eth0");
    let saved = node.read(&file).expect("the saved file");
    node.write(&file, saved.replace("host-local", "absent"));
    pods.into_iter().for_each(Pod::remove);
    let flannel = |keys: Value| {
        let failures = network(&node, keys).gc_plugins(&json!([])).expect_err("GC");
        assert_eq!(failures.len(), 1, "{failures:?}");
        failures[0].error.clone()
    };
    let error = flannel(json!({}));
    assert!(error.msg.contains("absent") && error.msg.contains("one"), "{error:?}");
    assert_eq!(node.list(&format!("{DIR}/.slipway")), ["one:eth0"]);
    assert_eq!(reservations(&node, "/run/elsewhere/cbr0"), ["10.244.4.2"]);
    assert_eq!(reservations(&node, "/var/lib/cni/networks/cbr0"), Vec::<String>::new());
    // A configuration that no ADD accepts does not stop GC either.
    node.write(&file, saved);
    assert_eq!(flannel(json!({"delegate": 7})).code, 7);
    assert_eq!(node.list(DIR), [".slipway"]);
    assert_eq!(reservations(&node, "/run/elsewhere/cbr0"), Vec::<String>::new());
}

/// GC does not pass the namespace in its environment on to the delegate.
#[test]
fn gc_deletes_without_a_namespace() {
    slipway_only!();
    let node = node();
    let log =
        "#!/bin/sh\ncat >/dev/null\necho $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS >>/run/log\n";
    node.write("/run/bin/other", log);
    node.cmd("chmod +x /run/bin/other");
    let other = json!({"cniVersion": "1.1.0", "name": "cbr0", "type": "other"});
    node.write(&format!("{DIR}/.slipway/one:eth0"), other.to_string());
    let config = json!({
        "cniVersion": "1.1.0", "name": "cbr0", "type": "flannel", "delegate": {"type": "other"},
        "cni.dev/valid-attachments": [],
    });
    let call = node.plugin("flannel").command("GC").config(&config).env("CNI_PATH", "/run/bin");
    call.env("CNI_NETNS", "/run/netns/chance").run().ok();
    let log = node.read("/run/log").expect("the log");
    assert_eq!(log.lines().next(), Some("DEL one eth0"), "{log}");
    assert_eq!(node.list(&format!("{DIR}/.slipway")), Vec::<String>::new());
}

/// A crash may leave an empty file.
#[test]
fn del_works_with_a_broken_copy_of_the_configuration() {
    slipway_only!();
    let node = node();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let (ours, shared) = (format!("{DIR}/.slipway/pod:eth0"), format!("{DIR}/pod"));
    let gone = |dir: &str| {
        assert_eq!((node.list(DIR), node.read(&ours)), (vec![".slipway".to_owned()], None));
        assert_eq!(reservations(&node, dir), Vec::<String>::new());
        assert!(!pod.has_link("eth0"));
    };
    let today = network(&node, json!({}));
    // One intact copy suffices, and it is needed: the current configuration has other keys.
    let earlier = earlier(&node);
    for broken in [&ours, &shared] {
        for content in ["", "{", "[]", "{}", "{\"type\": 7}"] {
            earlier.add(&attach).expect("ADD");
            node.write(broken, content);
            earlier.check(&attach).expect("CHECK");
            today.del(&attach).expect("DEL");
            gone("/run/elsewhere/cbr0");
            earlier.del(&attach).expect("DEL");
        }
    }
    // Both copies are broken: DEL uses the current configuration.
    for content in ["", "{"] {
        today.add(&attach).expect("ADD");
        for file in [&ours, &shared] {
            node.write(file, content);
        }
        today.check(&attach).expect_err("CHECK");
        node.cmd(&format!("rm {ENV}"));
        today.del(&attach).expect("DEL");
        gone("/var/lib/cni/networks/cbr0");
        node.write(ENV, env("false"));
    }
    // The copy shared by a container's attachments may belong to another network.
    today.add(&attach).expect("ADD");
    node.write(&ours, "");
    let foreign = r#"{"cniVersion":"1.0.0","name":"other","type":"bridge","ipam":{"type":"host-local"}}"#;
    node.write(&shared, foreign);
    today.del(&attach).expect("DEL");
    gone("/var/lib/cni/networks/cbr0");
}

/// DEL needs only `dataDir`; invalid values of other keys do not stop it.
#[test]
fn del_is_not_stopped_by_keys_that_it_does_not_need() {
    let node = node();
    let pod = node.pod("pod");
    let attach = Attach::new(&pod);
    let network = network(&node, json!({}));
    for (key, value) in [
        ("delegate", json!(7)),
        ("subnetFile", json!(7)),
        ("ipam", json!({"routes": 7})),
        ("dataDir", json!(7)),
    ] {
        network.add(&attach).expect("ADD");
        let mut config = network.configs(Some(&attach)).swap_remove(0);
        config[key] = value;
        if !is_peer() {
            assert!(network.call("DEL", &config, Some(&attach)).ok().is_null());
            assert_eq!(reservations(&node, "/var/lib/cni/networks/cbr0"), Vec::<String>::new());
            assert!(!pod.has_link("eth0"));
        }
        network.del(&attach).expect("DEL");
    }
}

#[test]
fn errors_name_the_cause_and_leave_nothing() {
    let node = node();
    let pod = node.pod("pod");
    let before = Snapshot::take(&node, &[&pod]).without(&["folder "]);
    let fails = |flannel: Value, text: &str| {
        let failure = network(&node, flannel).add(&Attach::new(&pod)).expect_err("ADD should fail");
        assert!(failure.error.msg.contains(text), "{failure}");
        before.assert_same(&Snapshot::take(&node, &[&pod]).without(&[
            "folder ",
            "last_reserved_ip",
            "networks/.slipway/",
            "/lock",
        ]));
    };
    fails(
        json!({"delegate": {"type": 1}}),
        "'delegate' dictionary, if present, must have (string) 'type' field",
    );
    fails(json!({"delegate": {"name": "x"}}), "must not have 'name' field, it'll be set by flannel");
    fails(
        json!({"delegate": {"type": "absent"}}),
        "failed to delegate add: failed to find plugin \"absent\"",
    );
    fails(json!({"subnetFile": "/run/none"}), "failed to load flannel 'subnet.env' file: open /run/none");
    node.write("/run/part", "FLANNEL_NETWORK=10.0.0.0/8\nFLANNEL_SUBNET=10.1.0.1/24\n");
    let flannel = json!({"subnetFile": "/run/part"});
    let failure = network(&node, flannel.clone()).status().expect_err("STATUS");
    assert_eq!(failure.error.code, 50);
    assert!(failure.error.msg.contains("/run/part is missing FLANNEL_MTU, FLANNEL_IPMASQ"), "{failure}");
    network(&node, flannel).del(&Attach::new(&pod)).expect("DEL without flanneld's file");
}

/// Another program flushes the ruleset, and `slipway restore` creates the delegate's rules again.
#[test]
fn restore_creates_the_delegates_rules_again() {
    slipway_only!();
    let node = node();
    let client = node.host("client");
    let pod = node.pod("pod");
    let network = network(&node, json!({"delegate": {"isDefaultGateway": true}}));
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    let outside = client.serve(Proto::Tcp, "0.0.0.0:90", "client");
    let whole = node.ruleset();
    node.nft("flush ruleset");
    node.slipway("restore");
    assert_eq!(whole.contains("10.244.3.2"), node.ruleset().contains("10.244.3.2"));
    assert_eq!(pod.expect(Proto::Tcp, (client.v4, 90), "client").peer.ip(), client.node_v4);
    drop(outside);
    network.del(&attach).expect("DEL");
}
