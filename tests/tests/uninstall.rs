// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway uninstall` returns a node that had Slipway to its previous state.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use slipway_tests::{Attach, Node, Proto, Snapshot, comes, host_local, quoted, slipway_only, until};

const DIR: &str = "/run/cni-bin";

/// Networks that leave everything that networks can leave: tables, bridges, a gateway's link, and reservations of
/// several networks.
fn lists() -> [Value; 2] {
    let ipam = |number: u8| host_local(format!("10.88.{number}.0/24"), format!("fd00:88:{number}::/64"));
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

/// Runs `uninstall`, and asserts that these lines are printed.
#[track_caller]
fn uninstall(node: &Node, lines: &[impl AsRef<str>]) -> String {
    let printed = node.slipway(&format!("uninstall --to {DIR}"));
    for line in lines.iter().map(AsRef::as_ref) {
        assert!(printed.lines().any(|found| found == line), "{line:?} is not in:\n{printed}");
    }
    printed
}

#[test]
fn uninstall_leaves_nothing() {
    slipway_only!();
    let node = Node::without_bridge_netfilter();
    let (one, two) = (node.pod("one"), node.pod("two"));
    // A plugin, a bridge, a network and a table of other programs must stay.
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
    // While containers run, the command changes nothing.
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
    let printed = uninstall(
        &node,
        &[
            "restore portmap from .slipway-replaced/portmap",
            "remove  bridge",
            "remove  slipway",
            "remove  table inet slipway",
            "remove  table bridge slipway",
            "remove  link cni0",
            "remove  /var/lib/cni/networks/bridged",
            "remove  /var/lib/cni/networks/routed",
            "remove  /var/lib/cni/networks/.slipway",
            "remove  /run/slipway",
            "this node: 7 of 7 things removed",
        ],
    );
    assert_eq!(planned.replace("would be ", ""), printed);
    before.assert_same(&state());
    // A second call has nothing to do and succeeds.
    let again = node.slipway(&format!("uninstall --to {DIR}"));
    assert!(again.ends_with("this node: 0 of 0 things removed\n"), "{again}");
    before.assert_same(&state());
}

/// On a node that had nothing before, the state folders are removed as well.
#[test]
fn folders_that_uninstall_finds_empty_are_removed() {
    slipway_only!();
    let (node, pod) = Node::with_pod();
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
fn objects_in_use_stay_and_are_named() {
    slipway_only!();
    let node = Node::new();
    let (one, two) = (node.pod("one"), node.pod("two"));
    let mut list = lists()[0].clone();
    // The network has no entries in a table, so the reference plugins can remove it.
    list["plugins"][0]["ipMasq"] = false.into();
    list["plugins"][0]["macspoofchk"] = false.into();
    let network = node.network(list);
    network.add(&Attach::new(&one)).expect("ADD");
    network.add(&attach(&two, 8080)).expect("ADD");
    network.del(&attach(&two, 8080)).expect("DEL");
    uninstall(
        &node,
        &[
            "remove  table inet slipway",
            "leave   link cni0 (it has a port)",
            "leave   /var/lib/cni/networks/bridged (reserved addresses: 2)",
            "remove  /var/lib/cni/networks/.slipway",
            "this node: 3 of 5 things removed",
        ],
    );
    assert!(one.has_link("eth0") && node.has_link("cni0"));
    // The container still works.
    network.check(&Attach::new(&one)).expect("CHECK");
    network.add(&attach(&two, 8080)).expect("ADD");
    network.del(&attach(&two, 8080)).expect("DEL");
    network.del(&Attach::new(&one)).expect("DEL");
}

/// Waits until the ruleset meets a condition.
fn await_ruleset(node: &Node, condition: impl Fn(&str) -> bool) {
    until(Duration::from_secs(60), "the ruleset", || condition(&node.ruleset()));
}

/// A container is added after the first table was removed and before the next. The command then refuses, and its
/// message names the removed table.
#[test]
fn a_refusal_after_the_first_table_names_that_table() {
    slipway_only!();
    let node = Node::new();
    let (early, late) = (node.pod("early"), node.pod("late"));
    let network = node.network(lists()[0].clone());
    node.slipway(&format!("install --to {DIR}"));
    network.add(&attach(&early, 8080)).expect("ADD");
    network.del(&attach(&early, 8080)).expect("DEL");
    let installed = node.list(DIR);
    // The delay of each netlink request leaves time to stop the command between two removals.
    let command = quoted(slipway_tests::slipway());
    let script = format!("echo $$ >/run/uninstall.pid\nexec {command} uninstall --to {DIR}\n");
    node.write("/run/uninstall.sh", script);
    let words = "strace -f -qq -o /dev/null -e inject=sendto:delay_enter=200000 sh /run/uninstall.sh";
    let printed = std::thread::scope(|scope| {
        let uninstall = scope.spawn(|| node.try_cmd(words));
        await_ruleset(&node, |ruleset| !ruleset.contains("table inet slipway"));
        let pid = node.read("/run/uninstall.pid").expect("the script has begun");
        let pid = Pid::from_raw(pid.trim().parse().expect("a number"));
        kill(pid, Signal::SIGSTOP).expect("the command runs");
        let added = network.add(&attach(&late, 8080));
        kill(pid, Signal::SIGCONT).expect("the command was stopped");
        added.expect("ADD");
        uninstall.join().expect("a command")
    });
    assert_eq!(printed.code, Some(1), "{printed}");
    for part in [
        "table bridge slipway is in use by network bridged, container late, interface eth0:",
        "; only this was removed: table inet slipway\n",
    ] {
        assert!(printed.stderr.contains(part), "{part:?} is not in: {printed}");
    }
    assert_eq!(node.list(DIR), installed, "the plugins stay");
    network.check(&attach(&late, 8080)).expect("CHECK");
    network.del(&attach(&late, 8080)).expect("DEL");
    node.slipway(&format!("uninstall --to {DIR}"));
    assert_eq!(node.ruleset(), "");
}

/// A container that is added while the plugins are being removed keeps its objects, and the command reports it.
#[test]
fn a_container_added_during_the_uninstall_is_named() {
    slipway_only!();
    let node = Node::new();
    let (early, late) = (node.pod("early"), node.pod("late"));
    let network = node.network(lists()[0].clone());
    network.add(&attach(&early, 8080)).expect("ADD");
    network.del(&attach(&early, 8080)).expect("DEL");
    node.slipway(&format!("install --to {DIR}"));
    let pause = "inject=unlinkat:delay_enter=5000000:when=1";
    let command = quoted(slipway_tests::slipway());
    let words = format!("strace -f -qq -o /dev/null -e {pause} {command} uninstall --to {DIR}");
    let printed = std::thread::scope(|scope| {
        let uninstall = scope.spawn(|| node.try_cmd(&words));
        // At this point the tables are removed, but the first plugin is not.
        await_ruleset(&node, |ruleset| {
            ["inet", "bridge"].iter().all(|f| !ruleset.contains(&format!("table {f} slipway")))
        });
        network.add(&attach(&late, 8080)).expect("ADD");
        uninstall.join().expect("a command")
    });
    assert_eq!(printed.code, Some(1), "{printed}");
    let expected =
        "table inet slipway was kept, as network bridged, container late, interface eth0 was added while";
    assert!(printed.stderr.contains(expected), "{printed}");
    assert!(!printed.stderr.contains("nothing was changed"), "{printed}");
    network.check(&attach(&late, 8080)).expect("CHECK");
    // These commands are the ones that the output recommends.
    node.slipway(&format!("install --to {DIR}"));
    network.del(&attach(&late, 8080)).expect("DEL");
    node.slipway(&format!("uninstall --to {DIR}"));
    assert_eq!(node.ruleset(), "");
}

#[test]
fn force_removes_objects_of_live_containers() {
    slipway_only!();
    let (node, pod) = Node::with_pod();
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

/// A table with Slipway's name that Slipway did not make stays.
#[test]
fn a_foreign_table_stays() {
    slipway_only!();
    let node = Node::new();
    node.nft("add table inet slipway\nadd chain inet slipway mine\n");
    let before = Snapshot::take(&node, &[]);
    let printed = node.slipway(&format!("uninstall --to {DIR}"));
    assert!(printed.contains("leave   table inet slipway ("), "{printed}");
    before.assert_same(&Snapshot::take(&node, &[]));
}

/// If a bridge's gateway is in a VLAN, it has its own veth pair, one end of which is a port of the bridge.
#[test]
fn the_link_of_a_vlan_gateway_is_deleted_before_its_bridge() {
    slipway_only!();
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
    let printed = node.slipway(&format!("uninstall --to {DIR}"));
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[1..], ["remove  link cni5.7", "remove  link cni5", "this node: 2 of 2 things removed"]);
    before.assert_same(&Snapshot::take(&node, &[]));
}

/// The shared chains of the iptables backend are removed as well, unless they contain ports of the reference plugins,
/// whose chains have the same names.
#[test]
fn only_unused_iptables_chains_are_deleted() {
    slipway_only!();
    for variant in ["nft", "legacy"] {
        let node = Node::new();
        let (one, two) = (node.pod("one"), node.pod("two"));
        // The existence of kube-proxy's chain shows which variant the node uses.
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
        // A port of another container, published as the reference plugin does it.
        let entry = "CNI-HOSTPORT-DNAT -p tcp -m multiport --destination-ports 9000 -j RETURN";
        node.cmd(&format!("iptables-{variant} -t nat -A {entry}"));
        uninstall(
            &node,
            &[
                format!("leave   chains CNI-HOSTPORT-* of iptables-{variant} (ports are published there)"),
                format!("remove  chains CNI-HOSTPORT-* of ip6tables-{variant}"),
            ],
        );
        node.cmd(&format!("iptables-{variant} -t nat -D {entry}"));
        uninstall(&node, &[format!("remove  chains CNI-HOSTPORT-* of iptables-{variant}")]);
        before.assert_same(&state());
    }
}

/// A list with all chained plugins, in which firewall has this backend.
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

/// The list for flannel. Also writes the file that flanneld would write.
fn flannel(node: &Node) -> Value {
    let env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
    node.write("/run/flannel/subnet.env", env);
    json!({"name": "cbr0", "plugins": [{"type": "flannel", "delegate": {"bridge": "cbr0"}}]})
}

#[test]
fn chained_plugins_leave_nothing() {
    slipway_only!();
    for backend in ["nftables", "iptables"] {
        let node = Node::new();
        let pods = [node.pod("one"), node.pod("two")];
        // The tables of iptables itself must stay.
        for family in ["iptables", "ip6tables"] {
            node.cmd(&format!("{family} -A FORWARD -j ACCEPT"));
        }
        let lists = [chained(backend), flannel(&node)];
        let state = || Snapshot::take(&node, &[&pods[0], &pods[1]]);
        let before = state();
        // slipwayd leaves this folder after `pod up` and `pod down`.
        node.cmd("mkdir -p /var/lib/cni/pending");
        for (list, pod) in lists.iter().zip(&pods) {
            node.network(list.clone()).add(&attach(pod, 8080)).expect("ADD");
        }
        let refused = node.try_slipway(&format!("uninstall --to {DIR}"));
        assert!(refused.stderr.contains("container one, interface eth0"), "{refused}");
        for (list, pod) in lists.iter().zip(&pods) {
            node.network(list.clone()).del(&attach(pod, 8080)).expect("DEL");
        }
        let mut lines = vec![
            "remove  table inet slipway-firewall".to_owned(),
            "remove  /var/lib/cni/flannel".to_owned(),
            "remove  /run/cni/tuning".to_owned(),
            "remove  /var/lib/cni/pending".to_owned(),
        ];
        if backend == "iptables" {
            lines.extend(["iptables", "ip6tables"].map(|program| {
                format!("remove  chains CNI-FORWARD, CNI-ADMIN, CNI-ISOLATION-* of {program}-nft")
            }));
        }
        uninstall(&node, &lines);
        before.assert_same(&state());
        let again = node.slipway(&format!("uninstall --to {DIR}"));
        assert!(again.ends_with("this node: 0 of 0 things removed\n"), "{again}");
    }
}

/// The containers were killed, and no runtime called DEL.
#[test]
fn objects_of_dead_containers_are_named_or_removed() {
    slipway_only!();
    let node = Node::new();
    let (dead, living) = (node.pod("dead"), node.pod("living"));
    let network = node.network({
        let mut list = chained("nftables");
        list["plugins"].as_array_mut().expect("plugins").remove(3);
        list
    });
    let saved = node.network(flannel(&node));
    node.write("/var/lib/cni/pending/8f3b", "a set-up that was killed");
    network.add(&Attach::new(&dead)).expect("ADD");
    let living = Attach::new(&living);
    network.add(&living).expect("ADD");
    saved.add(&Attach::new(&dead).ifname("eth1")).expect("ADD");
    let devices = || node.cmd("ip -o link show type ifb").lines().count();
    assert_eq!(devices(), 2);
    dead.remove();
    // The kernel removes the links in the background.
    assert!(comes(|| node.cmd("ip -o link show type veth").lines().count() == 1));
    let printed = node.slipway(&format!("uninstall --to {DIR} --force"));
    assert_eq!(devices(), 1, "{printed}");
    for (part, count) in [
        ("remove  link bwp", 1),
        ("leave   link bwp", 1),
        ("leave   /run/cni/tuning (backups of links' settings: 2)", 1),
        ("leave   /var/lib/cni/flannel (saved configurations: 1)", 1),
        ("leave   /var/lib/cni/pending (pending set-ups of pods: 1)", 1),
    ] {
        assert_eq!(printed.matches(part).count(), count, "{part:?} in:\n{printed}");
    }
    network.check(&living).expect_err("the table is removed");
    network.del(&living).expect("DEL");
    assert_eq!(devices(), 0);
}

/// The firewall's chains stay if they contain rules of an administrator, or of a container of the reference plugins.
#[test]
fn only_unused_firewall_chains_are_deleted() {
    slipway_only!();
    for variant in ["nft", "legacy"] {
        let (node, pod) = Node::with_pod();
        // The existence of this chain shows which variant the node uses.
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
            uninstall(&node, &[format!("leave   {chains} ({why})")]);
            node.cmd(&format!("iptables-{variant} -D {rule}"));
        }
        uninstall(&node, &[format!("remove  {chains}")]);
        before.assert_same(&state());
    }
}

/// The table has a chain that is meant for an administrator's rules.
#[test]
fn an_administrators_rules_in_the_firewalls_table_stay() {
    slipway_only!();
    for backend in ["nftables", "iptables"] {
        let (node, pod) = Node::with_pod();
        let network = node.network(chained(backend));
        network.add(&attach(&pod, 8080)).expect("ADD");
        network.del(&attach(&pod, 8080)).expect("DEL");
        node.cmd("nft add rule inet slipway-firewall admin tcp dport 80 drop");
        let line = "leave   table inet slipway-firewall (an administrator's rules are in its chain admin)";
        uninstall(&node, &[line]);
        assert!(node.ruleset().contains("tcp dport 80 drop"), "{}", node.ruleset());
        node.slipway(&format!("uninstall --to {DIR} --force"));
        assert!(!node.ruleset().contains("slipway"), "{}", node.ruleset());
    }
}

/// As with `slipway uninstall | head -1`, the reader ends early, but the removal is completed.
#[test]
fn a_reader_that_goes_does_not_end_the_removal() {
    slipway_only!();
    let removed = |is_read: bool| {
        let node = Node::new();
        node.slipway(&format!("install --to {DIR}"));
        let program = slipway_tests::slipway();
        let run = |words: &str| {
            node.run(|| {
                let (reader, writer) = std::io::pipe().expect("a pipe");
                let _reader = Some(reader).filter(|_| is_read);
                let mut command = std::process::Command::new(&program);
                command.args(words.split_whitespace()).stdout(writer).output().expect("it runs")
            })
        };
        let output = run(&format!("uninstall --to {DIR}"));
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        (node.list(DIR), node.list("/var/lib/cni"), node.list("/run/slipway"))
    };
    assert_eq!(removed(false), removed(true));
}

/// The command does not unmount what others have mounted. A second call has nothing left to do.
#[test]
fn mount_points_are_emptied_and_stay() {
    slipway_only!();
    let (node, pod) = Node::with_pod();
    node.cmd("mkdir -p /run/slipway");
    for folder in ["/run/slipway", "/var/lib/cni"] {
        node.cmd(&format!("mkdir -p {folder}"));
        node.cmd(&format!("mount -t tmpfs tmpfs {folder}"));
    }
    node.cmd("mkdir -p /var/lib/cni/pending /var/lib/cni/networks/bridged");
    node.cmd("mount -t tmpfs tmpfs /var/lib/cni/networks/bridged");
    node.write("/run/slipway/some.lock", "");
    let [bridged, _] = lists();
    let network = node.network(bridged);
    node.slipway(&format!("install --to {DIR}"));
    node.cmd(&format!("mount --bind {DIR} {DIR}"));
    network.add(&attach(&pod, 8080)).expect("ADD");
    network.del(&attach(&pod, 8080)).expect("DEL");
    let planned = node.slipway(&format!("uninstall --to {DIR} --dry-run"));
    let printed = uninstall(
        &node,
        &[
            "remove  bridge",
            "remove  slipway",
            "remove  /var/lib/cni/pending",
            "empty   /var/lib/cni/networks/bridged (a mount point, which stays)",
            "remove  /var/lib/cni/networks/.slipway",
            "empty   /run/slipway (a mount point, which stays)",
        ],
    );
    assert_eq!(planned.replace("would be ", ""), printed);
    for empty in ["/run/slipway", "/var/lib/cni/networks/bridged", DIR] {
        assert!(node.list(empty).is_empty(), "{empty}: {:?}", node.list(empty));
        node.cmd(&format!("mountpoint {empty}"));
    }
    assert_eq!(node.list("/var/lib/cni"), ["networks"]);
    let again = node.slipway(&format!("uninstall --to {DIR}"));
    assert!(again.ends_with("this node: 0 of 0 things removed\n"), "{again}");
}

#[test]
fn a_read_only_plugin_directory_is_refused_before_anything_changes() {
    slipway_only!();
    let (node, pod) = Node::with_pod();
    node.slipway(&format!("install --to {DIR}"));
    let [bridged, _] = lists();
    let network = node.network(bridged);
    network.add(&attach(&pod, 8080)).expect("ADD");
    network.del(&attach(&pod, 8080)).expect("DEL");
    node.cmd(&format!("mount --bind {DIR} {DIR}"));
    node.cmd(&format!("mount -o remount,bind,ro {DIR}"));
    let state = || Snapshot::take(&node, &[&pod]);
    let before = state();
    for command in ["uninstall", "uninstall --keep-state", "install --replace"] {
        let refused = node.try_slipway(&format!("{command} --to {DIR}"));
        assert_eq!(refused.code, Some(1), "{refused}");
        assert!(
            refused.stderr.ends_with("is on a read-only file system; nothing was changed\n"),
            "{refused}"
        );
        before.assert_same(&state());
    }
    // As the control, the removal succeeds as soon as the file system is writable.
    node.cmd(&format!("mount -o remount,bind,rw {DIR}"));
    assert!(
        uninstall(&node, &["remove  table inet slipway", "remove  slipway"]).contains("remove  link cni0")
    );
}

#[test]
fn a_plugin_directory_may_be_a_symbolic_link_and_the_state_too() {
    slipway_only!();
    let (node, pod) = Node::with_pod();
    node.cmd(&format!("ln -s /run/real-bin {DIR}"));
    let refused = node.try_slipway(&format!("install --to {DIR}"));
    assert!(refused.code == Some(1) && refused.stderr.contains("leads nowhere"), "{refused}");
    node.cmd("mkdir -p /run/real-bin /run/real-networks /run/real-run /var/lib/cni");
    node.cmd("ln -s /run/real-networks /var/lib/cni/networks");
    node.cmd("rm -rf /run/slipway");
    node.cmd("ln -s /run/real-run /run/slipway");
    node.write("/run/real-run/theirs", "");
    node.slipway(&format!("install --to {DIR}"));
    let [bridged, _] = lists();
    let network = node.network(bridged);
    network.add(&attach(&pod, 8080)).expect("ADD");
    network.del(&attach(&pod, 8080)).expect("DEL");
    uninstall(
        &node,
        &[
            "remove  slipway",
            "remove  /var/lib/cni/networks/bridged",
            "leave   /run/slipway (a symbolic link, which is not followed)",
        ],
    );
    assert!(node.list("/run/real-bin").is_empty() && node.list("/run/real-networks").is_empty());
    assert!(node.read("/run/real-run/theirs").is_some());
    node.cmd(&format!("test -L {DIR} -a -L /var/lib/cni/networks -a -L /run/slipway"));
}
