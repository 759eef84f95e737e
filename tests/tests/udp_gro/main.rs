// SPDX-License-Identifier: GPL-2.0-or-later

//! UDP GRO forwarding, which `/etc/cni/slipway.json` requests and `slipway node setup` switches on at the uplinks, and
//! the contract's tests of reach and UDP with it.

#[path = "../contract/reach.rs"]
mod reach;
#[path = "../contract/udp.rs"]
mod udp;
#[path = "../contract/world.rs"]
mod world;

mod figures;
mod merged;
mod node;

pub(crate) const DATAPLANE: world::Dataplane = world::Dataplane::UdpGro;
