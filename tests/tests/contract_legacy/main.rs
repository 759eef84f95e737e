// SPDX-License-Identifier: GPL-2.0-or-later

//! The packet tests of the contract with the iptables backend, on a node that uses iptables-legacy.

#[path = "../contract/loopback_guard.rs"]
mod loopback_guard;
#[path = "../contract/masquerade.rs"]
mod masquerade;
#[path = "../contract/reach.rs"]
mod reach;
#[path = "../contract/tcp.rs"]
mod tcp;
#[path = "../contract/two_networks.rs"]
mod two_networks;
#[path = "../contract/udp.rs"]
mod udp;
#[path = "../contract/world.rs"]
mod world;

pub(crate) const DATAPLANE: world::Dataplane = world::Dataplane::Iptables("legacy");
