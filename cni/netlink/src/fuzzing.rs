// SPDX-License-Identifier: MIT OR Apache-2.0

//! The private parsers, for fuzzing. Each takes arbitrary bytes and returns what it has read.

use std::fmt::Debug;
use std::ops::ControlFlow;

use crate::ack::Ack;
use crate::message::{flag, messages, u32_of};
use crate::reply::Reply;

/// A datagram as the reply to a dump, to a change, and to a request for one object.
pub fn reply(datagram: &[u8]) -> impl Debug {
    // Taken from the first message, so that the datagram is treated as the reply.
    let sequence = datagram.get(8..).map_or(0, u32_of);
    [flag::DUMP, flag::ACK, 0].map(|flags| {
        let mut objects = 0;
        let end = Reply::new(sequence, flags).datagram(datagram, &mut |payload| {
            assert!(payload.len() < datagram.len(), "an object is longer than its datagram");
            objects += 1;
            ControlFlow::Continue(())
        });
        assert!(objects <= messages(datagram).count());
        end
    })
}

/// The acknowledgements in the reply to a batch.
pub fn acknowledgements(datagram: &[u8]) -> impl Debug {
    messages(datagram).filter_map(|(header, payload)| Ack::read(header, payload)).collect::<Vec<_>>()
}
