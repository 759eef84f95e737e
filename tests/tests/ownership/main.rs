// SPDX-License-Identifier: GPL-2.0-or-later

//! Which attachment owns an object, and when the owner is gone: a network that was renamed, an ADD that comes twice,
//! and a runtime that has lost its cache.

mod addresses;
mod detach;
mod former_name;
mod inode;
mod undo;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Network, Node, Pod, Proto, Snapshot, address_of, at, has_programs, host_local, limited,
    slipway_only, tuned, with_keys,
};

const PORT: u16 = 8080;
/// An ID as container runtimes generate them, which is too long for a comment.
const ID: &str = "2f1c1cbe6d4cd08a3cdb1e5fa1e7c2a9ff84a1f6ce0e7b0ab52cf6ab2a5b3f04";

fn backends() -> Vec<&'static str> {
    let all = ["nftables", "iptables", "ebpf"].into_iter();
    all.filter(|backend| *backend != "ebpf" || has_programs()).collect()
}

fn ipam() -> Value {
    host_local("10.22.0.0/24", "fd00:22::/64")
}

/// A list with a plugin for each place that stores owned objects.
fn list(name: &str, interface: &str, backend: &str, masquerade: bool) -> Value {
    let own = json!({
        "type": interface, "isGateway": true, "ipMasq": masquerade, "ipMasqBackend": backend,
        "macspoofchk": interface == "bridge", "ipam": ipam(),
    });
    let firewall = if backend == "iptables" { "iptables" } else { "nftables" };
    json!({"name": name, "plugins": [
        own,
        {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
        {"type": "firewall", "backend": firewall},
        limited(),
        with_keys(tuned(), &json!({"mac": null})),
    ]})
}

fn attach(pod: &Pod) -> Attach {
    Attach::new(pod).container(ID).port(Proto::Tcp, PORT, 80)
}

/// The state that is compared: everything except host-local's own files.
fn state(node: &Node) -> Snapshot {
    Snapshot::take(node, &[]).without(&["last_reserved_ip", "networks/.slipway/", "/lock"])
}

/// Calls ADD under one name of the network and DEL under another one. With `lose`, the namespace disappears in between.
#[track_caller]
fn renamed(list_of: &dyn Fn(&str) -> Value, lose: bool) {
    let node = Node::new();
    let (old, new) = (node.network(list_of("old")), node.network(list_of("new")));
    // A first container creates all shared objects.
    for network in [&old, &new] {
        let first = node.pod("first");
        network.add(&attach(&first)).expect("the first ADD");
        network.del(&attach(&first)).expect("its DEL");
        first.remove();
    }
    let before = state(&node);
    for network in [&old, &new] {
        // As the control, the first round calls DEL under the old name.
        let pod = node.pod("web");
        old.add(&attach(&pod)).expect("ADD");
        let attach = attach(&pod);
        let pod = if lose {
            pod.remove();
            None
        } else {
            Some(pod)
        };
        network.del(&attach).expect("DEL");
        pod.into_iter().for_each(Pod::remove);
        before.assert_same(&state(&node));
    }
}

#[test]
fn del_under_the_new_name_of_a_network_removes_all_that_the_old_one_has_made() {
    slipway_only!();
    for backend in backends() {
        for interface in ["bridge", "ptp"] {
            renamed(&|name| list(name, interface, backend, true), false);
            renamed(&|name| list(name, interface, backend, false), false);
        }
    }
}

#[test]
fn del_under_the_new_name_finds_what_a_container_that_is_gone_has_left() {
    slipway_only!();
    for backend in backends() {
        for interface in ["bridge", "ptp"] {
            renamed(&|name| list(name, interface, backend, true), true);
        }
    }
}

/// A runtime calls DEL after an ADD that was refused because the interface belongs to another network.
#[test]
fn del_of_a_network_beside_another_one_leaves_that_alone() {
    slipway_only!();
    let node = Node::new();
    let list_of = |name| list(name, "bridge", "nftables", true);
    let mut file = list_of("first");
    file["cniVersion"] = "1.0.0".into();
    node.own_etc();
    node.write("/etc/cni/net.d/10-first.conflist", file.to_string());
    let (first, second) = (node.network(list_of("first")), node.network(list_of("second")));
    let pod = node.pod("web");
    first.add(&attach(&pod)).expect("ADD");
    // As with the reference plugin, the backup file of tuning is named only after the container and the interface.
    let state = |node: &Node| state(node).without(&["/run/cni/tuning", "10-first.conflist"]);
    let before = state(&node);
    assert!(second.add(&attach(&pod)).is_err());
    second.del(&attach(&pod)).expect("DEL");
    before.assert_same(&state(&node));
    // An installer is writing the file at this moment.
    let text = file.to_string();
    for part in [&text[..0], &text[..text.len() / 2]] {
        node.write("/etc/cni/net.d/10-first.conflist", part);
        second.del(&attach(&pod)).expect("DEL");
        before.assert_same(&state(&node));
    }
    // As the control, the first network counts as a former name of the second once its configuration is gone. Files that
    // are no network's do not change that.
    node.write("/etc/cni/net.d/98-damaged.conflist", "{");
    node.cmd("touch -d '5 minutes ago' /etc/cni/net.d/98-damaged.conflist");
    node.write("/etc/cni/net.d/99-loopback.conf", r#"{"cniVersion": "0.3.1", "type": "loopback"}"#);
    node.cmd("ln -s nowhere /etc/cni/net.d/97-dangling.conflist");
    node.cmd("rm /etc/cni/net.d/10-first.conflist");
    second.del(&attach(&pod)).expect("DEL");
    assert!(!pod.has_link("eth0") && node.reserved("first").is_empty());
}

/// A link of another kind shows that the owner of the records is alive.
#[test]
fn del_leaves_the_address_of_a_link_of_another_kind_alone() {
    slipway_only!();
    let node = Node::new();
    node.cmd("ip link add up0 up type veth peer name up1");
    let single = node.network(json!({"name": "single", "plugins": [
        {"type": "macvlan", "master": "up0", "ipam": ipam()},
    ]}));
    let bridged = node.network(json!({"name": "bridged", "plugins": [{"type": "bridge", "ipam": ipam()}]}));
    let (pod, other) = (node.pod("web"), node.pod("other"));
    single.add(&attach(&pod)).expect("ADD");
    single.write_cache(&attach(&pod));
    bridged.del(&attach(&pod)).expect("DEL");
    assert!(pod.has_link("eth0"));
    assert_eq!(node.reserved("single").len(), 2);
    // The same with the networks exchanged.
    let attach = attach(&other).container("other");
    bridged.add(&attach).expect("ADD");
    bridged.write_cache(&attach);
    single.del(&attach).expect("DEL");
    assert!(other.has_link("eth0"));
    assert_eq!(node.reserved("bridged").len(), 2);
}

#[test]
fn del_under_the_new_name_removes_a_single_link_and_its_address() {
    slipway_only!();
    let node = Node::new();
    node.cmd("ip link add up0 up type veth peer name up1");
    let of = |name: &str| {
        node.network(json!({"name": name, "plugins": [
            {"type": "macvlan", "master": "up0", "ipam": ipam()},
        ]}))
    };
    let (old, new) = (of("old"), of("new"));
    let pod = node.pod("web");
    old.add(&attach(&pod)).expect("ADD");
    assert_eq!(node.reserved("old").len(), 2);
    new.del(&attach(&pod)).expect("DEL");
    assert!(!pod.has_link("eth0") && node.reserved("old").is_empty());
}

#[test]
fn the_cache_of_the_runtime_shows_that_a_reservation_is_of_a_container_that_is_gone() {
    slipway_only!();
    let node = Node::new();
    let of = |name: &str| node.network(json!({"name": name, "plugins": [{"type": "ptp", "ipam": ipam()}]}));
    let (old, new) = (of("old"), of("new"));
    let pod = node.pod("web");
    let attach = attach(&pod);
    old.add(&attach).expect("ADD");
    pod.remove();
    // Without a record, as with the reference plugin, nothing shows that the owner is gone.
    for address in node.reserved("old") {
        let file = format!("/var/lib/cni/networks/old/{address}");
        let text = node.read(&file).expect("the reservation");
        node.cmd(&format!("rm {file}"));
        node.write(&file, text);
    }
    new.del(&attach).expect("DEL");
    assert_eq!(node.reserved("old").len(), 2);
    old.write_cache(&attach);
    new.del(&attach).expect("DEL");
    assert!(node.reserved("old").is_empty());
}

#[test]
fn a_reservation_shows_whether_its_container_is_gone() {
    slipway_only!();
    let node = Node::new();
    let of = |name: &str| node.network(json!({"name": name, "plugins": [{"type": "ptp", "ipam": ipam()}]}));
    let (old, new) = (of("old"), of("new"));
    let pod = node.pod("web");
    let attach = attach(&pod);
    old.add(&attach).expect("ADD");
    new.del(&attach.clone().netns("")).expect("DEL without a namespace");
    assert_eq!(node.reserved("old").len(), 2, "the container runs");
    pod.remove();
    let is_freed = || {
        new.del(&attach).expect("DEL");
        node.reserved("old").is_empty()
    };
    // The kernel removes the namespace, and the node's end of the pair, some time after the path is gone.
    assert!(slipway_tests::comes(is_freed), "{:?}", node.reserved("old"));
}

/// Two runtimes may use the same container ID.
#[test]
fn del_leaves_a_container_of_the_same_id_in_another_namespace_alone() {
    slipway_only!();
    for backend in backends() {
        let (node, client) = Node::with_client();
        let of = |name: &str| {
            let mut list = list(name, "bridge", backend, true);
            // tuning is left out, because its file is named only after the container's ID and the interface, as with
            // the reference plugin.
            list["plugins"].as_array_mut().expect("plugins").pop();
            node.network(list)
        };
        let (old, new) = (of("old"), of("new"));
        let (one, two) = (node.pod("one"), node.pod("two"));
        old.add(&attach(&one)).expect("ADD");
        let before = state(&node);
        new.del(&attach(&two)).expect("DEL");
        new.del(&attach(&two).netns("/run/netns/none")).expect("DEL of a namespace that is gone");
        new.del(&attach(&two).netns("")).expect("DEL without a namespace");
        before.assert_same(&state(&node));
        let _server = one.serve(Proto::Tcp, "0.0.0.0:80", "one");
        client.expect(Proto::Tcp, at(client.node_v4, PORT), "one");
    }
}

#[test]
fn a_bridge_gives_no_container_the_address_of_a_living_one() {
    slipway_only!();
    let node = Node::new();
    let of = |name: &str, bridge: &str| {
        let plugin = json!({"type": "bridge", "bridge": bridge, "isGateway": true, "ipam": ipam(),
            "capabilities": {"ips": true}});
        node.network(json!({"name": name, "plugins": [plugin]}))
    };
    let (old, new, other) = (of("old", "br0"), of("new", "br0"), of("other", "br1"));
    let (one, two, three) = (node.pod("one"), node.pod("two"), node.pod("three"));
    let first = address_of(&old.add(&Attach::new(&one)).expect("ADD"), 0);
    let wish = Attach::new(&two).capability("ips", json!([format!("{first}/24")]));
    let refused = new.add(&wish).expect_err("the address is taken").error;
    assert_eq!(refused.code, 11, "{refused:?}");
    let owner = "network old, container one, interface eth0";
    assert!(refused.msg.contains(&format!("{first} is taken by {owner}")), "{refused:?}");
    assert!(refused.details.contains("`slipway detach old one eth0`"), "{refused:?}");
    // If no address is requested, there is no conflict.
    let second = address_of(&new.add(&Attach::new(&two)).expect("ADD"), 0);
    assert_ne!(first, second);
    // Another bridge is another network.
    assert_eq!(address_of(&other.add(&Attach::new(&three)).expect("ADD at another bridge"), 0), first);
}

#[test]
fn a_second_add_of_a_running_container_changes_nothing() {
    slipway_only!();
    for backend in backends() {
        for interface in ["bridge", "ptp"] {
            let (node, client) = Node::with_client();
            let network = node.network(list("net", interface, backend, true));
            let pod = node.pod("web");
            let attach = attach(&pod);
            let result = network.add(&attach).expect("ADD");
            let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
            let all = || Snapshot::take(&node, &[&*pod]).without(&["networks/.slipway/"]);
            let before = all();
            let error = network.add(&attach).expect_err("it is attached").error;
            assert_eq!(error.code, 999, "{error:?}");
            assert!(error.msg.ends_with("already exists"), "{error:?}");
            assert!(error.details.contains("nothing was changed"), "{error:?}");
            before.assert_same(&all());
            // If the first plugin of the chain accepts the repeated ADD, the other plugins find what they have already
            // made.
            for plugin in 1..5 {
                let _same = network.call_one(plugin, "ADD", &attach, &result).ok();
                before.assert_same(&all());
            }
            client.expect(Proto::Tcp, at(client.node_v4, PORT), "web");
            network.del(&attach).expect("DEL");
        }
    }
}

/// The runtime cleans up after what it believes to have failed: callers of libcni call DEL after an ADD that failed.
#[test]
fn del_after_a_refused_add_detaches_and_another_add_attaches() {
    slipway_only!();
    let (node, client) = Node::with_client();
    let network = node.network(list("net", "bridge", "nftables", true));
    let pod = node.pod("web");
    network.add(&attach(&pod)).expect("ADD");
    network.add(&attach(&pod)).expect_err("it is attached");
    network.del(&attach(&pod)).expect("DEL");
    assert!(!pod.has_link("eth0") && node.reserved("net").is_empty());
    network.add(&attach(&pod)).expect("ADD");
    let _server = pod.serve(Proto::Tcp, "0.0.0.0:80", "web");
    client.expect(Proto::Tcp, at(client.node_v4, PORT), "web");
}

/// The runtime reads the list again. Whatever a plugin has made that is no longer in the list is removed with the rest.
#[test]
fn del_with_a_shorter_list_leaves_no_port() {
    slipway_only!();
    for backend in backends() {
        let node = Node::new();
        let whole = list("net", "bridge", backend, true);
        let short = json!({"name": "net", "plugins": [whole["plugins"][0]]});
        let pod = node.pod("web");
        node.network(whole).add(&attach(&pod)).expect("ADD");
        node.network(short).del(&attach(&pod)).expect("DEL");
        assert!(!node.slipway("ports").contains("8080"), "{backend}");
        assert!(node.reserved("net").is_empty());
    }
}

/// The command in the message frees what a container that is gone has left behind, without a cache and a configuration.
#[test]
fn the_command_in_the_error_frees_the_port() {
    slipway_only!();
    for backend in backends() {
        let node = Node::new();
        let network = node.network(list("net", "bridge", backend, true));
        let pod = node.pod("web");
        network.add(&attach(&pod)).expect("ADD");
        let other = node.pod("other");
        let wanted = Attach::new(&other).port(Proto::Tcp, PORT, 80);
        let error = network.add(&wanted).expect_err("the port is taken").error;
        assert_eq!(error.code, 11, "{error:?}");
        let text = format!("{}; {}", error.msg, error.details);
        let command = text.split('`').nth(1).unwrap_or_else(|| panic!("no command in {text}")).to_owned();
        network.del(&wanted).expect("DEL of the failed ADD");
        let arguments = command.strip_prefix("slipway ").expect("a command of slipway");
        assert!(arguments.starts_with("detach net 2f1c"), "{arguments}");
        let _done = node.slipway(arguments);
        assert!(node.reserved("net").is_empty());
        network.add(&wanted).expect("the port is free");
        network.del(&wanted).expect("DEL");
    }
}

#[test]
fn check_node_names_owners_whose_namespace_is_gone() {
    slipway_only!();
    let node = Node::new();
    let network: Network<'_> = node.network(list("net", "bridge", "nftables", true));
    let finding = || -> Option<Value> {
        let output = node.try_slipway("check-node --output json");
        let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output}"));
        let all = report["findings"].as_array().expect("a list");
        all.iter().find(|one| one["subject"] == "owners").cloned()
    };
    let (one, two) = (node.pod("one"), node.pod("two"));
    for (pod, port) in [(&one, 8081), (&two, 8082)] {
        network.add(&Attach::new(pod).port(Proto::Tcp, port, 80)).expect("ADD");
    }
    assert_eq!(finding(), None);
    one.remove();
    let gone = finding().expect("a finding");
    assert_eq!(
        (&gone["state"], &gone["found"]),
        (&json!("warning"), &json!("1 owner whose namespace is gone"))
    );
    let fix = gone["fix"].as_str().expect("a fix").trim_matches('`').to_owned();
    let _done = node.slipway(fix.strip_prefix("slipway ").expect("a command of slipway"));
    assert_eq!(finding(), None);
    let _attached = two.has_link("eth0");
}
