// SPDX-License-Identifier: GPL-2.0-or-later

//! The contract of the eBPF backend on a node without iptables programs.

#[path = "../contract/foreign.rs"]
mod foreign;
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
#[path = "../contract/tcp.rs"]
mod tcp;
#[path = "../contract/two_networks.rs"]
mod two_networks;
#[path = "../contract/udp.rs"]
mod udp;
#[path = "../contract/wire.rs"]
mod wire;
#[path = "../contract/world.rs"]
mod world;

pub(crate) const DATAPLANE: world::Dataplane = world::Dataplane::Ebpf;
