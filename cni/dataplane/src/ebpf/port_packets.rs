// SPDX-License-Identifier: GPL-2.0-or-later

//! Counts the packets to and from one port that the BPF programs have carried past netfilter.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::setup;
use super::store::CarriedFlow;
use crate::{Error, Protocol};

/// The packets of each direction of a flow, by the source and destination with which they arrive.
type Packets = HashMap<(SocketAddr, SocketAddr), u64>;

/// Counts the packets, in both directions, that the BPF programs have carried for a port since the start. Packets
/// that a flow carries between the last reading and its end are missed, because a flow's record is deleted with the
/// flow.
#[derive(Debug)]
pub struct CarriedPackets {
    protocol: Protocol,
    to: SocketAddr,
    /// The maps at the last reading.
    last: Packets,
    total: u64,
}

impl CarriedPackets {
    /// Starts counting. None on a node without the programs.
    pub fn start(protocol: Protocol, to: SocketAddr) -> Result<Option<Self>, Error> {
        let now = read(protocol, to)?;
        Ok(now.map(|last| Self { protocol, to, last, total: 0 }))
    }

    /// Reads the maps, and returns the number of packets since the start.
    pub fn look(&mut self) -> Result<u64, Error> {
        if let Some(now) = read(self.protocol, self.to)? {
            self.add(now);
        }
        Ok(self.total)
    }

    fn add(&mut self, now: Packets) {
        for (addresses, packets) in &now {
            // A number that has become lower belongs to a new record.
            let earlier = self.last.get(addresses).filter(|last| *last <= packets).copied().unwrap_or(0);
            self.total = self.total.saturating_add(packets - earlier);
        }
        self.last = now;
    }
}

fn read(protocol: Protocol, to: SocketAddr) -> Result<Option<Packets>, Error> {
    let Some(store) = setup::find()? else { return Ok(None) };
    // The source of replies, after translation, is the destination that clients ask for.
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
            // Another flow reuses the port of the first one, and the second flow has a new record.
            (now(&[(1, 4), (2, 1)]), 15),
        ] {
            counted.add(looked);
            assert_eq!(counted.total, total);
        }
    }
}
