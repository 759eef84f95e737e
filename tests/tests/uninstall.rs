//! `slipway uninstall`: a node that had Slipway is as it was before.

use serde_json::{Value, json};
use slipway_tests::{Attach, BridgeNetfilter, Node, Proto, Snapshot, is_peer};

const DIR: &str = "/run/cni-bin";

/// One network of each kind, and all that they can leave: tables, bridges, a gateway's link,
/// reservations of several networks.
fn lists() -> [Value; 2] {
    let ipam = |number: u8| {
        json!({
            "type": "host-local",
            "ranges": [
                [{"subnet": format!("10.88.{number}.0/24")}], [{"subnet": format!("fd00:88:{number}::/64")}],
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        })
    };
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let bridge = json!({
        "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "macspoofchk": true,
        "ipam": ipam(1),
    });
    let ptp = json!({"type": "ptp", "ipMasq": true, "ipam": ipam(2)});
    [
        json!({"name": "bridged", "plugins": [bridge, portmap]}),
        json!({"name": "routed", "plugins": [ptp, portmap]}),
    ]
}

fn attach(pod: &slipway_tests::Pod, port: u16) -> Attach {
    Attach::new(pod).port(Proto::Tcp, port, 80).port(Proto::Udp, port, 80)
}

#[test]
fn nothing_is_left() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    node.bridge_netfilter(BridgeNetfilter::Off);
    let (one, two) = (node.pod("one"), node.pod("two"));
    // Others have a plugin, a bridge, a network and a table there, and keep them.
    node.write(&format!("{DIR}/portmap"), "#!/bin/sh\n");
    node.write("/var/lib/cni/networks/theirs/last_reserved_ip.0", "10.1.1.7");
    node.cmd("ip link add theirs0 type bridge");
    node.nft("add table inet theirs");
    let state = || Snapshot::take(&node, &[&one, &two]);
    let before = state();

    node.slipway(&format!("install --to {DIR} --replace"));
    for (list, pod) in lists().into_iter().zip([&one, &two]) {
        let network = node.network(list);
        network.add(&attach(pod, 8080 + u16::from(pod.name() == "two"))).expect("ADD");
    }
    // Containers are there: nothing is touched.
    let running = state();
    let refused = node.try_slipway(&format!("uninstall --to {DIR}"));
    assert_eq!(refused.code, Some(1), "{refused}");
    for part in [
        "table inet slipway is in use by network bridged, container one, interface eth0; \
         network routed, container two, interface eth0:",
        "nothing was changed",
    ] {
        assert!(refused.stderr.contains(part), "{part:?} is not in: {refused}");
    }
    running.assert_same(&state());

    for (list, pod) in lists().into_iter().zip([&one, &two]) {
        node.network(list).del(&attach(pod, 8080 + u16::from(pod.name() == "two"))).expect("DEL");
    }
    let idle = state();
    let planned = node.slipway(&format!("uninstall --to {DIR} --dry-run"));
    idle.assert_same(&state());
    let said = node.slipway(&format!("uninstall --to {DIR}"));
    for line in [
        "restore portmap from .slipway-replaced/portmap",
        "remove  bridge",
        "remove  slipway",
        "remove  table inet slipway",
        "remove  table bridge slipway",
        "remove  link cni0",
        "remove  /var/lib/cni/networks/bridged",
        "remove  /var/lib/cni/networks/routed",
        "remove  /var/lib/cni/networks/.slipway",
        "this node: 6 of 6 things removed",
    ] {
        assert!(said.lines().any(|said| said == line), "{line:?} is not in:\n{said}");
    }
    assert_eq!(planned.replace("would be ", ""), said);
    before.assert_same(&state());
    // Once more: there is nothing to do, and nothing goes wrong.
    let again = node.slipway(&format!("uninstall --to {DIR}"));
    assert!(again.ends_with("this node: 0 of 0 things removed\n"), "{again}");
    before.assert_same(&state());
}

/// The same where nothing was there before, down to the folders of the state.
#[test]
fn a_bare_node_is_bare_again() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let pod = node.pod("pod");
    let state = || Snapshot::take(&node, &[&pod]);
    let before = state();
    let [bridged, _] = lists();
    let network = node.network(bridged);
    network.add(&attach(&pod, 8080)).expect("ADD");
    network.del(&attach(&pod, 8080)).expect("DEL");
    node.slipway(&format!("uninstall --to {DIR}"));
    before.assert_same(&state());
    assert!(node.list("/var/lib").is_empty(), "{:?}", node.list("/var/lib"));
}

#[test]
fn what_is_in_use_stays_and_is_named() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let mut list = lists()[0].clone();
    // No table has anything of this one: the reference's plugins can take it away.
    list["plugins"][0]["ipMasq"] = false.into();
    list["plugins"][0]["macspoofchk"] = false.into();
    let network = node.network(list);
    network.add(&Attach::new(&one)).expect("ADD");
    network.add(&attach(&two, 8080)).expect("ADD");
    network.del(&attach(&two, 8080)).expect("DEL");
    let said = node.slipway(&format!("uninstall --to {DIR}"));
    for line in [
        "remove  table inet slipway",
        "leave   link cni0 (it has a port)",
        "leave   /var/lib/cni/networks/bridged (reserved addresses: 2)",
        "remove  /var/lib/cni/networks/.slipway",
        "this node: 2 of 4 things removed",
    ] {
        assert!(said.lines().any(|said| said == line), "{line:?} is not in:\n{said}");
    }
    assert!(one.has_link("eth0") && node.has_link("cni0"));
    // And it goes on as if nothing had happened.
    network.check(&Attach::new(&one)).expect("CHECK");
    network.add(&attach(&two, 8080)).expect("ADD");
    network.del(&attach(&two, 8080)).expect("DEL");
    network.del(&Attach::new(&one)).expect("DEL");
}

/// A container that comes while the plugins are taken away keeps what it has, and is named.
#[test]
fn a_container_that_comes_late_is_named() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let (early, late) = (node.pod("early"), node.pod("late"));
    let network = node.network(lists()[0].clone());
    network.add(&attach(&early, 8080)).expect("ADD");
    network.del(&attach(&early, 8080)).expect("DEL");
    node.slipway(&format!("install --to {DIR}"));
    let pause = "inject=unlinkat:delay_enter=5000000:when=1";
    let command = slipway_tests::slipway().display().to_string();
    let words = format!("strace -f -qq -o /dev/null -e {pause} {command} uninstall --to {DIR}");
    let said = std::thread::scope(|scope| {
        let uninstall = scope.spawn(|| node.try_cmd(&words));
        // The tables are gone, the first plugin is not.
        let end = std::time::Instant::now() + slipway_tests::within(std::time::Duration::from_secs(60));
        let has_table = |ruleset: &str| {
            ["inet", "bridge"].iter().any(|f| ruleset.contains(&format!("table {f} slipway")))
        };
        while has_table(&node.ruleset()) {
            assert!(std::time::Instant::now() < end, "the tables are not removed");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        network.add(&attach(&late, 8080)).expect("ADD");
        uninstall.join().expect("a command")
    });
    assert_eq!(said.code, Some(1), "{said}");
    let expected = "table inet slipway stays: network bridged, container late, interface eth0 came while";
    assert!(said.stderr.contains(expected), "{said}");
    assert!(!said.stderr.contains("nothing was changed"), "{said}");
    network.check(&attach(&late, 8080)).expect("CHECK");
    // What it says to do.
    node.slipway(&format!("install --to {DIR}"));
    network.del(&attach(&late, 8080)).expect("DEL");
    node.slipway(&format!("uninstall --to {DIR}"));
    assert_eq!(node.ruleset(), "");
}

#[test]
fn force_takes_away_what_containers_have() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let pod = node.pod("pod");
    let network = node.network(lists()[1].clone());
    network.add(&attach(&pod, 8080)).expect("ADD");
    let kept = node.slipway(&format!("uninstall --to {DIR} --keep-state"));
    assert_eq!(kept, format!("{DIR}: 0 of 0 names changed\n"));
    assert!(node.ruleset().contains("table inet slipway"));
    node.slipway(&format!("uninstall --to {DIR} --force"));
    assert_eq!(node.ruleset(), "");
    network.del(&attach(&pod, 8080)).expect("DEL finds nothing of its own, and succeeds");
    assert!(!pod.has_link("eth0"));
}

/// A table of our name that is not ours stays.
#[test]
fn a_table_of_others_stays() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    node.nft("add table inet slipway\nadd chain inet slipway mine\n");
    let before = Snapshot::take(&node, &[]);
    let said = node.slipway(&format!("uninstall --to {DIR}"));
    assert!(said.contains("leave   table inet slipway ("), "{said}");
    before.assert_same(&Snapshot::take(&node, &[]));
}

/// Where a bridge's gateway is in a VLAN, it has a link of its own, whose other end is a port.
#[test]
fn a_gateways_link_goes_before_its_bridge() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let before = Snapshot::take(&node, &[]);
    node.cmd_input(
        "ip -batch -",
        "link add cni5 type bridge\n\
         link add cni5.7 type veth peer name port5\n\
         link set port5 master cni5\n\
         link set cni5 alias \"made by slipway\"\n\
         link set cni5.7 alias \"made by slipway\"\n",
    );
    let said = node.slipway(&format!("uninstall --to {DIR}"));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[1..], ["remove  link cni5.7", "remove  link cni5", "this node: 2 of 2 things removed"]);
    before.assert_same(&Snapshot::take(&node, &[]));
}

/// What the iptables backend makes for all containers goes too, unless somebody's ports are there: the
/// reference's chains have the same names.
#[test]
fn the_chains_of_iptables_go_unless_they_are_used() {
    if is_peer() {
        return;
    }
    for variant in ["nft", "legacy"] {
        let node = Node::new();
        let (one, two) = (node.pod("one"), node.pod("two"));
        // As a node that runs kube-proxy shows which variant it uses.
        for family in ["iptables", "ip6tables"] {
            node.cmd(&format!("{family}-{variant} -t nat -N KUBE-SERVICES"));
            for chain in ["PREROUTING", "OUTPUT", "POSTROUTING"] {
                node.cmd(&format!("{family}-{variant} -t nat -A {chain} -j KUBE-SERVICES"));
            }
        }
        let state = || Snapshot::take(&node, &[&one, &two]);
        let before = state();
        let [mut list, _] = lists();
        list["plugins"][0]["ipMasqBackend"] = "iptables".into();
        list["plugins"][1]["backend"] = "iptables".into();
        let network = node.network(list);
        network.add(&attach(&one, 8080)).expect("ADD");
        let refused = node.try_slipway(&format!("uninstall --to {DIR}"));
        assert!(refused.stderr.contains("container one"), "{refused}");
        network.del(&attach(&one, 8080)).expect("DEL");
        // Somebody else's, as the reference publishes it.
        let entry = "CNI-HOSTPORT-DNAT -p tcp -m multiport --destination-ports 9000 -j RETURN";
        node.cmd(&format!("iptables-{variant} -t nat -A {entry}"));
        let said = node.slipway(&format!("uninstall --to {DIR}"));
        for line in [
            format!("leave   chains CNI-HOSTPORT-* of iptables-{variant} (ports are published there)"),
            format!("remove  chains CNI-HOSTPORT-* of ip6tables-{variant}"),
        ] {
            assert!(said.lines().any(|said| said == line), "{line:?} is not in:\n{said}");
        }
        node.cmd(&format!("iptables-{variant} -t nat -D {entry}"));
        let said = node.slipway(&format!("uninstall --to {DIR}"));
        let line = format!("remove  chains CNI-HOSTPORT-* of iptables-{variant}");
        assert!(said.lines().any(|said| said == line), "{line:?} is not in:\n{said}");
        before.assert_same(&state());
    }
}

/// A list of all that is chained, by one of firewall's backends.
fn chained(backend: &str) -> Value {
    let [mut list, _] = lists();
    list["name"] = "chained".into();
    list["plugins"].as_array_mut().expect("plugins").extend([
        json!({
            "type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000,
            "egressRate": 8_000_000, "egressBurst": 800_000,
        }),
        json!({"type": "firewall", "backend": backend, "ingressPolicy": "isolated"}),
        json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}),
    ]);
    list
}

/// flannel's, with what flanneld writes.
fn flannel(node: &Node) -> Value {
    let env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
    node.write("/run/flannel/subnet.env", env);
    json!({"name": "cbr0", "plugins": [{"type": "flannel", "delegate": {"bridge": "cbr0"}}]})
}

#[test]
fn chained_plugins_leave_nothing() {
    if is_peer() {
        return;
    }
    for backend in ["nftables", "iptables"] {
        let node = Node::new();
        let pods = [node.pod("one"), node.pod("two")];
        // The tables of iptables themselves stay.
        for family in ["iptables", "ip6tables"] {
            node.cmd(&format!("{family} -A FORWARD -j ACCEPT"));
        }
        let lists = [chained(backend), flannel(&node)];
        let state = || Snapshot::take(&node, &[&pods[0], &pods[1]]);
        let before = state();
        for (list, pod) in lists.iter().zip(&pods) {
            node.network(list.clone()).add(&attach(pod, 8080)).expect("ADD");
        }
        let refused = node.try_slipway(&format!("uninstall --to {DIR}"));
        assert!(refused.stderr.contains("container one, interface eth0"), "{refused}");
        for (list, pod) in lists.iter().zip(&pods) {
            node.network(list.clone()).del(&attach(pod, 8080)).expect("DEL");
        }
        let said = node.slipway(&format!("uninstall --to {DIR}"));
        let mut lines = vec![
            "remove  table inet slipway-firewall".to_owned(),
            "remove  /var/lib/cni/flannel".to_owned(),
            "remove  /run/cni/tuning".to_owned(),
        ];
        if backend == "iptables" {
            lines.extend(["iptables", "ip6tables"].map(|program| {
                format!("remove  chains CNI-FORWARD, CNI-ADMIN, CNI-ISOLATION-* of {program}-nft")
            }));
        }
        for line in lines {
            assert!(said.lines().any(|said| said == line), "{line:?} is not in:\n{said}");
        }
        before.assert_same(&state());
        let again = node.slipway(&format!("uninstall --to {DIR}"));
        assert!(again.ends_with("this node: 0 of 0 things removed\n"), "{again}");
    }
}

/// Somebody killed containers, and nobody called DEL.
#[test]
fn what_dead_containers_have_is_named_or_goes() {
    if is_peer() {
        return;
    }
    let node = Node::new();
    let (dead, living) = (node.pod("dead"), node.pod("living"));
    let network = node.network({
        let mut list = chained("nftables");
        list["plugins"].as_array_mut().expect("plugins").remove(3);
        list
    });
    let saved = node.network(flannel(&node));
    network.add(&Attach::new(&dead)).expect("ADD");
    let living = Attach::new(&living);
    network.add(&living).expect("ADD");
    saved.add(&Attach::new(&dead).ifname("eth1")).expect("ADD");
    let devices = || node.cmd("ip -o link show type ifb").lines().count();
    assert_eq!(devices(), 2);
    dead.remove();
    // The kernel takes the links away in its own time.
    for _ in 0..100 {
        if node.cmd("ip -o link show type veth").lines().count() == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let said = node.slipway(&format!("uninstall --to {DIR} --force"));
    assert_eq!(devices(), 1, "{said}");
    for (part, count) in [
        ("remove  link bwp", 1),
        ("leave   link bwp", 1),
        ("leave   /run/cni/tuning (backups of links' settings: 2)", 1),
        ("leave   /var/lib/cni/flannel (saved configurations: 1)", 1),
    ] {
        assert_eq!(said.matches(part).count(), count, "{part:?} in:\n{said}");
    }
    network.check(&living).expect_err("its table is gone");
    network.del(&living).expect("DEL");
    assert_eq!(devices(), 0);
}

/// Rules that a container of the reference's has, and those of an administrator's, keep the chains there.
#[test]
fn the_chains_of_the_firewall_go_unless_they_are_used() {
    if is_peer() {
        return;
    }
    for variant in ["nft", "legacy"] {
        let node = Node::new();
        let pod = node.pod("pod");
        // What shows which variant the node uses.
        for family in ["iptables", "ip6tables"] {
            node.cmd(&format!("{family}-{variant} -N KUBE-FORWARD"));
            node.cmd(&format!("{family}-{variant} -A FORWARD -j KUBE-FORWARD"));
            node.cmd(&format!("{family}-{variant} -t nat -N KUBE-SERVICES"));
        }
        let state = || Snapshot::take(&node, &[&pod]);
        let before = state();
        let network = node.network(chained("iptables"));
        network.add(&attach(&pod, 8080)).expect("ADD");
        network.del(&attach(&pod, 8080)).expect("DEL");
        let chains = format!("chains CNI-FORWARD, CNI-ADMIN, CNI-ISOLATION-* of iptables-{variant}");
        for (rule, why) in [
            ("CNI-FORWARD -s 10.9.9.9/32 -j ACCEPT", "containers' rules are there"),
            ("CNI-ADMIN -p tcp --dport 80 -j DROP", "an administrator's rules are there"),
        ] {
            node.cmd(&format!("iptables-{variant} -A {rule}"));
            let said = node.slipway(&format!("uninstall --to {DIR}"));
            let line = format!("leave   {chains} ({why})");
            assert!(said.lines().any(|said| said == line), "{line:?} is not in:\n{said}");
            node.cmd(&format!("iptables-{variant} -D {rule}"));
        }
        let said = node.slipway(&format!("uninstall --to {DIR}"));
        assert!(said.lines().any(|said| said == format!("remove  {chains}")), "{said}");
        before.assert_same(&state());
    }
}

/// The chain that the table has for them.
#[test]
fn an_administrators_rules_in_the_firewalls_table_stay() {
    if is_peer() {
        return;
    }
    for backend in ["nftables", "iptables"] {
        let node = Node::new();
        let pod = node.pod("pod");
        let network = node.network(chained(backend));
        network.add(&attach(&pod, 8080)).expect("ADD");
        network.del(&attach(&pod, 8080)).expect("DEL");
        node.cmd("nft add rule inet slipway-firewall admin tcp dport 80 drop");
        let said = node.slipway(&format!("uninstall --to {DIR}"));
        let line = "leave   table inet slipway-firewall (an administrator's rules are in its chain admin)";
        assert!(said.lines().any(|said| said == line), "{backend}:\n{said}");
        assert!(node.ruleset().contains("tcp dport 80 drop"), "{}", node.ruleset());
        node.slipway(&format!("uninstall --to {DIR} --force"));
        assert!(!node.ruleset().contains("slipway"), "{}", node.ruleset());
    }
}
