// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names and numbers by which the objects of the node's agent are recognised. The agent makes these objects and
//! leaves them in place when it ends, and `slipway uninstall` removes them.

/// The file that the running agent has locked, in the directory of the file of subnets.
pub const LOCK: &str = "slipwayd.lock";

/// The bridge of the pods, unless the agent has an option for it.
pub const BRIDGE: &str = "slipway0";

/// The link of VXLAN to the other nodes.
pub const VXLAN_LINK: &str = "slipway-vxlan";

/// The link of WireGuard to the other nodes.
pub const WIREGUARD_LINK: &str = "slipway-wg";

/// The origin (`rtm_protocol`) of the routes to the pods of other nodes, which are in the main table. Numbers from 5 on
/// are for programs; neither the kernel's `linux/rtnetlink.h` nor iproute2's `rt_protos` gives this one a name.
pub const ROUTE_PROTOCOL: u8 = 83;

/// The metric of these routes, which other programs usually do not choose. It must differ from theirs, because the
/// kernel takes an IPv6 route to the same subnet with the same metric for a further next hop of the first route,
/// whatever the origins of both are.
pub const ROUTE_METRIC: u32 = 512;
