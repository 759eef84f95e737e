// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plugins as processes.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin};
use tokio::time::{sleep, timeout};

use super::{CallFuture, CallOptions, Exec, StderrSink};
use crate::error::CallError;
use crate::invoke::{failure, find};
use crate::verbs::{Outcome, PluginCall};

/// The time for output that is still in the pipes after the end of the plugin: processes that it has started
/// may hold them open forever.
const GRACE: Duration = Duration::from_millis(200);
/// The time in which a killed plugin is reaped: a process that the kernel does not let die yet must not block the
/// caller.
const REAPING: Duration = Duration::from_secs(1);
/// Attempts to start a file that is being written, as during an upgrade, a second apart.
const ATTEMPTS: u32 = 6;

/// Runs plugins as processes, each in a process group of its own. At the time limit and on cancellation the
/// group is killed and the plugin reaped. Processes that leave the group (setsid(2)) are left running. Dropping the
/// future kills the group, too, and tokio reaps the plugin.
///
/// A process that the plugin leaves behind may hold its pipes open: that delays the result by 0.2 s at most.
#[derive(Debug, Clone, Copy, Default)]
pub struct Processes;

impl Exec for Processes {
    fn exec<'a>(
        &'a self,
        directories: &'a [PathBuf],
        call: &'a PluginCall,
        options: &'a CallOptions,
    ) -> CallFuture<'a> {
        Box::pin(async move {
            let path = find(&call.plugin, directories).map_err(CallError::NotFound)?;
            run(&path, call, options, Group::Own).await
        })
    }
}

/// The process group of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// A new one, which is killed at the time limit.
    Own,
    /// The group of this process: a delegate is killed with the plugin that called it.
    Caller,
}

/// Runs a plugin. Its standard error goes to the options' sink or, if it succeeds, to that of this process.
pub(crate) async fn run(path: &Path, call: &PluginCall, options: &CallOptions, group: Group) -> Outcome {
    let begin = Instant::now();
    let (mut stdout, mut stderr) = (Vec::new(), Lines::new(options, call));
    let ended = {
        let stop = stop(options);
        tokio::pin!(stop);
        let failed = |operation: &'static str| {
            move |error: io::Error| {
                CallError::Failed(failure(&format!("{operation} {}: {error}", path.display()), &[], &[]))
            }
        };
        let mut running = tokio::select! {
            biased;
            started = Running::start(command(path, call), group) => started.map_err(failed("run"))?,
            error = &mut stop => return Err(error),
        };
        let ended = tokio::select! {
            biased;
            ended = running.finish(
                &call.stdin,
                |bytes| stdout.extend_from_slice(bytes),
                |bytes| stderr.push(bytes),
            ) => ended.map_err(failed("wait for")),
            error = &mut stop => Err(error),
        };
        if ended.is_err() {
            running.kill().await;
        }
        ended
    };
    stderr.flush();
    outcome(path, begin, ended, stdout, &stderr)
}

/// Waits for the cancellation or the time limit.
async fn stop(options: &CallOptions) -> CallError {
    let cancelled = async {
        match &options.cancel {
            Some(cancel) => cancel.cancelled().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = cancelled => CallError::Cancelled,
        () = sleep(options.limit) => CallError::TimedOut(options.limit),
    }
}

/// The result of a plugin that has ended or was killed.
fn outcome(
    path: &Path,
    begin: Instant,
    ended: Result<ExitStatus, CallError>,
    stdout: Vec<u8>,
    stderr: &Lines<'_>,
) -> Result<Vec<u8>, CallError> {
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let shown = ended.as_ref().map_or_else(ToString::to_string, |status| status_text(*status));
    log::debug!("exec {}: {shown} in {took:.1} ms", path.display());
    let status = ended?;
    if status.success() {
        stderr.copy(path);
        return Ok(stdout);
    }
    Err(CallError::Failed(failure(&status_text(status), &stdout, &stderr.all)))
}

/// The command of a plugin's call, with pipes.
fn command(path: &Path, call: &PluginCall) -> std::process::Command {
    let mut command = std::process::Command::new(path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(call.env.iter().map(|(name, value)| (name, value)));
    command
}

/// Formats a status as Go does, which users and tools know.
pub(crate) fn status_text(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// A plugin's standard error, complete and line by line.
struct Lines<'a> {
    all: Vec<u8>,
    sink: Option<(&'a StderrSink, &'a PluginCall)>,
    /// The start of the line that is not complete yet.
    line: usize,
}

impl<'a> Lines<'a> {
    fn new(options: &'a CallOptions, call: &'a PluginCall) -> Self {
        Self { all: Vec::new(), sink: options.stderr.as_ref().map(|sink| (sink, call)), line: 0 }
    }

    /// Appends what the plugin wrote, and passes complete lines on.
    fn push(&mut self, bytes: &[u8]) {
        self.all.extend_from_slice(bytes);
        while let Some(length) = self.all[self.line..].iter().position(|byte| *byte == b'\n') {
            self.pass(self.line + length);
            self.line += length + 1;
        }
    }

    /// Passes on the last line, which may have no line feed.
    fn flush(&mut self) {
        if self.line < self.all.len() {
            self.pass(self.all.len());
            self.line = self.all.len();
        }
    }

    /// Copies all to this process's standard error, unless there is a sink: messages for people are not lost.
    fn copy(&self, path: &Path) {
        if self.sink.is_none()
            && let Err(error) = io::stderr().write_all(&self.all)
        {
            log::debug!("copy the standard error of {}: {error}", path.display());
        }
    }

    fn pass(&self, end: usize) {
        if let Some((sink, call)) = self.sink {
            sink(call, &String::from_utf8_lossy(&self.all[self.line..end]));
        }
    }
}

/// A program, killed when this is dropped, with its group.
pub(crate) struct Running {
    child: Child,
    group: Group,
}

impl Running {
    /// Starts a program. Retries while its file is being written.
    pub(crate) async fn start(command: std::process::Command, group: Group) -> io::Result<Self> {
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true);
        if group == Group::Own {
            command.process_group(0);
        }
        for _ in 1..ATTEMPTS {
            match command.spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    let program = Path::new(command.as_std().get_program());
                    log::warn!("{} is being written, trying again", program.display());
                    sleep(Duration::from_secs(1)).await;
                }
                done => return done.map(|child| Self { child, group }),
            }
        }
        command.spawn().map(|child| Self { child, group })
    }

    /// Runs the program to its end, and passes on what it prints. A process that it leaves behind with its pipes open
    /// delays the end by 0.2 s at most.
    pub(crate) async fn finish(
        &mut self,
        input: &[u8],
        stdout: impl FnMut(&[u8]),
        stderr: impl FnMut(&[u8]),
    ) -> io::Result<ExitStatus> {
        let child = &mut self.child;
        let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = write(stdin, input);
        let pipes = async { tokio::join!(read(out, stdout), read(err, stderr)) };
        tokio::pin!(write, pipes);
        let (mut written, mut closed) = (false, false);
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                () = &mut write, if !written => written = true,
                _ = &mut pipes, if !closed => closed = true,
            }
        };
        if !closed && timeout(GRACE, pipes).await.is_err() {
            log::debug!("another process holds the output open");
        }
        Ok(status)
    }

    /// Kills and reaps the program.
    async fn kill(&mut self) {
        let Some(pid) = self.child.id() else { return };
        kill(pid, self.group);
        match timeout(REAPING, self.child.wait()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => log::debug!("wait for the end of a killed plugin: {error}"),
            Err(_) => log::warn!("plugin process {pid} is killed but has not ended"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // None after the program was reaped: another process may have the number.
        if let Some(pid) = self.child.id() {
            kill(pid, self.group);
        }
    }
}

/// Kills a plugin that has not been reaped: until then no other process gets its number.
fn kill(pid: u32, group: Group) {
    let Ok(pid) = i32::try_from(pid).map(Pid::from_raw) else { return };
    let done = match group {
        Group::Own => killpg(pid, Signal::SIGKILL),
        Group::Caller => nix::sys::signal::kill(pid, Signal::SIGKILL),
    };
    if let Err(errno) = done
        && errno != Errno::ESRCH
    {
        log::warn!("kill plugin process {pid}: {errno}");
    }
}

async fn write(stdin: Option<ChildStdin>, config: &[u8]) {
    let Some(mut pipe) = stdin else { return };
    // A plugin need not read its input; only its output counts.
    if let Err(error) = pipe.write_all(config).await {
        log::debug!("write the configuration: {error}");
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 16 << 10];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) => return,
            Ok(length) => take(&buffer[..length]),
            Err(error) => {
                log::debug!("read the output: {error}");
                return;
            }
        }
    }
}
