// SPDX-License-Identifier: GPL-2.0-or-later

//! How full the BPF maps of flows are.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use aya::maps::MapData;
use cni_kernel::bpf_elements::read_elements;

use super::error;
use crate::Error;

/// The fill of a BPF map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    pub map: &'static str,
    pub elements: u32,
    pub max_elements: u32,
}

impl Fill {
    /// Counts the elements of a pinned map.
    pub(super) fn of(pin: &Path, map: &'static str) -> Result<Self, Error> {
        let failed = |e| error::failed(format!("open the BPF map {}", pin.display()), e);
        let data = MapData::from_pin(pin).map_err(failed)?;
        let max_elements = data.info().map_err(failed)?.max_entries();
        let mut elements = 0;
        read_elements(data.fd().as_fd(), |_, _| elements += 1)
            .map_err(|errno| error::failed(format!("read the BPF map {map}"), io::Error::from(errno)))?;
        Ok(Self { map, elements, max_elements })
    }
}
