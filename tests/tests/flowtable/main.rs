// SPDX-License-Identifier: GPL-2.0-or-later

//! The flowtable that `/etc/cni/slipway.json` switches on, and the contract's tests of reach and UDP with it.
//! On a kernel without a flowtable the same file must change nothing.

#[path = "../contract/reach.rs"]
mod reach;
#[path = "../contract/tcp.rs"]
mod tcp;
#[path = "../contract/udp.rs"]
mod udp;
#[path = "../contract/world.rs"]
mod world;

mod figures;
mod flows;
mod node;
mod table;

pub(crate) const DATAPLANE: world::Dataplane = world::Dataplane::Flowtable;
