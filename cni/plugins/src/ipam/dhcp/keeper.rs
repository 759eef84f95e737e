// SPDX-License-Identifier: GPL-2.0-or-later

//! A thread for each lease, which renews it until it is released or lost, or its container is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni_kernel::boot;

use super::exchange::{ExchangeError, Held, Manner, Place, xid};
use super::lease::{Lease, LeaseNetns, Owner, Phase, Terms};
use super::message::Options;

/// The first pause of RFC 2131, section 4.1, after some quicker tries.
const FIRST_PAUSE: Duration = Duration::from_secs(4);
const QUICK_PAUSE: Duration = Duration::from_secs(2);
const QUICK_TRIES: u32 = 4;

/// The daemon's time limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For one exchange.
    pub(super) timeout: Duration,
    /// The longest pause between two exchanges.
    pub(super) resend_max: Duration,
    /// For all exchanges of an ADD.
    pub(super) resend_timeout: Duration,
    /// True to request broadcast replies.
    pub(super) broadcast: bool,
}

/// A request to a keeper.
#[derive(Debug)]
pub(super) enum Order {
    /// Renew now.
    Renew,
    /// Release the lease and end.
    Release,
}

/// Pauses between tries: some short ones, then doubled each time, all varied by a second.
#[derive(Debug)]
pub(super) struct Pauses {
    tries: u32,
    next: Duration,
    longest: Duration,
}

impl Pauses {
    pub(super) fn new(longest: Duration) -> Self {
        Self { tries: 0, next: FIRST_PAUSE, longest }
    }

    pub(super) fn next(&mut self) -> Duration {
        self.tries += 1;
        let pause = if self.tries <= QUICK_TRIES {
            QUICK_PAUSE
        } else {
            let pause = self.next;
            self.next = (self.next * 2).min(self.longest);
            pause
        };
        let varied = pause + Duration::from_millis(u64::from(xid() % 2000));
        varied.saturating_sub(Duration::from_secs(1)).max(Duration::from_millis(100))
    }
}

/// Requests a lease for an attachment that has none.
pub(super) fn acquire(
    owner: &Owner,
    netns: &std::path::Path,
    options: Options,
    patience: Patience,
    stop: &AtomicBool,
) -> Result<Lease, ExchangeError> {
    let place = Place::open(netns, &owner.ifname, None)?;
    place.set_up()?;
    let client = place.client(owner.client_id(), options.clone(), patience.broadcast);
    let end = Instant::now() + patience.resend_timeout;
    let mut pauses = Pauses::new(patience.resend_max);
    loop {
        let timeout = patience.timeout.min(end.saturating_duration_since(Instant::now()));
        let error = match place.acquire(&client, None, Manner { timeout, stop }) {
            Ok(terms) => {
                // The kernel does not announce the address, because the link is already up when it gets the address.
                if let Err(error) = place.announce(terms.address()) {
                    log::warn!("{}: {error}", owner.client_id());
                }
                let netns = LeaseNetns { path: netns.to_path_buf(), id: place.id() };
                return Ok(Lease::new(owner.clone(), netns, options, &terms));
            }
            Err(error) if error.is_permanent() => return Err(error),
            Err(error) => error,
        };
        log::warn!("{}: {error}", owner.client_id());
        let pause = pauses.next();
        if Instant::now() + pause >= end {
            return Err(ExchangeError::NoMoreTries);
        }
        sleep(pause, stop)?;
    }
}

fn sleep(pause: Duration, stop: &AtomicBool) -> Result<(), ExchangeError> {
    let end = Instant::now() + pause;
    while Instant::now() < end {
        if stop.load(Ordering::Relaxed) {
            return Err(ExchangeError::Stopped);
        }
        std::thread::sleep(Duration::from_millis(100).min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

/// Returns the time until the next attempt, after an attempt that began in phase `before` and ended in phase `after`.
fn pause(before: Phase, after: Phase, pauses: &mut Pauses) -> Duration {
    match (before, after) {
        (_, Phase::Bound(wait)) => wait,
        // Each phase begins on time (RFC 2131, section 4.4.5), even if the last attempt took all the time before it.
        (Phase::Renewing(_), Phase::Rebinding(_) | Phase::Expired)
        | (Phase::Rebinding(_), Phase::Expired) => Duration::ZERO,
        (_, Phase::Renewing(left) | Phase::Rebinding(left)) => pauses.next().min(left),
        (_, Phase::Expired) => pauses.next(),
    }
}

/// Keeps one lease.
pub(super) struct Keeper {
    pub(super) lease: Arc<Mutex<Lease>>,
    pub(super) orders: Receiver<Order>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) patience: Patience,
    /// Writes a changed lease to the disk.
    pub(super) save: Box<dyn Fn(&Lease) + Send>,
}

/// The end of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Released, or left to the server to expire.
    Released,
    /// The container or its link is gone.
    Gone,
    /// Expired or refused by the server: the link was set down.
    Lost,
}

/// The next step after a try.
enum Next {
    Continue,
    End(End),
}

impl Keeper {
    /// Runs until the lease ends.
    pub(super) fn run(self) -> End {
        let mut pauses = Pauses::new(self.patience.resend_max);
        loop {
            let wait = match self.lease().phase(boot::uptime()) {
                Phase::Bound(wait) => {
                    pauses = Pauses::new(self.patience.resend_max);
                    wait
                }
                phase => match self.extend(phase) {
                    Next::End(end) => return end,
                    Next::Continue => pause(phase, self.lease().phase(boot::uptime()), &mut pauses),
                },
            };
            match self.orders.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Renew) => {
                    if let Next::End(end) = self.extend(Phase::Renewing(self.patience.timeout)) {
                        return end;
                    }
                }
                Ok(Order::Release) | Err(RecvTimeoutError::Disconnected) => return self.release(),
            }
        }
    }

    fn lease(&self) -> Lease {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tries once to extend the lease.
    fn extend(&self, phase: Phase) -> Next {
        let lease = self.lease();
        let who = lease.owner.client_id();
        let place = match Place::open(&lease.netns, &lease.owner.ifname, Some(lease.netns_id)) {
            Ok(place) => place,
            Err(error) if error.is_final() => {
                log::info!("{who}: {error}: the lease expires at the server");
                return Next::End(End::Gone);
            }
            Err(error) => {
                log::warn!("{who}: {error}");
                return Next::Continue;
            }
        };
        let client = place.client(who.clone(), lease.options.clone(), self.patience.broadcast);
        let timeout = match phase {
            Phase::Renewing(left) | Phase::Rebinding(left) => self.patience.timeout.min(left),
            Phase::Bound(_) | Phase::Expired => self.patience.timeout,
        };
        let manner = Manner { timeout, stop: &self.stop };
        let held = Held { address: lease.address, server: lease.server };
        let done = match phase {
            Phase::Rebinding(_) => place.rebind(&client, held, manner),
            Phase::Expired => Err(ExchangeError::Refused(lease.address)),
            _ => place.renew(&client, held, manner),
        };
        let done = match done {
            // A new lease of the same address is good enough.
            Err(ExchangeError::Refused(address)) => {
                log::warn!("{who}: the lease of {address} has ended, requesting the address again");
                match self.again(&place, &client, &lease, manner) {
                    Ok(terms) => Ok(terms),
                    Err(ExchangeError::Stopped) => return Next::Continue,
                    Err(error) => {
                        log::error!("{who}: {error}: setting {} down", lease.owner.ifname);
                        if let Err(error) = place.set_down() {
                            log::error!("{who}: {error}");
                        }
                        return Next::End(End::Lost);
                    }
                }
            }
            done => done,
        };
        match done {
            Ok(terms) => {
                let mut shared = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
                shared.extend(&terms);
                log::info!("{who}: {} for {} s more", shared.address, shared.expiry);
                (self.save)(&shared);
            }
            Err(error) => log::warn!("{who}: {error}"),
        }
        Next::Continue
    }

    /// Requests a new lease of the same address. Releases one of another address.
    fn again(
        &self,
        place: &Place,
        client: &super::message::Client,
        lease: &Lease,
        manner: Manner<'_>,
    ) -> Result<Terms, ExchangeError> {
        let terms = place.acquire(client, Some(lease.address), manner)?;
        if terms.address() == lease.address {
            return Ok(terms);
        }
        let other = Held { address: terms.address(), server: terms.server() };
        if let Err(error) = place.release(client, other) {
            log::warn!("{}: {error}", client.id);
        }
        Err(ExchangeError::Refused(lease.address))
    }

    /// Releases the lease.
    pub(super) fn release(&self) -> End {
        let lease = self.lease();
        let who = lease.owner.client_id();
        let released =
            Place::open(&lease.netns, &lease.owner.ifname, Some(lease.netns_id)).and_then(|place| {
                let client = place.client(who.clone(), lease.options.clone(), self.patience.broadcast);
                place.release(&client, Held { address: lease.address, server: lease.server })
            });
        match released {
            Ok(()) => log::info!("{who}: {} released", lease.address),
            Err(error) => log::info!("{who}: {} expires at the server: {error}", lease.address),
        }
        End::Released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_after_some_quick_ones() {
        let mut pauses = Pauses::new(Duration::from_secs(10));
        let seconds: Vec<u64> = (0..8).map(|_| pauses.next().as_secs()).collect();
        assert!(seconds[..4].iter().all(|s| (1..=2).contains(s)), "{seconds:?}");
        assert!((3..=4).contains(&seconds[4]) && (7..=8).contains(&seconds[5]), "{seconds:?}");
        assert!(seconds[6..].iter().all(|s| (9..=10).contains(s)), "{seconds:?}");
    }

    #[test]
    fn a_new_phase_does_not_wait_for_a_pause() {
        let second = Duration::from_secs(1);
        let after = |before, after| pause(before, after, &mut Pauses::new(second));
        let (renewing, rebinding) = (Phase::Renewing(9 * second), Phase::Rebinding(9 * second));
        assert_eq!(after(renewing, rebinding), Duration::ZERO);
        assert_eq!(after(rebinding, Phase::Expired), Duration::ZERO);
        assert!(after(renewing, renewing) >= second);
        assert!(after(rebinding, rebinding) >= second);
        assert_eq!(after(renewing, Phase::Renewing(second / 2)), second / 2);
        assert_eq!(after(rebinding, Phase::Bound(7 * second)), 7 * second);
    }
}
