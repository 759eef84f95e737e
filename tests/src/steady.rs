// SPDX-License-Identifier: GPL-2.0-or-later

//! Steady flows of small datagrams, which show how many packets are lost because of an event, and for how long.

use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeSpec;

use crate::pace::within;
use crate::space::Space;
use crate::traffic::QUEUE;

/// How long the last replies are waited for after the last datagram. The kernel resends a lost neighbour solicitation
/// after one second.
const LAST_REPLIES: Duration = Duration::from_secs(3);

/// Ends a thread when the `Stop` is dropped, because the thread checks a clone of the flag.
#[derive(Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag for the thread, which becomes true when the `Stop` is dropped.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A flow of datagrams that runs until it is dropped or [`SteadyFlow::stop`]ped.
#[derive(Debug)]
pub struct SteadyFlow {
    stop: Stop,
    thread: thread::JoinHandle<Deliveries>,
}

/// The datagrams of a flow that has ended.
pub struct Deliveries {
    name: String,
    datagrams: Vec<Datagram>,
    /// The longest delay with which the sender woke up.
    pub late: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Datagram {
    sent: Instant,
    has_reply: bool,
}

impl Space {
    /// Sends a datagram with a sequence number at each interval, all from the same port, to a server of this name
    /// ([`Space::serve`]).
    pub fn steady(&self, to: SocketAddr, who: &str, interval: Duration) -> SteadyFlow {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        // The socket is not connected, so that an ICMP error about one datagram does not prevent the next one from
        // being sent.
        let socket = self.bind(|| UdpSocket::bind(any)).expect("open a socket");
        socket.set_nonblocking(true).expect("do not wait for datagrams");
        setsockopt(&socket, sockopt::RcvBufForce, &QUEUE).expect("a larger queue");
        let stop = Stop::default();
        let seen = stop.flag();
        let deliveries = Deliveries {
            name: format!("udp {to} from {}", self.name()),
            datagrams: Vec::new(),
            late: Duration::ZERO,
        };
        let mut sender = Sender { socket, to, who: who.to_owned(), deliveries };
        let thread = thread::spawn(move || {
            sender.send(interval, &seen);
            sender.deliveries
        });
        SteadyFlow { stop, thread }
    }
}

impl SteadyFlow {
    /// Ends the flow and waits for the last replies.
    pub fn stop(self) -> Deliveries {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

struct Sender {
    socket: UdpSocket,
    to: SocketAddr,
    who: String,
    deliveries: Deliveries,
}

impl Sender {
    fn send(&mut self, interval: Duration, stop: &AtomicBool) {
        let mut due = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let sent = Instant::now();
            self.deliveries.late = self.deliveries.late.max(sent.saturating_duration_since(due));
            let number = self.deliveries.datagrams.len();
            self.deliveries.datagrams.push(Datagram { sent, has_reply: false });
            // Without a route the kernel does not send the datagram, which then counts as lost.
            let _ = self.socket.send_to(number.to_string().as_bytes(), self.to);
            // A sender that woke up late does not catch up, because a burst could overflow the server's queue.
            due = sent + interval;
            self.receive_until(due);
        }
        let end = Instant::now() + within(LAST_REPLIES);
        while self.deliveries.waits_for_replies() && Instant::now() < end {
            self.receive_until(end.min(Instant::now() + Duration::from_millis(20)));
        }
    }

    fn receive_until(&mut self, end: Instant) {
        loop {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = self.socket.recv_from(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]);
                let fields: Vec<&str> = text.trim_end().split('|').collect();
                let [who, _, number] = fields[..] else { continue };
                let number = number.parse::<usize>().ok().filter(|_| who == self.who && from == self.to);
                if let Some(datagram) = number.and_then(|number| self.deliveries.datagrams.get_mut(number)) {
                    datagram.has_reply = true;
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(left)), None);
        }
    }
}

impl Deliveries {
    pub fn sent(&self) -> usize {
        self.datagrams.len()
    }

    pub fn lost(&self) -> usize {
        self.datagrams.iter().filter(|datagram| !datagram.has_reply).count()
    }

    /// The time during which datagrams were lost: from sending the first lost one until sending the one after the last
    /// lost one. Zero if none was lost.
    pub fn outage(&self) -> Duration {
        let is_lost = |datagram: &Datagram| !datagram.has_reply;
        let Some(first) = self.datagrams.iter().find(|datagram| is_lost(datagram)) else {
            return Duration::ZERO;
        };
        let after = self.datagrams.iter().rposition(is_lost).map_or(0, |last| last + 1);
        // If the flow ended with the last lost datagram, that one is the end.
        let end = self.datagrams.get(after).or(self.datagrams.last()).map_or(first.sent, |one| one.sent);
        end - first.sent
    }

    /// True if a datagram of the last seconds has no reply yet. Earlier ones without a reply are lost.
    fn waits_for_replies(&self) -> bool {
        let limit = within(LAST_REPLIES);
        self.datagrams.iter().rev().take_while(|one| one.sent.elapsed() < limit).any(|one| !one.has_reply)
    }
}

impl fmt::Debug for Deliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lost, sent, outage) = (self.lost(), self.sent(), self.outage());
        write!(f, "{}: {lost} of {sent} datagrams lost, within {outage:?}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deliveries(replies: &[bool]) -> Deliveries {
        let begin = Instant::now();
        let sent = (0..).map(|number| begin + number * Duration::from_millis(2));
        let datagrams =
            replies.iter().zip(sent).map(|(has_reply, sent)| Datagram { sent, has_reply: *has_reply });
        Deliveries { name: String::new(), datagrams: datagrams.collect(), late: Duration::ZERO }
    }

    #[test]
    fn an_outage_lasts_from_the_first_lost_datagram_to_the_one_after_the_last() {
        for (replies, lost, outage) in [
            (&[true, true, true][..], 0, 0),
            (&[true, false, true, true], 1, 2),
            (&[true, false, true, false, false, true, true], 3, 8),
            (&[false, true], 1, 2),
            (&[true, false, false], 2, 2),
            (&[], 0, 0),
        ] {
            let found = deliveries(replies);
            let expected = (lost, Duration::from_millis(outage));
            assert_eq!((found.lost(), found.outage()), expected, "{replies:?}");
        }
    }
}
