// SPDX-License-Identifier: GPL-2.0-or-later

//! Router advertisements. The node keeps what it has learned from them when it begins to forward, and containers with
//! configured addresses do not believe them.
//!
//! The advertisements are real ICMPv6 packets. Two controls show the kernel's default behaviour: it deletes the node's
//! default route, and it believes the advertisement of a neighbour.

mod container;
mod node;

use std::time::Duration;

use slipway_tests::Space;

/// The time limit for a packet to take effect.
const LIMIT: Duration = Duration::from_secs(10);

/// The default routes through a link that come from advertisements (protocol `ra`).
fn learnt(space: &Space, link: &str) -> String {
    space.cmd(&format!("ip -6 route show table all default dev {link} proto ra"))
}

/// The addresses of a link that come from an advertisement.
fn advertised_addresses(space: &Space, link: &str) -> String {
    space.cmd(&format!("ip -6 address show dev {link} dynamic"))
}
