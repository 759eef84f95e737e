// SPDX-License-Identifier: GPL-2.0-or-later

//! Requests that go on while pods are replaced.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use slipway_tests::image::ask_once;
use slipway_tests::{Space, Stop, within};

/// The pause between two requests to an address.
const PAUSE: Duration = Duration::from_millis(20);
/// The time limit for a request, not counting pauses of the whole machine. A lost SYN is resent after one, three and
/// seven seconds. On a machine with 20 processes per processor, an answer took five seconds.
const LIMIT: Duration = Duration::from_secs(10);
/// The time limit including such pauses. On a busy machine, no process ran and no packet was sent for eight seconds.
const LONGEST: Duration = Duration::from_secs(40);
/// The sleep by which the test measures how late this machine wakes a thread.
const TICK: Duration = Duration::from_millis(10);

/// Requests to some addresses, each sent by a separate thread.
pub(crate) struct Requests {
    stop: Stop,
    late: Lateness,
    threads: Vec<thread::JoinHandle<Outcome>>,
}

/// The outcome of the requests to an address.
pub(crate) struct Outcome {
    pub(crate) to: SocketAddr,
    pub(crate) answered: usize,
    /// When each failed request began, and why it failed.
    pub(crate) failures: Vec<(Instant, String)>,
    begin: Instant,
}

impl Requests {
    pub(crate) fn start(from: &Space, targets: impl Iterator<Item = SocketAddr>) -> Self {
        let stop = Stop::default();
        let late = Lateness::measure(&stop);
        let start = |to: SocketAddr| {
            let (from, seen, late) = (from.clone(), stop.flag(), late.clone());
            thread::spawn(move || {
                let mut outcome = Outcome { to, answered: 0, failures: Vec::new(), begin: Instant::now() };
                while !seen.load(Ordering::Relaxed) {
                    let (begin, before) = (Instant::now(), late.total());
                    let answer = ask_once(&from, to, within(LONGEST));
                    let took = begin.elapsed();
                    // The pause keeps `late` up to date, because it is longer than a measurement.
                    thread::sleep(PAUSE);
                    let own = took.saturating_sub(late.total() - before);
                    match answer {
                        Ok(_) if own <= within(LIMIT) => outcome.answered += 1,
                        Ok(_) => outcome.failures.push((begin, format!("answered after {own:?}"))),
                        Err(error) => outcome.failures.push((begin, error.to_string())),
                    }
                }
                outcome
            })
        };
        let threads = targets.map(start).collect();
        Self { stop, late, threads }
    }

    pub(crate) fn stop(self) -> Vec<Outcome> {
        drop(self.stop);
        let join = |thread: thread::JoinHandle<Outcome>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let outcomes = self.threads.into_iter().map(join).collect();
        eprintln!("threads woke up late by {:?} in all", self.late.total());
        outcomes
    }
}

/// The total delay with which a thread woke up since it was started.
#[derive(Clone)]
struct Lateness(Arc<AtomicU64>);

impl Lateness {
    /// Starts a measurement that runs until the stop.
    fn measure(stop: &Stop) -> Self {
        let (total, seen) = (Arc::new(AtomicU64::new(0)), stop.flag());
        let sum = total.clone();
        thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                let begin = Instant::now();
                thread::sleep(TICK);
                let late = begin.elapsed().saturating_sub(TICK);
                sum.fetch_add(late.as_micros().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self(total)
    }

    fn total(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl Outcome {
    /// When the first and the last failed request began, or none if all were answered.
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
