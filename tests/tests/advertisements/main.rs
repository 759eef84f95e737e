// SPDX-License-Identifier: GPL-2.0-or-later

//! Router advertisements: the node keeps what it has learnt from them when it begins to forward, and containers with
//! addresses of their own do not believe them.
//!
//! The advertisements are real ICMPv6 packets. Two controls show what the kernel does by itself: it deletes the node's
//! default route, and it believes the advertisement of a neighbour.

mod container;
mod node;

use std::time::Duration;

use slipway_tests::Space;

/// The time for a packet to have its effect.
const LIMIT: Duration = Duration::from_secs(10);

/// The default routes of protocol `ra` by a link.
fn learnt(space: &Space, link: &str) -> String {
    space.cmd(&format!("ip -6 route show table all default dev {link} proto ra"))
}

/// The addresses of a link that an advertisement gave it.
fn advertised_addresses(space: &Space, link: &str) -> String {
    space.cmd(&format!("ip -6 address show dev {link} dynamic"))
}
