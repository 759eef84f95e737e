// SPDX-License-Identifier: GPL-2.0-or-later

//! Requests that continue while pods are replaced.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use slipway_tests::image::ask_once;
use slipway_tests::{Space, Stop, within};

/// The pause between two requests to one address.
const PAUSE: Duration = Duration::from_millis(20);
/// The time limit for a request. A lost first SYN is sent again after one second.
const LIMIT: Duration = Duration::from_secs(4);

/// Requests to some addresses, a thread each.
pub(crate) struct Requests {
    stop: Stop,
    threads: Vec<thread::JoinHandle<Outcome>>,
}

/// The outcome of the requests to an address.
pub(crate) struct Outcome {
    pub(crate) to: SocketAddr,
    pub(crate) answered: usize,
    /// The begin of each request that failed, and the reason.
    pub(crate) failures: Vec<(Instant, String)>,
    begin: Instant,
}

impl Requests {
    pub(crate) fn start(from: &Space, targets: impl Iterator<Item = SocketAddr>) -> Self {
        let stop = Stop::default();
        let start = |to: SocketAddr| {
            let (from, seen) = (from.clone(), stop.flag());
            thread::spawn(move || {
                let mut outcome = Outcome { to, answered: 0, failures: Vec::new(), begin: Instant::now() };
                while !seen.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    match ask_once(&from, to, within(LIMIT)) {
                        Ok(_) => outcome.answered += 1,
                        Err(error) => outcome.failures.push((begin, error.to_string())),
                    }
                    thread::sleep(PAUSE);
                }
                outcome
            })
        };
        let threads = targets.map(start).collect();
        Self { stop, threads }
    }

    pub(crate) fn stop(self) -> Vec<Outcome> {
        drop(self.stop);
        let join = |thread: thread::JoinHandle<Outcome>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        self.threads.into_iter().map(join).collect()
    }
}

impl Outcome {
    /// The begin of the first and of the last request that failed; none if all were answered.
    pub(crate) fn outage(&self) -> Option<(Instant, Instant)> {
        Some((self.failures.first()?.0, self.failures.last()?.0))
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} answered, {} failed", self.to, self.answered, self.failures.len())?;
        let Some((first, last)) = self.outage() else { return Ok(()) };
        let reasons: Vec<&String> = self.failures.iter().map(|(_, reason)| reason).take(5).collect();
        write!(f, " from {:?} to {:?}: {reasons:?}", first - self.begin, last - self.begin)
    }
}
