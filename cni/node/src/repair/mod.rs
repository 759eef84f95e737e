// SPDX-License-Identifier: GPL-3.0-or-later

//! Repairs what other programs break in the dataplane: flushed or changed tables, detached BPF programs.
//!
//! [`damage`] reports changes as the kernel does. The installed `slipway` ([`program`]) compares and repairs, one process
//! per repair, so that one version owns the schema and the BPF programs. `slipway restore` may run next to any ADD and
//! DEL, and puts nothing back while a migration runs.
//!
//! Legacy iptables and elements that expire unseen send no notification: there is a repair every five minutes, too.

mod carrying;
pub mod damage;
mod firewalld;
mod limits;
pub mod program;

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::host::mounts;
use damage::{Damage, Observer, ObserverError};
use program::{Program, ProgramError, Restoration};

/// The time between two repairs without a reason.
const RESYNC: Duration = Duration::from_secs(300);
/// The time between a damage and its repair: a flush often comes with other changes.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// The least time between two repairs, so that a program that changes our table all the time costs little.
const PAUSE: Duration = Duration::from_millis(500);
/// After a repair that found nothing missing, the least time is at least this many times as long as the repair took: on a
/// node with thousands of containers, it takes seconds.
const REST: u32 = 3;
/// The wait after a failed repair. Each further failure doubles it, up to [`RESYNC`].
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The thread that waits for the kernel notices within this time that the repairs have ended.
const ALIVE: Duration = Duration::from_millis(500);

/// Why repairs ended early.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The kernel's changes cannot be followed.
    #[error(transparent)]
    Observer(#[from] ObserverError),
    /// The thread that waits for the kernel's changes cannot be started.
    #[error("start a thread for changes of the dataplane: {0}")]
    Start(io::Error),
}

/// The outcome of one repair.
#[derive(Debug)]
pub struct Repair {
    /// The damages that were reported before it; none for a repair without a reason.
    pub damages: BTreeSet<Damage>,
    /// The result of `slipway restore`.
    pub restored: Result<Restoration, ProgramError>,
    /// True if the BPF programs were set up again; false if the node has none, or nothing had happened to them.
    pub programs: Result<bool, ProgramError>,
    /// The time from its begin to its end.
    pub took: Duration,
}

impl Repair {
    /// True if something was missing, or may have been: BPF programs are attached again without a comparison.
    #[must_use]
    pub fn was_needed(&self) -> bool {
        let restored = self.restored.as_ref().is_ok_and(|done| !done.restored.is_empty());
        restored || matches!(self.programs, Ok(true)) || self.failures().next().is_some()
    }

    /// All that failed, a line each.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        let failed = self.restored.as_ref().map(|done| done.failed.clone()).unwrap_or_default();
        let errors = [self.restored.as_ref().err(), self.programs.as_ref().err()];
        failed.into_iter().chain(errors.into_iter().flatten().map(ProgramError::to_string))
    }
}

/// Repairs at the start, after each damage and every five minutes, until `stop` is ready. `done` gets each outcome.
/// A failed repair is tried again, after waits that grow.
///
/// # Errors
/// [`RepairError`].
pub async fn run(
    program: Program,
    stop: impl Future<Output = ()>,
    mut done: impl FnMut(Repair),
) -> Result<(), RepairError> {
    let mut damages = observe(Observer::open()?, program.in_host_mounts).map_err(RepairError::Start)?;
    let mut resync = interval(RESYNC);
    resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = BTreeSet::new();
    let mut due: Option<Instant> = None;
    let mut wait = FIRST_WAIT;
    let (mut last, mut pause) = (Instant::now() - PAUSE, PAUSE);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            _ = resync.tick() => due = Some(Instant::now()),
            damage = damages.recv() => {
                // The thread ends only after an error, or with the receiver.
                let Some(damage) = damage else { return Ok(()) };
                reported.insert(damage?);
                let then = (Instant::now() + DEBOUNCE).max(last + pause);
                due = Some(due.map_or(then, |due| due.min(then)));
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let repair = repair(&program, std::mem::take(&mut reported)).await;
                (last, pause) = (Instant::now(), pause_after(repair.took, repair.was_needed()));
                due = if repair.failures().next().is_none() {
                    wait = FIRST_WAIT;
                    None
                } else {
                    let next = last + wait;
                    wait = (2 * wait).min(RESYNC);
                    Some(next)
                };
                done(repair);
            }
        }
    }
}

/// The least time from a repair to the next one.
fn pause_after(took: Duration, was_needed: bool) -> Duration {
    if was_needed { PAUSE } else { PAUSE.max(took * REST) }
}

async fn repair(program: &Program, damages: BTreeSet<Damage>) -> Repair {
    let begin = Instant::now();
    // The BPF programs come first, because they serve new flows while `restore` waits for concurrent DELs.
    let needs_programs = damages.is_empty() || damages.iter().any(Damage::concerns_programs);
    let programs = if needs_programs { program.set_up_node().await } else { Ok(false) };
    let restored = program.restore().await;
    Repair { damages, restored, programs, took: begin.elapsed() }
}

/// Waits for damages in threads of their own: the kernel's notifications, and firewalld's signals on the host's bus.
fn observe(
    mut observer: Observer,
    in_host_mounts: bool,
) -> io::Result<mpsc::Receiver<Result<Damage, ObserverError>>> {
    let (sender, receiver) = mpsc::channel(16);
    let signals = sender.clone();
    let watch = move || {
        if in_host_mounts && let Err(error) = mounts::enter() {
            log::warn!("firewalld's reloads are not noticed: {error}");
            return;
        }
        firewalld::watch(|damage| match damage {
            Some(damage) => signals.blocking_send(Ok(damage)).is_ok(),
            None => !signals.is_closed(),
        });
    };
    thread::Builder::new().name("firewalld".to_owned()).spawn(watch)?;
    let carrying = sender.clone();
    let follow = move || {
        if in_host_mounts && let Err(error) = mounts::enter() {
            log::warn!("rules about single packets are not noticed: {error}");
            return;
        }
        carrying::follow(|| carrying.is_closed());
    };
    thread::Builder::new().name("carrying".to_owned()).spawn(follow)?;
    let work = move || {
        while !sender.is_closed() {
            let damage = match observer.next(ALIVE) {
                Ok(None) => continue,
                Ok(Some(damage)) => Ok(damage),
                Err(error) => Err(error),
            };
            let ended = damage.is_err();
            if sender.blocking_send(damage).is_err() || ended {
                return;
            }
        }
    };
    thread::Builder::new().name("dataplane".to_owned()).spawn(work)?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_repairs_that_find_nothing_leave_the_processor_to_others() {
        let seconds = Duration::from_secs;
        assert_eq!(pause_after(Duration::from_millis(100), false), PAUSE);
        assert_eq!(pause_after(seconds(8), false), seconds(24));
        assert_eq!(pause_after(seconds(8), true), PAUSE, "another part may be missing by now");
    }
}
