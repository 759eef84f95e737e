//! What every dataplane must do, on real packets: each row of the contract in docs/dataplane.md, in
//! IPv4 and IPv6, TCP and UDP, with bridged packets passing through netfilter and without.

mod foreign;
mod hardship;
mod loopback_guard;
mod loopback_spared;
mod martians;
mod masquerade;
mod owners;
mod reach;
mod sctp;
mod udp;
mod world;

/// How the pods of these suites are published and masqueraded; the same tests run with other values.
pub(crate) const DATAPLANE: world::Dataplane = world::Dataplane::Default;
