// SPDX-License-Identifier: GPL-2.0-or-later

//! The requirements of every dataplane, on real packets: each row of the contract in docs/dataplane.md, in
//! IPv4 and IPv6, TCP and UDP, with and without bridged packets in netfilter.

mod exclude_loopback;
mod foreign;
mod hardship;
mod loopback_guard;
mod martians;
mod masquerade;
mod owners;
mod reach;
mod sctp;
mod tcp;
mod two_networks;
mod udp;
mod udp_flows;
mod wire;
mod world;

/// The backend that this suite tests. Other suites run the same tests with other values.
pub(crate) const DATAPLANE: world::Dataplane = world::Dataplane::Default;
