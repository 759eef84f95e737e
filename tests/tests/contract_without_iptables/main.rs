// SPDX-License-Identifier: GPL-2.0-or-later

//! The contract on a node without iptables programs, where nftables is the only possibility.

#[path = "../contract/exclude_loopback.rs"]
mod exclude_loopback;
#[path = "../contract/foreign.rs"]
mod foreign;
#[path = "../contract/hardship.rs"]
mod hardship;
#[path = "../contract/loopback_guard.rs"]
mod loopback_guard;
#[path = "../contract/martians.rs"]
mod martians;
#[path = "../contract/masquerade.rs"]
mod masquerade;
#[path = "../contract/owners.rs"]
mod owners;
#[path = "../contract/reach.rs"]
mod reach;
#[path = "../contract/sctp.rs"]
mod sctp;
mod status;
#[path = "../contract/tcp.rs"]
mod tcp;
#[path = "../contract/two_networks.rs"]
mod two_networks;
#[path = "../contract/udp.rs"]
mod udp;
#[path = "../contract/udp_flows.rs"]
mod udp_flows;
#[path = "../contract/wire.rs"]
mod wire;
#[path = "../contract/world.rs"]
mod world;

pub(crate) const DATAPLANE: world::Dataplane = world::Dataplane::Default;
