// SPDX-License-Identifier: GPL-3.0-or-later

//! Netlink messages, regardless of the protocol in them.

use std::fmt::Debug;

use cni_netlink::Attributes;
use cni_netlink::fuzzing;
use cni_netlink::message::{attributes, find, messages, text};

/// Messages and their attributes. Attributes must stay the same when they are written and read again.
pub(crate) fn message(datagram: &[u8]) -> impl Debug {
    let mut found = Vec::new();
    for (header, payload) in messages(datagram) {
        let again = Attributes::encode(|all| {
            for (kind, value) in attributes(payload) {
                all.attr(kind, value);
            }
        });
        assert!(attributes(&again).eq(attributes(payload)));
        for (kind, value) in attributes(payload) {
            assert!(find(payload, kind).is_some());
            assert!(!text(value).contains('\0'));
        }
        found.push((header, attributes(payload).count()));
    }
    found
}

/// The reply to a request, and the acknowledgements of a batch.
pub(crate) fn reply(datagram: &[u8]) -> impl Debug {
    (fuzzing::reply(datagram), fuzzing::acknowledgements(datagram))
}
