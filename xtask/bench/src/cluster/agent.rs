// SPDX-License-Identifier: MIT OR Apache-2.0

//! The measured `slipwayd run`, and the routes of this network namespace.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::objects::name;
use crate::memory::{self, Memory};
use crate::process::{Lines, Process};
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, tool};

/// The protocol number of slipwayd's routes.
const PROTOCOL: &str = "83";

/// The kernel's ticks in a second for user space (`USER_HZ`).
const TICKS: u64 = 100;

#[derive(Debug)]
pub(super) struct Agent {
    process: Process,
    /// The time at which it was started.
    pub(super) begun: Instant,
}

impl Agent {
    /// Starts it as the first Node's.
    pub(super) fn start(program: &Path, slipway: &Path, kubeconfig: &Path, directory: &Path) -> Result<Self> {
        let in_directory = |file: &str| directory.join(file).display().to_string();
        let arguments = [
            "run".to_owned(),
            format!("--node-name={}", name(0)),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--conflist={}", in_directory("net.d/10-slipway.conflist")),
            format!("--subnet-file={}", in_directory("subnet.json")),
            format!("--slipway={}", slipway.display()),
            "--cluster-cidr=10.128.0.0/9".to_owned(),
            "--tunnel=never".to_owned(),
        ];
        let begun = Instant::now();
        Ok(Self { process: Process::logged(program, &arguments, &directory.join("slipwayd.log"))?, begun })
    }

    pub(super) fn memory(&self) -> Result<Memory> {
        memory::of_process(self.process.id()).ok_or_else(ended)
    }

    pub(super) fn cpu(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).map_err(|_| ended())?;
        // proc(5): fields 14 and 15, utime and stime, of all threads, also of those that have ended. The second field is a
        // name in parentheses.
        let fields = stat.rsplit(") ").next().unwrap_or_default().split_whitespace().skip(11).take(2);
        let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
        Ok(Duration::from_millis(ticks * 1000 / TICKS))
    }
}

fn ended() -> Error {
    Error::Failed("slipwayd has ended, see its log".to_owned())
}

/// Waits until slipwayd has this number of routes.
pub(super) async fn wait_for_routes(count: u32, limit: Duration) -> Result<()> {
    let until = Instant::now() + limit;
    loop {
        let routes = run::capture(&mut tool("ip", &["-4", "-o", "route", "show", "proto", PROTOCOL]))?;
        let found = routes.lines().count();
        if found == usize::try_from(count).unwrap_or(usize::MAX) {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Error::Failed(format!("slipwayd made {found} routes, not {count}")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The kernel's changes of routes.
pub(super) fn monitor() -> Result<Lines> {
    Lines::of(&mut tool("ip", &["-4", "-o", "monitor", "route"]))
}

/// Waits for a new route to a subnet by a gateway; returns the time of its notification.
pub(super) fn wait_for(monitor: &Lines, subnet: &str, gateway: &str) -> Result<Instant> {
    let wanted = format!("{subnet} via {gateway} ");
    let failed = |e| Error::Failed(format!("no route to {subnet} by {gateway}: {e}"));
    monitor.wait_for(Duration::from_secs(10), |line| line.starts_with(&wanted)).map_err(failed)
}
