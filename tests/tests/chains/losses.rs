// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK of a list names the plugin that lost an object.

use slipway_tests::{Pod, Space};

use crate::world::{Chain, PORT, World, address};

/// The namespace in which an object is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Pod,
    Node,
    /// The node, for an object that all containers share, so that only the next ADD creates it again.
    Shared,
}

use Place::{Node, Pod as Inside, Shared};

/// The plugin that must notice the loss, the place, and a command. In the command, `{v4}` and `{v6}` mean the
/// container's addresses, `{veth}` and `{ifb}` the node's links for it, and `{if}` its interface.
type Loss = (&'static str, Place, &'static str);

/// Losses of every plugin that makes a veth pair on a bridge.
const LINK: &[(Place, &str)] = &[
    (Inside, "ip link delete {if}"),
    (Inside, "ip link set {if} down"),
    (Inside, "ip address delete {v4}/24 dev {if}"),
    (Inside, "ip address delete {v6}/64 dev {if}"),
    (Inside, "ip route delete default"),
    (Inside, "ip -6 route delete default"),
];

const BRIDGE: &[(Place, &str)] = &[(Node, "ip link set {veth} nomaster")];

const MASQUERADE: &[(Place, &str)] = &[
    (Shared, "nft flush set inet slipway masqueraded4"),
    (Shared, "nft flush set inet slipway masqueraded6"),
    (Shared, "nft flush map inet slipway masquerade-networks4"),
    (Shared, "nft delete table inet slipway"),
];

const PORTS: &[Loss] = &[
    ("portmap", Node, "nft delete element inet slipway hostports4 { tcp . 8080 }"),
    ("portmap", Node, "nft delete element inet slipway hostports6 { udp . 8080 }"),
];

const LIMITS: &[Loss] = &[
    ("bandwidth", Node, "tc qdisc delete dev {veth} root"),
    ("bandwidth", Node, "tc filter delete dev {veth} ingress"),
    ("bandwidth", Node, "tc qdisc delete dev {veth} clsact"),
    ("bandwidth", Node, "tc qdisc replace dev {veth} root handle 1: tbf rate 1mbit burst 10k latency 25ms"),
    ("bandwidth", Node, "tc qdisc delete dev {ifb} root"),
    ("bandwidth", Node, "ip link delete {ifb}"),
];

const TUNED: &[Loss] = &[
    // bridge compares the address with its result, tuning with its own setting.
    ("bridge", Inside, "ip link set {if} address 02:00:00:00:00:08"),
    ("tuning", Inside, "ip link set {if} mtu 1300"),
    ("tuning", Inside, "ip link set {if} promisc off"),
    ("tuning", Inside, "ip link set {if} allmulticast off"),
    ("tuning", Inside, "ip link set {if} txqueuelen 78"),
    ("tuning", Inside, "sysctl -q -w net.ipv4.conf.{if}.arp_filter=0"),
];

const WALL: &[Loss] = &[
    ("firewall", Node, "nft delete element inet slipway-firewall pods4 { {v4} }"),
    ("firewall", Node, "nft delete element inet slipway-firewall pods6 { {v6} }"),
    ("firewall", Shared, "nft flush set inet slipway-firewall isolating"),
    ("firewall", Shared, "nft flush set inet slipway-firewall same"),
    ("firewall", Shared, "nft flush chain inet slipway-firewall forward"),
    ("firewall", Shared, "nft delete table inet slipway-firewall"),
];

const CHAINS: &[Loss] = &[
    ("bridge", Shared, "iptables -t nat -F POSTROUTING"),
    ("portmap", Shared, "iptables -t nat -F CNI-HOSTPORT-DNAT"),
    ("portmap", Shared, "ip6tables -t nat -F CNI-HOSTPORT-DNAT"),
    ("portmap", Shared, "iptables -t nat -F PREROUTING"),
    ("portmap", Shared, "iptables -t nat -F OUTPUT"),
    ("firewall", Shared, "iptables -F CNI-FORWARD"),
    ("firewall", Shared, "ip6tables -F CNI-FORWARD"),
    ("firewall", Shared, "iptables -F FORWARD"),
    ("firewall", Shared, "iptables -F CNI-ISOLATION-STAGE-1"),
    ("firewall", Shared, "ip6tables -F CNI-ISOLATION-STAGE-2"),
];

const SECOND: &[Loss] = &[
    ("macvlan", Inside, "ip link delete {if}"),
    ("macvlan", Inside, "ip link set {if} type macvlan mode private"),
    ("macvlan", Inside, "ip address delete {v4}/24 dev {if}"),
    ("macvlan", Inside, "ip address delete {v6}/64 dev {if}"),
    ("sbr", Inside, "ip rule delete from {v4}"),
    ("sbr", Inside, "ip -6 rule delete from {v6}"),
    // macvlan's CHECK finds its routes in any table.
    ("macvlan", Inside, "ip route flush table 100"),
    ("macvlan", Inside, "ip -6 route flush table 101"),
];

const FLANNEL: &[Loss] = &[
    // Without this folder, DEL does nothing, as with the reference plugin, so the test moves the folder back before
    // DEL.
    ("flannel", Node, "mv /var/lib/cni/flannel /var/lib/cni/hidden"),
    ("flannel", Node, "rm /var/lib/cni/networks/cbr0/{v4} /var/lib/cni/networks/cbr0/{v6}"),
];

fn by(plugin: &'static str, losses: &[(Place, &'static str)]) -> Vec<Loss> {
    losses.iter().map(|(place, line)| (plugin, *place, *line)).collect()
}

fn all(chain: Chain) -> Vec<Loss> {
    match chain {
        Chain::Everything("iptables") => [CHAINS].concat(),
        Chain::Everything(_) => [
            &by("bridge", LINK)[..],
            &by("bridge", BRIDGE),
            &by("bridge", MASQUERADE),
            &[("bridge", Node, "rm /var/lib/cni/networks/all1/{v4} /var/lib/cni/networks/all1/{v6}")],
            PORTS,
            LIMITS,
            WALL,
            TUNED,
        ]
        .concat(),
        Chain::Routed => [&by("ptp", LINK)[..], &by("ptp", MASQUERADE), PORTS].concat(),
        Chain::Second => SECOND.to_vec(),
        Chain::Flannel => [
            &by("flannel", &LINK[..3])[..],
            &by("flannel", BRIDGE),
            &by("flannel", MASQUERADE),
            FLANNEL,
            PORTS,
        ]
        .concat(),
        Chain::Kubenet => [&by("bridge", &LINK[..3])[..], &by("bridge", BRIDGE), PORTS].concat(),
    }
}

pub(crate) fn check_names_the_plugin_that_lost_an_object(world: &World) {
    if world.chain.is_old() {
        let (network, pod) = (world.network(), world.pod("old"));
        let failure = network.check(&world.chain.attach(&pod, PORT)).expect_err("CHECK of an old version");
        assert_eq!((failure.error.code, &*failure.error.msg), (1, "config version does not allow CHECK"));
        world.end(pod);
    }
    let network = world.node.network(world.chain.modern());
    let pod = world.pod("pod");
    let attach = world.chain.attach(&pod, PORT);
    let cycle = || {
        network.add(&attach).expect("ADD");
        network.check(&attach).expect("CHECK");
        network.del(&attach).expect("DEL");
    };
    // The bridge's MTU follows the smallest of its ports only from the second cycle on.
    cycle();
    cycle();
    let before = world.state(&[&pod]);
    for (plugin, place, line) in all(world.chain) {
        let result = network.add(&attach).unwrap_or_else(|failure| panic!("before {line:?}: ADD: {failure}"));
        network.check(&attach).unwrap_or_else(|failure| panic!("before {line:?}: CHECK: {failure}"));
        let command = filled(world, &pod, line, &result);
        let space: &Space = if place == Inside { &pod } else { &world.node };
        space.cmd(&command);
        let failure = network.check(&attach).err().unwrap_or_else(|| panic!("{command}: CHECK succeeded"));
        assert_eq!(failure.plugin, plugin, "{command}: {failure}");
        if let ["mv", from, to] = command.split(' ').collect::<Vec<_>>()[..] {
            space.cmd(&format!("mv {to} {from}"));
        }
        network.del(&attach).unwrap_or_else(|failure| panic!("{command}: DEL: {failure}"));
        if place == Shared {
            cycle();
        }
        let after = world.state(&[&pod]);
        let changes = before.changes(&after);
        assert!(changes.is_empty(), "{command}: left:\n{}", changes.join("\n"));
    }
}

fn filled(world: &World, pod: &Pod, line: &str, result: &serde_json::Value) -> String {
    let line = line.replace("{v4}", &address(result, 0).to_string());
    let line = line.replace("{v6}", &address(result, 1).to_string());
    let line = line.replace("{if}", world.chain.ifname());
    let line = match line.contains("{veth}") {
        true => line.replace("{veth}", &other_end(world, pod)),
        false => line,
    };
    let devices = world.node.cmd("ip -o link show type ifb");
    line.replace("{ifb}", devices.split(": ").nth(1).unwrap_or_default())
}

/// Returns the name of the node's end of the container's veth pair.
fn other_end(world: &World, pod: &Pod) -> String {
    let number = &pod.link(world.chain.ifname())["link_index"];
    let links: serde_json::Value =
        serde_json::from_str(&world.node.cmd("ip -json link")).expect("ip prints JSON");
    let links = links.as_array().expect("links");
    let link = links.iter().find(|link| &link["ifindex"] == number).expect("the other end");
    link["ifname"].as_str().expect("a name").to_owned()
}
