//! Established flows by a flowtable, as `/etc/cni/slipway.json` asks for it; and what the contract says of
//! reach and of UDP, on a node that has that file. Where the kernel has no flowtable, the same file must
//! change nothing.

#[path = "../contract/reach.rs"]
mod reach;
#[path = "../contract/udp.rs"]
mod udp;
#[path = "../contract/world.rs"]
mod world;

mod figures;
mod flows;
mod node;
mod table;

pub(crate) const DATAPLANE: world::Dataplane = world::Dataplane::Flowtable;
