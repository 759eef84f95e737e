// SPDX-License-Identifier: GPL-2.0-or-later

//! Containers, and the neighbours and routers on their links.

use serde_json::{Value, json};
use slipway_tests::{
    Advertisement, Attach, Network, Node, Pod, Space, host_local, lacks, skip, slipway_only, until,
};

use crate::{LIMIT, advertised_addresses, learnt};

const SETTING: &str = "net/ipv6/conf/eth0/accept_ra";

/// What a container adopts from [`Advertisement::default`].
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    has_default_route: bool,
    has_address: bool,
    mtu: String,
    hop_limit: String,
}

impl Traces {
    fn of(pod: &Pod) -> Self {
        let setting = |name: &str| pod.sysctl_get(&format!("net/ipv6/conf/eth0/{name}")).expect("a setting");
        Self {
            has_default_route: learnt(pod, "eth0").contains("pref high"),
            has_address: advertised_addresses(pod, "eth0").contains("2001:db8:bad:"),
            mtu: setting("mtu"),
            hop_limit: setting("hop_limit"),
        }
    }

    /// The traces in a container that believes the whole advertisement.
    fn all() -> Self {
        Self { has_default_route: true, has_address: true, mtu: "1280".to_owned(), hop_limit: "1".to_owned() }
    }
}

/// The number of advertisements that arrived, whether the container believed them or not.
fn arrived(pod: &Pod) -> u64 {
    let counters = pod.cmd("cat /proc/thread-self/net/snmp6");
    let line = counters.lines().find_map(|line| line.strip_prefix("Icmp6InRouterAdvertisements"));
    line.and_then(|count| count.trim().parse().ok()).expect("a counter")
}

/// A link from which a container can be reached, in its space.
struct Neighbour<'a> {
    space: &'a Space,
    link: String,
}

impl Neighbour<'_> {
    /// Sends the advertisement until one has arrived, because the sender's address may be tentative at first.
    fn advertise(&self, pod: &Pod) {
        until(LIMIT, "the neighbour has an address to send from", || {
            let addresses = self.space.cmd(&format!("ip -6 address show dev {} scope link", self.link));
            addresses.contains("fe80:") && !addresses.contains("tentative")
        });
        let before = arrived(pod);
        until(LIMIT, "an advertisement has arrived", || {
            Advertisement::default().send(self.space, &self.link);
            arrived(pod) > before
        });
    }

    #[track_caller]
    fn is_not_believed(&self, pod: &Pod) {
        let before = Traces::of(pod);
        self.advertise(pod);
        assert_eq!(Traces::of(pod), before);
        assert!(!before.has_default_route && !before.has_address && before.hop_limit != "1", "{before:?}");
    }

    #[track_caller]
    fn is_believed(&self, pod: &Pod) {
        self.advertise(pod);
        until(LIMIT, "the advertisement is believed", || Traces::of(pod) == Traces::all());
    }
}

/// The IPAM configurations: one with IPv4 only, and one with both families.
fn ipams() -> [Value; 2] {
    [json!({"type": "host-local", "subnet": "10.1.2.0/24"}), host_local("10.1.2.0/24", "fd00:1::/64")]
}

/// Runs the plugin with each IPAM configuration. The container must ignore advertisements by default, and believe them
/// with `acceptRA`.
#[track_caller]
fn refuses_unless_asked(plugin: &str, keys: &Value, check: impl Fn(&Node, &Network<'_>, &Pod, &Expectation)) {
    for (number, ipam) in ipams().into_iter().enumerate() {
        for expectation in [Expectation::Refused, Expectation::Believed] {
            let node = Node::new();
            let mut config = keys.clone();
            config["type"] = plugin.into();
            config["ipam"] = ipam.clone();
            if expectation == Expectation::Believed {
                config["acceptRA"] = true.into();
            }
            let network = node.network(json!({"name": "net", "plugins": [config]}));
            let pod = node.pod(&format!("pod{number}"));
            check(&node, &network, &pod, &expectation);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Expectation {
    Refused,
    Believed,
}

impl Expectation {
    #[track_caller]
    fn holds(&self, neighbour: &Neighbour<'_>, network: &Network<'_>, pod: &Pod) {
        match self {
            Self::Refused => {
                assert_eq!(pod.sysctl_get(SETTING).as_deref(), Some("0"));
                neighbour.is_not_believed(pod);
            }
            Self::Believed => {
                assert_eq!(pod.sysctl_get(SETTING).as_deref(), Some("1"), "untouched");
                neighbour.is_believed(pod);
            }
        }
        network.check(&Attach::new(pod)).expect("CHECK");
        network.del(&Attach::new(pod)).expect("DEL");
    }
}

/// The neighbouring pod has the default capability NET_RAW, which lets it send advertisements.
#[test]
fn a_container_on_a_bridge_does_not_believe_the_pod_next_door() {
    slipway_only!(); // It does.
    refuses_unless_asked(
        "bridge",
        &json!({"bridge": "br0", "isGateway": true}),
        |node, network, pod, wanted| {
            let next_door = node.pod("next");
            network.add(&Attach::new(&next_door)).expect("ADD");
            network.add(&Attach::new(pod)).expect("ADD");
            let neighbour = Neighbour { space: &next_door, link: "eth0".to_owned() };
            wanted.holds(&neighbour, network, pod);
            // The node does not believe the pod either.
            assert_eq!(learnt(node, "br0"), "");
        },
    );
}

#[test]
fn a_container_of_ptp_does_not_believe_the_node() {
    slipway_only!();
    refuses_unless_asked("ptp", &json!({}), |node, network, pod, wanted| {
        let result = network.add(&Attach::new(pod)).expect("ADD");
        let link = result["interfaces"][0]["name"].as_str().expect("a name").to_owned();
        wanted.holds(&Neighbour { space: node, link }, network, pod);
    });
}

/// Tests containers with a link on the node's network, on which there is also a host.
#[track_caller]
fn on_the_nodes_network(plugin: &str, keys: &Value) {
    refuses_unless_asked(plugin, keys, |node, network, pod, wanted| {
        let host = node.host("lan");
        network.add(&Attach::new(pod)).expect("ADD");
        wanted.holds(&Neighbour { space: &host, link: "eth0".to_owned() }, network, pod);
    });
}

#[test]
fn a_container_of_macvlan_does_not_believe_the_lan() {
    if lacks("macvlan").is_some() {
        skip!("macvlan links");
    }
    slipway_only!();
    on_the_nodes_network("macvlan", &json!({"master": "out0"}));
}

#[test]
fn a_container_of_ipvlan_does_not_believe_the_lan() {
    if lacks("ipvlan").is_some() {
        skip!("ipvlan links");
    }
    slipway_only!();
    on_the_nodes_network("ipvlan", &json!({"master": "out0"}));
}

#[test]
fn a_container_of_vlan_does_not_believe_the_lan() {
    if lacks("vlan").is_some() {
        skip!("vlan links");
    }
    slipway_only!();
    refuses_unless_asked("vlan", &json!({"master": "out0", "vlanId": 5}), |node, network, pod, wanted| {
        let host = node.host("lan");
        host.cmd("ip link add link eth0 name eth0.5 type vlan id 5");
        host.cmd("ip link set eth0.5 up");
        network.add(&Attach::new(pod)).expect("ADD");
        wanted.holds(&Neighbour { space: &host, link: "eth0.5".to_owned() }, network, pod);
    });
}

#[test]
fn a_container_of_host_device_does_not_believe_the_lan() {
    slipway_only!();
    on_the_nodes_network("host-device", &json!({"device": "out0"}));
}

#[test]
fn a_tap_in_a_container_refuses_advertisements() {
    slipway_only!();
    for (keys, wanted) in [(json!({}), "0"), (json!({"acceptRA": true}), "1")] {
        let node = Node::new();
        let pod = node.pod("pod");
        let mut config = keys;
        config["type"] = "tap".into();
        config["ipam"] = json!({"type": "host-local", "subnet": "10.1.2.0/24"});
        let network = node.network(json!({"name": "net", "plugins": [config]}));
        network.add(&Attach::new(&pod)).expect("ADD");
        assert_eq!(pod.sysctl_get(SETTING).as_deref(), Some(wanted));
    }
}

/// The link may come up before IPAM answers, because a DHCP client needs it.
#[test]
fn a_container_refuses_advertisements_before_ipam_is_called() {
    if lacks("macvlan").is_some() {
        skip!("macvlan links");
    }
    slipway_only!();
    let node = Node::new();
    let _lan = node.host("lan");
    let script = format!(
        "#!/bin/sh\ncat > /dev/null\n[ $CNI_COMMAND = ADD ] || exit 0\n\
         nsenter --net=$CNI_NETNS cat /proc/sys/{SETTING} > /run/seen\n\
         echo '{{\"cniVersion\": \"1.0.0\", \"ips\": [{{\"address\": \"10.1.2.5/24\"}}]}}'\n"
    );
    node.write("/run/plugins/other-ipam", script);
    node.cmd("chmod +x /run/plugins/other-ipam");
    let path = format!("/run/plugins:{}", node.bin().display());
    let config = json!({"type": "macvlan", "master": "out0", "ipam": {"type": "other-ipam"}});
    let network = node.network(json!({"cniVersion": "1.0.0", "name": "net", "plugins": [config]}));
    let (pod, config) = (node.pod("pod"), network.configs(None).remove(0));
    let _ = network.prepare("ADD", &config, Some(&Attach::new(&pod))).env("CNI_PATH", path).run().ok();
    assert_eq!(node.read("/run/seen").as_deref(), Some("0\n"));
}

#[test]
fn without_ipam_nothing_is_touched() {
    let node = Node::new();
    let network = node.network(json!({"name": "net", "plugins": [{"type": "bridge", "bridge": "br0"}]}));
    let (pod, next_door) = (node.pod("pod"), node.pod("next"));
    for pod in [&pod, &next_door] {
        network.add(&Attach::new(pod)).expect("ADD");
        assert_eq!(pod.sysctl_get(SETTING).as_deref(), Some("1"));
    }
    Neighbour { space: &next_door, link: "eth0".to_owned() }.is_believed(&pod);
    network.check(&Attach::new(&pod)).expect("CHECK");
}

/// As the control, the container gets the kernel's default settings back, and believes an advertisement. CHECK reports
/// the route.
#[test]
fn check_names_a_default_route_that_nobody_configured() {
    slipway_only!(); // Its CHECK does not notice.
    let node = Node::new();
    let config = json!({"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": ipams()[0]});
    let network = node.network(json!({"name": "net", "plugins": [config]}));
    let (pod, next_door) = (node.pod("pod"), node.pod("next"));
    for pod in [&pod, &next_door] {
        network.add(&Attach::new(pod)).expect("ADD");
        network.check(&Attach::new(pod)).expect("CHECK");
    }
    pod.sysctl(SETTING, "1");
    Neighbour { space: &next_door, link: "eth0".to_owned() }.is_believed(&pod);
    let failure = network.check(&Attach::new(&pod)).expect_err("a route that nobody configured");
    let message = failure.error.msg;
    assert!(message.starts_with("Default route ::/0 via fe80::"), "{message}");
    assert!(message.contains("dev eth0 proto ra"), "{message}");
    pod.cmd("ip -6 route delete default dev eth0 proto ra");
    network.check(&Attach::new(&pod)).expect("CHECK");
}
