// SPDX-License-Identifier: GPL-2.0-or-later

//! Bursts of datagrams, with which tests recognise a rate limit. A limit with a short queue drops most of a burst, and
//! one with `fq_codel` as its queue delays it. A slow machine may make a burst slower, but no machine makes it faster
//! than the limit allows.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::space::Space;

/// The payload of a datagram in bytes.
const PAYLOAD: usize = 1200;
/// A datagram that does not come within this time was dropped.
const SILENCE: Duration = Duration::from_millis(500);
/// How often the first datagram is sent, because a queue that is still full from the last burst drops it.
const TRIES: usize = 6;
/// The number of datagrams in a burst. More than 80 do not fit into the receiver's buffer.
const SENT: usize = 60;
/// The number of datagrams that a limit lets pass at once at most, with its burst and its queue.
const LIMITED: usize = 30;

/// What becomes of a burst of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Some arrive, and no faster than the limit's rate.
    Limited,
    /// Most arrive, faster than the limit's rate.
    Free,
    /// None arrives.
    Lost,
}

/// The fate of a burst that is sent to an address of `to`, compared with a limit in bits per second whose own burst is
/// smaller than ten datagrams.
#[must_use]
pub fn fate_of_burst(from: &Space, to: &Space, address: IpAddr, rate: u32) -> Fate {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let receiver = to.bind(|| UdpSocket::bind((address, 0))).expect("bind");
    receiver.set_read_timeout(Some(SILENCE)).expect("a time-out");
    let port = receiver.local_addr().expect("an address").port();
    let sender = from.bind(|| UdpSocket::bind(any)).expect("bind");
    let mut buffer = [0; PAYLOAD];
    let mut comes = || receiver.recv_from(&mut buffer).is_ok();
    // The first datagram lets the neighbours resolve each other's addresses, and waiting for it refills the token
    // buckets.
    for _ in 0..TRIES {
        sender.send_to(&[0; PAYLOAD], (address, port)).expect("send");
        if comes() {
            break;
        }
    }
    while comes() {}
    let begin = Instant::now();
    for _ in 0..SENT {
        sender.send_to(&[0; PAYLOAD], (address, port)).expect("send");
    }
    let (mut passed, mut last) = (0, begin);
    while comes() {
        (passed, last) = (passed + 1, Instant::now());
    }
    let sent_at_rate = Duration::from_secs_f64((PAYLOAD * LIMITED * 8) as f64 / f64::from(rate));
    match passed {
        0 => Fate::Lost,
        1..=LIMITED => Fate::Limited,
        _ if last - begin >= sent_at_rate => Fate::Limited,
        _ => Fate::Free,
    }
}
