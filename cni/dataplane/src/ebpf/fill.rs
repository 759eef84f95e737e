// SPDX-License-Identifier: GPL-2.0-or-later

//! The elements of the BPF maps that grow with containers, ports and flows.

use aya::Pod as Plain;
use aya::maps::MapInfo;
use slipway_ebpf_abi::{
    Flow4, Flow6, FlowKey4, FlowKey6, Pod, PortKey4, PortKey6, PortTarget4, PortTarget6, maps,
};

use super::error;
use super::pins::Pins;
use super::tables::Table;
use crate::Error;

/// The elements of a BPF map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// The map's name.
    pub map: &'static str,
    /// The number of its elements.
    pub elements: u32,
    /// The most that it holds.
    pub max_elements: u32,
}

/// Counts the elements of all these maps. One that cannot be read is left out.
pub(super) fn all(pins: &Pins) -> Vec<Fill> {
    let maps = [
        fill::<u32, Pod>(pins, maps::PODS),
        fill::<PortKey4, PortTarget4>(pins, maps::PORTS4),
        fill::<PortKey6, PortTarget6>(pins, maps::PORTS6),
        fill::<FlowKey4, Flow4>(pins, maps::FLOWS4),
        fill::<FlowKey6, Flow6>(pins, maps::FLOWS6),
        fill::<FlowKey4, Flow4>(pins, maps::HALF_OPEN4),
        fill::<FlowKey6, Flow6>(pins, maps::HALF_OPEN6),
    ];
    maps.into_iter().filter_map(|fill| fill.inspect_err(|error| log::warn!("{error}")).ok()).collect()
}

fn fill<K: Plain, V: Plain>(pins: &Pins, map: &'static str) -> Result<Fill, Error> {
    let info = MapInfo::from_pin(pins.map(map));
    let info = info.map_err(|e| error::failed(format!("inspect the BPF map {map}"), e))?;
    let max_elements = info.max_entries();
    let elements = Table::<K, V>::open(pins, map)?.count(max_elements)?;
    Ok(Fill { map, elements, max_elements })
}
