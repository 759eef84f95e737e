// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway check-node`: what it reports about other programs' rules.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};
use slipway_tests::{
    Attach, Disturbance, Host, Node, Output, Pod, Point, Proto, Server, all_error_points, at, disturbed,
    every_call, host_local, one_in, sample, usable,
};

/// Returns the report, and true if the command succeeded.
fn check(node: &Node) -> (Value, bool) {
    let output = node.try_slipway("check-node --output json");
    let report = serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"));
    (report, output.code == Some(0))
}

fn finding<'a>(report: &'a Value, what: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["subject"] == what);
    found.unwrap_or_else(|| panic!("nothing about {what}: {report:#}"))
}

#[test]
fn a_fresh_node_lacks_nothing() {
    let node = Node::new();
    let (report, success) = check(&node);
    assert!(success, "{report:#}");
    assert_eq!(report["ok"], true);
    for what in ["nf_tables, inet family", "nf_tables, fib expression", "veth links", "conntrack netlink"] {
        assert_eq!(finding(&report, what)["state"], "ok", "{what}");
    }
    assert_eq!(finding(&report, "table inet slipway")["found"], "does not exist yet");
    assert_eq!(finding(&report, "chains of other programs at the forward hook")["found"], "none");
    // The command tries things out, but has left nothing on the node.
    assert_eq!(node.cmd("nft list ruleset"), "");
    assert!(!node.cmd("ip -o link").contains("probe"));
}

/// Checks what the report says about our table while a container runs, before and after a change of the ruleset.
#[track_caller]
fn after(change: &str, found: &str) {
    let node = Node::new();
    let network = node.network(json!({"name": "pods", "plugins": [
        {
            "type": "bridge", "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16"}]]},
        },
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]}));
    let pod = node.pod("web1");
    let attach = Attach::new(&pod).port(Proto::Tcp, 8080, 80);
    network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    let state = |node: &Node| finding(&check(node).0, "table inet slipway").clone();
    assert_eq!(state(&node)["state"], "ok");
    node.nft(change);
    let (report, success) = check(&node);
    assert!(success, "a warning is not a failure: {report:#}");
    let table = finding(&report, "table inet slipway");
    assert_eq!((&table["state"], &table["found"]), (&"warning".into(), &found.into()), "{table:#}");
    assert!(table["fix"].as_str().unwrap().contains("`slipway restore`"), "{table:#}");
    node.slipway("restore");
    assert_eq!(state(&node)["state"], "ok");
    node.nft(change);
    pod.remove();
    assert_eq!(state(&node)["state"], "ok", "its container does not run any more");
}

#[test]
fn a_missing_table_is_a_warning_while_containers_need_it() {
    after(
        "flush ruleset",
        "missing: the guard of the node's loopback; the rules of network pods, container web1, interface eth0",
    );
}

#[test]
fn a_table_without_the_elements_of_a_running_container_is_a_warning() {
    after(
        "flush map inet slipway hostports4",
        "lacks the rules of network pods, container web1, interface eth0",
    );
}

/// Without the runtime's cache, nothing tells what the containers need. The rest of the node is still checked.
#[test]
fn an_unreadable_cache_hides_no_other_finding() {
    let node = Node::new();
    node.cmd("mkdir -p /var/lib/cni");
    node.cmd("ln -s results /var/lib/cni/results");
    let (report, success) = check(&node);
    assert!(success, "a warning is not a failure: {report:#}");
    assert_eq!(finding(&report, "running containers")["state"], "warning");
    assert_eq!(finding(&report, "table inet slipway")["state"], "ok");
}

#[test]
fn a_forward_chain_that_drops_is_named() {
    let node = Node::new();
    node.nft(
        "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; counter; }; }
         table inet wall { chain out { type filter hook output priority 0; policy drop; }; }
         table inet calm { chain pass { type filter hook forward priority 0; policy accept; }; }",
    );
    let (report, success) = check(&node);
    assert!(success, "a warning is not a failure: {report:#}");
    let chain = finding(&report, "chain ip filter FORWARD");
    assert_eq!(chain["state"], "warning");
    assert_eq!(chain["found"], "policy drop at the forward hook, 1 rules");
    assert!(chain["fix"].as_str().unwrap().contains("DOCKER-USER"));
    let text = report.to_string();
    assert!(!text.contains("inet wall") && !text.contains("inet calm"), "{text}");
}

#[test]
fn a_dropping_policy_of_legacy_iptables_is_named() {
    let node = Node::new();
    if node.try_cmd("iptables-legacy -P FORWARD DROP").code != Some(0) {
        slipway_tests::skip!("legacy iptables");
    }
    let (report, success) = check(&node);
    assert!(success, "{report:#}");
    assert_eq!(finding(&report, "tables of iptables-legacy")["found"], "filter");
    let chain = finding(&report, "iptables-legacy FORWARD");
    assert_eq!((&chain["state"], &chain["found"]), (&"warning".into(), &"policy DROP".into()));
    assert_eq!(finding(&report, "tables of ip6tables-legacy")["found"], "none");
}

#[test]
fn a_foreign_table_of_our_name_is_a_failure() {
    let node = Node::new();
    node.nft("table inet slipway { map ports { type inet_service : ipv4_addr; }; }");
    let (report, success) = check(&node);
    assert!(!success);
    assert_eq!(report["ok"], false);
    let table = finding(&report, "table inet slipway");
    assert_eq!(table["state"], "missing");
    assert!(table["found"].as_str().unwrap().contains("was not made by slipway"), "{table}");
    node.nft("delete table inet slipway; table inet slipway { chain schema-9999 { }; }");
    let (report, success) = check(&node);
    assert!(!success);
    let table = finding(&report, "table inet slipway");
    assert!(table["found"].as_str().unwrap().contains("schema 9999"), "{table}");
}

#[test]
fn the_text_contains_reason_and_advice() {
    let node = Node::new();
    node.nft("table inet wall { chain passing { type filter hook forward priority 0; policy drop; }; }");
    let text = node.slipway("check-node");
    assert!(text.contains("warning  chain inet wall passing"), "{text}");
    assert!(text.contains("reason: traffic to and from containers passes only if"), "{text}");
    assert!(text.contains("fix: add rules to it that accept"), "{text}");
    assert!(text.contains("\n0 missing, "), "{text}");
    assert_eq!(node.try_slipway("check-node --output xml").code, Some(2));
}

#[test]
fn firewalld_with_strict_forward_ports_is_named() {
    let node = Node::new();
    node.own_etc();
    let (report, _) = check(&node);
    assert!(!report.to_string().contains("StrictForwardPorts"), "{report:#}");
    node.write("/etc/firewalld/firewalld.conf", "# a comment\nStrictForwardPorts=yes\n");
    let (report, success) = check(&node);
    assert!(success);
    assert_eq!(finding(&report, "firewalld, StrictForwardPorts")["state"], "note");
    node.nft("table inet firewalld { }");
    let (report, _) = check(&node);
    assert_eq!(finding(&report, "firewalld, StrictForwardPorts")["state"], "warning");
}

/// A node with a container that publishes port 8080, and a client outside.
struct Published {
    node: Node,
    client: Host,
    pod: Pod,
    _server: Server,
}

impl Published {
    fn new(backend: &str) -> Self {
        let (node, client) = Node::with_client();
        let network = node.network(json!({"name": "pods", "plugins": [
            {
                "type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
                "ipam": host_local("10.22.0.0/16", "fd00:22::/64"),
            },
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
        ]}));
        let pod = node.pod("web1");
        network.add(&Attach::new(&pod).port(Proto::Tcp, 8080, 80)).expect("ADD");
        let server = pod.serve(Proto::Tcp, "[::]:80", "web1");
        Self { node, client, pod, _server: server }
    }

    fn addresses(&self) -> Vec<IpAddr> {
        usable([self.client.node_v4.into(), self.client.node_v6.into()])
    }

    #[track_caller]
    fn is_closed(&self, families: &[usize]) {
        self.client
            .expect_none_of(families.iter().map(|index| (Proto::Tcp, at(self.addresses()[*index], 8080))));
    }

    #[track_caller]
    fn is_open(&self) {
        for ip in self.addresses() {
            self.client.expect(Proto::Tcp, at(ip, 8080), "web1");
        }
        // A connection that the container itself opens.
        let _server = self.client.serve(Proto::Tcp, "[::]:90", "client");
        for ip in usable([self.client.v4.into(), self.client.v6.into()]) {
            self.pod.expect(Proto::Tcp, at(ip, 90), "client");
        }
    }

    /// Runs the command that `check-node` recommends about a chain.
    fn paste(&self, what: &str) {
        let (report, _) = check(&self.node);
        let found = finding(&report, what);
        assert_eq!(found["state"], "warning", "{found:#}");
        let fix = found["fix"].as_str().expect("a text");
        let advice = fix.split('`').nth(1).unwrap_or_else(|| panic!("no command: {fix}"));
        self.node.cmd_input("sh -e", advice);
        let (report, _) = check(&self.node);
        let found = finding(&report, what);
        assert!(
            found["state"] == "note" && found["found"].to_string().contains("published ports"),
            "{found:#}"
        );
    }
}

/// Creates the chains of Docker with iptables, in this variant. Returns false if the variant is not installed.
fn docker(node: &Node, variant: &str) -> bool {
    let rules = "*filter\n:FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n:DOCKER-FORWARD - [0:0]\n\
                 -A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n-A DOCKER-USER -j RETURN\nCOMMIT\n";
    ["iptables", "ip6tables"].iter().all(|family| {
        let program = format!("{family}-{variant}-restore");
        node.try_run(&["sh", "-c", &format!("command -v {program}")])
            .is_some_and(|found| found.code == Some(0))
            && node.cmd_input(&format!("{program} --noflush"), rules).is_empty()
    })
}

#[test]
fn advice_for_dockers_forward_works_when_pasted() {
    slipway_tests::needs_ipv6!();
    slipway_tests::needs_iptables!();
    for backend in ["nftables", "iptables"] {
        let world = Published::new(backend);
        assert!(docker(&world.node, "nft"));
        world.is_closed(&[0, 1]);
        world.paste("chain ip filter FORWARD");
        world.is_closed(&[1]);
        world.paste("chain ip6 filter FORWARD");
        world.is_open();
        let rules = world.node.cmd("iptables -S DOCKER-USER");
        assert!(rules.contains("10.22.0.0/16") && rules.contains("DNAT"), "{rules}");
        // explain reports the same.
        let said = world.node.slipway("explain tcp 192.0.2.1:8080");
        assert!(said.contains("chain ip filter FORWARD drops by default, but accepts"), "{said}");
        assert!(!said.contains("unless"), "{said}");
    }
}

#[test]
fn advice_for_dockers_legacy_forward_works_when_pasted() {
    slipway_tests::needs_ipv6!();
    let world = Published::new("nftables");
    if world.node.try_cmd("iptables-legacy -S").code != Some(0) || !docker(&world.node, "legacy") {
        slipway_tests::skip!("legacy iptables");
    }
    world.is_closed(&[0, 1]);
    world.paste("iptables-legacy FORWARD");
    world.paste("ip6tables-legacy FORWARD");
    world.is_open();
    assert!(world.node.cmd("iptables-legacy -S DOCKER-USER").contains("DNAT"));
}

/// As with ufw, an administrator's policy, or Docker after a move to nftables that has left the policy behind.
#[test]
fn advice_for_a_plain_forward_works_when_pasted() {
    slipway_tests::needs_ipv6!();
    slipway_tests::needs_iptables!();
    let world = Published::new("nftables");
    for family in ["iptables", "ip6tables"] {
        world.node.cmd(&format!("{family} -P FORWARD DROP"));
        // The chain still exists, but nothing jumps to it any more.
        world.node.cmd(&format!("{family} -N DOCKER-USER"));
    }
    world.is_closed(&[0, 1]);
    world.paste("chain ip filter FORWARD");
    world.paste("chain ip6 filter FORWARD");
    world.is_open();
}

#[test]
fn advice_for_chains_of_nft_works_when_pasted() {
    slipway_tests::needs_ipv6!();
    // The second table is what Docker creates with "firewall-backend": "nftables" if it switches forwarding on itself.
    let docker = |family: &str| {
        format!(
            "table {family} docker-bridges {{
                map filter-forward-in-jumps {{ type ifname : verdict; }}
                chain filter-FORWARD {{
                    type filter hook forward priority filter; policy drop;
                    oifname vmap @filter-forward-in-jumps
                }}
            }}\n"
        )
    };
    let wall = "table inet wall { chain gate { type filter hook forward priority 0; policy drop; tcp dport 80 drop; }; }";
    for (rules, chains) in [
        (wall.to_owned(), vec!["chain inet wall gate"]),
        (
            docker("ip") + &docker("ip6"),
            vec!["chain ip docker-bridges filter-FORWARD", "chain ip6 docker-bridges filter-FORWARD"],
        ),
    ] {
        let world = Published::new("nftables");
        world.node.nft(&rules);
        world.is_closed(&[0, 1]);
        chains.iter().for_each(|chain| world.paste(chain));
        world.is_open();
    }
}

/// Runs the commands on the documentation page, whose example has the same network as this test.
#[test]
fn advice_on_the_page_works_when_pasted() {
    slipway_tests::needs_ipv6!();
    slipway_tests::needs_iptables!();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/questions/port-does-not-answer.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let blocks: Vec<&str> =
        page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 2, "for iptables, and for nft");
    for (block, prepare) in blocks.iter().zip(["docker", "nft"]) {
        let world = Published::new("nftables");
        if prepare == "docker" {
            assert!(docker(&world.node, "nft"));
        } else {
            world.node.nft(
                "table inet filter { chain forward { type filter hook forward priority 0; policy drop; }; }",
            );
        }
        world.is_closed(&[0, 1]);
        world.node.cmd_input("sh -e", block);
        world.is_open();
    }
}

/// Tests the unit that keeps these commands. Starting it opens the way, and stopping it closes the way again.
#[test]
fn the_unit_beside_docker_opens_and_closes_the_way() {
    slipway_tests::needs_ipv6!();
    slipway_tests::needs_iptables!();
    let page = include_str!("../../docs/neighbours.md");
    let commands = |key: &str| -> String {
        let values = page.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
        values.filter(|line| line.contains("DOCKER-USER")).map(|line| format!("{line}\n")).collect()
    };
    let world = Published::new("nftables");
    assert!(docker(&world.node, "nft"));
    for _ in 0..2 {
        world.is_closed(&[0, 1]);
        world.node.cmd_input("sh -e", &commands("ExecStart"));
        world.is_open();
        world.node.cmd_input("sh -e", &commands("ExecStop"));
    }
    world.is_closed(&[0, 1]);
}

/// A misspelt key has no effect, as with the reference plugins, so nothing else would reveal it.
#[test]
fn unknown_keys_of_networks_are_named_with_the_nearest_known_key() {
    let node = Node::new();
    node.own_etc();
    let ipam = json!({"type": "host-local", "subent": "10.1.2.0/24", "subnet": "10.1.2.0/24"});
    let list = json!({
        "cniVersion": "1.0.0", "name": "pods", "disableGCC": true,
        "plugins": [
            {"type": "bridge", "bridge": "br0", "isGatewayy": true, "ipam": ipam},
            {"type": "other", "anything": 1},
        ],
    });
    node.write("/etc/cni/net.d/10-pods.conflist", list.to_string());
    node.write("/etc/cni/net.d/20-one.conf", json!({"name": "one", "type": "ptp", "mtuu": 1400}).to_string());
    let good =
        json!({"cniVersion": "1.0.0", "name": "good", "plugins": [{"type": "loopback", "capabilities": {}}]});
    node.write("/etc/cni/net.d/30-good.conflist", good.to_string());
    let (report, success) = check(&node);
    assert!(success, "a warning is not a failure: {report:#}");
    let pods = finding(&report, "network in /etc/cni/net.d/10-pods.conflist");
    assert_eq!(
        (&pods["state"], &pods["found"]),
        (
            &json!("warning"),
            &json!(
                "unknown key \"disableGCC\": did you mean \"disableGC\"?, unknown key \"plugins[0].ipam.subent\": \
                 did you mean \"subnet\"?, unknown key \"plugins[0].isGatewayy\": did you mean \"isGateway\"?"
            )
        )
    );
    let one = finding(&report, "network in /etc/cni/net.d/20-one.conf");
    assert_eq!(one["found"], "unknown key \"mtuu\": did you mean \"mtu\"?");
    assert!(!report.to_string().contains("30-good"), "{report:#}");
}

/// The calls with which the command reads, each with an error that a short or damaged system gives.
const READING: &[(&str, &str)] = &[
    ("getdents64", "EIO"),
    ("newfstatat", "EIO"),
    ("openat", "EMFILE"),
    ("openat2", "EMFILE"),
    ("read", "EIO"),
    ("readlink", "EIO"),
    ("recvfrom", "ENOBUFS"),
    ("recvmsg", "ENOBUFS"),
    ("sendto", "ENOBUFS"),
    ("socket", "EMFILE"),
    ("statx", "EIO"),
];

/// The largest number of calls of one name that are tried, before a sample of them is taken.
const MOST: usize = 12;

/// The findings by subject: the state, and what was found.
type Findings = BTreeMap<String, (String, String)>;

/// The findings of a call. None if the command failed as a whole, with a reason.
fn findings(output: &Output) -> Option<Findings> {
    let process = &output.process;
    assert!(!process.stderr.contains("panicked"), "{process}");
    let Ok(report) = serde_json::from_str::<Value>(&process.stdout) else {
        assert!(process.code != Some(0) && !process.stderr.trim().is_empty(), "{process}");
        return None;
    };
    let text = |finding: &Value, key: &str| finding[key].as_str().expect("a text").to_owned();
    let findings = report["findings"].as_array().expect("a list").iter();
    Some(findings.map(|one| (text(one, "subject"), (text(one, "state"), text(one, "found")))).collect())
}

/// True if a finding about this subject, which says that something could not be read, stands for the other one.
fn stands_for(unread: &str, other: &str) -> bool {
    let begins: &[&str] = match unread {
        // Nothing can be probed.
        "a network namespace for probes" | "kernel features" => &[
            "nf_tables",
            "conntrack netlink",
            "veth ",
            "bridges",
            "macvlan ",
            "ipvlan ",
            "vlan ",
            "dummy ",
            "vrf ",
            "ifb ",
            "tun ",
        ],
        "nf_tables" => &["nf_tables, ", "conntrack netlink"],
        "links" => &["veth ", "bridges", "macvlan ", "ipvlan ", "vlan ", "dummy ", "vrf ", "ifb ", "tun "],
        "settings of the node" => &["networks that are not masqueraded"],
        "networks" => &["network in ", "network bad, ", "room for containers"],
        "podman's networks" => &["podman's network in "],
        "running containers" => &["port "],
        "chains of other programs at the forward hook" => &["chain "],
        "tables of other programs" => &["table inet firewalld", "table ip cni_hostport"],
        _ if unread.ends_with("/20-bad.conflist") => &["network bad, "],
        _ if unread.starts_with("cache file ") || unread.contains(", container ") => &["port "],
        _ => &[],
    };
    begins.iter().any(|begin| other.starts_with(begin))
}

/// Lets one call after the other fail with which the command reads something. Each finding is as without the failure,
/// or says that it could not be read, or another one says so in its place.
#[test]
fn no_finding_vanishes_if_a_call_fails() {
    let node = Node::new();
    node.own_etc();
    let list = json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
        {
            "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "misspelt": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.22.0.0/24"}]]},
        },
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]});
    let bad = json!({"name": "bad", "cniVersion": "1.0.0", "plugins": [{"type": "bridge", "vlan": 9999}]});
    // A network of podman that an earlier version created.
    let open = json!({
        "name": "a", "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
        "driver": "slipway", "network_interface": "sw2f259bab", "created": "2026-01-02T03:04:05Z",
    });
    node.write("/etc/cni/net.d/10-pods.conflist", list.to_string());
    node.write("/etc/cni/net.d/20-bad.conflist", bad.to_string());
    node.write(
        "/etc/cni/slipway.json",
        json!({"nonMasqueradeCIDRs": ["10.99.0.0/16"], "misspelt": 1}).to_string(),
    );
    node.write("/etc/containers/networks/a.json", open.to_string());
    node.write("/etc/firewalld/firewalld.conf", "StrictForwardPorts=yes\n");
    node.nft(
        "table inet firewalld { }
         table ip cni_hostport { }
         table inet wall { chain gate { type filter hook forward priority 0; policy drop; }; }",
    );
    let network = node.network(list);
    let (web, gone) = (node.pod("web"), node.pod("gone"));
    let attach = Attach::new(&web).port(Proto::Tcp, 8080, 80);
    let result = network.add(&attach).expect("ADD");
    network.write_cache(&attach);
    let port = result["interfaces"][1]["name"].as_str().expect("a name");
    node.cmd(&format!("ip link set {port} nomaster"));
    network.add(&Attach::new(&gone)).expect("ADD");
    gone.remove();

    let call = || node.plugin("slipway").arguments(&["check-node", "--output", "json"]);
    let (output, points) = all_error_points(&node, call());
    let before = findings(&output).unwrap_or_else(|| panic!("{}", output.process));
    for subject in
        ["owners", "settings of the node", "network in /etc/cni/net.d/10-pods.conflist", "tracked flows"]
    {
        assert!(before.contains_key(subject), "{subject}: {before:#?}");
    }
    let says_so =
        |(state, found): &(String, String)| state == "missing" || found.starts_with("could not be read: ");
    let (mut tried, mut unread) = (0, 0);
    for (syscall, error) in READING {
        let points: Vec<Point> = points.iter().filter(|point| point.syscall == *syscall).cloned().collect();
        let step = if every_call() { 1 } else { points.len().div_ceil(MOST).max(1) };
        for point in sample(one_in(points, syscall.len(), step)) {
            let why = format!("{error} at {syscall} number {}", point.nth);
            tried += 1;
            let Some(after) = findings(&disturbed(&node, call(), &point, Disturbance::Error(error))) else {
                continue;
            };
            let new: Vec<&String> = after
                .iter()
                .filter(|(subject, finding)| says_so(finding) && before.get(*subject) != Some(*finding))
                .map(|(subject, _)| subject)
                .collect();
            unread += usize::from(!new.is_empty());
            let vanished: Vec<&String> = before
                .keys()
                .filter(|subject| {
                    !after.contains_key(*subject) && !new.iter().any(|one| stands_for(one, subject))
                })
                .collect();
            assert!(vanished.is_empty(), "{why}: nothing says why {vanished:?} is not there, but {new:?}");
        }
    }
    // Otherwise the failures hit nothing that is reported.
    assert!(unread > tried / 20, "{unread} of {tried}");
}
