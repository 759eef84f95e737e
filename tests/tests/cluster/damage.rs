// SPDX-License-Identifier: GPL-2.0-or-later

//! Repairs of the dataplane, after other programs have flushed or detached parts of it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{
    Attach, ClusterNode, Daemon, Fate, Network, PROGRAMS, Pod, Proto, QUICK, Server, at, has_programs, needs,
    plugin_names, quoted, slipway, slipwayd, within,
};
use slipwayd::cluster::desired::TunnelMode;
use slipwayd::repair::damage::{Damage, OUR_PROCESSES};
use slipwayd::repair::program::Program;
use slipwayd::repair::{self, Repair};

use crate::observe::get;
use crate::repairs::{Stop, during, until};
use crate::{CONFLIST, Lab};

const PORT: u16 = 8080;
const LOG: &str = "/run/slipwayd.log";

fn program() -> Program {
    Program::new(slipway())
}

/// Repairs the first node during `body`, which gets the list of repairs so far.
fn with_repairs(lab: &Lab, program: Program, body: impl FnOnce(&Mutex<Vec<Repair>>)) {
    let repairs = Mutex::new(Vec::new());
    // The callback is the only other user of the list, and borrows it for as long as the agent runs.
    let seen = &repairs;
    let run = |stop: Stop| repair::run(program, stop, |repair| seen.lock().unwrap().push(copy(&repair)));
    during(lab.node(1), run, || {
        until("the first repair", || !repairs.lock().unwrap().is_empty());
        body(&repairs);
    });
}

/// The parts of a repair that tests examine.
fn copy(repair: &Repair) -> Repair {
    let restored = repair.restored.as_ref().expect("a report").clone();
    let programs = Ok(*repair.programs.as_ref().expect("a status"));
    Repair { damages: repair.damages.clone(), restored: Ok(restored), programs, took: repair.took }
}

/// Waits until a repair after the first `before` ones names the damage. Consequences of an earlier damage may be
/// reported in between.
fn reported(repairs: &Mutex<Vec<Repair>>, before: usize, cause: &str) {
    until(cause, || {
        let repairs = repairs.lock().unwrap();
        repairs[before..].iter().flat_map(|repair| &repair.damages).any(|one| one.to_string().contains(cause))
    });
}

/// A single node with a network.
fn lab() -> Lab {
    let mut lab = Lab::new(1, TunnelMode::Never);
    lab.settle();
    lab
}

/// A pod with a published port that is in the runtime's cache.
fn web(lab: &Lab, name: &str, port: u16) -> (Pod, Attach, Vec<Server>) {
    web_of(lab, &lab.network(1), name, port)
}

fn web_of(lab: &Lab, network: &Network<'_>, name: &str, port: u16) -> (Pod, Attach, Vec<Server>) {
    let pod = lab.node(1).pod(name);
    let attach = Attach::new(&pod).port(Proto::Tcp, port, 80).port(Proto::Udp, port, 80);
    network.add(&attach).unwrap_or_else(|error| panic!("ADD {name}: {error}"));
    network.write_cache(&attach);
    let servers = Proto::ALL.map(|proto| pod.serve(proto, "[::]:80", name));
    (pod, attach, servers.into())
}

fn answers(lab: &Lab, port: u16) -> bool {
    let to = at(lab.node(1).addresses[0], port);
    lab.cluster.outside.request_from(Proto::Tcp, None, to, QUICK).is_ok()
}

#[test]
fn a_flushed_ruleset_comes_back() {
    let lab = lab();
    let _web = web(&lab, "web", PORT);
    let node = lab.node(1);
    assert!(answers(&lab, PORT));
    with_repairs(&lab, program(), |repairs| {
        for damage in [
            "nft flush ruleset",
            "nft delete table inet slipway",
            "nft flush table inet slipway",
            "nft flush map inet slipway hostports4",
        ] {
            let before = repairs.lock().unwrap().len();
            let begin = Instant::now();
            node.cmd(damage);
            until(damage, || answers(&lab, PORT));
            println!("{damage}: answers after {:?}", begin.elapsed());
            until("the report", || repairs.lock().unwrap().len() > before);
            let repairs = repairs.lock().unwrap();
            let repair = &repairs[before];
            let causes = repair.damages.iter().map(ToString::to_string).collect::<Vec<_>>();
            assert!(causes.iter().any(|cause| cause.starts_with("nft ")), "{causes:?}");
            assert!(!repair.restored.as_ref().unwrap().restored.is_empty(), "{repair:?}");
            assert_eq!(repair.failures().collect::<Vec<_>>(), [""; 0]);
        }
        for (proto, to) in Proto::ALL.into_iter().flat_map(|p| node.addresses.map(|ip| (p, at(ip, PORT)))) {
            lab.cluster.outside.expect(proto, to, "web");
        }
    });
}

/// Other programs remove parts of a container's links. `slipway restore` knows each of these objects, and the agent is
/// notified of its loss.
#[test]
fn links_addresses_and_forwarding_come_back() {
    let lab = lab();
    let node = lab.node(1);
    // The plugin owns the gateway here, as on nodes where no agent creates the bridge.
    let mut list: Value = serde_json::from_str(&node.read(CONFLIST).expect("a configuration")).expect("JSON");
    list["plugins"][0]["isGateway"] = true.into();
    let (pod, _attach, _servers) = web_of(&lab, &node.network(list), "web", PORT);
    assert!(answers(&lab, PORT));
    let port = node.cmd("ip -o link show master slipway0");
    let port = port.split([' ', '@']).nth(1).expect("the pod's port").to_owned();
    with_repairs(&lab, program(), |repairs| {
        for (damage, cause) in [
            ("ip link set slipway0 down".to_owned(), "slipway0 was set down".to_owned()),
            (format!("ip link set {port} down"), format!("{port} was set down")),
            (format!("ip link set {port} nomaster"), format!("{port} left its bridge")),
            (
                "ip address flush dev slipway0 scope global".to_owned(),
                "the node's addresses changed".to_owned(),
            ),
            (
                "ip -6 address flush dev slipway0 scope link".to_owned(),
                "slipway0 lost the address".to_owned(),
            ),
            ("sysctl -w net.ipv4.ip_forward=0".to_owned(), "forwarding of IPv4 was switched off".to_owned()),
            (
                "sysctl -w net.ipv6.conf.all.forwarding=0".to_owned(),
                "forwarding of IPv6 was switched off".to_owned(),
            ),
        ] {
            let before = repairs.lock().unwrap().len();
            let begin = Instant::now();
            node.cmd(&damage);
            until(&damage, || node.try_slipway("restore --dry-run").code == Some(0) && answers(&lab, PORT));
            println!("{damage}: complete after {:?}", begin.elapsed());
            reported(repairs, before, &cause);
        }
        for (proto, to) in Proto::ALL.into_iter().flat_map(|p| node.addresses.map(|ip| (p, at(ip, PORT)))) {
            lab.cluster.outside.expect(proto, to, "web");
        }
        // A container that ends takes its link, addresses and routes with it, and that does not count as damage.
        let before = repairs.lock().unwrap().len();
        pod.remove();
        thread::sleep(within(Duration::from_secs(1)));
        assert_eq!(repairs.lock().unwrap().len(), before);
    });
}

/// The gateway and the routes of ptp belong to a single container, whose link names it as the owner, and they come and
/// go with it.
#[test]
fn a_link_of_one_container_gets_back_what_others_take() {
    let lab = lab();
    let node = lab.node(1);
    let ipam = slipway_tests::host_local("10.99.0.0/24", "fd99::/64");
    let list = json!({"name": "direct", "plugins": [
        {"type": "ptp", "ipMasq": true, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]});
    let (_pod, _attach, _servers) = web_of(&lab, &node.network(list), "web", PORT);
    assert!(answers(&lab, PORT));
    let link = node.cmd("ip route show 10.99.0.2");
    let link = link.split_whitespace().skip_while(|word| *word != "dev").nth(1).expect("a link").to_owned();
    with_repairs(&lab, program(), |repairs| {
        for (damage, cause) in [
            (format!("ip link set {link} down"), "was set down"),
            (format!("ip address flush dev {link} scope global"), "lost the address"),
            (format!("ip route del 10.99.0.2 dev {link}"), "lost the route to 10.99.0.2/32"),
            (format!("ip -6 route del fd99::2 dev {link}"), "lost the route to fd99::2/128"),
        ] {
            let before = repairs.lock().unwrap().len();
            node.cmd(&damage);
            until(&damage, || node.try_slipway("restore --dry-run").code == Some(0) && answers(&lab, PORT));
            reported(repairs, before, cause);
        }
    });
}

/// The agent is notified when queues and filters of a container's limit are deleted, replaced, or preceded by others.
#[test]
fn limits_of_a_rate_come_back() {
    let lab = lab();
    let node = lab.node(1);
    let network = limited(&lab);
    let (pod, attach, _servers) = web_of(&lab, &network, "web", PORT);
    let link = |pattern: &str| {
        let all = node.cmd("ip -o link show");
        let mut names =
            all.lines().filter_map(|line| line.split([' ', '@', ':']).find(|word| word.starts_with(pattern)));
        names.next_back().expect("a link").to_owned()
    };
    let (veth, device) = (link("veth"), link("bwp"));
    let gateway: IpAddr = "10.98.0.1".parse().expect("an address");
    let out_of = || slipway_tests::fate_of_burst(&pod, node, gateway, RATE);
    assert_eq!(out_of(), Fate::Limited);
    with_repairs(&lab, program(), |repairs| {
        for (damage, cause) in [
            (format!("tc qdisc del dev {veth} clsact"), "a filter or qdisc of"),
            (format!("tc qdisc replace dev {veth} root handle 7: bfifo"), "has another limit"),
            (
                format!(
                    "tc qdisc change dev {device} root handle 1: tbf rate 1gbit burst 1000000 limit 1000000"
                ),
                "has another limit",
            ),
            (format!("ip link set {device} down"), "was set down"),
            (format!("ip link del {device}"), "has another limit"),
        ] {
            let before = repairs.lock().unwrap().len();
            let begin = Instant::now();
            node.cmd(&damage);
            until(&damage, || network.check(&attach).is_ok());
            println!("{damage}: complete after {:?}", begin.elapsed());
            reported(repairs, before, cause);
            assert_eq!(out_of(), Fate::Limited, "{damage}");
        }
    });
    network.del(&attach).expect("DEL");
}

/// The limits in bits per second.
const RATE: u32 = 400_000;

/// A network that limits both directions.
fn limited(lab: &Lab) -> Network<'_> {
    lab.node(1).network(json!({"name": "limited", "plugins": [
        {"type": "bridge", "bridge": "br9", "isGateway": true, "ipam": slipway_tests::host_local("10.98.0.0/24", "fd98::/64")},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {
            "type": "bandwidth", "ingressRate": RATE, "ingressBurst": 24_224, "egressRate": RATE,
            "egressBurst": 24_224,
        },
    ]}))
}

#[test]
fn our_own_changes_cause_no_repair() {
    let lab = lab();
    let node = lab.node(1);
    with_repairs(&lab, program(), |repairs| {
        let mut longest = Duration::ZERO;
        for (number, network) in [lab.network(1), limited(&lab), limited(&lab)].iter().enumerate() {
            let (_pod, attach, _servers) = web_of(&lab, network, &format!("web{number}"), PORT);
            let begin = Instant::now();
            network.del(&attach).expect("DEL");
            longest = longest.max(begin.elapsed());
        }
        node.cmd("nft add table ip other");
        node.cmd("nft add chain ip other c");
        node.cmd("nft delete table ip other");
        thread::sleep(within(Duration::from_secs(1)));
        let causes: BTreeSet<String> =
            repairs.lock().unwrap().iter().flat_map(|one| &one.damages).map(ToString::to_string).collect();
        // In an emulated VM, the agent sees a link without its limit before the DEL removes the link, and starts a
        // repair that puts nothing back.
        let is_fast = longest < Duration::from_millis(1500);
        let is_ours = |cause: &String| cause.contains("table") || is_fast && cause.contains("veth");
        assert!(!causes.iter().any(is_ours), "{causes:?}");
        let left = node.ruleset();
        assert!(!left.contains("slipway1"), "{left}");
        // As the control, another program flushes the ruleset.
        let before = repairs.lock().unwrap().len();
        node.cmd("nft flush ruleset");
        until("a repair", || repairs.lock().unwrap().len() > before);
    });
}

/// The kernel names the process of a commit, and the process of a plugin has the name of the link through which it was
/// called.
#[test]
fn the_names_of_our_processes_are_complete() {
    for name in plugin_names() {
        // The kernel truncates process names to 15 bytes.
        assert!(OUR_PROCESSES.contains(&&name[..name.len().min(15)]), "{name}");
    }
}

#[test]
fn pods_that_come_during_flushes_are_complete() {
    let lab = lab();
    with_repairs(&lab, program(), |_| {
        let pods = thread::scope(|scope| {
            let adding: Vec<_> = (0..6_u16)
                .map(|number| {
                    scope.spawn({
                        let lab = &lab;
                        move || web(lab, &format!("web{number}"), PORT + number)
                    })
                })
                .collect();
            for _ in 0..5 {
                lab.node(1).cmd("nft flush ruleset");
                thread::sleep(Duration::from_millis(150));
            }
            adding.into_iter().map(|pod| pod.join().expect("an ADD")).collect::<Vec<_>>()
        });
        for (number, _) in (0_u16..).zip(&pods) {
            until("each pod's port", || answers(&lab, PORT + number));
        }
        until("nothing missing", || lab.node(1).try_slipway("restore --dry-run").code == Some(0));
    });
}

fn filters(node: &ClusterNode) -> String {
    node.try_cmd("tc filter show dev eth0 ingress").stdout
}

/// The network that the agent configured, changed to a given backend.
pub(crate) fn network_of<'a>(node: &'a ClusterNode, backend: &str) -> Network<'a> {
    let mut list: Value = serde_json::from_str(&node.read(CONFLIST).expect("a configuration")).expect("JSON");
    list["plugins"][0]["ipMasqBackend"] = backend.into();
    list["plugins"][1]["backend"] = backend.into();
    node.network(list)
}

#[test]
fn detached_bpf_programs_come_back() {
    needs!(has_programs(), PROGRAMS);
    let lab = lab();
    let node = lab.node(1);
    let network = network_of(node, "ebpf");
    with_repairs(&lab, Program { loads_programs: true, ..program() }, |repairs| {
        until("programs at the uplink", || filters(node).contains("flow_ingress"));
        let _web = web_of(&lab, &network, "web", PORT);
        let to = at(node.addresses[0], PORT);
        let mut flow = lab.cluster.outside.dial(Proto::Tcp, None, to, QUICK).expect("a connection");
        for damage in ["tc filter del dev eth0 ingress", "tc qdisc del dev eth0 clsact"] {
            let begin = Instant::now();
            node.cmd(damage);
            until(damage, || filters(node).contains("flow_ingress"));
            println!("{damage}: attached after {:?}", begin.elapsed());
        }
        until("the BPF programs carry the connection again", || {
            let before = node.counted("carried_packets");
            for _ in 0..50 {
                flow.request().expect("a reply");
            }
            node.counted("carried_packets") > before + 50
        });
        let repairs = repairs.lock().unwrap();
        assert!(repairs.iter().any(|one| matches!(one.programs, Ok(true))), "{repairs:?}");
    });
}

/// With kube-proxy in mode ipvs, our table has a list of the node's addresses. Ports are not published on addresses of
/// Services.
#[test]
fn addresses_next_to_ipvs_get_their_ports_as_they_come() {
    let lab = lab();
    let node = lab.node(1);
    // Only the link's name matters. Its kind differs from kube-proxy's, because not every kernel has that kind.
    node.cmd("ip link add kube-ipvs0 type bridge");
    node.cmd("ip address add 10.96.0.10/32 dev kube-ipvs0");
    lab.cluster.outside.cmd(&format!("ip route add 10.96.0.0/24 via {}", node.addresses[0]));
    let _web = web(&lab, "web", PORT);
    let is_open = |address: &str| {
        let to = at(address.parse::<IpAddr>().unwrap(), PORT);
        lab.cluster.outside.request_from(Proto::Tcp, None, to, QUICK).is_ok()
    };
    node.cmd("ip address add 192.168.50.77/24 dev eth0");
    assert!(!is_open("192.168.50.77"), "the list is of the last ADD");
    with_repairs(&lab, program(), |_| {
        until("the port at an address from before", || is_open("192.168.50.77"));
        node.cmd("ip address add 192.168.50.78/24 dev eth0");
        until("the port at a new address", || is_open("192.168.50.78"));
        node.cmd("ip address add 10.96.0.11/32 dev kube-ipvs0");
        thread::sleep(within(Duration::from_secs(1)));
        assert!(!is_open("10.96.0.11") && is_open("192.168.50.78"));
    });
}

/// The kernel reports a renewed lifetime (DHCP, router advertisements) like a new address.
#[test]
fn renewed_addresses_cause_no_repair() {
    let lab = lab();
    let node = lab.node(1);
    let [v4, v6] = node.addresses;
    with_repairs(&lab, program(), |repairs| {
        let of_addresses = || {
            let repairs = repairs.lock().unwrap();
            repairs.iter().filter(|one| one.damages.contains(&Damage::Addresses)).count()
        };
        let renew = |seconds: u32| {
            node.cmd(&format!(
                "ip address change {v4}/24 dev eth0 valid_lft {seconds} preferred_lft {seconds}"
            ));
            node.cmd(&format!(
                "ip address change {v6}/64 dev eth0 valid_lft {seconds} preferred_lft {seconds}"
            ));
        };
        for seconds in [1000, 2000, 3000] {
            renew(seconds);
            thread::sleep(within(Duration::from_millis(700)));
        }
        assert_eq!(of_addresses(), 0, "{:?}", repairs.lock().unwrap());
        // The controls are changes that must cause a repair.
        for change in [
            format!("ip address change {v6}/64 dev eth0 valid_lft 1000 preferred_lft 0"),
            "ip address add 192.168.50.77/24 dev eth0".to_owned(),
            "ip address del 192.168.50.77/24 dev eth0".to_owned(),
        ] {
            let before = of_addresses();
            node.cmd(&change);
            until(&change, || of_addresses() > before);
        }
    });
}

/// An agent in a container, in a PID namespace whose process 1 has the node's mounts. The agent's own mounts hide all
/// files that `slipway` needs.
fn contained(node: &ClusterNode, options: &str) -> Daemon {
    let agent = format!(
        "mount -t tmpfs none /var/lib/cni && mount -t tmpfs none /sys/fs/bpf && \
         for name in iptables-nft iptables-legacy; do \
         mount --bind /dev/null $(realpath $(command -v $name)) || exit; done && \
         exec {} run --node-name node-1 --kubeconfig /run/none --slipway {} {options}",
        quoted(slipwayd()),
        quoted(slipway())
    );
    let script = format!("unshare --mount sh -c {} & wait", quoted(&agent));
    let words = ["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script];
    node.daemon("unshare", &words, LOG)
}

/// An agent in a container runs `slipway` in the mount namespace of process 1, which has the runtime's cache.
#[test]
fn repairs_run_in_the_mount_namespace_of_process_1() {
    let lab = lab();
    let node = lab.node(1);
    let _web = web(&lab, "web", PORT);
    let _agent = contained(node, "--host-mounts");
    until("a try to list Nodes", || node.read(LOG).is_some_and(|log| log.contains("again in")));
    node.cmd("nft flush ruleset");
    until("the port", || answers(&lab, PORT));
}

/// The agent also reads metrics in the mount namespace of process 1, which has the pinned BPF programs and the node's
/// iptables.
#[test]
fn metrics_of_the_dataplane_are_those_of_process_1s_mounts() {
    for backend in ["nftables", "iptables", "ebpf"] {
        if backend == "ebpf" && !has_programs() {
            eprintln!("without {backend}: {PROGRAMS}");
            continue;
        }
        let lab = lab();
        let node = lab.node(1);
        let loads = backend == "ebpf";
        if loads {
            node.slipway("node setup");
        }
        let _web = web_of(&lab, &network_of(node, backend), "web", PORT);
        let _agent = contained(node, "--host-mounts");
        // In an emulated VM, the first attempt may take longer than the agent waits for it.
        until("metrics", || get(node, "/metrics").1.contains("slipway_dataplane_up 1.0"));
        let text = get(node, "/metrics").1;
        let count = u8::from(loads);
        for line in [
            "slipway_dataplane_up 1.0".to_owned(),
            format!("slipway_published_ports{{backend=\"{backend}\",protocol=\"tcp\"}} 2.0"),
            format!("slipway_published_ports{{backend=\"{backend}\",protocol=\"udp\"}} 2.0"),
            format!("slipway_bpf_loaded {count}.0"),
            format!("slipway_bpf_containers {count}.0"),
        ] {
            assert!(
                text.lines().any(|shown| shown == line),
                "{backend}: {line}:\n{text}{:?}",
                node.read(LOG)
            );
        }
    }
}

/// Plugins, restorations and the agent itself run iptables, which nf_tables then names as the process. The agent
/// repairs after such a change, but warns only if something was missing.
#[test]
fn changes_of_iptables_are_warnings_if_something_was_missing() {
    let lab = lab();
    let node = lab.node(1);
    let network = network_of(node, "iptables");
    let words = ["run", "--node-name", "node-1", "--kubeconfig", "/run/none", "--slipway"];
    let slipway = slipway().display().to_string();
    let _agent = node.daemon(slipwayd(), &[&words[..], &[&slipway]].concat(), LOG);
    let log = || node.read(LOG).unwrap_or_default();
    until("metrics", || get(node, "/metrics").0 == "200");
    let _web = web_of(&lab, &network, "web", PORT);
    let _other = web_of(&lab, &network, "other", PORT + 1);
    thread::sleep(within(Duration::from_secs(1)));
    assert!(!log().contains(" table ip "), "{}", log());
    node.cmd("iptables -t nat -F");
    until("the port", || answers(&lab, PORT));
    until("the cause and the effect", || {
        log().contains("changed table ip nat") && log().contains("restored ")
    });
}
