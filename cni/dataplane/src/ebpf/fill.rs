// SPDX-License-Identifier: GPL-2.0-or-later

//! The elements of the BPF maps that grow with containers, ports and flows.

use std::mem::offset_of;
use std::os::fd::AsFd;
use std::path::Path;

use aya::Pod as Plain;
use aya::maps::MapData;
use cni_kernel::bpf_elements::read_elements;
use nix::errno::Errno;
use slipway_ebpf_abi::{
    Flow4, Flow6, FlowKey4, FlowKey6, Pod, PortKey4, PortKey6, PortTarget4, PortTarget6, maps,
};

use super::error;
use super::pins::Pins;
use super::tables::{RESERVED, Table, Tables};
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

/// Counts the elements of a pinned map.
///
/// # Errors
/// [`Error::Kernel`] if it cannot be read.
pub(super) fn of(pin: &Path, map: &'static str) -> Result<Fill, Error> {
    let failed = |e| error::failed(format!("open the BPF map {}", pin.display()), e);
    let data = MapData::from_pin(pin).map_err(failed)?;
    let max_elements = data.info().map_err(failed)?.max_entries();
    // The programs need a later kernel than counting.
    let elements = count(&data, map, |_| true)?.unwrap_or_default();
    Ok(Fill { map, elements, max_elements })
}

fn fill<K: Plain, V: Plain>(pins: &Pins, map: &'static str) -> Result<Fill, Error> {
    let data = open(pins, map)?;
    let info = data.info().map_err(|e| error::failed(format!("inspect the BPF map {map}"), e))?;
    let max_elements = info.max_entries();
    let elements = match count(&data, map, |_| true)? {
        Some(count) => count,
        None => Table::<K, V>::open(pins, map)?.count(max_elements)?,
    };
    Ok(Fill { map, elements, max_elements })
}

/// Counts the ports that lead to a pod.
///
/// # Errors
/// [`Error::Kernel`] if a map cannot be read.
pub(super) fn ports(pins: &Pins, tables: &Tables) -> Result<usize, Error> {
    let mut sum = 0;
    for (map, at) in
        [(maps::PORTS4, offset_of!(PortTarget4, pod)), (maps::PORTS6, offset_of!(PortTarget6, pod))]
    {
        let has_pod = |value: &[u8]| value.get(at..at + 4).is_some_and(|pod| pod != RESERVED.to_ne_bytes());
        let Some(count) = count(&open(pins, map)?, map, has_pod)? else { return tables.ports() };
        sum += count as usize;
    }
    Ok(sum)
}

fn open(pins: &Pins, map: &str) -> Result<MapData, Error> {
    MapData::from_pin(pins.map(map)).map_err(|e| error::failed(format!("open the BPF map {map}"), e))
}

/// Counts the elements with such a value; none before Linux 5.6.
fn count(data: &MapData, map: &str, is_counted: impl Fn(&[u8]) -> bool) -> Result<Option<u32>, Error> {
    let mut count = 0;
    match read_elements(data.fd().as_fd(), |_, value| count += u32::from(is_counted(value))) {
        Ok(()) => Ok(Some(count)),
        Err(Errno::EINVAL) => Ok(None),
        Err(errno) => Err(error::failed(format!("read the BPF map {map}"), std::io::Error::from(errno))),
    }
}
