//! DEL, GC and STATUS.

use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Pod, Snapshot, newest_version, peer_fails};

use super::{add, dual_stack, network, outer};

/// The state, without what counts on and what is derived from the reservations.
fn state(node: &Node, pod: &Pod) -> Snapshot {
    Snapshot::take(node, &[pod]).without(&["last_reserved_ip", "/.slipway/"])
}

fn reservations(node: &Node) -> Vec<String> {
    let names = node.list("/var/lib/cni/networks/net").into_iter();
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
}

#[test]
fn del_removes_what_add_made_and_may_come_again() {
    let node = Node::new();
    let (first, pod) = (node.pod("first"), node.pod("pod"));
    let network = network(&node, &json!({"ipMasq": true, "ipam": dual_stack()}));
    add(&network, &first);
    let before = state(&node, &pod);
    add(&network, &pod);
    for _ in 0..2 {
        network.del(&Attach::new(&pod)).expect("DEL");
        before.assert_same(&state(&node, &pod));
    }
    // Nobody ever heard of this one.
    network.del(&Attach::new(&pod).container("unknown").netns("/run/netns/none")).expect("DEL");
    network.del(&Attach::new(&pod).container("unknown").netns("")).expect("DEL");
    before.assert_same(&state(&node, &pod));
}

#[test]
fn del_without_a_namespace_finds_the_hosts_end() {
    peer_fails("leaves the link and the masquerade", || {
        let node = Node::new();
        let (first, pod) = (node.pod("first"), node.pod("pod"));
        let network = network(&node, &json!({"ipMasq": true, "ipam": dual_stack()}));
        add(&network, &first);
        for netns in ["", "/run/netns/gone"] {
            let before = state(&node, &pod);
            add(&network, &pod);
            network.forget();
            network.del(&Attach::new(&pod).netns(netns)).expect("DEL");
            before.assert_same(&state(&node, &pod));
        }
    });
}

#[test]
fn del_leaves_a_link_of_others() {
    peer_fails("deletes any link of that name", || {
        let node = Node::new();
        let pod = node.pod("pod");
        pod.cmd("ip link add eth0 type bridge");
        let network = network(&node, &json!({}));
        network.add(&Attach::new(&pod)).expect_err("the name is taken");
        network.del(&Attach::new(&pod)).expect("DEL");
        assert!(pod.has_link("eth0"));
        pod.cmd("ip link delete eth0");
        // A link of another attachment: same name, same namespace, another container ID.
        add(&network, &pod);
        network.del(&Attach::new(&pod).container("other")).expect("DEL");
        assert!(pod.has_link("eth0"));
        network.check(&Attach::new(&pod)).expect("CHECK");
    });
}

#[test]
fn del_does_all_it_can_when_a_part_fails() {
    peer_fails("stops at the first error", || {
        let node = Node::new();
        let pod = node.pod("pod");
        add(&network(&node, &json!({"ipMasq": true})), &pod);
        let broken = json!({"ipMasq": true, "ipam": {"type": "absent"}});
        let failure = network(&node, &broken).del(&Attach::new(&pod)).expect_err("no such IPAM");
        assert!(failure.to_string().contains("absent"), "{failure}");
        assert!(!pod.has_link("eth0"));
        assert!(!node.ruleset().contains("10.1.2.2"), "{}", node.ruleset());
    });
}

/// The network was another plugin's when the container came.
#[test]
fn del_removes_what_bridge_made() {
    peer_fails("the port's addresses are looked at as its own", || {
        let node = Node::new();
        let pod = node.pod("pod");
        let bridge = json!({
            "type": "bridge", "bridge": "br0", "ipMasq": true, "macspoofchk": true,
            "ipam": {"type": "host-local", "subnet": "10.1.2.0/24"},
        });
        let port = node.network(json!({"name": "net", "plugins": [bridge]})).add(&Attach::new(&pod));
        let port = port.expect("ADD")["interfaces"][1]["name"].as_str().expect("a name").to_owned();
        network(&node, &json!({})).del(&Attach::new(&pod)).expect("DEL");
        let ruleset = node.ruleset();
        assert!(!ruleset.contains("10.1.2.2") && !ruleset.contains(&port), "{ruleset}");
        assert!(!node.has_link(&port) && !pod.has_link("eth0"));
        assert!(reservations(&node).is_empty());
    });
}

#[test]
fn gc_removes_the_dead_and_nothing_else() {
    peer_fails("does nothing", || {
        let node = Node::new();
        let (live, dead, elsewhere) = (node.pod("live"), node.pod("dead"), node.pod("elsewhere"));
        let ours = network(&node, &json!({"ipMasq": true}));
        let mut list = json!({"name": "other", "plugins": [super::plugin(&json!({"ipMasq": true}))]});
        list["plugins"][0]["ipam"]["subnet"] = "10.9.0.0/24".into();
        let other = node.network(list);
        let dead_link = outer(&add(&ours, &dead));
        let live_link = outer(&add(&ours, &live));
        let other_link = outer(&add(&other, &elsewhere));
        // The runtime lost its cache: the plugin alone knows of the dead one.
        ours.forget();
        let live_attach = Attach::new(&live);
        ours.gc(&[&live_attach]).expect("GC");
        assert!(!node.has_link(&dead_link) && !dead.has_link("eth0"));
        assert!(node.has_link(&live_link) && node.has_link(&other_link));
        assert_eq!(reservations(&node), ["10.1.2.3"]);
        let ruleset = node.ruleset();
        assert!(!ruleset.contains("10.1.2.2 ") && ruleset.contains("10.1.2.3 "), "{ruleset}");
        ours.gc_plugins(&Value::Null).expect("GC");
        assert!(!node.has_link(&live_link) && node.has_link(&other_link));
        assert!(reservations(&node).is_empty());
    });
}

#[test]
fn gc_without_a_list_removes_nothing() {
    let node = Node::new();
    let pod = node.pod("pod");
    let network = network(&node, &json!({}));
    add(&network, &pod);
    if newest_version() == "1.0.0" {
        return; // An older peer, which does not know the command.
    }
    // The kernel makes the route for multicast in its own time.
    let state = || Snapshot::take(&node, &[&pod]).without(&["ff00::/8"]);
    let before = state();
    network.call("GC", &network.configs(None)[0], None).ok();
    before.assert_same(&state());
}

#[test]
fn status_says_when_the_range_is_exhausted() {
    peer_fails("says nothing", || {
        let node = Node::new();
        let pod = node.pod("pod");
        let ipam = json!({"type": "host-local", "subnet": "10.1.2.0/30"});
        let network = network(&node, &json!({"ipMasq": true, "ipam": ipam}));
        network.status().expect("one address is free");
        add(&network, &pod);
        assert_eq!(network.status().expect_err("none is free").error.code, 50);
        network.del(&Attach::new(&pod)).expect("DEL");
        network.status().expect("it is free again");
        let without = super::network(&node, &json!({"ipam": {}}));
        let failure = without.status().expect_err("there must be an IPAM plugin");
        assert_eq!(failure.error.msg, "no plugin name provided");
    });
}
