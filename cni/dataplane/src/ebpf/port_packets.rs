// SPDX-License-Identifier: GPL-2.0-or-later

//! Packets of one port's flows that the BPF programs have carried past netfilter.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::setup;
use super::store::CarriedFlow;
use crate::{Error, Protocol};

/// Packets of the directions of flows, by the addresses that they come with.
type Packets = HashMap<(SocketAddr, SocketAddr), u64>;

/// The packets of a port's flows, of both directions, that the BPF programs have carried since the start. Those of a
/// flow between the last look and its end are not among them: a record ends with its flow.
#[derive(Debug)]
pub struct CarriedPackets {
    protocol: Protocol,
    to: SocketAddr,
    /// As of the last look.
    last: Packets,
    total: u64,
}

impl CarriedPackets {
    /// Begins to count; none on a node without the programs.
    pub fn start(protocol: Protocol, to: SocketAddr) -> Result<Option<Self>, Error> {
        let now = read(protocol, to)?;
        Ok(now.map(|last| Self { protocol, to, last, total: 0 }))
    }

    /// Reads the maps. Returns the packets since the start.
    pub fn look(&mut self) -> Result<u64, Error> {
        if let Some(now) = read(self.protocol, self.to)? {
            self.add(now);
        }
        Ok(self.total)
    }

    fn add(&mut self, now: Packets) {
        for (addresses, packets) in &now {
            // A lower number is of a new record.
            let earlier = self.last.get(addresses).filter(|last| *last <= packets).copied().unwrap_or(0);
            self.total = self.total.saturating_add(packets - earlier);
        }
        self.last = now;
    }
}

fn read(protocol: Protocol, to: SocketAddr) -> Result<Option<Packets>, Error> {
    let Some(store) = setup::find() else { return Ok(None) };
    // The reverse direction becomes one that comes from where the first one goes to.
    let is_of =
        |one: &CarriedFlow| one.protocol == protocol.number() && (one.before.1 == to || one.after.0 == to);
    let all = store.directions()?.into_iter().filter(is_of);
    Ok(Some(all.map(|one| (one.before, one.packets)).collect()))
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
