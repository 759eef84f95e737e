// SPDX-License-Identifier: GPL-2.0-or-later

//! Programs that run until a test has ended.

use std::ffi::OsStr;
use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::space::Space;

/// A program that runs until its `Daemon` is dropped. The kernel kills the program if the test process is killed.
#[derive(Debug)]
pub struct Daemon {
    pid: Pid,
    thread: Option<thread::JoinHandle<()>>,
}

impl Space {
    /// Starts a program in this space. Its output goes to a file at a path as the space sees it.
    pub fn daemon(&self, program: impl AsRef<OsStr>, args: &[&str], log: &str) -> Daemon {
        // PR_SET_PDEATHSIG refers to the thread that started the program (prctl(2)), so that thread lives until the
        // program ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program.as_ref()).args(args);
        let (space, log) = (self.clone(), log.to_owned());
        let (started, pid) = mpsc::channel();
        let thread = thread::spawn(move || {
            space.run(|| {
                let output = File::create(&log).unwrap_or_else(|e| panic!("create {log}: {e}"));
                let errors = output.try_clone().expect("duplicate the log's descriptor");
                command.stdin(Stdio::null()).stdout(output).stderr(errors);
                let mut child = command.spawn().unwrap_or_else(|e| panic!("start {command:?}: {e}"));
                let _ = started.send(child.id().cast_signed());
                let _ = child.wait();
            });
        });
        let pid =
            pid.recv().unwrap_or_else(|_| panic!("{}: {:?} did not start", self.name(), program.as_ref()));
        Daemon { pid: Pid::from_raw(pid), thread: Some(thread) }
    }
}

impl Daemon {
    pub fn runs(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn suspend(&self) {
        kill(self.pid, Signal::SIGSTOP).expect("the program runs");
    }

    pub fn terminate(&self) {
        kill(self.pid, Signal::SIGTERM).expect("the program runs");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.runs() {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
