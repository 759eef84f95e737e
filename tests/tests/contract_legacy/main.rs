//! The contract with the iptables backend, on a node that uses iptables-legacy: the rows that depend on packets alone.

#[path = "../contract/loopback_guard.rs"]
mod loopback_guard;
#[path = "../contract/masquerade.rs"]
mod masquerade;
#[path = "../contract/reach.rs"]
mod reach;
#[path = "../contract/udp.rs"]
mod udp;
#[path = "../contract/world.rs"]
mod world;

pub(crate) const DATAPLANE: world::Dataplane = world::Dataplane::Iptables("legacy");
