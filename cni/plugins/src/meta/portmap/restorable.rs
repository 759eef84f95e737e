//! A container's published ports as something that can be put back.

use cni_dataplane::{Backend, Dataplane, Kinds, PortRequest, Withdrawal, node};
use cni_spec::CniError;

use super::{access, loopback_addresses, open_loopback};
use crate::plugin::Restorable;

/// How many mappings a name tells.
const NAMED: usize = 4;

/// The published ports of one attachment, and the way to them from the node's loopback.
pub(super) struct Ports {
    pub(super) dataplane: Dataplane,
    pub(super) wanted: PortRequest,
}

impl Restorable for Ports {
    fn name(&self) -> String {
        let ports = &self.wanted.ports;
        let mut names: Vec<String> = ports.iter().take(NAMED).map(ToString::to_string).collect();
        if ports.len() > NAMED {
            names.push(format!("{} more", ports.len() - NAMED));
        }
        format!("published ports {}", names.join(", "))
    }

    fn check(&self) -> Result<(), CniError> {
        self.dataplane.check_ports(&self.wanted)?;
        for address in loopback_addresses(&self.wanted) {
            if !access::is_open(address)? {
                return Err(CniError::internal(format!("the node's loopback does not lead to {address}")));
            }
        }
        Ok(())
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.dataplane.publish(&self.wanted)?;
        // The guard of the loopback is in place now, and not before.
        open_loopback(&self.wanted, &access::open_loopback)
    }

    fn take_away(&self) -> Result<(), CniError> {
        if node::is_recorded_with(&self.wanted.attachment, &self.wanted.netns)? {
            self.dataplane.withdraw(&Withdrawal::of(&self.wanted.attachment, Kinds::Ports))?;
        }
        Ok(())
    }
}
