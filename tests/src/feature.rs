// SPDX-License-Identifier: GPL-2.0-or-later

//! Features that the kernel or its tools may lack.

use cni_kernel::ethtool;
use cni_kernel::route::RouteSocket;

use crate::{Node, Space};

/// The feature that [`has_iptables`] checks, for [`crate::skip!`].
pub const IPTABLES: &str = "x_tables";

/// True if iptables can add rules. Without x_tables in the kernel, iptables-nft creates chains but no rule that uses an
/// xtables match or target.
pub fn has_iptables() -> bool {
    let rule = "iptables -t nat -A POSTROUTING -m comment --comment probe -j MASQUERADE";
    let words: Vec<&str> = rule.split(' ').collect();
    Node::new().try_run(&words).is_some_and(|output| output.code == Some(0))
}

/// The feature that [`nft_loads_ranges`] checks, for [`crate::skip!`].
pub const NFT_RANGES: &str = "an nft whose lookups by protocol and range this kernel takes";

/// True if nft can load a lookup by protocol and range of ports.
///
/// nft 1.0.6 converts the protocol, which is one byte, to network byte order in units of two bytes. Older kernels
/// ignore the conversion; newer ones (6.12.117 for instance) reject it in nft_byteorder_init of
/// net/netfilter/nft_byteorder.c. nft 1.1.3 does not convert the protocol any more.
pub fn nft_loads_ranges() -> bool {
    let script = "table inet probe {
        map ranges { type inet_proto . inet_service : verdict; flags interval; }
        chain lookups { meta l4proto . th dport vmap @ranges; }
    }";
    Node::new().try_cmd_input("nft -f -", script).code == Some(0)
}

/// The kind of link that a plugin makes and this kernel lacks, for [`crate::skip!`]. None if the kernel has it, or if
/// the plugin makes no such link.
pub fn lacks(plugin: &str) -> Option<&'static str> {
    let (kind, feature) = match plugin {
        "dummy" => ("dummy", "dummy links"),
        "ipvlan" => ("ipvlan", "ipvlan links"),
        "macvlan" => ("macvlan", "macvlan links"),
        "vlan" => ("vlan", "vlan links"),
        "vrf" => ("vrf", "vrf"),
        _ => return None,
    };
    let known = || RouteSocket::open().and_then(|route| route.knows_kind(kind));
    let known = Node::new().run(known).unwrap_or_else(|e| panic!("ask for {feature}: {e}"));
    (!known).then_some(feature)
}

/// The feature that [`has_ipvs`] checks, for [`crate::skip!`].
pub const IPVS: &str = "ip_vs";

/// True if the kernel has IPVS, whose module ipvsadm(8) loads.
pub fn has_ipvs() -> bool {
    Node::new().try_run(&["ipvsadm", "-Ln"]).is_some_and(|output| output.code == Some(0))
}

/// Removes a node's IPVS virtual servers before the node ends. A kernel without the fix for CVE-2026-45917, such as
/// 5.10, may keep a route to one of them while the node's links go down. The kernel then waits forever for the loopback
/// device to become free, and no namespace on the machine can be created or removed any more.
#[derive(Debug)]
#[must_use]
pub struct VirtualServers<'a>(pub &'a Space);

impl Drop for VirtualServers<'_> {
    fn drop(&mut self) {
        let _ = self.0.try_run(&["ipvsadm", "-C"]);
    }
}

/// The feature that [`has_wireguard`] checks, for [`crate::skip!`].
pub const WIREGUARD: &str = "wireguard";

/// True if the kernel has WireGuard, whose module is loaded when a link is made.
pub fn has_wireguard() -> bool {
    let known = || RouteSocket::open().and_then(|route| route.knows_kind("wireguard"));
    Node::new().run(known).unwrap_or_else(|e| panic!("ask for wireguard: {e}"))
}

/// The feature that [`has_esp`] checks, for [`crate::skip!`].
pub const ESP: &str = "IPsec's ESP with AES-GCM";

/// True if the kernel can encrypt packets of both families. Adding a state loads the modules that this needs.
pub fn has_esp() -> bool {
    let node = Node::new();
    [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")].into_iter().all(|(from, to)| {
        let state = format!(
            "ip xfrm state add src {from} dst {to} proto esp spi 0x1000 mode tunnel aead rfc4106(gcm(aes)) \
             0x0102030405060708090a0b0c0d0e0f1011121314 128"
        );
        node.try_cmd(&state).code == Some(0)
    })
}

/// The feature that [`has_flowtable`] checks, for [`crate::skip!`].
pub const FLOWTABLE: &str = "nf_flow_table";

/// True if the kernel can offload flows to a flowtable of the inet family.
pub fn has_flowtable() -> bool {
    let script = "table inet probe {
        flowtable f { hook ingress priority 0; devices = { lo }; }
        chain forward { type filter hook forward priority 0; flow add @f; }
    }";
    Node::new().try_cmd_input("nft -f -", script).code == Some(0)
}

/// The feature that [`has_udp_gro`] checks, for [`crate::skip!`].
pub const UDP_GRO: &str = "UDP GRO forwarding";

pub fn has_udp_gro() -> bool {
    Node::new().run(|| ethtool::feature("lo", ethtool::UDP_GRO_FORWARDING)).is_ok()
}
