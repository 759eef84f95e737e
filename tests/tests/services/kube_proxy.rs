// SPDX-License-Identifier: GPL-2.0-or-later

//! The rules that kube-proxy writes, in each of its modes.

use std::fmt::Write as _;
use std::net::IpAddr;

use slipway_tests::{Node, Proto};

use crate::{PORT, SERVED};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The mode iptables, with this variant of iptables.
    Iptables(&'static str),
    Nftables,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Iptables("nft"), Self::Nftables, Self::Iptables("legacy")];
}

fn tool(variant: &str, address: IpAddr) -> String {
    format!("{}-{variant}", if address.is_ipv4() { "iptables" } else { "ip6tables" })
}

/// Writes the rules for a Service at `vip`, whose only endpoint is `endpoint`.
pub(crate) fn write(node: &Node, mode: Mode, vip: IpAddr, endpoint: IpAddr) {
    match mode {
        Mode::Iptables(variant) => iptables(node, variant, vip, endpoint),
        Mode::Nftables => nftables(node, vip, endpoint),
    }
}

/// Writes the rules of mode `iptables`, in which the jump to `KUBE-SERVICES` is the first rule of both hooks.
fn iptables(node: &Node, variant: &str, vip: IpAddr, endpoint: IpAddr) {
    let tool = tool(variant, vip);
    let mut text = String::from("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n");
    let endpoint = if endpoint.is_ipv4() { endpoint.to_string() } else { format!("[{endpoint}]") };
    for proto in Proto::ALL {
        let (name, up) = (proto.name(), proto.name().to_uppercase());
        let (service, target) = (format!("KUBE-SVC-{up}"), format!("KUBE-SEP-{up}"));
        let _ = write!(
            text,
            ":{service} - [0:0]\n:{target} - [0:0]\n\
             -A KUBE-SERVICES -d {vip} -p {name} -m comment --comment \"default/web:{name} external IP\" \
             -m {name} --dport {PORT} -j {service}\n\
             -A {service} -m comment --comment \"default/web:{name}\" -j {target}\n\
             -A {target} -p {name} -m comment --comment \"default/web:{name}\" -m {name} \
             -j DNAT --to-destination {endpoint}:{SERVED}\n",
        );
    }
    text.push_str(
        "-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in \
         this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n",
    );
    node.cmd_input(&format!("{tool}-restore --noflush"), &text);
    for hook in ["PREROUTING", "OUTPUT"] {
        node.cmd(&format!("{tool} -t nat -I {hook} -j KUBE-SERVICES"));
    }
}

/// Writes the rules of mode `nftables`, with a map of Services in which both nat chains look.
fn nftables(node: &Node, vip: IpAddr, endpoint: IpAddr) {
    let (ip, addr) = if vip.is_ipv4() { ("ip", "ipv4_addr") } else { ("ip6", "ipv6_addr") };
    let mut endpoints = String::new();
    let mut services = Vec::new();
    for proto in Proto::ALL {
        let name = proto.name();
        let to = if vip.is_ipv4() { endpoint.to_string() } else { format!("[{endpoint}]") };
        let _ =
            writeln!(endpoints, "chain service-{name} {{ meta l4proto {name} dnat {ip} to {to}:{SERVED}; }}");
        services.push(format!("{vip} . {name} . {PORT} : goto service-{name}"));
    }
    let hooks = [("prerouting", "dstnat"), ("output", "-100")].map(|(hook, priority)| {
        format!(
            "chain nat-{hook} {{ type nat hook {hook} priority {priority}; policy accept; jump services; }}\n"
        )
    });
    node.nft(&format!(
        "table {ip} kube-proxy {{
            map service-ips {{ type {addr} . inet_proto . inet_service : verdict; }}
            {endpoints}
            chain services {{ {ip} daddr . meta l4proto . th dport vmap @service-ips; }}
            {}
        }}
        add element {ip} kube-proxy service-ips {{ {} }}",
        hooks.concat(),
        services.join(", "),
    ));
}

/// Removes the rules. With iptables-nft, removes the base chains too, if they contain no other rules.
pub(crate) fn remove(node: &Node, mode: Mode, vip: IpAddr, others_there: bool) {
    let Mode::Iptables(variant) = mode else {
        node.nft(&format!("delete table {} kube-proxy", if vip.is_ipv4() { "ip" } else { "ip6" }));
        return;
    };
    let tool = tool(variant, vip);
    for hook in ["PREROUTING", "OUTPUT"] {
        node.cmd(&format!("{tool} -t nat -D {hook} -j KUBE-SERVICES"));
    }
    for chain in ["SERVICES", "SVC-TCP", "SVC-UDP", "SEP-TCP", "SEP-UDP", "NODEPORTS"] {
        node.cmd(&format!("{tool} -t nat -F KUBE-{chain}"));
    }
    for chain in ["SERVICES", "SVC-TCP", "SVC-UDP", "SEP-TCP", "SEP-UDP", "NODEPORTS"] {
        node.cmd(&format!("{tool} -t nat -X KUBE-{chain}"));
    }
    if variant == "nft" && !others_there {
        node.nft(&format!("delete table {} nat", if vip.is_ipv4() { "ip" } else { "ip6" }));
    }
}
