// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counts the programs that an operation starts, and finds the peak memory of its largest process.
//!
//! The call runs under ptrace(2), attached before its input is written. Each exec is an event, and each
//! process stops before it exits, when its peak resident size (`VmHWM` in proc(5)) can still be read. Such a
//! run is not timed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use xtask::cni::Call;
use xtask_base::error::{Error, Result};

/// The most stops of a call. An operation of the reference has a few thousand.
const STOPS: u32 = 1_000_000;

/// A traced call.
#[derive(Debug, Default, Clone)]
pub(super) struct Trace {
    /// The starts of each program, the plugin included.
    pub(super) programs: BTreeMap<String, u32>,
    /// The largest process's peak resident size in bytes.
    pub(super) peak: u64,
    /// The called program's own peak resident size in bytes, without its children.
    pub(super) own_peak: u64,
    /// The plugin's output.
    pub(super) output: String,
}

impl Trace {
    /// Adds another call of the same operation.
    pub(super) fn add(&mut self, other: &Self) {
        for (program, count) in &other.programs {
            *self.programs.entry(program.clone()).or_default() += count;
        }
        self.peak = self.peak.max(other.peak);
        self.own_peak = self.own_peak.max(other.own_peak);
    }

    /// The number of started programs.
    pub(super) fn started(&self) -> u32 {
        self.programs.values().sum()
    }
}

/// Runs a call and traces it.
pub(super) fn run(mut call: Call) -> Result<Trace> {
    let mut child = call.spawn()?;
    let root = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    let options = Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE;
    ptrace::seize(root, options).map_err(|e| Error::system(format!("trace {}", call.label), e))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the plugin ends before it has read everything, its output has the reason.
        let _ = stdin.write_all(&call.input);
    }
    let mut trace = Trace::default();
    let code = follow(root, &mut trace, &call.label)?;
    // The plugin itself.
    *trace.programs.entry(call.label.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
    let mut errors = String::new();
    for (pipe, text) in [
        (child.stdout.take().map(|p| Box::new(p) as Box<dyn Read>), &mut trace.output),
        (child.stderr.take().map(|p| Box::new(p) as Box<dyn Read>), &mut errors),
    ] {
        if let Some(mut pipe) = pipe {
            pipe.read_to_string(text)
                .map_err(|e| Error::system(format!("read what {} printed", call.label), e))?;
        }
    }
    if code == 0 {
        return Ok(trace);
    }
    Err(Error::Failed(format!("{} ended with {code}: {} {errors}", call.label, trace.output)))
}

/// Resumes the traced processes until the last one has ended; returns the root's exit code.
fn follow(root: Pid, trace: &mut Trace, label: &str) -> Result<i32> {
    let mut code = -1;
    for _ in 0..STOPS {
        let status = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL)) {
            Ok(status) => status,
            Err(Errno::ECHILD) => return Ok(code),
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(Error::system(format!("wait for {label}"), e)),
        };
        let (pid, signal) = match status {
            WaitStatus::PtraceEvent(pid, _, event) => {
                // The plugin's own exec may come before or after it is attached: not counted here.
                if pid != root || event != libc::PTRACE_EVENT_EXEC {
                    note(pid, event, pid == root, trace);
                }
                (pid, None)
            }
            WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
            WaitStatus::Exited(pid, with) if pid == root => {
                code = with;
                continue;
            }
            _ => continue,
        };
        match ptrace::cont(pid, signal) {
            // Killed by the end of its process.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(e) => return Err(Error::system(format!("let {label} continue"), e)),
        }
    }
    Err(Error::Failed(format!("{label} made more than {STOPS} stops")))
}

fn note(pid: Pid, event: i32, is_root: bool, trace: &mut Trace) {
    if event == libc::PTRACE_EVENT_EXEC {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        *trace.programs.entry(name.trim().to_owned()).or_default() += 1;
    } else if event == libc::PTRACE_EVENT_EXIT {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let peak = peak(&status).unwrap_or(0);
        trace.peak = trace.peak.max(peak);
        if is_root {
            trace.own_peak = trace.own_peak.max(peak);
        }
    }
}

/// The `VmHWM` line, in bytes.
fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_status() {
        assert_eq!(peak("Name:\tx\nVmHWM:\t    1234 kB\nVmRSS:\t 1 kB\n"), Some(1234 * 1024));
        assert_eq!(peak("Name:\tx\n"), None);
    }
}
