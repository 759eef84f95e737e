// SPDX-License-Identifier: GPL-3.0-or-later

//! The list of all targets.

use cni_kernel::fuzzing as kernel;
use cni_nftables::fuzzing as nftables;
use cni_plugins::fuzzing as plugins;

use crate::shape::Shape;
use crate::target::Target;
use crate::targets::{bpf, netlink, plugin, spec, state};

/// Words that occur in JSON documents of the specification.
const CONFIGURATION: &[&str] = &[
    "\"cniVersion\":\"1.1.0\",",
    "\"0.1.0\"",
    "\"0.3.1\"",
    "\"name\":\"n\",",
    "\"type\":\"bridge\",",
    "\"plugins\":[",
    "\"prevResult\":{",
    "\"ipam\":{\"type\":\"host-local\",",
    "\"ips\":[{\"address\":\"10.1.0.2/24\"}]",
    "\"routes\":[{\"dst\":\"0.0.0.0/0\"}]",
    "\"runtimeConfig\":{",
    "\"portMappings\":[{\"hostPort\":80,\"containerPort\":80}]",
    "\"capabilities\":{",
    "\"args\":{\"cni\":{",
    "\"dns\":{",
    "null",
    "10.1.2.0/24",
    "fd00::/64",
    "02:00:00:00:00:01",
];
/// Words that occur in a plugin's call: its environment, an empty line, and its standard input.
const CALL: &[&str] = &[
    "CNI_COMMAND=ADD\n",
    "CNI_COMMAND=GC\n",
    "CNI_ARGS=IgnoreUnknown=1;IP=10.1.0.5;MAC=02:00:00:00:00:01\n",
    "CNI_IFNAME=eth0\n",
    "\n\n",
    "\"cniVersion\":\"1.0.0\",",
    "\"0.2.0\"",
    "\"runtimeConfig\":{\"mac\":\"02:00:00:00:00:01\",\"ips\":[\"10.1.0.9/24\"]},",
    "\"args\":{\"cni\":{\"ips\":[\"10.1.0.9\"]}},",
    "\"prevResult\":{\"cniVersion\":\"1.0.0\",\"ips\":[{\"address\":\"10.1.0.2/24\",\"gateway\":\"10.1.0.1\"}]},",
    "\"ipam\":{\"type\":\"static\",\"addresses\":[{\"address\":\"10.1.0.2/24\"}]},",
    "null",
    "[[[",
    "-1",
];
const CONDITIONS: &[&str] = &[
    "ip ",
    "ip6 ",
    "saddr ",
    "daddr ",
    "ttl ",
    "length ",
    "protocol ",
    "hoplimit ",
    "tcp ",
    "udp ",
    "sctp ",
    "th ",
    "sport ",
    "dport ",
    "meta ",
    "mark ",
    "& ",
    "== ",
    "!= ",
    "{ ",
    " }",
    ",",
    "ct ",
    "state ",
    "new",
    "established",
    "related",
    "invalid",
    "fib ",
    "type local",
    "iifname ",
    "oifname ",
    "l4proto ",
    "\"eth*\"",
    "10.0.0.0/8",
    "192.0.2.1-192.0.2.9",
    "fd00::/8",
    "0x4000",
    "-s ",
    "-d ",
    "-i ",
    "! ",
    "--dport ",
    "-j ACCEPT",
];
const RULES: &[&str] = &[
    "*nat\n",
    "*filter\n",
    ":CNI-DN-x - [0:0]\n",
    "-A CNI-DN-x ",
    "-A CNI-HOSTPORT-DNAT ",
    "-A POSTROUTING ",
    "-j DNAT --to-destination ",
    "-j CNI-HOSTPORT-SETMARK",
    "-j MASQUERADE",
    "--dports ",
    "-m comment --comment ",
    "\"dnat name: \\\"n\\\" id: \\\"c\\\"\" ",
    "! ",
    "-p tcp ",
    "-d 10.0.0.0/8 ",
    "COMMIT\n",
    "[fd00::2]:80",
];
const NODE: &[&str] = &[
    "\"podCIDRs\":[\"10.244.2.0/24\"]",
    "\"podCIDR\":\"fd44::/64\"",
    "\"addresses\":[{\"type\":\"InternalIP\",\"address\":\"192.168.50.11\"}]",
    "\"slipway.internal/vxlan-mac\":\"02:00:00:00:00:01\"",
    "\"slipway.internal/vxlan-port\":\"4789\"",
    "\"slipway.internal/wireguard-key\":\"CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=\"",
    "\"creationTimestamp\":\"0001-01-01T00:00:00Z\"",
    "192.168.50.10",
    "10.244.1.0/25",
    "10.96.0.0/24",
];
const NETAVARK: &[&str] = &[
    "\"subnets\":[{\"subnet\":\"10.89.0.0/24\",\"gateway\":\"10.89.0.1\"}]",
    "\"port_mappings\":[{\"container_port\":80,\"host_port\":8080,\"range\":3,\"protocol\":\"tcp,udp\"}]",
    "\"static_ips\":[\"10.89.0.5\"]",
    "\"options\":{\"isolate\":\"strict\",\"vlan\":\"5\"}",
    "\"routes\":[{\"destination\":\"10.1.0.0/16\",\"gateway\":\"10.89.0.9\"}]",
    "\"ipam_options\":{\"driver\":\"none\"}",
    "\"internal\":true",
    "\"ipv6_enabled\":true",
    "null",
];
const DHCP: &[&str] = &[
    "\u{1}\u{4}",
    "\u{3}\u{4}",
    "\u{33}\u{4}",
    "\u{34}\u{1}\u{3}",
    "\u{35}\u{1}\u{5}",
    "\u{36}\u{4}",
    "\u{79}\u{8}",
];
const EXPRESSIONS: &[&str] = &[
    "meta\0",
    "ct\0",
    "payload\0",
    "fib\0",
    "bitwise\0",
    "cmp\0",
    "range\0",
    "lookup\0",
    "immediate\0",
    "nat\0",
    "masq\0",
    "dynset\0",
    "counter\0",
    "limit\0",
    "quota\0",
    "match\0",
    "target\0",
    "tcp\0",
    "conntrack\0",
    "CT\0",
    "MARK\0",
    "objref\0",
    "exthdr\0",
    "queue\0",
    "dup\0",
];
const OWNER: &[&str] = &["slipway1 ", "0123456789abcdef-0123456789abcdef0123456789abcdef ", "~", " "];

macro_rules! targets {
    ($($name:literal: $input:literal, $words:expr, $read:expr;)+) => {
        &[$(Target { name: $name, input: $input, read: |bytes| Shape::of(&$read(bytes)), words: $words }),+]
    };
}

/// All targets.
#[rustfmt::skip]
pub static TARGETS: &[Target] = targets! {
    // The specification's documents.
    "netconf": "a plugin's standard input", CONFIGURATION, spec::netconf;
    "conflist": "a configuration list, a single configuration, and what their plugins get", CONFIGURATION, spec::conflist;
    "result": "the output of a plugin or delegate, read as each version", CONFIGURATION, spec::result;
    "cni_args": "CNI_ARGS", &["IP=", "MAC=", "GATEWAY=", "IgnoreUnknown=1", ";"], spec::args;
    "plugin_output": "the output of a plugin that failed, and the list of its versions", CONFIGURATION, cni_runtime::fuzzing::plugin_output;
    // Messages from the kernel.
    "netlink_message": "messages and attributes of netlink", &[], netlink::message;
    "netlink_reply": "a reply of netlink", &[], netlink::reply;
    "rt_link": "rtnetlink: a link", &["bridge\0", "vxlan\0", "macvlan\0", "vlan\0", "vrf\0", "tun\0"], kernel::link;
    "rt_address": "rtnetlink: an address", &[], kernel::address;
    "rt_route": "rtnetlink: a route", &[], kernel::route;
    "rt_rule": "rtnetlink: a rule of the policy database", &[], kernel::rule;
    "rt_neighbour": "rtnetlink: a neighbour or an FDB entry", &[], kernel::neighbour;
    "rt_vlans": "rtnetlink: the VLANs of a bridge's port", &[], kernel::vlans;
    "rt_traffic_control": "rtnetlink: a filter and a queueing discipline", &["u32\0", "flower\0", "matchall\0", "bpf\0", "mirred\0"], kernel::traffic_control;
    "rt_wireguard": "generic netlink: a WireGuard device", &[], kernel::wireguard;
    "rt_notification": "rtnetlink: a notification", &[], kernel::notification;
    "nft_objects": "nf_tables: a table, a chain, a flowtable", &["filter\0", "nat\0"], nftables::objects;
    "nft_rule": "nf_tables: a rule", EXPRESSIONS, nftables::rule;
    "nft_elements": "nf_tables: a set and its elements", &[], nftables::elements;
    "nft_key": "nf_tables: a key of a set", &[], nftables::key;
    "nft_userdata": "nf_tables: userdata", &[], nftables::userdata;
    "nft_notifications": "nf_tables: notifications", &[], nftables::notifications;
    "nft_trace": "nf_tables: a trace", &[], nftables::trace_event;
    "conntrack_flow": "ctnetlink: a flow", &[], nftables::flow;
    "conntrack_counters": "/proc/net/stat/nf_conntrack", &["drop ", "early_drop ", "insert_failed ", "ffffffff "], slipwayd::fuzzing::conntrack_counters;
    "legacy_table": "a legacy table of iptables, from getsockopt(2)", &["ERROR\0", "tcp\0", "DNAT\0"], kernel::legacy_table;
    "legacy_rule": "matches and targets of a legacy rule", EXPRESSIONS, cni_dataplane::fuzzing::legacy_rule;
    "rule_of_others": "expressions of other programs' rules", EXPRESSIONS, cni_dataplane::fuzzing::rule_of_others;
    "mounts": "/proc/self/mountinfo", &["net:[4026531840] ", "\\040", "\\134", " - nsfs nsfs rw\n"], kernel::mounts;
    "bpf_maps": "keys and values of the BPF maps", &[], bpf::values;
    // Data that Slipway itself has written to the kernel, and that others can change.
    "element_entry": "an owner's entry in the userdata of an element", &[], cni_dataplane::fuzzing::element_entry;
    "owner": "the owner in a comment or in a link's alias", OWNER, cni_dataplane::fuzzing::owner;
    "chain_name": "the name of a shared chain", &["masquerade-", "hairpin-", "all4-", "none6-", "10.1.0.0/16-", "fd00__/64-"], cni_dataplane::fuzzing::chain_name;
    // Text from other programs.
    "iptables_save": "the output of iptables-save", RULES, cni_dataplane::fuzzing::saved_rules;
    "conditions_nftables": "conditionsV4 and conditionsV6, backend nftables", CONDITIONS, cni_dataplane::fuzzing::nftables_conditions;
    "conditions_iptables": "conditionsV4 and conditionsV6, backend iptables", CONDITIONS, cni_dataplane::fuzzing::iptables_conditions;
    "bus_message": "a message of D-Bus", &["org.freedesktop.DBus", "NameOwnerChanged"], kernel::bus_message;
    "sandboxes": "a container runtime's reply to ListPodSandbox", &[], slipwayd::fuzzing::sandboxes;
    "node": "a Node object with its annotations", NODE, slipwayd::fuzzing::node;
    "pod_status": "the output of a network plugin of kubelet's", &["\"ip\":\"10.0.0.1\"", "\"ips\":[", "\"kind\":\"PodNetworkStatus\"", "\"apiVersion\":\"v1beta1\""], cni_runtime::fuzzing::pod_status;
    "quantity": "a quantity of Kubernetes", &["Ki", "Ei", "e", "E", "n", ".", "-", "+"], state::quantity;
    "netavark_create": "netavark's request for a new network", NETAVARK, slipway::fuzzing::create;
    "netavark_set_up": "netavark's request for a set-up", NETAVARK, slipway::fuzzing::set_up;
    // Packets from other hosts.
    "dhcp_packet": "a packet to the DHCP client", DHCP, plugins::dhcp_packet;
    // Files and messages on sockets.
    "dhcp_call": "a line between plugin and daemon of dhcp", &["\"do\":\"allocate\"", "\"owner\":{", "\"done\":{", "\n"], plugins::dhcp_call;
    "dhcp_lease": "the file of a lease", &["\"owner\":{", "\"routes\":[", ":"], plugins::dhcp_lease;
    "resolv_conf": "resolv.conf", &["nameserver ", "search ", "domain ", "options "], plugins::resolv_conf;
    "reservation": "a reservation of host-local", &["\r\n", "eth0"], plugins::reservation;
    "reservation_index": "a slot of host-local's index", &[], plugins::reservation_index;
    "allowed_sysctls": "a setting and tuning's list of allowed ones", &["net.ipv4.conf.IFNAME.", "net/", "^", "$", ".*", "\\.", "[a-z]{1,9}", "(", ")", "|"], plugins::allowed_sysctls;
    "node_settings": "slipway.json", &["\"backend\":\"ebpf\",", "\"log\":{\"level\":\"debug\"},", "\"maps\":{\"flows\":1},", "\"uplinks\":[\"eth0\"],", "\"nonMasqueradeCIDRs\":[", "\"flowtable\":"], plugins::node_settings;
    "saved_delegate": "a configuration that flannel has saved", CONFIGURATION, plugins::saved_delegate;
    "cache_file": "a file of libcni's cache", CONFIGURATION, cni_runtime::fuzzing::cache_file;
    "pending_attachments": "a file of attachments that are about to be made", CONFIGURATION, cni_runtime::fuzzing::pending_attachments;
    "subnet_env": "flannel's subnet.env", &["FLANNEL_NETWORK=", "FLANNEL_SUBNET=", "FLANNEL_IPV6_NETWORK=", "FLANNEL_IPV6_SUBNET=", "FLANNEL_MTU=", "FLANNEL_IPMASQ=", "\n"], cni_state::fuzzing::subnet_env;
    "subnet_json": "subnet.json", &["\"schema\":1,", "\"subnets\":[", "\"clusterCIDRs\":[", "\"mtu\":"], state::subnet_json;
    "report": "a plugin's report to the agent", &["\"schema\":1,", "\"verb\":\"GC\",", "\"code\":"], state::report;
    // The call of each plugin, up to its first system call.
    "plugin_bandwidth": "a call of bandwidth", CALL, |bytes| plugin::call("bandwidth", bytes);
    "plugin_bridge": "a call of bridge", CALL, |bytes| plugin::call("bridge", bytes);
    "plugin_dhcp": "a call of dhcp", CALL, |bytes| plugin::call("dhcp", bytes);
    "plugin_dummy": "a call of dummy", CALL, |bytes| plugin::call("dummy", bytes);
    "plugin_firewall": "a call of firewall", CALL, |bytes| plugin::call("firewall", bytes);
    "plugin_flannel": "a call of flannel", CALL, |bytes| plugin::call("flannel", bytes);
    "plugin_host_device": "a call of host-device", CALL, |bytes| plugin::call("host-device", bytes);
    "plugin_host_local": "a call of host-local", CALL, |bytes| plugin::call("host-local", bytes);
    "plugin_ipvlan": "a call of ipvlan", CALL, |bytes| plugin::call("ipvlan", bytes);
    "plugin_loopback": "a call of loopback", CALL, |bytes| plugin::call("loopback", bytes);
    "plugin_macvlan": "a call of macvlan", CALL, |bytes| plugin::call("macvlan", bytes);
    "plugin_noop": "a call of noop", CALL, |bytes| plugin::call("noop", bytes);
    "plugin_portmap": "a call of portmap", CALL, |bytes| plugin::call("portmap", bytes);
    "plugin_ptp": "a call of ptp", CALL, |bytes| plugin::call("ptp", bytes);
    "plugin_sbr": "a call of sbr", CALL, |bytes| plugin::call("sbr", bytes);
    "plugin_static": "a call of static", CALL, |bytes| plugin::call("static", bytes);
    "plugin_tap": "a call of tap", CALL, |bytes| plugin::call("tap", bytes);
    "plugin_tuning": "a call of tuning", CALL, |bytes| plugin::call("tuning", bytes);
    "plugin_vlan": "a call of vlan", CALL, |bytes| plugin::call("vlan", bytes);
    "plugin_vrf": "a call of vrf", CALL, |bytes| plugin::call("vrf", bytes);
};

/// Finds the target with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

#[cfg(test)]
mod tests {
    use cni_plugins::registry;

    use super::*;
    use crate::corpus;

    #[test]
    fn every_plugin_is_a_target() {
        let has = |plugin: &&str| {
            let name = format!("plugin_{}", plugin.replace('-', "_"));
            TARGETS.iter().any(|target| target.name == name)
        };
        let missing: Vec<&str> = registry::names().into_iter().filter(|name| !has(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_target_has_a_name_of_its_own_and_seeds_within_the_limit() {
        for (at, target) in TARGETS.iter().enumerate() {
            assert!(!TARGETS[..at].iter().any(|other| other.name == target.name), "{} twice", target.name);
            let seeds = corpus::seeds(&corpus::folder(), target).unwrap();
            assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        }
        let size = corpus::size(&corpus::folder()).unwrap();
        assert!(size <= corpus::LIMIT, "{size}");
    }
}
