// SPDX-License-Identifier: GPL-2.0-or-later

//! A container's published ports, for `slipway restore`.

use cni_dataplane::{Backend, Dataplane, Kinds, PortRequest, Withdrawal, node};
use cni_spec::CniError;

use super::route_localnet;
use crate::expected::Expected;

/// The most mappings that the object's name lists.
const NAMED: usize = 4;

/// The published ports of one attachment, and the way to them from the node's loopback.
pub(super) struct Ports {
    pub(super) dataplane: Dataplane,
    pub(super) request: PortRequest,
}

impl Expected for Ports {
    fn name(&self) -> String {
        let ports = &self.request.ports;
        let mut names: Vec<String> = ports.iter().take(NAMED).map(ToString::to_string).collect();
        if ports.len() > NAMED {
            names.push(format!("{} more", ports.len() - NAMED));
        }
        format!("published ports {}", names.join(", "))
    }

    fn is_rules(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        self.dataplane.check_ports(&self.request)?;
        for address in route_localnet::addresses(&self.request) {
            if !route_localnet::is_open(address)? {
                return Err(CniError::internal(format!("the node's loopback does not lead to {address}")));
            }
        }
        Ok(())
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.dataplane.publish(&self.request)?;
        // Only now is the guard of the loopback in place.
        route_localnet::open_for(&self.request, &route_localnet::open)
    }

    fn take_away(&self) -> Result<(), CniError> {
        if !node::is_recorded_elsewhere(&self.request.attachment, &self.request.netns)? {
            let withdrawal = Withdrawal::of(&self.request.attachment, Kinds::Ports);
            self.dataplane.withdraw(&Withdrawal { only_in: Some(&self.request.netns), ..withdrawal })?;
        }
        Ok(())
    }
}
