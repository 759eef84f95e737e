// SPDX-License-Identifier: GPL-2.0-or-later

//! A small DHCP server that the tests control, for leases of a few seconds and for replies that real servers do not
//! send.

use std::collections::BTreeMap;
use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use slipway_tests::is_slow;

use crate::stage::Stage;

/// Message types (RFC 2132, section 9.6).
pub(crate) const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
pub(crate) const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
pub(crate) const RELEASE: u8 = 7;

/// A server's reply to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    Accept,
    Refuse,
    None,
}

/// The server's behaviour.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// The address that the server offers.
    pub(crate) address: Ipv4Addr,
    /// The renewal time (T1), the rebinding time (T2) and the lease time in seconds.
    pub(crate) times: [u32; 3],
    pub(crate) discover: Reply,
    /// The reply when a client selects an offer.
    pub(crate) select: Reply,
    /// The reply to a renewal, which the client sends by unicast.
    pub(crate) renew: Reply,
    /// The reply to a rebinding, which the client broadcasts.
    pub(crate) rebind: Reply,
    /// The subnet mask in replies, or none.
    pub(crate) mask: Option<Ipv4Addr>,
    /// Offers of another server on the link, which are sent before this server's own.
    pub(crate) rogue_offers: Vec<RogueOffer>,
}

/// An offer of another server.
#[derive(Debug, Clone)]
pub(crate) struct RogueOffer {
    pub(crate) address: [u8; 4],
    pub(crate) mask: [u8; 4],
    /// Additional options in encoded form.
    pub(crate) options: Vec<u8>,
}

impl Default for RogueOffer {
    fn default() -> Self {
        Self { address: [10, 77, 0, 66], mask: [255, 255, 255, 0], options: Vec::new() }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::new(10, 77, 0, 50),
            times: [300, 500, 600],
            discover: Reply::Accept,
            select: Reply::Accept,
            renew: Reply::Accept,
            rebind: Reply::Accept,
            mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
            rogue_offers: Vec::new(),
        }
    }
}

/// Lease times in seconds for tests that wait for them. On a slow machine they are longer, so that a renewal is not due
/// before the container has its address, and the lease does not end before the last step.
pub(crate) fn soon(times: [u32; 3]) -> [u32; 3] {
    times.map(|seconds| if is_slow() { 5 * seconds } else { seconds })
}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) kind: u8,
    /// True if the message was broadcast.
    pub(crate) to_all: bool,
    /// The client's address (ciaddr).
    pub(crate) from: Ipv4Addr,
    pub(crate) options: BTreeMap<u8, Vec<u8>>,
}

/// A server on the bridge of a [`Stage`], which runs until it is dropped.
pub(crate) struct Server {
    rules: Arc<Mutex<Rules>>,
    received: Arc<Mutex<Vec<Received>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

impl Server {
    /// Starts the server on a new stage that has a daemon.
    pub(crate) fn start_with_daemon(rules: Rules) -> (Stage, Self) {
        let stage = Stage::new();
        let server = Self::start(&stage, rules);
        stage.start_daemon(&[]);
        (stage, server)
    }

    pub(crate) fn start(stage: &Stage, rules: Rules) -> Self {
        stage.node.try_cmd("ip route add broadcast 255.255.255.255 dev lan0");
        let bind = |to: Ipv4Addr| {
            let socket = stage.node.bind(|| UdpSocket::bind((to, 67))).expect("bind to port 67");
            socket.set_read_timeout(Some(Duration::from_millis(50))).expect("set a timeout");
            socket.set_broadcast(true).expect("allow broadcast");
            socket
        };
        let (rules, received) = (Arc::new(Mutex::new(rules)), Arc::<Mutex<Vec<Received>>>::default());
        let stop = Arc::<AtomicBool>::default();
        let own = bind(OWN);
        let sockets = [(bind(Ipv4Addr::BROADCAST), true), (own.try_clone().expect("a copy"), false)];
        let threads = sockets.map(|(socket, to_all)| {
            let (rules, received, stop) = (rules.clone(), received.clone(), stop.clone());
            let own = own.try_clone().expect("a copy");
            std::thread::spawn(move || {
                let mut buffer = [0; 2048];
                while !stop.load(Ordering::Relaxed) {
                    let length = match socket.recv(&mut buffer) {
                        Ok(length) => length,
                        Err(e) if matches!(e.kind(), WouldBlock | TimedOut | Interrupted) => continue,
                        Err(e) => panic!("receive: {e}"),
                    };
                    let message = &buffer[..length];
                    let one = Received::read(message, to_all);
                    let rules = rules.lock().expect("not poisoned").clone();
                    let answers =
                        rules.rogue_offers(&one, message).into_iter().chain(rules.answer(&one, message));
                    received.lock().expect("not poisoned").push(one.clone());
                    let to = if one.from.is_unspecified() { Ipv4Addr::BROADCAST } else { one.from };
                    for answer in answers {
                        // Sending fails if the client is gone.
                        drop(own.send_to(&answer, SocketAddr::from((to, 68))));
                    }
                }
            })
        });
        Self { rules, received, stop, threads: threads.into() }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.rules.lock().expect("not poisoned"));
    }

    /// Returns all messages so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().expect("not poisoned").clone()
    }

    pub(crate) fn count(&self, which: impl Fn(&Received) -> bool) -> usize {
        self.received().iter().filter(|one| which(one)).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Received {
    fn read(message: &[u8], to_all: bool) -> Self {
        let octets: [u8; 4] = message[12..16].try_into().expect("four bytes");
        let (mut options, mut rest) = (BTreeMap::new(), &message[240..]);
        loop {
            rest = match rest {
                [0, rest @ ..] => rest,
                [255, ..] => break,
                [code, length, rest @ ..] => {
                    let (value, rest) = rest.split_at(usize::from(*length));
                    assert!(options.insert(*code, value.to_vec()).is_none(), "option {code} twice");
                    rest
                }
                _ => panic!("options without an end"),
            };
        }
        Self { kind: options[&53][0], to_all, from: Ipv4Addr::from_octets(octets), options }
    }

    /// True if the client selects an offer.
    pub(crate) fn selects(&self) -> bool {
        self.kind == REQUEST && self.from.is_unspecified()
    }

    /// True if the client rebinds (`to_all`) or renews.
    pub(crate) fn extends(&self, to_all: bool) -> bool {
        self.kind == REQUEST && !self.from.is_unspecified() && self.to_all == to_all
    }
}

impl Rules {
    fn answer(&self, received: &Received, message: &[u8]) -> Option<Vec<u8>> {
        let (say, yes) = match received.kind {
            DISCOVER => (self.discover, OFFER),
            REQUEST if received.selects() => (self.select, ACK),
            REQUEST if received.to_all => (self.rebind, ACK),
            REQUEST => (self.renew, ACK),
            _ => return None,
        };
        let kind = match say {
            Reply::Accept => yes,
            Reply::Refuse => NAK,
            Reply::None => return None,
        };
        let mut answer = message[..240].to_vec();
        answer[0] = 2;
        if kind != NAK {
            answer[16..20].copy_from_slice(&self.address.octets());
        }
        answer.extend([53, 1, kind, 54, 4]);
        answer.extend(OWN.octets());
        for (code, seconds) in [58, 59, 51].into_iter().zip(self.times) {
            answer.extend([code, 4]);
            answer.extend(seconds.to_be_bytes());
        }
        if let Some(mask) = self.mask {
            answer.extend([1, 4]);
            answer.extend(mask.octets());
        }
        answer.push(255);
        Some(answer)
    }

    /// Returns the offers of the other server, whose identifier is 10.77.0.2.
    fn rogue_offers(&self, received: &Received, message: &[u8]) -> Vec<Vec<u8>> {
        if received.kind != DISCOVER {
            return Vec::new();
        }
        let encode = |offer: &RogueOffer| {
            let mut reply = message[..240].to_vec();
            reply[0] = 2;
            reply[16..20].copy_from_slice(&offer.address);
            reply.extend([53, 1, OFFER, 54, 4, 10, 77, 0, 2, 51, 4, 0, 0, 1, 0, 1, 4]);
            reply.extend(offer.mask);
            reply.extend(&offer.options);
            reply.push(255);
            reply
        };
        self.rogue_offers.iter().map(encode).collect()
    }
}
