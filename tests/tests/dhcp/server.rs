//! A small DHCP server that does as a test says: real ones have no leases of seconds, and refuse nobody without
//! a reason.

use std::collections::BTreeMap;
use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::stage::Stage;

/// Kinds of messages (RFC 2132, section 9.6).
pub(crate) const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
pub(crate) const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
pub(crate) const RELEASE: u8 = 7;

/// What a server says to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Say {
    Yes,
    No,
    Nothing,
}

/// What the server does.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// The address that it has to give.
    pub(crate) address: Ipv4Addr,
    /// Seconds: until the server is asked, until all servers are, until the end.
    pub(crate) times: [u32; 3],
    pub(crate) discover: Say,
    /// To a client that takes an offer, one that asks for more time by unicast, and one that asks all.
    pub(crate) select: Say,
    pub(crate) renew: Say,
    pub(crate) rebind: Say,
    /// The subnet mask of its answers, if any.
    pub(crate) mask: Option<Ipv4Addr>,
    /// Offers of another server on the link, which come before its own.
    pub(crate) lies: Vec<Lie>,
}

/// An offer of another server.
#[derive(Debug, Clone)]
pub(crate) struct Lie {
    pub(crate) address: [u8; 4],
    pub(crate) mask: [u8; 4],
    /// More options, as they are sent.
    pub(crate) options: Vec<u8>,
}

impl Default for Lie {
    fn default() -> Self {
        Self { address: [10, 77, 0, 66], mask: [255, 255, 255, 0], options: Vec::new() }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::new(10, 77, 0, 50),
            times: [300, 500, 600],
            discover: Say::Yes,
            select: Say::Yes,
            renew: Say::Yes,
            rebind: Say::Yes,
            mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
            lies: Vec::new(),
        }
    }
}

/// A message that the server has received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) kind: u8,
    /// Whether it was sent to everybody.
    pub(crate) to_all: bool,
    /// The address that the client has.
    pub(crate) from: Ipv4Addr,
    pub(crate) options: BTreeMap<u8, Vec<u8>>,
}

/// The server, on the bridge of a [`Stage`]. It ends with the value.
pub(crate) struct Server {
    rules: Arc<Mutex<Rules>>,
    heard: Arc<Mutex<Vec<Heard>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

impl Server {
    pub(crate) fn start(stage: &Stage, rules: Rules) -> Self {
        stage.node.try_cmd("ip route add broadcast 255.255.255.255 dev lan0");
        let bind = |to: Ipv4Addr| {
            let socket = stage.node.run(|| UdpSocket::bind((to, 67))).expect("bind to port 67");
            socket.set_read_timeout(Some(Duration::from_millis(50))).expect("set a timeout");
            socket.set_broadcast(true).expect("allow broadcast");
            socket
        };
        let (rules, heard) = (Arc::new(Mutex::new(rules)), Arc::<Mutex<Vec<Heard>>>::default());
        let stop = Arc::<AtomicBool>::default();
        let own = bind(OWN);
        let sockets = [(bind(Ipv4Addr::BROADCAST), true), (own.try_clone().expect("a copy"), false)];
        let threads = sockets.map(|(socket, to_all)| {
            let (rules, heard, stop) = (rules.clone(), heard.clone(), stop.clone());
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
                    let one = Heard::read(message, to_all);
                    let rules = rules.lock().expect("not poisoned").clone();
                    let answers = rules.lies(&one, message).into_iter().chain(rules.answer(&one, message));
                    heard.lock().expect("not poisoned").push(one.clone());
                    let to = if one.from.is_unspecified() { Ipv4Addr::BROADCAST } else { one.from };
                    for answer in answers {
                        // A client that has gone is none of the server's worries.
                        drop(own.send_to(&answer, SocketAddr::from((to, 68))));
                    }
                }
            })
        });
        Self { rules, heard, stop, threads: threads.into() }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.rules.lock().expect("not poisoned"));
    }

    /// All messages so far.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.heard.lock().expect("not poisoned").clone()
    }

    pub(crate) fn count(&self, which: impl Fn(&Heard) -> bool) -> usize {
        self.heard().iter().filter(|one| which(one)).count()
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

impl Heard {
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

    /// Whether it takes an offer.
    pub(crate) fn selects(&self) -> bool {
        self.kind == REQUEST && self.from.is_unspecified()
    }

    /// Whether it asks for more time, of everybody or of one server.
    pub(crate) fn extends(&self, to_all: bool) -> bool {
        self.kind == REQUEST && !self.from.is_unspecified() && self.to_all == to_all
    }
}

impl Rules {
    fn answer(&self, heard: &Heard, message: &[u8]) -> Option<Vec<u8>> {
        let (say, yes) = match heard.kind {
            DISCOVER => (self.discover, OFFER),
            REQUEST if heard.selects() => (self.select, ACK),
            REQUEST if heard.to_all => (self.rebind, ACK),
            REQUEST => (self.renew, ACK),
            _ => return None,
        };
        let kind = match say {
            Say::Yes => yes,
            Say::No => NAK,
            Say::Nothing => return None,
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

    /// Offers of the other server, whose identifier is 10.77.0.2.
    fn lies(&self, heard: &Heard, message: &[u8]) -> Vec<Vec<u8>> {
        if heard.kind != DISCOVER {
            return Vec::new();
        }
        let offer = |lie: &Lie| {
            let mut offer = message[..240].to_vec();
            offer[0] = 2;
            offer[16..20].copy_from_slice(&lie.address);
            offer.extend([53, 1, OFFER, 54, 4, 10, 77, 0, 2, 51, 4, 0, 0, 1, 0, 1, 4]);
            offer.extend(lie.mask);
            offer.extend(&lie.options);
            offer.push(255);
            offer
        };
        self.lies.iter().map(offer).collect()
    }
}
