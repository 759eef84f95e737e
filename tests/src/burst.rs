// SPDX-License-Identifier: GPL-2.0-or-later

//! Datagrams that are sent at once: a limited rate lets the first of them pass, and no clock is needed to see it.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use crate::space::Space;

/// The payload of a datagram in bytes.
const PAYLOAD: usize = 1200;
/// A datagram that does not come within this time was dropped.
const SILENCE: Duration = Duration::from_millis(500);
/// Tries to send the first datagram: a queue that is still full from the last burst drops it.
const TRIES: usize = 20;

/// The number of datagrams that arrive of `count` that are sent to an address of `to` at once. More than 80 do not fit into
/// the receiver's buffer.
#[must_use]
pub fn datagrams_that_pass(from: &Space, to: &Space, address: IpAddr, count: usize) -> usize {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let receiver = to.bind(|| UdpSocket::bind((address, 0))).expect("bind");
    receiver.set_read_timeout(Some(SILENCE)).expect("a time-out");
    let port = receiver.local_addr().expect("an address").port();
    let sender = from.bind(|| UdpSocket::bind(any)).expect("bind");
    let mut buffer = [0; PAYLOAD];
    let mut comes = || receiver.recv_from(&mut buffer).is_ok();
    // The neighbours find each other, and the buckets fill.
    for _ in 0..TRIES {
        sender.send_to(&[0; PAYLOAD], (address, port)).expect("send");
        if comes() {
            break;
        }
    }
    while comes() {}
    for _ in 0..count {
        sender.send_to(&[0; PAYLOAD], (address, port)).expect("send");
    }
    std::iter::from_fn(|| comes().then_some(())).count()
}
