// SPDX-License-Identifier: GPL-2.0-or-later

//! The node's own routes.

use std::net::IpAddr;
use std::time::Duration;

use cni_kernel::AddressFamily;
use cni_kernel::forwarding;
use cni_kernel::route::RouteSocket;
use serde_json::{Value, json};
use slipway_tests::{Advertisement, Attach, Frame, Host, Node, Sniffer, slipway_only, until};

use crate::{LIMIT, advertised_addresses, learnt};

const ALL: &str = "net/ipv6/conf/all/forwarding";
/// An address that the node reaches only through the router.
const BEYOND: &str = "2001:db8:ffff::1";

/// A node whose default route comes from an advertisement.
struct Stage {
    node: Node,
    router: Host,
    /// A host on a link without a router.
    silent: Host,
    /// A host on a link whose advertisements the node refuses.
    refused: Host,
}

impl Stage {
    fn new() -> Self {
        let node = Node::new();
        let (router, silent, refused) = (node.host("router"), node.host("silent"), node.host("refused"));
        node.sysctl(&setting(&refused), "0");
        // A neighbour whose advertisement lacks the router flag does not count as a router any more (RFC 4861, section
        // 7.2.5), so these hosts have to forward.
        for router in [&router, &silent] {
            router.sysctl(ALL, "1");
        }
        router.cmd(&format!("ip address add {BEYOND}/128 dev lo nodad"));
        let stage = Self { node, router, silent, refused };
        until(LIMIT, "the node has a default route", || {
            stage.advertise(1800);
            stage.has_route() && has_router(&stage.node, &stage.router)
        });
        stage.reaches_beyond();
        stage
    }

    fn advertise(&self, lifetime: u16) {
        Advertisement::of_router(lifetime).send(&self.router, "eth0");
    }

    fn has_route(&self) -> bool {
        learnt(&self.node, &self.router.node_link).contains("default")
    }

    #[track_caller]
    fn reaches_beyond(&self) {
        let beyond: IpAddr = BEYOND.parse().expect("an address");
        until(LIMIT, "the node reaches what is behind its router", || self.node.ping(beyond).is_ok());
    }

    /// The value of `accept_ra` on the three links.
    fn accepts(&self) -> [String; 3] {
        [&self.router, &self.silent, &self.refused]
            .map(|host| self.node.sysctl_get(&setting(host)).expect("a setting"))
    }

    /// Asserts that the node forwards, still has the route, and learns from the next advertisement.
    #[track_caller]
    fn kept_its_route(&self) {
        assert_eq!(self.node.sysctl_get(ALL).as_deref(), Some("1"));
        assert_eq!(self.accepts(), ["2", "1", "0"], "the router's link, and no other");
        assert!(self.has_route(), "the default route is gone");
        self.reaches_beyond();
        self.advertise(600);
        until(LIMIT, "the next advertisement counts", || {
            let route = learnt(&self.node, &self.router.node_link);
            let expires = route.split("expires ").nth(1).and_then(|rest| rest.split("sec").next());
            expires.and_then(|seconds| seconds.parse::<u32>().ok()).is_some_and(|seconds| seconds <= 600)
        });
        self.reaches_beyond();
    }
}

/// True if the kernel has solicited and found a router on the link to that host.
fn has_router(node: &Node, host: &Host) -> bool {
    let link = node.run(|| RouteSocket::open().and_then(|route| route.link(&host.node_link)));
    link.expect("the link").has_router
}

fn setting(host: &Host) -> String {
    format!("net/ipv6/conf/{}/accept_ra", host.node_link)
}

/// A network with this single plugin and an IPv6 range.
fn network(plugin: Value) -> Value {
    let mut plugin = plugin;
    plugin["ipam"] = json!({
        "type": "host-local", "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1::/64"}]],
    });
    json!({"name": "net", "plugins": [plugin]})
}

fn add(node: &Node, network: Value) {
    let pod = node.pod("pod");
    node.network(network).add(&Attach::new(&pod)).expect("ADD");
}

#[test]
fn bridge_keeps_the_nodes_default_route() {
    slipway_only!(); // It loses the route.
    let stage = Stage::new();
    add(&stage.node, network(json!({"type": "bridge", "isGateway": true})));
    stage.kept_its_route();
}

#[test]
fn ptp_keeps_the_nodes_default_route() {
    slipway_only!();
    let stage = Stage::new();
    let pod = stage.node.pod("pod");
    let network = stage.node.network(network(json!({"type": "ptp"})));
    let config = network.configs(None).remove(0);
    let call = network.prepare("ADD", &config, Some(&Attach::new(&pod))).env("SLIPWAY_LOG", "warn");
    let output = call.run();
    let _ = output.ok();
    let line = format!("set sysctl {} to 2", setting(&stage.router));
    assert!(output.process.stderr.contains(&line), "{line} is not in the log: {}", output.process);
    stage.kept_its_route();
}

#[test]
fn flannel_keeps_the_nodes_default_route() {
    slipway_only!();
    let stage = Stage::new();
    stage.node.write(
        "/run/flannel/subnet.env",
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_IPV6_NETWORK=fd00:244::/56\n\
         FLANNEL_IPV6_SUBNET=fd00:244:0:3::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n",
    );
    let delegate = json!({"isDefaultGateway": true});
    add(&stage.node, json!({"name": "cbr0", "plugins": [{"type": "flannel", "delegate": delegate}]}));
    stage.kept_its_route();
}

#[test]
fn the_netavark_driver_keeps_the_nodes_default_route() {
    slipway_only!();
    let stage = Stage::new();
    let pod = stage.node.pod("pod");
    let subnet = |subnet: &str, gateway: &str| json!({"subnet": subnet, "gateway": gateway});
    let call = json!({
        "container_id": "pod", "container_name": "pod", "port_mappings": [],
        "network": {
            "name": "blue", "id": "2f25", "driver": "slipway", "network_interface": "sw0", "internal": false,
            "subnets": [subnet("10.89.0.0/24", "10.89.0.1"), subnet("fd00:89::/64", "fd00:89::1")],
            "ipv6_enabled": true, "dns_enabled": false, "options": {}, "ipam_options": {"driver": "host-local"},
        },
        "network_options": {"interface_name": "eth0", "static_ips": ["10.89.0.2", "fd00:89::2"]},
    });
    let path = pod.path().display().to_string();
    let setup = stage.node.plugin("slipway").without("CNI_PATH").arguments(&["setup", &path]).config(&call);
    let output = setup.run();
    assert_eq!(output.process.code, Some(0), "{}", output.process);
    assert_eq!(pod.sysctl_get("net/ipv6/conf/eth0/accept_ra").as_deref(), Some("0"));
    stage.kept_its_route();
}

/// slipwayd, whose settings may be in another directory, calls the function, and so does every other caller.
#[test]
fn the_function_of_all_callers_names_the_links() {
    let stage = Stage::new();
    let enable = || {
        let route = RouteSocket::open().expect("a socket");
        forwarding::enable_below("/proc/sys".as_ref(), &route, AddressFamily::V6).expect("forwarding")
    };
    assert_eq!(stage.node.run(enable), [stage.router.node_link.as_str()]);
    stage.kept_its_route();
    // If forwarding is already on, the function does not look at the links.
    stage.node.sysctl(&setting(&stage.router), "1");
    assert_eq!(stage.node.run(enable), [""; 0]);
    assert_eq!(stage.accepts()[0], "1");
}

/// As the control, shows what the kernel does without help, and the manual remedy.
#[test]
fn the_kernel_deletes_the_route_unless_the_link_accepts_advertisements_as_a_router() {
    let stage = Stage::new();
    stage.node.sysctl(ALL, "1");
    assert!(!stage.has_route(), "the kernel keeps the route by itself");
    let beyond: IpAddr = BEYOND.parse().expect("an address");
    stage.node.ping(beyond).expect_err("there is no way");
    let by_hand = Stage::new();
    by_hand.node.sysctl(&setting(&by_hand.router), "2");
    by_hand.node.sysctl(ALL, "1");
    by_hand.kept_its_route();
}

#[test]
fn an_ipv4_network_changes_no_link() {
    let stage = Stage::new();
    let mut list = network(json!({"type": "bridge", "isGateway": true}));
    list["plugins"][0]["ipam"] = json!({"type": "host-local", "subnet": "10.1.2.0/24"});
    add(&stage.node, list);
    assert_eq!(stage.node.sysctl_get(ALL).as_deref(), Some("0"));
    assert_eq!(stage.accepts(), ["1", "1", "0"]);
    assert!(stage.has_route());
}

/// A router that is not a default router still announces routes to single networks, prefixes and addresses.
#[test]
fn other_routes_and_addresses_from_advertisements_are_kept_as_well() {
    slipway_only!();
    let stage = Stage::new();
    let silent = &stage.silent;
    let prefix =
        Advertisement { lifetime: 0, prefix: "2001:db8:5::".parse().ok(), ..Advertisement::of_router(0) };
    let dynamic = || advertised_addresses(&stage.node, &silent.node_link);
    until(LIMIT, "the prefix gives an address", || {
        prefix.send(silent, "eth0");
        dynamic().contains("2001:db8:5:") && has_router(&stage.node, silent)
    });
    add(&stage.node, network(json!({"type": "ptp"})));
    assert_eq!(stage.accepts(), ["2", "2", "0"]);
    assert!(stage.has_route() && dynamic().contains("2001:db8:5:"));
}

#[test]
fn a_bridge_that_is_the_nodes_uplink_keeps_its_route() {
    slipway_only!(); // It sets accept_ra of every bridge to 0.
    let node = Node::new();
    let router = node.host("router");
    router.sysctl(ALL, "1");
    let link = &router.node_link;
    node.cmd("ip link add br0 type bridge");
    node.cmd(&format!("ip link set {link} master br0"));
    node.cmd(&format!("ip -6 address flush dev {link}"));
    node.cmd("ip link set br0 up");
    until(LIMIT, "the bridge has a route", || {
        Advertisement::of_router(1800).send(&router, "eth0");
        learnt(&node, "br0").contains("default")
    });
    add(&node, network(json!({"type": "bridge", "bridge": "br0"})));
    assert_eq!(node.sysctl_get("net/ipv6/conf/br0/accept_ra").as_deref(), Some("1"));
    let other = node.pod("other");
    let mut gateway = network(json!({"type": "bridge", "bridge": "br1", "isGateway": true}));
    gateway["name"] = "other".into();
    node.network(gateway).add(&Attach::new(&other)).expect("ADD");
    assert_eq!(node.sysctl_get("net/ipv6/conf/br0/accept_ra").as_deref(), Some("2"));
    assert_eq!(node.sysctl_get("net/ipv6/conf/br1/accept_ra").as_deref(), Some("0"));
    assert!(learnt(&node, "br0").contains("default"));
}

#[test]
fn check_node_warns_when_it_is_too_late() {
    let stage = Stage::new();
    let subject = format!("router advertisements at {}", stage.router.node_link);
    let findings = || {
        let report: Value =
            serde_json::from_str(&stage.node.try_slipway("check-node --output json").stdout).expect("JSON");
        let findings = report["findings"].as_array().expect("a list").clone();
        let about = |finding: &&Value| {
            finding["subject"].as_str().is_some_and(|subject| subject.starts_with("router advertisements"))
        };
        findings.iter().filter(about).cloned().collect::<Vec<_>>()
    };
    assert_eq!(findings(), [json!(null); 0], "the node does not forward");
    stage.node.sysctl(ALL, "1");
    let found = findings();
    let [finding] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((&finding["subject"], &finding["state"]), (&json!(subject), &json!("warning")));
    // The first pair of backquotes in the finding contains the command that repairs the node.
    let fix = finding["fix"].as_str().expect("a remedy");
    stage.node.cmd(fix.split('`').nth(1).expect("a command"));
    assert_eq!(findings(), [json!(null); 0]);
    stage.advertise(1800);
    until(LIMIT, "the node has its route again", || stage.has_route());
    stage.reaches_beyond();
}

/// A route appears after the plugin has looked for routes and before it writes the setting, because the process is
/// delayed at the write. The kernel deletes the route, and the router is asked for it again.
#[test]
fn a_route_that_appears_meanwhile_is_asked_for_again() {
    slipway_only!();
    let stage = Stage::new();
    let late = &stage.silent;
    let pod = stage.node.pod("pod");
    let network = stage.node.network(network(json!({"type": "ptp"})));
    let file = format!("/proc/sys/{ALL}");
    let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", &file, "-e", "trace=write"];
    let strace = [&strace[..], &["-e", "inject=write:delay_enter=3000000us"]].concat();
    let config = network.configs(None).remove(0);
    let call = network.prepare("ADD", &config, Some(&Attach::new(&pod))).through(&strace).spawn();
    until(LIMIT, "the links are prepared", || stage.accepts()[0] == "2");
    let is_late = || learnt(&stage.node, &late.node_link).contains("default");
    until(LIMIT, "the late router is known", || {
        Advertisement::of_router(1800).send(late, "eth0");
        is_late() && has_router(&stage.node, late)
    });
    assert_eq!(stage.node.sysctl_get(ALL).as_deref(), Some("0"), "the process is held up");
    let sniffer = Sniffer::new(late);
    let _ = call.wait().ok();
    assert_eq!(stage.node.sysctl_get(ALL).as_deref(), Some("1"));
    assert_eq!(stage.accepts(), ["2", "2", "0"]);
    assert!(stage.has_route() && !is_late());
    // An Ethernet frame that contains a router solicitation: IPv6, ICMPv6, type 133.
    let asks = |frame: &Frame| {
        frame.0.get(12..14) == Some(&[0x86, 0xdd])
            && frame.0.get(20) == Some(&58)
            && frame.0.get(54) == Some(&133)
    };
    std::thread::sleep(Duration::from_millis(100));
    assert!(sniffer.frames().iter().any(asks), "the router was not asked");
    Advertisement::of_router(1800).send(late, "eth0");
    until(LIMIT, "the late router is known again", is_late);
}
