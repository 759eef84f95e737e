// SPDX-License-Identifier: MIT OR Apache-2.0

//! The first process of a VM: mounts the file systems that user space expects, runs the suites of the plan,
//! reports on the second serial port, and powers the VM off.
//!
//! It is linked without shared libraries, so that it can report a broken root file system. Every failure ends in a
//! report or in a kernel panic (the first process ended), which stops the VM as well: a panic reboots, and a reboot
//! ends the emulator.

mod guest;
mod suite;

use std::fs::{self, File};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use slipway_vm::{Event, PLAN, Plan, SKIPS};

/// The error that ended the run early.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    #[error("{0}: {1}")]
    Sys(String, nix::Error),
    #[error("read the plan {PLAN}: {0}")]
    Plan(serde_json::Error),
}

/// Writes events; clones write to the same port.
#[derive(Debug, Clone)]
struct Reporter {
    nonce: String,
    port: Arc<Mutex<File>>,
}

impl Reporter {
    fn send(&self, event: &Event) {
        let line = format!("{}\n", event.line(&self.nonce));
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        // Without this port nothing can be reported, and the host then misses the closing line.
        let _ = port.write_all(line.as_bytes());
    }
}

fn main() {
    let result = run();
    if let Err(e) = &result {
        // Standard error is the kernel's console.
        let _ = writeln!(std::io::stderr(), "vm-init: {e}");
    }
    guest::off();
}

fn run() -> Result<(), Error> {
    guest::mount_all()?;
    let text = fs::read(PLAN).map_err(|e| Error::Io(format!("read {PLAN}"), e))?;
    let plan: Plan = serde_json::from_slice(&text).map_err(Error::Plan)?;
    let port = guest::open_port(&plan.reports)?;
    let reporter = Reporter { nonce: plan.nonce.clone(), port: Arc::new(Mutex::new(port)) };
    reporter.send(&Event::Hello(guest::release()));
    for trouble in guest::prepare(&plan.preload) {
        reporter.send(&Event::Trouble(trouble));
    }
    if let Some(dir) = &plan.disk {
        for trouble in guest::mount_disk(dir) {
            reporter.send(&Event::Trouble(trouble));
        }
    }
    let mut suites = 0;
    let mut seen = 0;
    for one in &plan.suites {
        reporter.send(&Event::Start(one.name.clone()));
        let finish = suite::run(one, &plan.env, &reporter);
        let skips = fs::read_to_string(SKIPS).unwrap_or_default();
        for line in skips.lines().skip(seen) {
            reporter.send(&Event::Skip(line.to_owned()));
        }
        seen = skips.lines().count();
        reporter.send(&finish);
        suites += 1;
    }
    reporter.send(&Event::End { suites, taint: guest::taint() });
    guest::drain(&reporter.port.lock().unwrap_or_else(PoisonError::into_inner))
}
