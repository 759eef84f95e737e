// SPDX-License-Identifier: GPL-2.0-or-later

//! Traces of packets: what each rule, chain and policy of the ruleset did with them.
//!
//! The kernel reports packets for which a rule has set `meta nftrace` ([`crate::Stmt::Trace`]): at each rule that
//! matches, at the end of each chain, and at the policy of each base chain (`nft_trace_notify`). The first report of
//! a packet in a base chain contains the packet's headers, as they are at that point.

use std::time::Instant;

use cni_netlink::message::{be32, be64, find, text};

use crate::decode::decode_verdict;
use crate::error::Error;
use crate::object::{Family, Policy, TableId};
use crate::stmt::Verdict;
use crate::subscription::{Incoming, Subscription};

/// `NFNLGRP_NFTRACE` (`linux/netfilter/nfnetlink.h`, counted from 1), as a bit of `nl_groups`.
const GROUP: u32 = 1 << 8;
/// `NFT_MSG_TRACE`.
const TRACE: u16 = 17;

// enum nft_trace_attributes
const TABLE: u16 = 1;
const CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const KIND: u16 = 4;
const VERDICT: u16 = 5;
const ID: u16 = 6;
const NETWORK_HEADER: u16 = 8;
const TRANSPORT_HEADER: u16 = 9;
const LINK_IN: u16 = 10;
const LINK_OUT: u16 = 12;
const POLICY: u16 = 16;

// enum nft_trace_types
const OF_POLICY: u32 = 1;
const OF_RETURN: u32 = 2;
const OF_RULE: u32 = 3;

/// One event on a packet's way through the ruleset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// Identifies the packet. The number is the same at all hooks, until the packet is sent or received again. The
    /// kernel derives it from the packet's buffer, and reuses it later.
    pub packet: u32,
    pub table: TableId,
    pub chain: String,
    pub kind: TraceKind,
    /// The packet as it is at this point. Only the first event in a base chain has it.
    pub headers: Option<TraceHeaders>,
    /// Index of the link on which the packet arrived. Present together with the headers.
    pub link_in: Option<u32>,
    /// Index of the link on which the packet leaves, known after routing. Present together with the headers.
    pub link_out: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceKind {
    /// A rule matched.
    Rule {
        /// The rule's handle.
        handle: u64,
        /// The rule's verdict. None for a verdict that [`Verdict`] lacks, such as `queue`.
        verdict: Option<Verdict>,
    },
    /// A chain ended, or a rule returned from it.
    Return,
    /// No rule of a base chain decided, so the policy did.
    Policy(Policy),
}

/// A packet's headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceHeaders {
    /// The first bytes of the IP header, at most 40.
    pub network: Vec<u8>,
    /// The first bytes of the transport header, at most 20.
    pub transport: Vec<u8>,
}

/// A report of [`Traces`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Traced {
    Event(TraceEvent),
    /// Events were not reported, because the reader was too slow for the socket's buffer.
    Lost,
}

/// A socket that receives the traces of one network namespace, including those that other programs asked for.
#[derive(Debug)]
pub struct Traces(Subscription);

impl Traces {
    /// Subscribes to the traces in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no netfilter netlink; [`Error::Open`] without `CAP_NET_ADMIN`
    /// in the namespace.
    pub fn open() -> Result<Self, Error> {
        Ok(Self(Subscription::open(GROUP)?))
    }

    /// Returns the next event, waiting for it until `end`.
    pub fn next(&mut self, end: Instant) -> Result<Option<Traced>, Error> {
        loop {
            match self.0.read()? {
                Some(Incoming::Lost) => return Ok(Some(Traced::Lost)),
                Some(Incoming::Message { kind: TRACE, family, body }) => {
                    if let Some(event) = event(Family::from_number(family), body) {
                        return Ok(Some(Traced::Event(event)));
                    }
                }
                Some(Incoming::Message { .. }) => continue,
                None => {}
            }
            if !self.0.wait(end)? {
                return Ok(None);
            }
        }
    }
}

/// Decodes an event. None for an event of a later kernel.
pub(crate) fn event(family: Option<Family>, body: &[u8]) -> Option<TraceEvent> {
    let number = |kind| find(body, kind).and_then(be32);
    let kind = match number(KIND)? {
        OF_RULE => match find(body, RULE_HANDLE).and_then(be64) {
            Some(handle) => TraceKind::Rule { handle, verdict: find(body, VERDICT).and_then(decode_verdict) },
            // The end of a chain whose last rule did not match: nft_do_chain() reports the rule that closes
            // the chain's list.
            None => TraceKind::Return,
        },
        OF_RETURN => TraceKind::Return,
        // NF_DROP is 0.
        OF_POLICY => TraceKind::Policy(if number(POLICY)? == 0 { Policy::Drop } else { Policy::Accept }),
        _ => return None,
    };
    let headers = find(body, NETWORK_HEADER).map(|network| TraceHeaders {
        network: network.to_vec(),
        transport: find(body, TRANSPORT_HEADER).unwrap_or_default().to_vec(),
    });
    Some(TraceEvent {
        packet: number(ID)?,
        table: TableId { family: family?, name: text(find(body, TABLE)?) },
        chain: text(find(body, CHAIN)?),
        kind,
        headers,
        link_in: number(LINK_IN),
        link_out: number(LINK_OUT),
    })
}

#[cfg(test)]
mod tests {
    use cni_netlink::Attributes;

    use super::*;

    fn message(kind: u32, fill: impl FnOnce(&mut Attributes)) -> Vec<u8> {
        Attributes::encode(|message| {
            message.be32(ID, 7).text(TABLE, "filter").text(CHAIN, "FORWARD").be32(KIND, kind);
            fill(message);
        })
    }

    #[test]
    fn a_rule_that_drops() {
        let body = message(OF_RULE, |message| {
            message.attr(RULE_HANDLE, &5_u64.to_be_bytes()).be32(LINK_IN, 2).be32(LINK_OUT, 3);
            message.nest(VERDICT, |verdict| {
                verdict.be32(1, 0);
            });
            message.attr(NETWORK_HEADER, &[0x45; 20]).attr(TRANSPORT_HEADER, &[1; 20]);
        });
        let event = event(Some(Family::Ip), &body).unwrap();
        assert_eq!(event.kind, TraceKind::Rule { handle: 5, verdict: Some(Verdict::Drop) });
        assert_eq!((event.packet, event.table.to_string().as_str()), (7, "ip filter"));
        assert_eq!((event.link_in, event.link_out), (Some(2), Some(3)));
        assert_eq!(event.headers.unwrap().transport, [1; 20]);
    }

    #[test]
    fn the_policy_and_the_end_of_a_chain() {
        for (number, policy) in [(0, Policy::Drop), (1, Policy::Accept)] {
            let body = message(OF_POLICY, |message| {
                message.be32(POLICY, number);
            });
            assert_eq!(event(Some(Family::Inet), &body).unwrap().kind, TraceKind::Policy(policy));
        }
        let body = message(OF_RULE, |message| {
            message.attr(NETWORK_HEADER, &[0x45; 20]);
        });
        let end = event(Some(Family::Inet), &body).unwrap();
        assert_eq!((end.kind, end.headers.is_some()), (TraceKind::Return, true), "a rule without a handle");
        let body = message(OF_RETURN, |_| ());
        assert_eq!(event(Some(Family::Inet), &body).unwrap().kind, TraceKind::Return);
        assert_eq!(event(None, &body), None, "an unknown family");
        assert_eq!(event(Some(Family::Inet), &message(9, |_| ())), None, "an unknown event");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = event(Some(Family::Inet), &bytes);
        }
    }
}
