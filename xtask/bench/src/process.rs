// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes that are measured, or that report what others do.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run;

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).spawn().map(Self).map_err(|e| Error::system(run::line(command), e))
    }

    /// The same with its output in a file.
    pub(crate) fn logged(program: &Path, arguments: &[String], log: &Path) -> Result<Self> {
        let output = files::create(log)?;
        let errors = output.try_clone().map_err(|e| Error::file("open", log, e))?;
        Self::start(Command::new(program).args(arguments).stdout(output).stderr(errors))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        for result in [self.0.kill(), self.0.wait().map(drop)] {
            if let Err(e) = result {
                eprintln!("end process {}: {e}", self.id());
            }
        }
    }
}

/// A running process, and the lines of its output with the times at which they were read.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) process: Process,
    lines: Receiver<(Instant, String)>,
}

impl Lines {
    pub(crate) fn of(command: &mut Command) -> Result<Self> {
        let mut process = Process::start(command.stdout(Stdio::piped()))?;
        let output = process.0.stdout.take();
        let (send, lines) = mpsc::channel();
        // The thread ends with the command's output.
        thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let Ok(line) = line else { return };
                if send.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, lines })
    }

    /// Waits for a line, and returns its time.
    pub(crate) fn wait_for(
        &self,
        limit: Duration,
        is_wanted: impl Fn(&str) -> bool,
    ) -> std::result::Result<Instant, RecvTimeoutError> {
        let until = Instant::now() + limit;
        loop {
            let (time, line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now()))?;
            if is_wanted(&line) {
                return Ok(time);
            }
        }
    }
}
