//! A thread for each lease, which keeps it until it is given back, lost, or its container is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni_kernel::boot;

use super::exchange::{ExchangeError, Manner, Place, xid};
use super::lease::{Lease, Owner, Phase, Terms};
use super::message::Options;

/// RFC 2131, section 4.1, after some quicker tries: the first pause, and how much it is varied by.
const FIRST_PAUSE: Duration = Duration::from_secs(4);
const QUICK_PAUSE: Duration = Duration::from_secs(2);
const QUICK_TRIES: u32 = 4;

/// How patient the daemon is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For one exchange.
    pub(super) timeout: Duration,
    /// The longest pause between two.
    pub(super) resend_max: Duration,
    /// For all exchanges of an ADD.
    pub(super) resend_timeout: Duration,
    /// Whether answers shall be broadcast.
    pub(super) broadcast: bool,
}

/// What a keeper is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Renew now.
    Renew,
    /// Give the address back and end.
    Release,
}

/// Pauses between tries: some short ones, then each twice the one before it, all varied by a second.
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

/// Gets a lease for an attachment that has none.
pub(super) fn acquire(
    owner: &Owner,
    netns: &std::path::Path,
    options: Options,
    patience: Patience,
    stop: &AtomicBool,
) -> Result<Lease, ExchangeError> {
    let place = Place::open(netns, &owner.ifname, None)?;
    place.switch_on()?;
    let client = place.client(owner.client_id(), options.clone(), patience.broadcast);
    let end = Instant::now() + patience.resend_timeout;
    let mut pauses = Pauses::new(patience.resend_max);
    loop {
        let timeout = patience.timeout.min(end.saturating_duration_since(Instant::now()));
        let error = match place.acquire(&client, None, Manner { timeout, stop }) {
            Ok(terms) => {
                // The link is on already when it gets the address, so that the kernel will not do it.
                if let Err(error) = place.announce(terms.address()) {
                    log::warn!("{}: {error}", owner.client_id());
                }
                let at = (netns.to_path_buf(), place.id());
                return Ok(Lease::new(owner.clone(), at, options, &terms));
            }
            Err(error) if error.is_certain() => return Err(error),
            Err(error) => error,
        };
        let pause = pauses.next();
        if Instant::now() + pause >= end {
            return Err(ExchangeError::NoMoreTries(Box::new(error)));
        }
        log::warn!("{}: {error}", owner.client_id());
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

/// Keeps one lease.
pub(super) struct Keeper {
    pub(super) lease: Arc<Mutex<Lease>>,
    pub(super) orders: Receiver<Order>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) patience: Patience,
    /// Writes the lease to the disk after a change.
    pub(super) save: Box<dyn Fn(&Lease) + Send>,
}

/// How a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its address was given back, or there was nobody to give it back to.
    Released,
    /// The container, or its link, is gone.
    Gone,
    /// The server's time ran out or it wants the address back: the link was switched off.
    Lost,
}

/// What to do after a try.
enum Next {
    Go,
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
                    Next::Go => match self.lease().phase(boot::uptime()) {
                        Phase::Bound(wait) => wait,
                        // The next phase does not wait for the end of a pause.
                        Phase::Renewing(left) | Phase::Rebinding(left) => pauses.next().min(left),
                        Phase::Expired => pauses.next(),
                    },
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

    /// One try to get more time.
    fn extend(&self, phase: Phase) -> Next {
        let lease = self.lease();
        let who = lease.owner.client_id();
        let place = match Place::open(&lease.netns, &lease.owner.ifname, Some(lease.netns_id)) {
            Ok(place) => place,
            Err(error) if error.is_final() => {
                log::info!("{who}: {error}: the lease is left to the server");
                return Next::End(End::Gone);
            }
            Err(error) => {
                log::warn!("{who}: {error}");
                return Next::Go;
            }
        };
        let client = place.client(who.clone(), lease.options.clone(), self.patience.broadcast);
        let timeout = match phase {
            Phase::Renewing(left) | Phase::Rebinding(left) => self.patience.timeout.min(left),
            Phase::Bound(_) | Phase::Expired => self.patience.timeout,
        };
        let manner = Manner { timeout, stop: &self.stop };
        let held = (lease.address, lease.server);
        let done = match phase {
            Phase::Rebinding(_) => place.rebind(&client, held, manner),
            Phase::Expired => Err(ExchangeError::Refused(lease.address)),
            _ => place.renew(&client, held, manner),
        };
        let done = match done {
            // Not ours any more. Another lease of the same address would be as good.
            Err(ExchangeError::Refused(address)) => {
                log::warn!("{who}: {address} is not leased any more, asking for it again");
                match self.again(&place, &client, &lease, manner) {
                    Ok(terms) => Ok(terms),
                    Err(ExchangeError::Stopped) => return Next::Go,
                    Err(error) => {
                        log::error!("{who}: {error}: switching {} off", lease.owner.ifname);
                        if let Err(error) = place.switch_off() {
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
        Next::Go
    }

    /// A new lease of the same address; one of another address is given back at once.
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
        if let Err(error) = place.release(client, (terms.address(), terms.server())) {
            log::warn!("{}: {error}", client.id);
        }
        Err(ExchangeError::Refused(lease.address))
    }

    /// Gives the address back.
    pub(super) fn release(&self) -> End {
        let lease = self.lease();
        let who = lease.owner.client_id();
        let released =
            Place::open(&lease.netns, &lease.owner.ifname, Some(lease.netns_id)).and_then(|place| {
                let client = place.client(who.clone(), lease.options.clone(), self.patience.broadcast);
                place.release(&client, (lease.address, lease.server))
            });
        match released {
            Ok(()) => log::info!("{who}: {} released", lease.address),
            // The server will have it back in time.
            Err(error) => log::info!("{who}: {} is left to the server: {error}", lease.address),
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
}
