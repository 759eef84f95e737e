// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets of one port's flows that the BPF programs have carried past netfilter.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::setup;
use super::store::Carriage;
use crate::{Error, Protocol};

/// The packets of a port's flows, of both directions, that the BPF programs have carried since the first look. What a
/// flow got between the last look and its end is not among them: a record ends with its flow.
#[derive(Debug)]
pub struct CarriedPackets {
    protocol: Protocol,
    to: SocketAddr,
    /// Packets of each direction at the last look, by the addresses that its packets come with.
    last: HashMap<(SocketAddr, SocketAddr), u64>,
    total: u64,
}

impl CarriedPackets {
    /// Takes the first look; none on a node without the programs.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the maps cannot be read.
    pub fn start(protocol: Protocol, to: SocketAddr) -> Result<Option<Self>, Error> {
        let mut counted = Self { protocol, to, last: HashMap::new(), total: 0 };
        if setup::find().is_none() {
            return Ok(None);
        }
        counted.look()?;
        counted.total = 0;
        Ok(Some(counted))
    }

    /// Reads the maps. Returns the packets since the first look.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the maps cannot be read.
    pub fn look(&mut self) -> Result<u64, Error> {
        let Some(store) = setup::find() else { return Ok(self.total) };
        let (protocol, to) = (self.protocol.number(), self.to);
        // The reverse direction becomes one that comes from where the first one goes to.
        let is_of = |one: &Carriage| one.protocol == protocol && (one.before.1 == to || one.after.0 == to);
        let now =
            store.directions()?.into_iter().filter(is_of).map(|one| (one.before, one.packets)).collect();
        self.add(now);
        Ok(self.total)
    }

    fn add(&mut self, now: HashMap<(SocketAddr, SocketAddr), u64>) {
        for (addresses, packets) in &now {
            // A lower number is of a new record.
            let earlier = self.last.get(addresses).filter(|last| *last <= packets).copied().unwrap_or(0);
            self.total = self.total.saturating_add(packets - earlier);
        }
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_flows_that_end_and_begin_are_counted() {
        let to: SocketAddr = "192.0.2.1:8080".parse().unwrap();
        let mut counted = CarriedPackets { protocol: Protocol::Tcp, to, last: HashMap::new(), total: 0 };
        let now = |all: &[(u16, u64)]| {
            all.iter().map(|(port, packets)| ((SocketAddr::new(to.ip(), *port), to), *packets)).collect()
        };
        for (looked, total) in [
            (now(&[(1, 5)]), 5),
            (now(&[(1, 7), (2, 3)]), 10),
            (now(&[(2, 3)]), 10),
            // The first one's port is used again, and the second one's record is a new one.
            (now(&[(1, 4), (2, 1)]), 15),
        ] {
            counted.add(looked);
            assert_eq!(counted.total, total);
        }
    }
}
