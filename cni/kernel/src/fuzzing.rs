// SPDX-License-Identifier: MIT OR Apache-2.0

//! The private parsers, for fuzzing. Each takes arbitrary bytes and returns what it has read.

use std::fmt::Debug;

use crate::AddressFamily;
use crate::dbus;
use crate::dir::removal::mount_points;
use crate::netns_search::mounted;
pub use crate::route::fuzzing::{
    address, link, neighbour, notification, route, rule, traffic_control, vlans, wireguard,
};
use crate::xtables;

/// The entries of a legacy table of iptables. The first byte chooses the family, and the next 84 bytes are the
/// table's header.
pub fn legacy_table(bytes: &[u8]) -> impl Debug {
    const HEADER: usize = 84;
    let (choice, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    let (header, entries) = rest.split_at_checked(HEADER).unwrap_or((rest, &[]));
    let layout = xtables::entry_layout(AddressFamily::BOTH[usize::from(choice % 2)]);
    let chains = xtables::raw_chains(entries, header, layout);
    for chain in &chains {
        let mut jumps = chain.rules.iter().filter_map(|rule| rule.leads_to);
        assert!(jumps.all(|index| index < chains.len()), "a jump leads to no chain");
    }
    (xtables::chain_names(entries, layout), chains)
}

/// A message of D-Bus: as a signal, and as the reply to a call.
pub fn bus_message(bytes: &[u8]) -> impl Debug {
    dbus::read(bytes)
}

/// The text of a mountinfo file: the mounted network namespaces, and all mount points.
pub fn mounts(text: &[u8]) -> impl Debug {
    let (namespaces, points) = (mounted(text), mount_points(text).collect::<Vec<_>>());
    assert!(namespaces.iter().all(|path| points.iter().any(|point| path.as_os_str() == point)));
    (namespaces, points)
}
