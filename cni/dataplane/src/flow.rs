// SPDX-License-Identifier: GPL-2.0-or-later

//! Flows to published ports, as conntrack lists them.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::Traffic;

/// A flow to a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedFlow {
    /// The mapping's index in the list that the caller passed.
    pub port: usize,
    /// IP protocol number.
    pub protocol: u8,
    pub client: SocketAddr,
    /// The address and port of the node to which the client sends.
    pub host: SocketAddr,
    /// Packets and bytes of both directions together. None if accounting is off.
    pub counted: Option<(u64, u64)>,
    /// True if the BPF programs carry packets of the flow.
    pub is_carried: bool,
}

/// The flows to published ports, and the traffic through each port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flows {
    /// The traffic, in the order of the list that the caller passed.
    pub traffic: Vec<Traffic>,
    /// The flows, at most as many as the caller asked for.
    pub flows: Vec<PublishedFlow>,
    /// How many more flows there are.
    pub more: usize,
}

/// The protocol, the client's end and the node's end, which identify a flow.
type Ends = (u8, SocketAddr, SocketAddr);

impl Flows {
    /// Starts without flows, for this number of mappings.
    pub(crate) fn to(ports: usize) -> Self {
        Self { traffic: vec![Traffic::default(); ports], ..Self::default() }
    }

    /// Adds a flow. Once there are `most` flows, further ones are only counted.
    pub(crate) fn add(&mut self, flow: PublishedFlow, most: usize) {
        if let Some(traffic) = self.traffic.get_mut(flow.port) {
            traffic.add(flow.counted);
        }
        if self.flows.len() < most {
            self.flows.push(flow);
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn index(&self) -> HashMap<Ends, usize> {
        let of = |(index, flow): (usize, &PublishedFlow)| ((flow.protocol, flow.client, flow.host), index);
        self.flows.iter().enumerate().map(of).collect()
    }
}

impl PublishedFlow {
    /// Adds packets and bytes that the BPF programs carried.
    pub(crate) fn carry(&mut self, packets: u64, bytes: u64) {
        self.is_carried = true;
        if let Some(counted) = &mut self.counted {
            *counted = (counted.0.saturating_add(packets), counted.1.saturating_add(bytes));
        }
    }
}
