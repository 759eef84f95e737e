//! Plugins that are called after an interface plugin and add to what it made.

pub mod bandwidth;
pub mod firewall;
pub mod flannel;
pub mod noop;
pub mod portmap;
pub mod sbr;
mod trial;
pub mod tuning;
pub mod vrf;
