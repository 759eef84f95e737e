// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs one test program.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use slipway_vm::{Ending, Event, SKIPS, Suite};

use crate::Reporter;
use crate::guest::SEARCH_PATH;

/// The time between two looks at a running suite.
const PAUSE: Duration = Duration::from_millis(20);

/// The time limit for the output of an ended suite: a process that it left behind may hold the other end of the pipe
/// forever.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Runs the suite to its end and returns the event.
pub(crate) fn run(suite: &Suite, env: &[(String, String)], reporter: &Reporter) -> Event {
    let begun = Instant::now();
    let ending = match start(suite, env) {
        Ok(child) => watch(child, Duration::from_secs(suite.limit), reporter),
        Err(e) => {
            reporter.send(&Event::Trouble(format!("start {}: {e}", suite.program)));
            // The exit code of a shell for a program that it cannot run.
            Ending::Exit(127)
        }
    };
    reap();
    let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Event::Finish { suite: suite.name.clone(), ending, millis }
}

fn start(suite: &Suite, env: &[(String, String)]) -> std::io::Result<Child> {
    let mut command = Command::new(&suite.program);
    command.args(&suite.args).current_dir(&suite.dir).env_clear();
    command.env("CARGO_MANIFEST_DIR", &suite.dir);
    command.env("PATH", SEARCH_PATH).env("HOME", "/root").env("SLIPWAY_SKIPS", SKIPS);
    command.envs(env.iter().map(|(key, value)| (key, value)));
    // The suite gets a process group of its own, so that everything it has started ends with it when its time is over.
    command.process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

fn watch(mut child: Child, limit: Duration, reporter: &Reporter) -> Ending {
    let (done, ended) = mpsc::channel::<()>();
    if let Some(stdout) = child.stdout.take() {
        forward(stdout, reporter.clone(), done.clone());
    }
    if let Some(stderr) = child.stderr.take() {
        forward(stderr, reporter.clone(), done);
    }
    let deadline = Instant::now() + limit;
    let ending = loop {
        match child.try_wait() {
            Ok(Some(status)) => break ending(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(PAUSE),
            Ok(None) => break Ending::Timeout,
            Err(e) => {
                reporter.send(&Event::Trouble(format!("wait for process {}: {e}", child.id())));
                break Ending::Exit(127);
            }
        }
    };
    if let Ok(group) = i32::try_from(child.id()) {
        // ESRCH means that no process of the group is left.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    if ending == Ending::Timeout {
        let _ = child.wait();
    }
    // Both readers drop their sender at the end of their pipe.
    let patience = Instant::now() + LAST_WORDS;
    while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(PAUSE) {
        if Instant::now() > patience {
            break;
        }
    }
    ending
}

fn ending(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exit(code),
        (None, signal) => Ending::Signal(signal.unwrap_or_default()),
    }
}

/// Sends each line of a stream, and at once the name that libtest prints before it runs a test: it shows where a guest
/// hangs.
fn forward(mut stream: impl Read + Send + 'static, reporter: Reporter, done: mpsc::Sender<()>) {
    thread::spawn(move || {
        let mut open = Vec::new();
        let mut chunk = [0; 4096];
        while let Ok(count) = stream.read(&mut chunk)
            && count > 0
        {
            open.extend_from_slice(&chunk[..count]);
            while let Some(end) = open.iter().position(|byte| *byte == b'\n') {
                let rest = open.split_off(end + 1);
                reporter.send(&Event::Output(String::from_utf8_lossy(&open[..end]).into_owned()));
                open = rest;
            }
            if open.starts_with(b"test ") && open.ends_with(b" ... ") {
                reporter.send(&Event::Unfinished(String::from_utf8_lossy(&open).into_owned()));
            }
        }
        if !open.is_empty() {
            reporter.send(&Event::Output(String::from_utf8_lossy(&open).into_owned()));
        }
        drop(done);
    });
}

/// Orphans become children of the first process.
fn reap() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            break;
        }
    }
}
